// Conversions of short blocks, for cast and reduce: round to nearest even, NaN stays quiet NaN, the
// bits of core/dtype.h.
#ifndef KERNELS_CPU_CAST_H
#define KERNELS_CPU_CAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/isa.h"

void GS_CPU(widen_fp16)(float *out, const uint16_t *in, size_t count);
void GS_CPU(narrow_fp16)(uint16_t *out, const float *in, size_t count);
void GS_CPU(widen_bf16)(float *out, const uint16_t *in, size_t count);
void GS_CPU(narrow_bf16)(uint16_t *out, const float *in, size_t count);
// out[i] = or += in[i] · scale, rounded to 16 bits and back. In place, or elsewhere.
void GS_CPU(round_fp16)(float *out, const float *in, float scale, size_t count, bool accumulate);
void GS_CPU(round_bf16)(float *out, const float *in, float scale, size_t count, bool accumulate);

#endif
