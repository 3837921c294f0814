// A step of training with everything on every rank, and with optimizer state cut among ranks: what
// they take, and what memory they hold. bench/sharded_peer.py does the same with fairscale's
// ShardedDataParallel and OSS; bench/sharded.sh runs them in turns.
//
//   bench_sharded [ROUNDS [STEPS]]   a row: variant, µs of a step and its parts, medians of a round
//   bench_sharded memory             a row: variant, MiB that a rank holds and that formulas say
//
// Two processes, pinned, one thread each; an MLP of 25.2 M parameters, Adam. In a round all
// variants take STEPS steps, one of each in turn; a step is that of the slower rank.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/measure.h"
#include "core/memory.h"
#include "core/owner_rules.h"
#include "core/plan_policy.h"
#include "core/random.h"
#include "gradsync/comm/shm/segment.h"
#include "gradsync/optim/optimizer.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/sharded/param_gather.h"
#include "gradsync/sharded/shard_reduce.h"
#include "gradsync/sharded/shards.h"
#include "tests/support/ranks.h"
#include "worker/models/registry.h"

#define NUM_RANKS 2
#define NUM_PARAMS 10
#define MAX_STEPS 200
#define GATHER_LANE 1
#define ROWS 32
#define FEATURES 1024
#define DEADLINE gs_deadline_in_seconds(60)

// Everything on every rank; flat shards; whole tensors as fairscale deals them; flat shards of
// gradients as well, which are on their way in two windows.
typedef enum variant_kind { WHOLE = 0, SHARDED, TENSORS, WINDOWS, NUM_VARIANTS } variant_kind;
static const char *const variant_names[] = {"whole", "sharded", "tensors", "windows"};

typedef enum step_part { PASSES = 0, REDUCE, UPDATE, GATHER, ALL, NUM_PARTS } step_part;
static const char *const part_names[] = {"passes", "reduce", "update", "gather", "step"};

typedef struct workload {
    gs_device *device;
    gs_model model;
    gs_batch batch;
    gs_param_spec params[NUM_PARAMS];
    size_t num_params, num_elements;
    float *input;
} workload;

// Everything that one variant holds.
typedef struct trainer {
    const gs_rank_env *env;
    workload *work;
    variant_kind kind;
    gs_bucket_plan plan;
    gs_shards *shards;
    gs_hook_choice hook;
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    gs_optimizer *optimizer;
    gs_param_gather *gather;
    void *memory;  // of parameters that are not gathered
    void *values[NUM_PARAMS];
    void **own_params, **own_grads;  // of each segment
    int64_t step;
    double micros[NUM_PARTS][MAX_STEPS];
} trainer;

static void must(gs_status status) {
    if (!status.code) return;
    fprintf(stderr, "bench_sharded: %s\n", status.message);
    exit(1);
}

static void *must_alloc(size_t bytes) {
    void *memory = aligned_alloc(256, gs_round_up(bytes, 256));
    if (!memory) must(gs_error(GS_RESOURCE_EXHAUSTED, "out of memory"));
    return memset(memory, 0, bytes);
}

static void open_work(workload *work) {
    static const int64_t dims[] = {FEATURES, 3072, 3072, 3072, 1024, 10};
    static int32_t targets[ROWS];
    size_t num_params;
    *work = (workload){.input = must_alloc(ROWS * FEATURES * sizeof(float))};
    must(gs_device_open(&work->device, "cpu", &(gs_device_options){.num_threads = 1}));
    must(gs_mlp_create(&work->model,
                       &(gs_mlp_options){.dims = dims, .num_dims = 6, .micro_batch = ROWS},
                       work->device));
    const gs_model_param *params = work->model.ops->params(work->model.state, &num_params);
    for (size_t i = 0; i < num_params; i++) {
        work->params[work->num_params++] = params[i].spec;
        work->num_elements += gs_param_spec_count(&params[i].spec);
    }
    gs_random_fill_normal(work->input, ROWS * FEATURES, (gs_random_key){1, 2}, 0, 0, 1);
    work->batch = (gs_batch){.rows = ROWS,
                             .positions = 1,
                             .row_features = FEATURES,
                             .features = work->input,
                             .targets = targets};
}

static void close_work(workload *work) {
    gs_model_destroy(&work->model);
    gs_device_close(work->device);
    free(work->input);
}

