// Gradients of the caller's own, through a reducer of one rank.
#include "gradsync/bucket/grad_copies.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/small_reducer.h"
#include "tests/support/soon.h"

// One tensor of each type, all of 64 bytes, as far as the test reads and writes them.
typedef union own_values {
    float fp32[SMALL_COUNT];
    double fp64[SMALL_COUNT];
    uint16_t fp16[SMALL_COUNT], bf16[SMALL_COUNT];
} own_values;

typedef struct own_grads {
    gs_device *device;
    char *memory;  // of the device
    gs_separate_grad list[SMALL_PARAMS];
} own_grads;

static void list_own(own_grads *own) {
    static const gs_dtype dtypes[SMALL_PARAMS] = {GS_FP32, GS_FP64, GS_FP16, GS_BF16};
    for (size_t p = 0; p < SMALL_PARAMS; p++)
        own->list[p] = (gs_separate_grad){own->memory + 64 * p, dtypes[p]};
}

static void read_own(const own_grads *own, own_values *values, size_t param) {
    device_memory_read(own->device, values, own->list[param].data, sizeof *values);
}

static void write_own(const own_grads *own, const own_values *values, size_t param) {
    device_memory_write(own->device, own->list[param].data, values, sizeof *values);
}

static void put_own(own_grads *own, size_t param, float value) {
    own_values values = {0};
    for (size_t i = 0; i < SMALL_COUNT; i++) {
        if (param == 0) values.fp32[i] = value;
        if (param == 1) values.fp64[i] = (double)value;
        if (param == 2) values.fp16[i] = gs_fp32_to_fp16(value);
        if (param == 3) values.bf16[i] = gs_fp32_to_bf16(value);
    }
    write_own(own, &values, param);
}

static float get_own(const own_grads *own, size_t param, size_t i) {
    own_values values;
    read_own(own, &values, param);
    if (param == 0) return values.fp32[i];
    if (param == 1) return (float)values.fp64[i];
    return param == 2 ? gs_fp16_to_fp32(values.fp16[i]) : gs_bf16_to_fp32(values.bf16[i]);
}

static void open_own(small_reducer *small, own_grads *own, const gs_reducer_options *options) {
    gs_reducer_options all = *options;
    small_reducer_prepare(small);
    small->device = own->device = test_device_open(1);
    own->memory = device_memory_alloc(own->device, 64 * SMALL_PARAMS);
    list_own(own);
    all.separate = own->list;
    assert_ok(small_reducer_open(small, &all, NULL));
}

static void close_own(small_reducer *small, own_grads *own) {
    device_memory_free(own->device, own->memory);
    small_reducer_close(small);
}

// values[p]: what tensor p holds when it is marked; NAN: not marked.
static void run_own_pass(small_reducer *small, own_grads *own, const float *values) {
    gs_reducer_pass pass;
    assert_ok(gs_reducer_begin_pass(small->reducer, &pass, 1));
    for (size_t p = 0; p < SMALL_PARAMS; p++) {
        if (isnan(values[p])) continue;
        assert_ptr_equal((void *)pass.grads[p], own->list[p].data);
        bool adds = gs_reducer_pass_adds(small->reducer, p);
        put_own(own, p, values[p] + (adds ? get_own(own, p, 0) : 0));
        assert_ok(gs_reducer_mark_ready(small->reducer, p));
    }
    assert_ok(gs_reducer_end_pass(small->reducer));
}

static void finish_own(small_reducer *small, gs_reduce_result *result) {
    assert_ok(gs_reducer_finish(small->reducer, result, soon()));
}

static void tensors_of_every_type_are_reduced_and_get_the_result(void **state) {
    (void)state;
    small_reducer small;
    own_grads own;
    gs_reduce_result result;
    open_own(&small, &own, &(gs_reducer_options){.shards = {.num_shards = 2}});
    for (int64_t step = 0; step < 2; step++) {
        assert_ok(gs_reducer_begin(small.reducer, step));
        run_own_pass(&small, &own, (const float[]){1, 2, 3, 4});
        run_own_pass(&small, &own, (const float[]){2, 2, 2, 2});
        finish_own(&small, &result);
        for (size_t p = 0; p < SMALL_PARAMS; p++) {
            assert_near(get_own(&own, p, 3), (float)(p + 3) / 2, 0);
            assert_near(small_reducer_grad(&small, p, 3), (float)(p + 3) / 2, 0);
        }
        for (size_t b = 0; b < 2; b++) {
            const gs_bucket_times *times = &gs_reducer_stats(small.reducer)->buckets[b];
            assert_true(times->copy_in_ns > 0 && times->copy_out_ns > 0);
        }
    }
    close_own(&small, &own);
}

