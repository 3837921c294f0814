// Conversions of short blocks, for cast and reduce: round to nearest even, NaN stays quiet NaN, the
// bits of core/dtype.h.
#ifndef KERNELS_CPU_CAST_H
#define KERNELS_CPU_CAST_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/isa.h"

void GS_CPU(widen_fp16)(float *out, const uint16_t *in, size_t count);
void GS_CPU(narrow_fp16)(uint16_t *out, const float *in, size_t count);
void GS_CPU(widen_bf16)(float *out, const uint16_t *in, size_t count);
void GS_CPU(narrow_bf16)(uint16_t *out, const float *in, size_t count);

#endif
