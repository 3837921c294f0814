// What reduction costs in real training: a step of two ranks minus the same step without the other
// one. bench/ddp_peer.py does the same with PyTorch's DDP; bench/ddp.sh runs them in turns.
//
//   bench_ddp [ROUNDS [STEPS]]
//
// Two processes, pinned, one thread each. In a round both take STEPS local steps at the same time
// (caches and memory are shared alike), then STEPS reduced ones; a step is that of the slower rank.
// Rows: model, variant, local µs, reduced µs (medians of a round), stall µs (switch of the plan).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/measure.h"
#include "core/random.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/ranks.h"
#include "worker/models/registry.h"

#define MAX_PARAMS 1100
#define MAX_STEPS 1000
#define NUM_EXTRA 16
#define WAIT_SECONDS 60.0

// A model whose gradients are final one after the other, or 1,000 tensors of 1 KiB, each the
// product of an input and a number.
typedef struct workload {
    const char *name;
    gs_model model;  // the MLP; else none
    gs_batch batch;
    gs_param_spec params[MAX_PARAMS];
    size_t num_params, num_model_params;  // behind the model's: extra ones, used or not
    void *values[MAX_PARAMS];
    void *grads[MAX_PARAMS];  // of this process alone
    float *input;
} workload;

typedef struct variant {
    const char *name;
    bool separate;       // gradients of the caller's own, copied in and out
    bool extra, marked;  // 16 parameters of 2 KiB behind the model's; marked although unused
    bool replans;        // the other order of the parameters at every round's first step
} variant;

static const variant variants[] = {
    {.name = "views"},
    {.name = "separate", .separate = true},
    {.name = "all-used", .extra = true, .marked = true},
    {.name = "some-unused", .extra = true},
    {.name = "replan", .replans = true},
};
#define NUM_VARIANTS (sizeof variants / sizeof variants[0])

typedef struct bench_rank {
    const gs_rank_env *env;
    const variant *variant;
    workload *work;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    gs_bucket_plan plans[2];
    int64_t step;
} bench_rank;

static void must(gs_status status) {
    if (!status.code) return;
    fprintf(stderr, "bench_ddp: %s\n", status.message);
    exit(1);
}

static void *must_alloc(size_t count) {
    void *memory = aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
    if (!memory) must(gs_error(GS_RESOURCE_EXHAUSTED, "out of memory"));
    return memset(memory, 0, count * sizeof(float));
}

static void add_param(workload *work, gs_param_spec spec) {
    size_t count = gs_param_spec_count(&spec), i = work->num_params++;
    work->params[i] = spec;
    work->values[i] = must_alloc(count);
    work->grads[i] = must_alloc(count);
}

// 25.2 M parameters.
static void open_mlp(workload *work, gs_device *device) {
    static const int64_t dims[] = {1024, 3072, 3072, 3072, 1024, 10};
    enum { ROWS = 32 };
    work->name = "mlp-25m";
    must(gs_mlp_create(
        &work->model, &(gs_mlp_options){.dims = dims, .num_dims = 6, .micro_batch = ROWS}, device));
    size_t num_params;
    const gs_model_param *params = work->model.ops->params(work->model.state, &num_params);
    for (size_t i = 0; i < num_params; i++) add_param(work, params[i].spec);
    must(work->model.ops->init(work->model.state, work->values, NULL, 1));
    static int32_t targets[ROWS];
    work->input = must_alloc(ROWS * 1024);
    gs_random_fill_normal(work->input, ROWS * 1024, (gs_random_key){1, 2}, 0, 0, 1);
    work->batch = (gs_batch){.rows = ROWS,
                             .positions = 1,
                             .row_features = 1024,
                             .features = work->input,
                             .targets = targets};
}

static void open_small(workload *work) {
    work->name = "small-1000";
    work->input = must_alloc(256);
    gs_random_fill_normal(work->input, 256, (gs_random_key){1, 2}, 0, 0, 1);
    for (int i = 0; i < 1000; i++)
        add_param(work, gs_param_spec_make(GS_FP32, 256, 0, "small.%d", i));
}

