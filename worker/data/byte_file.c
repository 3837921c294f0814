// Any files as text: a token is a byte.
#include "worker/data/dataset.h"
#include "worker/data/window_files.h"

#define BYTE_VOCAB 256

static gs_status count_bytes(int64_t *tokens, uint8_t *token_bytes, const gs_data_file *file) {
    *token_bytes = 1;
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
    gs_window_files *data = dataset;
    gs_window window;
    GS_TRY(gs_window_files_read(&window, data, index));
    for (int64_t t = 0; t < data->positions; t++) {
        tokens[t] = window.tokens[t];
        targets[t] = window.tokens[t + 1];
    }
    return gs_ok();
}

const gs_dataset_ops gs_dataset_bytes = {
    .name = "bytes", .open = open_files, .fill = fill_window, .close = gs_window_files_close};
