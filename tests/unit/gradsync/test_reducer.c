#include "gradsync/reducer/reducer.h"

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/comm/device_arena.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/grad_case.h"
#include "tests/support/soon.h"

// A small world of one: three parameters of four elements in two buckets, [2 1] and [0].
typedef struct fixture {
    grad_case model;
    grad_rank rank;
    gs_reducer *reducer;
} fixture;

// `options`: shards, passes, modes; the parameters are the fixture's.
static void open_fixture_with(fixture *f, const grad_case *options) {
    memset(f, 0, sizeof *f);
    f->model = *options;
    f->model.num_params = 3;
    if (!f->model.passes_per_shard) f->model.passes_per_shard = 1;
    for (size_t i = 0; i < 3; i++)
        f->model.params[i] = gs_param_spec_make(GS_FP32, 4, 0, "fc%zu.weight", i);
    const size_t order[] = {2, 1, 0};
    assert_ok(gs_bucket_plan_parity(&f->model.plan, f->model.params, 3, 32, 32, order));
    assert_int_equal(f->model.plan.num_buckets, 2);
    assert_ok(grad_rank_open(&f->rank, &f->model, NULL, NULL, soon()));
    f->reducer = f->rank.reducer;
}

static void open_fixture(fixture *f, int num_shards, int passes, bool exact) {
    open_fixture_with(
        f, &(grad_case){.num_shards = num_shards, .passes_per_shard = passes, .exact = exact});
}

static void close_fixture(fixture *f) {
    grad_rank_close(&f->rank);
    grad_case_release(&f->model);
}

static void put(const fixture *f, float *grad, float value, bool accumulate) {
    float values[4] = {0};
    if (accumulate) device_memory_read(f->rank.device, values, grad, sizeof values);
    for (int i = 0; i < 4; i++) values[i] += value;
    device_memory_write(f->rank.device, grad, values, sizeof values);
}

// An element of a reduced gradient.
static float grad_at(const grad_rank *rank, size_t param, size_t i) {
    float value;
    device_memory_read(rank->device, &value, (float *)gs_reducer_grads(rank->reducer)[param] + i,
                       sizeof value);
    return value;
}

// One pass that gives parameter p the gradient values[p]; NAN: does not touch it.
static void run_pass(fixture *f, const float *values, int64_t samples) {
    gs_reducer_pass pass;
    assert_ok(gs_reducer_begin_pass(f->reducer, &pass, samples));
    for (size_t p = 0; p < 3; p++) {
        if (isnan(values[p])) continue;
        put(f, pass.grads[p], values[p], pass.accumulate);
        assert_ok(gs_reducer_mark_ready(f->reducer, p));
    }
    assert_ok(gs_reducer_end_pass(f->reducer));
}

static void world_of_one_divides_by_shards_and_passes(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 2, 2, false);
    assert_ok(gs_reducer_begin(f.reducer, 0));
    for (int i = 0; i < 4; i++) run_pass(&f, (const float[]){(float)i, 2, 4}, 8);
    gs_reduce_result result;
    assert_ok(gs_reducer_finish(f.reducer, &result, soon()));
    assert_near(grad_at(&f.rank, 0, 3), 1.5, 0);
    assert_near(grad_at(&f.rank, 2, 0), 4, 0);
    assert_int_equal(result.samples, 32);
    assert_int_equal(result.num_unused, 0);
    assert_near(result.grad_norm, sqrtf(4 * (1.5f * 1.5f + 4 + 16)), 1e-5f);
    close_fixture(&f);
}

