// A cast between two float types as an operation of flat.cuh, for cast and cast_many.
//
// Between types of at most 32 bits the product is fp32, rounded once more to the output; with fp64 on either
// side it is fp64, and goes to 16 bits through fp32.
#ifndef KERNELS_CUDA_CAST_CUH
#define KERNELS_CUDA_CAST_CUH

#include "kernels/cuda/flat.cuh"
#include "kernels/cuda/numbers.cuh"

template <gs_dtype TO, gs_dtype FROM>
__device__ static inline typename gs_number<TO>::type gs_cast_number(typename gs_number<FROM>::type value,
                                                                     float scale) {
    if constexpr (TO == GS_FP64 || FROM == GS_FP64) {
        double wide;
        if constexpr (FROM == GS_FP64) {
            wide = value;
        } else {
            wide = static_cast<double>(gs_number<FROM>::widen(value));
        }
        wide *= static_cast<double>(scale);
        if constexpr (TO == GS_FP64) {
            return wide;
        } else {
            return gs_number<TO>::narrow(__double2float_rn(wide));
        }
    } else {
        return gs_number<TO>::narrow(gs_number<FROM>::widen(value) * scale);
    }
}

template <gs_dtype TO, gs_dtype FROM>
struct gs_cast_op {
    typedef typename gs_number<TO>::type to_type;
    typedef typename gs_number<FROM>::type from_type;
    static constexpr int widest = sizeof(to_type) > sizeof(from_type) ? sizeof(to_type) : sizeof(from_type);
    static constexpr int width = 16 / widest, unroll = 4;
    to_type *out;
    const from_type *in;
    float factor;
    __host__ __device__ size_t head() const { return gs_common_head<width>(out, in); }
    template <int W>
    struct inputs {
        gs_elements<from_type, W> in;
    };
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        return {gs_load_elements<W>(in + i)};
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &loaded) const {
        gs_elements<to_type, W> result;
#pragma unroll
        for (int k = 0; k < W; k++) result.at[k] = gs_cast_number<TO, FROM>(loaded.in.at[k], factor);
        gs_store_elements<W>(out + i, result);
    }
};

static inline bool gs_is_float(gs_dtype dtype) {
    return dtype == GS_FP32 || dtype == GS_FP64 || dtype == GS_FP16 || dtype == GS_BF16;
}

// Calls run.template with<TO, FROM>() for the pair; false when there is no such cast.
template <gs_dtype TO, class Run>
static inline bool gs_choose_from(gs_dtype from, const Run &run) {
    switch (from) {
    case GS_FP32:
        run.template with<TO, GS_FP32>();
        return true;
    case GS_FP64:
        run.template with<TO, GS_FP64>();
        return true;
    case GS_FP16:
        run.template with<TO, GS_FP16>();
        return true;
    case GS_BF16:
        run.template with<TO, GS_BF16>();
        return true;
    default:
        return false;
    }
}

template <class Run>
static inline bool gs_choose_cast(gs_dtype to, gs_dtype from, const Run &run) {
    switch (to) {
    case GS_FP32:
        return gs_choose_from<GS_FP32>(from, run);
    case GS_FP64:
        return gs_choose_from<GS_FP64>(from, run);
    case GS_FP16:
        return gs_choose_from<GS_FP16>(from, run);
    case GS_BF16:
        return gs_choose_from<GS_BF16>(from, run);
    default:
        return false;
    }
}

static inline void gs_refuse_cast(gs_stream *stream, gs_dtype to, gs_dtype from) {
    gs_stream_fail(stream,
                   gs_error(GS_INVALID_ARGUMENT, "cast: %s to %s is not between float types",
                            gs_dtype_name(from), gs_dtype_name(to)));
}

#endif
