// Steps out of the ordinary, of one rank: unused parameters said early, tails, uneven rounds,
// element types, sparse parameters, sample means, resets. What ranks do to each other is in
// multiprocess tests.
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

static void assert_refused(gs_status status, const char *words) {
    assert_int_not_equal(status.code, GS_OK);
    if (!strstr(status.message, words)) fail_msg("%s\nexpected: %s", status.message, words);
}

static void open_small(small_reducer *small, const gs_reducer_options *options) {
    small_reducer_prepare(small);
    assert_ok(small_reducer_open(small, options, NULL));
}

static const double ones[] = {1, 1, 1, 1};

// A bucket, also the last one, starts when its last gradient is marked: it carries samples all the
// same.
static void every_bucket_starts_before_the_pass_ends(void **state) {
    (void)state;
    small_reducer small;
    gs_reduce_result result;
    gs_reducer_pass pass;
    open_small(&small, &(gs_reducer_options){0});
    assert_ok(gs_reducer_begin(small.reducer, 0));
    assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1234567));
    for (size_t p = SMALL_PARAMS; p-- > 0;) {
        small_reducer_write(&small, &pass, p, 1);
        assert_ok(gs_reducer_mark_ready(small.reducer, p));
    }
    int64_t marked_ns = gs_now_ns();
    assert_ok(gs_reducer_end_pass(small.reducer));
    assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
    for (size_t b = 0; b < 2; b++) {
        int64_t posted_ns = gs_reducer_stats(small.reducer)->buckets[b].posted_ns;
        assert_true(posted_ns && posted_ns <= marked_ns);
    }
    assert_int_equal(result.samples, 1234567);
    assert_int_equal(result.active_ranks, 1);
    small_reducer_close(&small);
}

static void bucket_does_not_wait_for_what_is_said_to_be_unused(void **state) {
    (void)state;
    small_reducer small;
    gs_reduce_result result;
    gs_reducer_pass pass;
    open_small(&small, &(gs_reducer_options){0});
    assert_ok(small_reducer_run_step(&small, 0, ones, &result));
    assert_ok(gs_reducer_begin(small.reducer, 1));
    assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
    for (size_t p = SMALL_PARAMS; p-- > 0;) {
        if (p % 2) {
            device_memory_write(small.device, (float *)pass.grads[p] + 1, &(float){NAN},
                                sizeof(float));
            gs_reducer_unused_callback(small.reducer, p);
        } else {
            small_reducer_write(&small, &pass, p, 6);
            assert_ok(gs_reducer_mark_ready(small.reducer, p));
        }
    }
    int64_t marked_ns = gs_now_ns();
    assert_ok(gs_reducer_end_pass(small.reducer));
    assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
    for (size_t b = 0; b < 2; b++)
        assert_true(gs_reducer_stats(small.reducer)->buckets[b].posted_ns <= marked_ns);
    const uint8_t used[] = {1, 0, 1, 0};
    assert_memory_equal(result.used, used, sizeof used);
    for (size_t p = 0; p < SMALL_PARAMS; p++)
        assert_near(small_reducer_grad(&small, p, 1), (p % 2 ? 0 : 6), 0);
    small_reducer_close(&small);
}

// Two outputs by turns, [3 2] and [1 0]: of the one that the loss leaves out nothing is marked, and
// what its backward left half-way in its gradients is nobody's.
static void output_that_the_loss_leaves_out_has_no_gradient(void **state) {
    (void)state;
    small_reducer small;
    gs_reduce_result result;
    gs_reducer_pass pass;
    open_small(&small, &(gs_reducer_options){0});
    for (int64_t step = 0; step < 4; step++) {
        size_t first = step % 2 ? 2 : 0;  // of the output that counts
        assert_ok(gs_reducer_begin(small.reducer, step));
        assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
        for (size_t p = SMALL_PARAMS; p-- > 0;) {
            if (p - first < 2) {
                small_reducer_write(&small, &pass, p, 5);
                assert_ok(gs_reducer_mark_ready(small.reducer, p));
            } else {
                device_memory_write(small.device, (float *)pass.grads[p] + 1, &(float){NAN},
                                    sizeof(float));
            }
        }
        assert_ok(gs_reducer_end_pass(small.reducer));
        assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
        assert_false(result.nonfinite);
        assert_int_equal(result.num_unused, 2);
        for (size_t p = 0; p < SMALL_PARAMS; p++) {
            bool counts = p - first < 2;
            assert_int_equal(result.used[p], counts);
            assert_near(small_reducer_grad(&small, p, 1), counts ? 5 : 0, 0);
        }
    }
    small_reducer_close(&small);
}

