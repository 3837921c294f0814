// AdamW as operations of flat.cuh, for adamw and adamw_many: PyTorch's order of operations, each rounded as
// the CPU's kernel rounds it. Include in files that are compiled with -fmad=false.
#ifndef KERNELS_CUDA_ADAMW_CUH
#define KERNELS_CUDA_ADAMW_CUH

#include "kernels/cuda/flat.cuh"
#include "kernels/cuda/numbers.cuh"

// What gradients are multiplied by: known to the host, or left in the device's memory by grad_factor.
struct gs_grad_scale {
    float value;
    const gs_grad_factor *factor;  // NULL: value counts

    // False: there is no update. *scale is what counts.
    __device__ bool take(float *scale) const {
        *scale = factor ? factor->value : value;
        return !factor || factor->applies != 0;
    }
};

// The same for all parameters of a step.
struct gs_adamw_common {
    gs_grad_scale grad_scale;
    float eps, beta1, beta2, rest1, rest2;
};

// A parameter's own.
struct gs_adamw_own {
    float decay, keep, step_size, root_inverse;
};

static inline gs_adamw_common gs_adamw_make_common(const gs_stream *stream, const gs_adamw &step) {
    gs_adamw_common made;
    made.grad_scale = {step.grad_scale, stream->factor};
    made.eps = step.eps;
    made.beta1 = step.beta1;
    made.beta2 = step.beta2;
    made.rest1 = static_cast<float>(1.0 - static_cast<double>(step.beta1));
    made.rest2 = static_cast<float>(1.0 - static_cast<double>(step.beta2));
    return made;
}

// In doubles, as on the CPU; the square root and the divisions of both are exact.
__host__ __device__ static inline gs_adamw_own gs_adamw_make_own(float lr, float decay,
                                                                 double correction1,
                                                                 double correction2) {
    gs_adamw_own made;
    made.decay = decay;
    made.keep = static_cast<float>(1.0 - static_cast<double>(lr) * static_cast<double>(decay));
    made.step_size = static_cast<float>(static_cast<double>(lr) / correction1);
    made.root_inverse = static_cast<float>(1.0 / sqrt(correction2));
    return made;
}

// The parameter's next value; m and v become theirs.
template <bool DECOUPLED>
__device__ static inline float gs_adamw_step(float p, float &m, float &v, float grad, float scale,
                                             const gs_adamw_common &c, const gs_adamw_own &own) {
    float g = __fmul_rn(grad, scale);
    if (DECOUPLED) {
        p = __fmul_rn(p, own.keep);
    } else {
        g = __fadd_rn(g, __fmul_rn(own.decay, p));
    }
    m = __fadd_rn(__fmul_rn(c.beta1, m), __fmul_rn(c.rest1, g));
    v = __fadd_rn(__fmul_rn(c.beta2, v), __fmul_rn(__fmul_rn(c.rest2, g), g));
    const float denominator = __fadd_rn(__fmul_rn(__fsqrt_rn(v), own.root_inverse), c.eps);
    return __fsub_rn(p, __fdiv_rn(__fmul_rn(own.step_size, m), denominator));
}

// Any form of a master: fp32, fp32 with its bf16 written beside it, or two halves. The pointers say which,
// and are the same for a whole tile.
template <bool DECOUPLED>
struct gs_adamw_op {
    static constexpr int width = 4, unroll = 1;
    float *param;
    uint16_t *value, *remainder;
    float *m, *v;
    const float *grad;
    gs_adamw_common common;
    gs_adamw_own own;

    __host__ __device__ size_t head() const {
        const size_t head = gs_common_head<width>(m, v, grad);
        const bool same = remainder ? head == gs_common_head<width>(value, remainder)
                                    : head == gs_head_of<width>(param) &&
                                          (!value || head == gs_head_of<width>(value));
        return same ? head : width;
    }
    template <int W>
    struct inputs {
        gs_elements<float, W> m, v, grad, master;
    };
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        inputs<W> in;
        in.m = gs_load_elements<W>(m + i);
        in.v = gs_load_elements<W>(v + i);
        in.grad = gs_load_elements<W>(grad + i);
        if (remainder) {
            const gs_elements<uint16_t, W> upper = gs_load_elements<W>(value + i);
            const gs_elements<uint16_t, W> lower = gs_load_elements<W>(remainder + i);
#pragma unroll
            for (int k = 0; k < W; k++) in.master.at[k] = gs_join_halves(upper.at[k], lower.at[k]);
        } else {
            in.master = gs_load_elements<W>(param + i);
        }
        return in;
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &in) const {
        gs_elements<float, W> p, next_m = in.m, next_v = in.v;
        float scale;
        if (!common.grad_scale.take(&scale)) return;
#pragma unroll
        for (int k = 0; k < W; k++)
            p.at[k] = gs_adamw_step<DECOUPLED>(in.master.at[k], next_m.at[k], next_v.at[k],
                                               in.grad.at[k], scale, common, own);
        gs_store_elements<W>(m + i, next_m);
        gs_store_elements<W>(v + i, next_v);
        if (!remainder) gs_store_elements<W>(param + i, p);
        if (!value) return;
        gs_elements<uint16_t, W> upper, lower;
#pragma unroll
        for (int k = 0; k < W; k++) {
            upper.at[k] = remainder ? gs_value_half(p.at[k]) : gs_narrow_bf16(p.at[k]);
            lower.at[k] = gs_remainder_half(p.at[k]);
        }
        gs_store_elements<W>(value + i, upper);
        if (remainder) gs_store_elements<W>(remainder + i, lower);
    }
};

#endif
