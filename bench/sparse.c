// The tied embedding of GPT-2 on N ranks: its gradient dense, or its embedding half as rows.
//
//   bench_sparse [--ranks 2] [--layers 2] [--channels 256] [--positions 64] [--batch 4]
//                [--vocab 50257] [--steps 20]
//
// A step is forward, backward and reduction, buckets in the order in which gradients became ready
// in the first step. "exposed" is what the reduction takes of the computing thread: moving bytes
// between kernels, and waiting at the end. Bytes are what a rank takes from the others: an
// all-reduce of S bytes counts 2·S·(N-1)/N. "table" is an embedding that is tied to nothing: its
// whole gradient in one all-reduce, or its rows alone, both in turn. Medians of rank 0; the least
// in brackets.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/measure.h"
#include "core/random.h"
#include "tests/support/ranks.h"
#include "worker/models/registry.h"
#include "worker/pass/embedding_rows.h"

#define MAX_STEPS 1000
#define MAX_PARAMS 1024
#define WAIT_SECONDS 60.0

typedef struct settings {
    int ranks, layers, channels, positions, batch, vocab, steps, mode;
} settings;

typedef struct bench {
    settings set;
    gs_job_spec spec;
    gs_device *device;
    gs_model model;
    gs_param_spec specs[MAX_PARAMS];
    size_t num_params;
    void *params[MAX_PARAMS];
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    gs_embedding_rows *rows;
    int32_t *tokens;
    gs_sparse_rows *table;
    float *table_values;  // (batch · positions, channels)
    double step_ms[MAX_STEPS], exposed_ms[MAX_STEPS], dense_table_ms[MAX_STEPS],
        table_ms[MAX_STEPS];
} bench;

static gs_deadline soon(void) {
    return gs_deadline_in_seconds(WAIT_SECONDS);
}

static gs_status open_model(bench *self) {
    const settings *set = &self->set;
    gs_gpt2_options options = {.layers = set->layers,
                               .heads = set->channels >= 64 ? set->channels / 64 : 1,
                               .channels = set->channels,
                               .context = set->positions,
                               .vocab = set->vocab,
                               .micro_batch = set->batch};
    GS_TRY(gs_gpt2_create(&self->model, &options, self->device));
    const gs_model_param *list = self->model.ops->params(self->model.state, &self->num_params);
    if (self->num_params > MAX_PARAMS) return gs_error(GS_INVALID_ARGUMENT, "too many layers");
    for (size_t p = 0; p < self->num_params; p++) {
        self->specs[p] = list[p].spec;
        GS_TRY(gs_device_alloc(self->device, &self->params[p], gs_param_spec_bytes(&list[p].spec)));
    }
    self->tokens = calloc((size_t)set->batch * (size_t)set->positions + 1, sizeof *self->tokens);
    if (!self->tokens) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    return self->model.ops->init(self->model.state, self->params, NULL, 1);
}

static void fill_spec(gs_job_spec *spec, const settings *set) {
    spec->model.kind = GS_MODEL_GPT2;
    spec->model.gpt2.channels = set->channels;
    spec->model.gpt2.context = set->positions;
    spec->model.gpt2.vocab = set->vocab;
    spec->logical_shards = set->ranks;
    spec->data.micro_batch = set->batch;
    spec->data.global_batch = set->ranks * set->batch;
    spec->reducer.sparse_embedding = set->mode;
}

