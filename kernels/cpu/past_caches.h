// Stores of what is read no more before it would have left the caches: no line is read in to be
// written over, and none that is there is driven out.
#ifndef KERNELS_CPU_PAST_CACHES_H
#define KERNELS_CPU_PAST_CACHES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/isa.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#define GS_LINE_FLOATS ((size_t)16)

// What lies on whole lines goes past the caches, and is not another thread's before
// gs_end_stores_past.
GS_INLINE void gs_store_past(float *to, const float *from, size_t count) {
    size_t i = 0;
#if defined(__SSE__)
    if ((uintptr_t)to % (GS_LINE_FLOATS * sizeof *to) == 0) {
        for (; i + GS_LINE_FLOATS <= count; i += GS_LINE_FLOATS)
            for (size_t k = i; k < i + GS_LINE_FLOATS; k += 4)
                _mm_stream_ps(to + k, _mm_loadu_ps(from + k));
    }
#endif
    memcpy(to + i, from + i, (count - i) * sizeof *to);
}

GS_INLINE void gs_end_stores_past(void) {
#if defined(__SSE__)
    _mm_sfence();
#endif
}

#endif
