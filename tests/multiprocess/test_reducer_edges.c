// The reducer at its edges, between real processes: models of next to nothing, what a program hands
// in (hooks, tails) and does wrong there, sums that are too large.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/reducer/agreement.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/grad_case.h"
#include "tests/support/small_reducer.h"
#include "tests/support/soon.h"

#define MAX_WORLD 8

static gs_status expect(const char *what, double got, double expected) {
    if (got == expected) return gs_ok();
    return gs_error(GS_INTERNAL, "%s is %.9g, expected %.9g", what, got, expected);
}

// arg: one letter a parameter; s a scalar, 0 one without elements, w one of 5 elements.
static gs_status body_model(const gs_rank_env *env) {
    for (int exact = 0; exact < 2; exact++) {
        grad_case model = {.num_params = strlen(env->arg),
                           .num_shards = env->world_size + 1,
                           .passes_per_shard = 2,
                           .exact = exact};
        for (size_t p = 0; p < model.num_params; p++) {
            char kind = env->arg[p];
            model.params[p] = gs_param_spec_make(GS_FP32, kind == 's' ? 0 : 5, 0, "p%zu", p);
            if (kind == '0') model.params[p].shape[0] = 0;
            size_t count = kind == '0' ? 0 : kind == 's' ? 1 : 5;
            if (gs_param_spec_count(&model.params[p]) != count)
                return gs_error(GS_INTERNAL, "parameter %zu is none of kind %c", p, kind);
        }
        GS_TRY(gs_bucket_plan_parity(&model.plan, model.params, model.num_params, 0, 8, NULL));
        grad_rank rank;
        GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
        for (int64_t step = 0; step < 3; step++) {
            gs_reduce_result result;
            GS_TRY(grad_rank_run_step(&rank, step, &result, soon()));
        }
        grad_rank_close(&rank);
        grad_case_release(&model);
    }
    return gs_ok();
}

// Lists as long as those of large models, the last rank's last parameter another.
static gs_status body_long_list(const gs_rank_env *env) {
    enum { NUM_PARAMS = 20000 };
    gs_param_spec *params = calloc(NUM_PARAMS, sizeof *params);
    for (size_t p = 0; p < NUM_PARAMS; p++)
        params[p] = gs_param_spec_make(GS_FP32, 3, 0, "layer.%zu", p);
    if (env->rank == env->world_size - 1) params[NUM_PARAMS - 1].shape[0] = 4;
    gs_bucket_plan plan;
    comm_rank rank;
    GS_TRY(gs_bucket_plan_parity(&plan, params, NUM_PARAMS, 1024, 4096, NULL));
    gs_hook_set hooks;
    GS_TRY(gs_hook_set_init(
        &hooks, &(gs_hook_set_options){.params = params, .num_params = NUM_PARAMS}, NULL));
    GS_TRY(comm_rank_open(&rank, env, 1 << 20, NULL));
    gs_status status = gs_agreement_check(
        &(gs_agreement){
            .params = params, .num_params = NUM_PARAMS, .plan = &plan, .hooks = &hooks},
        rank.comm, soon());
    comm_rank_close(&rank);
    gs_hook_set_release(&hooks);
    gs_bucket_plan_release(&plan);
    free(params);
    return status;
}

// A hook and a tail that do what the argument says, on rank 1 in step 2.
static const char *wrong;
static int wrong_rank;

static bool is_wrong(int64_t step, const char *how) {
    return wrong_rank == 1 && step == 2 && strcmp(wrong, how) == 0;
}

static gs_status run_odd(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    // In the last bucket: nothing that the others have posted meets the one too many before it is found out.
    if (bucket->is_last && is_wrong(bucket->step, "posts too much")) {
        GS_TRY(gs_hook_allreduce.run(state, bucket, work));
        return gs_hook_allreduce.run(state, bucket, work);
    }
    if (is_wrong(bucket->step, "run fails")) return gs_error(GS_INTERNAL, "no room for a factor");
    return gs_hook_allreduce.run(state, bucket, work);
}

static gs_status finish_odd(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                            gs_deadline deadline) {
    if (is_wrong(bucket->step, "finish fails")) return gs_error(GS_DATA_LOSS, "no such factor");
    return gs_hook_allreduce.finish(state, bucket, result, deadline);
}

static gs_status finish_tail(void *ctx, void *const *grads, gs_deadline deadline) {
    (void)grads;
    (void)deadline;
    const int64_t *step = ctx;
    return is_wrong(*step, "tail fails") ? gs_error(GS_DATA_LOSS, "rows of another step") : gs_ok();
}

