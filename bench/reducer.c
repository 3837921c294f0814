// What the reducer costs: bookkeeping of each tensor, and a step of two ranks against a step of
// one.
//
// The backward pass is a fill of each gradient, so that the reducer has nothing to hide behind: on
// one host every microsecond of communication is exposed. Two processes run in both cases, so that
// caches and memory are shared alike; alone they do not talk.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradsync/optim/optimizer.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/ranks.h"

#define MAX_PARAMS 1024
#define MAX_STEPS 2048

typedef struct shape_set {
    const char *name;
    gs_param_spec params[MAX_PARAMS];
    size_t num_params, num_steps;
} shape_set;

static void add_param(shape_set *set, int64_t rows, int64_t cols) {
    set->params[set->num_params] = gs_param_spec_make(GS_FP32, rows, cols, "p%zu", set->num_params);
    set->num_params++;
}

static void make_small(shape_set *set) {
    *set = (shape_set){.name = "1,000 tensors of 1 KiB", .num_steps = 1000};
    for (int i = 0; i < 1000; i++) add_param(set, 256, 0);
}

// Seven transformer blocks of 512 channels, a vocabulary of 4,096, 512 positions: 25.4 M
// parameters.
static void make_large(shape_set *set) {
    *set = (shape_set){.name = "25 M parameters", .num_steps = 40};
    add_param(set, 4096, 512);
    add_param(set, 512, 512);
    for (int layer = 0; layer < 7; layer++) {
        const int64_t shapes[][2] = {{512, 0},    {512, 0},  {1536, 512}, {1536, 0},
                                     {512, 512},  {512, 0},  {512, 0},    {512, 0},
                                     {2048, 512}, {2048, 0}, {512, 2048}, {512, 0}};
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            add_param(set, shapes[i][0], shapes[i][1]);
    }
    add_param(set, 512, 0);
    add_param(set, 512, 0);
}

typedef struct bench_rank {
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
} bench_rank;

