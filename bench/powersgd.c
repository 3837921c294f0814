// What PowerSGD costs a rank beside its collectives: the CPU time of the thread that calls the
// hook, within the hook's functions, on the gradients of a 25 M-parameter MLP.
// bench/powersgd_peer.py does the same with PyTorch's; bench/powersgd.sh runs them in turns.
//
//   bench_powersgd [RANKS [STEPS [BUCKET_MIB]]]
//
// Processes are pinned, with one thread each for computation. Gradients are drawn, not computed.
// The shared-memory collectives are run by threads of their own, so that what is counted holds
// posting them, and nothing of their sums. Rows: model, rank of the factors, ranks, µs of a step
// (of the rank that spent most).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/measure.h"
#include "core/random.h"
#include "gradsync/hooks/comm_hook.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/ranks.h"

#define NUM_LAYERS 5
#define NUM_PARAMS ((size_t)2 * NUM_LAYERS)
#define WARM_STEPS 5
#define START_STEP 2
#define WAIT_SECONDS 120.0

typedef struct bench_rank {
    const gs_rank_env *env;
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
} bench_rank;

static void must(gs_status status) {
    if (!status.code) return;
    fprintf(stderr, "bench_powersgd: %s\n", status.message);
    exit(1);
}

// ---- the hook, with a clock around its functions

static const gs_comm_hook *powersgd;
static int64_t spent_ns;

static int64_t thread_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static gs_status run_counted(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    const int64_t began_ns = thread_ns();
    gs_status status = powersgd->run(state, bucket, work);
    spent_ns += thread_ns() - began_ns;
    return status;
}

static gs_status finish_counted(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                                gs_deadline deadline) {
    const int64_t began_ns = thread_ns();
    gs_status status = powersgd->finish(state, bucket, result, deadline);
    spent_ns += thread_ns() - began_ns;
    return status;
}

static void commit_counted(void *state) {
    const int64_t began_ns = thread_ns();
    powersgd->commit(state);
    spent_ns += thread_ns() - began_ns;
}

// ---- a rank

static void describe_params(bench_rank *rank) {
    static const int64_t dims[NUM_LAYERS + 1] = {1024, 3072, 3072, 3072, 1024, 10};
    for (int i = 0; i < NUM_LAYERS; i++) {
        rank->params[2 * i] = gs_param_spec_make(GS_FP32, dims[i + 1], dims[i], "weight.%d", i);
        rank->params[2 * i + 1] = gs_param_spec_make(GS_FP32, dims[i + 1], 0, "bias.%d", i);
    }
}

static void open_rank(bench_rank *rank, const gs_hook_choice *choice, uint64_t bucket_bytes) {
    must(gs_device_open(&rank->device, "cpu", &(gs_device_options){.num_threads = 1}));
    describe_params(rank);
    must(gs_bucket_plan_parity(&rank->plan, rank->params, NUM_PARAMS, 1 << 20, bucket_bytes, NULL));
    gs_reducer_options options = {.params = rank->params,
                                  .num_params = NUM_PARAMS,
                                  .plan = &rank->plan,
                                  .shards = {.num_shards = rank->env->world_size,
                                             .world_size = rank->env->world_size,
                                             .rank = rank->env->rank},
                                  .hooks = choice,
                                  .num_hooks = 1,
                                  .device = rank->device};
    size_t bytes;
    must(gs_reducer_arena_bytes(&bytes, &options));
    must(gs_arena_create(&rank->arena, bytes));
    options.arena = rank->arena;
    gs_comm_options connection = {.backend = "shm",
                                  .rank = rank->env->rank,
                                  .world_size = rank->env->world_size,
                                  .generation = 1,
                                  .exchange = gs_rank_exchange,
                                  .exchange_ctx = rank->env->exchange,
                                  .arena = rank->arena,
                                  .device = rank->device};
    must(gs_reducer_lanes(&connection.num_lanes, &options));
    must(gs_comm_create(&rank->comm, &connection, gs_deadline_in_seconds(WAIT_SECONDS)));
    must(gs_reducer_create(&rank->reducer, &options, rank->comm,
                           gs_deadline_in_seconds(WAIT_SECONDS)));
}

