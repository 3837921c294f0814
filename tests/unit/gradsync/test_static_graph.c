#include "gradsync/reducer/static_graph.h"

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

static void open_static(small_reducer *small, int num_shards, int passes, bool exact) {
    small_reducer_prepare(small);
    assert_ok(small_reducer_open(
        small,
        &(gs_reducer_options){.static_graph = true,
                              .passes_per_shard = passes,
                              .shards = {.num_shards = num_shards, .exact = exact}},
        NULL));
}

// One pass that marks parameter p counts[p] times, adding 1 at each mark.
static gs_status run_counts(small_reducer *small, const int *counts) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin_pass(small->reducer, &pass, 1));
    for (size_t p = 0; p < SMALL_PARAMS; p++) {
        for (int mark = 0; mark < counts[p]; mark++) {
            float grad[SMALL_COUNT] = {0};
            if (pass.accumulate || mark)
                device_memory_read(small->device, grad, pass.grads[p], sizeof grad);
            for (int i = 0; i < SMALL_COUNT; i++) grad[i] += 1;
            device_memory_write(small->device, pass.grads[p], grad, sizeof grad);
            GS_TRY(gs_reducer_mark_ready(small->reducer, p));
        }
    }
    return gs_reducer_end_pass(small->reducer);
}

static gs_status run_counted_step(small_reducer *small, int64_t step, const int *counts,
                                  gs_reduce_result *result) {
    GS_TRY(gs_reducer_begin(small->reducer, step));
    GS_TRY(run_counts(small, counts));
    return gs_reducer_finish(small->reducer, result, soon());
}

static void parameter_may_be_marked_several_times_and_sums_up(void **state) {
    (void)state;
    small_reducer small;
    open_static(&small, 1, 1, false);
    for (int64_t step = 0; step < 4; step++) {
        gs_reduce_result result;
        assert_ok(run_counted_step(&small, step, (const int[]){3, 0, 1, 2}, &result));
        assert_near(small_reducer_grad(&small, 0, 3), 3, 0);
        assert_near(small_reducer_grad(&small, 1, 0), 0, 0);
        assert_near(small_reducer_grad(&small, 3, 0), 2, 0);
        const uint8_t used[] = {1, 0, 1, 1};
        assert_memory_equal(result.used, used, sizeof used);
        assert_int_equal(result.num_unused, 1);
    }
    small_reducer_close(&small);
}

static void first_step_starts_buckets_at_its_end_and_later_ones_at_the_counted_mark(void **state) {
    (void)state;
    small_reducer small;
    open_static(&small, 1, 1, false);
    gs_reduce_result result;
    gs_reducer_pass pass;
    for (int64_t step = 0; step < 2; step++) {
        assert_ok(gs_reducer_begin(small.reducer, step));
        assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
        for (size_t p = SMALL_PARAMS; p-- > 0;) {
            for (int mark = 0; mark < 2; mark++) {
                small_reducer_write(&small, &pass, p, 1);
                assert_ok(gs_reducer_mark_ready(small.reducer, p));
            }
        }
        int64_t marked_ns = gs_now_ns();
        assert_ok(gs_reducer_end_pass(small.reducer));
        assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
        for (size_t b = 0; b < 2; b++) {
            int64_t posted_ns = gs_reducer_stats(small.reducer)->buckets[b].posted_ns;
            assert_true(step ? posted_ns <= marked_ns : posted_ns >= marked_ns);
        }
    }
    small_reducer_close(&small);
}

static void ready_order_is_that_of_the_counted_marks(void **state) {
    (void)state;
    small_reducer small;
    open_static(&small, 1, 1, false);
    // Parameter 3 is first and last, 1 and 2 in between; nobody uses 0.
    static const size_t marks[] = {3, 2, 1, 3};
    for (int64_t step = 0; step < 3; step++) {
        gs_reducer_pass pass;
        gs_reduce_result result;
        assert_ok(gs_reducer_begin(small.reducer, step));
        assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
        for (size_t i = 0; i < 4; i++) assert_ok(gs_reducer_mark_ready(small.reducer, marks[i]));
        assert_ok(gs_reducer_end_pass(small.reducer));
        assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
        const size_t at_first[] = {3, 2, 1, 0}, later[] = {2, 1, 3, 0};
        assert_memory_equal(gs_reducer_ready_order(small.reducer), step ? later : at_first,
                            sizeof later);
    }
    small_reducer_close(&small);
}

