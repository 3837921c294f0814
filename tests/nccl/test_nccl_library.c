// The library itself, where it is installed, also on machines without a GPU and in builds whose ranks run on
// the stand-in: that what gradsync/comm/nccl/library.c looks up is there, and what needs no device answers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gradsync/comm/comm.h"
#include "gradsync/comm/nccl/library.h"

static gs_nccl_library *library;

static int open_library(void **state) {
    (void)state;
    gs_status status = gs_nccl_library_open(&library);
    if (status.code) print_message("skipped: %s\n", status.message);
    return 0;
}

static int close_library(void **state) {
    (void)state;
    gs_nccl_library_close(library);
    return 0;
}

static void every_call_of_its_header_is_found(void **state) {
    (void)state;
    if (!library) skip();
    assert_true(gs_nccl_library_version(library) >= 21400);
    assert_true(gs_nccl_library_version(library) < 30000);
    bool is_new = gs_nccl_library_version(library) >= 22700;
    assert_true(gs_nccl_has_windows(library) || !is_new);
    assert_true(gs_nccl_has_registration(library) || !is_new);
}

static void its_version_is_told_as_text(void **state) {
    (void)state;
    char text[128], expected[24];
    if (!library) skip();
    int version = gs_nccl_library_version(library);
    snprintf(expected, sizeof expected, "%d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    assert_true(gs_nccl_version(text, sizeof text));
    assert_string_equal(text, expected);
}

static void unique_ids_need_no_gpu_and_differ(void **state) {
    (void)state;
    static const gs_nccl_id zero;
    gs_nccl_id first = zero, second = zero;
    if (!library) skip();
    assert_int_equal(gs_nccl_make_id(library, &first).code, GS_OK);
    assert_int_equal(gs_nccl_make_id(library, &second).code, GS_OK);
    assert_memory_not_equal(&first, &zero, sizeof zero);
    assert_memory_not_equal(&first, &second, sizeof first);
}

// One rank, on the first GPU or on none: a communicator that can be left, or an error that names the call.
static void an_initialisation_answers_with_or_without_a_gpu(void **state) {
    (void)state;
    gs_nccl_id id;
    gs_nccl_handle *handle = NULL;
    if (!library) skip();
    assert_int_equal(gs_nccl_make_id(library, &id).code, GS_OK);
    gs_status status = gs_nccl_begin_init(library, &handle, &id, 0, 1, (gs_nccl_ctas){0});
    bool in_progress = true;
    gs_deadline deadline = gs_deadline_in_seconds(60);
    while (!status.code && in_progress && !gs_deadline_passed(deadline))
        status = gs_nccl_query(library, handle, &in_progress);
    if (handle) assert_int_equal(gs_nccl_abort(library, handle).code, GS_OK);
    if (!status.code) assert_false(in_progress);
    if (status.code) print_message("%s\n", status.message);
    if (status.code)
        assert_true(strncmp(status.message, "ncclCommInitRankConfig: ", 24) == 0 ||
                    strncmp(status.message, "NCCL: ", 6) == 0);
}

int main(void) {
#ifdef GRADSYNC_REAL_NCCL
    // Brought to another machine it takes what is there.
    if (access(GRADSYNC_REAL_NCCL, R_OK) == 0) setenv("GRADSYNC_NCCL", GRADSYNC_REAL_NCCL, 0);
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_of_its_header_is_found),
        cmocka_unit_test(its_version_is_told_as_text),
        cmocka_unit_test(unique_ids_need_no_gpu_and_differ),
        cmocka_unit_test(an_initialisation_answers_with_or_without_a_gpu),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
