// The reducer between real processes: against the serial sum, and the same bits on every rank.
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/reducer/reducer.h"
#include "tests/support/asserts.h"
#include "tests/support/grad_case.h"
#include "tests/support/soon.h"

#define MAX_WORLD 8
#define NUM_STEPS 4

// arg: "seed shards exact num_seeds"
typedef struct case_args {
    uint64_t first_seed;
    int num_shards, exact, num_seeds;
} case_args;

static case_args parse_args(const char *text) {
    case_args args = {0};
    if (sscanf(text, "%" SCNu64 " %d %d %d", &args.first_seed, &args.num_shards, &args.exact,
               &args.num_seeds) != 4)
        abort();
    return args;
}

// Random models step by step; what came out is digested over all of them.
static gs_status body_random_models(const gs_rank_env *env) {
    case_args args = parse_args(env->arg);
    uint64_t digest = 0;
    for (int i = 0; i < args.num_seeds; i++) {
        grad_case model;
        grad_case_init(&model, args.first_seed + (uint64_t)i, args.num_shards);
        model.exact = args.exact;
        model.op = model.seed % 4 == 0 ? GS_SUM : GS_MEAN;
        grad_rank rank;
        GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
        for (int64_t step = 0; step < NUM_STEPS; step++) {
            gs_reduce_result result;
            GS_TRY(gs_status_prefix(grad_rank_run_step(&rank, step, &result, soon()),
                                    "seed %" PRIu64, model.seed));
            digest = digest * 31 + grad_rank_digest(&rank);
            uint64_t norm_bits;
            memcpy(&norm_bits, &result.grad_norm, sizeof norm_bits);
            digest = digest * 31 + norm_bits;
        }
        grad_rank_close(&rank);
        grad_case_release(&model);
    }
    char text[32];
    snprintf(text, sizeof text, "%016" PRIx64, digest);
    gs_rank_note(env, text);
    return gs_ok();
}

