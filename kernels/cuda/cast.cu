// fp32, fp64, fp16 and bf16 into each other, with a scale; fp32 through 16 bits and back.
#include "kernels/cuda/cast.cuh"

struct run_cast {
    gs_stream *stream;
    void *out;
    const void *in;
    float scale;
    size_t count;

    template <gs_dtype TO, gs_dtype FROM>
    void with() const {
        typedef gs_cast_op<TO, FROM> op;
        gs_run_flat(stream,
                    op{static_cast<typename op::to_type *>(out),
                       static_cast<const typename op::from_type *>(in), scale},
                    count);
    }
};

extern "C" void gs_cuda_cast(gs_stream *stream, void *out, gs_dtype out_dtype, const void *in,
                             gs_dtype in_dtype, float scale, size_t count) {
    // In place between types of different sizes, threads would run into each other.
    if (out == in && gs_dtype_bytes(out_dtype) != gs_dtype_bytes(in_dtype) && gs_is_float(out_dtype) &&
        gs_is_float(in_dtype)) {
        gs_stream_fail(stream,
                       gs_error(GS_INVALID_ARGUMENT, "cast: %s to %s cannot be done in place",
                                gs_dtype_name(in_dtype), gs_dtype_name(out_dtype)));
        return;
    }
    if (!gs_choose_cast(out_dtype, in_dtype, run_cast{stream, out, in, scale, count}))
        gs_refuse_cast(stream, out_dtype, in_dtype);
}

template <gs_dtype DTYPE, bool ACCUMULATE>
struct round_op {
    static constexpr int width = 4, unroll = ACCUMULATE ? 2 : 4;
    float *out;
    const float *in;
    size_t head() const { return gs_common_head<width>(out, in); }
    template <int W>
    struct inputs {
        gs_elements<float, W> in, out;
    };
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        inputs<W> loaded;
        loaded.in = gs_load_elements<W>(in + i);
        if (ACCUMULATE) loaded.out = gs_load_elements<W>(out + i);
        return loaded;
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &loaded) const {
        gs_elements<float, W> result;
#pragma unroll
        for (int k = 0; k < W; k++) {
            const float rounded =
                gs_number<DTYPE>::widen(gs_number<DTYPE>::narrow(loaded.in.at[k]));
            result.at[k] = ACCUMULATE ? loaded.out.at[k] + rounded : rounded;
        }
        gs_store_elements<W>(out + i, result);
    }
};

template <gs_dtype DTYPE>
static void run_round(gs_stream *stream, float *out, const float *in, size_t count,
                      bool accumulate) {
    if (accumulate) {
        gs_run_flat(stream, round_op<DTYPE, true>{out, in}, count);
    } else {
        gs_run_flat(stream, round_op<DTYPE, false>{out, in}, count);
    }
}

extern "C" void gs_cuda_round(gs_stream *stream, float *out, const float *in, gs_dtype dtype,
                              size_t count, bool accumulate) {
    if (dtype == GS_FP16) {
        run_round<GS_FP16>(stream, out, in, count, accumulate);
    } else if (dtype == GS_BF16) {
        run_round<GS_BF16>(stream, out, in, count, accumulate);
    } else {
        gs_stream_fail(stream, gs_error(GS_INVALID_ARGUMENT, "round: %s has not 16 bits",
                                        gs_dtype_name(dtype)));
    }
}
