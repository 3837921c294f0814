#include "core/stream_copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

#define LINE_BYTES ((size_t)64)
#define AHEAD_BYTES ((size_t)1024)

static void copy_line(__m128i *to, const __m128i *from) {
    __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
}

void gs_stream_copy(void *to, const void *from, size_t bytes) {
    unsigned char *out = to;
    const unsigned char *in = from;
    size_t first = (LINE_BYTES - (uintptr_t)out % LINE_BYTES) % LINE_BYTES;
    if (first > bytes) first = bytes;
    memcpy(out, in, first);
    size_t at = first;
    for (; at + LINE_BYTES <= bytes; at += LINE_BYTES) {
        __builtin_prefetch(in + at + AHEAD_BYTES);
        copy_line((__m128i *)(void *)(out + at), (const __m128i *)(const void *)(in + at));
    }
    memcpy(out + at, in + at, bytes - at);
    _mm_sfence();
}
#else
void gs_stream_copy(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
}
#endif
