// Tokens per second of GPT-2 on one GPU, and what the reducer costs there at world 1.
//
//   bench_gpu_train [--model tiny|124M|774M] [--batch N] [--positions T] [--precision
//   fp32|tf32|bf16|fp16]
//                   [--rounds 5] [--steps 10] [--peak TFLOPS] [--offload 1]
//
// A step is forward, backward and AdamW with the product's own parts: graphs of passes, masters in
// halves for bf16, reducer with gradient norm and non-finite check. Rounds of `steps` steps with
// the reducer and without it take turns; medians of rounds. Both wait for the device once a step,
// behind the backward pass. Buckets are those of a job on a GPU that asks for none, before an order of its gradients is known.
// Tokens lie on the device from the start: loading is not measured.
// --peak: what `bench_gpu_kernels matmul` found, for MFU. --offload 1: the optimizer's state lies in the host's memory, and
// what its update alone takes is said beside what it moves over the link.
// GRADSYNC_KERNEL_TIMES set, to whatever step: one more step, kernel by kernel and without graphs, as a table.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/measure.h"
#include "core/random.h"
#include "gradsync/comm/comm.h"
#include "gradsync/comm/device_arena.h"
#include "gradsync/optim/mixed_precision.h"
#include "gradsync/optim/optimizer.h"
#include "gradsync/reducer/reducer.h"
#include "kernels/choice.h"
#include "kernels/kernel_times.h"
#include "rpc/schema/job_plan.h"
#include "tests/support/device_library.h"
#include "worker/models/registry.h"
#include "worker/pass/pass_graph.h"

#define SKIPPED 77
#define MAX_ROUNDS 100
#define WAIT_SECONDS 120.0
#define WARM_STEPS 3  // plain, captured, launched

typedef struct size_row {
    const char *name;
    int64_t layers, heads, channels, vocab, positions, batch;
} size_row;

// The vocabulary is padded to a multiple of 128.
static const size_row sizes[] = {
    {"tiny", 2, 2, 128, 256, 64, 2},
    {"124M", 12, 12, 768, 50304, 1024, 64},
    {"774M", 36, 20, 1280, 50304, 1024, 16},
};

typedef struct settings {
    size_row size;
    gs_dtype half;  // GS_DTYPE_UNSET: fp32
    bool tf32, offload;
    int rounds, steps;
    double peak_tflops;
} settings;

// One way to take a step.
typedef struct step_way {
    gs_pass_graphs *graphs;
    gs_reducer *reducer;  // NULL: gradients of its own
    void **grads;
    double ms[MAX_ROUNDS];
} step_way;

typedef struct bench {
    settings set;
    gs_device *device;
    gs_model model;
    const gs_model_param *list;
    size_t num_params, param_bytes;  // fp32, one block
    gs_param_spec *specs;
    void *masters, *gradient;  // device memory; masters NULL when they lie in halves
    void **params;             // in fp32
    gs_mixed_precision *mixed;
    gs_optimizer *optimizer;
    gs_arena *arena;
    gs_comm *comm;
    size_t num_buckets;
    gs_batch batch;
    void *ids;
    double *loss_sum;
    gs_grad_factor *factor;  // device memory; NULL: updates wait for the norm (GRADSYNC_CUDA_FACTOR_ON_DEVICE)
    int64_t step;
    step_way with, without;
} bench;

static void must(gs_status status) {
    if (!status.code) return;
    fprintf(stderr, "bench_gpu_train: %s\n", status.message);
    exit(1);
}

static void *must_calloc(size_t count, size_t bytes) {
    void *memory = calloc(count, bytes);
    if (!memory) must(gs_error(GS_RESOURCE_EXHAUSTED, "out of memory"));
    return memory;
}

static gs_deadline soon(void) {
    return gs_deadline_in_seconds(WAIT_SECONDS);
}

static void place_tensors(const bench *self, void *memory, void **tensors) {
    size_t at = 0;
    for (size_t i = 0; i < self->num_params; i++) {
        tensors[i] = (char *)memory + at;
        at += (gs_param_spec_bytes(&self->specs[i]) + 255) / 256 * 256;
    }
}