static void what_nobody_used_keeps_its_old_value_bit_for_bit(void **state) {
    (void)state;
    small_reducer small;
    own_grads own;
    gs_reduce_result result;
    open_own(&small, &own, &(gs_reducer_options){.passes_per_shard = 2});
    const uint32_t odd_nan = 0x7fa01234;
    for (int64_t step = 0; step < 3; step++) {
        own_values odd = {.fp32 = {1, 2, 3, 4}};
        memcpy(&odd.fp32[1], &odd_nan, sizeof odd_nan);
        write_own(&own, &odd, 0);
        put_own(&own, 3, 7);
        assert_ok(gs_reducer_begin(small.reducer, step));
        run_own_pass(&small, &own, (const float[]){NAN, 2, 2, NAN});
        run_own_pass(&small, &own, (const float[]){NAN, 2, 2, NAN});
        finish_own(&small, &result);
        assert_false(result.nonfinite);
        assert_int_equal(result.num_unused, 2);
        read_own(&own, &odd, 0);
        assert_memory_equal(&odd.fp32[1], &odd_nan, sizeof odd_nan);
        assert_near(get_own(&own, 3, 2), 7, 0);
        assert_near(small_reducer_grad(&small, 3, 0), 0, 0);
        assert_near(result.grad_norm, sqrtf(8 * 4), 1e-6f);
    }
    close_own(&small, &own);
}

// Decided against the original, where an unused parameter contributes what its gradient held.
static void stale_gradient_of_an_unused_parameter_is_not_contributed(void **state) {
    (void)state;
    small_reducer small;
    own_grads own;
    gs_reduce_result result;
    open_own(&small, &own, &(gs_reducer_options){0});
    for (int64_t step = 0; step < 2; step++) {
        put_own(&own, 0, 100);
        assert_ok(gs_reducer_begin(small.reducer, step));
        gs_reducer_pass pass;
        assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
        if (step) assert_ok(gs_reducer_mark_unused(small.reducer, 0));
        assert_ok(gs_reducer_end_pass(small.reducer));
        finish_own(&small, &result);
        assert_near(small_reducer_grad(&small, 0, 0), 0, 0);
        assert_near(get_own(&own, 0, 0), 100, 0);
        assert_near(result.grad_norm, 0, 0);
    }
    close_own(&small, &own);
}

static void passes_may_use_different_parameters(void **state) {
    (void)state;
    for (int exact = 0; exact < 2; exact++) {
        small_reducer small;
        own_grads own;
        gs_reduce_result result;
        open_own(&small, &own,
                 &(gs_reducer_options){.passes_per_shard = 2,
                                       .op = GS_SUM,
                                       .shards = {.num_shards = 2, .exact = exact}});
        for (int64_t step = 0; step < 2; step++) {
            for (size_t p = 0; p < SMALL_PARAMS; p++) put_own(&own, p, 1000);  // stale
            assert_ok(gs_reducer_begin(small.reducer, step));
            run_own_pass(&small, &own, (const float[]){1, NAN, NAN, NAN});
            run_own_pass(&small, &own, (const float[]){NAN, 2, NAN, NAN});
            run_own_pass(&small, &own, (const float[]){4, NAN, 8, NAN});
            run_own_pass(&small, &own, (const float[]){NAN, 16, NAN, NAN});
            finish_own(&small, &result);
            const float expected[] = {5, 18, 8, 1000};
            for (size_t p = 0; p < SMALL_PARAMS; p++)
                assert_near(get_own(&own, p, 1), expected[p], 0);
            assert_int_equal(result.num_unused, 1);
        }
        close_own(&small, &own);
    }
}

