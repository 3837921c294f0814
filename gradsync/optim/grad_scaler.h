// Dynamic loss scaling: small gradients survive 16 bits because the loss is multiplied by a scale
// that grows while nothing overflows and falls when something does.
//
// A value; nothing here asks other ranks. `overflow` has to be read from reduced gradients (an
// infinity or NaN of any rank is in the sum of all), so that every rank takes the same decision;
// then one overflow backs off once, however many ranks found it. The update after a step belongs to
// the application of that step: a step that is run again starts from the scale it had.
//
// Source: Micikevicius et al., Mixed Precision Training (2018), section 3.2; the rules are
// PyTorch's. Hysteresis, counted anew after each growth, and a smallest scale are DeepSpeed's, but
// off unless they are asked for (there 2 and 1), and an overflow at the smallest scale is a step
// that is skipped like others (there an error).
#ifndef GRADSYNC_OPTIM_GRAD_SCALER_H
#define GRADSYNC_OPTIM_GRAD_SCALER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/status.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

typedef struct gs_grad_scaler_options {
    float init_scale;         // above 0; it and its inverse are finite
    double growth_factor;     // at least 1
    double backoff_factor;    // in (0, 1): at 1 an overflow would stay for ever
    int64_t growth_interval;  // steps without overflow before the scale grows
    // The scale falls with this overflow after a growth, and with each behind it; those before are
    // forgiven. 0 is 1.
    int32_t hysteresis;
    float min_scale;  // it falls no further; at most init_scale; 0: as far as its inverse is finite
} gs_grad_scaler_options;

// What a checkpoint keeps. {0} is no scaling: its factors are 1 and it never changes.
typedef struct gs_grad_scaler {
    float scale;
    int64_t growth_tracker;  // steps without overflow since the scale last changed, or the last
                             // overflow
    int32_t num_forgiven;    // overflows since the last growth after which the scale stayed
} gs_grad_scaler;

// INVALID_ARGUMENT names the option.
GS_NODISCARD gs_status gs_grad_scaler_init_sized(gs_grad_scaler *scaler,
                                                 const gs_grad_scaler_options *options,
                                                 size_t options_bytes);
GS_NODISCARD static inline gs_status gs_grad_scaler_init(gs_grad_scaler *scaler,
                                                         const gs_grad_scaler_options *options) {
    return gs_grad_scaler_init_sized(scaler, options, sizeof *options);
}

// After a step, with the options of init: scale · backoff_factor when it overflowed (and was
// skipped); scale · growth_factor after growth_interval steps without. A growth to infinity, and a
// fall so deep that 1 / scale is infinite, leave the scale alone; an overflow at min_scale does.
void gs_grad_scaler_update_sized(gs_grad_scaler *scaler, const gs_grad_scaler_options *options,
                                 size_t options_bytes, bool overflow);
static inline void gs_grad_scaler_update(gs_grad_scaler *scaler,
                                         const gs_grad_scaler_options *options, bool overflow) {
    gs_grad_scaler_update_sized(scaler, options, sizeof *options, overflow);
}

// The factor of the loss, and the one that takes it out of gradients again: (float)(1 /
// (double)scale). The latter multiplies into gs_optimizer_step's grad_scale: unscaling costs no
// pass of its own.
float gs_grad_scaler_scale(const gs_grad_scaler *scaler);
float gs_grad_scaler_inverse(const gs_grad_scaler *scaler);

// For callers who want unscaled gradients in memory: grad · inverse in place. True when an element
// was not finite; those stay what they are. On a GPU it waits and allocates; training folds the inverse into
// the update, and reads from the norm what was not finite.
bool gs_grad_scaler_unscale(const gs_grad_scaler *scaler, float *grad, size_t count,
                            gs_device *device);

GS_END_DECLS

#endif