static void unused_parameters_are_settled_with_the_first_mark(void **state) {
    (void)state;
    small_reducer small;
    open_static(&small, 1, 1, false);
    gs_reduce_result result;
    gs_reducer_pass pass;
    assert_ok(run_counted_step(&small, 0, (const int[]){1, 1, 1, 0}, &result));
    assert_ok(gs_reducer_begin(small.reducer, 1));
    assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
    for (size_t p = 3; p-- > 0;) {
        small_reducer_write(&small, &pass, p, 1);
        if (p == 2)  // what an old step left
            device_memory_write(small.device, pass.grads[3], &(float){NAN}, sizeof(float));
        assert_ok(gs_reducer_mark_ready(small.reducer, p));
    }
    int64_t marked_ns = gs_now_ns();
    assert_ok(gs_reducer_end_pass(small.reducer));
    assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
    // Bucket 0 holds fc3, which is not used, and went before the pass ended.
    assert_true(gs_reducer_stats(small.reducer)->buckets[0].posted_ns <= marked_ns);
    assert_near(small_reducer_grad(&small, 3, 0), 0, 0);
    assert_false(result.nonfinite);
    small_reducer_close(&small);
}

static void buckets_that_nobody_uses_do_not_travel(void **state) {
    (void)state;
    small_reducer small;
    open_static(&small, 1, 1, false);
    for (int64_t step = 0; step < 3; step++) {
        gs_reduce_result result;
        assert_ok(run_counted_step(&small, step, (const int[]){1, 2, 0, 0}, &result));
        const gs_reduce_stats *stats = gs_reducer_stats(small.reducer);
        assert_true((stats->buckets[0].wire_bytes > 0) == (step == 0));
        assert_true(stats->buckets[1].wire_bytes > 0);
        assert_int_equal(result.num_unused, 2);
        assert_int_equal(result.samples, 1);
        assert_int_equal(result.active_ranks, 1);
        assert_near(small_reducer_grad(&small, 3, 0), 0, 0);
        assert_near(result.grad_norm, sqrtf(4 * (1 + 4)), 1e-6f);
    }
    small_reducer_close(&small);
}

// What a hook was told, step after step.
typedef struct told_bucket {
    int index;
    bool is_last;
    int64_t step;
} told_bucket;
static told_bucket told[32];
static int num_told;

static gs_status run_telling(void *hook_state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    told[num_told++] = (told_bucket){bucket->index, bucket->is_last, bucket->step};
    return gs_hook_allreduce.run(hook_state, bucket, work);
}

// Trap of the original: the delayed first step gave every bucket number 0, so that "is last" was
// wrong with more than one dtype.
static void hook_is_told_the_right_bucket_in_the_first_step_too(void **state) {
    (void)state;
    small_reducer small;
    gs_comm_hook telling = gs_hook_allreduce;
    telling.name = "telling";
    telling.run = run_telling;
    const gs_hook_choice choice = {.hook = &telling};
    small_reducer_prepare(&small);
    small.params[0].dtype = small.params[3].dtype = GS_FP64;
    num_told = 0;
    assert_ok(small_reducer_open(
        &small, &(gs_reducer_options){.static_graph = true, .hooks = &choice, .num_hooks = 1}, NULL));
    assert_int_equal(small.plan.num_buckets, 3);  // [3], [2 1], [0]: a double is as wide as two
    gs_reduce_result result;
    for (int64_t step = 0; step < 2; step++)
        assert_ok(small_reducer_run_step(&small, step, (const double[]){NAN, 1, 1, 1}, &result));
    // Nobody uses fc0, so that its bucket stays at home in the second step.
    const told_bucket expected[] = {
        {0, false, 0}, {1, false, 0}, {2, true, 0}, {0, false, 1}, {1, true, 1}};
    assert_int_equal(num_told, 5);
    for (int i = 0; i < num_told; i++) {
        assert_int_equal(told[i].index, expected[i].index);
        assert_int_equal(told[i].is_last, expected[i].is_last);
        assert_int_equal(told[i].step, expected[i].step);
    }
    small_reducer_close(&small);
}