static void static_graph_copies_tensors_at_their_last_mark(void **state) {
    (void)state;
    small_reducer small;
    own_grads own;
    gs_reduce_result result;
    open_own(&small, &own, &(gs_reducer_options){.static_graph = true});
    for (int64_t step = 0; step < 3; step++) {
        gs_reducer_pass pass;
        put_own(&own, 3, 50);
        assert_ok(gs_reducer_begin(small.reducer, step));
        assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
        for (size_t p = 0; p < 3; p++) {
            put_own(&own, p, 1);
            assert_ok(gs_reducer_mark_ready(small.reducer, p));
            put_own(&own, p, 3);
            assert_ok(gs_reducer_mark_ready(small.reducer, p));
        }
        assert_ok(gs_reducer_end_pass(small.reducer));
        finish_own(&small, &result);
        for (size_t p = 0; p < 3; p++) assert_near(get_own(&own, p, 0), 3, 0);
        assert_near(get_own(&own, 3, 0), 50, 0);
        assert_near(small_reducer_grad(&small, 3, 0), 0, 0);
    }
    close_own(&small, &own);
}

// On the CPU, where a launch costs nothing: what the tensor is used for after its mark is too late.
static void marked_tensor_is_copied_at_once_on_the_host(void **state) {
    (void)state;
    if (!test_device_is_host()) skip();
    small_reducer small;
    own_grads own;
    gs_reduce_result result;
    gs_reducer_pass pass;
    open_own(&small, &own, &(gs_reducer_options){0});
    assert_ok(gs_reducer_begin(small.reducer, 0));
    assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
    for (size_t p = 0; p < SMALL_PARAMS; p++) {
        put_own(&own, p, (float)(p + 1));
        assert_ok(gs_reducer_mark_ready(small.reducer, p));
        put_own(&own, p, 100);
    }
    assert_ok(gs_reducer_end_pass(small.reducer));
    finish_own(&small, &result);
    for (size_t p = 0; p < SMALL_PARAMS; p++) {
        assert_near(small_reducer_grad(&small, p, 3), (float)(p + 1), 0);
        assert_near(get_own(&own, p, 3), (float)(p + 1), 0);
    }
    close_own(&small, &own);
}

static void step_that_fails_leaves_tensors_alone(void **state) {
    (void)state;
    small_reducer small;
    own_grads own;
    gs_reduce_result result;
    open_own(&small, &own, &(gs_reducer_options){.shards = {.num_shards = 2}});
    assert_ok(gs_reducer_begin(small.reducer, 0));
    run_own_pass(&small, &own, (const float[]){1, 2, 3, 4});
    gs_status status = gs_reducer_finish(small.reducer, &result, soon());
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    for (size_t p = 0; p < SMALL_PARAMS; p++) assert_near(get_own(&own, p, 0), (float)(p + 1), 0);
    close_own(&small, &own);
}

static void tensors_that_hold_no_gradient_are_refused_by_name(void **state) {
    (void)state;
    static double memory[8 * SMALL_PARAMS];
    own_grads own = {.memory = (char *)memory};
    list_own(&own);
    small_reducer small;
    small_reducer_prepare(&small);
    own.list[2].data = NULL;
    gs_status status = gs_separate_grads_check(own.list, small.params, SMALL_PARAMS);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "parameter 2 \"fc2\": its separate gradient has no"));
    small.params[2].sparse = true;  // whose rows are elsewhere
    assert_ok(gs_separate_grads_check(own.list, small.params, SMALL_PARAMS));
    own.list[1].dtype = GS_I32;
    status = gs_separate_grads_check(own.list, small.params, SMALL_PARAMS);
    assert_non_null(strstr(status.message, "parameter 1 \"fc1\": its separate gradient is i32"));
    own.list[1] = (gs_separate_grad){own.memory + 4, GS_FP64};
    status = gs_separate_grads_check(own.list, small.params, SMALL_PARAMS);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_of_every_type_are_reduced_and_get_the_result),
        cmocka_unit_test(what_nobody_used_keeps_its_old_value_bit_for_bit),
        cmocka_unit_test(stale_gradient_of_an_unused_parameter_is_not_contributed),
        cmocka_unit_test(passes_may_use_different_parameters),
        cmocka_unit_test(static_graph_copies_tensors_at_their_last_mark),
        cmocka_unit_test(marked_tensor_is_copied_at_once_on_the_host),
        cmocka_unit_test(step_that_fails_leaves_tensors_alone),
        cmocka_unit_test(tensors_that_hold_no_gradient_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
