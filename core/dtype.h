// Element types: their names, their bytes, and the scalar conversions of the 16-bit ones.
#ifndef CORE_DTYPE_H
#define CORE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/abi.h"

GS_BEGIN_DECLS

typedef enum gs_dtype {
    GS_DTYPE_UNSET = 0,
    GS_FP32,
    GS_FP64,
    GS_FP16,
    GS_BF16,
    GS_I64,
    GS_I32,
    GS_U8,
    GS_NUM_DTYPES
} gs_dtype;

size_t gs_dtype_bytes(gs_dtype dtype);          // 0 for GS_DTYPE_UNSET
size_t gs_dtype_grad_bytes(gs_dtype dtype);     // of a parameter's gradient: fp32 for 16 bits
const char *gs_dtype_name(gs_dtype dtype);      // "fp32", "bf16", "i64" …; "unset"
gs_dtype gs_dtype_from_name(const char *name);  // GS_DTYPE_UNSET when there is no such name

static inline float gs_bf16_to_fp32(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

// Round to nearest, ties to even; NaN stays a quiet NaN.
static inline uint16_t gs_fp32_to_bf16(float value) {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    if ((wide & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((wide >> 16) | 0x40u);
    return (uint16_t)((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
}

float gs_fp16_to_fp32(uint16_t bits);
uint16_t gs_fp32_to_fp16(float value);  // round to nearest, ties to even; overflow is infinity

GS_END_DECLS

#endif
