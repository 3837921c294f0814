// SGD and AdamW over flat memory, one pass, and the factor that they read; every operation rounds as the CPU's.
#include <float.h>

#include "kernels/cuda/adamw.cuh"

extern "C" void gs_cuda_adamw(gs_stream *stream, float *param, float *m, float *v, const float *grad,
                              const gs_adamw *step, size_t count) {
    const gs_adamw_common common = gs_adamw_make_common(stream, *step);
    const gs_adamw_own own = gs_adamw_make_own(step->lr, step->weight_decay, step->correction1,
                                               step->correction2);
    const auto run = [&]<bool DECOUPLED>() {
        gs_run_flat(stream,
                    gs_adamw_op<DECOUPLED>{.param = param,
                                           .value = nullptr,
                                           .remainder = nullptr,
                                           .m = m,
                                           .v = v,
                                           .grad = grad,
                                           .common = common,
                                           .own = own},
                    count);
    };
    step->decoupled ? run.operator()<true>() : run.operator()<false>();
}

template <bool DECOUPLED>
struct adamw_beside_op {
    static constexpr int width = 4, unroll = 1;
    float *param, *was, *next_m, *next_v;
    const float *m, *v, *grad;
    gs_adamw_common common;
    gs_adamw_own own;
    size_t head() const { return gs_common_head<width>(param, was, next_m, next_v, m, v, grad); }
    template <int W>
    struct inputs {
        gs_elements<float, W> param, m, v, grad;
    };
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        return {gs_load_elements<W>(param + i), gs_load_elements<W>(m + i), gs_load_elements<W>(v + i),
                gs_load_elements<W>(grad + i)};
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &in) const {
        gs_elements<float, W> p, step_m = in.m, step_v = in.v;
#pragma unroll
        for (int k = 0; k < W; k++)
            p.at[k] = gs_adamw_step<DECOUPLED>(in.param.at[k], step_m.at[k], step_v.at[k], in.grad.at[k],
                                               common.grad_scale.value, common, own);
        gs_store_elements<W>(was + i, in.param);
        gs_store_elements<W>(next_m + i, step_m);
        gs_store_elements<W>(next_v + i, step_v);
        gs_store_elements<W>(param + i, p);
    }
};

extern "C" void gs_cuda_adamw_beside(gs_stream *stream, float *param, float *was, float *next_m,
                                     float *next_v, const float *m, const float *v, const float *grad,
                                     const gs_adamw *step, size_t count) {
    if (gs_stream_refuses_factor(stream, "adamw_beside")) return;
    const gs_adamw_common common = gs_adamw_make_common(stream, *step);
    const gs_adamw_own own = gs_adamw_make_own(step->lr, step->weight_decay, step->correction1,
                                               step->correction2);
    const auto run = [&]<bool DECOUPLED>() {
        gs_run_flat(stream,
                    adamw_beside_op<DECOUPLED>{.param = param,
                                               .was = was,
                                               .next_m = next_m,
                                               .next_v = next_v,
                                               .m = m,
                                               .v = v,
                                               .grad = grad,
                                               .common = common,
                                               .own = own},
                    count);
    };
    step->decoupled ? run.operator()<true>() : run.operator()<false>();
}

struct sgd_constants {
    float lr, momentum, rest, decay;
    gs_grad_scale grad_scale;
    bool nesterov, first_step;
};

__device__ static inline float decayed(float grad, float p, float scale, const sgd_constants &c) {
    return __fadd_rn(__fmul_rn(grad, scale), __fmul_rn(c.decay, p));
}

// `was` NULL: what the parameter was is not kept.
struct sgd_op {
    static constexpr int width = 4, unroll = 2;
    float *param, *was;
    const float *grad;
    sgd_constants constants;
    size_t head() const { return gs_common_head<width>(param, was ? was : param, grad); }
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
        float scale;
        if (!constants.grad_scale.take(&scale)) return;
#pragma unroll
        for (int k = 0; k < W; k++) {
            const float g = decayed(in.grad.at[k], p.at[k], scale, constants);
            p.at[k] = __fsub_rn(p.at[k], __fmul_rn(constants.lr, g));
        }
        if (was) gs_store_elements<W>(was + i, in.param);
        gs_store_elements<W>(param + i, p);
    }
};

