// One rank's training step against what its processor can do: which part of the multiply-add peak.
//
//   bench_train [--layers 4] [--channels 256] [--heads C/64] [--positions 64] [--batch 4] [--vocab
//   4096]
//               [--steps 20] [--threads 1,2] [--reducer]
//
// A step is load, forward, backward, AdamW, on one process; --reducer puts the gradients through
// the product's reducer (world 1, gradient norm and non-finite check included).
//
// The peak is that of fp32 FMAs on the same threads (bench/fma_peak.h): the best of the
// measurements between the steps of the same run. A step counts 6·(V·C + 12·L·C²) flops for each
// token: its weight products; attention is not counted. "products" is the time of exactly these
// through the same kernel table, also between the steps: what is not they is everything else.
// Medians; the least in brackets. A machine that does other work shows lower rates: the load is
// printed.
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/fma_peak.h"
#include "bench/measure.h"
#include "core/random.h"
#include "gradsync/optim/optimizer.h"
#include "gradsync/reducer/reducer.h"
#include "worker/data/data_loader.h"
#include "worker/models/registry.h"

#define MAX_STEPS 1000
#define MAX_THREADS 64
#define WAIT_SECONDS 60.0

typedef struct settings {
    int64_t layers, channels, heads, positions, batch, vocab;
    int steps;
    int threads[8], num_threads;
    bool reducer;
} settings;

enum { LOAD, FORWARD, BACKWARD, UPDATE, STEP, PRODUCTS, NUM_TIMES };

typedef struct bench {
    const settings *set;
    gs_device *device;
    gs_model model;
    const gs_model_param *list;
    size_t num_params, count;
    gs_param_spec *specs;
    float *values, *gradient; // flat
    void **params;
    void **grads;
    gs_data_loader *loader;
    gs_optimizer *optimizer;
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    int64_t step;
    float *weights, *weight_grads, *x, *y;  // operands of the products
    double times[NUM_TIMES][MAX_STEPS];    // ms
    double peak;                           // GFLOP/s
} bench;

static void must(gs_status status) {
    if (!status.code) return;
    fprintf(stderr, "bench_train: %s\n", status.message);
    exit(1);
}

static void *must_alloc(size_t count, size_t element_bytes) {
    void *memory = aligned_alloc(64, (count * element_bytes + 63) / 64 * 64);
    if (!memory) must(gs_error(GS_RESOURCE_EXHAUSTED, "out of memory"));
    memset(memory, 0, count * element_bytes);
    return memory;
}

static void open_model(bench *self) {
    const settings *set = self->set;
    gs_gpt2_options options = {.layers = set->layers,
                               .heads = set->heads,
                               .channels = set->channels,
                               .context = set->positions,
                               .vocab = set->vocab,
                               .micro_batch = set->batch};
    must(gs_gpt2_create(&self->model, &options, self->device));
    self->list = self->model.ops->params(self->model.state, &self->num_params);
    self->params = must_alloc(self->num_params, sizeof *self->params);
    self->grads = must_alloc(self->num_params, sizeof *self->grads);
    self->specs = must_alloc(self->num_params, sizeof *self->specs);
    for (size_t i = 0; i < self->num_params; i++) {
        self->specs[i] = self->list[i].spec;
        self->count += (gs_param_spec_count(&self->specs[i]) + 15) / 16 * 16;
    }
    self->values = must_alloc(self->count, sizeof *self->values);
    self->gradient = must_alloc(self->count, sizeof *self->gradient);
    size_t at = 0;
    for (size_t i = 0; i < self->num_params; i++) {
        self->params[i] = self->values + at;
        self->grads[i] = self->gradient + at;
        at += (gs_param_spec_count(&self->specs[i]) + 15) / 16 * 16;
    }
    must(self->model.ops->init(self->model.state, self->params, NULL, 1));
}