static void unused_in_one_pass_keeps_the_sum_of_the_others(void **state) {
    (void)state;
    for (int exact = 0; exact < 2; exact++) {
        small_reducer small;
        gs_reduce_result result;
        open_small(&small, &(gs_reducer_options){.passes_per_shard = 2,
                                                 .op = GS_SUM,
                                                 .shards = {.num_shards = 2, .exact = exact}});
        for (int64_t step = 0; step < 2; step++) {
            assert_ok(gs_reducer_begin(small.reducer, step));
            for (int i = 0; i < 4; i++) {
                gs_reducer_pass pass;
                assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
                for (size_t p = 0; p < SMALL_PARAMS; p++) {
                    if ((int)p == i) {
                        assert_ok(gs_reducer_mark_unused(small.reducer, p));
                        continue;
                    }
                    small_reducer_write(&small, &pass, p, 1 << i);
                    assert_ok(gs_reducer_mark_ready(small.reducer, p));
                }
                assert_ok(gs_reducer_end_pass(small.reducer));
            }
            assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
            for (size_t p = 0; p < SMALL_PARAMS; p++)
                assert_near(small_reducer_grad(&small, p, 0), 15 - (1 << p), 0);
            assert_int_equal(result.num_unused, 0);
        }
        small_reducer_close(&small);
    }
}

static void misuse_of_unused_marks_is_named(void **state) {
    (void)state;
    static const struct {
        int first, second;  // 1: ready, 2: unused, 3: the pass ends
        const char *words;
    } cases[] = {{2, 1, "parameter 1 \"fc1\" marked ready after it was marked unused"},
                 {1, 2, "parameter 1 \"fc1\" marked unused after it was marked ready"},
                 {2, 2, "parameter 1 \"fc1\" marked unused twice"},
                 {3, 2, "parameter 1 \"fc1\" marked unused outside a pass"}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        small_reducer small;
        gs_reduce_result result;
        gs_reducer_pass pass;
        open_small(&small, &(gs_reducer_options){0});
        assert_ok(gs_reducer_begin(small.reducer, 3));
        assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
        const int acts[] = {cases[c].first, cases[c].second};
        gs_status status = gs_ok();
        for (int i = 0; i < 2; i++) {
            assert_ok(status);
            if (acts[i] == 1) status = gs_reducer_mark_ready(small.reducer, 1);
            if (acts[i] == 2) status = gs_reducer_mark_unused(small.reducer, 1);
            if (acts[i] == 3) status = gs_reducer_end_pass(small.reducer);
        }
        assert_refused(status, cases[c].words);
        status = gs_reducer_finish(small.reducer, &result, soon());
        assert_refused(status, cases[c].words);
        assert_refused(status, "rank 0, step 3");
        small_reducer_close(&small);
    }
    small_reducer small;
    open_small(&small, &(gs_reducer_options){0});
    assert_refused(gs_reducer_mark_unused(small.reducer, 9), "there is no parameter 9");
    small_reducer_close(&small);
}

// What tails do: write, fail, or note the order in which they run.
typedef struct tail_ctx {
    float value;
    int *order, number;
    gs_device *device;
} tail_ctx;

static gs_status write_tail(void *ctx, void *const *grads, gs_deadline deadline) {
    (void)deadline;
    tail_ctx *tail = ctx;
    float grad[SMALL_COUNT];
    device_memory_read(tail->device, grad, grads[2], sizeof grad);
    for (size_t i = 0; i < SMALL_COUNT; i++) grad[i] += tail->value;
    device_memory_write(tail->device, grads[2], grad, sizeof grad);
    *tail->order = *tail->order * 10 + tail->number;
    return gs_ok();
}