static void close_work(workload *work) {
    for (size_t i = 0; i < work->num_params; i++) {
        free(work->values[i]);
        free(work->grads[i]);
    }
    free(work->input);
    gs_model_destroy(&work->model);
}

static void run_small(workload *work, gs_model_pass *pass) {
    for (size_t i = work->num_model_params; i-- > 0;) {
        float factor = 1.0f + (float)i;
        for (size_t j = 0; j < 256; j++) ((float *)pass->grads[i])[j] = factor * work->input[j];
        __asm__ volatile("" : : "r"(pass->grads[i]) : "memory");
        if (pass->ready) pass->ready(pass->ready_ctx, i);
    }
}

static void run_passes(bench_rank *rank, void *const *grads, gs_reducer *reducer) {
    workload *work = rank->work;
    gs_model_pass pass = {.batch = &work->batch,
                          .training = true,
                          .step = rank->step,
                          .params = work->values,
                          .grads = grads,
                          .grad_factor = 1};
    if (reducer) {
        pass.ready = gs_reducer_ready_callback;
        pass.ready_ctx = reducer;
    }
    if (work->model.ops) {
        must(work->model.ops->forward(work->model.state, &pass));
        must(work->model.ops->backward(work->model.state, &pass));
    } else {
        run_small(work, &pass);
    }
    if (!reducer || !rank->variant->marked) return;
    for (size_t i = work->num_model_params; i < work->num_params; i++)
        gs_reducer_ready_callback(reducer, i);
}

