#include "gradsync/grad_scaler.h"

#include <math.h>

// Elements that are looked at and then scaled while they are in cache.
#define UNSCALE_COUNT ((size_t)8192)

static float inverse_of(float scale) {
    return (float)(1.0 / (double)scale);
}

gs_status gs_grad_scaler_init(gs_grad_scaler *scaler, const gs_grad_scaler_options *options) {
    *scaler = (gs_grad_scaler){0};
    if (!(options->init_scale > 0) || isinf(options->init_scale) ||
        isinf(inverse_of(options->init_scale)))
        return gs_error(GS_INVALID_ARGUMENT,
                        "init_scale: %g, must be above 0 and finite, its inverse too",
                        (double)options->init_scale);
    if (!(options->growth_factor >= 1))
        return gs_error(GS_INVALID_ARGUMENT, "growth_factor: %g, must be at least 1",
                        options->growth_factor);
    if (!(options->backoff_factor > 0 && options->backoff_factor < 1))
        return gs_error(GS_INVALID_ARGUMENT, "backoff_factor: %g, must be between 0 and 1",
                        options->backoff_factor);
    if (options->growth_interval < 1)
        return gs_error(GS_INVALID_ARGUMENT, "growth_interval: %lld, must be at least 1",
                        (long long)options->growth_interval);
    scaler->scale = options->init_scale;
    return gs_ok();
}

// The product is rounded once. What no scale can be is not taken.
static void change_scale(gs_grad_scaler *scaler, double factor) {
    float scale = (float)((double)scaler->scale * factor);
    if (!isinf(scale) && !isinf(inverse_of(scale))) scaler->scale = scale;
    scaler->growth_tracker = 0;
}

void gs_grad_scaler_update(gs_grad_scaler *scaler, const gs_grad_scaler_options *options,
                           bool overflow) {
    if (!(scaler->scale > 0)) return;
    if (overflow) {
        change_scale(scaler, options->backoff_factor);
    } else if (++scaler->growth_tracker >= options->growth_interval) {
        change_scale(scaler, options->growth_factor);
    }
}

float gs_grad_scaler_scale(const gs_grad_scaler *scaler) {
    return scaler->scale > 0 ? scaler->scale : 1.0f;
}

float gs_grad_scaler_inverse(const gs_grad_scaler *scaler) {
    return inverse_of(gs_grad_scaler_scale(scaler));
}

bool gs_grad_scaler_unscale(const gs_grad_scaler *scaler, float *grad, size_t count,
                            gs_device *device) {
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *stream = gs_device_stream(device);
    float inverse = gs_grad_scaler_inverse(scaler);
    uint64_t num_nonfinite = 0;
    for (size_t at = 0; at < count; at += UNSCALE_COUNT) {
        size_t part = count - at < UNSCALE_COUNT ? count - at : UNSCALE_COUNT;
        uint64_t found = 0;
        kernels->count_nonfinite(stream, &found, grad + at, part);
        kernels->scale(stream, grad + at, grad + at, inverse, part);
        num_nonfinite += found;
    }
    return num_nonfinite > 0;
}