static void most_shards_there_can_be_are_added_in_both_modes(void **state) {
    (void)state;
    // Their number is the host's matter; a device gets fewer, since each pass writes and reads its memory.
    const int num_shards = test_device_is_host() ? GS_MAX_LOGICAL_SHARDS : 256;
    for (int exact = 0; exact < 2; exact++) {
        fixture f;
        open_fixture(&f, num_shards, 1, exact);
        assert_ok(gs_reducer_begin(f.reducer, 0));
        for (int i = 0; i < num_shards; i++)
            run_pass(&f,
                     (const float[]){(float)(i % 2), 2,
                                     i == num_shards - 96 ? (float)num_shards : NAN},
                     3);
        gs_reduce_result result;
        assert_ok(gs_reducer_finish(f.reducer, &result, soon()));
        assert_near(grad_at(&f.rank, 0, 3), 0.5, 0);
        assert_near(grad_at(&f.rank, 1, 0), 2, 0);
        assert_near(grad_at(&f.rank, 2, 0), 1, 0);
        assert_int_equal(result.samples, 3 * num_shards);
        assert_int_equal(result.num_unused, 0);
        close_fixture(&f);
    }
}

static void parameter_first_written_in_a_later_pass_starts_from_zero(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1, 2, false);
    assert_ok(gs_reducer_begin(f.reducer, 0));
    run_pass(&f, (const float[]){100, 100, 100}, 1);
    run_pass(&f, (const float[]){100, 100, 100}, 1);
    gs_reduce_result result;
    assert_ok(gs_reducer_finish(f.reducer, &result, soon()));

    assert_ok(gs_reducer_begin(f.reducer, 1));
    run_pass(&f, (const float[]){6, NAN, NAN}, 1);
    run_pass(&f, (const float[]){NAN, 8, NAN}, 1);
    assert_ok(gs_reducer_finish(f.reducer, &result, soon()));
    assert_near(grad_at(&f.rank, 0, 0), 3, 0);
    assert_near(grad_at(&f.rank, 1, 0), 4, 0);
    assert_near(grad_at(&f.rank, 2, 0), 0, 0);
    const uint8_t used[] = {1, 1, 0};
    assert_memory_equal(result.used, used, sizeof used);
    assert_int_equal(result.num_unused, 1);
    close_fixture(&f);
}

// Bucket [2 1] is ready with the mark of 1 in the last pass, whatever was marked before.
static void accounts_of_a_pass_start_anew(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1, 2, false);
    for (int64_t step = 0; step < 4; step++) {
        bool all = step != 1;  // step 1 leaves bucket [2 1] half counted
        int64_t before_ns, behind_ns;
        gs_reducer_pass pass;
        gs_reduce_result result;
        assert_ok(gs_reducer_begin(f.reducer, step));
        run_pass(&f, (const float[]){1, all ? 1 : NAN, 1}, 1);
        assert_ok(gs_reducer_begin_pass(f.reducer, &pass, 1));
        for (size_t p = 0; p < 3; p++) put(&f, pass.grads[p], 1, pass.accumulate);
        assert_ok(gs_reducer_mark_ready(f.reducer, 2));
        before_ns = gs_now_ns();
        if (all) assert_ok(gs_reducer_mark_ready(f.reducer, 1));
        behind_ns = gs_now_ns();
        assert_ok(gs_reducer_mark_ready(f.reducer, 0));
        assert_ok(gs_reducer_end_pass(f.reducer));
        assert_ok(gs_reducer_finish(f.reducer, &result, soon()));
        assert_int_equal(result.num_unused, all ? 0 : 1);
        int64_t ready_ns = gs_reducer_stats(f.reducer)->buckets[0].ready_ns;
        if (!all)
            assert_true(ready_ns >= behind_ns);
        else if (test_device_is_host())  // a GPU's are ready when their collective starts
            assert_true(before_ns <= ready_ns && ready_ns <= behind_ns);
    }
    close_fixture(&f);
}

static void random_models_reduce_like_the_serial_sum(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        grad_case model;
        grad_case_init(&model, seed, 1 + (int)(seed % 8));
        model.exact = seed % 3 == 0;
        model.op = seed % 5 == 0 ? GS_SUM : GS_MEAN;
        grad_rank rank;
        assert_ok(grad_rank_open(&rank, &model, NULL, NULL, soon()));
        for (int64_t step = 0; step < 3; step++) {
            gs_reduce_result result;
            assert_ok(grad_rank_run_step(&rank, step, &result, soon()));
        }
        grad_rank_close(&rank);
        grad_case_release(&model);
    }
}

