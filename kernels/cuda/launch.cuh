// What every .cu file includes: launching, 16-byte accesses, sums in a fixed order.
//
// The same text compiles with nvcc for a device and with g++ for the software machine of the tests
// (GRADSYNC_CUDA_SIM), which runs every thread of every block.
//
//   GS_LAUNCH(stream, grid, block, shared_bytes, (kernel<float>), out, in, count);
//
// enqueues and returns; a launch that fails sticks to the stream with the kernel's name.
#ifndef KERNELS_CUDA_LAUNCH_CUH
#define KERNELS_CUDA_LAUNCH_CUH

#include <stddef.h>
#include <stdint.h>

#ifdef GRADSYNC_CUDA_SIM
#include <functional>
#else
#include <cuda_runtime.h>
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <tuple>
#include <utility>

#include "kernels/cuda/error.h"
#include "kernels/cuda/table.h"

// A kernel's argument that stays where the launch put it, instead of becoming a copy in local memory.
#if defined(GRADSYNC_CUDA_SIM) && !defined(__grid_constant__)
#define __grid_constant__
#endif

#define GS_WARP 32
#define GS_FULL_WARP 0xffffffffu

// ---- launching

// The shared memory that the launch asked for, 16-byte aligned.
#ifdef GRADSYNC_CUDA_SIM
#define GS_DYNAMIC_SHARED(type, name) type *name = static_cast<type *>(gs_sim_dynamic_shared())
#else
extern __shared__ uint4 gs_dynamic_shared[];
#define GS_DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(gs_dynamic_shared)
#endif

template <typename... Params, typename... Args>
static inline void gs_launch(gs_stream *stream, dim3 grid, dim3 block, size_t shared_bytes,
                             const char *name, void (*kernel)(Params...), Args... args) {
    gs_cuda_stream *cuda = gs_cuda_stream_of(stream);
    static_assert(sizeof...(Params) == sizeof...(Args), "a kernel's arguments");
    if (grid.x == 0) return;  // nothing to do; the runtime would call it a misuse
    std::tuple<Params...> params(static_cast<Params>(args)...);
    gs_status current = gs_cuda_make_current(cuda->device);
    if (current.code) {
        gs_stream_fail(stream, current);
        return;
    }
#ifdef GRADSYNC_CUDA_SIM
    cudaError_t error = std::apply(
        [&](const auto &...param) {
            return gs_sim_start(name, kernel, grid, block, shared_bytes, cuda->native, param...);
        },
        params);
#else
    cudaError_t error = std::apply(
        [&](Params &...param) {
            void *addresses[sizeof...(Params) + 1] = {&param...};
            return cudaLaunchKernel(reinterpret_cast<const void *>(kernel), grid, block, addresses,
                                    shared_bytes, cuda->native);
        },
        params);
#endif
    gs_cuda_stream_check(stream, error, name);
}

#define GS_LAUNCH(stream, grid, block, shared_bytes, kernel, ...)                                  \
    gs_launch((stream), (grid), (block), (shared_bytes), #kernel, kernel, __VA_ARGS__)

// The limit is the kernel's on the calling thread's device.
static inline void gs_allow_shared(gs_stream *stream, const void *kernel, size_t bytes,
                                   const char *name) {
    gs_status current = gs_cuda_make_current(gs_cuda_stream_of(stream)->device);
    gs_stream_fail(stream, current);
    if (current.code) return;
    gs_cuda_stream_check(stream,
                         cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(bytes)),
                         name);
}