static gs_status failing_tail(void *ctx, void *const *grads, gs_deadline deadline) {
    (void)ctx;
    (void)grads;
    (void)deadline;
    return gs_error(GS_DATA_LOSS, "rows of another step");
}

static void tails_run_in_order_behind_the_buckets_and_norms_follow(void **state) {
    (void)state;
    small_reducer small;
    gs_reduce_result result;
    int order = 0;
    const size_t changed[] = {2};
    tail_ctx first = {2, &order, 1, NULL}, second = {NAN, &order, 2, NULL};
    open_small(&small, &(gs_reducer_options){0});
    first.device = second.device = small.device;
    assert_ok(gs_reducer_begin(small.reducer, 0));
    assert_ok(gs_reducer_add_tail(
        small.reducer, &(gs_reducer_tail){write_tail, &first, .params = changed, .num_params = 1}));
    assert_ok(small_reducer_run_pass(&small, ones, 1));
    assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
    assert_near(small_reducer_grad(&small, 2, 0), 3, 0);
    assert_near(result.grad_norm, sqrtf(4 * (3 + 9)), 1e-6f);

    // A tail is of its step; one may make a gradient infinite or NaN.
    assert_ok(gs_reducer_begin(small.reducer, 1));
    assert_ok(small_reducer_run_pass(&small, ones, 1));
    for (int i = 0; i < 2; i++)
        assert_ok(gs_reducer_add_tail(
            small.reducer, &(gs_reducer_tail){write_tail, i ? &second : &first, changed, 1}));
    assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
    assert_int_equal(order, 112);
    assert_true(result.nonfinite);
    assert_ok(small_reducer_run_step(&small, 2, ones, &result));
    assert_int_equal(order, 112);
    assert_false(result.nonfinite);
    small_reducer_close(&small);
}

static void tails_out_of_place_are_refused(void **state) {
    (void)state;
    int order = 0;
    const size_t unknown[] = {SMALL_PARAMS};
    tail_ctx ctx = {1, &order, 1, NULL};
    const gs_reducer_tail good = {write_tail, &ctx, NULL, 0};
    static const char *const words[] = {"a tail needs an open step", "without a function",
                                        "there is no parameter 4", "more tails than",
                                        "rows of another step"};
    for (int c = 0; c < 5; c++) {
        small_reducer small;
        gs_reduce_result result;
        open_small(&small, &(gs_reducer_options){0});
        if (c) assert_ok(gs_reducer_begin(small.reducer, 0));
        gs_reducer_tail tail = good;
        if (c == 1) tail.finish = NULL;
        if (c == 2) tail = (gs_reducer_tail){write_tail, &ctx, unknown, 1};
        for (int i = 0; c == 3 && i < GS_MAX_TAILS; i++)
            assert_ok(gs_reducer_add_tail(small.reducer, &good));
        if (c == 4) tail.finish = failing_tail;
        gs_status status = gs_reducer_add_tail(small.reducer, &tail);
        if (c == 4) {
            assert_ok(status);
            assert_ok(small_reducer_run_pass(&small, ones, 1));
            status = gs_reducer_finish(small.reducer, &result, soon());
            assert_false(gs_reducer_complete(small.reducer));
        }
        assert_refused(status, words[c]);
        small_reducer_close(&small);
    }
}

