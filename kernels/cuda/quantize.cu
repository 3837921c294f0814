// Numbers in 8 bits, a scale and a zero for each segment, and sums of what they stand for: the CPU's bits.
//
// Short segments have their range from a warp each. Longer ones are cut into chunks: a block finds the range
// of each, which goes to scratch memory, and a block for each segment folds them. Codes and sums are
// elementwise then.
#include "kernels/cuda/flat.cuh"

#define MOST_OF_WARP ((size_t)4096)
#define CHUNK ((size_t)16384)
#define BLOCK 256
#define MOST_CODE 255

// A NaN anywhere makes both NaN.
template <typename T>
struct value_range {
    T lo, hi;

    __device__ void add(T value) {
        lo = value < lo || value != value ? value : lo;
        hi = value > hi || value != value ? value : hi;
    }
};

template <typename T>
__device__ static inline value_range<T> fold_warp(value_range<T> range) {
#pragma unroll
    for (int distance = GS_WARP / 2; distance; distance /= 2) {
        const T lo = __shfl_xor_sync(GS_FULL_WARP, range.lo, distance);
        const T hi = __shfl_xor_sync(GS_FULL_WARP, range.hi, distance);
        range.add(lo);
        range.add(hi);
    }
    return range;
}

// Of the block's ranges, in every thread of the first warp.
template <typename T>
__device__ static inline value_range<T> fold_block(value_range<T> range) {
    __shared__ T lo[GS_WARP], hi[GS_WARP];
    const unsigned lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP;
    range = fold_warp(range);
    __syncthreads();  // what the last call left has been read
    if (lane == 0) lo[warp] = range.lo, hi[warp] = range.hi;
    __syncthreads();
    range = {T(0), T(0)};
    if (lane < BLOCK / GS_WARP) range = {lo[lane], hi[lane]};
    return fold_warp(range);
}

// ---- the scale

__device__ static inline float divide(float a, float b) {
    return __fdiv_rn(a, b);
}
__device__ static inline double divide(double a, double b) {
    return __ddiv_rn(a, b);
}
__device__ static inline float round_whole(float value) {
    return rintf(value);
}
__device__ static inline double round_whole(double value) {
    return rint(value);
}
__device__ static inline float largest(float) {
    return 3.402823466e+38f;
}
__device__ static inline double largest(double) {
    return 1.7976931348623157e+308;
}

// A NaN becomes 0.
template <typename T>
__device__ static inline T limit(T code) {
    code = code > T(0) ? code : T(0);
    return code < T(MOST_CODE) ? code : T(MOST_CODE);
}

template <typename T>
__device__ static inline void choose_scale(T *scale, const value_range<T> &range, T least) {
    const T width = range.hi - range.lo;
    if (!(width <= largest(width))) {
        scale[0] = width + (width - width);  // NaN
        scale[1] = T(0);
        return;
    }
    const T wanted = divide(width, T(MOST_CODE)), chosen = wanted > least ? wanted : least;
    scale[0] = chosen;
    scale[1] = limit(round_whole(divide(-range.lo, chosen)));
}

template <typename T>
__global__ static void __launch_bounds__(BLOCK)
    short_segments_kernel(T *scales, const T *in, size_t count, size_t segment_count, T least) {
    const unsigned lane = threadIdx.x % GS_WARP;
    const size_t num_segments = count / segment_count + (count % segment_count != 0);
    const size_t num_warps = (size_t)gridDim.x * (BLOCK / GS_WARP);
    for (size_t segment = (size_t)blockIdx.x * (BLOCK / GS_WARP) + threadIdx.x / GS_WARP;
         segment < num_segments; segment += num_warps) {
        const size_t first = segment * segment_count;
        const size_t end = count - first < segment_count ? count : first + segment_count;
        value_range<T> range = {T(0), T(0)};
        for (size_t i = first + lane; i < end; i += GS_WARP) range.add(in[i]);
        range = fold_warp(range);
        if (lane == 0) choose_scale(scales + 2 * segment, range, least);
    }
}

