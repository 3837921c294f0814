// A copy that is hardly ever read: past the caches, which hold what is sent and added meanwhile.
#ifndef GRADSYNC_COMM_NET_ASIDE_H
#define GRADSYNC_COMM_NET_ASIDE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

static inline void gs_net_copy_aside(void *to, const void *from, size_t bytes) {
    size_t done = 0;
#ifdef __SSE2__
    enum { PART = sizeof(__m128i), PARTS = 4 };
    if ((uintptr_t)to % PART == 0) {
        for (; done + PARTS * PART <= bytes; done += PARTS * PART) {
            const __m128i *source = (const __m128i *)(const void *)((const char *)from + done);
            __m128i *target = (__m128i *)(void *)((char *)to + done), part[PARTS];
            for (int i = 0; i < PARTS; i++) part[i] = _mm_loadu_si128(source + i);
            for (int i = 0; i < PARTS; i++) _mm_stream_si128(target + i, part[i]);
        }
        _mm_sfence();
    }
#endif
    memcpy((char *)to + done, (const char *)from + done, bytes - done);
}

#endif