static void rounds_that_cannot_be_are_refused(void **state) {
    (void)state;
    static const struct {
        gs_join_round round;
        int num_shards;
        const char *words;
    } cases[] = {
        {{.num_active = 0}, 1, "no rank has data: the join is over"},
        {{.num_active = 2, .active = true}, 1, "a round of 2 active ranks of 1"},
        {{.num_active = -1, .active = true}, 1, "a round of -1 active ranks"},
        {{.num_active = 1}, 1, "a round of 1 active ranks of 1, this one not"},
        {{.num_active = 1, .active = true, .divisor = GS_DIVIDE_BY_ACTIVE},
         2,
         "one logical shard for each rank, not 2 for 1"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        small_reducer small;
        open_small(&small, &(gs_reducer_options){.shards = {.num_shards = cases[c].num_shards}});
        gs_status status = gs_reducer_begin_uneven(small.reducer, 4, &cases[c].round);
        assert_refused(status, cases[c].words);
        assert_refused(status, "rank 0, step 4");
        small_reducer_close(&small);
    }
    small_reducer small;
    gs_reduce_result result;
    open_small(&small, &(gs_reducer_options){0});
    assert_ok(gs_reducer_begin_uneven(
        small.reducer, 0,
        &(gs_join_round){.num_active = 1, .active = true, .divisor = GS_DIVIDE_BY_ACTIVE}));
    assert_ok(small_reducer_run_pass(&small, ones, 1));
    assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
    assert_near(small_reducer_grad(&small, 0, 0), 1, 0);
    small_reducer_close(&small);
}

static void parameters_of_every_type_have_main_gradients(void **state) {
    (void)state;
    small_reducer small;
    gs_reduce_result result;
    small_reducer_prepare(&small);
    small.params[0].dtype = GS_FP64;
    small.params[1].dtype = GS_BF16;
    small.params[2].dtype = GS_FP16;
    assert_ok(small_reducer_open(
        &small, &(gs_reducer_options){.passes_per_shard = 3, .shards = {.num_shards = 1}}, NULL));
    assert_int_equal(small.plan.num_buckets, SMALL_PARAMS);  // a key each
    // 1/3 + 2^-40 needs a double; a sum of three thirds is one only when main gradients are wide.
    const double fine = 1.0 / 3 + 0x1p-40;
    for (int64_t step = 0; step < 2; step++) {
        assert_ok(gs_reducer_begin(small.reducer, step));
        for (int i = 0; i < 3; i++)
            assert_ok(small_reducer_run_pass(
                &small, (const double[]){fine, 1 + 0x1p-12, 0x1p-20, 3}, 1 << 20));
        assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
        double sum = fine + fine + fine;
        assert_true(fabs(small_reducer_grad(&small, 0, 3) - sum / 3) < 0x1p-52);
        assert_true(small_reducer_grad(&small, 0, 3) != (double)(float)fine);
        assert_true(fabs(small_reducer_grad(&small, 1, 3) - (1 + 0x1p-12)) < 0x1p-22);
        assert_true(fabs(small_reducer_grad(&small, 2, 3) - 0x1p-20) < 0x1p-42);
        assert_int_equal(result.samples, 3 << 20);
        assert_int_equal(result.num_unused, 0);
        double squares = fine * fine + (1 + 0x1p-12) * (1 + 0x1p-12) + 0x1p-40 + 9;
        assert_true(fabs(result.grad_norm / sqrt(4 * squares) - 1) < 1e-6);
    }
    // What is infinite in a double is seen as well.
    assert_ok(gs_reducer_begin(small.reducer, 2));
    for (int i = 0; i < 3; i++)
        assert_ok(small_reducer_run_pass(&small, (const double[]){i ? 1 : INFINITY, 1, 1, 1}, 1));
    assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
    assert_true(result.nonfinite);
    small_reducer_close(&small);
}

static void exact_mode_adds_doubles_along_the_tree(void **state) {
    (void)state;
    small_reducer small;
    gs_reduce_result result;
    small_reducer_prepare(&small);
    for (size_t p = 0; p < SMALL_PARAMS; p++) small.params[p].dtype = GS_FP64;
    assert_ok(small_reducer_open(
        &small, &(gs_reducer_options){.op = GS_SUM, .shards = {.num_shards = 5, .exact = true}},
        NULL));
    // ((0 1)(2 3)) 4: large ones meet only where the tree lets them.
    static const double shards[] = {1e16, 1, -1e16, 1, 1};
    assert_ok(gs_reducer_begin(small.reducer, 0));
    for (int s = 0; s < 5; s++)
        assert_ok(small_reducer_run_pass(&small, (const double[]){shards[s], 1, 1, 1}, 1));
    assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
    double tree = ((1e16 + 1) + (-1e16 + 1)) + 1;
    assert_true(small_reducer_grad(&small, 0, 0) == tree);
    assert_near(small_reducer_grad(&small, 1, 0), 5, 0);
    small_reducer_close(&small);
}

static void sparse_parameter_has_a_bucket_without_elements(void **state) {
    (void)state;
    small_reducer small;
    gs_reduce_result result;
    gs_reducer_pass pass;
    small_reducer_prepare(&small);
    small.params[1].sparse = true;
    small.params[1].shape[0] = INT64_C(1) << 40;  // needs no memory
    assert_ok(small_reducer_open(&small, &(gs_reducer_options){0}, NULL));
    assert_true(gs_arena_bytes(small.arena) < 65536);
    for (int64_t step = 0; step < 3; step++) {
        assert_ok(gs_reducer_begin(small.reducer, step));
        assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 2));
        assert_null(pass.grads[1]);
        for (size_t p = 0; p < SMALL_PARAMS; p++) {
            if (p == 1 && step == 1) continue;
            if (p != 1) small_reducer_write(&small, &pass, p, 1);
            assert_ok(gs_reducer_mark_ready(small.reducer, p));
        }
        assert_ok(gs_reducer_end_pass(small.reducer));
        assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
        assert_int_equal(result.used[1], step != 1);
        assert_int_equal(result.samples, 2);
        assert_null(gs_reducer_grads(small.reducer)[1]);
        assert_near(result.grad_norm, sqrtf(12), 1e-6f);
    }
    // A plan that puts it beside another one is no plan for it.
    gs_bucket_plan plan;
    size_t members[] = {3, 2, 1, 0};
    gs_plan_bucket bucket = {.dtype = GS_FP32, .num_params = SMALL_PARAMS};
    plan = (gs_bucket_plan){
        .num_buckets = 1, .num_params = SMALL_PARAMS, .buckets = &bucket, .params = members};
    assert_refused(gs_reducer_set_plan(small.reducer, &plan, soon()), "sparse");
    small_reducer_close(&small);
}

