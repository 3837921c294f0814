// What a wire dtype costs and saves: one bucket of 25 MiB between two ranks of a host, and four, as it lies
// and as 16 bits. The three take turns, so that a busy machine disturbs them alike. A step's time is that of its
// slowest rank, from mark to the end of finish; printed are medians, and the median of a step's time by that of
// the fp32 step before it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradsync/reducer/reducer.h"
#include "tests/support/ranks.h"

#define COUNT ((size_t)25 << 18)  // elements of 25 MiB
#define NUM_STEPS 41
#define NUM_KINDS 3
#define MAX_RANKS 4

static const struct {
    const char *name;
    gs_dtype dtype;
} kinds[NUM_KINDS] = {{"fp32", GS_DTYPE_UNSET}, {"bf16", GS_BF16}, {"fp16", GS_FP16}};

typedef struct bench_rank {
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    int64_t step_ns[NUM_STEPS];
    double sorted_ns[NUM_STEPS];
} bench_rank;

static gs_status open_rank(bench_rank *rank, const gs_rank_env *env, size_t kind) {
    gs_deadline deadline = gs_deadline_in_seconds(20);
    gs_param_spec param = gs_param_spec_make(GS_FP32, (int64_t)COUNT, 0, "p");
    gs_bucket_plan plan;
    GS_TRY(gs_bucket_plan_parity(&plan, &param, 1, COUNT * 4, COUNT * 4, NULL));
    gs_reducer_options options = {.params = &param,
                                  .num_params = 1,
                                  .plan = &plan,
                                  .wire_dtype = kinds[kind].dtype,
                                  .shards = {.num_shards = env->world_size,
                                             .world_size = env->world_size,
                                             .rank = env->rank}};
    size_t bytes;
    GS_TRY(gs_reducer_arena_bytes(&bytes, &options));
    GS_TRY(gs_device_open(&rank->device, "cpu", &(gs_device_options){.num_threads = 1}));
    GS_TRY(gs_arena_create(&rank->arena, bytes));
    GS_TRY(gs_comm_create(&rank->comm,
                          &(gs_comm_options){.backend = "shm",
                                             .rank = env->rank,
                                             .world_size = env->world_size,
                                             .generation = 1 + (uint32_t)kind,
                                             .exchange = gs_rank_exchange,
                                             .exchange_ctx = env->exchange,
                                             .arena = rank->arena,
                                             .device = rank->device},
                          deadline));
    options.arena = rank->arena;
    options.device = rank->device;
    gs_status status = gs_reducer_create(&rank->reducer, &options, rank->comm, deadline);
    gs_bucket_plan_release(&plan);
    return status;
}

static void close_rank(bench_rank *rank) {
    gs_reducer_destroy(rank->reducer);
    gs_comm_destroy(rank->comm);
    gs_arena_destroy(rank->arena);
    gs_device_close(rank->device);
}

static gs_status run_step(bench_rank *rank, int64_t step) {
    gs_reducer_pass pass;
    gs_reduce_result result;
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    gs_device_kernels(rank->device)
        ->fill(gs_device_stream(rank->device), pass.grads[0], 1.5f, COUNT);
    // Both ranks start together, so that neither's time is a wait for the other.
    GS_TRY(gs_comm_run(rank->comm, &(gs_collective){.kind = GS_BARRIER, .step = step, .bucket = -1},
                       gs_deadline_in_seconds(20)));
    int64_t begin_ns = gs_now_ns();
    GS_TRY(gs_reducer_mark_ready(rank->reducer, 0));
    GS_TRY(gs_reducer_end_pass(rank->reducer));
    GS_TRY(gs_reducer_finish(rank->reducer, &result, gs_deadline_in_seconds(20)));
    rank->step_ns[step] = gs_now_ns() - begin_ns;
    return gs_ok();
}

