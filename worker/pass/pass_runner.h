// Runs the passes of a step on one replica of the model: a batch each, forward and backward,
// gradients to where they are reduced. The one way to run a pass: a rank without replicas runs its
// own state, whose gradients go to the reducer itself.
#ifndef WORKER_PASS_PASS_RUNNER_H
#define WORKER_PASS_PASS_RUNNER_H

#include <stdint.h>

#include "core/status.h"
#include "gradsync/replicas/replicas.h"
#include "worker/data/data_loader.h"
#include "worker/pass/pass_context.h"
#include "worker/pass/pass_device.h"
#include "worker/pass/model_replicas.h"
#include "worker/telemetry/step_facts.h"

// What passes of a step add up.
typedef struct gs_step_sums {
    double loss;  // on a GPU they add up in gs_pass_device.loss_sum
    int64_t num_losses, samples;
} gs_step_sums;

// A value, which borrows all that it points to. The thread of its replica.
typedef struct gs_pass_runner {
    const gs_pass_context *context;
    gs_replica_view view;  // what it computes with
    gs_data_loader *loader;
    gs_pass_device gpu;     // empty on CPUs; its parts are borrowed
    gs_replicas *replicas;  // NULL: gradients go to the context's reducer
    int replica;
    // Where the rank is and how long it takes, which replica 0 alone shows; NULL on the others.
    gs_step_facts *facts;
    gs_step_sums sums;
} gs_pass_runner;

// The replica's next pass of the open step; the reducer knows which that is.
GS_NODISCARD gs_status gs_pass_runner_run(gs_pass_runner *runner);

#endif
