// Programs that were compiled with another age's headers.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/gradsync.h"
#include "tests/support/asserts.h"

// As the library's next struct, for which an option was thought of.
typedef struct newer_options {
    gs_device_options known;
    int64_t later;
} newer_options;

static gs_status open_newer(gs_device **out, const newer_options *options) {
    return gs_device_open_sized(out, "cpu", &options->known, sizeof *options);
}

static void older_program_is_served(void **state) {
    (void)state;
    struct {
        int num_threads;  // all that the first release had
        char beyond[sizeof(gs_device_options)];
    } older = {.num_threads = 2};
    memset(older.beyond, 0xff, sizeof older.beyond);
    gs_device *device;
    assert_ok(gs_device_open_sized(&device, "cpu", (const gs_device_options *)(const void *)&older,
                                   sizeof older.num_threads));
    assert_int_equal(gs_device_num_threads(device), 2);
    gs_device_close(device);
}

static void newer_program_is_served_while_it_asks_for_nothing_new(void **state) {
    (void)state;
    gs_device *device;
    assert_ok(open_newer(&device, &(newer_options){.known.num_threads = 3}));
    assert_int_equal(gs_device_num_threads(device), 3);
    gs_device_close(device);
}

static void option_of_a_newer_program_is_refused(void **state) {
    (void)state;
    gs_device *device;
    gs_status status = open_newer(&device, &(newer_options){.later = INT64_C(1) << 56});
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "gs_device_options"));
    assert_non_null(strstr(status.message, gs_version()));
}

// The other ranks wait for this one: it tells them.
static void refused_options_end_the_communicator(void **state) {
    (void)state;
    const struct {
        gs_reducer_options known;
        int64_t later;
    } newer = {.later = 1};
    gs_device *device;
    gs_comm *comm;
    gs_reducer *reducer;
    assert_ok(gs_device_open(&device, "cpu", NULL));
    assert_ok(gs_comm_create(&comm, &(gs_comm_options){.world_size = 1, .device = device},
                             gs_deadline_in_seconds(60)));
    gs_status status = gs_reducer_create_sized(&reducer, &newer.known, sizeof newer, comm,
                                               gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_null(reducer);
    status = gs_comm_run(comm, &(gs_collective){.kind = GS_BARRIER, .bucket = -1},
                         gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_ABORTED);
    gs_comm_destroy(comm);
    gs_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(older_program_is_served),
        cmocka_unit_test(newer_program_is_served_while_it_asks_for_nothing_new),
        cmocka_unit_test(option_of_a_newer_program_is_refused),
        cmocka_unit_test(refused_options_end_the_communicator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