static void another_plan_gives_the_same_bits(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        grad_case model;
        grad_case_init(&model, seed, 4);
        model.exact = seed % 2;
        grad_rank rank;
        gs_reduce_result result;
        assert_ok(grad_rank_open(&rank, &model, NULL, NULL, soon()));
        assert_ok(grad_rank_run_step(&rank, 0, &result, soon()));
        uint64_t digest = grad_rank_digest(&rank);
        double norm = result.grad_norm;
        gs_bucket_plan other;
        assert_ok(gs_bucket_plan_parity(&other, model.params, model.num_params, 100, 3000,
                                        gs_reducer_ready_order(rank.reducer)));
        assert_ok(gs_reducer_set_plan(rank.reducer, &other, soon()));
        assert_int_equal(gs_reducer_plan(rank.reducer)->num_buckets, other.num_buckets);
        gs_bucket_plan_release(&other);
        assert_ok(grad_rank_run_step(&rank, 0, &result, soon()));
        assert_true(grad_rank_digest(&rank) == digest);
        assert_memory_equal(&result.grad_norm, &norm, sizeof norm);
        grad_rank_close(&rank);
        grad_case_release(&model);
    }
}

static void nonfinite_gradients_are_seen_in_the_result(void **state) {
    (void)state;
    const float bad[] = {INFINITY, -INFINITY};
    for (int i = 0; i < 2; i++) {
        fixture f;
        open_fixture(&f, 1, 1, false);
        assert_ok(gs_reducer_begin(f.reducer, 0));
        run_pass(&f, (const float[]){1, bad[i], 1}, 1);
        gs_reduce_result result;
        assert_ok(gs_reducer_finish(f.reducer, &result, soon()));
        assert_true(result.nonfinite);
        assert_true(isnan(result.grad_norm));
        assert_true(gs_reducer_complete(f.reducer));
        close_fixture(&f);
    }
}

static void large_finite_gradients_are_finite(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1, 1, false);
    assert_ok(gs_reducer_begin(f.reducer, 0));
    run_pass(&f, (const float[]){0, 1e30f, 0}, 1);
    gs_reduce_result result;
    assert_ok(gs_reducer_finish(f.reducer, &result, soon()));
    assert_false(result.nonfinite);
    assert_true(fabs(result.grad_norm / 2e30 - 1) < 1e-6);
    close_fixture(&f);
}

static void ready_order_is_recorded(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1, 1, false);
    assert_ok(gs_reducer_begin(f.reducer, 0));
    gs_reducer_pass pass;
    assert_ok(gs_reducer_begin_pass(f.reducer, &pass, 1));
    put(&f, pass.grads[1], 1, false);
    gs_reducer_ready_callback(f.reducer, 1);
    assert_ok(gs_reducer_end_pass(f.reducer));
    gs_reduce_result result;
    assert_ok(gs_reducer_finish(f.reducer, &result, soon()));
    const size_t expected[] = {1, 2, 0};
    assert_memory_equal(gs_reducer_ready_order(f.reducer), expected, sizeof expected);
    close_fixture(&f);
}