static gs_status open_rank(bench_rank *rank, const shape_set *set, const gs_rank_env *env,
                           bool alone) {
    gs_deadline deadline = gs_deadline_in_seconds(20);
    int world_size = alone ? 1 : env->world_size, number = alone ? 0 : env->rank;
    gs_bucket_plan plan;
    GS_TRY(gs_bucket_plan_one_host(&plan, set->params, set->num_params, NULL));
    gs_reducer_options options = {
        .params = set->params,
        .num_params = set->num_params,
        .plan = &plan,
        .shards = {.num_shards = world_size, .world_size = world_size, .rank = number}};
    size_t bytes;
    GS_TRY(gs_reducer_arena_bytes(&bytes, &options));
    GS_TRY(gs_device_open(&rank->device, "cpu", &(gs_device_options){.num_threads = 1}));
    GS_TRY(gs_arena_create(&rank->arena, bytes));
    GS_TRY(gs_comm_create(&rank->comm,
                          &(gs_comm_options){.backend = alone ? "self" : "shm",
                                             .rank = number,
                                             .world_size = world_size,
                                             .generation = 1,
                                             .exchange = alone ? NULL : gs_rank_exchange,
                                             .exchange_ctx = alone ? NULL : env->exchange,
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

typedef struct step_times {
    int64_t step_ns, marks_ns;
} step_times;

// One step; `writes` false leaves the gradients alone: bookkeeping only.
static gs_status run_step(bench_rank *rank, const shape_set *set, int64_t step, bool writes,
                          step_times *times) {
    const gs_kernels *kernels = gs_device_kernels(rank->device);
    gs_reducer_pass pass;
    gs_reduce_result result;
    int64_t begin_ns = gs_now_ns();
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    int64_t marks_begin_ns = gs_now_ns();
    for (size_t i = set->num_params; i-- > 0;) {
        if (writes)
            kernels->fill(gs_device_stream(rank->device), pass.grads[i], 1,
                          gs_param_spec_count(&set->params[i]));
        gs_reducer_ready_callback(rank->reducer, i);
    }
    times->marks_ns = gs_now_ns() - marks_begin_ns;
    GS_TRY(gs_reducer_end_pass(rank->reducer));
    GS_TRY(gs_reducer_finish(rank->reducer, &result, gs_deadline_in_seconds(20)));
    times->step_ns = gs_now_ns() - begin_ns;
    return gs_ok();
}

static int compare_ns(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return left < right ? -1 : left > right;
}

typedef struct medians {
    double step_ns, marks_ns, exposed_ns, busy_ns;
} medians;

static gs_status run_steps(medians *out, const shape_set *set, const gs_rank_env *env, bool alone,
                           bool writes) {
    static int64_t step_ns[MAX_STEPS], marks_ns[MAX_STEPS], exposed_ns[MAX_STEPS],
        busy_ns[MAX_STEPS];
    bench_rank rank;
    GS_TRY(open_rank(&rank, set, env, alone));
    for (size_t i = 0; i < set->num_steps; i++) {
        step_times times;
        GS_TRY(run_step(&rank, set, (int64_t)i, writes, &times));
        step_ns[i] = times.step_ns;
        marks_ns[i] = times.marks_ns;
        exposed_ns[i] = gs_reducer_stats(rank.reducer)->exposed_ns;
        busy_ns[i] = gs_reducer_stats(rank.reducer)->busy_ns;
    }
    close_rank(&rank);
    int64_t *lists[] = {step_ns, marks_ns, exposed_ns, busy_ns};
    double values[4];
    for (int l = 0; l < 4; l++) {
        qsort(lists[l], set->num_steps, sizeof *lists[l], compare_ns);
        values[l] = (double)lists[l][set->num_steps / 2];
    }
    *out = (medians){values[0], values[1], values[2], values[3]};
    return gs_ok();
}

// arg: "small|large alone|together"
static gs_status body_steps(const gs_rank_env *env) {
    static shape_set set;
    if (strstr(env->arg, "small"))
        make_small(&set);
    else
        make_large(&set);
    medians result;
    GS_TRY(run_steps(&result, &set, env, strstr(env->arg, "alone"), true));
    char note[128];
    snprintf(note, sizeof note, "%.0f %.0f %.0f %.0f", result.step_ns, result.marks_ns,
             result.exposed_ns, result.busy_ns);
    gs_rank_note(env, note);
    return gs_ok();
}

// The slower of two ranks.
static gs_status run_ranks(medians *out, const char *arg) {
    gs_ranks *ranks;
    gs_status statuses[2];
    GS_TRY(gs_ranks_start(&ranks, "steps", 2, arg, NULL));
    gs_status status = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(120));
    for (int r = 0; r < 2 && !status.code; r++) status = statuses[r];
    *out = (medians){0};
    for (int r = 0; r < 2 && !status.code; r++) {
        medians m;
        if (sscanf(gs_ranks_note(ranks, r), "%lf %lf %lf %lf", &m.step_ns, &m.marks_ns,
                   &m.exposed_ns, &m.busy_ns) != 4)
            status = gs_error(GS_INTERNAL, "rank %d: no result", r);
        else if (m.step_ns > out->step_ns)
            *out = m;
    }
    gs_ranks_destroy(ranks);
    return status;
}

// The median of AdamW steps over tensors whose gradients lie as the reducer lays them.
static gs_status time_updates(double *step_ns, const shape_set *set) {
    static int64_t list[MAX_STEPS];
    static void *values[MAX_PARAMS];
    bench_rank rank;
    GS_TRY(open_rank(&rank, set, NULL, true));
    const gs_optimizer_options options = {
        .kind = "adamw", .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
    gs_optimizer *optimizer = NULL;
    size_t total_bytes = 0;
    for (size_t i = 0; i < set->num_params; i++)
        total_bytes += gs_param_spec_bytes(&set->params[i]);
    char *memory = calloc(1, total_bytes), *at = memory;
    for (size_t i = 0; i < set->num_params; at += gs_param_spec_bytes(&set->params[i++]))
        values[i] = at;
    gs_status status = memory ? gs_optimizer_create(&optimizer, &options, set->params, NULL,
                                                    set->num_params, rank.device)
                              : gs_error(GS_RESOURCE_EXHAUSTED, "values: out of memory");
    for (size_t i = 0; i < set->num_steps && !status.code; i++) {
        int64_t begin_ns = gs_now_ns();
        status =
            gs_optimizer_step(optimizer, values, gs_reducer_grads(rank.reducer), NULL, 1e-3f, 1);
        list[i] = gs_now_ns() - begin_ns;
    }
    qsort(list, set->num_steps, sizeof *list, compare_ns);
    *step_ns = (double)list[set->num_steps / 2];
    gs_optimizer_destroy(optimizer);
    free(memory);
    close_rank(&rank);
    return status;
}

// The same number of elements in many tensors and in one: the difference is what a tensor costs.
static gs_status print_updates(void) {
    static shape_set set;
    double many_ns, one_ns;
    make_small(&set);
    double num_params = (double)set.num_params;
    GS_TRY(time_updates(&many_ns, &set));
    set.num_params = 0;
    add_param(&set, 256, 1000);
    GS_TRY(time_updates(&one_ns, &set));
    printf("  AdamW            %8.0f ns per tensor, %.0f of them not the elements\n\n",
           many_ns / num_params, (many_ns - one_ns) / num_params);
    return gs_ok();
}

static gs_status print_bookkeeping(void) {
    static shape_set set;
    medians result;
    make_small(&set);
    GS_TRY(run_steps(&result, &set, NULL, true, false));
    double num_params = (double)set.num_params;
    printf("bookkeeping, one rank, %s, nothing written\n", set.name);
    printf("  marks            %8.0f ns per tensor (aim 500)\n", result.marks_ns / num_params);
    printf("  whole step       %8.0f ns per tensor, norm included\n", result.step_ns / num_params);
    return print_updates();
}

static gs_status print_steps(const char *name, const char *shapes) {
    medians alone, together;
    char arg[32];
    snprintf(arg, sizeof arg, "%s alone", shapes);
    GS_TRY(run_ranks(&alone, arg));
    snprintf(arg, sizeof arg, "%s together", shapes);
    GS_TRY(run_ranks(&together, arg));
    printf("%-24s %12.3f %12.3f %12.3f %12.3f %12.3f\n", name, alone.step_ns / 1e6,
           together.step_ns / 1e6, (together.step_ns - alone.step_ns) / 1e6,
           together.exposed_ns / 1e6, together.busy_ns / 1e6);
    return gs_ok();
}

static gs_status run_all(void) {
    GS_TRY(print_bookkeeping());
    printf("steps of two processes, median ms\n%-24s %12s %12s %12s %12s %12s\n", "", "alone",
           "together", "difference", "exposed", "busy");
    GS_TRY(print_steps("1,000 tensors of 1 KiB", "small"));
    return print_steps("25 M parameters", "large");
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"steps", body_steps}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    gs_status status = run_all();
    if (status.code) fprintf(stderr, "bench_reducer: %s\n", status.message);
    return status.code != GS_OK;
}