// What rank 1 does wrong by itself is its own on all ranks, and nobody is accused of it; the error is the
// communicator's for the others alone. Where it posted in place of something else, and the others have seen that
// before it says what it did, it is accused of a mismatch.
static gs_status check_known(gs_comm *comm, gs_status status) {
    gs_comm_failure seen;
    gs_comm_explain(comm, &seen);
    bool mismatch = seen.kind == GS_COMM_FAILURE_MISMATCH && strcmp(wrong, "posts too much") == 0;
    bool right = mismatch ? gs_comm_failure_names(&seen, 1)
                          : seen.kind == GS_COMM_FAILURE_ABORTED && seen.reporter == 1;
    right &= gs_comm_failure_num_accused(&seen) == (mismatch ? 1 : 0);
    right &= wrong_rank == 1 || gs_comm_failure_may_be(&seen, status.code);
    right &= wrong_rank != 1 || mismatch || !gs_comm_failure_may_be(&seen, status.code);
    if (right) return status;
    return gs_error(GS_INTERNAL, "%s: rank %d knows: %s, reporter %d, %d accused", wrong, wrong_rank,
                    gs_comm_failure_kind_name(seen.kind), seen.reporter,
                    gs_comm_failure_num_accused(&seen));
}

static gs_status body_handed_in(const gs_rank_env *env) {
    gs_comm_hook odd = gs_hook_allreduce;
    odd.name = "odd";
    odd.run = run_odd;
    odd.finish = finish_odd;
    const gs_hook_choice choice = {.hook = &odd};
    small_reducer small;
    wrong = env->arg;
    wrong_rank = env->rank;
    small_reducer_prepare(&small);
    GS_TRY(small_reducer_open(&small, &(gs_reducer_options){.hooks = &choice, .num_hooks = 1}, env));
    gs_status status = gs_ok();
    for (int64_t step = 0; step < 4 && !status.code; step++) {
        gs_reduce_result result;
        status = gs_reducer_begin(small.reducer, step);
        if (!status.code)
            status = gs_reducer_add_tail(small.reducer,
                                         &(gs_reducer_tail){.finish = finish_tail, .ctx = &step});
        if (!status.code) status = small_reducer_run_pass(&small, (const double[]){1, 1, 1, 1}, 1);
        if (!status.code) status = gs_reducer_finish(small.reducer, &result, soon());
    }
    if (status.code) status = check_known(small.comm, status);
    small_reducer_close(&small);
    return status;
}

// Parameters that the reducer does not know: their gradients lie in one buffer, which is reduced
// behind the buckets while the caller goes on; a tail waits for it, so that nothing is on its way
// when finish returns.
typedef struct delayed_grads {
    float flat[64];
    gs_comm *comm;
    gs_work work;
} delayed_grads;

static gs_status post_delayed(delayed_grads *delayed, int64_t step) {
    return gs_comm_post(delayed->comm, &delayed->work,
                        &(gs_collective){.kind = GS_ALLREDUCE,
                                         .send = delayed->flat,
                                         .recv = delayed->flat,
                                         .count = 64,
                                         .dtype = GS_FP32,
                                         .scale = 1.0 / gs_comm_world_size(delayed->comm),
                                         .step = step,
                                         .bucket = -1});
}

static gs_status wait_for_delayed(void *ctx, void *const *grads, gs_deadline deadline) {
    (void)grads;
    const delayed_grads *delayed = ctx;
    return gs_comm_wait(delayed->comm, delayed->work, deadline);
}

static gs_status body_delayed(const gs_rank_env *env) {
    small_reducer small;
    gs_reduce_result result;
    float mean_rank = (float)(env->world_size - 1) / 2;
    small_reducer_prepare(&small);
    GS_TRY(small_reducer_open(&small, &(gs_reducer_options){0}, env));
    delayed_grads delayed = {.comm = small.comm};
    for (int64_t step = 0; step < 3; step++) {
        for (int i = 0; i < 64; i++) delayed.flat[i] = (float)(env->rank + i);
        GS_TRY(gs_reducer_begin(small.reducer, step));
        GS_TRY(gs_reducer_add_tail(
            small.reducer, &(gs_reducer_tail){.finish = wait_for_delayed, .ctx = &delayed}));
        GS_TRY(small_reducer_run_pass(&small, (const double[]){env->rank, NAN, 1, 1}, 1));
        GS_TRY(post_delayed(&delayed, step));
        GS_TRY(gs_reducer_finish(small.reducer, &result, soon()));
        GS_TRY(expect("gradient", small_reducer_grad(&small, 2, 0), 1));
        for (int i = 0; i < 64; i++)
            GS_TRY(expect("delayed", (double)delayed.flat[i], (double)(mean_rank + (float)i)));
    }
    small_reducer_close(&small);
    return gs_ok();
}

// Each rank's samples are allowed, all of them together are too many.
static gs_status body_samples(const gs_rank_env *env) {
    small_reducer small;
    gs_reduce_result result;
    small_reducer_prepare(&small);
    GS_TRY(small_reducer_open(&small, &(gs_reducer_options){0}, env));
    gs_status status = gs_reducer_begin(small.reducer, 6);
    if (!status.code)
        status = small_reducer_run_pass(&small, (const double[]){1, 1, 1, 1}, INT64_C(1) << 31);
    if (!status.code) status = gs_reducer_finish(small.reducer, &result, soon());
    small_reducer_close(&small);
    return status;
}

