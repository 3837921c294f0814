#include "gradsync/replicas/replicas.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/small_reducer.h"
#include "tests/support/soon.h"

static size_t num_calls;  // for memory

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes) {
    num_calls++;
    return __real_malloc(bytes);
}

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) {
    num_calls++;
    return __real_calloc(count, bytes);
}

void *__real_aligned_alloc(size_t boundary, size_t bytes);
void *__wrap_aligned_alloc(size_t boundary, size_t bytes);
void *__wrap_aligned_alloc(size_t boundary, size_t bytes) {
    num_calls++;
    return __real_aligned_alloc(boundary, bytes);
}

#define NUM_REPLICAS 2

// A world of one with two replicas, all run by the test's thread.
typedef struct fixture {
    small_reducer small;
    gs_device *devices[NUM_REPLICAS];
    gs_reducer_options whole;
    gs_replicas *replicas;
} fixture;

static void assert_words(gs_status status, gs_code code, const char *words) {
    assert_int_equal(status.code, code);
    if (!strstr(status.message, words))
        fail_msg("\"%s\" does not say \"%s\"", status.message, words);
}

static gs_status try_open(fixture *f, const gs_reducer_options *options, int num_shards) {
    f->whole = *options;
    f->whole.params = f->small.params;
    f->whole.num_params = SMALL_PARAMS;
    f->whole.shards.num_shards = num_shards;
    f->whole.shards.world_size = 1;
    gs_replicas_options replicas = {
        .reducer = &f->whole, .num_replicas = NUM_REPLICAS, .devices = f->devices};
    gs_reducer_options reducer;
    GS_TRY(gs_replicas_reducer_options(&reducer, &replicas));
    GS_TRY(small_reducer_open(&f->small, &reducer, NULL));
    f->devices[0] = f->small.device;
    GS_TRY(gs_device_open(&f->devices[1], "cpu", NULL));
    return gs_replicas_create(&f->replicas, &replicas, f->small.reducer, f->small.comm, soon());
}

static void open_all(fixture *f, const gs_reducer_options *options, int num_shards) {
    *f = (fixture){0};
    small_reducer_prepare(&f->small);
    assert_ok(try_open(f, options, num_shards));
}

static void close_all(fixture *f) {
    gs_replicas_destroy(f->replicas);
    small_reducer_close(&f->small);
    gs_device_close(f->devices[1]);
}

static void write_grad(const fixture *f, const gs_reducer_pass *pass, size_t param, double value) {
    value *= (double)pass->grad_factor;
    for (size_t i = 0; i < SMALL_COUNT; i++) {
        if (f->small.params[param].dtype == GS_FP64) {
            double *grad = (double *)(void *)pass->grads[param];
            grad[i] = pass->accumulate ? grad[i] + value : value;
        } else {
            float *grad = pass->grads[param];
            grad[i] = pass->accumulate ? grad[i] + (float)value : (float)value;
        }
    }
}

// A pass in which every parameter but the first, and that unless it is NAN, gets this gradient.
static gs_status run_pass(fixture *f, int replica, double value, double first, int64_t samples) {
    gs_reducer_pass pass;
    GS_TRY(gs_replicas_begin_pass(f->replicas, replica, &pass, samples));
    for (size_t p = SMALL_PARAMS; p-- > 0;) {
        double wanted = p ? value : first;
        if (isnan(wanted)) continue;
        write_grad(f, &pass, p, wanted);
        GS_TRY(gs_replicas_mark_ready(f->replicas, replica, p));
    }
    return gs_replicas_end_pass(f->replicas, replica);
}

static gs_status finish(fixture *f, gs_reduce_result *result) {
    GS_TRY(gs_replicas_end(f->replicas, soon()));
    return gs_reducer_finish(f->small.reducer, result, soon());
}