static gs_status connect_ranks(bench *self, const gs_rank_env *env) {
    gs_bucket_plan plan;
    GS_TRY(gs_bucket_plan_one_host(&plan, self->specs, self->num_params, NULL));
    gs_logical_shards shards = {
        .num_shards = env->world_size, .world_size = env->world_size, .rank = env->rank};
    gs_reducer_options options = {.params = self->specs,
                                  .num_params = self->num_params,
                                  .plan = &plan,
                                  .shards = shards,
                                  .device = self->device};
    gs_embedding_rows_options rows = {
        .spec = &self->spec, .shards = shards, .device = self->device};
    size_t bytes, row_bytes;
    GS_TRY(gs_reducer_arena_bytes(&bytes, &options));
    GS_TRY(gs_embedding_rows_bytes(&row_bytes, &rows));
    bytes = (bytes + 63) / 64 * 64;
    GS_TRY(gs_arena_create(&self->arena, bytes + row_bytes));
    gs_comm_options comm = {.rank = env->rank,
                            .world_size = env->world_size,
                            .generation = 1,
                            .exchange = gs_rank_exchange,
                            .exchange_ctx = env->exchange,
                            .arena = self->arena,
                            .device = self->device};
    GS_TRY(gs_comm_create(&self->comm, &comm, soon()));
    options.arena = self->arena;
    GS_TRY(gs_reducer_create(&self->reducer, &options, self->comm, soon()));
    gs_bucket_plan_release(&plan);
    rows.memory = (char *)gs_arena_data(self->arena) + bytes;
    return gs_embedding_rows_create(&self->rows, &rows, self->reducer, self->comm, soon());
}

// Tokens as text has them: the k-th likeliest about 1/k as likely as the first.
static void draw_tokens(bench *self, int rank, int64_t step) {
    gs_random_key key = {1, gs_random_stream((uint64_t)step, (uint64_t)rank, 0)};
    size_t count = (size_t)self->set.batch * (size_t)self->set.positions;
    for (size_t i = 0; i < count; i++) {
        double uniform = gs_random_uniform(key, i);
        double rank_of_token = pow((double)self->set.vocab, uniform) - 1;
        uint64_t shuffled = gs_random_permute((gs_random_key){1, 2}, (uint64_t)self->set.vocab,
                                              (uint64_t)rank_of_token);
        self->tokens[i] = (int32_t)shuffled;
    }
}

static double ms_since(int64_t since_ns) {
    return (double)(measure_now_ns() - since_ns) / 1e6;
}

static gs_status run_step(bench *self, const gs_rank_env *env, int64_t step, int at) {
    draw_tokens(self, env->rank, step);
    gs_batch batch = {.rows = (size_t)self->set.batch,
                      .positions = (size_t)self->set.positions,
                      .tokens = self->tokens,
                      .targets = self->tokens};
    gs_reducer_pass reducing;
    gs_reduce_result result;
    GS_TRY(gs_comm_run(self->comm, &(gs_collective){.kind = GS_BARRIER, .step = step, .bucket = -1},
                       soon()));
    int64_t began_ns = measure_now_ns();
    GS_TRY(gs_reducer_begin(self->reducer, step));
    GS_TRY(gs_embedding_rows_begin(self->rows, step));
    GS_TRY(gs_reducer_begin_pass(self->reducer, &reducing, self->set.batch));
    gs_model_pass pass = {.batch = &batch,
                          .training = true,
                          .step = step,
                          .params = self->params,
                          .grads = reducing.grads,
                          .grad_factor = 1,
                          .ready = gs_reducer_ready_callback,
                          .ready_ctx = self->reducer};
    gs_embedding_rows_open_pass(self->rows, &pass, &reducing, batch.tokens);
    GS_TRY(self->model.ops->forward(self->model.state, &pass));
    GS_TRY(self->model.ops->backward(self->model.state, &pass));
    GS_TRY(gs_reducer_end_pass(self->reducer));
    GS_TRY(gs_embedding_rows_post(self->rows, soon()));
    GS_TRY(gs_reducer_finish(self->reducer, &result, soon()));
    self->exposed_ms[at] = (double)gs_reducer_stats(self->reducer)->exposed_ns / 1e6;
    self->step_ms[at] = ms_since(began_ns);
    return gs_ok();
}

static gs_status follow_ready_order(bench *self) {
    gs_bucket_plan plan;
    GS_TRY(gs_bucket_plan_one_host(&plan, self->specs, self->num_params,
                                   gs_reducer_ready_order(self->reducer)));
    gs_status status = gs_reducer_set_plan(self->reducer, &plan, soon());
    gs_bucket_plan_release(&plan);
    return status;
}