static void sample_mean_weighs_passes_by_their_samples(void **state) {
    (void)state;
    for (int exact = 0; exact < 2; exact++) {
        small_reducer small;
        gs_reduce_result result;
        small_reducer_prepare(&small);
        small.params[0].dtype = GS_FP64;
        assert_ok(
            small_reducer_open(&small,
                               &(gs_reducer_options){.op = GS_SAMPLE_MEAN,
                                                     .passes_per_shard = 2,
                                                     .shards = {.num_shards = 2, .exact = exact}},
                               NULL));
        static const int64_t samples[] = {3, 0, 5, 2};
        static const double losses[] = {1, 1000, 2, 4};
        for (int64_t step = 0; step < 2; step++) {
            assert_ok(gs_reducer_begin(small.reducer, step));
            for (int i = 0; i < 4; i++) {
                const double values[] = {losses[i], 2 * losses[i], NAN, losses[i]};
                assert_ok(small_reducer_run_pass(&small, values, samples[i]));
            }
            assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
            assert_int_equal(result.samples, 10);
            double mean = (3 * 1 + 5 * 2 + 2 * 4) / 10.0;
            assert_true(fabs(small_reducer_grad(&small, 0, 0) - mean) < 1e-15);
            assert_near(small_reducer_grad(&small, 1, 0), (float)(2 * mean), 1e-6);
            assert_near(small_reducer_grad(&small, 2, 0), 0, 0);
            // Norms are of the mean, not of the sum.
            assert_true(fabs(result.grad_norm / sqrt(4 * 6 * mean * mean) - 1) < 1e-6);
        }
        small_reducer_close(&small);
    }
}

static void sample_mean_of_no_samples_is_an_error(void **state) {
    (void)state;
    small_reducer small;
    gs_reduce_result result;
    open_small(&small, &(gs_reducer_options){.op = GS_SAMPLE_MEAN});
    assert_ok(gs_reducer_begin(small.reducer, 8));
    gs_status status = small_reducer_run_pass(&small, ones, 0);
    if (!status.code) status = gs_reducer_finish(small.reducer, &result, soon());
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_refused(status, "step 8: no rank has samples");
    small_reducer_close(&small);
}

