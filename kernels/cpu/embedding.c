// Token and position embeddings. The gradient of a token's row is summed in the order of positions,
// whichever thread does it: threads share out channels, not tokens.
#include <inttypes.h>
#include <string.h>

#include "kernels/cpu/chunks.h"
#include "kernels/cpu/isa.h"

typedef struct embedding_job {
    float *out;
    const int32_t *tokens;
    const float *wte, *wpe;
    size_t rows, positions, channels, rows_per_item;
} embedding_job;

static void embedding_item(void *ctx, size_t item) {
    const embedding_job *job = ctx;
    gs_range rows = gs_item_range(item, job->rows_per_item, job->rows);
    for (size_t row = rows.first; row < rows.first + rows.count; row++) {
        const float *token = job->wte + (size_t)job->tokens[row] * job->channels;
        const float *position = job->wpe + row % job->positions * job->channels;
        float *out = job->out + row * job->channels;
        GS_ELEMENTWISE
        for (size_t i = 0; i < job->channels; i++) out[i] = token[i] + position[i];
    }
}

static bool check_tokens(gs_stream *stream, const int32_t *tokens, size_t rows, size_t vocab) {
    for (size_t row = 0; row < rows; row++) {
        if (tokens[row] >= 0 && (size_t)tokens[row] < vocab) continue;
        gs_stream_fail(stream, gs_error(GS_INVALID_ARGUMENT,
                                        "embedding: row %zu: token %" PRId32 " is not in [0, %zu)",
                                        row, tokens[row], vocab));
        return false;
    }
    return true;
}

void GS_CPU(embedding)(gs_stream *stream, float *out, const int32_t *tokens, const float *wte,
                       const float *wpe, size_t batch, size_t positions, size_t channels,
                       size_t vocab) {
    if (!check_tokens(stream, tokens, batch * positions, vocab)) return;
    embedding_job job = {.out = out,
                         .tokens = tokens,
                         .wte = wte,
                         .wpe = wpe,
                         .rows = batch * positions,
                         .positions = positions,
                         .channels = channels};
    job.rows_per_item = gs_rows_per_item(channels);
    gs_stream_for_each(stream, gs_num_items(job.rows, job.rows_per_item), embedding_item, &job);
}

#define ROW_COLS ((size_t)128)

typedef struct add_rows_job {
    float *out;
    const int32_t *rows;
    const float *in;
    size_t num_rows, cols;
} add_rows_job;

static void add_rows_item(void *ctx, size_t item) {
    const add_rows_job *job = ctx;
    gs_range cols = gs_item_range(item, ROW_COLS, job->cols);
    for (size_t row = 0; row < job->num_rows; row++) {
        float *out = job->out + (size_t)job->rows[row] * job->cols + cols.first;
        const float *in = job->in + row * job->cols + cols.first;
        GS_ELEMENTWISE
        for (size_t i = 0; i < cols.count; i++) out[i] += in[i];
    }
}

void GS_CPU(add_rows)(gs_stream *stream, float *out, const int32_t *rows, const float *in,
                      size_t num_rows, size_t cols) {
    add_rows_job job = {out, rows, in, num_rows, cols};
    if (num_rows) gs_stream_for_each(stream, gs_num_items(cols, ROW_COLS), add_rows_item, &job);
}

typedef struct dwpe_job {
    float *dwpe;
    const float *dout;
    size_t batch, positions, channels;
    bool accumulate;
} dwpe_job;

static void dwpe_item(void *ctx, size_t position) {
    const dwpe_job *job = ctx;
    const size_t channels = job->channels;
    float *dwpe = job->dwpe + position * channels;
    if (!job->accumulate) memset(dwpe, 0, channels * sizeof *dwpe);
    for (size_t sequence = 0; sequence < job->batch; sequence++) {
        const float *dout = job->dout + (sequence * job->positions + position) * channels;
        GS_ELEMENTWISE
        for (size_t i = 0; i < channels; i++) dwpe[i] += dout[i];
    }
}

void GS_CPU(embedding_backward)(gs_stream *stream, float *dwte, float *dwpe, const float *dout,
                                const int32_t *tokens, size_t batch, size_t positions,
                                size_t channels, size_t vocab, bool accumulate) {
    if (!check_tokens(stream, tokens, batch * positions, vocab)) return;
    if (dwte) GS_CPU(add_rows)(stream, dwte, tokens, dout, batch * positions, channels);
    dwpe_job job = {dwpe, dout, batch, positions, channels, accumulate};
    gs_stream_for_each(stream, positions, dwpe_item, &job);
}