static gs_status open_table(bench *self) {
    size_t num_rows = (size_t)self->set.batch * (size_t)self->set.positions;
    gs_sparse_rows_options options = {.param = &self->specs[0],
                                      .max_rows = num_rows,
                                      .mode = self->set.mode == GS_SPARSE_OWNER ? GS_ROWS_OWNER
                                                                                : GS_ROWS_GATHER,
                                      .device = self->device};
    self->table_values = calloc(num_rows * (size_t)self->set.channels, sizeof(float));
    if (!self->table_values) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    return gs_sparse_rows_create(&self->table, &options, self->comm, soon());
}

// The gradient of a table as tokens make it, dense or as rows, and its reduction.
static gs_status reduce_dense_table(bench *self) {
    float *grad = gs_reducer_grads(self->reducer)[0];
    size_t count = gs_param_spec_count(&self->specs[0]);
    const gs_kernels *k = gs_device_kernels(self->device);
    gs_stream *stream = gs_device_stream(self->device);
    k->fill(stream, grad, 0, count);
    k->add_rows(stream, grad, self->tokens, self->table_values,
                (size_t)self->set.batch * (size_t)self->set.positions, (size_t)self->set.channels);
    return gs_comm_run(self->comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = grad,
                                        .recv = grad,
                                        .count = count,
                                        .dtype = GS_FP32,
                                        .step = -1,
                                        .bucket = -1},
                       soon());
}

static gs_status reduce_table_rows(bench *self, int64_t step) {
    gs_sparse_rows_result result;
    GS_TRY(gs_sparse_rows_begin(self->table, step));
    GS_TRY(gs_sparse_rows_add(self->table, self->tokens, GS_I32, self->table_values,
                              (size_t)self->set.batch * (size_t)self->set.positions));
    return gs_sparse_rows_finish(self->table, &result, soon());
}

static gs_status measure_tables(bench *self, const gs_rank_env *env) {
    if (self->set.mode == GS_SPARSE_OFF) return gs_ok();
    const gs_collective barrier = {.kind = GS_BARRIER, .step = -1, .bucket = -1};
    GS_TRY(open_table(self));
    for (int i = 0; i < self->set.steps; i++) {
        draw_tokens(self, env->rank, 1000 + i);
        GS_TRY(gs_comm_run(self->comm, &barrier, soon()));
        int64_t began_ns = measure_now_ns();
        GS_TRY(reduce_dense_table(self));
        self->dense_table_ms[i] = ms_since(began_ns);
        GS_TRY(gs_comm_run(self->comm, &barrier, soon()));
        began_ns = measure_now_ns();
        GS_TRY(reduce_table_rows(self, i));
        self->table_ms[i] = ms_since(began_ns);
    }
    gs_sparse_rows_destroy(self->table);
    free(self->table_values);
    return gs_ok();
}

static void report(bench *self, const gs_rank_env *env) {
    const gs_reduce_stats *stats = gs_reducer_stats(self->reducer);
    const gs_sparse_rows_result *rows = gs_embedding_rows_result(self->rows);
    uint64_t bucket_bytes = 0;
    for (size_t b = 0; b < stats->num_buckets; b++) bucket_bytes += stats->buckets[b].wire_bytes;
    bucket_bytes = 2 * bucket_bytes * (uint64_t)(env->world_size - 1) / (uint64_t)env->world_size;
    char text[400];
    int steps = self->set.steps;
    double step_ms = measure_quantile(self->step_ms, steps, 0.5);
    double exposed_ms = measure_quantile(self->exposed_ms, steps, 0.5);
    double dense_table_ms = measure_quantile(self->dense_table_ms, steps, 0.5);
    double table_ms = measure_quantile(self->table_ms, steps, 0.5);
    snprintf(text, sizeof text,
             "%-6s step %.1f (%.1f) ms, exposed %.2f (%.2f) ms; buckets %.2f MB, rows %.3f MB, "
             "indices %.3f MB; rows: %zu own, %zu of all",
             rows ? gs_rows_mode_name(rows->mode) : "dense", step_ms, self->step_ms[0], exposed_ms,
             self->exposed_ms[0], (double)bucket_bytes / 1e6,
             rows ? (double)rows->row_bytes / 1e6 : 0.0,
             rows ? (double)rows->index_bytes / 1e6 : 0.0, rows ? rows->num_own : 0,
             rows ? rows->num_rows : 0);
    if (rows) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used,
                 "; table: dense %.2f (%.2f) ms, %.2f MB; rows %.2f (%.2f) ms", dense_table_ms,
                 self->dense_table_ms[0],
                 2e-6 * (double)gs_param_spec_bytes(&self->specs[0]) * (env->world_size - 1) /
                     env->world_size,
                 table_ms, self->table_ms[0]);
    }
    gs_rank_note(env, text);
}