static void open_model(bench *self) {
    const size_row *size = &self->set.size;
    const gs_gpt2_options options = {.layers = size->layers,
                                     .heads = size->heads,
                                     .channels = size->channels,
                                     .context = size->positions,
                                     .vocab = size->vocab,
                                     .micro_batch = size->batch,
                                     .dtype = self->set.half};
    must(gs_gpt2_create(&self->model, &options, self->device));
    self->list = self->model.ops->params(self->model.state, &self->num_params);
    self->specs = must_calloc(self->num_params, sizeof *self->specs);
    for (size_t i = 0; i < self->num_params; i++) {
        self->specs[i] = self->list[i].spec;
        self->param_bytes += (gs_param_spec_bytes(&self->specs[i]) + 255) / 256 * 256;
    }
    self->params = must_calloc(self->num_params, sizeof *self->params);
    must(gs_device_alloc(self->device, &self->masters, self->param_bytes));
    place_tensors(self, self->masters, self->params);
    must(self->model.ops->init(self->model.state, self->params, NULL, 1));
}

// The masters become what the optimizer updates: for bf16 they are split and their memory goes.
static void open_precision(bench *self) {
    if (!self->set.half) return;
    // What is updated in halves lies on the device.
    const bool splits = self->set.half == GS_BF16 && !self->set.offload;
    const gs_mixed_precision_options options = {.dtype = self->set.half,
                                                .params = self->specs,
                                                .num_params = self->num_params,
                                                .masters =
                                                    splits ? NULL : (float *const *)self->params,
                                                .splits_masters = splits,
                                                .keeps_params = true,
                                                .device = self->device};
    must(gs_mixed_precision_create(&self->mixed, &options));
    if (!splits) {
        gs_mixed_precision_write_back(self->mixed);
        return;
    }
    const gs_kernels *k = gs_device_kernels(self->device);
    for (size_t i = 0; i < self->num_params; i++) {
        k->split_master(gs_device_stream(self->device), gs_mixed_precision_params(self->mixed)[i],
                        gs_mixed_precision_remainders(self->mixed)[i], self->params[i],
                        gs_param_spec_count(&self->specs[i]));
    }
    must(gs_stream_wait(gs_device_stream(self->device), soon()));
    gs_device_free(self->device, self->masters);
    self->masters = NULL;
}

static void open_optimizer(bench *self) {
    const gs_optimizer_options options = {
        .kind = "adamw",
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .state_on_host = self->set.offload};
    bool *decays = must_calloc(self->num_params, sizeof *decays);
    for (size_t i = 0; i < self->num_params; i++) decays[i] = self->list[i].decays;
    must(gs_optimizer_create(&self->optimizer, &options, self->specs, decays, self->num_params,
                             self->device));
    free(decays);
}

static void open_batch(bench *self) {
    const size_row *size = &self->set.size;
    const size_t count = (size_t)(size->batch * size->positions);
    int32_t *ids = must_calloc(2 * count, sizeof *ids);
    for (size_t i = 0; i < 2 * count; i++)
        ids[i] = (int32_t)((i * 7919 + i / 13) % (size_t)size->vocab);
    must(gs_device_alloc(self->device, &self->ids, 2 * count * sizeof *ids));
    must(gs_device_upload(self->device, self->ids, ids, 2 * count * sizeof *ids));
    free(ids);
    self->batch = (gs_batch){.rows = (size_t)size->batch,
                             .positions = (size_t)size->positions,
                             .tokens = self->ids,
                             .targets = (const int32_t *)self->ids + count};
    void *loss_sum = NULL;
    must(gs_device_alloc_pinned(self->device, &loss_sum, sizeof *self->loss_sum));
    self->loss_sum = loss_sum;
}

static void open_factor(bench *self) {
    void *factor = NULL;
    if (!gs_device_chooses(self->device, GS_CHOICE_FACTOR_ON_DEVICE) || self->set.offload) return;
    must(gs_device_alloc(self->device, &factor, sizeof *self->factor));
    self->factor = factor;
}

static void open_way(bench *self, step_way *way) {
    const gs_pass_graphs_options options = {.device = self->device, .num_params = self->num_params};
    must(gs_pass_graphs_create(&way->graphs, &options));
}

// What the coordinator plans for a job that says nothing of buckets.
static void plan_buckets(bench *self, gs_bucket_plan *plan) {
    gs_job_spec *job = must_calloc(1, sizeof *job);
    gs_fields_set_defaults(job, gs_job_spec_fields);
    job->world.device = GS_SPEC_DEVICE_CUDA;
    must(gs_job_plan_make(plan, job, 1, self->specs, self->num_params, NULL));
    self->num_buckets = plan->num_buckets;
    free(job);
}

