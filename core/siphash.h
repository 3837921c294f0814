// SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012): who does not know the
// key can foretell no output. Values; any thread.
#ifndef CORE_SIPHASH_H
#define CORE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

#define GS_SIPHASH_BYTES 16  // of a key, and of what comes out

void gs_siphash(uint8_t out[GS_SIPHASH_BYTES], const uint8_t key[GS_SIPHASH_BYTES], const void *data, size_t bytes);

#endif