static void unfinished_step_is_told_by_name_and_goes_on(void **state) {
    (void)state;
    small_reducer small;
    gs_reduce_result result;
    gs_reducer_pass pass;
    open_small(&small, &(gs_reducer_options){0});
    assert_ok(gs_reducer_check_finished(small.reducer));
    assert_ok(gs_reducer_begin(small.reducer, 6));
    assert_refused(gs_reducer_check_finished(small.reducer), "0 of 1 passes run");
    assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
    small_reducer_write(&small, &pass, 2, 1);
    assert_ok(gs_reducer_mark_ready(small.reducer, 2));
    gs_status status = gs_reducer_check_finished(small.reducer);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_refused(status, "rank 0, step 6: parameter 0 \"fc0\" is not ready");
    assert_refused(status, "3 such in all: 0 1 3");
    assert_ok(gs_reducer_end_pass(small.reducer));
    assert_refused(gs_reducer_check_finished(small.reducer), "not finished");
    assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
    assert_ok(gs_reducer_check_finished(small.reducer));
    small_reducer_close(&small);
}

// Of the original: a nested backward pass that marked everything finalised the outer one, whose
// later gradients were ignored without a word.
static void nested_pass_is_an_error_and_so_is_a_mark_after_the_end(void **state) {
    (void)state;
    small_reducer small;
    gs_reducer_pass pass;
    open_small(&small, &(gs_reducer_options){0});
    assert_ok(gs_reducer_begin(small.reducer, 2));
    assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
    assert_refused(gs_reducer_begin_pass(small.reducer, &pass, 1), "a pass is open");
    small_reducer_close(&small);

    open_small(&small, &(gs_reducer_options){0});
    assert_ok(gs_reducer_begin(small.reducer, 2));
    assert_ok(small_reducer_run_pass(&small, ones, 1));
    assert_refused(gs_reducer_mark_ready(small.reducer, 1),
                   "rank 0, step 2: parameter 1 \"fc1\" marked ready outside a pass");
    small_reducer_close(&small);
}

static void reset_leads_out_of_an_error(void **state) {
    (void)state;
    small_reducer small;
    gs_reduce_result result;
    open_small(&small, &(gs_reducer_options){.static_graph = true});
    void *const *grads = gs_reducer_grads(small.reducer);
    float *first = grads[0];
    assert_ok(small_reducer_run_step(&small, 0, ones, &result));
    assert_ok(gs_reducer_begin(small.reducer, 1));
    assert_refused(gs_reducer_begin(small.reducer, 1), "a step is open");
    assert_refused(gs_reducer_begin(small.reducer, 1), "a step is open");

    gs_comm *next;
    assert_ok(small_reducer_connect(&next, &small, NULL, 2));
    assert_ok(gs_reducer_reset(small.reducer, next, soon()));
    gs_comm_destroy(small.comm);
    small.comm = next;
    assert_false(gs_reducer_complete(small.reducer));
    assert_ok(gs_reducer_check_finished(small.reducer));
    // The static graph starts over: other parameters may be used now.
    for (int64_t step = 1; step < 4; step++) {
        assert_ok(small_reducer_run_step(&small, step, (const double[]){1, NAN, 5, NAN}, &result));
        assert_near(small_reducer_grad(&small, 2, 0), 5, 0);
        assert_int_equal(result.num_unused, 2);
    }
    assert_ptr_equal(gs_reducer_grads(small.reducer)[0], first);
    small_reducer_close(&small);
}

// Zeros of an unused parameter, on their way to a bucket that is never posted, are late: the step after the
// reset finds none of them.
static void reset_outlives_what_was_to_travel(void **state) {
    (void)state;
    enum { LARGE_BYTES = 32 << 20 };
    small_reducer small;
    gs_reducer_pass pass;
    gs_reduce_result result;
    if (test_device_is_host()) skip();
    open_small(&small, &(gs_reducer_options){0});
    void *large = device_memory_alloc(small.device, LARGE_BYTES);
    assert_ok(gs_reducer_begin(small.reducer, 0));
    assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
    for (int i = 0; i < 4; i++)
        gs_device_kernels(small.device)->clear(gs_comm_stream(small.comm), large, LARGE_BYTES);
    assert_ok(gs_reducer_mark_unused(small.reducer, 3));
    gs_comm *next;
    assert_ok(small_reducer_connect(&next, &small, NULL, 2));
    assert_ok(gs_reducer_reset(small.reducer, next, soon()));
    assert_ok(small_reducer_run_step(&small, 1, ones, &result));
    gs_comm_destroy(small.comm);
    small.comm = next;
    for (size_t p = 0; p < SMALL_PARAMS; p++)
        assert_near(small_reducer_grad(&small, p, SMALL_COUNT - 1), 1, 0);
    device_memory_free(small.device, large);
    small_reducer_close(&small);
}