static int compare_numbers(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

// A step is as long as its slowest rank's.
static gs_status take_slowest(bench_rank *ranks, const gs_rank_env *env) {
    for (size_t k = 0; k < NUM_KINDS; k++) {
        int64_t all[MAX_RANKS][NUM_STEPS];
        char tag[16];
        snprintf(tag, sizeof tag, "times %zu", k);
        GS_TRY(gs_rank_exchange(env->exchange, tag, NULL, 0, ranks[k].step_ns, sizeof all[0], all,
                                gs_deadline_in_seconds(20)));
        for (int r = 0; r < env->world_size; r++) {
            for (size_t i = 0; i < NUM_STEPS; i++) {
                if (all[r][i] > ranks[k].step_ns[i]) ranks[k].step_ns[i] = all[r][i];
            }
        }
        for (size_t i = 0; i < NUM_STEPS; i++) ranks[k].sorted_ns[i] = (double)ranks[k].step_ns[i];
    }
    return gs_ok();
}

static double median_ratio(const int64_t *times, const int64_t *base) {
    double ratios[NUM_STEPS];
    for (size_t i = 0; i < NUM_STEPS; i++) ratios[i] = (double)times[i] / (double)base[i];
    qsort(ratios, NUM_STEPS, sizeof *ratios, compare_numbers);
    return ratios[NUM_STEPS / 2];
}

static gs_status body_steps(const gs_rank_env *env) {
    static bench_rank ranks[NUM_KINDS];
    char note[256] = "";
    for (size_t k = 0; k < NUM_KINDS; k++) GS_TRY(open_rank(&ranks[k], env, k));
    for (int64_t step = 0; step < NUM_STEPS; step++)
        for (size_t k = 0; k < NUM_KINDS; k++) GS_TRY(run_step(&ranks[k], step));
    GS_TRY(take_slowest(ranks, env));
    for (size_t k = 0; k < NUM_KINDS; k++) {
        char *end = note + strlen(note);
        double ratio = median_ratio(ranks[k].step_ns, ranks[0].step_ns);
        uint64_t bytes = gs_reducer_stats(ranks[k].reducer)->buckets[0].wire_bytes;
        qsort(ranks[k].sorted_ns, NUM_STEPS, sizeof(double), compare_numbers);
        snprintf(end, sizeof note - (size_t)(end - note), "%.0f %.4f %llu ",
                 ranks[k].sorted_ns[NUM_STEPS / 2], ratio, (unsigned long long)bytes);
    }
    gs_rank_note(env, note);
    for (size_t k = 0; k < NUM_KINDS; k++) close_rank(&ranks[k]);
    return gs_ok();
}

static gs_status print_results(const gs_ranks *ranks, int world_size) {
    printf("25 MiB of gradients, %d ranks, median of %d\n", world_size, NUM_STEPS);
    const char *note = gs_ranks_note(ranks, 0);
    for (size_t k = 0; k < NUM_KINDS; k++) {
        double ns, ratio;
        unsigned long long bytes;
        int used = 0;
        if (sscanf(note, "%lf %lf %llu %n", &ns, &ratio, &bytes, &used) != 3)
            return gs_error(GS_INTERNAL, "no result");
        note += used;
        printf("  %s  %8.2f ms  %5.2f x fp32  %9llu bytes sent by a rank\n", kinds[k].name, ns / 1e6,
               ratio, bytes);
    }
    return gs_ok();
}

static gs_status run_world(int world_size) {
    gs_ranks *ranks;
    gs_status statuses[MAX_RANKS], status = gs_ranks_start(&ranks, "steps", world_size, "", NULL);
    if (status.code) return status;
    status = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(120));
    for (int r = 0; r < world_size && !status.code; r++) status = statuses[r];
    if (!status.code) status = print_results(ranks, world_size);
    gs_ranks_destroy(ranks);
    return status;
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"steps", body_steps}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    gs_status status = run_world(2);
    if (!status.code) status = run_world(4);
    if (status.code) fprintf(stderr, "bench_wire: %s\n", status.message);
    return status.code != GS_OK;
}
