// SGD and AdamW over flat memory, one pass; every operation rounds as the CPU's.
#include "kernels/cuda/adamw.cuh"

extern "C" void gs_cuda_adamw(gs_stream *stream, float *param, float *m, float *v, const float *grad,
                              const gs_adamw *step, size_t count) {
    const gs_adamw_common common = gs_adamw_make_common(*step);
    const gs_adamw_own own = gs_adamw_make_own(step->lr, step->weight_decay, step->correction1,
                                               step->correction2);
    if (step->decoupled) {
        gs_run_flat(stream, gs_adamw_op<true>{param, nullptr, nullptr, m, v, grad, common, own}, count);
    } else {
        gs_run_flat(stream, gs_adamw_op<false>{param, nullptr, nullptr, m, v, grad, common, own}, count);
    }
}

struct sgd_constants {
    float lr, momentum, rest, decay, grad_scale;
    bool nesterov, first_step;
};

__device__ static inline float decayed(float grad, float p, const sgd_constants &c) {
    return __fadd_rn(__fmul_rn(grad, c.grad_scale), __fmul_rn(c.decay, p));
}

struct sgd_op {
    static constexpr int width = 4, unroll = 2;
    float *param;
    const float *grad;
    sgd_constants constants;
    size_t head() const { return gs_common_head<width>(param, grad); }
    template <int W>
    struct inputs {
        gs_elements<float, W> param, grad;
    };
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        return {gs_load_elements<W>(param + i), gs_load_elements<W>(grad + i)};
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &in) const {
        gs_elements<float, W> p = in.param;
#pragma unroll
        for (int k = 0; k < W; k++) {
            const float g = decayed(in.grad.at[k], p.at[k], constants);
            p.at[k] = __fsub_rn(p.at[k], __fmul_rn(constants.lr, g));
        }
        gs_store_elements<W>(param + i, p);
    }
};

struct sgd_momentum_op {
    static constexpr int width = 4, unroll = 2;
    float *param, *momentum;
    const float *grad;
    sgd_constants constants;
    size_t head() const { return gs_common_head<width>(param, momentum, grad); }
    template <int W>
    struct inputs {
        gs_elements<float, W> param, momentum, grad;
    };
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        return {gs_load_elements<W>(param + i), gs_load_elements<W>(momentum + i),
                gs_load_elements<W>(grad + i)};
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &in) const {
        const sgd_constants &c = constants;
        gs_elements<float, W> p = in.param, next = in.momentum;
#pragma unroll
        for (int k = 0; k < W; k++) {
            const float g = decayed(in.grad.at[k], p.at[k], c);
            const float kept = __fadd_rn(__fmul_rn(c.momentum, next.at[k]), __fmul_rn(c.rest, g));
            next.at[k] = c.first_step ? g : kept;
            const float ahead = __fadd_rn(g, __fmul_rn(c.momentum, next.at[k]));
            p.at[k] = __fsub_rn(p.at[k], __fmul_rn(c.lr, c.nesterov ? ahead : next.at[k]));
        }
        gs_store_elements<W>(momentum + i, next);
        gs_store_elements<W>(param + i, p);
    }
};

extern "C" void gs_cuda_sgd(gs_stream *stream, float *param, float *momentum, const float *grad,
                            const gs_sgd *step, size_t count) {
    sgd_constants c;
    c.lr = step->lr;
    c.momentum = step->momentum;
    c.rest = static_cast<float>(1.0 - static_cast<double>(step->dampening));
    c.decay = step->weight_decay;
    c.grad_scale = step->grad_scale;
    c.nesterov = step->nesterov;
    c.first_step = step->first_step;
    if (step->momentum == 0.0f || !momentum) {
        gs_run_flat(stream, sgd_op{param, grad, c}, count);
    } else {
        gs_run_flat(stream, sgd_momentum_op{param, momentum, grad, c}, count);
    }
}