static gs_status body_bench(const gs_rank_env *env) {
    bench *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    settings *set = &self->set;
    if (sscanf(env->arg, "%d %d %d %d %d %d %d %d", &set->ranks, &set->layers, &set->channels,
               &set->positions, &set->batch, &set->vocab, &set->steps, &set->mode) != 8)
        return gs_error(GS_INTERNAL, "settings");
    fill_spec(&self->spec, set);
    GS_TRY(gs_device_open(&self->device, "cpu", &(gs_device_options){.num_threads = 1}));
    GS_TRY(open_model(self));
    GS_TRY(connect_ranks(self, env));
    GS_TRY(run_step(self, env, 0, 0));
    GS_TRY(follow_ready_order(self));
    GS_TRY(run_step(self, env, 1, 0));
    for (int i = 0; i < set->steps; i++) GS_TRY(run_step(self, env, 2 + i, i));
    GS_TRY(measure_tables(self, env));
    report(self, env);
    gs_embedding_rows_destroy(self->rows);
    gs_reducer_destroy(self->reducer);
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    gs_model_destroy(&self->model);
    for (size_t p = 0; p < self->num_params; p++) gs_device_free(self->device, self->params[p]);
    gs_device_close(self->device);
    free(self->tokens);
    free(self);
    return gs_ok();
}

static int run_mode(const settings *set) {
    char text[128];
    gs_ranks *ranks;
    gs_status *statuses = calloc((size_t)set->ranks, sizeof *statuses);
    if (!statuses) return 1;
    snprintf(text, sizeof text, "%d %d %d %d %d %d %d %d", set->ranks, set->layers, set->channels,
             set->positions, set->batch, set->vocab, set->steps, set->mode);
    gs_status status = gs_ranks_start(&ranks, "bench", set->ranks, text, NULL);
    if (!status.code) status = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(600));
    for (int r = 0; r < set->ranks && !status.code; r++) status = statuses[r];
    if (status.code)
        fprintf(stderr, "bench_sparse: %s\n", status.message);
    else
        printf("%s\n", gs_ranks_note(ranks, 0));
    gs_ranks_destroy(ranks);
    free(statuses);
    return status.code != 0;
}

static bool read_option(settings *set, const char *name, const char *value) {
    const struct {
        const char *name;
        int *to;
    } numbers[] = {{"--ranks", &set->ranks},       {"--layers", &set->layers},
                   {"--channels", &set->channels}, {"--positions", &set->positions},
                   {"--batch", &set->batch},       {"--vocab", &set->vocab},
                   {"--steps", &set->steps}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strcmp(name, numbers[i].name) != 0) continue;
        *numbers[i].to = atoi(value);
        return *numbers[i].to > 0;
    }
    return false;
}

int main(int argc, char **argv) {
    const gs_rank_body bodies[] = {{"bench", body_bench}, {0}};
    int exit_code = 0;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    settings set = {.ranks = 2,
                    .layers = 2,
                    .channels = 256,
                    .positions = 64,
                    .batch = 4,
                    .vocab = 50257,
                    .steps = 20};
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 >= argc || !read_option(&set, argv[i], argv[i + 1]) || set.steps > MAX_STEPS) {
            fprintf(stderr, "bench_sparse: %s? See the head of bench/sparse.c\n", argv[i]);
            return 2;
        }
    }
    printf("gpt2 L%d C%d T%d B%d V%d on %d ranks, %d steps\n", set.layers, set.channels,
           set.positions, set.batch, set.vocab, set.ranks, set.steps);
    const int modes[] = {GS_SPARSE_OFF, GS_SPARSE_GATHER, GS_SPARSE_OWNER};
    for (int i = 0; i < 3 && !exit_code; i++) {
        set.mode = modes[i];
        exit_code = run_mode(&set);
    }
    return exit_code;
}
