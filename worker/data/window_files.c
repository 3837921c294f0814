#include "worker/data/window_files.h"

#include <stdlib.h>

typedef struct count_ctx {
    const gs_window_kind *kind;
    int64_t positions;
} count_ctx;

// The last token of a window is a target only.
static gs_status count_windows(void *ctx, int64_t *samples, const gs_mapped_file *file) {
    const count_ctx *count = ctx;
    int64_t tokens = 0;
    GS_TRY(count->kind->count_tokens(&tokens, file));
    *samples = tokens ? (tokens - 1) / count->positions : 0;
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
    count_ctx count = {kind, options->positions};
    gs_status status = gs_file_set_open(&data->set, options);
    if (!status.code) status = gs_file_set_number(&data->set, count_windows, &count);
    if (status.code) {
        gs_window_files_close(data);
        return status;
    }
    *shape = (gs_dataset_shape){.num_samples = data->set.num_samples,
                                .positions = options->positions,
                                .digest = gs_file_set_digest(&data->set, kind->header_bytes),
                                .file_begins = data->set.first_sample,
                                .num_files = data->set.count};
    *out = data;
    return gs_ok();
}

void gs_window_files_close(void *dataset) {
    gs_window_files *data = dataset;
    if (!data) return;
    gs_file_set_close(&data->set);
    free(data);
}

const gs_mapped_file *gs_window_files_locate(const gs_window_files *data, int64_t index,
                                             int64_t *first_token) {
    int64_t window;
    const gs_mapped_file *file = gs_file_set_locate(&data->set, index, &window);
    *first_token = window * data->positions;
    return file;
}
