// SGD and AdamW in PyTorch's order of operations, one pass, the corrections hoisted out of the
// loop; and the factor that they read.
#include <math.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/cpu/chunks.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/past_caches.h"

// Beside: so many elements of the moments are copied, stepped in place while they are in the first
// cache, and stored past it.
#define PIECE (4 * GS_LINE_FLOATS)

void GS_CPU(grad_factor)(gs_stream *stream, gs_grad_factor *out, const double *squares, size_t count,
                         const gs_grad_clip *clip) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += squares[i];
    double norm = sqrt(sum) / clip->loss_scale, factor = clip->max_norm / (norm + 1e-6);
    float clipping = clip->max_norm <= 0 || factor > 1 ? 1.0f : (float)factor;
    bool applies = isfinite(sum) && !gs_stream_has_failed(stream);
    *out = (gs_grad_factor){.value = applies ? clipping * clip->unscaling : 0, .applies = applies};
}

// False: there is no update.
GS_INLINE bool take_factor(float *grad_scale, const gs_grad_factor *factor) {
    if (factor) *grad_scale = factor->value;
    return !factor || factor->applies;
}

typedef struct adamw_job {
    float *param, *m, *v;
    const float *grad;
    const gs_adamw *step;
    float step_size, correction2_root_inverse;
    size_t count;
} adamw_job;

GS_INLINE void step_adamw(const adamw_job *job, gs_range range, const bool decoupled) {
    float *restrict param = job->param + range.first;
    float *restrict m = job->m + range.first;
    float *restrict v = job->v + range.first;
    const float *restrict grad = job->grad + range.first;
    const gs_adamw *step = job->step;
    const float grad_scale = step->grad_scale, eps = step->eps, decay = step->weight_decay;
    const float beta1 = step->beta1, beta2 = step->beta2;
    const float rest1 = (float)(1.0 - (double)beta1), rest2 = (float)(1.0 - (double)beta2);
    const float keep = (float)(1.0 - (double)step->lr * (double)decay);
    const float step_size = job->step_size, root_inverse = job->correction2_root_inverse;
    for (size_t i = 0; i < range.count; i++) {
        float p = param[i], g = grad[i] * grad_scale;
        if (decoupled) {
            p *= keep;
        } else {
            g += decay * p;
        }
        float next_m = beta1 * m[i] + rest1 * g;
        float next_v = beta2 * v[i] + rest2 * g * g;
        float denominator = sqrtf(next_v) * root_inverse + eps;
        m[i] = next_m;
        v[i] = next_v;
        param[i] = p - step_size * next_m / denominator;
    }
}

static void adamw_item(void *ctx, size_t item) {
    const adamw_job *job = ctx;
    gs_range range = gs_item_range(item, GS_CHUNK, job->count);
    if (job->step->decoupled) {
        step_adamw(job, range, true);
    } else {
        step_adamw(job, range, false);
    }
}

static void hoist_corrections(adamw_job *job) {
    job->step_size = (float)((double)job->step->lr / job->step->correction1);
    job->correction2_root_inverse = (float)(1.0 / sqrt(job->step->correction2));
}

void GS_CPU(adamw)(gs_stream *stream, float *param, float *m, float *v, const float *grad,
                   const gs_adamw *step, size_t count) {
    gs_adamw own = *step;
    adamw_job job = {.param = param, .m = m, .v = v, .grad = grad, .step = &own, .count = count};
    if (!take_factor(&own.grad_scale, stream->factor)) return;
    hoist_corrections(&job);
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), adamw_item, &job);
}

typedef struct adamw_beside_job {
    adamw_job in_place;  // m and v are a piece's
    float *was, *next_m, *next_v;
    const float *m, *v;
} adamw_beside_job;

static void step_adamw_piece(const adamw_beside_job *job, size_t first, size_t count) {
    float m[PIECE], v[PIECE];
    adamw_job piece = job->in_place;
    piece.param += first;
    piece.grad += first;
    piece.m = memcpy(m, job->m + first, count * sizeof *m);
    piece.v = memcpy(v, job->v + first, count * sizeof *v);
    gs_store_past(job->was + first, piece.param, count);
    if (piece.step->decoupled) {
        step_adamw(&piece, (gs_range){0, count}, true);
    } else {
        step_adamw(&piece, (gs_range){0, count}, false);
    }
    gs_store_past(job->next_m + first, m, count);
    gs_store_past(job->next_v + first, v, count);
}

