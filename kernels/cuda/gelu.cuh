// GELU in the tanh form, x·σ(2u) with u = √(2/π)·(x + 0.044715·x³), and its slope: as kernels/cpu/math.h has
// them. Beyond ±9 the sigmoid is 0 or 1 to every digit and is taken at ±9, so that nothing overflows.
#ifndef KERNELS_CUDA_GELU_CUH
#define KERNELS_CUDA_GELU_CUH

// Comparisons, unlike fminf and fmaxf, let a NaN through: the slope must not hide it.
__device__ static inline float gs_bound_gelu(float x) {
    const float low = x < -9.0f ? -9.0f : x;
    return low > 9.0f ? 9.0f : low;
}

__device__ static inline float gs_gelu(float x) {
    const float b = gs_bound_gelu(x);
    return x / (1.0f + expf(-1.5957691216057308f * (b + 0.044715f * (b * b * b))));
}

__device__ static inline float gs_gelu_slope(float x) {
    const float b = gs_bound_gelu(x), square = b * b;
    const float e = expf(-1.5957691216057308f * (b + 0.044715f * (square * b)));
    const float sigmoid = 1.0f / (1.0f + e);
    const float twice_slope = 1.5957691216057308f * (1.0f + 0.134145f * square);
    return sigmoid + b * sigmoid * (e * sigmoid) * twice_slope;
}

#endif
