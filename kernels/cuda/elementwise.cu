// Elementwise work over flat arrays, and the sums over them that clipping, skipping and losses need.
//
// copy and clear are the runtime's: either side may be pinned memory, which it moves with a copy engine, and
// between device arrays it is what "copy bandwidth" is measured by.
#include "kernels/cuda/flat.cuh"
#include "kernels/cuda/sums.cuh"

struct fill_op {
    static constexpr int width = 4, unroll = 4;
    float *out;
    float value;
    size_t head() const { return gs_common_head<width>(out); }
    template <int W>
    struct inputs {};
    template <int W>
    __device__ inputs<W> load(size_t) const {
        return {};
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &) const {
        gs_elements<float, W> result;
#pragma unroll
        for (int k = 0; k < W; k++) result.at[k] = value;
        gs_store_elements<W>(out + i, result);
    }
};

extern "C" void gs_cuda_fill(gs_stream *stream, float *out, float value, size_t count) {
    gs_run_flat(stream, fill_op{out, value}, count);
}

extern "C" void gs_cuda_copy(gs_stream *stream, void *out, const void *in, size_t bytes) {
    if (out == in || bytes == 0) return;
    gs_cuda_stream *cuda = gs_cuda_stream_of(stream);
    gs_status current = gs_cuda_make_current(cuda->device);
    gs_stream_fail(stream, current);
    if (current.code) return;
    gs_cuda_stream_check(stream, cudaMemcpyAsync(out, in, bytes, cudaMemcpyDefault, cuda->native),
                         "copy: cudaMemcpyAsync");
}

extern "C" void gs_cuda_clear(gs_stream *stream, void *out, size_t bytes) {
    if (bytes == 0) return;
    gs_cuda_stream *cuda = gs_cuda_stream_of(stream);
    gs_status current = gs_cuda_make_current(cuda->device);
    gs_stream_fail(stream, current);
    if (current.code) return;
    gs_cuda_stream_check(stream, cudaMemsetAsync(out, 0, bytes, cuda->native),
                         "clear: cudaMemsetAsync");
}

struct add_op {
    static constexpr int width = 4, unroll = 2;
    float *out;
    const float *a, *b;
    size_t head() const { return gs_common_head<width>(out, a, b); }
    template <int W>
    struct inputs {
        gs_elements<float, W> a, b;
    };
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        return {gs_load_elements<W>(a + i), gs_load_elements<W>(b + i)};
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &in) const {
        gs_elements<float, W> result;
#pragma unroll
        for (int k = 0; k < W; k++) result.at[k] = in.a.at[k] + in.b.at[k];
        gs_store_elements<W>(out + i, result);
    }
};

extern "C" void gs_cuda_add(gs_stream *stream, float *out, const float *a, const float *b,
                            size_t count) {
    gs_run_flat(stream, add_op{out, a, b}, count);
}

struct scale_op {
    static constexpr int width = 4, unroll = 4;
    float *out;
    const float *in;
    float factor;
    size_t head() const { return gs_common_head<width>(out, in); }
    template <int W>
    struct inputs {
        gs_elements<float, W> in;
    };
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        return {gs_load_elements<W>(in + i)};
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &loaded) const {
        gs_elements<float, W> result;
#pragma unroll
        for (int k = 0; k < W; k++) result.at[k] = loaded.in.at[k] * factor;
        gs_store_elements<W>(out + i, result);
    }
};

extern "C" void gs_cuda_scale(gs_stream *stream, float *out, const float *in, float factor,
                              size_t count) {
    gs_run_flat(stream, scale_op{out, in, factor}, count);
}

struct axpy_op {
    static constexpr int width = 4, unroll = 2;
    float *y;
    const float *x;
    float a;
    size_t head() const { return gs_common_head<width>(y, x); }
    template <int W>
    struct inputs {
        gs_elements<float, W> y, x;
    };
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        return {gs_load_elements<W>(y + i), gs_load_elements<W>(x + i)};
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &in) const {
        gs_elements<float, W> result;
#pragma unroll
        for (int k = 0; k < W; k++) result.at[k] = __fadd_rn(in.y.at[k], __fmul_rn(a, in.x.at[k]));
        gs_store_elements<W>(y + i, result);
    }
};

extern "C" void gs_cuda_axpy(gs_stream *stream, float *y, const float *x, float a, size_t count) {
    gs_run_flat(stream, axpy_op{y, x, a}, count);
}

// ---- sums

struct keep_total {
    template <typename Sum>
    __device__ void operator()(Sum *out, Sum total) const {
        *out = total;
    }
};

extern "C" void gs_cuda_sum_squares(gs_stream *stream, double *out, const float *in, size_t count) {
    gs_sum_array<gs_square_term>(stream, out, in, count, keep_total{}, "sum_squares");
}

struct nonfinite_term {
    typedef unsigned long long sum;
    __device__ static void add(sum &total, float value) {
        total += (__float_as_uint(value) & 0x7f800000u) == 0x7f800000u;
    }
};

extern "C" void gs_cuda_count_nonfinite(gs_stream *stream, uint64_t *out, const float *in,
                                        size_t count) {
    gs_sum_array<nonfinite_term>(stream, reinterpret_cast<unsigned long long *>(out), in, count,
                                 keep_total{}, "count_nonfinite");
}

struct plain_term {
    typedef double sum;
    __device__ static void add(double &total, float value) { total += static_cast<double>(value); }
};

struct add_quotient {
    double count;
    __device__ void operator()(double *out, double total) const { *out += total / count; }
};

extern "C" void gs_cuda_add_mean(gs_stream *stream, double *sum, const float *in, size_t count) {
    if (count == 0) return;
    gs_sum_array<plain_term>(stream, sum, in, count, add_quotient{static_cast<double>(count)},
                             "add_mean");
}