static void graph_that_uses_nothing_still_carries_its_samples(void **state) {
    (void)state;
    small_reducer small;
    open_static(&small, 1, 1, false);
    for (int64_t step = 0; step < 3; step++) {
        gs_reduce_result result;
        assert_ok(run_counted_step(&small, step, (const int[]){0, 0, 0, 0}, &result));
        assert_int_equal(result.samples, 1);
        assert_int_equal(result.num_unused, SMALL_PARAMS);
        assert_near(result.grad_norm, 0, 0);
    }
    small_reducer_close(&small);
}

static void another_plan_keeps_what_was_learned(void **state) {
    (void)state;
    small_reducer small;
    open_static(&small, 1, 1, false);
    gs_reduce_result result;
    const int counts[] = {2, 0, 1, 0};
    assert_ok(run_counted_step(&small, 0, counts, &result));
    gs_bucket_plan single;
    assert_ok(gs_bucket_plan_parity(&single, small.params, SMALL_PARAMS, 0, 0, NULL));
    assert_ok(gs_reducer_set_plan(small.reducer, &single, soon()));
    assert_int_equal(single.num_buckets, SMALL_PARAMS);
    assert_ok(run_counted_step(&small, 1, counts, &result));
    for (size_t b = 0; b < SMALL_PARAMS; b++) {
        size_t param = single.params[single.buckets[b].first];
        bool travels = gs_reducer_stats(small.reducer)->buckets[b].wire_bytes > 0;
        assert_true(travels == (counts[param] > 0));
    }
    gs_bucket_plan_release(&single);
    small_reducer_close(&small);
}

// Trap of the original: backward passes were counted, so that accumulation in the first window
// broke.
static void only_synchronising_passes_are_counted(void **state) {
    (void)state;
    small_reducer small;
    open_static(&small, 1, 3, false);
    for (int64_t step = 0; step < 3; step++) {
        gs_reduce_result result;
        assert_ok(gs_reducer_begin(small.reducer, step));
        // The passes before may mark in their own way, and differently from step to step.
        assert_ok(run_counts(&small, (const int[]){1 + (int)step, 2, 1, 0}));
        assert_ok(run_counts(&small, (const int[]){0, 0, 4, 0}));
        assert_ok(run_counts(&small, (const int[]){2, 0, 1, 0}));
        assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
        assert_near(small_reducer_grad(&small, 0, 0), (float)(3 + step) / 3, 1e-6);
        assert_near(small_reducer_grad(&small, 1, 0), 2.0f / 3, 1e-6);
        assert_near(small_reducer_grad(&small, 2, 0), 2, 1e-6);
        assert_int_equal(result.num_unused, 1);
    }
    small_reducer_close(&small);
}

static void exact_mode_merges_shards_of_a_static_graph(void **state) {
    (void)state;
    small_reducer small;
    open_static(&small, 3, 2, true);
    for (int64_t step = 0; step < 3; step++) {
        gs_reduce_result result;
        assert_ok(gs_reducer_begin(small.reducer, step));
        for (int pass = 0; pass < 6; pass++)
            assert_ok(run_counts(&small, (const int[]){2, 1, pass == 1, 0}));
        assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
        assert_near(small_reducer_grad(&small, 0, 0), 2, 0);
        assert_near(small_reducer_grad(&small, 1, 0), 1, 0);
        assert_near(small_reducer_grad(&small, 2, 0), 1.0f / 6, 1e-7);
    }
    small_reducer_close(&small);
}