static void stats_tell_when_each_bucket_moved(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1, 1, false);
    assert_ok(gs_reducer_begin(f.reducer, 7));
    run_pass(&f, (const float[]){1, 1, 1}, 1);
    gs_reduce_result result;
    assert_ok(gs_reducer_finish(f.reducer, &result, soon()));
    const gs_reduce_stats *stats = gs_reducer_stats(f.reducer);
    assert_int_equal(stats->step, 7);
    assert_int_equal(stats->num_buckets, 2);
    assert_true(stats->begin_ns <= stats->backward_begin_ns);
    assert_true(stats->backward_begin_ns <= stats->backward_end_ns);
    assert_true(stats->backward_end_ns <= stats->end_ns);
    for (size_t b = 0; b < 2; b++) {
        const gs_bucket_times *times = &stats->buckets[b];
        assert_true(times->ready_ns && times->ready_ns <= times->posted_ns);
        assert_true(times->started_ns <= times->finished_ns);
        assert_true(times->bytes >= 16 && times->wire_bytes > times->bytes);
        assert_non_null(times->algorithm);
    }
    // Parameters came in registration order, buckets are planned the other way around.
    assert_int_equal(stats->ready_order_mismatches, 1);
    close_fixture(&f);
}

static void backward_that_marks_nothing_takes_no_time(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1, 1, false);
    assert_ok(gs_reducer_begin(f.reducer, 0));
    run_pass(&f, (const float[]){NAN, NAN, NAN}, 1);
    gs_reduce_result result;
    assert_ok(gs_reducer_finish(f.reducer, &result, soon()));
    const gs_reduce_stats *stats = gs_reducer_stats(f.reducer);
    assert_true(stats->begin_ns <= stats->backward_begin_ns);
    assert_true(stats->backward_begin_ns <= stats->backward_end_ns);
    assert_int_equal(result.num_unused, 3);
    close_fixture(&f);
}

static void bucket_waits_for_its_turn(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1, 1, false);
    assert_ok(gs_reducer_begin(f.reducer, 0));
    gs_reducer_pass pass;
    assert_ok(gs_reducer_begin_pass(f.reducer, &pass, 1));
    for (size_t p = 0; p < 3; p++) put(&f, pass.grads[p], 1, false);
    assert_ok(gs_reducer_mark_ready(f.reducer, 0));  // bucket 1
    assert_ok(gs_reducer_mark_ready(f.reducer, 2));
    assert_ok(gs_reducer_mark_ready(f.reducer, 1));  // bucket 0
    assert_ok(gs_reducer_end_pass(f.reducer));
    gs_reduce_result result;
    assert_ok(gs_reducer_finish(f.reducer, &result, soon()));
    const gs_reduce_stats *stats = gs_reducer_stats(f.reducer);
    assert_true(stats->buckets[1].ready_ns <= stats->buckets[0].ready_ns);
    assert_true(stats->buckets[0].posted_ns <= stats->buckets[1].posted_ns);
    close_fixture(&f);
}

// Each misuse: what it does in an open pass of step 5, and the words that must come out of finish.
static void mark_twice(fixture *f, gs_reducer_pass *pass) {
    (void)pass;
    assert_ok(gs_reducer_mark_ready(f->reducer, 1));
    assert_int_equal(gs_reducer_mark_ready(f->reducer, 1).code, GS_FAILED_PRECONDITION);
}

static void mark_unknown(fixture *f, gs_reducer_pass *pass) {
    (void)pass;
    gs_reducer_ready_callback(f->reducer, 77);
}

static void mark_after_the_pass(fixture *f, gs_reducer_pass *pass) {
    (void)pass;
    assert_ok(gs_reducer_end_pass(f->reducer));
    gs_reducer_ready_callback(f->reducer, 2);
}

static void run_a_pass_too_many(fixture *f, gs_reducer_pass *pass) {
    assert_ok(gs_reducer_end_pass(f->reducer));
    assert_int_equal(gs_reducer_begin_pass(f->reducer, pass, 1).code, GS_FAILED_PRECONDITION);
}

static void begin_within_a_step(fixture *f, gs_reducer_pass *pass) {
    (void)pass;
    assert_int_equal(gs_reducer_begin(f->reducer, 6).code, GS_FAILED_PRECONDITION);
}

static void finish_within_a_pass(fixture *f, gs_reducer_pass *pass) {
    (void)pass;
    assert_ok(gs_reducer_mark_ready(f->reducer, 0));
}