static void run_reduced_step(bench_rank *rank) {
    gs_reducer_pass pass;
    gs_reduce_result result;
    must(gs_reducer_begin(rank->reducer, rank->step));
    must(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    run_passes(rank, rank->variant->separate ? rank->work->grads : pass.grads, rank->reducer);
    must(gs_reducer_end_pass(rank->reducer));
    must(gs_reducer_finish(rank->reducer, &result, gs_deadline_in_seconds(WAIT_SECONDS)));
    rank->step++;
}

static void open_reducer(bench_rank *rank) {
    workload *work = rank->work;
    static gs_separate_grad separate[MAX_PARAMS];
    size_t order[MAX_PARAMS];
    for (size_t i = 0; i < work->num_params; i++) {
        separate[i] = (gs_separate_grad){work->grads[i], GS_FP32};
        order[i] = i;
    }
    must(gs_bucket_plan_one_host(&rank->plans[0], work->params, work->num_params, NULL));
    must(gs_bucket_plan_one_host(&rank->plans[1], work->params, work->num_params, order));
    gs_reducer_options options = {.params = work->params,
                                  .num_params = work->num_params,
                                  .plan = &rank->plans[0],
                                  .separate = rank->variant->separate ? separate : NULL,
                                  .device = rank->device,
                                  .shards = {.num_shards = rank->env->world_size,
                                             .world_size = rank->env->world_size,
                                             .rank = rank->env->rank}};
    size_t bytes;
    must(gs_reducer_arena_bytes(&bytes, &options));
    must(gs_arena_create(&rank->arena, bytes));
    must(gs_comm_create(&rank->comm,
                        &(gs_comm_options){.backend = "shm",
                                           .rank = rank->env->rank,
                                           .world_size = rank->env->world_size,
                                           .generation = 1,
                                           .exchange = gs_rank_exchange,
                                           .exchange_ctx = rank->env->exchange,
                                           .arena = rank->arena,
                                           .device = rank->device},
                        gs_deadline_in_seconds(WAIT_SECONDS)));
    options.arena = rank->arena;
    must(gs_reducer_create(&rank->reducer, &options, rank->comm,
                           gs_deadline_in_seconds(WAIT_SECONDS)));
}

static void close_reducer(bench_rank *rank) {
    gs_reducer_destroy(rank->reducer);
    gs_comm_destroy(rank->comm);
    gs_arena_destroy(rank->arena);
    for (int i = 0; i < 2; i++) gs_bucket_plan_release(&rank->plans[i]);
}

// Of the slower rank, one by one.
static void take_slower(bench_rank *rank, double *times, int count) {
    must(gs_comm_run(rank->comm,
                     &(gs_collective){.kind = GS_ALLREDUCE,
                                      .send = times,
                                      .recv = times,
                                      .count = (size_t)count,
                                      .dtype = GS_FP64,
                                      .op = GS_OP_MAX,
                                      .bucket = -1},
                     gs_deadline_in_seconds(WAIT_SECONDS)));
}

static double run_round(bench_rank *rank, int num_steps, bool reduced, int round, double *first) {
    static double times[MAX_STEPS];
    take_slower(rank, times, 1);  // both begin now
    for (int i = 0; i < num_steps; i++) {
        int64_t began_ns = gs_now_ns();
        if (reduced && i == 0 && rank->variant->replans)
            must(gs_reducer_set_plan(rank->reducer, &rank->plans[(round + 1) % 2],
                                     gs_deadline_in_seconds(WAIT_SECONDS)));
        if (reduced)
            run_reduced_step(rank);
        else
            run_passes(rank, rank->work->grads, NULL);
        times[i] = (double)(gs_now_ns() - began_ns) / 1e3;
    }
    take_slower(rank, times, num_steps);
    *first = times[0];
    return measure_quantile(times, num_steps, 0.5);
}

static void run_variant(bench_rank *rank, int num_rounds, int num_steps) {
    double first_local, first;
    static workload work;
    work = (workload){.name = "small-1000"};
    must(gs_device_open(&rank->device, "cpu", &(gs_device_options){.num_threads = 1}));
    if (strstr(rank->env->arg, "mlp"))
        open_mlp(&work, rank->device);
    else
        open_small(&work);
    work.num_model_params = work.num_params;
    for (int i = 0; i < NUM_EXTRA && rank->variant->extra; i++)
        add_param(&work, gs_param_spec_make(GS_FP32, 512, 0, "extra.%d", i));
    rank->work = &work;
    open_reducer(rank);
    for (int i = 0; i < 3; i++) run_reduced_step(rank);  // warm
    for (int round = 0; round < num_rounds; round++) {
        double local = run_round(rank, num_steps, false, round, &first_local);
        double reduced = run_round(rank, num_steps, true, round, &first);
        if (rank->env->rank == 0)
            printf("%s %s %.1f %.1f %.1f\n", work.name, rank->variant->name, local, reduced,
                   first - reduced);
    }
    fflush(stdout);
    close_reducer(rank);
    close_work(&work);
    gs_device_close(rank->device);
}

// arg: "mlp|small VARIANT ROUNDS STEPS"
static gs_status body_variant(const gs_rank_env *env) {
    size_t which;
    int num_rounds, num_steps;
    if (sscanf(env->arg, "%*s %zu %d %d", &which, &num_rounds, &num_steps) != 3)
        return gs_error(GS_INVALID_ARGUMENT, "arguments: %s", env->arg);
    measure_pin(env->rank);
    bench_rank rank = {.env = env, .variant = &variants[which]};
    run_variant(&rank, num_rounds, num_steps);
    return gs_ok();
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"variant", body_variant}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    int num_rounds = argc > 1 ? atoi(argv[1]) : 5, num_steps = argc > 2 ? atoi(argv[2]) : 20;
    if (num_rounds < 1 || num_steps < 2 || num_steps > MAX_STEPS) return 2;
    const char *const models[] = {"small", "mlp"};
    for (size_t i = 0; i < 2 * NUM_VARIANTS; i++) {
        char arg[64];
        snprintf(arg, sizeof arg, "%s %zu %d %d", models[i / NUM_VARIANTS], i % NUM_VARIANTS,
                 num_rounds, num_steps);
        gs_status status = gs_ranks_run("variant", 2, arg, gs_deadline_in_seconds(600));
        if (status.code) {
            fprintf(stderr, "bench_ddp: %s\n", status.message);
            return 1;
        }
    }
    return 0;
}