static void step_allocates_nothing_in_any_mode(void **state) {
    (void)state;
    const gs_reducer_options modes[] = {{0},
                                        {.op = GS_SUM, .passes_per_shard = 2},
                                        {.op = GS_SAMPLE_MEAN},
                                        {.static_graph = true},
                                        {.wire_dtype = GS_BF16},
                                        {.shards = {.exact = true}}};
    for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
        fixture f;
        open_all(&f, &modes[m], 5);
        int passes = modes[m].passes_per_shard ? modes[m].passes_per_shard : 1;
        num_calls = 0;
        for (int64_t step = 0; step < 3; step++) {
            gs_reduce_result result;
            assert_ok(gs_replicas_begin(f.replicas, step, 5 * passes));
            for (int i = 0; i < 3 * passes; i++) assert_ok(run_pass(&f, 1, 2, NAN, 1));
            for (int i = 0; i < 2 * passes; i++) assert_ok(run_pass(&f, 0, 1, 1, 1));
            assert_ok(finish(&f, &result));
            assert_int_equal(result.samples, 5 * passes);
            assert_int_equal(result.num_unused, 0);
            // Two passes of 1 and three of 2, for what both replicas use.
            double sum = passes * 8, all = passes * 5;
            double expected = modes[m].op == GS_SUM ? sum : sum / all;
            double got = small_reducer_grad(&f.small, 3, 1);
            if (!is_near(got, expected, (gs_near){.relative = 1e-2}))
                fail_msg("mode %zu: %g, expected %g", m, got, expected);
        }
        if (num_calls) fail_msg("mode %zu: %zu calls for memory in three steps", m, num_calls);
        close_all(&f);
    }
}

static void mean_over_samples_weighs_replicas_by_their_samples(void **state) {
    (void)state;
    fixture f;
    gs_reduce_result result;
    open_all(&f, &(gs_reducer_options){.op = GS_SAMPLE_MEAN}, 2);
    assert_ok(gs_replicas_begin(f.replicas, 0, 4));
    assert_ok(run_pass(&f, 0, 1, 1, 1));
    assert_ok(run_pass(&f, 1, 2, 2, 3));
    assert_ok(finish(&f, &result));
    assert_true(small_reducer_grad(&f.small, 2, 0) == 1.75);
    assert_int_equal(result.samples, 4);
    close_all(&f);
}

static void gradients_of_doubles_are_added_as_doubles(void **state) {
    (void)state;
    fixture f = {0};
    gs_reduce_result result;
    small_reducer_prepare(&f.small);
    for (size_t p = 0; p < SMALL_PARAMS; p++) f.small.params[p].dtype = GS_FP64;
    for (size_t b = 0; b < f.small.plan.num_buckets; b++) f.small.plan.buckets[b].dtype = GS_FP64;
    assert_ok(try_open(&f, &(gs_reducer_options){0}, 2));
    assert_ok(gs_replicas_begin(f.replicas, 0, 2));
    assert_ok(run_pass(&f, 0, 1, 1, 1));
    assert_ok(run_pass(&f, 1, 1 + 1e-12, NAN, 1));
    assert_ok(finish(&f, &result));
    assert_true(small_reducer_grad(&f.small, 1, 3) == (1 + (1 + 1e-12)) / 2);
    assert_true(small_reducer_grad(&f.small, 0, 3) == 0.5);
    close_all(&f);
}

static void parameter_that_one_replica_uses_is_used(void **state) {
    (void)state;
    fixture f;
    gs_reduce_result result;
    open_all(&f, &(gs_reducer_options){0}, 2);
    for (int64_t step = 0; step < 3; step++) {
        assert_ok(gs_replicas_begin(f.replicas, step, 2));
        assert_ok(run_pass(&f, 1, 1, step == 1 ? 4 : NAN, 1));
        assert_ok(run_pass(&f, 0, 1, NAN, 1));
        assert_ok(finish(&f, &result));
        assert_int_equal(result.used[0], step == 1);
        assert_int_equal(result.num_unused, step != 1);
        assert_true(small_reducer_grad(&f.small, 0, 2) == (step == 1 ? 2 : 0));
        size_t num_ready;
        const size_t *order = gs_replicas_ready_order(f.replicas, &num_ready);
        assert_int_equal(num_ready, 3);
        assert_int_equal(order[0], 3);
    }
    close_all(&f);
}