static void every_misuse_sticks_and_is_named(void **state) {
    (void)state;
    static const struct {
        void (*act)(fixture *f, gs_reducer_pass *pass);
        const char *words;
    } misuses[] = {{mark_twice, "\"fc1.weight\" marked ready twice"},
                   {mark_unknown, "no parameter 77"},
                   {mark_after_the_pass, "\"fc2.weight\" marked ready outside a pass"},
                   {run_a_pass_too_many, "all passes of the step"},
                   {begin_within_a_step, "a step is open"},
                   {finish_within_a_pass, "\"fc1.weight\" is not ready"}};
    for (size_t i = 0; i < sizeof misuses / sizeof misuses[0]; i++) {
        fixture f;
        open_fixture(&f, 1, 1, false);
        assert_ok(gs_reducer_begin(f.reducer, 5));
        gs_reducer_pass pass;
        assert_ok(gs_reducer_begin_pass(f.reducer, &pass, 1));
        misuses[i].act(&f, &pass);
        gs_reduce_result result;
        gs_status status = gs_reducer_finish(f.reducer, &result, soon());
        assert_int_equal(status.code, GS_FAILED_PRECONDITION);
        if (!strstr(status.message, misuses[i].words)) fail_msg("%zu: %s", i, status.message);
        assert_non_null(strstr(status.message, "rank 0, step 5"));
        assert_false(gs_reducer_complete(f.reducer));
        assert_int_equal(gs_reducer_begin(f.reducer, 6).code, GS_FAILED_PRECONDITION);
        close_fixture(&f);
    }
}

static void samples_out_of_range_are_refused_when_their_pass_begins(void **state) {
    (void)state;
    const struct {
        gs_reducer_op op;
        int64_t first, second;  // of two passes; the second is too much
        const char *words;
    } cases[] = {
        {GS_MEAN, 1, INT64_MAX, "samples of a pass: 9223372036854775807"},
        {GS_MEAN, 1, -1, "samples of a pass: -1"},
        {GS_MEAN, 1, INT64_C(1) << 32, "left 4294967295, of a step at most 4294967296"},
        {GS_SAMPLE_MEAN, 1 << 24, (1 << 24) + 1, "weighted at most 16777216"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture f;
        open_fixture_with(&f, &(grad_case){.num_shards = 2, .op = cases[i].op});
        assert_ok(gs_reducer_begin(f.reducer, 5));
        run_pass(&f, (const float[]){1, 1, 1}, cases[i].first);
        gs_reducer_pass pass;
        gs_status status = gs_reducer_begin_pass(f.reducer, &pass, cases[i].second);
        assert_int_equal(status.code, GS_FAILED_PRECONDITION);
        if (!strstr(status.message, cases[i].words)) fail_msg("%zu: %s", i, status.message);
        gs_reduce_result result;
        status = gs_reducer_finish(f.reducer, &result, soon());
        assert_non_null(strstr(status.message, "rank 0, step 5: samples of a pass"));
        close_fixture(&f);
    }
}

static void finish_with_passes_missing_is_an_error(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 3, 1, false);
    assert_ok(gs_reducer_begin(f.reducer, 0));
    run_pass(&f, (const float[]){1, 1, 1}, 1);
    gs_reduce_result result;
    gs_status status = gs_reducer_finish(f.reducer, &result, soon());
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "1 of 3 passes"));
    close_fixture(&f);
}

static void parameter_used_by_nobody_can_be_an_error(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1, 1, false);
    close_fixture(&f);
    f.model.unused_is_error = true;
    const size_t order[] = {2, 1, 0};
    assert_ok(gs_bucket_plan_parity(&f.model.plan, f.model.params, 3, 32, 32, order));
    assert_ok(grad_rank_open(&f.rank, &f.model, NULL, NULL, soon()));
    f.reducer = f.rank.reducer;
    assert_ok(gs_reducer_begin(f.reducer, 0));
    run_pass(&f, (const float[]){1, NAN, 1}, 1);
    gs_reduce_result result;
    gs_status status = gs_reducer_finish(f.reducer, &result, soon());
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "parameter 1 \"fc1.weight\" was used by no rank"));
    close_fixture(&f);
}

