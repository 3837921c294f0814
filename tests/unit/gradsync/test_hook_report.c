// What a step says of its hooks: time in them without that of posting, elements, the norm of what they carry.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/clock.h"
#include "gradsync/hooks/hook_calls.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/small_reducer.h"

#define MS GS_NS_PER_MS

// A hook that carries 3 and 4 and does nothing for 2 ms before each post, for 1 ms in its last word.
typedef struct carrier {
    float *residuals;  // of two parameters, and a tensor of the third that is equal on all ranks
} carrier;
static double squares_told;

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    (void)setup;
    *needs = (gs_hook_needs){.most_posts = 1, .state_bytes = 3 * sizeof(float)};
    return gs_ok();
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    static carrier made;
    static const float values[] = {3, 4, 100};
    made.residuals = setup->state;
    if (setup->device) device_memory_write(setup->device, setup->state, values, sizeof values);
    *state = &made;
    return gs_ok();
}

static gs_status place_nothing(void *state, const gs_hook_plan *plan) {
    (void)state, (void)plan;
    return gs_ok();
}

static void pass_time(int64_t ns) {
    int64_t until_ns = gs_now_ns() + ns;
    while (gs_now_ns() < until_ns) continue;
}

static gs_status run_slowly(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    pass_time(2 * MS);
    (void)state;
    return gs_hook_allreduce.run(NULL, bucket, work);
}

static gs_status finish_slowly(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                               gs_deadline deadline) {
    (void)state;
    pass_time(MS);
    return gs_hook_allreduce.finish(NULL, bucket, result, deadline);
}

static bool find_tensor(void *state, size_t index, gs_hook_tensor *tensor) {
    const carrier *self = state;
    if (index > 2) return false;
    *tensor = (gs_hook_tensor){.name = "error",
                               .param = (int64_t)index,
                               .dtype = GS_FP32,
                               .count = 1,
                               .data = self->residuals + index,
                               .is_own = index < 2};
    return true;
}

static void report(void *state, gs_hook_report *out) {
    (void)state;
    *out = (gs_hook_report){
        .elements = 16, .elements_sent = 5, .carries = true, .residual_squares = squares_told};
}

static gs_reduce_stats take_step(const gs_comm_hook *hook, int64_t num_steps) {
    const gs_hook_choice choice = {.hook = hook};
    static const double values[SMALL_PARAMS] = {1, 2, 3, 4};
    small_reducer small;
    gs_reduce_result result;
    small_reducer_prepare(&small);
    assert_ok(small_reducer_open(
        &small, &(gs_reducer_options){.hooks = &choice, .num_hooks = 1, .record.level = GS_RECORD_OFF},
        NULL));
    for (int64_t step = 0; step < num_steps; step++)
        assert_ok(small_reducer_run_step(&small, step, values, &result));
    gs_reduce_stats stats = *gs_reducer_stats(small.reducer);
    small_reducer_close(&small);
    return stats;
}

static gs_comm_hook slow_hook(void) {
    gs_comm_hook hook = gs_hook_allreduce;
    hook.name = "slow";
    hook.measure = measure;
    hook.create = create;
    hook.on_plan = place_nothing;
    hook.destroy = gs_hook_decide_nothing;
    hook.run = run_slowly;
    hook.finish = finish_slowly;
    hook.tensor = find_tensor;
    hook.report = report;
    return hook;
}

// As gs_hook_post does, for 2 ms.
static gs_status run_posting(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    int64_t begin_ns = gs_now_ns();
    pass_time(2 * MS);
    work->posting_ns += gs_now_ns() - begin_ns;
    return gs_hook_allreduce.run(state, bucket, work);
}

static void time_in_hooks_is_told_apart_from_posting(void **state) {
    (void)state;
    const gs_comm_hook hook = slow_hook();
    gs_reduce_stats stats = take_step(&hook, 1);
    int64_t buckets = (int64_t)stats.num_buckets;
    assert_true(buckets > 0);
    assert_true(stats.encode_ns >= buckets * 2 * MS);
    assert_true(stats.decode_ns >= buckets * MS);
    assert_true(stats.encode_ns + stats.decode_ns <= stats.end_ns - stats.begin_ns);
    gs_comm_hook posting = gs_hook_allreduce;
    posting.run = run_posting;
    stats = take_step(&posting, 1);
    assert_true(stats.encode_ns >= 0 && stats.encode_ns < buckets * 2 * MS);
}

static void residuals_are_measured_where_the_hook_does_not(void **state) {
    (void)state;
    const gs_comm_hook hook = slow_hook();
    squares_told = 0;
    gs_reduce_stats stats = take_step(&hook, 1);
    assert_int_equal(stats.elements, 16);
    assert_int_equal(stats.elements_sent, 5);
    assert_true(stats.knows_residuals && stats.residual_norm == 5);
    squares_told = 49;
    assert_true(take_step(&hook, 1).residual_norm == 7);
    gs_reduce_stats plain = take_step(&gs_hook_allreduce, 1);
    assert_false(plain.knows_residuals);
    assert_int_equal(plain.elements, 0);
}

// A pass over as many elements as the model has: not in every step.
static void steps_that_are_not_sampled_know_no_residuals(void **state) {
    (void)state;
    gs_comm_hook hook = slow_hook();
    assert_true(take_step(&hook, GS_RECORD_FIRST_SAMPLES).knows_residuals);
    gs_reduce_stats stats = take_step(&hook, GS_RECORD_FIRST_SAMPLES + 1);
    assert_false(stats.knows_residuals);
    assert_int_equal(stats.elements_sent, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_in_hooks_is_told_apart_from_posting),
        cmocka_unit_test(residuals_are_measured_where_the_hook_does_not),
        cmocka_unit_test(steps_that_are_not_sampled_know_no_residuals),
    };
    return cmocka_run_group_tests_name("gradsync hook_report", tests, NULL, NULL);
}
