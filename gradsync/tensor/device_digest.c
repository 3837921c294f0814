#include "gradsync/tensor/device_digest.h"

#include <stdlib.h>

#define PIECE_BYTES ((size_t)1 << 20)

gs_status gs_device_digest_add(gs_digest_stream *stream, gs_device *device, const void *memory,
                               size_t bytes) {
    if (!bytes) return gs_ok();
    if (gs_device_is_host(device)) {
        gs_digest_stream_add(stream, memory, bytes);
        return gs_ok();
    }
    size_t most = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
    void *piece = malloc(most);
    gs_status status = gs_ok();
    if (!piece) status = gs_error(GS_RESOURCE_EXHAUSTED, "digest of device memory: out of memory");
    for (size_t at = 0, part; at < bytes && !status.code; at += part) {
        part = bytes - at < most ? bytes - at : most;
        status = gs_device_download(device, piece, (const char *)memory + at, part);
        if (!status.code) gs_digest_stream_add(stream, piece, part);
    }
    free(piece);
    return status;
}