static void complete_is_true_between_finish_and_begin_only(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1, 1, false);
    assert_false(gs_reducer_complete(f.reducer));
    assert_ok(gs_reducer_begin(f.reducer, 0));
    run_pass(&f, (const float[]){1, 1, 1}, 1);
    assert_false(gs_reducer_complete(f.reducer));
    gs_reduce_result result;
    assert_ok(gs_reducer_finish(f.reducer, &result, soon()));
    assert_true(gs_reducer_complete(f.reducer));
    assert_ok(gs_reducer_begin(f.reducer, 1));
    assert_false(gs_reducer_complete(f.reducer));
    close_fixture(&f);
}

static void create_refuses_what_does_not_fit(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 2, 1, false);
    gs_reducer_options good = {.params = f.model.params,
                               .num_params = 3,
                               .plan = &f.model.plan,
                               .shards = {.num_shards = 2, .world_size = 1},
                               .arena = f.rank.arena,
                               .device = f.rank.device};
    enum { NUM_BAD = 11 };
    gs_reducer_options bad[NUM_BAD];
    for (size_t i = 0; i < NUM_BAD; i++) bad[i] = good;
    bad[0].num_params = 0;
    bad[1].num_params = 2;
    bad[2].shards.world_size = 2;
    bad[3].shards.num_shards = 0;
    gs_param_spec typed[3] = {f.model.params[0], f.model.params[1], f.model.params[2]};
    typed[1].dtype = GS_BF16;
    bad[4].params = typed;
    gs_param_spec large[3] = {f.model.params[0], f.model.params[1], f.model.params[2]};
    large[0].shape[0] = 1 << 20;
    bad[5].params = large;
    bad[6].passes_per_shard = INT_MAX;
    bad[7].plan = NULL;
    bad[8].arena = NULL;
    bad[9].device = NULL;
    bad[10].passes_per_shard = -1;
    for (size_t i = 0; i < NUM_BAD; i++) {
        gs_reducer *reducer;
        assert_int_equal(gs_reducer_create(&reducer, &bad[i], f.rank.comm, soon()).code,
                         GS_INVALID_ARGUMENT);
        assert_null(reducer);
    }
    close_fixture(&f);
}

static void exact_world_without_a_tree_is_refused_before_memory_is_asked_for(void **state) {
    (void)state;
    gs_param_spec spec = gs_param_spec_make(GS_FP32, 4, 0, "w");
    gs_reducer_options options = {.params = &spec,
                                  .num_params = 1,
                                  .shards = {.num_shards = 4095, .world_size = 63, .exact = true}};
    size_t bytes;
    gs_status status = gs_reducer_arena_bytes(&bytes, &options);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "4095 logical shards on 63 ranks"));
    assert_non_null(strstr(status.message, "4032"));
    options.shards.num_shards = 4032;
    assert_ok(gs_reducer_arena_bytes(&bytes, &options));
}

