// The reducer in a program of one's own: N processes, one library, no coordinator.
//
//     embed_reducer [NUM_RANKS]
//
// Each rank fits y = weight · x + bias on samples of its own; all of them take the same steps.
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gradsync/gradsync.h"

enum { MAX_RANKS = 16, NUM_INPUTS = 8, NUM_SAMPLES = 32, NUM_STEPS = 200 };

// The one thing that the library asks of its host: how a few bytes of each rank reach all ranks.
// Here through memory that the processes share since fork; MPI_Allgather would do, or sockets.
typedef struct meeting_place {
    atomic_int num_arrived;
    char bytes[MAX_RANKS][65536];
} meeting_place;

typedef struct rank_env {
    int rank, world_size, num_meetings;
    meeting_place *place;
} rank_env;

static gs_status meet(rank_env *env, const char *tag, gs_deadline deadline) {
    int expected = ++env->num_meetings * env->world_size;
    atomic_fetch_add(&env->place->num_arrived, 1);
    while (atomic_load(&env->place->num_arrived) < expected) {
        if (gs_deadline_passed(deadline))
            return gs_error(GS_DEADLINE_EXCEEDED, "exchange \"%s\": a rank did not come", tag);
        gs_sleep_ns(GS_NS_PER_MS);
    }
    return gs_ok();
}

static gs_status exchange(void *ctx, const char *tag, const int *ranks, int num_ranks,
                          const void *mine, size_t bytes, void *all, gs_deadline deadline) {
    rank_env *env = ctx;
    (void)ranks;  // this program has no groups: always all
    (void)num_ranks;
    memcpy(env->place->bytes[env->rank], mine, bytes);
    GS_TRY(meet(env, tag, deadline));
    for (int r = 0; r < env->world_size; r++)
        memcpy((char *)all + (size_t)r * bytes, env->place->bytes[r], bytes);
    return meet(env, tag, deadline);  // nobody writes anew before everyone has read
}

// Gradients of the mean squared error, and the error. The truth is 1, 2, … 8 and -1.
static float run_backward(const float *weight, float bias, float *weight_grad, float *bias_grad,
                          unsigned short seed[3]) {
    float loss = 0;
    memset(weight_grad, 0, NUM_INPUTS * sizeof *weight_grad);
    *bias_grad = 0;
    for (int s = 0; s < NUM_SAMPLES; s++) {
        float x[NUM_INPUTS], difference = bias + 1;
        for (int i = 0; i < NUM_INPUTS; i++) {
            x[i] = (float)erand48(seed) * 2 - 1;
            difference += (weight[i] - (float)(i + 1)) * x[i];
        }
        loss += difference * difference / NUM_SAMPLES;
        for (int i = 0; i < NUM_INPUTS; i++) weight_grad[i] += 2 * difference * x[i] / NUM_SAMPLES;
        *bias_grad += 2 * difference / NUM_SAMPLES;
    }
    return loss;
}

// `values`: the weight's, then the bias. Returns with the rank's loss in the last step.
static gs_status take_steps(gs_reducer *reducer, gs_optimizer *optimizer, float *values,
                            const rank_env *env) {
    unsigned short seed[3] = {(unsigned short)env->rank, 2, 3};
    for (int64_t step = 0; step < NUM_STEPS; step++) {
        gs_reducer_pass pass;
        gs_reduce_result result;
        GS_TRY(gs_reducer_begin(reducer, step));
        GS_TRY(gs_reducer_begin_pass(reducer, &pass, NUM_SAMPLES));
        float loss = run_backward(values, values[NUM_INPUTS], pass.grads[0], pass.grads[1], seed);
        // A deeper model says so as each gradient becomes final: full buckets travel meanwhile.
        GS_TRY(gs_reducer_mark_ready(reducer, 1));
        GS_TRY(gs_reducer_mark_ready(reducer, 0));
        GS_TRY(gs_reducer_end_pass(reducer));
        GS_TRY(gs_reducer_finish(reducer, &result, gs_deadline_in_seconds(30)));
        GS_TRY(gs_optimizer_step(optimizer, (void *[]){values, values + NUM_INPUTS},
                                 gs_reducer_grads(reducer), result.used, 0.05f, 1));
        if (env->rank == 0 && step % 40 == 0)
            printf("step %3lld: loss %.6f\n", (long long)step, (double)loss);
    }
    return gs_ok();
}