static void open_reducer(trainer *self) {
    workload *work = self->work;
    bool shards = self->kind != WHOLE;
    self->hook = (gs_hook_choice){.hook = gs_shard_reduce_hook(), .user = self->shards};
    gs_reducer_options options = {
        .params = work->params,
        .num_params = work->num_params,
        .plan = &self->plan,
        .hooks = shards ? &self->hook : NULL,
        .num_hooks = shards,
        .tally = shards ? GS_TALLY_APART : GS_TALLY_IN_BUCKETS,
        .device = work->device,
        .windows = {.num_windows = self->kind == WINDOWS ? 2 : 0},
        .shards = {.num_shards = NUM_RANKS, .world_size = NUM_RANKS, .rank = self->env->rank}};
    size_t grad_bytes, param_bytes = shards ? gs_shards_param_bytes(self->shards) : 0;
    must(gs_reducer_arena_bytes(&grad_bytes, &options));
    grad_bytes = gs_round_up(grad_bytes, 256);
    must(gs_arena_create(&self->arena, grad_bytes + param_bytes));
    options.arena = self->arena;
    must(gs_comm_create(&self->comm,
                        &(gs_comm_options){.backend = "shm",
                                           .rank = self->env->rank,
                                           .world_size = NUM_RANKS,
                                           .generation = 1 + (uint32_t)self->kind,
                                           .exchange = gs_rank_exchange,
                                           .exchange_ctx = self->env->exchange,
                                           .arena = self->arena,
                                           .device = work->device,
                                           .helper = GS_HELPER_OFF,
                                           .num_lanes = 2},
                        DEADLINE));
    must(gs_reducer_create(&self->reducer, &options, self->comm, DEADLINE));
    if (!shards) return;
    char *params = (char *)gs_arena_data(self->arena) + grad_bytes;
    must(gs_param_gather_create(
        &self->gather,
        &(gs_param_gather_options){
            .shards = self->shards, .comm = self->comm, .params = params, .lane = GATHER_LANE},
        DEADLINE));
}

static void place_params(trainer *self) {
    const workload *work = self->work;
    if (self->gather) {
        memcpy(self->values, gs_param_gather_params(self->gather),
               work->num_params * sizeof *self->values);
        return;
    }
    float *next = self->memory = must_alloc(work->num_elements * sizeof *next);
    for (size_t i = 0; i < work->num_params; i++) {
        self->values[i] = next;
        next += gs_param_spec_count(&work->params[i]);
    }
}

// Along the order in which gradients become ready; tensors that have owners in buckets of one.
static void make_plan(trainer *self) {
    const workload *work = self->work;
    const gs_plan_policy policy = {.one_host = true};
    int owners[NUM_PARAMS];
    size_t counts[NUM_PARAMS];
    for (size_t i = 0; i < work->num_params; i++) counts[i] = gs_param_spec_count(&work->params[i]);
    must(gs_owners_greedy(owners, &(gs_owner_request){.counts = counts,
                                                      .num_params = work->num_params,
                                                      .world_size = NUM_RANKS}));
    must(gs_plan_policy_apply_owned(&self->plan, &policy, self->kind == TENSORS ? owners : NULL,
                                    work->params, work->num_params, NULL));
}

