// Token shards as llm.c writes them: 1024 bytes of little-endian header, then 16- or 32-bit token
// ids.
//
//   int32[256]  magic 20240520, version 1: uint16 ids; magic 20240801, version 7: uint32 ids
//               [2] how many ids follow; the file's size must be exactly that
//
// Offsets have 64 bits.
#include <endian.h>
#include <string.h>

#include "worker/data/dataset.h"
#include "worker/data/window_files.h"

#define HEADER_BYTES 1024

static uint32_t read_u32(const uint8_t *bytes) {
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
    return le32toh(value);
}

// Bytes of an id by the header's magic; 0 when it is none.
static uint8_t id_bytes_of(uint32_t magic, uint32_t version) {
    if (magic == 20240520 && version == 1) return 2;
    if (magic == 20240801 && version == 7) return 4;
    return 0;
}

static gs_status count_ids(int64_t *tokens, uint8_t *token_bytes, const gs_data_file *file) {
    uint8_t header[12];
    if (file->bytes < HEADER_BYTES)
        return gs_error(GS_DATA_LOSS, "%s: %zu bytes are too few for a token shard's header",
                        file->name, file->bytes);
    GS_TRY(gs_data_file_read(file, header, 0, sizeof header));
    uint32_t magic = read_u32(header), version = read_u32(header + 4);
    *token_bytes = id_bytes_of(magic, version);
    if (!*token_bytes)
        return gs_error(GS_DATA_LOSS, "%s: magic %u, version %u is not a token shard's", file->name,
                        magic, version);
    uint32_t count = read_u32(header + 8);
    if (count > INT32_MAX)
        return gs_error(GS_DATA_LOSS, "%s: the header says a negative number of tokens",
                        file->name);
    uint64_t bytes = HEADER_BYTES + (uint64_t)count * *token_bytes;
    if (bytes != file->bytes)
        return gs_error(GS_DATA_LOSS, "%s: %zu bytes, but %u tokens make %llu", file->name,
                        file->bytes, count, (unsigned long long)bytes);
    *tokens = count;
    return gs_ok();
}

static gs_status open_files(void **out, const gs_dataset_options *options,
                            gs_dataset_shape *shape) {
    static const gs_window_kind kind = {.name = "token shards",
                                        .header_bytes = HEADER_BYTES,
                                        .least_vocab = 1,
                                        .count_tokens = count_ids};
    return gs_window_files_open(out, options, shape, &kind);
}

static gs_status fill_window(void *dataset, int64_t index, int32_t *tokens, float *features,
                             int32_t *targets) {
    (void)features;
    gs_window_files *data = dataset;
    gs_window window;
    GS_TRY(gs_window_files_read(&window, data, index));
    const uint8_t *ids = window.tokens;
    for (int64_t t = 0; t <= data->positions; t++) {
        uint32_t id;
        if (window.token_bytes == 2) {
            uint16_t narrow;
            memcpy(&narrow, ids + 2 * t, sizeof narrow);
            id = le16toh(narrow);
        } else {
            id = read_u32(ids + 4 * t);
        }
        if (id >= data->vocab)
            return gs_error(GS_DATA_LOSS, "%s: token %lld is %u, at or above vocab %lld",
                            window.file->name, (long long)(window.first_token + t), id,
                            (long long)data->vocab);
        if (t < data->positions) tokens[t] = (int32_t)id;
        if (t > 0) targets[t - 1] = (int32_t)id;
    }
    return gs_ok();
}

const gs_dataset_ops gs_dataset_token_shards = {.name = "token_shards",
                                                .open = open_files,
                                                .fill = fill_window,
                                                .close = gs_window_files_close};
