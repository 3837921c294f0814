// Handles of the interface for other languages that are missing, not open, or given what does not
// fit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/comm/collective.h"
#include "tests/multiprocess/ffi_caller.h"
#include "tests/support/asserts.h"
#include "tests/support/soon.h"

static int refuse(void *ctx, const char *tag, const int *ranks, int num_ranks, const void *mine,
                  size_t bytes, void *all, int64_t left_ns) {
    (void)ctx, (void)tag, (void)ranks, (void)num_ranks, (void)mine, (void)bytes, (void)all;
    return left_ns > 0 ? GS_UNAVAILABLE : GS_INTERNAL;
}

static void handles_say_what_is_wrong(void **state) {
    (void)state;
    char text[200];
    gs_ffi_device *device = gs_ffi_device_new();
    gs_ffi_comm *comm = gs_ffi_comm_new();
    gs_ffi_reducer *reducer = gs_ffi_reducer_new();
    assert_int_equal(gs_ffi_device_open(device, "tpu"), GS_INVALID_ARGUMENT);
    assert_int_equal(gs_ffi_error(device, text, sizeof text), GS_INVALID_ARGUMENT);
    assert_non_null(strstr(text, "'tpu'"));
    assert_int_equal(gs_ffi_device_open(device, "cpu"), 0);
    assert_int_equal(gs_ffi_error(device, text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(gs_ffi_device_open(device, "cpu"), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_comm_set_rank(comm, 1, 2), 0);
    assert_int_equal(gs_ffi_comm_set_exchange(comm, refuse, NULL), 0);
    assert_int_equal(gs_ffi_comm_open(comm, device, NULL, SECOND), GS_UNAVAILABLE);
    assert_int_equal(gs_ffi_error(comm, text, sizeof text), GS_UNAVAILABLE);
    assert_non_null(strstr(text, "the exchange of \""));
    assert_non_null(strstr(text, "returned 14"));
    assert_string_equal(gs_ffi_comm_backend(comm), "");
    assert_int_equal(gs_ffi_reducer_begin(reducer, 0), GS_FAILED_PRECONDITION);
    assert_string_equal(gs_ffi_code_name(9), "FAILED_PRECONDITION");
    gs_ffi_reducer_free(reducer);
    gs_ffi_comm_free(comm);
    gs_ffi_device_free(device);
    gs_ffi_reducer_free(NULL);
    gs_ffi_comm_free(NULL);
}

static int run_nothing(void *ctx, int bucket, int is_last, int64_t step, void *data, size_t count,
                       int dtype, double scale) {
    (void)ctx, (void)bucket, (void)is_last, (void)step, (void)data, (void)count, (void)dtype;
    return scale == 0;
}

static int finish_nothing(void *ctx, int bucket, int64_t left_ns) {
    (void)ctx, (void)bucket;
    return left_ns < 0;
}

static void nothing_given_is_an_error(void **state) {
    (void)state;
    char text[64];
    size_t bytes;
    int num_lanes;
    gs_ffi_device *device = gs_ffi_device_new();
    gs_ffi_arena *arena = gs_ffi_arena_new();
    gs_ffi_params *params = gs_ffi_params_new();
    gs_ffi_plan *plan = gs_ffi_plan_new();
    gs_ffi_comm *comm = gs_ffi_comm_new();
    gs_ffi_reducer *reducer = gs_ffi_reducer_new();
    gs_ffi_optimizer *optimizer = gs_ffi_optimizer_new();
    gs_ffi_averager *averager = gs_ffi_averager_new();
    const int codes[] = {
        gs_ffi_device_set_threads(NULL, 1),
        gs_ffi_device_open(NULL, "cpu"),
        gs_ffi_device_open(device, NULL),
        gs_ffi_arena_open(NULL, device, 1),
        gs_ffi_arena_open(arena, NULL, 1),
        gs_ffi_params_add(NULL, "w", FFI_FP32, 0, NULL),
        gs_ffi_params_add(params, NULL, FFI_FP32, 0, NULL),
        gs_ffi_params_add(params, "w", FFI_FP32, 1, NULL),
        gs_ffi_params_add(params, "w", 99, 0, NULL),
        gs_ffi_plan_open(NULL, params, 0, 0, NULL),
        gs_ffi_plan_open(plan, NULL, 0, 0, NULL),
        gs_ffi_comm_set_rank(NULL, 0, 1),
        gs_ffi_comm_set_generation(NULL, 1),
        gs_ffi_comm_set_backend(NULL, "self"),
        gs_ffi_comm_set_backend(comm, NULL),
        gs_ffi_comm_set_backend(comm, "a name that no backend will ever have"),
        gs_ffi_comm_set_exchange(NULL, refuse, NULL),
        gs_ffi_comm_set_interrupt(NULL, NULL, NULL),
        gs_ffi_comm_open(NULL, device, NULL, SECOND),
        gs_ffi_comm_open(comm, NULL, NULL, SECOND),
        gs_ffi_comm_run(NULL, GS_BARRIER, NULL, NULL, 0, 0, 0, 0, SECOND),
        gs_ffi_comm_wait_ended(NULL, SECOND),
        gs_ffi_reducer_set_plan(NULL, params, plan),
        gs_ffi_reducer_set_plan(reducer, NULL, plan),
        gs_ffi_reducer_set_plan(reducer, params, NULL),
        gs_ffi_reducer_set_op(NULL, 0),
        gs_ffi_reducer_set_passes(NULL, 1),
        gs_ffi_reducer_set_wire_dtype(NULL, 0),
        gs_ffi_reducer_set_static_graph(NULL, 0),
        gs_ffi_reducer_set_notices(NULL, NULL, NULL, NULL),
        gs_ffi_reducer_set_hook(NULL, "h", run_nothing, finish_nothing, NULL, NULL),
        gs_ffi_reducer_set_hook(reducer, NULL, run_nothing, finish_nothing, NULL, NULL),
        gs_ffi_reducer_set_hook(reducer, "h", NULL, finish_nothing, NULL, NULL),
        gs_ffi_reducer_choose_hook(NULL, "noop"),
        gs_ffi_reducer_choose_hook(reducer, NULL),
        gs_ffi_reducer_set_hook_option(NULL, "rank", 1),
        gs_ffi_reducer_set_hook_option(reducer, NULL, 1),
        gs_ffi_reducer_wrap_hook(NULL, "wrap_fp16"),
        gs_ffi_averager_add(NULL, 1, 0),
        gs_ffi_averager_set_start(NULL, 1),
        gs_ffi_averager_open(NULL, params, NULL, comm, SECOND),
        gs_ffi_averager_open(averager, NULL, NULL, comm, SECOND),
        gs_ffi_averager_open(averager, params, NULL, comm, SECOND),
        gs_ffi_averager_run(NULL, 0, NULL, NULL, SECOND),
        gs_ffi_averager_run_all(NULL, 0, NULL, SECOND),
        gs_ffi_averager_reset(NULL, comm, NULL, SECOND),
        gs_ffi_reducer_arena_bytes(NULL, device, 1, &bytes),
        gs_ffi_reducer_arena_bytes(reducer, NULL, 1, &bytes),
        gs_ffi_reducer_arena_bytes(reducer, device, 1, NULL),
        gs_ffi_reducer_lanes(NULL, device, 1, &num_lanes),
        gs_ffi_reducer_lanes(reducer, NULL, 1, &num_lanes),
        gs_ffi_reducer_lanes(reducer, device, 1, NULL),
        gs_ffi_comm_set_lanes(NULL, 1),
        gs_ffi_reducer_open(NULL, comm, arena, device, SECOND),
        gs_ffi_reducer_open(reducer, NULL, arena, device, SECOND),
        gs_ffi_reducer_open(reducer, comm, NULL, device, SECOND),
        gs_ffi_reducer_open(reducer, comm, arena, NULL, SECOND),
        gs_ffi_reducer_begin(NULL, 0),
        gs_ffi_reducer_begin_pass(NULL, 1),
        gs_ffi_reducer_mark(NULL, 0),
        gs_ffi_reducer_mark_from(NULL, 0, NULL, FFI_FP32),
        gs_ffi_reducer_mark_unused(NULL, 0),
        gs_ffi_reducer_end_pass(NULL),
        gs_ffi_reducer_finish(NULL, SECOND),
        gs_ffi_reducer_abandon(NULL),
        gs_ffi_reducer_replan(NULL, plan, SECOND),
        gs_ffi_reducer_reset(NULL, comm, SECOND),
        gs_ffi_optimizer_set(NULL, "eps", 1),
        gs_ffi_optimizer_set(optimizer, NULL, 1),
        gs_ffi_optimizer_open(NULL, "sgd", params, device),
        gs_ffi_optimizer_open(optimizer, "sgd", NULL, device),
        gs_ffi_optimizer_open(optimizer, "sgd", params, NULL),
        gs_ffi_optimizer_step(NULL, NULL, reducer, 1, 1),
        gs_ffi_error(NULL, text, sizeof text),
        gs_ffi_error(NULL, NULL, sizeof text),
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i] != GS_INVALID_ARGUMENT) fail_msg("call %zu returned %d", i, codes[i]);
    assert_string_equal(text, "handle: none given");
    assert_int_equal(gs_ffi_error(device, text, sizeof text), GS_INVALID_ARGUMENT);
    assert_string_equal(text, "device's name: none given");
    gs_ffi_comm_abort(NULL, NULL);
    assert_int_equal(gs_ffi_comm_failure(NULL, NULL, NULL, NULL, NULL, 8), 0);
    assert_string_equal(gs_ffi_comm_backend(NULL), "");
    assert_null(gs_ffi_arena_data(NULL));
    assert_int_equal(gs_ffi_arena_bytes(NULL), 0);
    assert_int_equal(gs_ffi_plan_num_buckets(NULL), 0);
    assert_int_equal(gs_ffi_plan_bucket(NULL, 0, NULL, 1), 0);
    assert_true(gs_ffi_reducer_grad_offset(NULL, 0) == SIZE_MAX);
    assert_null(gs_ffi_reducer_ready_order(NULL));
    assert_false(gs_ffi_reducer_was_used(NULL, 0));
    gs_ffi_averager_free(NULL);
    gs_ffi_averager_free(averager);
    gs_ffi_optimizer_free(optimizer);
    gs_ffi_reducer_free(reducer);
    gs_ffi_comm_free(comm);
    gs_ffi_plan_free(plan);
    gs_ffi_params_free(params);
    gs_ffi_arena_free(arena);
    gs_ffi_device_free(device);
}

static void handles_that_are_not_open_are_refused(void **state) {
    (void)state;
    size_t bytes;
    float value = 0;
    void *values[] = {&value};
    gs_ffi_device *device = gs_ffi_device_new();
    gs_ffi_arena *arena = gs_ffi_arena_new();
    gs_ffi_params *params = gs_ffi_params_new();
    gs_ffi_comm *comm = gs_ffi_comm_new();
    gs_ffi_reducer *reducer = gs_ffi_reducer_new();
    gs_ffi_optimizer *optimizer = gs_ffi_optimizer_new();
    assert_int_equal(gs_ffi_reducer_arena_bytes(reducer, device, 1, &bytes),
                     GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_arena_open(arena, device, 1), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_comm_open(comm, device, NULL, SECOND), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_optimizer_open(optimizer, "sgd", params, device),
                     GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_device_open(device, "cpu"), 0);
    assert_int_equal(gs_ffi_comm_open(comm, device, arena, SECOND), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_comm_wait_ended(comm, SECOND), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_reducer_open(reducer, comm, arena, device, SECOND),
                     GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_reducer_reset(reducer, comm, SECOND), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_optimizer_step(optimizer, values, reducer, 1, 1),
                     GS_FAILED_PRECONDITION);
    gs_ffi_optimizer_free(optimizer);
    gs_ffi_reducer_free(reducer);
    gs_ffi_comm_free(comm);
    gs_ffi_params_free(params);
    gs_ffi_arena_free(arena);
    gs_ffi_device_free(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handles_say_what_is_wrong),
        cmocka_unit_test(nothing_given_is_an_error),
        cmocka_unit_test(handles_that_are_not_open_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
