// Any files as text: a token is a byte, a sample a window of positions + 1 bytes at stride
// positions. The bytes after a file's last whole window are left out.
#include <stdlib.h>

#include "worker/data/dataset.h"
#include "worker/data/file_set.h"

#define BYTE_VOCAB 256

typedef struct byte_files {
    gs_file_set set;
    int64_t positions;
} byte_files;

static gs_status count_windows(void *ctx, int64_t *samples, const gs_mapped_file *file) {
    const byte_files *data = ctx;
    *samples = file->bytes ? (int64_t)(file->bytes - 1) / data->positions : 0;
    return gs_ok();
}

static void close_files(void *dataset) {
    byte_files *data = dataset;
    if (!data) return;
    gs_file_set_close(&data->set);
    free(data);
}

static gs_status open_files(void **out, const gs_dataset_options *options,
                            gs_dataset_shape *shape) {
    if (options->positions < 1)
        return gs_error(GS_INVALID_ARGUMENT, "bytes: a sample needs at least one position");
    if (options->vocab < BYTE_VOCAB)
        return gs_error(GS_INVALID_ARGUMENT, "bytes: vocab %lld is below %d",
                        (long long)options->vocab, BYTE_VOCAB);
    byte_files *data = calloc(1, sizeof *data);
    if (!data) return gs_error(GS_RESOURCE_EXHAUSTED, "bytes: out of memory");
    data->positions = options->positions;
    gs_status status = gs_file_set_open(&data->set, options);
    if (!status.code) status = gs_file_set_number(&data->set, count_windows, data);
    if (status.code) {
        close_files(data);
        return status;
    }
    *shape = (gs_dataset_shape){.num_samples = data->set.num_samples,
                                .positions = options->positions,
                                .digest = gs_file_set_digest(&data->set, 0)};
    *out = data;
    return gs_ok();
}

static gs_status fill_window(void *dataset, int64_t index, int32_t *tokens, float *features,
                             int32_t *targets) {
    (void)features;
    const byte_files *data = dataset;
    int64_t window;
    const gs_mapped_file *file = gs_file_set_locate(&data->set, index, &window);
    const uint8_t *bytes = file->data + window * data->positions;
    for (int64_t t = 0; t < data->positions; t++) {
        tokens[t] = bytes[t];
        targets[t] = bytes[t + 1];
    }
    return gs_ok();
}

const gs_dataset_ops gs_dataset_bytes = {
    .name = "bytes", .open = open_files, .fill = fill_window, .close = close_files};