static uint64_t wire_bytes(const small_reducer *small, size_t bucket) {
    return gs_reducer_stats(small->reducer)->buckets[bucket].wire_bytes;
}

// The buckets are [3 2] and [1 0]. What lies in a bucket that rests is nobody's.
static void frozen_bucket_does_not_travel_and_counts_nowhere(void **state) {
    (void)state;
    small_reducer small;
    gs_reduce_result result;
    gs_reducer_pass pass;
    const bool last_two[] = {false, false, true, true}, first_two[] = {true, true, false, false};
    bool changed;
    open_small(&small, &(gs_reducer_options){.unused_is_error = true});
    assert_ok(small_reducer_run_step(&small, 0, ones, &result));
    assert_true(wire_bytes(&small, 0) > 0 && wire_bytes(&small, 1) > 0);
    for (int64_t step = 1; step < 3; step++) {
        const bool *trainable = step == 1 ? last_two : first_two;
        assert_ok(gs_reducer_set_trainable(small.reducer, trainable, &changed, soon()));
        assert_true(changed);
        assert_ok(gs_reducer_begin(small.reducer, step));
        assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
        for (size_t p = 0; p < SMALL_PARAMS; p++) {
            if (trainable[p]) {
                small_reducer_write(&small, &pass, p, 3);
                assert_ok(gs_reducer_mark_ready(small.reducer, p));
            } else {
                device_memory_write(small.device, pass.grads[p], &(float){NAN}, sizeof(float));
            }
        }
        assert_ok(gs_reducer_end_pass(small.reducer));
        assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
        assert_false(result.nonfinite);
        assert_int_equal(result.num_unused, 0);
        assert_near(result.grad_norm, sqrt(9.0 * 2 * SMALL_COUNT), 1e-6);
        for (size_t p = 0; p < SMALL_PARAMS; p++) assert_int_equal(result.used[p], trainable[p]);
        assert_true(wire_bytes(&small, step == 1 ? 0 : 1) > 0);
        assert_int_equal(wire_bytes(&small, step == 1 ? 1 : 0), 0);
    }
    assert_ok(gs_reducer_set_trainable(small.reducer, NULL, &changed, soon()));
    assert_true(changed);
    assert_ok(small_reducer_run_step(&small, 3, ones, &result));
    assert_near(result.grad_norm, sqrt(1.0 * SMALL_PARAMS * SMALL_COUNT), 1e-6);
    small_reducer_close(&small);
}

static void what_is_frozen_among_others_is_zero_and_needs_no_mark(void **state) {
    (void)state;
    small_reducer small;
    gs_reduce_result result;
    static const double values[] = {2, NAN, 2, 2};  // fc1 is left out
    open_small(&small, &(gs_reducer_options){.unused_is_error = true,
                                             .trainable = (const bool[]){true, false, true, true}});
    for (int64_t step = 0; step < 2; step++) {
        assert_ok(small_reducer_run_step(&small, step, values, &result));
        assert_int_equal(result.num_unused, 0);
        assert_near(small_reducer_grad(&small, 1, 0), 0, 0);
        assert_near(result.grad_norm, sqrt(4.0 * 3 * SMALL_COUNT), 1e-6);
    }
    small_reducer_close(&small);
}