// Runs the body in a world and returns what all ranks noted alike.
static void run_world(char note[32], int world_size, const case_args *args) {
    char text[64];
    snprintf(text, sizeof text, "%" PRIu64 " %d %d %d", args->first_seed, args->num_shards,
             args->exact, args->num_seeds);
    gs_ranks *ranks;
    gs_status statuses[MAX_WORLD];
    assert_ok(gs_ranks_start(&ranks, "random_models", world_size, text, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    for (int r = 0; r < world_size; r++) {
        assert_ok(statuses[r]);
        assert_string_equal(gs_ranks_note(ranks, r), gs_ranks_note(ranks, 0));
    }
    snprintf(note, 32, "%s", gs_ranks_note(ranks, 0));
    gs_ranks_destroy(ranks);
}

static void random_models_reduce_like_the_serial_sum_with_equal_bits(void **state) {
    (void)state;
    const int worlds[] = {2, 3, 4, 5, 8};
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        char note[32];
        run_world(note, worlds[i],
                  &(case_args){.first_seed = 100 * i,
                               .num_shards = worlds[i] + (int)(i % 3),
                               .num_seeds = worlds[i] < 5 ? 8 : 3});
    }
}

static void exact_mode_gives_the_same_bits_for_every_world(void **state) {
    (void)state;
    const struct {
        int num_shards, worlds[5];
    } cases[] = {{4, {1, 2, 3, 4}}, {3, {1, 2, 3}}, {5, {2, 5}}, {7, {3, 4}}, {8, {1, 3, 5}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char first[32] = "", note[32];
        case_args args = {.first_seed = 1000 + 10 * i,
                          .num_shards = cases[i].num_shards,
                          .exact = true,
                          .num_seeds = 3};
        for (int w = 0; w < 5 && cases[i].worlds[w]; w++) {
            run_world(note, cases[i].worlds[w], &args);
            if (!first[0]) memcpy(first, note, sizeof first);
            assert_string_equal(note, first);
        }
    }
}

// Rank 1 does not begin its second bucket before rank 0 has seen the first one reduced. A reducer
// that waited for all buckets would never get there.
static gs_status body_overlap(const gs_rank_env *env) {
    grad_case model = {.num_params = 2, .num_shards = env->world_size, .passes_per_shard = 1};
    for (size_t i = 0; i < 2; i++)
        model.params[i] = gs_param_spec_make(GS_FP32, 50000, 0, "p%zu", i);
    GS_TRY(gs_bucket_plan_parity(&model.plan, model.params, 2, 4, 4, NULL));
    grad_rank rank;
    GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
    GS_TRY(gs_reducer_begin(rank.reducer, 0));
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin_pass(rank.reducer, &pass, 1));
    grad_case_write(&model, pass.grads[1], 1, 0, pass.shard, 0, false);
    GS_TRY(gs_reducer_mark_ready(rank.reducer, 1));

    float *expected = calloc(50000, sizeof *expected);
    grad_case_reference(&model, expected, 1, 0, env->world_size);
    gs_deadline deadline = soon();
    gs_status status = gs_error(GS_DEADLINE_EXCEEDED, "bucket 0 was not reduced early");
    while (status.code && !gs_deadline_passed(deadline)) {
        GS_TRY(gs_comm_progress(rank.comm));
        float difference = ((float *)pass.grads[1])[49999] - expected[49999];
        if (difference < 1e-6f && difference > -1e-6f) status = gs_ok();
        gs_sleep_ns(GS_NS_PER_MS / 10);
    }
    free(expected);
    GS_TRY(status);
    grad_case_write(&model, pass.grads[0], 0, 0, pass.shard, 0, false);
    GS_TRY(gs_reducer_mark_ready(rank.reducer, 0));
    GS_TRY(gs_reducer_end_pass(rank.reducer));
    gs_reduce_result result;
    GS_TRY(gs_reducer_finish(rank.reducer, &result, soon()));
    if (result.samples != env->world_size) return gs_error(GS_INTERNAL, "samples are wrong");
    grad_rank_close(&rank);
    grad_case_release(&model);
    return gs_ok();
}

// 1,500 buckets, none of which can be done before the slow rank posts: more than a communicator
// holds.
static gs_status run_many_buckets(const gs_rank_env *env, gs_reducer *reducer) {
    enum { NUM_PARAMS = 1500 };
    for (int64_t step = 0; step < 3; step++) {
        gs_reducer_pass pass;
        GS_TRY(gs_reducer_begin(reducer, step));
        GS_TRY(gs_reducer_begin_pass(reducer, &pass, 1));
        for (size_t p = 0; p < NUM_PARAMS; p++) {
            for (int i = 0; i < 3; i++)
                ((float *)pass.grads[p])[i] = (float)(p + (size_t)env->rank);
            GS_TRY(gs_reducer_mark_ready(reducer, p));
        }
        gs_reduce_result result;
        GS_TRY(gs_reducer_end_pass(reducer));
        GS_TRY(gs_reducer_finish(reducer, &result, soon()));
        for (size_t p = 0; p < NUM_PARAMS; p++) {
            float expected = (float)p + 0.5f * (float)(env->world_size - 1);
            if (((float *)gs_reducer_grads(reducer)[p])[2] != expected)
                return gs_error(GS_INTERNAL, "parameter %zu is %g", p,
                                (double)((float *)gs_reducer_grads(reducer)[p])[2]);
            if (!gs_reducer_stats(reducer)->buckets[p].finished_ns)
                return gs_error(GS_INTERNAL, "bucket %zu has no times", p);
        }
        if (gs_reducer_stats(reducer)->ready_order_mismatches)
            return gs_error(GS_INTERNAL, "%d buckets out of order",
                            (int)gs_reducer_stats(reducer)->ready_order_mismatches);
    }
    return gs_ok();
}

static gs_status body_many_buckets(const gs_rank_env *env) {
    static gs_param_spec params[1500];
    for (size_t p = 0; p < 1500; p++) params[p] = gs_param_spec_make(GS_FP32, 3, 0, "p%zu", p);
    gs_reducer_options options = {.params = params,
                                  .num_params = 1500,
                                  .shards = {.num_shards = env->world_size,
                                             .world_size = env->world_size,
                                             .rank = env->rank}};
    size_t bytes;
    grad_rank side = {0};
    gs_bucket_plan plan;
    gs_reducer *reducer;
    size_t order[1500];
    for (size_t p = 0; p < 1500; p++) order[p] = p;
    GS_TRY(gs_bucket_plan_parity(&plan, params, 1500, 0, 0, order));
    options.plan = &plan;
    GS_TRY(gs_reducer_arena_bytes(&bytes, &options));
    GS_TRY(gs_device_open(&side.device, "cpu", &(gs_device_options){0}));
    GS_TRY(gs_arena_create(&side.arena, bytes));
    GS_TRY(gs_comm_create(&side.comm,
                          &(gs_comm_options){.backend = "shm",
                                             .rank = env->rank,
                                             .world_size = env->world_size,
                                             .generation = 1,
                                             .exchange = gs_rank_exchange,
                                             .exchange_ctx = env->exchange,
                                             .arena = side.arena,
                                             .device = side.device},
                          soon()));
    options.arena = side.arena;
    options.device = side.device;
    GS_TRY(gs_reducer_create(&reducer, &options, side.comm, soon()));
    gs_status status = run_many_buckets(env, reducer);
    side.reducer = reducer;
    grad_rank_close(&side);
    gs_bucket_plan_release(&plan);
    return status;
}

static void more_buckets_than_a_communicator_holds_are_reduced(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("many_buckets", 2, "", gs_deadline_in_seconds(60)));
}

