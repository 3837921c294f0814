// Token shards as llm.c writes them: 1024 bytes of little-endian header, then 16- or 32-bit token
// ids.
//
//   int32[256]  magic 20240520, version 1: uint16 ids; magic 20240801, version 7: uint32 ids
//               [2] how many ids follow; the file's size must be exactly that
//
// A sample is a window of positions + 1 ids at stride positions. Offsets have 64 bits.
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/dataset.h"
#include "worker/data/file_set.h"

#define HEADER_BYTES 1024

typedef struct token_files {
    gs_file_set set;
    int64_t positions, vocab;
} token_files;

static uint32_t read_u32(const uint8_t *bytes) {
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
    return le32toh(value);
}

// Bytes of an id by the header's magic; 0 when it is none.
static size_t id_bytes_of(const gs_mapped_file *file) {
    uint32_t magic = read_u32(file->data), version = read_u32(file->data + 4);
    if (magic == 20240520 && version == 1) return 2;
    if (magic == 20240801 && version == 7) return 4;
    return 0;
}

static gs_status count_windows(void *ctx, int64_t *samples, const gs_mapped_file *file) {
    const token_files *data = ctx;
    if (file->bytes < HEADER_BYTES)
        return gs_error(GS_DATA_LOSS, "%s: %zu bytes are too few for a token shard's header",
                        file->name, file->bytes);
    size_t id_bytes = id_bytes_of(file);
    if (!id_bytes)
        return gs_error(GS_DATA_LOSS, "%s: magic %u, version %u is not a token shard's", file->name,
                        read_u32(file->data), read_u32(file->data + 4));
    uint32_t count = read_u32(file->data + 8);
    if (count > INT32_MAX)
        return gs_error(GS_DATA_LOSS, "%s: the header says a negative number of tokens",
                        file->name);
    uint64_t bytes = HEADER_BYTES + (uint64_t)count * id_bytes;
    if (bytes != file->bytes)
        return gs_error(GS_DATA_LOSS, "%s: %zu bytes, but %u tokens make %llu", file->name,
                        file->bytes, count, (unsigned long long)bytes);
    *samples = count ? ((int64_t)count - 1) / data->positions : 0;
    return gs_ok();
}

static void close_files(void *dataset) {
    token_files *data = dataset;
    if (!data) return;
    gs_file_set_close(&data->set);
    free(data);
}

static gs_status open_files(void **out, const gs_dataset_options *options,
                            gs_dataset_shape *shape) {
    if (options->positions < 1 || options->vocab < 1)
        return gs_error(GS_INVALID_ARGUMENT, "token shards: positions and vocab must be positive");
    token_files *data = calloc(1, sizeof *data);
    if (!data) return gs_error(GS_RESOURCE_EXHAUSTED, "token shards: out of memory");
    data->positions = options->positions;
    data->vocab = options->vocab;
    gs_status status = gs_file_set_open(&data->set, options);
    if (!status.code) status = gs_file_set_number(&data->set, count_windows, data);
    if (status.code) {
        close_files(data);
        return status;
    }
    *shape = (gs_dataset_shape){.num_samples = data->set.num_samples,
                                .positions = options->positions,
                                .digest = gs_file_set_digest(&data->set, HEADER_BYTES)};
    *out = data;
    return gs_ok();
}

static gs_status fill_window(void *dataset, int64_t index, int32_t *tokens, float *features,
                             int32_t *targets) {
    (void)features;
    const token_files *data = dataset;
    int64_t window;
    const gs_mapped_file *file = gs_file_set_locate(&data->set, index, &window);
    size_t id_bytes = id_bytes_of(file);
    int64_t first = window * data->positions;
    const uint8_t *ids = file->data + HEADER_BYTES + (uint64_t)first * id_bytes;
    for (int64_t t = 0; t <= data->positions; t++) {
        uint32_t id;
        if (id_bytes == 2) {
            uint16_t narrow;
            memcpy(&narrow, ids + 2 * t, sizeof narrow);
            id = le16toh(narrow);
        } else {
            id = read_u32(ids + 4 * t);
        }
        if (id >= data->vocab)
            return gs_error(GS_DATA_LOSS, "%s: token %lld is %u, at or above vocab %lld",
                            file->name, (long long)(first + t), id, (long long)data->vocab);
        if (t < data->positions) tokens[t] = (int32_t)id;
        if (t > 0) targets[t - 1] = (int32_t)id;
    }
    return gs_ok();
}

const gs_dataset_ops gs_dataset_token_shards = {
    .name = "token_shards", .open = open_files, .fill = fill_window, .close = close_files};