static void misuse_of_what_is_frozen_is_named(void **state) {
    (void)state;
    small_reducer small;
    gs_reducer_pass pass;
    bool none[SMALL_PARAMS] = {false}, changed;
    open_small(&small, &(gs_reducer_options){.trainable = (const bool[]){true, false, true, true}});
    assert_ok(gs_reducer_set_trainable(small.reducer, (const bool[]){true, false, true, true}, &changed,
                                       soon()));
    assert_false(changed);
    assert_ok(gs_reducer_begin(small.reducer, 0));
    assert_refused(gs_reducer_set_trainable(small.reducer, NULL, NULL, soon()),
                   "which parameters train changes between steps only");
    small_reducer_close(&small);
    open_small(&small, &(gs_reducer_options){.trainable = (const bool[]){true, false, true, true}});
    assert_ok(gs_reducer_begin(small.reducer, 0));
    assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
    assert_ok(gs_reducer_mark_unused(small.reducer, 1));
    assert_refused(gs_reducer_mark_ready(small.reducer, 1),
                   "parameter 1 \"fc1\" marked ready, but it is frozen");
    small_reducer_close(&small);
    small_reducer_prepare(&small);
    assert_refused(small_reducer_open(&small, &(gs_reducer_options){.trainable = none}, NULL),
                   "trainable: all 4 parameters are frozen");
    small_reducer_close(&small);
}

static void wire_dtype_does_not_fit_every_mode(void **state) {
    (void)state;
    small_reducer small;
    gs_reducer_options options = {.wire_dtype = GS_BF16};
    small_reducer_prepare(&small);
    options.shards = (gs_logical_shards){.num_shards = 2, .exact = true};
    assert_refused(small_reducer_open(&small, &options, NULL), "wire dtype: bf16 in exact mode");
    options.shards.exact = false;
    options.wire_dtype = GS_FP64;
    small_reducer_prepare(&small);
    assert_refused(small_reducer_open(&small, &options, NULL), "wire dtype: fp64");
    const gs_hook_choice choice = {.hook = &gs_hook_fp16};
    options = (gs_reducer_options){.hooks = &choice, .num_hooks = 1, .wire_dtype = GS_BF16};
    small_reducer_prepare(&small);
    assert_refused(small_reducer_open(&small, &options, NULL),
                   "hook \"fp16\": sends fp16, and the wire dtype is bf16");
    options.wire_dtype = GS_DTYPE_UNSET;
    options.shards.exact = true;
    small_reducer_prepare(&small);
    assert_refused(small_reducer_open(&small, &options, NULL),
                   "hook \"fp16\": sends fp16, which exact mode does not");
}

static void parameters_without_gradients_are_refused_by_name(void **state) {
    (void)state;
    small_reducer small;
    small_reducer_prepare(&small);
    small.params[3].dtype = GS_I64;
    assert_refused(small_reducer_open(&small, &(gs_reducer_options){0}, NULL),
                   "parameter 3 \"fc3\": i64 has no gradient");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bucket_starts_before_the_pass_ends),
        cmocka_unit_test(bucket_does_not_wait_for_what_is_said_to_be_unused),
        cmocka_unit_test(output_that_the_loss_leaves_out_has_no_gradient),
        cmocka_unit_test(unused_in_one_pass_keeps_the_sum_of_the_others),
        cmocka_unit_test(misuse_of_unused_marks_is_named),
        cmocka_unit_test(tails_run_in_order_behind_the_buckets_and_norms_follow),
        cmocka_unit_test(tails_out_of_place_are_refused),
        cmocka_unit_test(rounds_that_cannot_be_are_refused),
        cmocka_unit_test(parameters_of_every_type_have_main_gradients),
        cmocka_unit_test(exact_mode_adds_doubles_along_the_tree),
        cmocka_unit_test(sparse_parameter_has_a_bucket_without_elements),
        cmocka_unit_test(sample_mean_weighs_passes_by_their_samples),
        cmocka_unit_test(sample_mean_of_no_samples_is_an_error),
        cmocka_unit_test(unfinished_step_is_told_by_name_and_goes_on),
        cmocka_unit_test(nested_pass_is_an_error_and_so_is_a_mark_after_the_end),
        cmocka_unit_test(reset_leads_out_of_an_error),
        cmocka_unit_test(reset_outlives_what_was_to_travel),
        cmocka_unit_test(frozen_bucket_does_not_travel_and_counts_nowhere),
        cmocka_unit_test(what_is_frozen_among_others_is_zero_and_needs_no_mark),
        cmocka_unit_test(misuse_of_what_is_frozen_is_named),
        cmocka_unit_test(wire_dtype_does_not_fit_every_mode),
        cmocka_unit_test(parameters_without_gradients_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