// Before the first launch with more than 48 KiB of dynamic shared memory, and in each: it is cheap.
#define GS_ALLOW_SHARED(stream, kernel, bytes)                                                     \
    gs_allow_shared((stream), reinterpret_cast<const void *>(kernel), (bytes), #kernel)

// Blocks for `count` items of which a block takes `per_block`; never more than `most`, so that kernels
// loop with the grid as their stride.
static inline unsigned gs_num_blocks(size_t count, size_t per_block, size_t most) {
    size_t blocks = count / per_block + (count % per_block != 0);
    return static_cast<unsigned>(blocks < most ? blocks : most);
}

static inline unsigned gs_num_sms(gs_stream *stream) {
    return static_cast<unsigned>(gs_cuda_stream_of(stream)->device->num_sms);
}

static inline bool gs_chooses(gs_stream *stream, gs_choice choice) {
    return gs_device_chooses(&gs_cuda_stream_of(stream)->device->base, choice);
}

// The stream's scratch memory; fails the stream and is NULL when a launcher needs more than there is.
static inline void *gs_scratch(gs_stream *stream, size_t bytes, const char *what) {
    if (bytes <= GS_CUDA_SCRATCH_BYTES) return gs_cuda_stream_of(stream)->scratch;
    gs_stream_fail(stream, gs_error(GS_RESOURCE_EXHAUSTED,
                                    "%s: %zu bytes of scratch memory are needed, there are %zu",
                                    what, bytes, GS_CUDA_SCRATCH_BYTES));
    return nullptr;
}

// ---- bad data

// Where kernels report; say the limit that the message names.
static inline gs_cuda_reports *gs_bad_data_reports(gs_stream *stream, gs_cuda_bad_data kind, size_t limit) {
    gs_cuda_stream *cuda = gs_cuda_stream_of(stream);
    cuda->bad_data_limits[kind] = limit;
    return cuda->reports_seen;
}

// By one thread of a grid. Plain stores of 8 bytes over the bus: of several reports that the host has not heard of, the last is
// named. The word comes first: who sees the number finds the word, or has taken it.
__device__ static inline void gs_report_bad_data(gs_cuda_reports *reports, gs_cuda_bad_data kind, size_t row,
                                                 int32_t value) {
    const uint64_t most = (1ull << 28) - 1;
    uint64_t place = row < most ? row : most;
    volatile gs_cuda_reports *to = reports;
    to->word = static_cast<uint64_t>(kind) << 60 | place << 32 | static_cast<uint32_t>(value);
    __threadfence_system();
    to->count = to->count + 1;
}

// ---- 16 bytes at a time

template <typename T>
struct alignas(16) gs_vec16 {
    static constexpr int count = 16 / sizeof(T);
    T at[count];
};

template <typename T>
__device__ static inline gs_vec16<T> gs_load16(const T *from) {
    union {
        uint4 raw;
        gs_vec16<T> vec;
    } bytes;
    bytes.raw = *reinterpret_cast<const uint4 *>(from);
    return bytes.vec;
}

template <typename T>
__device__ static inline void gs_store16(T *to, const gs_vec16<T> &vec) {
    union {
        uint4 raw;
        gs_vec16<T> vec;
    } bytes;
    bytes.vec = vec;
    *reinterpret_cast<uint4 *>(to) = bytes.raw;
}

__host__ __device__ static inline bool gs_is_aligned16(const void *address) {
    return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

// ---- numbers

__device__ static inline float gs_to_float(float value) {
    return value;
}
__device__ static inline float gs_to_float(__nv_bfloat16 value) {
    return __bfloat162float(value);
}
__device__ static inline float gs_to_float(__half value) {
    return __half2float(value);
}

template <typename T>
__device__ static inline T gs_from_float(float value);
template <>
__device__ inline float gs_from_float<float>(float value) {
    return value;
}
template <>
__device__ inline __nv_bfloat16 gs_from_float<__nv_bfloat16>(float value) {
    return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half gs_from_float<__half>(float value) {
    return __float2half_rn(value);
}

// ---- sums and maxima in a fixed order

// Of the warp's 32 values, in every lane; all lanes must be there.
template <typename T>
__device__ static inline T gs_warp_sum(T value) {
#pragma unroll
    for (int distance = GS_WARP / 2; distance; distance /= 2)
        value += __shfl_xor_sync(GS_FULL_WARP, value, distance);
    return value;
}

// A NaN is passed over unless all are.
__device__ static inline float gs_warp_max(float value) {
#pragma unroll
    for (int distance = GS_WARP / 2; distance; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(GS_FULL_WARP, value, distance));
    return value;
}

// Of the block's values (a multiple of 32 threads, one dimension), in every thread. `shared` has 32
// elements; it may be used again after the block's next barrier.
template <typename T>
__device__ static inline T gs_block_sum(T value, T *shared) {
    const unsigned lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP;
    const unsigned num_warps = blockDim.x / GS_WARP;
    value = gs_warp_sum(value);
    if (lane == 0) shared[warp] = value;
    __syncthreads();
    return gs_warp_sum(lane < num_warps ? shared[lane] : T(0));
}

__device__ static inline float gs_block_max(float value, float *shared) {
    const unsigned lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP;
    const unsigned num_warps = blockDim.x / GS_WARP;
    value = gs_warp_max(value);
    if (lane == 0) shared[warp] = value;
    __syncthreads();
    return gs_warp_max(lane < num_warps ? shared[lane] : -INFINITY);
}

#endif
