#include "core/dtype.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[GS_NUM_DTYPES] = {
    [GS_DTYPE_UNSET] = {"unset", 0}, [GS_FP32] = {"fp32", 4}, [GS_FP64] = {"fp64", 8},
    [GS_FP16] = {"fp16", 2},         [GS_BF16] = {"bf16", 2}, [GS_I64] = {"i64", 8},
    [GS_I32] = {"i32", 4},           [GS_U8] = {"u8", 1},
};

size_t gs_dtype_bytes(gs_dtype dtype) {
    return (unsigned)dtype < GS_NUM_DTYPES ? dtypes[dtype].bytes : 0;
}

size_t gs_dtype_grad_bytes(gs_dtype dtype) {
    return gs_dtype_bytes(dtype == GS_FP16 || dtype == GS_BF16 ? GS_FP32 : dtype);
}

const char *gs_dtype_name(gs_dtype dtype) {
    return (unsigned)dtype < GS_NUM_DTYPES ? dtypes[dtype].name : "unset";
}

gs_dtype gs_dtype_from_name(const char *name) {
    for (unsigned i = 1; i < GS_NUM_DTYPES; i++) {
        if (strcmp(name, dtypes[i].name) == 0) return (gs_dtype)i;
    }
    return GS_DTYPE_UNSET;
}

float gs_fp16_to_fp32(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = (bits >> 10) & 0x1fu;
    uint32_t mantissa = bits & 0x3ffu;
    uint32_t wide;
    if (exponent == 0x1f) {
        wide = sign | 0x7f800000u | (mantissa << 13);
        if (mantissa) wide |= 0x00400000u;
    } else if (exponent) {
        wide = sign | ((exponent + 112) << 23) | (mantissa << 13);
    } else if (mantissa) {
        // A subnormal half is a normal float: shift the leading one into place.
        uint32_t shift = 0;
        while (!(mantissa & 0x400u)) {
            mantissa <<= 1;
            shift++;
        }
        wide = sign | ((113 - shift) << 23) | ((mantissa & 0x3ffu) << 13);
    } else {
        wide = sign;
    }
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

uint16_t gs_fp32_to_fp16(float value) {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    uint32_t sign = (wide >> 16) & 0x8000u;
    uint32_t magnitude = wide & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x33000000u) return (uint16_t)sign;
    uint32_t shift, mantissa, base;
    if (magnitude < 0x38800000u) {  // subnormal as a half
        shift = 126 - (magnitude >> 23);
        mantissa = (magnitude & 0x7fffffu) | 0x800000u;
        base = 0;
    } else {
        shift = 13;
        mantissa = magnitude & 0x7fffffu;
        base = ((magnitude >> 23) - 112) << 10;
    }
    uint32_t half = base + (mantissa >> shift);
    uint32_t rest = mantissa & ((1u << shift) - 1), tie = 1u << (shift - 1);
    if (rest > tie || (rest == tie && (half & 1u))) half++;
    return (uint16_t)(sign | half);
}