static void step_that_breaks_the_promise_names_parameter_and_counts(void **state) {
    (void)state;
    static const struct {
        int counts[SMALL_PARAMS];
        const char *words;
    } cases[] = {
        {{2, 1, 0, 3}, "parameter 0 \"fc0\" marked ready 2 times, in the first step 1 times"},
        {{1, 1, 0, 2}, "parameter 3 \"fc3\" marked ready 2 times, in the first step 3 times"},
        {{1, 0, 0, 3}, "parameter 1 \"fc1\" is not used, but was in the first step"},
        {{1, 1, 1, 3}, "parameter 2 \"fc2\" is used, but was not in the first step"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        small_reducer small;
        open_static(&small, 1, 1, false);
        gs_reduce_result result;
        assert_ok(run_counted_step(&small, 0, (const int[]){1, 1, 0, 3}, &result));
        assert_ok(run_counted_step(&small, 1, (const int[]){1, 1, 0, 3}, &result));
        gs_status status = run_counted_step(&small, 2, cases[i].counts, &result);
        assert_int_equal(status.code, GS_FAILED_PRECONDITION);
        if (!strstr(status.message, cases[i].words)) fail_msg("%zu: %s", i, status.message);
        assert_non_null(strstr(status.message, "rank 0, step 2"));
        assert_non_null(strstr(status.message, "static graph changed"));
        small_reducer_close(&small);
    }
}

static void parameter_of_the_graph_cannot_be_marked_unused(void **state) {
    (void)state;
    small_reducer small;
    open_static(&small, 1, 1, false);
    gs_reduce_result result;
    gs_reducer_pass pass;
    assert_ok(run_counted_step(&small, 0, (const int[]){1, 1, 0, 1}, &result));
    assert_ok(gs_reducer_begin(small.reducer, 1));
    assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
    assert_ok(gs_reducer_mark_unused(small.reducer, 2));  // as it always was
    gs_status status = gs_reducer_mark_unused(small.reducer, 1);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "parameter 1 \"fc1\" marked unused, but was used"));
    small_reducer_close(&small);
}

static void pass_that_says_everything_is_unused_completes_its_buckets(void **state) {
    (void)state;
    small_reducer small;
    open_static(&small, 1, 2, false);
    for (int64_t step = 0; step < 3; step++) {
        gs_reduce_result result;
        gs_reducer_pass pass;
        assert_ok(gs_reducer_begin(small.reducer, step));
        assert_ok(run_counts(&small, (const int[]){1, 0, 2, 0}));
        assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
        for (size_t p = 0; p < SMALL_PARAMS; p++)
            assert_ok(gs_reducer_mark_unused(small.reducer, p));
        assert_ok(gs_reducer_end_pass(small.reducer));
        assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
        assert_near(small_reducer_grad(&small, 0, 0), 0.5, 0);
        assert_near(small_reducer_grad(&small, 2, 0), 1, 0);
        assert_int_equal(result.samples, 2);
        assert_int_equal(result.num_unused, 2);
    }
    small_reducer_close(&small);
}

static void first_step_that_failed_teaches_nothing(void **state) {
    (void)state;
    gs_static_graph graph;
    assert_ok(gs_static_graph_init(&graph, 2));
    gs_static_graph_begin_pass(&graph);
    assert_int_equal(gs_static_graph_mark(&graph, 0), GS_MARK_WAITS);
    assert_int_equal(gs_static_graph_mark(&graph, 0), GS_MARK_WAITS);
    gs_static_graph_begin_pass(&graph);
    assert_int_equal(gs_static_graph_mark(&graph, 0), GS_MARK_WAITS);
    gs_static_graph_learn(&graph, (const uint8_t[]){1, 0}, (const uint8_t[]){1, 1});
    assert_int_equal(graph.counts[0], 1);
    assert_int_equal(graph.num_unused, 1);
    assert_int_equal(graph.unused[0], 1);
    gs_static_graph_begin_pass(&graph);
    assert_int_equal(gs_static_graph_mark(&graph, 0), GS_MARK_FINAL);
    assert_int_equal(gs_static_graph_mark(&graph, 0), GS_MARK_EXTRA);
    gs_static_graph_release(&graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameter_may_be_marked_several_times_and_sums_up),
        cmocka_unit_test(first_step_starts_buckets_at_its_end_and_later_ones_at_the_counted_mark),
        cmocka_unit_test(ready_order_is_that_of_the_counted_marks),
        cmocka_unit_test(unused_parameters_are_settled_with_the_first_mark),
        cmocka_unit_test(buckets_that_nobody_uses_do_not_travel),
        cmocka_unit_test(hook_is_told_the_right_bucket_in_the_first_step_too),
        cmocka_unit_test(graph_that_uses_nothing_still_carries_its_samples),
        cmocka_unit_test(another_plan_keeps_what_was_learned),
        cmocka_unit_test(only_synchronising_passes_are_counted),
        cmocka_unit_test(exact_mode_merges_shards_of_a_static_graph),
        cmocka_unit_test(step_that_breaks_the_promise_names_parameter_and_counts),
        cmocka_unit_test(parameter_of_the_graph_cannot_be_marked_unused),
        cmocka_unit_test(pass_that_says_everything_is_unused_completes_its_buckets),
        cmocka_unit_test(first_step_that_failed_teaches_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