static void open_reducer(bench *self) {
    gs_bucket_plan plan;
    plan_buckets(self, &plan);
    gs_reducer_options options = {.params = self->specs,
                                  .num_params = self->num_params,
                                  .plan = &plan,
                                  .shards = {.num_shards = 1, .world_size = 1},
                                  .device = self->device};
    size_t bytes;
    must(gs_reducer_arena_bytes(&bytes, &options));
    must(gs_arena_create_on(&self->arena, bytes, self->device));
    const gs_comm_options comm = {.backend = "self",
                                  .world_size = 1,
                                  .generation = 1,
                                  .arena = self->arena,
                                  .device = self->device};
    must(gs_comm_create(&self->comm, &comm, soon()));
    options.arena = self->arena;
    must(gs_reducer_create(&self->with.reducer, &options, self->comm, soon()));
    gs_bucket_plan_release(&plan);
    open_way(self, &self->with);
}

static void open_plain(bench *self) {
    self->without.grads = must_calloc(self->num_params, sizeof *self->without.grads);
    must(gs_device_alloc(self->device, &self->gradient, self->param_bytes));
    place_tensors(self, self->gradient, (void **)self->without.grads);
    open_way(self, &self->without);
}

static void close_bench(bench *self) {
    gs_pass_graphs_destroy(self->with.graphs);
    gs_pass_graphs_destroy(self->without.graphs);
    gs_reducer_destroy(self->with.reducer);
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    gs_optimizer_destroy(self->optimizer);
    gs_mixed_precision_destroy(self->mixed);
    gs_model_destroy(&self->model);
    if (self->masters) gs_device_free(self->device, self->masters);
    gs_device_free(self->device, self->gradient);
    gs_device_free(self->device, self->ids);
    gs_device_free(self->device, self->factor);
    gs_device_free_pinned(self->device, self->loss_sum);
    gs_device_close(self->device);
    free(self->without.grads);
    free(self->params);
    free(self->specs);
}

static void ignore_mark(void *ctx, size_t param) {
    (void)ctx;
    (void)param;
}

static gs_status take_no_turn(void *ctx, bool is_backward) {
    (void)ctx;
    (void)is_backward;
    return gs_ok();
}

static void run_pass(bench *self, step_way *way, gs_model_pass *pass) {
    pass->batch = &self->batch;
    pass->training = true;
    pass->params = self->mixed ? gs_mixed_precision_params(self->mixed) : self->params;
    pass->step = self->step;
    pass->loss_sum = self->loss_sum;
    gs_pass_marks marks = {.ready = ignore_mark, .skipped = ignore_mark};
    const gs_bucket_plan *plan = NULL;
    if (way->reducer) {
        marks = (gs_pass_marks){.ready = gs_reducer_ready_callback,
                                .skipped = gs_reducer_unused_callback,
                                .ctx = way->reducer};
        plan = gs_reducer_plan(way->reducer);
    }
    const gs_pass_run run = {
        .pass = pass, .model = &self->model, .marks = &marks, .plan = plan, .turn = take_no_turn};
    must(gs_pass_graphs_run(way->graphs, &run));
}

static void run_reduced_pass(bench *self, step_way *way) {
    gs_model_pass pass = {0};
    gs_reducer_pass reduced;
    must(gs_reducer_begin(way->reducer, self->step));
    must(gs_reducer_begin_pass(way->reducer, &reduced, (int64_t)self->batch.rows));
    pass.grads = reduced.grads;
    pass.grad_factor = reduced.grad_factor;
    run_pass(self, way, &pass);
    must(gs_reducer_end_pass(way->reducer));
}

static void finish_reducer(bench *self, step_way *way) {
    gs_reduce_result result;
    must(gs_reducer_finish(way->reducer, &result, soon()));
    if (result.nonfinite)
        must(gs_error(GS_DATA_LOSS, "step %lld: gradients are not finite", (long long)self->step));
}

static void update(bench *self, void *const *grads) {
    if (self->mixed)
        must(gs_mixed_precision_step(self->mixed, self->optimizer, grads, NULL, 1e-4f, 1.0f));
    else
        must(gs_optimizer_step(self->optimizer, self->params, grads, NULL, 1e-4f, 1.0f));
}

