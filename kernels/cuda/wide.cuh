// WIDTH neighbouring elements as fp32: 16 bytes of T in one access, or one element where addresses
// or counts do not allow that. Kernels are templates over (T, WIDTH) and compute in fp32.
#ifndef KERNELS_CUDA_WIDE_CUH
#define KERNELS_CUDA_WIDE_CUH

#include "kernels/cuda/launch.cuh"

template <typename T> constexpr int gs_vec_width = 16 / sizeof(T);

// As it lies in memory: half the registers of fp32 for 16-bit types, for what waits to be used.
template <typename T, int WIDTH> struct gs_packed {
    gs_vec16<T> vec;
    __device__ float operator[](int i) const { return gs_to_float(vec.at[i]); }
};
template <typename T> struct gs_packed<T, 1> {
    T value;
    __device__ float operator[](int) const { return gs_to_float(value); }
};

template <int WIDTH, typename T>
__device__ static inline gs_packed<T, WIDTH> gs_load_packed(const T *from) {
    gs_packed<T, WIDTH> packed;
    if constexpr (WIDTH == 1) {
        packed.value = *from;
    } else {
        static_assert(WIDTH == gs_vec_width<T>, "one element or 16 bytes");
        packed.vec = gs_load16(from);
    }
    return packed;
}

template <int WIDTH, typename T>
__device__ static inline void gs_store_packed(T *to, const gs_packed<T, WIDTH> &packed) {
    if constexpr (WIDTH == 1) {
        *to = packed.value;
    } else {
        gs_store16(to, packed.vec);
    }
}

template <typename T, int WIDTH>
__device__ static inline gs_packed<T, WIDTH> gs_pack(const float (&values)[WIDTH]) {
    gs_packed<T, WIDTH> packed;
    if constexpr (WIDTH == 1) {
        packed.value = gs_from_float<T>(values[0]);
    } else {
#pragma unroll
        for (int i = 0; i < WIDTH; i++) packed.vec.at[i] = gs_from_float<T>(values[i]);
    }
    return packed;
}

template <int WIDTH, typename T>
__device__ static inline void gs_load_wide(float (&to)[WIDTH], const T *from) {
    const gs_packed<T, WIDTH> packed = gs_load_packed<WIDTH>(from);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) to[i] = packed[i];
}

template <int WIDTH, typename T>
__device__ static inline void gs_store_wide(T *to, const float (&from)[WIDTH]) {
    gs_store_packed<WIDTH>(to, gs_pack<T, WIDTH>(from));
}

// What is used now and again later: the compiler may not keep it unpacked in between, in twice the
// registers.
template <typename T, int WIDTH>
__device__ static inline void gs_stay_packed(gs_packed<T, WIDTH> &packed) {
#ifndef GRADSYNC_CUDA_SIM
    if constexpr (WIDTH > 4) {
        uint4 *raw = reinterpret_cast<uint4 *>(&packed);
        asm volatile("" : "+r"(raw->x), "+r"(raw->y), "+r"(raw->z), "+r"(raw->w));
    }
#else
    (void)packed;
#endif
}

// fp32 beside a T of which WIDTH are taken: 16 bytes at a time where `to` allows it (the caller
// knows).
template <int WIDTH>
__device__ static inline void gs_load_floats(float (&to)[WIDTH], const float *from) {
#pragma unroll
    for (int i = 0; i < WIDTH; i += 4) {
        if constexpr (WIDTH == 1) {
            to[0] = from[0];
        } else {
            const gs_vec16<float> vec = gs_load16(from + i);
#pragma unroll
            for (int k = 0; k < 4; k++) to[i + k] = vec.at[k];
        }
    }
}

template <int WIDTH>
__device__ static inline void gs_store_floats(float *to, const float (&from)[WIDTH]) {
#pragma unroll
    for (int i = 0; i < WIDTH; i += 4) {
        if constexpr (WIDTH == 1) {
            to[0] = from[0];
        } else {
            gs_vec16<float> vec;
#pragma unroll
            for (int k = 0; k < 4; k++) vec.at[k] = from[i + k];
            gs_store16(to + i, vec);
        }
    }
}

// Threads for `count` neighbouring columns: whole warps, `most` at most.
static inline unsigned gs_block_for(size_t count, unsigned most) {
    return count < most ? static_cast<unsigned>((count + GS_WARP - 1) / GS_WARP * GS_WARP) : most;
}

// bf16 and fp16 by their device types.
template <typename T> static inline T *gs_as(gs_half *bits) {
    return reinterpret_cast<T *>(bits);
}
template <typename T> static inline const T *gs_as(const gs_half *bits) {
    return reinterpret_cast<const T *>(bits);
}

#endif
