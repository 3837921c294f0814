// What is known to go wrong in PyTorch's reducer between ranks, and does not here; docs/features.md
// lists all of it. What must end with an error on every rank is in test_wrong_programs.c.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/reducer/reducer.h"
#include "tests/support/grad_case.h"
#include "tests/support/soon.h"

#define NUM_PARAMS 4

// Four parameters, each in a bucket of its own: bucket 0 holds parameter 3.
static void init_model(grad_case *model, int world_size) {
    *model = (grad_case){
        .seed = 3, .num_params = NUM_PARAMS, .num_shards = world_size, .passes_per_shard = 1};
    for (size_t i = 0; i < NUM_PARAMS; i++)
        model->params[i] = gs_param_spec_make(GS_FP32, 100, 0, "p%zu", i);
    if (gs_bucket_plan_parity(&model->plan, model->params, NUM_PARAMS, 4, 4, NULL).code) abort();
}

static void fill(float *grad, float value) {
    for (size_t i = 0; i < 100; i++) grad[i] = value;
}

static gs_status check_grad(const grad_rank *rank, size_t param, float expected) {
    float got = ((float *)gs_reducer_grads(rank->reducer)[param])[99];
    if (got == expected) return gs_ok();
    return gs_error(GS_INTERNAL, "parameter %zu is %.9g, expected %.9g", param, (double)got,
                    (double)expected);
}

// A step of one pass in which this rank uses the parameters from `first` on.
static gs_status run_step(grad_rank *rank, int64_t step, size_t first, float value,
                          gs_reduce_result *result) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    for (size_t p = NUM_PARAMS; p-- > first;) {
        fill(pass.grads[p], value * (float)(p + 1));
        GS_TRY(gs_reducer_mark_ready(rank->reducer, p));
    }
    GS_TRY(gs_reducer_end_pass(rank->reducer));
    return gs_reducer_finish(rank->reducer, result, soon());
}

// There a parameter without gradient keeps its bucket from filling: no result at all is written,
// each rank keeps its own gradients, the replicas drift apart, and the error comes a step later.
static gs_status body_one_gradient_missing(const gs_rank_env *env) {
    grad_case model;
    init_model(&model, env->world_size);
    grad_rank rank;
    gs_reduce_result result;
    GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
    for (int64_t step = 0; step < 3; step++) {
        GS_TRY(run_step(&rank, step, env->rank == 0 ? 1 : 0, 2, &result));
        GS_TRY(check_grad(&rank, 0, 1));  // of two ranks one had none
        for (size_t p = 1; p < NUM_PARAMS; p++) GS_TRY(check_grad(&rank, p, 2 * (float)(p + 1)));
        if (!result.used[0]) return gs_error(GS_INTERNAL, "parameter 0 was used on rank 1");
    }
    grad_rank_close(&rank);
    grad_case_release(&model);
    return gs_ok();
}

// A barrier, for its number.
static gs_status count_collectives(grad_rank *rank, uint64_t *sequence) {
    gs_work work;
    GS_TRY(gs_comm_post(rank->comm, &work,
                        &(gs_collective){.kind = GS_BARRIER, .step = -1, .bucket = -1}));
    *sequence = work.sequence;
    return gs_comm_wait(rank->comm, work, soon());
}

// There the graph is searched and a map of what was used is reduced in each step. Here a step posts
// its buckets and nothing else, whoever uses what.
static gs_status body_nothing_sent_besides(const gs_rank_env *env) {
    grad_case model;
    init_model(&model, env->world_size);
    grad_rank rank;
    gs_reduce_result result;
    uint64_t before, after;
    GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
    for (int64_t step = 0; step < 3; step++) {
        GS_TRY(count_collectives(&rank, &before));
        GS_TRY(run_step(&rank, step, env->rank == 0 ? (size_t)step : 1, 2, &result));
        GS_TRY(count_collectives(&rank, &after));
        if (after - before - 1 != NUM_PARAMS)
            return gs_error(GS_INTERNAL, "step %d: %d collectives", (int)step,
                            (int)(after - before - 1));
        if (result.used[0] != (step == 0) || !result.used[1])
            return gs_error(GS_INTERNAL, "step %d: wrong ones are used", (int)step);
    }
    grad_rank_close(&rank);
    grad_case_release(&model);
    return gs_ok();
}

// There a bucket may be left out because this rank does not use it, and the user has to promise
// that no other rank does. Here rank 0 does not use what the others do, and gets their mean.
static gs_status body_bucket_of_one_rank(const gs_rank_env *env) {
    grad_case model;
    init_model(&model, env->world_size);
    model.static_graph = true;
    grad_rank rank;
    gs_reduce_result result;
    GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
    for (int64_t step = 0; step < 3; step++) {
        // Parameter 0 is nobody's, parameter 1 only the last rank's.
        GS_TRY(run_step(&rank, step, env->rank == env->world_size - 1 ? 1 : 2, 1, &result));
        GS_TRY(check_grad(&rank, 1, 2.0f * (float)(1.0 / env->world_size)));
        if (result.used[0] || !result.used[1] || result.num_unused != 1)
            return gs_error(GS_INTERNAL, "%zu unused", result.num_unused);
    }
    grad_rank_close(&rank);
    grad_case_release(&model);
    return gs_ok();
}

// There an old gradient of a parameter that this rank does not use is sent as if it were new.
static gs_status body_stale(const gs_rank_env *env) {
    float data[NUM_PARAMS][100];
    gs_separate_grad tensors[NUM_PARAMS];
    grad_case model;
    init_model(&model, env->world_size);
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        fill(data[p], 77);
        tensors[p] = (gs_separate_grad){data[p], GS_FP32};
    }
    model.separate = tensors;
    grad_rank rank;
    gs_reduce_result result;
    GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
    GS_TRY(run_step(&rank, 0, env->rank == 0 ? 2 : 1, 4, &result));
    if (data[1][99] != 4)
        return gs_error(GS_INTERNAL, "half of the mean is stale: %g", (double)data[1][99]);
    if (data[0][99] != 77) return gs_error(GS_INTERNAL, "what nobody used was touched");
    grad_rank_close(&rank);
    grad_case_release(&model);
    return gs_ok();
}

static void run_ranks(const char *body, int world_size) {
    gs_status status = gs_ranks_run(body, world_size, "", gs_deadline_in_seconds(60));
    assert_string_equal(status.message, "");
}

static void missing_gradient_does_not_keep_results_back(void **state) {
    (void)state;
    run_ranks("one_gradient_missing", 2);
}
static void what_is_unused_is_told_without_a_collective_of_its_own(void **state) {
    (void)state;
    run_ranks("nothing_sent_besides", 2);
}
static void bucket_that_one_rank_uses_travels(void **state) {
    (void)state;
    run_ranks("bucket_of_one_rank", 3);
}
static void stale_gradient_is_never_sent(void **state) {
    (void)state;
    run_ranks("stale", 2);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"one_gradient_missing", body_one_gradient_missing},
                                          {"nothing_sent_besides", body_nothing_sent_besides},
                                          {"bucket_of_one_rank", body_bucket_of_one_rank},
                                          {"stale", body_stale},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_gradient_does_not_keep_results_back),
        cmocka_unit_test(what_is_unused_is_told_without_a_collective_of_its_own),
        cmocka_unit_test(bucket_that_one_rank_uses_travels),
        cmocka_unit_test(stale_gradient_is_never_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