static void adamw_beside_item(void *ctx, size_t item) {
    gs_range range = gs_item_range(item, GS_CHUNK, ((adamw_beside_job *)ctx)->in_place.count);
    size_t end = range.first + range.count, first = range.first;
    for (; first + PIECE <= end; first += PIECE) step_adamw_piece(ctx, first, PIECE);
    step_adamw_piece(ctx, first, end - first);
    gs_end_stores_past();
}

void GS_CPU(adamw_beside)(gs_stream *stream, float *param, float *was, float *next_m, float *next_v,
                          const float *m, const float *v, const float *grad, const gs_adamw *step,
                          size_t count) {
    if (gs_stream_refuses_factor(stream, "adamw_beside")) return;
    adamw_beside_job job = {
        .in_place = {.param = param, .grad = grad, .step = step, .count = count},
        .was = was,
        .next_m = next_m,
        .next_v = next_v,
        .m = m,
        .v = v};
    hoist_corrections(&job.in_place);
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), adamw_beside_item, &job);
}

typedef struct sgd_job {
    float *param, *momentum;
    const float *grad;
    const gs_sgd *step;
    size_t count;
} sgd_job;

static void step_plain(const sgd_job *job, gs_range range) {
    float *restrict param = job->param + range.first;
    const float *restrict grad = job->grad + range.first;
    const gs_sgd step = *job->step;
    for (size_t i = 0; i < range.count; i++) {
        float g = grad[i] * step.grad_scale + step.weight_decay * param[i];
        param[i] -= step.lr * g;
    }
}

GS_INLINE void step_momentum(const sgd_job *job, gs_range range, const bool first_step,
                             const bool nesterov) {
    float *restrict param = job->param + range.first;
    float *restrict momentum = job->momentum + range.first;
    const float *restrict grad = job->grad + range.first;
    const gs_sgd step = *job->step;
    const float rest = (float)(1.0 - (double)step.dampening);
    for (size_t i = 0; i < range.count; i++) {
        float g = grad[i] * step.grad_scale + step.weight_decay * param[i];
        float buffer = first_step ? g : step.momentum * momentum[i] + rest * g;
        momentum[i] = buffer;
        param[i] -= step.lr * (nesterov ? g + step.momentum * buffer : buffer);
    }
}

static void step_sgd(const sgd_job *job, gs_range range) {
    const gs_sgd *step = job->step;
    if (step->momentum == 0.0f || !job->momentum) {
        step_plain(job, range);
    } else if (step->nesterov) {
        step_momentum(job, range, step->first_step, true);
    } else {
        step_momentum(job, range, step->first_step, false);
    }
}

static void sgd_item(void *ctx, size_t item) {
    const sgd_job *job = ctx;
    step_sgd(job, gs_item_range(item, GS_CHUNK, job->count));
}

void GS_CPU(sgd)(gs_stream *stream, float *param, float *momentum, const float *grad,
                 const gs_sgd *step, size_t count) {
    gs_sgd own = *step;
    sgd_job job = {
        .param = param, .momentum = momentum, .grad = grad, .step = &own, .count = count};
    if (!take_factor(&own.grad_scale, stream->factor)) return;
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), sgd_item, &job);
}

typedef struct sgd_beside_job {
    sgd_job in_place;  // momentum is a piece's, or NULL
    float *was, *next_momentum;
    const float *momentum;
} sgd_beside_job;

static void step_sgd_piece(const sgd_beside_job *job, size_t first, size_t count) {
    float momentum[PIECE];
    sgd_job piece = job->in_place;
    piece.param += first;
    piece.grad += first;
    if (job->momentum)
        piece.momentum = memcpy(momentum, job->momentum + first, count * sizeof *momentum);
    gs_store_past(job->was + first, piece.param, count);
    step_sgd(&piece, (gs_range){0, count});
    if (job->momentum) gs_store_past(job->next_momentum + first, momentum, count);
}

static void sgd_beside_item(void *ctx, size_t item) {
    gs_range range = gs_item_range(item, GS_CHUNK, ((sgd_beside_job *)ctx)->in_place.count);
    size_t end = range.first + range.count, first = range.first;
    for (; first + PIECE <= end; first += PIECE) step_sgd_piece(ctx, first, PIECE);
    step_sgd_piece(ctx, first, end - first);
    gs_end_stores_past();
}

void GS_CPU(sgd_beside)(gs_stream *stream, float *param, float *was, float *next_momentum,
                        const float *momentum, const float *grad, const gs_sgd *step,
                        size_t count) {
    if (gs_stream_refuses_factor(stream, "sgd_beside")) return;
    sgd_beside_job job = {.in_place = {.param = param, .grad = grad, .step = step, .count = count},
                          .was = was,
                          .next_momentum = next_momentum,
                          .momentum = momentum};
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), sgd_beside_item, &job);
}