static gs_status compare_ranks(gs_comm *comm, const float *values, const rank_env *env) {
    float all[MAX_RANKS][NUM_INPUTS + 1];
    const size_t bytes = sizeof all[0];
    GS_TRY(gs_comm_run(comm,
                       &(gs_collective){.kind = GS_ALLGATHER,
                                        .send = values,
                                        .recv = all,
                                        .count = NUM_INPUTS + 1,
                                        .dtype = GS_FP32,
                                        .bucket = -1},
                       gs_deadline_in_seconds(30)));
    for (int r = 1; r < env->world_size; r++)
        if (memcmp(all[r], all[0], bytes) != 0)
            return gs_error(GS_DATA_LOSS, "rank %d differs from rank 0", r);
    if (env->rank == 0)
        printf("weight %.3f to %.3f, bias %.3f: the same bits on %d ranks\n", (double)values[0],
               (double)values[NUM_INPUTS - 1], (double)values[NUM_INPUTS], env->world_size);
    return gs_ok();
}

static gs_status run_rank(rank_env *env) {
    gs_deadline deadline = gs_deadline_in_seconds(30);
    float values[NUM_INPUTS + 1] = {0};
    const gs_param_spec params[] = {gs_param_spec_make(GS_FP32, NUM_INPUTS, 0, "weight"),
                                    gs_param_spec_make(GS_FP32, 1, 0, "bias")};
    gs_bucket_plan plan;
    GS_TRY(gs_bucket_plan_one_host(&plan, params, 2, NULL));
    gs_reducer_options options = {.params = params,
                                  .num_params = 2,
                                  .plan = &plan,
                                  .shards = {.num_shards = env->world_size,
                                             .world_size = env->world_size,
                                             .rank = env->rank}};
    size_t arena_bytes;
    gs_comm *comm = NULL;
    gs_reducer *reducer = NULL;
    gs_optimizer *optimizer = NULL;
    GS_TRY(gs_reducer_arena_bytes(&arena_bytes, &options));
    GS_TRY(gs_arena_create(&options.arena, arena_bytes));
    gs_status status = gs_device_open(&options.device, "cpu", &(gs_device_options){0});
    if (!status.code)
        status = gs_comm_create(&comm,
                                &(gs_comm_options){.rank = env->rank,
                                                   .world_size = env->world_size,
                                                   .exchange = exchange,
                                                   .exchange_ctx = env,
                                                   .arena = options.arena,
                                                   .device = options.device},
                                deadline);
    if (!status.code) status = gs_reducer_create(&reducer, &options, comm, deadline);
    if (!status.code)
        status = gs_optimizer_create(&optimizer,
                                     &(gs_optimizer_options){.kind = "sgd", .momentum = 0.9f},
                                     params, NULL, 2, options.device);
    if (!status.code) status = take_steps(reducer, optimizer, values, env);
    if (!status.code) status = compare_ranks(comm, values, env);
    gs_optimizer_destroy(optimizer);
    gs_reducer_destroy(reducer);
    gs_comm_destroy(comm);
    gs_device_close(options.device);
    gs_arena_destroy(options.arena);
    gs_bucket_plan_release(&plan);
    return status;
}

int main(int argc, char **argv) {
    rank_env env = {.world_size = argc > 1 ? atoi(argv[1]) : 3};
    env.place =
        mmap(NULL, sizeof *env.place, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (env.world_size < 1 || env.world_size > MAX_RANKS || env.place == MAP_FAILED) return 2;
    for (env.rank = 0; env.rank < env.world_size; env.rank++) {
        if (fork() != 0) continue;
        gs_status status = run_rank(&env);
        if (status.code) fprintf(stderr, "rank %d: %s\n", env.rank, status.message);
        fflush(stdout);
        _exit(status.code != GS_OK);
    }
    int failed = 0, wait_status;
    while (wait(&wait_status) > 0) failed |= wait_status;
    return failed != 0;
}