static void ten_thousand_parameters_reduce_with_any_plan(void **state) {
    (void)state;
    enum { NUM_PARAMS = 10000 };
    if (!test_device_is_host()) skip();  // a hundred thousand launches: minutes on the software machine
    gs_param_spec *params = calloc(NUM_PARAMS, sizeof *params);
    for (size_t p = 0; p < NUM_PARAMS; p++)
        params[p] = gs_param_spec_make(GS_FP32, 1 + (int64_t)(p % 5), 0, "p%zu", p);
    params[17].shape[0] = 0;         // nothing in it
    params[4711].shape[0] = 200000;  // more than both caps
    const uint64_t caps[] = {0, 1000, UINT64_MAX};
    for (size_t c = 0; c < 3; c++) {
        gs_bucket_plan plan;
        assert_ok(gs_bucket_plan_parity(&plan, params, NUM_PARAMS, caps[c] / 2, caps[c], NULL));
        grad_rank rank = {0};
        gs_reducer_options options = {.params = params,
                                      .num_params = NUM_PARAMS,
                                      .plan = &plan,
                                      .shards = {.num_shards = 1, .world_size = 1}};
        size_t bytes;
        assert_ok(gs_reducer_arena_bytes(&bytes, &options));
        rank.device = test_device_open(1);
        assert_ok(gs_arena_create_on(&rank.arena, bytes, rank.device));
        assert_ok(gs_comm_create(
            &rank.comm,
            &(gs_comm_options){.world_size = 1, .arena = rank.arena, .device = rank.device},
            soon()));
        options.arena = rank.arena;
        options.device = rank.device;
        assert_ok(gs_reducer_create(&rank.reducer, &options, rank.comm, soon()));
        gs_reducer_pass pass;
        gs_reduce_result result;
        assert_ok(gs_reducer_begin(rank.reducer, 0));
        assert_ok(gs_reducer_begin_pass(rank.reducer, &pass, 5));
        for (size_t p = NUM_PARAMS; p-- > 0;) {
            size_t count = gs_param_spec_count(&params[p]);
            gs_device_kernels(rank.device)
                ->fill(gs_device_stream(rank.device), pass.grads[p], 1, count);
            if (p % 3) assert_ok(gs_reducer_mark_ready(rank.reducer, p));
        }
        assert_ok(gs_reducer_end_pass(rank.reducer));
        assert_ok(gs_reducer_finish(rank.reducer, &result, soon()));
        assert_int_equal(result.num_unused, 3334);
        assert_int_equal(result.samples, 5);
        assert_near(grad_at(&rank, 4711, 199999), 1, 0);
        assert_near(grad_at(&rank, 9999, 0), 0, 0);
        grad_rank_close(&rank);
        gs_bucket_plan_release(&plan);
    }
    free(params);
}

static void plan_changes_between_steps_only(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1, 1, false);
    assert_ok(gs_reducer_begin(f.reducer, 0));
    gs_status status = gs_reducer_set_plan(f.reducer, &f.model.plan, soon());
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(world_of_one_divides_by_shards_and_passes),
        cmocka_unit_test(most_shards_there_can_be_are_added_in_both_modes),
        cmocka_unit_test(parameter_first_written_in_a_later_pass_starts_from_zero),
        cmocka_unit_test(accounts_of_a_pass_start_anew),
        cmocka_unit_test(random_models_reduce_like_the_serial_sum),
        cmocka_unit_test(another_plan_gives_the_same_bits),
        cmocka_unit_test(nonfinite_gradients_are_seen_in_the_result),
        cmocka_unit_test(large_finite_gradients_are_finite),
        cmocka_unit_test(ready_order_is_recorded),
        cmocka_unit_test(stats_tell_when_each_bucket_moved),
        cmocka_unit_test(backward_that_marks_nothing_takes_no_time),
        cmocka_unit_test(bucket_waits_for_its_turn),
        cmocka_unit_test(every_misuse_sticks_and_is_named),
        cmocka_unit_test(samples_out_of_range_are_refused_when_their_pass_begins),
        cmocka_unit_test(finish_with_passes_missing_is_an_error),
        cmocka_unit_test(parameter_used_by_nobody_can_be_an_error),
        cmocka_unit_test(complete_is_true_between_finish_and_begin_only),
        cmocka_unit_test(create_refuses_what_does_not_fit),
        cmocka_unit_test(exact_world_without_a_tree_is_refused_before_memory_is_asked_for),
        cmocka_unit_test(ten_thousand_parameters_reduce_with_any_plan),
        cmocka_unit_test(plan_changes_between_steps_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
