#include "worker/data/window_files.h"

#include <stdlib.h>

#include "core/memory.h"

#define MOST_TOKEN_BYTES 4

typedef struct count_ctx {
    const gs_window_kind *kind;
    gs_window_files *data;
} count_ctx;

// The last token of a window is a target only.
static gs_status count_windows(void *ctx, int64_t *samples, const gs_data_file *file) {
    const count_ctx *count = ctx;
    gs_window_files *data = count->data;
    int64_t tokens = 0;
    GS_TRY(count->kind->count_tokens(&tokens, &data->token_bytes[file - data->set.files], file));
    *samples = tokens ? (tokens - 1) / data->positions : 0;
    return gs_ok();
}

static gs_status open_windows(gs_window_files *data, gs_dataset_shape *shape,
                              const gs_dataset_options *options, const gs_window_kind *kind) {
    size_t raw_bytes;
    gs_digest digest;
    GS_TRY(gs_file_set_open(&data->set, options));
    if (!gs_bytes_of(&raw_bytes, (size_t)data->positions + 1, MOST_TOKEN_BYTES))
        return gs_error(GS_INVALID_ARGUMENT, "%s: a sample of %lld positions is too large",
                        kind->name, (long long)data->positions);
    data->token_bytes = calloc(data->set.count + 1, sizeof *data->token_bytes);
    data->raw = malloc(raw_bytes);
    if (!data->token_bytes || !data->raw)
        return gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", kind->name);
    GS_TRY(gs_file_set_number(&data->set, count_windows, &(count_ctx){kind, data}));
    GS_TRY(gs_file_set_digest(&digest, &data->set, kind->header_bytes));
    *shape = (gs_dataset_shape){.num_samples = data->set.num_samples,
                                .positions = data->positions,
                                .digest = digest,
                                .file_begins = data->set.first_sample,
                                .num_files = data->set.count};
    return gs_ok();
}

gs_status gs_window_files_open(void **out, const gs_dataset_options *options,
                               gs_dataset_shape *shape, const gs_window_kind *kind) {
    if (options->positions < 1)
        return gs_error(GS_INVALID_ARGUMENT, "%s: a sample needs at least one position",
                        kind->name);
    if (options->vocab < kind->least_vocab)
        return gs_error(GS_INVALID_ARGUMENT, "%s: vocab %lld is below %lld", kind->name,
                        (long long)options->vocab, (long long)kind->least_vocab);
    gs_window_files *data = calloc(1, sizeof *data);
    if (!data) return gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", kind->name);
    data->positions = options->positions;
    data->vocab = options->vocab;
    data->header_bytes = kind->header_bytes;
    gs_status status = open_windows(data, shape, options, kind);
    if (status.code) {
        gs_window_files_close(data);
        return status;
    }
    *out = data;
    return gs_ok();
}

void gs_window_files_close(void *dataset) {
    gs_window_files *data = dataset;
    if (!data) return;
    gs_file_set_close(&data->set);
    free(data->token_bytes);
    free(data->raw);
    free(data);
}

gs_status gs_window_files_read(gs_window *window, gs_window_files *data, int64_t index) {
    int64_t within;
    const gs_data_file *file = gs_file_set_locate(&data->set, index, &within);
    *window = (gs_window){.file = file,
                          .first_token = within * data->positions,
                          .token_bytes = data->token_bytes[file - data->set.files],
                          .tokens = data->raw};
    size_t begin = data->header_bytes + (size_t)window->first_token * window->token_bytes;
    return gs_data_file_read(file, data->raw, begin,
                             ((size_t)data->positions + 1) * window->token_bytes);
}
