// Whether tokens or targets are in range, found out before a launcher's other kernels run: they ask
// gs_data_is_bad first and leave their outputs alone when it is.
//
// The verdict lies at the start of the stream's scratch memory. One block looks at everything, so
// that it needs no preparation and names the first bad row.
#ifndef KERNELS_CUDA_CHECK_CUH
#define KERNELS_CUDA_CHECK_CUH

#include "kernels/cuda/launch.cuh"

#define GS_CHECK_BLOCK 1024
#define GS_CHECK_AHEAD 16             // values of a thread in flight
#define GS_CHECK_BYTES ((size_t)256)  // of scratch memory; what a launcher has beside begins behind

struct gs_check {
    uint32_t is_bad;
    uint32_t num_done;     // for the launcher's kernels; zero
    uint64_t num_counted;  // the same
};

__device__ static inline bool gs_data_is_bad(const gs_check *check) {
    return *reinterpret_cast<const volatile uint32_t *>(&check->is_bad) != 0;
}

__global__ static void __launch_bounds__(GS_CHECK_BLOCK)
    gs_check_kernel(gs_check *check, gs_cuda_reports *reports, gs_cuda_bad_data kind,
                    const int32_t *values, size_t count, size_t limit) {
    __shared__ unsigned long long firsts[GS_WARP];
    unsigned long long first = ~0ull;
    for (size_t row = threadIdx.x; row < count; row += GS_CHECK_AHEAD * GS_CHECK_BLOCK) {
#pragma unroll
        for (size_t k = 0; k < GS_CHECK_AHEAD; k++) {
            const size_t at = row + k * GS_CHECK_BLOCK;
            const int32_t value = at < count ? values[at] : 0;
            const bool bad = at < count && (value < 0 || (size_t)value >= limit);
            if (bad && at < first) first = at;
        }
    }
    for (int distance = GS_WARP / 2; distance; distance /= 2) {
        const unsigned long long other = __shfl_xor_sync(GS_FULL_WARP, first, distance);
        if (other < first) first = other;
    }
    if (threadIdx.x % GS_WARP == 0) firsts[threadIdx.x / GS_WARP] = first;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int warp = 1; warp < GS_CHECK_BLOCK / GS_WARP; warp++) {
        if (firsts[warp] < first) first = firsts[warp];
    }
    check->is_bad = first != ~0ull;
    check->num_done = 0;
    check->num_counted = 0;
    if (first != ~0ull) gs_report_bad_data(reports, kind, first, values[first]);
}

// The verdict in scratch memory, for the kernels that follow.
static inline gs_check *gs_run_check(gs_stream *stream, gs_cuda_bad_data kind,
                                     const int32_t *values, size_t count, size_t limit) {
    gs_check *check = static_cast<gs_check *>(gs_cuda_stream_of(stream)->scratch);
    gs_cuda_reports *reports = gs_bad_data_reports(stream, kind, limit);
    GS_LAUNCH(stream, 1, GS_CHECK_BLOCK, 0, gs_check_kernel, check, reports, kind, values, count,
              limit);
    return check;
}

#endif
