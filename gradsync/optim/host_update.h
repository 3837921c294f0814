// The update of parameters that are a GPU's by the host, which has the optimizer's state in its
// memory: parameters and gradients come to it piece by piece, are updated there, and parameters go
// back.
//
// Two pieces take turns in pinned memory: while one is updated the next one is on its way. A
// parameter that lies in pinned memory itself, a master of 16 bits, is updated where it is. What
// was updated is enqueued on the compute stream when a run returns; the host has waited for
// gradients, and so for all before them.
#ifndef GRADSYNC_OPTIM_HOST_UPDATE_H
#define GRADSYNC_OPTIM_HOST_UPDATE_H

#include <stddef.h>

#include "core/status.h"
#include "kernels/device.h"

// Pinned, in two pieces, each of parameters and gradients.
#define GS_HOST_UPDATE_PIECES_BYTES ((size_t)16 << 20)

typedef struct gs_host_update gs_host_update;

// `num_threads` of the host for updates; 0: one. Borrows the device until destroy.
GS_NODISCARD gs_status gs_host_update_create(gs_host_update **out, gs_device *device,
                                             int num_threads);
void gs_host_update_destroy(gs_host_update *update);

typedef struct gs_host_update_run {
    float *param;       // the device's memory, or pinned
    const float *grad;  // the device's
    size_t count;
    // Elements [first, first + count) of the run: where they lie for `host`, which has threads and
    // kernels.
    void (*update)(void *ctx, gs_device *host, size_t first, size_t count, float *param,
                   const float *grad);
    void *ctx;
} gs_host_update_run;

// DEADLINE_EXCEEDED: the device does not answer.
GS_NODISCARD gs_status gs_host_update_all(gs_host_update *update, const gs_host_update_run *run);

#endif
