// What sums share: how far they go at a time, and what they ask for before they write. Lines that are written are
// asked for with write intent so many bytes early: one that is dirty in another core's cache then moves once instead
// of twice. Plain stores follow: the lines have just been read.
#ifndef KERNELS_CPU_REDUCE_H
#define KERNELS_CPU_REDUCE_H

#include <stddef.h>

#include "kernels/cpu/isa.h"

#define GS_REDUCE_STEP 64  // elements: 256 bytes of fp32
#define GS_REDUCE_AHEAD_BYTES 768
#define GS_REDUCE_LINE_BYTES 64

GS_INLINE void gs_prefetch_step(const gs_reduction *r, size_t first_byte, size_t bytes) {
    for (int k = 0; k < r->num_outputs; k++) {
        char *ahead = (char *)r->outputs[k] + first_byte + GS_REDUCE_AHEAD_BYTES;
        for (size_t at = 0; at < bytes; at += GS_REDUCE_LINE_BYTES)
            __builtin_prefetch(ahead + at, 1, 3);
    }
}

// A reduction with a wire dtype, checked before.
void GS_CPU(sum_by_wire)(const gs_reduction *r);

#endif