// In place `next` is the momentum.
struct sgd_momentum_op {
    static constexpr int width = 4, unroll = 2;
    float *param, *was, *next;
    const float *momentum, *grad;
    sgd_constants constants;
    size_t head() const {
        return gs_common_head<width>(param, was ? was : param, next, momentum, grad);
    }
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
        gs_elements<float, W> p = in.param, buffer = in.momentum;
        float scale;
        if (!c.grad_scale.take(&scale)) return;
#pragma unroll
        for (int k = 0; k < W; k++) {
            const float g = decayed(in.grad.at[k], p.at[k], scale, c);
            const float kept = __fadd_rn(__fmul_rn(c.momentum, buffer.at[k]), __fmul_rn(c.rest, g));
            buffer.at[k] = c.first_step ? g : kept;
            const float ahead = __fadd_rn(g, __fmul_rn(c.momentum, buffer.at[k]));
            p.at[k] = __fsub_rn(p.at[k], __fmul_rn(c.lr, c.nesterov ? ahead : buffer.at[k]));
        }
        if (was) gs_store_elements<W>(was + i, in.param);
        gs_store_elements<W>(next + i, buffer);
        gs_store_elements<W>(param + i, p);
    }
};

static void run_sgd(gs_stream *stream, float *param, float *was, float *next, const float *momentum,
                    const float *grad, const gs_sgd *step, size_t count) {
    sgd_constants c;
    c.lr = step->lr;
    c.momentum = step->momentum;
    c.rest = static_cast<float>(1.0 - static_cast<double>(step->dampening));
    c.decay = step->weight_decay;
    c.grad_scale = {step->grad_scale, stream->factor};
    c.nesterov = step->nesterov;
    c.first_step = step->first_step;
    if (step->momentum == 0.0f || !momentum) {
        gs_run_flat(stream, sgd_op{param, was, grad, c}, count);
        // A momentum that is not used stays what it was.
        if (momentum && next != momentum) gs_cuda_copy(stream, next, momentum, count * sizeof *next);
    } else {
        gs_run_flat(stream,
                    sgd_momentum_op{.param = param,
                                    .was = was,
                                    .next = next,
                                    .momentum = momentum,
                                    .grad = grad,
                                    .constants = c},
                    count);
    }
}

extern "C" void gs_cuda_sgd(gs_stream *stream, float *param, float *momentum, const float *grad,
                            const gs_sgd *step, size_t count) {
    run_sgd(stream, param, nullptr, momentum, momentum, grad, step, count);
}

extern "C" void gs_cuda_sgd_beside(gs_stream *stream, float *param, float *was, float *next_momentum,
                                   const float *momentum, const float *grad, const gs_sgd *step,
                                   size_t count) {
    if (gs_stream_refuses_factor(stream, "sgd_beside")) return;
    run_sgd(stream, param, was, next_momentum, momentum, grad, step, count);
}

// ---- the factor

#define FACTOR_BLOCK 256
#define FACTOR_AHEAD 4  // squares of a thread in flight: they lie in the host's memory

// One thread adds, so that the order is the host's; the others bring.
__global__ static void __launch_bounds__(FACTOR_BLOCK)
    grad_factor_kernel(gs_grad_factor *out, const double *squares, size_t count, const gs_grad_clip clip,
                       const gs_cuda_reports *reports, uint64_t num_heard, bool failed) {
    __shared__ double brought[FACTOR_BLOCK * FACTOR_AHEAD];
    double sum = 0.0;
    for (size_t first = 0; first < count; first += FACTOR_BLOCK * FACTOR_AHEAD) {
#pragma unroll
        for (size_t k = 0; k < FACTOR_AHEAD; k++) {
            const size_t at = k * FACTOR_BLOCK + threadIdx.x;
            brought[at] = first + at < count ? squares[first + at] : 0.0;
        }
        __syncthreads();
        const size_t rest = count - first;
        const size_t num = rest < FACTOR_BLOCK * FACTOR_AHEAD ? rest : FACTOR_BLOCK * FACTOR_AHEAD;
        for (size_t i = 0; threadIdx.x == 0 && i < num; i++) sum = sum + brought[i];
        __syncthreads();
    }
    if (threadIdx.x != 0) return;
    const double norm = sqrt(sum) / clip.loss_scale, factor = clip.max_norm / (norm + 1e-6);
    const float clipping = clip.max_norm <= 0.0 || factor > 1.0 ? 1.0f : static_cast<float>(factor);
    const volatile gs_cuda_reports *told = reports;
    const bool is_bad = failed || told->count != num_heard;
    out->applies = !is_bad && sum <= DBL_MAX;  // no NaN is
    out->value = out->applies ? __fmul_rn(clipping, clip.unscaling) : 0.0f;
}

extern "C" void gs_cuda_grad_factor(gs_stream *stream, gs_grad_factor *out, const double *squares,
                                    size_t count, const gs_grad_clip *clip) {
    const gs_cuda_stream *cuda = gs_cuda_stream_of(stream);
    GS_LAUNCH(stream, 1, FACTOR_BLOCK, 0, grad_factor_kernel, out, squares, count, *clip, cuda->reports_seen,
              cuda->num_heard, gs_stream_has_failed(stream));
}