static void open_trainer(trainer *self, const gs_rank_env *env, workload *work, variant_kind kind) {
    static const bool decays[NUM_PARAMS];
    *self = (trainer){.env = env, .work = work, .kind = kind};
    gs_optimizer_options adam = {.kind = "adam", .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
    make_plan(self);
    if (kind != WHOLE) {
        must(gs_shards_create(
            &self->shards, &(gs_shards_options){.partition = kind == TENSORS ? GS_PARTITION_GREEDY
                                                                             : GS_PARTITION_FLAT,
                                                .plan = &self->plan,
                                                .params = work->params,
                                                .num_params = work->num_params,
                                                .world_size = NUM_RANKS}));
        adam.segments = gs_shards_of_rank(self->shards, env->rank, &adam.num_segments);
        self->own_params = must_alloc(adam.num_segments * sizeof *self->own_params);
        self->own_grads = must_alloc(adam.num_segments * sizeof *self->own_grads);
    }
    open_reducer(self);
    place_params(self);
    must(work->model.ops->init(work->model.state, self->values, NULL, 1));
    must(gs_optimizer_create(&self->optimizer, &adam, work->params, decays, work->num_params,
                             work->device));
    if (!self->shards) return;
    gs_shards_point(self->own_params, self->shards, env->rank, self->values, sizeof(float));
    gs_shards_point(self->own_grads, self->shards, env->rank, gs_reducer_grads(self->reducer),
                    sizeof(float));
}

static void close_trainer(trainer *self) {
    gs_optimizer_destroy(self->optimizer);
    gs_param_gather_destroy(self->gather);
    gs_reducer_destroy(self->reducer);
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    gs_shards_destroy(self->shards);
    gs_bucket_plan_release(&self->plan);
    free(self->own_params);
    free(self->own_grads);
    free(self->memory);
}

static void run_passes(trainer *self) {
    gs_reducer_pass grads;
    const gs_model *model = &self->work->model;
    must(gs_reducer_begin_pass(self->reducer, &grads, ROWS));
    gs_model_pass pass = {.batch = &self->work->batch,
                          .training = true,
                          .step = self->step,
                          .params = self->values,
                          .grads = grads.grads,
                          .grad_factor = grads.grad_factor,
                          .ready = gs_reducer_ready_callback,
                          .ready_ctx = self->reducer,
                          .writes = gs_reducer_open_callback,
                          .writes_ctx = self->reducer};
    must(model->ops->forward(model->state, &pass));
    must(model->ops->backward(model->state, &pass));
    must(gs_reducer_end_pass(self->reducer));
}

static void update(trainer *self, const gs_reduce_result *result) {
    const float lr = 1e-3f;
    if (self->shards)
        must(gs_optimizer_step(self->optimizer, self->own_params, self->own_grads, result->used, lr,
                               1));
    else
        must(gs_optimizer_step(self->optimizer, self->values, gs_reducer_grads(self->reducer),
                               result->used, lr, 1));
}

// Parameters are waited for at the end, not by the next forward: so that a step's time is all its
// own.
static void take_step(trainer *self, int at) {
    gs_reduce_result result;
    int64_t times_ns[NUM_PARTS] = {gs_now_ns()};
    must(gs_reducer_begin(self->reducer, self->step));
    run_passes(self);
    times_ns[REDUCE] = gs_now_ns();
    must(gs_reducer_finish(self->reducer, &result, DEADLINE));
    times_ns[UPDATE] = gs_now_ns();
    update(self, &result);
    must(gs_reducer_commit(self->reducer));
    times_ns[GATHER] = gs_now_ns();
    if (self->gather) {
        must(gs_param_gather_start(self->gather, self->step));
        must(gs_param_gather_finish(self->gather, DEADLINE));
    }
    times_ns[ALL] = gs_now_ns();
    for (int part = 0; part < ALL; part++)
        self->micros[part][at] = (double)(times_ns[part + 1] - times_ns[part]) / 1e3;
    self->micros[ALL][at] = (double)(times_ns[ALL] - times_ns[0]) / 1e3;
    self->step++;
}

// Of the slower rank, one by one.
static void take_slower(trainer *self, double *numbers, int count) {
    must(gs_comm_run(self->comm,
                     &(gs_collective){.kind = GS_ALLREDUCE,
                                      .send = numbers,
                                      .recv = numbers,
                                      .count = (size_t)count,
                                      .dtype = GS_FP64,
                                      .op = GS_OP_MAX,
                                      .bucket = -1},
                     DEADLINE));
}

static void print_round(trainer *self, int num_steps) {
    for (int part = 0; part < NUM_PARTS; part++) take_slower(self, self->micros[part], num_steps);
    if (self->env->rank != 0) return;
    printf("%s", variant_names[self->kind]);
    for (int part = 0; part < NUM_PARTS; part++)
        printf(" %s %.1f", part_names[part], measure_quantile(self->micros[part], num_steps, 0.5));
    printf("\n");
    fflush(stdout);
}

// arg: "ROUNDS STEPS"
static gs_status body_steps(const gs_rank_env *env) {
    static trainer trainers[NUM_VARIANTS];
    static workload work;
    int num_rounds, num_steps;
    if (sscanf(env->arg, "%d %d", &num_rounds, &num_steps) != 2)
        return gs_error(GS_INVALID_ARGUMENT, "arguments: %s", env->arg);
    measure_pin(env->rank);
    open_work(&work);
    for (int k = 0; k < NUM_VARIANTS; k++) open_trainer(&trainers[k], env, &work, (variant_kind)k);
    for (int round = -1; round < num_rounds; round++) {  // the first one warms up
        int steps = round < 0 ? 2 : num_steps;
        for (int i = 0; i < steps; i++) {
            for (int k = 0; k < NUM_VARIANTS; k++) {
                double zero = 0;
                take_slower(&trainers[k], &zero, 1);  // both begin now
                take_step(&trainers[k], i);
            }
        }
        for (int k = 0; k < NUM_VARIANTS && round >= 0; k++) print_round(&trainers[k], steps);
    }
    for (int k = 0; k < NUM_VARIANTS; k++) close_trainer(&trainers[k]);
    close_work(&work);
    return gs_ok();
}

// ---- memory

// Of this process, pages that n processes map counted as 1/n.
static double read_pss_mib(void) {
    char line[128];
    unsigned long kilobytes = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "Pss: %lu", &kilobytes) != 1) {
    }
    if (file) fclose(file);
    return (double)kilobytes / 1024;
}

