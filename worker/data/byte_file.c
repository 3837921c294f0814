// Any files as text: a token is a byte.
#include "worker/data/dataset.h"
#include "worker/data/window_files.h"

#define BYTE_VOCAB 256

static gs_status count_bytes(int64_t *tokens, const gs_mapped_file *file) {
    *tokens = (int64_t)file->bytes;
    return gs_ok();
}

static gs_status open_files(void **out, const gs_dataset_options *options,
                            gs_dataset_shape *shape) {
    static const gs_window_kind kind = {
        .name = "bytes", .least_vocab = BYTE_VOCAB, .count_tokens = count_bytes};
    return gs_window_files_open(out, options, shape, &kind);
}

static gs_status fill_window(void *dataset, int64_t index, int32_t *tokens, float *features,
                             int32_t *targets) {
    (void)features;
    const gs_window_files *data = dataset;
    int64_t first;
    const gs_mapped_file *file = gs_window_files_locate(data, index, &first);
    const uint8_t *bytes = file->data + first;
    for (int64_t t = 0; t < data->positions; t++) {
        tokens[t] = bytes[t];
        targets[t] = bytes[t + 1];
    }
    return gs_ok();
}

const gs_dataset_ops gs_dataset_bytes = {
    .name = "bytes", .open = open_files, .fill = fill_window, .close = gs_window_files_close};
