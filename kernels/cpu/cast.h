// Conversions of short blocks, for cast and reduce: round to nearest even, NaN stays quiet NaN, the
// bits of core/dtype.h.
#ifndef KERNELS_CPU_CAST_H
#define KERNELS_CPU_CAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "kernels/cpu/isa.h"

void GS_CPU(widen_fp16)(float *out, const uint16_t *in, size_t count);
void GS_CPU(narrow_fp16)(uint16_t *out, const float *in, size_t count);
void GS_CPU(widen_bf16)(float *out, const uint16_t *in, size_t count);
void GS_CPU(narrow_bf16)(uint16_t *out, const float *in, size_t count);
// out[i] = or += in[i] · scale, rounded to 16 bits and back. In place, or elsewhere.
void GS_CPU(round_fp16)(float *out, const float *in, float scale, size_t count, bool accumulate);
void GS_CPU(round_bf16)(float *out, const float *in, float scale, size_t count, bool accumulate);

// A vector of fp32, and its way through fp16 and back, where there are instructions for it.
#if defined(__AVX512F__)
#define GS_FP16_LANES ((size_t)16)
#define gs_load_fp16_lanes _mm512_loadu_ps
#define gs_store_fp16_lanes _mm512_storeu_ps
#define gs_fill_fp16_lanes _mm512_set1_ps
typedef __m512 gs_fp16_lanes;
GS_INLINE __m512 gs_round_fp16_lanes(__m512 values) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
#define GS_FP16_LANES ((size_t)8)
#define gs_load_fp16_lanes _mm256_loadu_ps
#define gs_store_fp16_lanes _mm256_storeu_ps
#define gs_fill_fp16_lanes _mm256_set1_ps
typedef __m256 gs_fp16_lanes;
GS_INLINE __m256 gs_round_fp16_lanes(__m256 values) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}
#endif

#endif
