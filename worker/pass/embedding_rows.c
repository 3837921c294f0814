#include "worker/pass/embedding_rows.h"

#include <stdlib.h>

#include "gradsync/reducer/bucket_queue.h"

#define WTE ((size_t)0)  // the tied embedding's place among the parameters of gpt2

struct gs_embedding_rows {
    gs_sparse_rows *rows;
    gs_reducer *reducer;
    gs_row_sink sink;
    gs_status failed;  // of a callback
    int64_t samples;   // of this rank in the step, so far
    bool reduces;      // the open pass is the last of the step
    const int32_t *tokens,
        *host_tokens;  // of the open pass, as the model and as the host reads them
    size_t param;
    gs_sparse_rows_result result;
};

// The most positions that a rank has in a step.
static size_t most_positions(const gs_embedding_rows_options *options, int num_shards) {
    const gs_job_spec *spec = options->spec;
    return (size_t)num_shards * (size_t)gs_job_spec_passes_per_shard(spec) *
           (size_t)spec->data.micro_batch * (size_t)spec->model.gpt2.context;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

// False when gradients are dense.
static bool choose_options(gs_sparse_rows_options *rows, gs_param_spec *param,
                           const gs_embedding_rows_options *options) {
    static const gs_rows_mode modes[] = {[GS_SPARSE_GATHER] = GS_ROWS_GATHER,
                                         [GS_SPARSE_OWNER] = GS_ROWS_OWNER,
                                         [GS_SPARSE_AUTO] = GS_ROWS_AUTO};
    static const gs_reducer_op ops[] = {[GS_REDUCER_MEAN] = GS_MEAN,
                                        [GS_REDUCER_SUM] = GS_SUM,
                                        [GS_REDUCER_SAMPLE_MEAN] = GS_SAMPLE_MEAN};
    const gs_job_spec *spec = options->spec;
    const gs_logical_shards *shards = &options->shards;
    int mode = spec->reducer.sparse_embedding, world_size = shards->world_size;
    if (spec->model.kind != GS_MODEL_GPT2 || mode == GS_SPARSE_OFF) return false;
    size_t vocab = (size_t)spec->model.gpt2.vocab;
    int most_shards = (shards->num_shards + world_size - 1) / world_size;
    size_t most_rows = least(most_positions(options, most_shards), vocab);
    if (mode == GS_SPARSE_AUTO && !gs_sparse_rows_pays(vocab, most_rows, world_size)) return false;
    *param = gs_param_spec_make(GS_FP32, spec->model.gpt2.vocab, spec->model.gpt2.channels,
                                "wte.weight");
    *rows = (gs_sparse_rows_options){
        .param = param,
        .max_rows = least(most_positions(options, gs_logical_shards_count(shards)), vocab),
        .most_rows = most_rows,
        .mode = modes[mode],
        .op = ops[spec->reducer.op],
        .divisor = (double)shards->num_shards * (double)gs_job_spec_passes_per_shard(spec),
        .memory = options->memory,
        .device = options->device};
    return true;
}

gs_status gs_embedding_rows_bytes(size_t *bytes, const gs_embedding_rows_options *options) {
    gs_param_spec param;
    gs_sparse_rows_options rows;
    *bytes = 0;
    if (!choose_options(&rows, &param, options)) return gs_ok();
    return gs_sparse_rows_bytes(bytes, &rows, options->shards.world_size);
}

// What the model points to, in host memory.
static const int32_t *find_on_host(const gs_embedding_rows *rows, const int32_t *tokens) {
    return rows->host_tokens + (tokens - rows->tokens);
}

// All tokens of the step are known with those of its last pass.
static void touch_rows(void *ctx, size_t param, const int32_t *tokens, size_t num_rows) {
    (void)param;
    gs_embedding_rows *rows = ctx;
    if (rows->failed.code) return;
    rows->failed = gs_sparse_rows_touch(rows->rows, find_on_host(rows, tokens), GS_I32, num_rows);
    if (!rows->failed.code && rows->reduces)
        rows->failed = gs_sparse_rows_post_indices(rows->rows, rows->samples);
}

static void add_rows(void *ctx, size_t param, const int32_t *tokens, const float *values,
                     size_t num_rows) {
    (void)param;
    gs_embedding_rows *rows = ctx;
    if (rows->failed.code) return;
    rows->failed =
        gs_sparse_rows_add(rows->rows, find_on_host(rows, tokens), GS_I32, values, num_rows);
}

gs_status gs_embedding_rows_create(gs_embedding_rows **out,
                                   const gs_embedding_rows_options *options, gs_reducer *reducer,
                                   gs_comm *comm, gs_deadline deadline) {
    *out = NULL;
    gs_param_spec param;
    gs_sparse_rows_options sparse;
    if (!choose_options(&sparse, &param, options)) return gs_ok();
    gs_embedding_rows *rows = calloc(1, sizeof *rows);
    if (!rows) return gs_error(GS_RESOURCE_EXHAUSTED, "embedding rows: out of memory");
    rows->reducer = reducer;
    rows->param = WTE;
    rows->sink = (gs_row_sink){.touch = touch_rows, .add = add_rows, .ctx = rows};
    gs_status status = gs_sparse_rows_create(&rows->rows, &sparse, comm, deadline);
    if (status.code) {
        free(rows);
        return status;
    }
    *out = rows;
    return gs_ok();
}

void gs_embedding_rows_destroy(gs_embedding_rows *rows) {
    if (!rows) return;
    gs_sparse_rows_destroy(rows->rows);
    free(rows);
}

static gs_status add_to_dense_half(void *ctx, void *const *grads, gs_deadline deadline) {
    gs_embedding_rows *rows = ctx;
    if (rows->failed.code) return rows->failed;
    GS_TRY(gs_sparse_rows_finish(rows->rows, &rows->result, deadline));
    return gs_sparse_rows_add_to(rows->rows, grads[rows->param]);
}

gs_status gs_embedding_rows_begin(gs_embedding_rows *rows, int64_t step) {
    if (!rows) return gs_ok();
    rows->samples = 0;
    rows->reduces = false;
    GS_TRY(gs_sparse_rows_begin(rows->rows, step));
    return gs_reducer_add_tail(rows->reducer, &(gs_reducer_tail){.finish = add_to_dense_half,
                                                                 .ctx = rows,
                                                                 .params = &rows->param,
                                                                 .num_params = 1});
}

void gs_embedding_rows_open_pass(gs_embedding_rows *rows, gs_model_pass *pass,
                                 const gs_reducer_pass *reducing, const int32_t *host_tokens) {
    if (!rows) return;
    rows->tokens = pass->batch->tokens;
    rows->host_tokens = host_tokens;
    rows->samples += (int64_t)pass->batch->rows;
    rows->reduces = reducing->reduces;
    pass->sparse = &rows->sink;
}

gs_status gs_embedding_rows_empty_pass(gs_embedding_rows *rows, const gs_reducer_pass *reducing) {
    if (!rows || !reducing->reduces) return gs_ok();
    return gs_sparse_rows_post_indices(rows->rows, rows->samples);
}

// Behind the last bucket on every rank: at once when the reducer has posted all of them by the end
// of the last pass, whatever the timing; else by the tail.
static bool is_behind_all_buckets(const gs_embedding_rows *rows) {
    return gs_reducer_posts_all(rows->reducer);
}

gs_status gs_embedding_rows_post(gs_embedding_rows *rows, gs_deadline deadline) {
    if (!rows) return gs_ok();
    if (rows->failed.code) return rows->failed;
    if (!is_behind_all_buckets(rows)) return gs_ok();
    return gs_sparse_rows_post(rows->rows, deadline);
}

const gs_sparse_rows_result *gs_embedding_rows_result(const gs_embedding_rows *rows) {
    return rows ? &rows->result : NULL;
}