template <typename T>
__global__ static void __launch_bounds__(BLOCK)
    chunk_ranges_kernel(value_range<T> *ranges, const T *in, size_t count, size_t segment_count,
                        size_t chunks_of_segment, size_t num_ranges) {
    for (size_t at = blockIdx.x; at < num_ranges; at += gridDim.x) {
        const size_t segment = at / chunks_of_segment, chunk = at % chunks_of_segment;
        const size_t start = segment * segment_count;
        const size_t segment_end = count - start < segment_count ? count : start + segment_count;
        const size_t first = start + chunk * CHUNK;
        const size_t end = first + CHUNK < segment_end ? first + CHUNK : segment_end;
        value_range<T> range = {T(0), T(0)};
#pragma unroll 4
        for (size_t i = first + threadIdx.x; i < end; i += BLOCK) range.add(in[i]);
        range = fold_block(range);
        if (threadIdx.x == 0) ranges[at] = range;
    }
}

template <typename T>
__global__ static void __launch_bounds__(BLOCK)
    fold_ranges_kernel(T *scales, const value_range<T> *ranges, size_t chunks_of_segment,
                       size_t num_segments, T least) {
    for (size_t segment = blockIdx.x; segment < num_segments; segment += gridDim.x) {
        value_range<T> range = {T(0), T(0)};
        for (size_t i = threadIdx.x; i < chunks_of_segment; i += BLOCK) {
            const value_range<T> next = ranges[segment * chunks_of_segment + i];
            range.add(next.lo);
            range.add(next.hi);
        }
        range = fold_block(range);
        if (threadIdx.x == 0) choose_scale(scales + 2 * segment, range, least);
    }
}

// ---- which segment an element is in

struct segments {
    size_t count;
    int shift;  // -1: the count is no power of two, and divides

    segments(size_t segment_count, size_t all) : count(segment_count), shift(-1) {
        if (all <= count) shift = 63;
        if (shift > 0 || (count & (count - 1))) return;
        for (shift = 0; count >> (shift + 1); shift++) {}
    }
    __device__ size_t of(size_t i) const { return shift >= 0 ? i >> shift : i / count; }
};

// ---- codes

template <typename T>
struct encode_op {
    static constexpr int width = 16 / sizeof(T), unroll = 4;
    uint8_t *codes;
    const T *in, *scales;
    segments cut;
    size_t head() const { return gs_common_head<width>(codes, in); }
    template <int W>
    struct inputs {
        gs_elements<T, W> in;
    };
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        return {gs_load_elements<W>(in + i)};
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &loaded) const {
        gs_elements<uint8_t, W> result;
        const size_t first = cut.of(i), last = W == 1 ? first : cut.of(i + W - 1);
#pragma unroll
        for (int k = 0; k < W; k++) {
            const T *scale = scales + 2 * (first == last ? first : cut.of(i + k));
            const T code = round_whole(divide(loaded.in.at[k], scale[0])) + scale[1];
            result.at[k] = static_cast<uint8_t>(static_cast<int>(limit(code)));
        }
        gs_store_elements<W>(codes + i, result);
    }
};

// ---- sums

template <typename T>
struct decode_op {
    static constexpr int width = 16 / sizeof(T), unroll = 2;
    T *out;
    const uint8_t *codes;
    const T *scales;
    segments cut;
    size_t num_inputs, stride_bytes;
    T factor;
    size_t head() const {
        return stride_bytes % width ? (size_t)width : gs_common_head<width>(out, codes);
    }
    template <int W>
    struct inputs {
        gs_elements<T, W> sum;
    };
    __device__ const T *scale_of(size_t k, size_t segment) const {
        const char *first = reinterpret_cast<const char *>(scales) + k * stride_bytes;
        return reinterpret_cast<const T *>(first) + 2 * segment;
    }
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        inputs<W> loaded;
        const size_t first = cut.of(i), last = W == 1 ? first : cut.of(i + W - 1);
#pragma unroll 4
        for (size_t k = 0; k < num_inputs; k++) {
            const gs_elements<uint8_t, W> next =
                gs_load_elements<W>(codes + k * stride_bytes + i);
#pragma unroll
            for (int e = 0; e < W; e++) {
                const T *scale = scale_of(k, first == last ? first : cut.of(i + e));
                const T value = scale[0] * (static_cast<T>(next.at[e]) - scale[1]);
                loaded.sum.at[e] = k ? loaded.sum.at[e] + value : value;
            }
        }
        return loaded;
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &loaded) const {
        gs_elements<T, W> result;
#pragma unroll
        for (int e = 0; e < W; e++) result.at[e] = loaded.sum.at[e] * factor;
        gs_store_elements<W>(out + i, result);
    }
};

