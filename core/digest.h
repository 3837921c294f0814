// Digests against mistakes (XXH3 of plans, parameters, files) and check sums of frames and blocks
// (CRC-32C). Neither is against attackers. The only file that sees xxHash.
//
// Threads: a stream of pieces serves one at a time, any, create and destroy included; everything else is a value.
#ifndef CORE_DIGEST_H
#define CORE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"

GS_BEGIN_DECLS

typedef struct gs_digest {
    uint64_t high, low;  // {0} is the digest of nothing yet
} gs_digest;

gs_digest gs_digest_of(const void *data, size_t bytes);
bool gs_digest_equal(gs_digest a, gs_digest b);
uint64_t gs_digest_fold(gs_digest digest);  // 64 bits of it, for counters and words

#define GS_DIGEST_TEXT_LEN 38  // "xxh3:" and 32 hexadecimal digits and NUL
void gs_digest_format(char text[GS_DIGEST_TEXT_LEN], gs_digest digest);
bool gs_digest_parse(gs_digest *digest, const char *text);

// Many pieces, one digest: the same as of the pieces in a row. Heap; destroy takes NULL.
typedef struct gs_digest_stream gs_digest_stream;
gs_digest_stream *gs_digest_stream_create(void);  // NULL: out of memory
void gs_digest_stream_add(gs_digest_stream *stream, const void *data, size_t bytes);
gs_digest gs_digest_stream_value(const gs_digest_stream *stream);
void gs_digest_stream_destroy(gs_digest_stream *stream);

uint64_t gs_hash64(const void *data, size_t bytes, uint64_t seed);

// CRC-32C (Castagnoli) of `data` after what gave `crc`; start with 0.
uint32_t gs_crc32c(uint32_t crc, const void *data, size_t bytes);

GS_END_DECLS

#endif
