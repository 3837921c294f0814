// The replicas of one trainer: k instances of its model, each with a device, memory and a thread.
//
// Replica 0 is the trainer's own state on its own device, run by the compute thread. The others
// have threads of their own, started once, and copies of what a pass reads: the parameters' values
// and the committed buffers. They hold nothing that outlives a step. Copies even where memory could
// be shared: that is what a device of its own means, and a thread reads its parameters where it
// wrote them first.
#ifndef WORKER_PASS_MODEL_REPLICAS_H
#define WORKER_PASS_MODEL_REPLICAS_H

#include "core/clock.h"
#include "core/status.h"
#include "rpc/schema/job_spec.h"
#include "worker/state/trainer_state.h"

typedef struct gs_model_replicas gs_model_replicas;

// What one replica passes with.
typedef struct gs_replica_view {
    gs_device *device;
    const gs_model *model;
    void *const *values;
    gs_buffers *buffers;
    const gs_mixed_precision
        *mixed;  // rounds gradients to 16 bits; NULL: they are left as they are
} gs_replica_view;

// The trainer's own state: replica 0, or all that there is.
static inline gs_replica_view gs_replica_view_of(const gs_trainer_state *state) {
    return (gs_replica_view){.device = state->device,
                             .model = &state->model,
                             .values = state->values,
                             .buffers = state->buffers,
                             .mixed = state->rounds_grads ? state->mixed : NULL};
}

//   state        of replica 0; borrows until destroy
//   num_threads  of each replica's device
GS_NODISCARD gs_status gs_model_replicas_create(gs_model_replicas **out, const gs_job_spec *spec,
                                                const gs_trainer_state *state, int num_threads);
// Waits for the threads to end what they run.
void gs_model_replicas_destroy(gs_model_replicas *replicas);

int gs_model_replicas_count(const gs_model_replicas *replicas);
gs_device *const *gs_model_replicas_devices(const gs_model_replicas *replicas);
gs_replica_view gs_model_replicas_view(const gs_model_replicas *replicas, int replica);

// Copies replica 0's values and committed buffers. The replica's own thread, before its passes;
// nobody changes replica 0 meanwhile.
void gs_model_replicas_refresh(gs_model_replicas *replicas, int replica);

// Runs body(ctx, replica) on the threads of all replicas but 0; returns at once. Then wait; not
// again before. DEADLINE_EXCEEDED names a replica that is still running.
void gs_model_replicas_start(gs_model_replicas *replicas, void (*body)(void *ctx, int replica),
                             void *ctx);
GS_NODISCARD gs_status gs_model_replicas_wait(gs_model_replicas *replicas, gs_deadline deadline);

#endif