// ---- launchers

template <typename T>
static bool find_long_ranges(gs_stream *stream, T *scales, const T *in, size_t count,
                             size_t segment_count, T least) {
    const size_t num_segments = gs_num_blocks(count, segment_count, 1u << 30);
    const size_t chunks = gs_num_blocks(segment_count, CHUNK, 1u << 30);
    const size_t num_ranges = num_segments * chunks;
    value_range<T> *ranges = static_cast<value_range<T> *>(
        gs_scratch(stream, num_ranges * sizeof *ranges, "quantize"));
    if (!ranges) return false;
    GS_LAUNCH(stream, gs_num_blocks(num_ranges, 1, 1u << 30), BLOCK, 0, (chunk_ranges_kernel<T>),
              ranges, in, count, segment_count, chunks, num_ranges);
    GS_LAUNCH(stream, gs_num_blocks(num_segments, 1, 1u << 30), BLOCK, 0, (fold_ranges_kernel<T>),
              scales, ranges, chunks, num_segments, least);
    return true;
}

template <typename T>
static void run_quantize(gs_stream *stream, const gs_quantized *to, const void *values,
                         double least_scale) {
    const size_t count = to->count;
    const size_t segment_count = to->segment_count < count ? to->segment_count : count;
    const T *in = static_cast<const T *>(values), least = static_cast<T>(least_scale);
    T *scales = static_cast<T *>(to->scales);
    if (segment_count > MOST_OF_WARP) {
        if (!find_long_ranges(stream, scales, in, count, segment_count, least)) return;
    } else {
        GS_LAUNCH(stream, gs_num_blocks(count, segment_count * (BLOCK / GS_WARP), 1u << 30), BLOCK, 0,
                  (short_segments_kernel<T>), scales, in, count, segment_count, least);
    }
    gs_run_flat(stream, encode_op<T>{to->codes, in, scales, segments(segment_count, count)}, count);
}

template <typename T>
static void run_dequantize(gs_stream *stream, void *out, const gs_quantized *from,
                           size_t num_inputs, size_t stride_bytes, double factor) {
    gs_run_flat(stream,
                decode_op<T>{.out = static_cast<T *>(out),
                             .codes = from->codes,
                             .scales = static_cast<const T *>(from->scales),
                             .cut = segments(from->segment_count, from->count),
                             .num_inputs = num_inputs,
                             .stride_bytes = stride_bytes,
                             .factor = static_cast<T>(factor)},
                from->count);
}

static bool check_dtype(gs_stream *stream, const gs_quantized *numbers) {
    if (numbers->dtype == GS_FP32 || numbers->dtype == GS_FP64) return true;
    gs_stream_fail(stream, gs_error(GS_INVALID_ARGUMENT, "codes of %s: only of fp32 and fp64",
                                    gs_dtype_name(numbers->dtype)));
    return false;
}

extern "C" void gs_cuda_quantize(gs_stream *stream, const gs_quantized *to, const void *in,
                                 double least_scale) {
    if (!check_dtype(stream, to) || !to->count) return;
    if (to->dtype == GS_FP64)
        run_quantize<double>(stream, to, in, least_scale);
    else
        run_quantize<float>(stream, to, in, least_scale);
}

extern "C" void gs_cuda_dequantize(gs_stream *stream, void *out, const gs_quantized *from,
                                   size_t num_inputs, size_t stride_bytes, double factor) {
    if (!check_dtype(stream, from) || !from->count) return;
    if (from->dtype == GS_FP64)
        run_dequantize<double>(stream, out, from, num_inputs, stride_bytes, factor);
    else
        run_dequantize<float>(stream, out, from, num_inputs, stride_bytes, factor);
}
