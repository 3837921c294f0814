// What a coalesced broadcast or sum posts: how large its collectives are, and how many of them are under way.
#include "gradsync/comm/coalesce.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/soon.h"

#define MIB ((size_t)1 << 20)
#define MAX_POSTS 64

static size_t posted_bytes[MAX_POSTS], num_posts;
static int num_in_flight, most_in_flight;

// Linked in place of the communicator's (--wrap); they pass on to it.
gs_status __real_gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective);
gs_status __wrap_gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective);
gs_status __real_gs_comm_wait(gs_comm *comm, gs_work work, gs_deadline deadline);
gs_status __wrap_gs_comm_wait(gs_comm *comm, gs_work work, gs_deadline deadline);

gs_status __wrap_gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective) {
    if (num_posts < MAX_POSTS)
        posted_bytes[num_posts] = collective->count * gs_dtype_bytes(collective->dtype);
    num_posts++;
    if (++num_in_flight > most_in_flight) most_in_flight = num_in_flight;
    return __real_gs_comm_post(comm, work, collective);
}

gs_status __wrap_gs_comm_wait(gs_comm *comm, gs_work work, gs_deadline deadline) {
    num_in_flight--;
    return __real_gs_comm_wait(comm, work, deadline);
}

typedef struct fixture {
    gs_device *device;
    gs_comm *comm;
} fixture;

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    *state = f;
    num_posts = 0;
    num_in_flight = most_in_flight = 0;
    assert_ok(gs_device_open(&f->device, "cpu", &(gs_device_options){0}));
    assert_ok(gs_comm_create(&f->comm,
                             &(gs_comm_options){.backend = "self",
                                                .world_size = 1,
                                                .generation = 1,
                                                .device = f->device},
                             soon()));
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    gs_comm_destroy(f->comm);
    gs_device_close(f->device);
    free(f);
    return 0;
}

// One run of memory that nobody touches: 300 MiB of tensors cost nothing.
static void sums_hold_250_mib_by_default_and_broadcasts_end_a_chunk_at_1_mib(void **state) {
    fixture *f = *state;
    const size_t count = MIB / 4 - 1, num_tensors = 300, bytes = num_tensors * count * 4;
    float *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(memory != MAP_FAILED);
    gs_tensor_view views[300];
    for (size_t i = 0; i < num_tensors; i++)
        views[i] = (gs_tensor_view){memory + i * count, count, GS_FP32};
    assert_ok(gs_coalesced_allreduce(f->comm, views, num_tensors, GS_OP_SUM, 0, 0, soon()));
    // 250 of them are 1000 bytes below the limit, one more is above it.
    assert_int_equal(num_posts, 2);
    assert_int_equal(posted_bytes[0], 250 * MIB - 1000);
    assert_int_equal(posted_bytes[1], 50 * MIB - 200);
    num_posts = 0;
    assert_ok(gs_coalesced_broadcast(f->comm, views, num_tensors, 0, 0, soon()));
    assert_int_equal(num_posts, 150);
    for (size_t i = 0; i < MAX_POSTS; i++) assert_int_equal(posted_bytes[i], 2 * MIB - 8);
    munmap(memory, bytes);
}

static void two_collectives_are_under_way(void **state) {
    fixture *f = *state;
    float values[40][100];
    gs_tensor_view views[40];
    memset(values, 0, sizeof values);
    // Not neighbours in memory, so that each chunk is gathered.
    for (size_t i = 0; i < 40; i++) views[i] = (gs_tensor_view){values[39 - i], 100, GS_FP32};
    assert_ok(gs_coalesced_broadcast(f->comm, views, 40, 0, 1000, soon()));
    assert_int_equal(num_posts, 20);  // of two tensors, 800 bytes
    for (size_t i = 0; i < 20; i++) assert_int_equal(posted_bytes[i], 800);
    assert_int_equal(most_in_flight, 2);
    assert_int_equal(num_in_flight, 0);
    assert_ok(gs_coalesced_allreduce(f->comm, views, 40, GS_OP_SUM, 0, 1000, soon()));
    assert_int_equal(num_posts, 40);
    assert_int_equal(most_in_flight, 2);
}

static void a_tensor_of_1_mib_travels_alone_in_a_broadcast(void **state) {
    fixture *f = *state;
    float *values = calloc(3, MIB + 400);
    assert_non_null(values);
    const gs_tensor_view views[] = {{values, 100, GS_FP32},
                                    {values + 100, MIB / 4, GS_FP32},
                                    {values + 100 + MIB / 4, 50, GS_FP32},
                                    {values + 150 + MIB / 4, 50, GS_FP32}};
    assert_ok(gs_coalesced_broadcast(f->comm, views, 4, 0, 0, soon()));
    assert_int_equal(num_posts, 3);
    assert_int_equal(posted_bytes[0], 400);
    assert_int_equal(posted_bytes[1], MIB);
    assert_int_equal(posted_bytes[2], 400);
    free(values);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sums_hold_250_mib_by_default_and_broadcasts_end_a_chunk_at_1_mib, set_up, tear_down),
        cmocka_unit_test_setup_teardown(two_collectives_are_under_way, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_tensor_of_1_mib_travels_alone_in_a_broadcast, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