// Every rank's gradient is 4096, with 8 samples: the sum of what they weigh is no fp16.
static gs_status body_weights(const gs_rank_env *env) {
    small_reducer small;
    small_reducer_prepare(&small);
    GS_TRY(small_reducer_open(
        &small, &(gs_reducer_options){.op = GS_SAMPLE_MEAN, .wire_dtype = GS_FP16}, env));
    for (int64_t step = 0; step < 2; step++) {
        gs_reduce_result result;
        GS_TRY(gs_reducer_begin(small.reducer, step));
        GS_TRY(small_reducer_run_pass(&small, (const double[]){4096, -4096, 1, NAN},
                                      env->rank ? 8 : 8 - 4 * step));
        GS_TRY(gs_reducer_finish(small.reducer, &result, soon()));
        GS_TRY(expect("not finite", result.nonfinite, false));
        double got = small_reducer_grad(&small, 0, 0);
        if (!(got > 4094 && got < 4098)) return gs_error(GS_INTERNAL, "4096 became %g", got);
        GS_TRY(expect("sum", got + small_reducer_grad(&small, 1, 3), 0));
    }
    small_reducer_close(&small);
    return gs_ok();
}

static void run_worlds(const char *body, const char *arg, int largest) {
    for (int world_size = 1; world_size <= largest; world_size++) {
        gs_status status = gs_ranks_run(body, world_size, arg, gs_deadline_in_seconds(60));
        if (status.code) fail_msg("%d ranks, \"%s\": %s", world_size, arg, status.message);
    }
}

// Every rank of three must fail with these words; but for rank 1 `others` will do, where that is not NULL.
static void expect_words_or(const char *body, const char *arg, const char *words, const char *others) {
    gs_ranks *ranks;
    gs_status statuses[3];
    assert_ok(gs_ranks_start(&ranks, body, 3, arg, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    gs_ranks_destroy(ranks);
    for (int r = 0; r < 3; r++) {
        bool said = strstr(statuses[r].message, words) ||
                    (r != 1 && others && strstr(statuses[r].message, others));
        if (!statuses[r].code || !said)
            fail_msg("%s: rank %d: \"%s\", expected \"%s\"", arg, r, statuses[r].message, words);
    }
}

static void expect_words(const char *body, const char *arg, const char *words) {
    expect_words_or(body, arg, words, NULL);
}

static void one_scalar_is_reduced_in_every_world(void **state) {
    (void)state;
    run_worlds("model", "s", MAX_WORLD);
}

static void parameters_without_elements_are_reduced_with_and_without_others(void **state) {
    (void)state;
    run_worlds("model", "0", 3);
    run_worlds("model", "00s0w00", 3);
}

static void difference_at_the_end_of_a_long_list_is_named(void **state) {
    (void)state;
    expect_words("long_list", "",
                 "rank 2 against rank 0: parameter 19999 \"layer.19999\": shape [4] against [3]");
}

// What it posts beyond that would meet other ranks' next bucket.
static void hook_that_posts_more_than_it_declared_is_named(void **state) {
    (void)state;
    expect_words_or("handed_in", "posts too much",
                    "rank 1, step 2: bucket 1: hook \"odd\": phase 0 posted 2 collectives, it declared 1",
                    "rank 1 posted");
}

static void errors_of_hooks_and_tails_name_their_rank_everywhere(void **state) {
    (void)state;
    expect_words("handed_in", "run fails",
                 "rank 1, step 2: bucket 0: hook \"odd\": no room for a factor");
    expect_words("handed_in", "finish fails",
                 "rank 1, step 2: bucket 0: hook \"odd\": no such factor");
    expect_words("handed_in", "tail fails", "rank 1, step 2: tail 0: rows of another step");
}

static void parameters_unknown_to_the_reducer_are_reduced_beside_it(void **state) {
    (void)state;
    run_worlds("delayed", "", 4);
}

static void more_samples_than_can_be_counted_are_an_error(void **state) {
    (void)state;
    expect_words("samples", "", "step 6: 6442450944 samples of all ranks, of a step at most");
}

static void weighted_sums_fit_where_their_mean_does(void **state) {
    (void)state;
    run_worlds("weights", "", 4);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"model", body_model},
                                          {"long_list", body_long_list},
                                          {"handed_in", body_handed_in},
                                          {"delayed", body_delayed},
                                          {"samples", body_samples},
                                          {"weights", body_weights},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_scalar_is_reduced_in_every_world),
        cmocka_unit_test(parameters_without_elements_are_reduced_with_and_without_others),
        cmocka_unit_test(difference_at_the_end_of_a_long_list_is_named),
        cmocka_unit_test(hook_that_posts_more_than_it_declared_is_named),
        cmocka_unit_test(errors_of_hooks_and_tails_name_their_rank_everywhere),
        cmocka_unit_test(parameters_unknown_to_the_reducer_are_reduced_beside_it),
        cmocka_unit_test(more_samples_than_can_be_counted_are_an_error),
        cmocka_unit_test(weighted_sums_fit_where_their_mean_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