// fp32 and Adam: 4 bytes of a parameter, 4 of its gradient, as a view, and 8 of its state; of
// state, and of gradients in windows, what a rank owns. What is ours beside it: control blocks of
// lanes, padding of buckets, windows.
static double formula_mib(const trainer *self, double *ours_mib) {
    double elements = (double)self->work->num_elements;
    double owned = self->shards ? (double)gs_shards_most_elements(self->shards) : elements;
    double grads = self->kind == WINDOWS ? owned : elements;
    double control = 2.0 * sizeof(gs_shm_lane_block) + sizeof(gs_shm_control);
    double params_in_arena = self->shards ? elements : 0;
    double arena = (double)gs_arena_bytes(self->arena);
    *ours_mib = (control + arena - 4 * (grads + params_in_arena)) / (1 << 20);
    return (4 * (elements + grads) + 8 * owned) / (1 << 20);
}

// arg: number of the variant. The baseline is the process with its model, behind a pass:
// activations and the libraries' own memory are in no formula.
static gs_status body_memory(const gs_rank_env *env) {
    static trainer self;
    static workload work;
    double ours_mib, peak_mib = 0, before_mib;
    measure_pin(env->rank);
    open_work(&work);
    open_trainer(&self, env, &work, WHOLE);
    take_step(&self, 0);
    close_trainer(&self);
    before_mib = read_pss_mib();
    open_trainer(&self, env, &work, (variant_kind)atoi(env->arg));
    for (int i = 0; i < 4; i++) {
        take_step(&self, i);
        double now_mib = read_pss_mib();
        if (now_mib > peak_mib) peak_mib = now_mib;
    }
    double formula = formula_mib(&self, &ours_mib);
    double held[2] = {read_pss_mib() - before_mib, peak_mib - before_mib};
    take_slower(&self, held, 2);
    if (env->rank == 0)
        printf("%s formula %.1f ours %.1f held %.1f peak %.1f over %.1f allowed %.1f MiB\n",
               variant_names[self.kind], formula, ours_mib, held[0], held[1],
               held[1] - formula - ours_mib, 0.02 * formula + 16);
    fflush(stdout);
    close_trainer(&self);
    close_work(&work);
    return gs_ok();
}

static gs_status run_memory(void) {
    for (int k = 0; k < NUM_VARIANTS; k++) {
        char arg[16];
        snprintf(arg, sizeof arg, "%d", k);
        GS_TRY(gs_ranks_run("memory", NUM_RANKS, arg, gs_deadline_in_seconds(120)));
    }
    return gs_ok();
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {
        {"steps", body_steps}, {"memory", body_memory}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    bool memory = argc > 1 && strcmp(argv[1], "memory") == 0;
    int num_rounds = argc > 1 && !memory ? atoi(argv[1]) : 5,
        num_steps = argc > 2 ? atoi(argv[2]) : 10;
    if (num_rounds < 1 || num_steps < 2 || num_steps > MAX_STEPS) return 2;
    char arg[64];
    snprintf(arg, sizeof arg, "%d %d", num_rounds, num_steps);
    gs_status status =
        memory ? run_memory() : gs_ranks_run("steps", NUM_RANKS, arg, gs_deadline_in_seconds(600));
    if (!status.code) return 0;
    fprintf(stderr, "bench_sharded: %s\n", status.message);
    return 1;
}
