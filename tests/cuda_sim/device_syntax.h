// CUDA's C++ dialect for g++: force-included when a .cu file is built for the software machine.
// What the language adds (qualifiers, thread coordinates, barriers, launches) is here; intrinsics
// are in device_math.h, warps and atomics in device_warp.h.
//
// The threads of a block are fibers of one host thread (block.h), so that shared memory is a
// thread-local static and a barrier is a switch of fibers.
#ifndef TESTS_CUDA_SIM_DEVICE_SYNTAX_H
#define TESTS_CUDA_SIM_DEVICE_SYNTAX_H
#pragma GCC system_header  // what CUDA's own headers may do is not for our warnings

#ifndef GRADSYNC_CUDA_SIM
#define GRADSYNC_CUDA_SIM 1
#endif

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

struct gs_sim_position {
    uint3 thread, block, block_dim, grid_dim;
};

// Of the thread that runs now; the machine sets it at each switch.
extern __thread gs_sim_position gs_sim_here __attribute__((tls_model("initial-exec")));

#define threadIdx (static_cast<const uint3 &>(gs_sim_here.thread))
#define blockIdx (static_cast<const uint3 &>(gs_sim_here.block))
#define blockDim (static_cast<const uint3 &>(gs_sim_here.block_dim))
#define gridDim (static_cast<const uint3 &>(gs_sim_here.grid_dim))
static constexpr int warpSize = 32;

// Where a thread meets others: threads that meet from different places did not meet.
struct gs_sim_place {
    const char *what;
    const char *file;
    int line;
};

enum gs_sim_vote { GS_SIM_NO_VOTE = 0, GS_SIM_COUNT, GS_SIM_AND, GS_SIM_OR };
int gs_sim_barrier(gs_sim_vote vote, int predicate, gs_sim_place place);
void *gs_sim_dynamic_shared();
[[noreturn]] void gs_sim_trap(gs_sim_place place);

inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    gs_sim_barrier(GS_SIM_NO_VOTE, 0, {"__syncthreads", file, line});
}
inline int __syncthreads_count(int predicate, const char *file = __builtin_FILE(),
                               int line = __builtin_LINE()) {
    return gs_sim_barrier(GS_SIM_COUNT, predicate, {"__syncthreads_count", file, line});
}
inline int __syncthreads_and(int predicate, const char *file = __builtin_FILE(),
                             int line = __builtin_LINE()) {
    return gs_sim_barrier(GS_SIM_AND, predicate, {"__syncthreads_and", file, line});
}
inline int __syncthreads_or(int predicate, const char *file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
    return gs_sim_barrier(GS_SIM_OR, predicate, {"__syncthreads_or", file, line});
}
[[noreturn]] inline void __trap(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    gs_sim_trap({"__trap", file, line});
}
inline void __threadfence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_system() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __nanosleep(unsigned) {}

// `function` is what cudaFuncSetAttribute knows the kernel by; `body` runs once for each thread.
cudaError_t gs_sim_launch(const char *name, const void *function, dim3 grid, dim3 block,
                          size_t shared, cudaStream_t stream, std::function<void()> body,
                          const void *const *pointers, size_t num_pointers);

template <typename T>
inline size_t gs_sim_keep_pointer(const void **pointers, size_t count, T value) {
    if constexpr (std::is_pointer_v<T> && !std::is_function_v<std::remove_pointer_t<T>>) {
        pointers[count++] = static_cast<const void *>(value);
    }
    return count;
}

// The arguments become the kernel's parameter types now and are kept by value.
template <typename... P, typename... A>
inline cudaError_t gs_sim_start(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                                size_t shared, cudaStream_t stream, A... args) {
    static_assert(sizeof...(P) == sizeof...(A), "a kernel has no default arguments");
    std::tuple<std::decay_t<P>...> values(static_cast<P>(args)...);
    const void *pointers[sizeof...(P) + 1];
    size_t num_pointers = 0;
    std::apply(
        [&](const auto &...value) {
            ((num_pointers = gs_sim_keep_pointer<std::decay_t<decltype(value)>>(
                  pointers, num_pointers, value)),
             ...);
        },
        values);
    return gs_sim_launch(
        name, reinterpret_cast<const void *>(kernel), grid, block, shared, stream,
        [kernel, values]() { std::apply(kernel, values); }, pointers, num_pointers);
}

#include "tests/cuda_sim/device_math.h"
#include "tests/cuda_sim/device_warp.h"

#endif
