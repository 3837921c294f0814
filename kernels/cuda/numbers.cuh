// Conversions between element types by their bits: the same as core/dtype.h's, for kernels whose results the
// CPU's must equal. 16-bit types are uint16_t here.
//
// A NaN stays a quiet NaN; which one, a GPU's arithmetic does not keep.
#ifndef KERNELS_CUDA_NUMBERS_CUH
#define KERNELS_CUDA_NUMBERS_CUH

#include "kernels/cuda/launch.cuh"

__device__ static inline float gs_widen_bf16(uint16_t bits) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// To nearest, ties to even.
__device__ static inline uint16_t gs_narrow_bf16(float value) {
    const uint32_t wide = __float_as_uint(value);
    const uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
    const uint32_t quiet = (wide >> 16) | 0x40u;
    return static_cast<uint16_t>((wide & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

__device__ static inline float gs_widen_fp16(uint16_t bits) {
    return __half2float(__ushort_as_half(bits));
}

__device__ static inline uint16_t gs_narrow_fp16(float value) {
    return __half_as_ushort(__float2half_rn(value));
}

// A master of 32 bits from its halves, and back (kernels.h, gs_adamw_item).
__device__ static inline float gs_join_halves(uint16_t value, uint16_t remainder) {
    const uint32_t upper = (static_cast<uint32_t>(value) << 16) - (remainder >= 0x8000u ? 0x10000u : 0u);
    return __uint_as_float(upper | remainder);
}
__device__ static inline uint16_t gs_value_half(float master) {
    return static_cast<uint16_t>((__float_as_uint(master) + 0x8000u) >> 16);
}
__device__ static inline uint16_t gs_remainder_half(float master) {
    return static_cast<uint16_t>(__float_as_uint(master));
}

// What an element type is in memory, and how it becomes fp32 and comes from it.
template <gs_dtype DTYPE>
struct gs_number;
template <>
struct gs_number<GS_FP32> {
    typedef float type;
    __device__ static float widen(float value) { return value; }
    __device__ static float narrow(float value) { return value; }
};
template <>
struct gs_number<GS_FP16> {
    typedef uint16_t type;
    __device__ static float widen(uint16_t bits) { return gs_widen_fp16(bits); }
    __device__ static uint16_t narrow(float value) { return gs_narrow_fp16(value); }
};
template <>
struct gs_number<GS_BF16> {
    typedef uint16_t type;
    __device__ static float widen(uint16_t bits) { return gs_widen_bf16(bits); }
    __device__ static uint16_t narrow(float value) { return gs_narrow_bf16(value); }
};
template <>
struct gs_number<GS_FP64> {
    typedef double type;
};

#endif