static void misuse_is_named_and_sticks(void **state) {
    (void)state;
    fixture f;
    gs_reducer_pass pass;
    const struct {
        int what;
        const char *words;
    } cases[] = {
        {0, "rank 0, step 3, replica 1: parameter 2 \"fc2\" marked ready outside a pass"},
        {1, "rank 0, step 3, replica 1: there is no parameter 4"},
        {2, "rank 0, step 3, replica 1: a pass is open, end it first"},
        {3, "rank 0, step 3, replica 1: no pass is open"},
        {4, "rank 0, step 3: a step is open, end it first"},
        {5, "rank 0, step 3, replica 1: a pass has less than 0 samples"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        open_all(&f, &(gs_reducer_options){0}, 2);
        assert_ok(gs_replicas_begin(f.replicas, 3, 2));
        gs_status status = gs_ok();
        if (cases[i].what == 1 || cases[i].what == 2)
            assert_ok(gs_replicas_begin_pass(f.replicas, 1, &pass, 1));
        if (cases[i].what == 0) status = gs_replicas_mark_ready(f.replicas, 1, 2);
        if (cases[i].what == 1) status = gs_replicas_mark_ready(f.replicas, 1, SMALL_PARAMS);
        if (cases[i].what == 2) status = gs_replicas_begin_pass(f.replicas, 1, &pass, 1);
        if (cases[i].what == 3) status = gs_replicas_end_pass(f.replicas, 1);
        if (cases[i].what == 4) status = gs_replicas_begin(f.replicas, 4, 2);
        if (cases[i].what == 5) status = gs_replicas_begin_pass(f.replicas, 1, &pass, -1);
        assert_words(status, GS_FAILED_PRECONDITION, cases[i].words);
        assert_words(gs_replicas_begin_pass(f.replicas, 0, &pass, 1), GS_FAILED_PRECONDITION,
                     cases[i].words);
        assert_words(gs_replicas_end(f.replicas, soon()), GS_FAILED_PRECONDITION, cases[i].words);
        close_all(&f);
    }
}

static void missing_replica_and_parameter_are_named_at_the_deadline(void **state) {
    (void)state;
    fixture f;
    gs_reducer_pass pass;
    open_all(&f, &(gs_reducer_options){0}, 3);
    assert_ok(gs_replicas_begin(f.replicas, 7, 3));
    assert_ok(run_pass(&f, 0, 1, 1, 1));
    assert_ok(run_pass(&f, 1, 1, 1, 1));
    assert_ok(gs_replicas_begin_pass(f.replicas, 1, &pass, 1));
    // Buckets [3 2] and [1 0]: 2 would have been next.
    assert_ok(gs_replicas_mark_ready(f.replicas, 1, 3));
    assert_words(
        gs_replicas_end(f.replicas, (gs_deadline){0}), GS_DEADLINE_EXCEEDED,
        "rank 0, step 7: replica 1 did not end pass 2 of 2, parameter 2 \"fc2\" is not ready");
    close_all(&f);
}

static void end_without_a_step_is_refused(void **state) {
    (void)state;
    fixture f;
    open_all(&f, &(gs_reducer_options){0}, 2);
    assert_words(gs_replicas_end(f.replicas, soon()), GS_FAILED_PRECONDITION, "no step is open");
    close_all(&f);
}

static void options_that_cannot_be_are_refused(void **state) {
    (void)state;
    small_reducer small;
    small_reducer_prepare(&small);
    gs_separate_grad separate[SMALL_PARAMS] = {{0}};
    const struct {
        gs_reducer_options reducer;
        int num_replicas, num_shards;
        gs_replica_divisor divisor;
        const char *words;
    } cases[] = {
        {{0}, 0, 4, GS_DIVIDE_BY_REPLICAS, "num_replicas 0 is not in [1, 64]"},
        {{0}, 65, 100, GS_DIVIDE_BY_REPLICAS, "num_replicas 65 is not in [1, 64]"},
        {{0}, 3, 2, GS_DIVIDE_BY_REPLICAS, "2 shards for 1 ranks of 3 replicas"},
        {{.separate = separate}, 2, 2, GS_DIVIDE_BY_REPLICAS, "separate gradients"},
        {{.windows = {.num_windows = 2}}, 2, 2, GS_DIVIDE_BY_REPLICAS, "windows: replicas"},
        {{.op = GS_SAMPLE_MEAN}, 2, 2, GS_DIVIDE_BY_PROCESSES, "a mean over samples"},
        {{.shards = {.exact = true}}, 2, 2, GS_DIVIDE_BY_PROCESSES, "exact mode divides by shards"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gs_reducer_options whole = cases[i].reducer, out;
        whole.params = small.params;
        whole.num_params = SMALL_PARAMS;
        whole.shards.num_shards = cases[i].num_shards;
        whole.shards.world_size = 1;
        assert_words(gs_replicas_reducer_options(
                         &out, &(gs_replicas_options){.reducer = &whole,
                                                      .num_replicas = cases[i].num_replicas,
                                                      .divisor = cases[i].divisor}),
                     GS_INVALID_ARGUMENT, cases[i].words);
    }
    gs_reducer_options whole = {.params = small.params,
                                .num_params = SMALL_PARAMS,
                                .shards = {.num_shards = 2, .world_size = 1}},
                       out;
    small.params[2].sparse = true;
    assert_words(gs_replicas_reducer_options(
                     &out, &(gs_replicas_options){.reducer = &whole, .num_replicas = 2}),
                 GS_INVALID_ARGUMENT, "parameter 2 \"fc2\": rows are not added across replicas");
    small_reducer_close(&small);
}

static void replicas_need_devices_of_their_own(void **state) {
    (void)state;
    small_reducer small;
    small_reducer_prepare(&small);
    assert_ok(small_reducer_open(&small, &(gs_reducer_options){.op = GS_SUM}, NULL));
    gs_reducer_options whole = {.params = small.params,
                                .num_params = SMALL_PARAMS,
                                .shards = {.num_shards = 2, .world_size = 1}};
    gs_device *devices[] = {small.device, small.device};
    gs_replicas *replicas;
    assert_words(gs_replicas_create(&replicas,
                                    &(gs_replicas_options){
                                        .reducer = &whole, .num_replicas = 2, .devices = devices},
                                    small.reducer, small.comm, soon()),
                 GS_INVALID_ARGUMENT, "replicas 0 and 1 have one device");
    small_reducer_close(&small);
}

static void shards_are_dealt_as_to_as_many_processes(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 3; world_size++) {
        for (int k = 1; k <= 4; k++) {
            int next = 0, num_shards = world_size * k + 5;
            for (int rank = 0; rank < world_size; rank++) {
                gs_logical_shards process = {
                    .num_shards = num_shards, .world_size = world_size, .rank = rank};
                assert_int_equal(gs_logical_shards_first(&process, rank), next);
                for (int r = 0; r < k; r++) {
                    gs_logical_shards shards = gs_replicas_shards(&process, k, r);
                    assert_int_equal(gs_logical_shards_first(&shards, shards.rank), next);
                    assert_true(gs_logical_shards_count(&shards) >= 1);
                    next += gs_logical_shards_count(&shards);
                }
            }
            assert_int_equal(next, num_shards);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_allocates_nothing_in_any_mode),
        cmocka_unit_test(mean_over_samples_weighs_replicas_by_their_samples),
        cmocka_unit_test(gradients_of_doubles_are_added_as_doubles),
        cmocka_unit_test(parameter_that_one_replica_uses_is_used),
        cmocka_unit_test(misuse_is_named_and_sticks),
        cmocka_unit_test(missing_replica_and_parameter_are_named_at_the_deadline),
        cmocka_unit_test(end_without_a_step_is_refused),
        cmocka_unit_test(options_that_cannot_be_are_refused),
        cmocka_unit_test(replicas_need_devices_of_their_own),
        cmocka_unit_test(shards_are_dealt_as_to_as_many_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