// As worker/pass/update_ahead.c.
static void update_ahead(bench *self, step_way *way) {
    const gs_grad_clip clip = {.loss_scale = 1, .unscaling = 1};
    gs_stream *stream = gs_device_stream(self->device);
    const double *squares;
    must(gs_reducer_finish_buckets(way->reducer, &squares, soon()));
    gs_device_kernels(self->device)->grad_factor(stream, self->factor, squares, self->num_params, &clip);
    gs_stream_set_factor(stream, self->factor);
    update(self, gs_reducer_grads(way->reducer));
    gs_stream_set_factor(stream, NULL);
    finish_reducer(self, way);
}

// Those of one pass without a reducer, complete on the device.
static void *const *make_gradients(bench *self, step_way *way) {
    gs_model_pass pass = {.grads = way->grads, .grad_factor = 1.0f};
    run_pass(self, way, &pass);
    must(gs_stream_wait(gs_device_stream(self->device), soon()));
    return way->grads;
}

static void run_step(bench *self, step_way *way) {
    *self->loss_sum = 0;
    if (!way->reducer) {
        update(self, make_gradients(self, way));
        return;
    }
    run_reduced_pass(self, way);
    if (self->factor) {
        update_ahead(self, way);
        return;
    }
    finish_reducer(self, way);
    update(self, gs_reducer_grads(way->reducer));
}

static double run_round(bench *self, step_way *way, int steps, int64_t *reducer_step) {
    const int64_t started_ns = measure_now_ns();
    for (int i = 0; i < steps; i++) {
        self->step = way->reducer ? (*reducer_step)++ : 0;
        run_step(self, way);
    }
    must(gs_stream_wait(gs_device_stream(self->device), soon()));
    return (double)(measure_now_ns() - started_ns) / 1e6 / steps;
}

static void report(bench *self, const char *precision) {
    const settings *set = &self->set;
    const double with = measure_quantile(self->with.ms, set->rounds, 0.5);
    const double without = measure_quantile(self->without.ms, set->rounds, 0.5);
    const double tokens = (double)(set->size.batch * set->size.positions);
    const double tflops =
        self->model.ops->flops_per_sample(self->model.state) * (double)set->size.batch / with / 1e9;
    const gs_pass_graph_counts counts = gs_pass_graphs_count(self->with.graphs);
    printf("train %s %s, batch %lld x %lld: %.2f ms a step, %.0f tokens/s, %.1f TFLOP/s",
           set->size.name, precision, (long long)set->size.batch, (long long)set->size.positions,
           with, 1e3 * tokens / with, tflops);
    if (set->peak_tflops > 0)
        printf(", MFU %.1f %% of %.0f", 100 * tflops / set->peak_tflops, set->peak_tflops);
    printf("\nreducer at world 1: %zu buckets, %.2f ms without it, %+.2f %% of the step; loss %.4f; %lld of "
           "%lld passes from graphs\n",
           self->num_buckets, without, 100 * (with - without) / without, *self->loss_sum,
           (long long)counts.launched, (long long)(counts.launched + counts.plain));
}

// The same gradients again and again, behind a step: what the update alone takes.
static void report_offload(bench *self, const char *precision) {
    int64_t started_ns = 0;
    size_t count = 0;
    if (!self->set.offload) return;
    void *const *grads = make_gradients(self, &self->without);
    for (int i = 0; i <= self->set.steps; i++) {
        if (i == 1) started_ns = measure_now_ns();  // the first one's places are made on the way
        update(self, grads);
        must(gs_stream_wait(gs_device_stream(self->device), soon()));
    }
    const double ms = (double)(measure_now_ns() - started_ns) / 1e6 / self->set.steps;
    for (size_t i = 0; i < self->num_params; i++) count += gs_param_spec_count(&self->specs[i]);
    // Both moments go there and back.
    printf("offload %s %s: %.2f ms an update, %.1f MiB of state, %.2f GB/s each way\n", self->set.size.name, precision,
           ms, 8 * (double)count / (1 << 20), 8 * (double)count / ms / 1e6);
}