static void bucket_is_reduced_while_later_ones_are_not_ready(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("overlap", 2, "", gs_deadline_in_seconds(60)));
    assert_ok(gs_ranks_run("overlap", 3, "", gs_deadline_in_seconds(60)));
}

// Rank 1 comes LATE_NS behind the post of rank 0, which waits and does not move bytes.
#define LATE_NS (20 * GS_NS_PER_MS)

static gs_status run_late_step(const gs_rank_env *env, grad_rank *rank) {
    char token = 0, tokens[2];
    gs_reducer_pass pass;
    gs_reduce_result result;
    GS_TRY(gs_reducer_begin(rank->reducer, 0));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    grad_case_write(rank->model, pass.grads[0], 0, 0, pass.shard, 0, false);
    if (env->rank == 0) GS_TRY(gs_reducer_mark_ready(rank->reducer, 0));
    GS_TRY(gs_rank_exchange(env->exchange, "posted", NULL, 0, &token, 1, tokens, soon()));
    if (env->rank == 1) {
        gs_sleep_ns(LATE_NS);
        GS_TRY(gs_reducer_mark_ready(rank->reducer, 0));
    }
    GS_TRY(gs_reducer_end_pass(rank->reducer));
    return gs_reducer_finish(rank->reducer, &result, soon());
}

static gs_status body_late(const gs_rank_env *env) {
    grad_case model = {.num_params = 1, .num_shards = env->world_size, .passes_per_shard = 1};
    model.params[0] = gs_param_spec_make(GS_FP32, 1000, 0, "p");
    GS_TRY(gs_bucket_plan_parity(&model.plan, model.params, 1, 4, 4, NULL));
    grad_rank rank;
    GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
    GS_TRY(run_late_step(env, &rank));
    const gs_reduce_stats *stats = gs_reducer_stats(rank.reducer);
    const gs_bucket_times *times = stats->buckets;
    int64_t late_ns = env->rank == 0 ? LATE_NS : 0;
    if (stats->wait_ns < late_ns || times->started_ns < times->posted_ns + late_ns ||
        stats->busy_ns > times->finished_ns - times->posted_ns - late_ns)
        return gs_error(GS_INTERNAL, "waited %lld ns, busy %lld ns", (long long)stats->wait_ns,
                        (long long)stats->busy_ns);
    grad_rank_close(&rank);
    grad_case_release(&model);
    return gs_ok();
}

static void waiting_for_a_late_rank_is_not_movement(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("late", 2, "", gs_deadline_in_seconds(60)));
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"random_models", body_random_models},
                                          {"overlap", body_overlap},
                                          {"many_buckets", body_many_buckets},
                                          {"late", body_late},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_for_a_late_rank_is_not_movement),
        cmocka_unit_test(random_models_reduce_like_the_serial_sum_with_equal_bits),
        cmocka_unit_test(exact_mode_gives_the_same_bits_for_every_world),
        cmocka_unit_test(bucket_is_reduced_while_later_ones_are_not_ready),
        cmocka_unit_test(more_buckets_than_a_communicator_holds_are_reduced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