static void close_rank(bench_rank *rank) {
    gs_reducer_destroy(rank->reducer);
    gs_comm_destroy(rank->comm);
    gs_arena_destroy(rank->arena);
    gs_device_close(rank->device);
    gs_bucket_plan_release(&rank->plan);
}

// Of the rank that spent most; all return together.
static double run_step(bench_rank *rank, int64_t step) {
    gs_reducer_pass pass;
    gs_reduce_result result;
    spent_ns = 0;
    must(gs_reducer_begin(rank->reducer, step));
    must(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    for (size_t i = NUM_PARAMS; i-- > 0;) {
        const gs_random_key key = {(uint64_t)step + 1, (uint64_t)rank->env->rank * 64 + i};
        gs_random_fill_uniform((float *)pass.grads[i], gs_param_spec_count(&rank->params[i]), key,
                               0, -1.0f, 1.0f);
        must(gs_reducer_mark_ready(rank->reducer, i));
    }
    must(gs_reducer_end_pass(rank->reducer));
    must(gs_reducer_finish(rank->reducer, &result, gs_deadline_in_seconds(WAIT_SECONDS)));
    must(gs_reducer_commit(rank->reducer));
    double spent_us = (double)spent_ns / 1e3;
    must(gs_comm_run(rank->comm,
                     &(gs_collective){.kind = GS_ALLREDUCE,
                                      .send = &spent_us,
                                      .recv = &spent_us,
                                      .count = 1,
                                      .dtype = GS_FP64,
                                      .op = GS_OP_MAX,
                                      .bucket = -1},
                     gs_deadline_in_seconds(WAIT_SECONDS)));
    return spent_us;
}

// arg: "RANK_OF_FACTORS STEPS BUCKET_MIB"
static gs_status body_hook(const gs_rank_env *env) {
    int factors, num_steps, bucket_mib;
    if (sscanf(env->arg, "%d %d %d", &factors, &num_steps, &bucket_mib) != 3)
        return gs_error(GS_INVALID_ARGUMENT, "arguments: %s", env->arg);
    measure_pin(env->rank);
    powersgd = gs_comm_hook_find("powersgd");
    gs_comm_hook counted = *powersgd;
    counted.run = run_counted;
    counted.finish = finish_counted;
    counted.commit = commit_counted;
    const gs_hook_number numbers[] = {{"rank", factors}, {"start_step", START_STEP}};
    const gs_hook_choice choice = {.hook = &counted, .numbers = numbers, .num_numbers = 2};
    bench_rank rank = {.env = env};
    open_rank(&rank, &choice, (uint64_t)bucket_mib << 20);
    for (int64_t step = 0; step < WARM_STEPS + num_steps; step++) {
        const double spent_us = run_step(&rank, step);
        if (env->rank == 0 && step >= WARM_STEPS)
            printf("mlp-25m %d %d %.1f\n", factors, env->world_size, spent_us);
    }
    fflush(stdout);
    close_rank(&rank);
    return gs_ok();
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"hook", body_hook}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const int num_ranks = argc > 1 ? atoi(argv[1]) : 2, num_steps = argc > 2 ? atoi(argv[2]) : 10;
    const int bucket_mib = argc > 3 ? atoi(argv[3]) : 25;
    if (num_ranks < 2 || num_steps < 1 || bucket_mib < 1) return 2;
    for (int factors = 1; factors <= 2; factors++) {
        char arg[64];
        snprintf(arg, sizeof arg, "%d %d %d", factors, num_steps, bucket_mib);
        gs_status status = gs_ranks_run("hook", num_ranks, arg, gs_deadline_in_seconds(600));
        if (status.code) {
            fprintf(stderr, "bench_powersgd: %s\n", status.message);
            return 1;
        }
    }
    return 0;
}