// One step more, launched kernel by kernel.
static void report_kernels(bench *self, int64_t *reducer_step) {
    gs_kernel_table table;
    if (gs_kernel_times_step_of(self->device) < 0) return;
    must(gs_kernel_times_begin(self->device));
    run_round(self, &self->with, 1, reducer_step);
    must(gs_kernel_times_end(&table, self->device, soon()));
    printf("kernels of one step without graphs: %.3f ms of %.3f\n", (double)table.ns / 1e6, (double)table.span_ns / 1e6);
    printf("%-20s %-5s %6s %9s %6s %8s %8s  %s\n", "kernel", "dtype", "calls", "ms", "share", "GB/s", "TFLOP/s", "shape");
    for (size_t i = 0; i < table.num_rows; i++) {
        const gs_kernel_time *row = &table.rows[i];
        const double ns = row->ns > 0 ? (double)row->ns : 1;
        printf("%-20s %-5s %6lld %9.3f %5.1f%% %8.1f %8.2f  %s\n", row->kernel, gs_dtype_name(row->dtype),
               (long long)row->calls, (double)row->ns / 1e6, 100 * (double)row->ns / (double)(table.ns ? table.ns : 1),
               row->bytes / ns, row->flops / ns / 1e3, row->shape);
    }
    gs_kernel_table_release(&table);
}

static int print_usage(void) {
    fprintf(stderr, "usage: bench_gpu_train [--model tiny|124M|774M] [--batch N] [--positions T] "
                    "[--precision fp32|tf32|bf16|fp16] [--rounds N] [--steps N] [--peak TFLOPS] [--offload 0|1]\n");
    return 2;
}

static bool read_size(size_row *size, const char *name) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (strcmp(sizes[i].name, name) != 0) continue;
        *size = sizes[i];
        return true;
    }
    return false;
}

static bool read_precision(settings *set, const char *name) {
    set->half = strcmp(name, "bf16") == 0   ? GS_BF16
                : strcmp(name, "fp16") == 0 ? GS_FP16
                                            : GS_DTYPE_UNSET;
    set->tf32 = strcmp(name, "tf32") == 0;
    return set->half || set->tf32 || strcmp(name, "fp32") == 0;
}

static bool read_arguments(settings *set, const char **precision, int argc, char **argv) {
    *set = (settings){.rounds = 5, .steps = 10};
    const char *model = "124M";
    long batch = 0, positions = 0;
    *precision = "bf16";
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--model") == 0)
            model = value;
        else if (strcmp(name, "--precision") == 0)
            *precision = value;
        else if (strcmp(name, "--batch") == 0)
            batch = strtol(value, NULL, 10);
        else if (strcmp(name, "--positions") == 0)
            positions = strtol(value, NULL, 10);
        else if (strcmp(name, "--rounds") == 0)
            set->rounds = atoi(value);
        else if (strcmp(name, "--steps") == 0)
            set->steps = atoi(value);
        else if (strcmp(name, "--offload") == 0)
            set->offload = strcmp(value, "1") == 0;
        else if (strcmp(name, "--peak") == 0)
            set->peak_tflops = strtod(value, NULL);
        else
            return false;
    }
    if (argc % 2 == 0 || !read_size(&set->size, model) || !read_precision(set, *precision))
        return false;
    if (batch > 0) set->size.batch = batch;
    if (positions > 0) set->size.positions = positions;
    return set->rounds >= 1 && set->rounds <= MAX_ROUNDS && set->steps >= 1;
}

int main(int argc, char **argv) {
    static bench self;
    const char *precision;
    if (!read_arguments(&self.set, &precision, argc, argv)) return print_usage();
    const gs_device_options options = {.num_threads = 1, .tf32 = self.set.tf32};
    gs_status status = gs_device_open(&self.device, "cuda:0", &options);
    if (status.code) {
        printf("skipped: %s\n", status.message);
        return SKIPPED;
    }
    if (!gs_test_has_libraries(self.device)) return 1;
    open_model(&self);
    open_precision(&self);
    open_optimizer(&self);
    open_batch(&self);
    open_factor(&self);
    open_reducer(&self);
    open_plain(&self);
    int64_t reducer_step = 0;
    run_round(&self, &self.with, WARM_STEPS, &reducer_step);
    run_round(&self, &self.without, WARM_STEPS, &reducer_step);
    for (int round = 0; round < self.set.rounds; round++) {
        self.without.ms[round] = run_round(&self, &self.without, self.set.steps, &reducer_step);
        self.with.ms[round] = run_round(&self, &self.with, self.set.steps, &reducer_step);
    }
    report(&self, precision);
    report_offload(&self, precision);
    report_kernels(&self, &reducer_step);
    close_bench(&self);
    return 0;
}