static void open_optimizer(bench *self) {
    gs_optimizer_options options = {
        .kind = "adamw", .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
    bool *decays = must_alloc(self->num_params, sizeof *decays);
    for (size_t i = 0; i < self->num_params; i++) decays[i] = self->list[i].decays;
    must(gs_optimizer_create(&self->optimizer, &options, self->specs, decays, self->num_params,
                             self->device));
    free(decays);
}

static void open_loader(bench *self) {
    static gs_job_spec spec;
    spec = (gs_job_spec){.logical_shards = 1};
    spec.model.kind = GS_MODEL_GPT2;
    spec.model.gpt2.context = self->set->positions;
    spec.model.gpt2.vocab = self->set->vocab;
    spec.data.kind = GS_DATA_SYNTHETIC;
    spec.data.global_batch = spec.data.micro_batch = self->set->batch;
    gs_data_loader_options options = {.spec = &spec, .shards = {.num_shards = 1, .world_size = 1}};
    must(gs_data_loader_open(&self->loader, &options));
}

static void open_reducer(bench *self) {
    if (!self->set->reducer) return;
    gs_bucket_plan plan;
    must(gs_bucket_plan_one_host(&plan, self->specs, self->num_params, NULL));
    gs_reducer_options options = {.params = self->specs,
                                  .num_params = self->num_params,
                                  .plan = &plan,
                                  .shards = {.num_shards = 1, .world_size = 1},
                                  .device = self->device};
    size_t bytes;
    must(gs_reducer_arena_bytes(&bytes, &options));
    must(gs_arena_create(&self->arena, bytes));
    gs_deadline deadline = gs_deadline_in_seconds(WAIT_SECONDS);
    gs_comm_options comm = {.backend = "self",
                            .world_size = 1,
                            .generation = 1,
                            .arena = self->arena,
                            .device = self->device};
    must(gs_comm_create(&self->comm, &comm, deadline));
    options.arena = self->arena;
    must(gs_reducer_create(&self->reducer, &options, self->comm, deadline));
    gs_bucket_plan_release(&plan);
}

static void open_products(bench *self) {
    size_t C = (size_t)self->set->channels, V = (size_t)self->set->vocab;
    size_t N = (size_t)(self->set->batch * self->set->positions);
    size_t wide = 4 * C > V ? 4 * C : V;
    size_t weights = V * C + (size_t)self->set->layers * 12 * C * C;
    self->weights = must_alloc(weights, sizeof(float));
    self->weight_grads = must_alloc(weights, sizeof(float));
    self->x = must_alloc(N * wide, sizeof(float));
    self->y = must_alloc(N * wide, sizeof(float));
    gs_random_fill_normal(self->weights, weights, (gs_random_key){1, 1}, 0, 0.0f, 0.02f);
    gs_random_fill_normal(self->x, N * wide, (gs_random_key){1, 2}, 0, 0.0f, 1.0f);
}

static void close_bench(bench *self) {
    gs_data_loader_close(self->loader);
    gs_reducer_destroy(self->reducer);
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    gs_optimizer_destroy(self->optimizer);
    gs_model_destroy(&self->model);
    free(self->params);
    free(self->grads);
    free(self->specs);
    free(self->values);
    free(self->gradient);
    free(self->weights);
    free(self->weight_grads);
    free(self->x);
    free(self->y);
    gs_device_close(self->device);
}

// The three products of one linear layer: y = x·Wᵀ, dW = dyᵀ·x, dx = dy·W.
static void multiply_layer(bench *self, size_t at, size_t rows, size_t num_in, size_t num_out) {
    const gs_kernels *k = gs_device_kernels(self->device);
    gs_stream *stream = gs_device_stream(self->device);
    gs_matmul forward = {.transpose_b = true, .m = rows, .n = num_out, .k = num_in, .alpha = 1.0f};
    gs_matmul weight = {.transpose_a = true, .m = num_out, .n = num_in, .k = rows, .alpha = 1.0f};
    gs_matmul input = {.m = rows, .n = num_in, .k = num_out, .alpha = 1.0f};
    k->matmul(stream, self->y, self->x, self->weights + at, &forward);
    k->matmul(stream, self->weight_grads + at, self->y, self->x, &weight);
    k->matmul(stream, self->y, self->x, self->weights + at, &input);
}

static void multiply_all(bench *self) {
    size_t C = (size_t)self->set->channels, V = (size_t)self->set->vocab, at = 0;
    size_t N = (size_t)(self->set->batch * self->set->positions);
    const size_t shapes[4][2] = {{C, 3 * C}, {C, C}, {C, 4 * C}, {4 * C, C}};
    for (int64_t layer = 0; layer < self->set->layers; layer++)
        for (int i = 0; i < 4; i++) {
            multiply_layer(self, at, N, shapes[i][0], shapes[i][1]);
            at += shapes[i][0] * shapes[i][1];
        }
    multiply_layer(self, at, N, C, V);
}

// Many short items for each thread: whoever is late costs one of them.
#define PEAK_ITEMS 16

static void run_peak_item(void *ctx, size_t item) {
    ((double *)ctx)[item] = fma_peak_run();
}

static void measure_peak(bench *self, int num_threads) {
    double flops[PEAK_ITEMS * MAX_THREADS], sum = 0.0;
    size_t num_items = PEAK_ITEMS * (size_t)num_threads;
    int64_t since_ns = measure_now_ns();
    gs_stream_for_each(gs_device_stream(self->device), num_items, run_peak_item, flops);
    int64_t took_ns = measure_now_ns() - since_ns;
    for (size_t i = 0; i < num_items; i++) sum += flops[i];
    if (sum / (double)took_ns > self->peak) self->peak = sum / (double)took_ns;
}

static double product_flops(const settings *set) {
    double C = (double)set->channels, V = (double)set->vocab, L = (double)set->layers;
    return 6.0 * (V * C + 12.0 * L * C * C) * (double)(set->batch * set->positions);
}

static void begin_gradients(bench *self, gs_model_pass *pass) {
    if (!self->reducer) return;
    gs_reducer_pass reduced;
    must(gs_reducer_begin(self->reducer, self->step));
    must(gs_reducer_begin_pass(self->reducer, &reduced, (int64_t)self->set->batch));
    pass->grads = reduced.grads;
    pass->ready = gs_reducer_ready_callback;
    pass->ready_ctx = self->reducer;
}

static void *const *finish_gradients(bench *self) {
    if (!self->reducer) return self->grads;
    gs_reduce_result result;
    must(gs_reducer_end_pass(self->reducer));
    must(gs_reducer_finish(self->reducer, &result, gs_deadline_in_seconds(WAIT_SECONDS)));
    return gs_reducer_grads(self->reducer);
}

static double ms_since(int64_t since_ns) {
    return (double)(measure_now_ns() - since_ns) / 1e6;
}

static double run_step(bench *self, int at) {
    int64_t started_ns = measure_now_ns(), since_ns = started_ns;
    gs_batch batch;
    must(gs_data_loader_next(self->loader, &batch, gs_deadline_in_seconds(WAIT_SECONDS)));
    self->times[LOAD][at] = ms_since(since_ns);

    since_ns = measure_now_ns();
    gs_model_pass pass = {.batch = &batch,
                          .training = true,
                          .step = self->step,
                          .params = self->params,
                          .grads = self->grads,
                          .grad_factor = 1.0f};
    begin_gradients(self, &pass);
    must(self->model.ops->forward(self->model.state, &pass));
    self->times[FORWARD][at] = ms_since(since_ns);

    since_ns = measure_now_ns();
    must(self->model.ops->backward(self->model.state, &pass));
    void *const *grads = finish_gradients(self);
    self->times[BACKWARD][at] = ms_since(since_ns);

    since_ns = measure_now_ns();
    must(gs_optimizer_step(self->optimizer, self->params, grads, NULL, 3e-4f, 1.0f));
    self->times[UPDATE][at] = ms_since(since_ns);
    self->times[STEP][at] = ms_since(started_ns);
    self->step++;
    return pass.loss;
}

static void report(bench *self, int num_threads, double first_loss, double loss) {
    static const char *const names[] = {"load",   "forward", "backward",
                                        "update", "step",    "products"};
    int steps = self->set->steps;
    double median[NUM_TIMES];
    printf("threads %d: ", num_threads);
    for (int i = 0; i < NUM_TIMES; i++) {
        median[i] = measure_quantile(self->times[i], steps, 0.5);
        printf("%s %.2f (%.2f)%s", names[i], median[i], self->times[i][0],
               i + 1 < NUM_TIMES ? ", " : " ms\n");
    }
    double tokens = (double)(self->set->batch * self->set->positions) * 1e3;
    double flops = product_flops(self->set) / 1e6;
    printf("  %.0f tokens/s, %.1f GFLOP/s, products alone %.1f; loss %.3f -> %.3f\n",
           tokens / median[STEP], flops / median[STEP], flops / median[PRODUCTS], first_loss, loss);
    if (!fma_peak_name()) {
        printf("  no FMA peak is known for this processor\n");
        return;
    }
    printf("  peak %.1f GFLOP/s (%s FMA, %d thread(s)): the step %.1f %% of it (of the least time "
           "%.1f %%), products alone %.1f %%\n",
           self->peak, fma_peak_name(), num_threads, 100.0 * flops / median[STEP] / self->peak,
           100.0 * flops / self->times[STEP][0] / self->peak,
           100.0 * flops / median[PRODUCTS] / self->peak);
}

static void print_machine(gs_device *device) {
    char model[128] = "unknown processor", arithmetic[160], limit[128];
    double load = 0.0;
    FILE *info = fopen("/proc/cpuinfo", "r");
    for (char line[256]; info && fgets(line, sizeof line, info);)
        if (sscanf(line, "model name : %127[^\n]", model) == 1) break;
    if (info) fclose(info);
    getloadavg(&load, 1);
    gs_device_arithmetic(device, arithmetic, sizeof arithmetic);
    gs_device_limit(device, limit, sizeof limit);
    printf("%s, load %.1f, kernels %s, %s%s%s\n", model, load, gs_device_kernels(device)->name,
           arithmetic, *limit ? "; " : "", limit);
}

static void run(const settings *set, int num_threads) {
    bench *self = must_alloc(1, sizeof *self);
    self->set = set;
    gs_device_options options = {.num_threads = num_threads};
    must(gs_device_open(&self->device, "cpu", &options));
    print_machine(self->device);
    open_model(self);
    open_optimizer(self);
    open_loader(self);
    open_reducer(self);
    open_products(self);
    double first_loss = 0.0, loss = 0.0;
    for (int i = 0; i < 2; i++) { // warm
        first_loss = run_step(self, 0);
        multiply_all(self);
    }
    for (int i = 0; i < set->steps; i++) {
        loss = run_step(self, i);
        int64_t since_ns = measure_now_ns();
        multiply_all(self);
        self->times[PRODUCTS][i] = ms_since(since_ns);
        measure_peak(self, num_threads);
    }
    report(self, num_threads, first_loss, loss);
    close_bench(self);
    free(self);
}

static bool read_option(settings *set, const char *name, const char *value) {
    const struct {
        const char *name;
        int64_t *to;
    } numbers[] = {{"--layers", &set->layers}, {"--channels", &set->channels},
                   {"--heads", &set->heads},   {"--positions", &set->positions},
                   {"--batch", &set->batch},   {"--vocab", &set->vocab}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strcmp(name, numbers[i].name) != 0) continue;
        *numbers[i].to = strtoll(value, NULL, 10);
        return *numbers[i].to > 0;
    }
    if (strcmp(name, "--steps") == 0) {
        set->steps = atoi(value);
        return set->steps > 0 && set->steps <= MAX_STEPS;
    }
    if (strcmp(name, "--threads") != 0) return false;
    set->num_threads = 0;
    for (char *end; *value && set->num_threads < 8; value = *end ? end + 1 : end) {
        int threads = (int)strtol(value, &end, 10);
        if (threads < 1 || threads > MAX_THREADS) return false;
        set->threads[set->num_threads++] = threads;
    }
    return set->num_threads > 0;
}

int main(int argc, char **argv) {
    settings set = {.layers = 4,
                    .channels = 256,
                    .positions = 64,
                    .batch = 4,
                    .vocab = 4096,
                    .steps = 20,
                    .threads = {1, 2},
                    .num_threads = 2};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--reducer") == 0) {
            set.reducer = true;
        } else if (i + 1 < argc && read_option(&set, argv[i], argv[i + 1])) {
            i++;
        } else {
            fprintf(stderr, "bench_train: %s? See the head of bench/train.c\n", argv[i]);
            return 2;
        }
    }
    if (!set.heads) set.heads = set.channels >= 64 ? set.channels / 64 : 1;
    printf("gpt2 L%lld C%lld NH%lld T%lld B%lld V%lld, %d steps%s\n", (long long)set.layers,
           (long long)set.channels, (long long)set.heads, (long long)set.positions,
           (long long)set.batch, (long long)set.vocab, set.steps,
           set.reducer ? ", with the reducer" : "");
    for (int i = 0; i < set.num_threads; i++) run(&set, set.threads[i]);
    return 0;
}
