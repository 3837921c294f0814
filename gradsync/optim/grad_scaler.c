#include "gradsync/optim/grad_scaler.h"

#include <math.h>

#include "core/options.h"

// Elements that are looked at and then scaled while they are in cache.
#define UNSCALE_COUNT ((size_t)8192)
#define UNSCALE_SECONDS 60.0

static float inverse_of(float scale) {
    return (float)(1.0 / (double)scale);
}

static gs_status check(const gs_grad_scaler_options *options) {
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
    if (options->hysteresis < 0)
        return gs_error(GS_INVALID_ARGUMENT, "hysteresis: %d, must be at least 0",
                        (int)options->hysteresis);
    if (!(options->min_scale >= 0 && options->min_scale <= options->init_scale))
        return gs_error(GS_INVALID_ARGUMENT, "min_scale: %g, must be between 0 and init_scale, %g",
                        (double)options->min_scale, (double)options->init_scale);
    return gs_ok();
}

gs_status gs_grad_scaler_init_sized(gs_grad_scaler *scaler, const gs_grad_scaler_options *options,
                                    size_t options_bytes) {
    gs_grad_scaler_options known;
    *scaler = (gs_grad_scaler){0};
    GS_TRY(gs_options_take(&known, sizeof known, options, options_bytes, "gs_grad_scaler_options"));
    GS_TRY(check(&known));
    scaler->scale = known.init_scale;
    return gs_ok();
}

// The product is rounded once. What no scale can be is not taken.
static void change_scale(gs_grad_scaler *scaler, double factor) {
    float scale = (float)((double)scaler->scale * factor);
    if (!isinf(scale) && !isinf(inverse_of(scale))) scaler->scale = scale;
    scaler->growth_tracker = 0;
}

static void fall(gs_grad_scaler *scaler, const gs_grad_scaler_options *options) {
    scaler->growth_tracker = 0;
    if (scaler->num_forgiven < 0) scaler->num_forgiven = 0;
    if ((int64_t)scaler->num_forgiven + 1 < options->hysteresis) {
        scaler->num_forgiven++;
        return;
    }
    float before = scaler->scale;
    change_scale(scaler, options->backoff_factor);
    if (scaler->scale < options->min_scale) scaler->scale = fminf(before, options->min_scale);
}

void gs_grad_scaler_update_sized(gs_grad_scaler *scaler, const gs_grad_scaler_options *options,
                                 size_t options_bytes, bool overflow) {
    gs_grad_scaler_options known;
    if (!(scaler->scale > 0)) return;
    // Options of which init has not made a scale.
    if (gs_options_take(&known, sizeof known, options, options_bytes, "gs_grad_scaler_options")
            .code)
        return;
    if (overflow) {
        fall(scaler, &known);
    } else if (scaler->growth_tracker < known.growth_interval - 1) {
        scaler->growth_tracker++;
    } else {
        change_scale(scaler, known.growth_factor);
        scaler->num_forgiven = 0;
    }
}

float gs_grad_scaler_scale(const gs_grad_scaler *scaler) {
    return scaler->scale > 0 ? scaler->scale : 1.0f;
}

float gs_grad_scaler_inverse(const gs_grad_scaler *scaler) {
    return inverse_of(gs_grad_scaler_scale(scaler));
}

// The count comes back through pinned memory. A device that fails counts as not finite.
static bool unscale_on_device(float *grad, size_t count, float inverse, gs_device *device) {
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *stream = gs_device_stream(device);
    void *found;
    gs_status status = gs_device_alloc_pinned(device, &found, sizeof(uint64_t));
    if (status.code) return true;
    kernels->count_nonfinite(stream, found, grad, count);
    kernels->scale(stream, grad, grad, inverse, count);
    status = gs_stream_wait(stream, gs_deadline_in_seconds(UNSCALE_SECONDS));
    bool overflowed = status.code || *(uint64_t *)found > 0;
    gs_device_free_pinned(device, found);
    return overflowed;
}

bool gs_grad_scaler_unscale(const gs_grad_scaler *scaler, float *grad, size_t count,
                            gs_device *device) {
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *stream = gs_device_stream(device);
    float inverse = gs_grad_scaler_inverse(scaler);
    uint64_t num_nonfinite = 0;
    if (!gs_device_is_host(device)) return unscale_on_device(grad, count, inverse, device);
    for (size_t at = 0; at < count; at += UNSCALE_COUNT) {
        size_t part = count - at < UNSCALE_COUNT ? count - at : UNSCALE_COUNT;
        uint64_t found = 0;
        kernels->count_nonfinite(stream, &found, grad + at, part);
        kernels->scale(stream, grad + at, grad + at, inverse, part);
        num_nonfinite += found;
    }
    return num_nonfinite > 0;
}
