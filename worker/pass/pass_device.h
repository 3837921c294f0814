// What the passes of a session on a GPU need beside the model: batches on the device, graphs, times, and
// where losses add up. On CPUs all of it is NULL and passes run as they are called.
#ifndef WORKER_PASS_PASS_DEVICE_H
#define WORKER_PASS_PASS_DEVICE_H

#include "core/status.h"
#include "worker/pass/batch_stage.h"
#include "worker/pass/device_times.h"
#include "worker/pass/pass_graph.h"
#include "worker/state/trainer_state.h"

typedef struct gs_pass_device {
    gs_batch_stage *train, *evaluation;
    gs_pass_graphs *graphs;
    gs_device_times *times;
    double *loss_sum;  // of the step's passes; pinned memory
} gs_pass_device;

//   evaluation  the loader of evaluation batches, or NULL
GS_NODISCARD gs_status gs_pass_device_init(gs_pass_device *out, const gs_trainer_state *state,
                                           const gs_data_loader *train,
                                           const gs_data_loader *evaluation);
void gs_pass_device_release(gs_pass_device *gpu, gs_device *device);

#endif
