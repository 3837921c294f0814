// All that a run is at one step: parameters, optimizer state, committed buffers, position. Nothing
// else may influence the next step.
//
// The state is a list of named tensors, four integers and the loss scale; checkpoints, snapshots
// and digests are walks over it. It outlives sessions: an aborted step leaves it as it was.
#ifndef WORKER_TRAINER_STATE_H
#define WORKER_TRAINER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "gradsync/buffers.h"
#include "gradsync/grad_scaler.h"
#include "gradsync/mixed_precision.h"
#include "gradsync/model.h"
#include "gradsync/optimizer.h"
#include "kernels/device.h"
#include "rpc/job_spec.h"

#define GS_STATE_NAME_LEN (GS_PARAM_NAME_LEN + 32)

// A tensor of the state as a checkpoint names it: parameters by their own name,
// "optimizer.exp_avg.NAME", "buffer.NAME", and "optimizer.num_updates" (one i64 for each
// parameter).
typedef struct gs_state_tensor {
    char name[GS_STATE_NAME_LEN];
    gs_dtype dtype;
    int num_dims;
    int64_t shape[GS_MAX_DIMS];
    size_t bytes;
} gs_state_tensor;

typedef struct gs_position {
    int64_t step;                             // steps applied
    int64_t consumed;                         // global samples
    int64_t skipped_steps, skipped_in_a_row;  // updates left out: a gradient was not finite
    gs_grad_scaler loss_scale;                // {0}: precision is not fp16
} gs_position;

// Owned by the compute thread. Fields are for reading; who changes them is said beside.
typedef struct gs_trainer_state {
    gs_device *device;  // borrows until release
    gs_model model;
    size_t num_params, num_buffers;
    gs_param_spec *param_specs;  // num_params of them; their dtype is the precision's
    const gs_param_spec *buffer_specs;
    // fp32 views into one block, in the model's order; the optimizer step changes them. With a
    // precision of 16 bits they are the masters.
    void **params;
    gs_mixed_precision *mixed;  // NULL: precision is fp32
    void *const
        *values;  // what passes read: params, or in fp32 what 16 bits hold of them (refresh)
    gs_grad_scaler_options loss_scaling;
    gs_buffers *buffers;
    gs_optimizer *optimizer;
    gs_position position;  // the step that was applied changes it
    gs_state_tensor *tensors;
    size_t num_tensors;

    void *memory;  // of the parameters
    size_t memory_bytes;
} gs_trainer_state;

// Builds the model of `spec`, draws its first values from the seed, makes the optimizer.
GS_NODISCARD gs_status gs_trainer_state_init(gs_trainer_state *state, const gs_job_spec *spec,
                                             gs_device *device);
void gs_trainer_state_release(gs_trainer_state *state);

// Brings values up to date. After every change of params; the functions of this file do it
// themselves.
void gs_trainer_state_refresh(gs_trainer_state *state);

// Where tensor `index` lies now, in device memory.
void *gs_trainer_state_data(const gs_trainer_state *state, size_t index);
size_t gs_trainer_state_bytes(const gs_trainer_state *state);           // of all tensors
size_t gs_trainer_state_total_elements(const gs_trainer_state *state);  // of the parameters

// The digest that ranks, checkpoints and tests compare: the bytes of every tensor in order, the
// position.
gs_digest gs_trainer_state_digest(const gs_trainer_state *state);
// Of the parameters alone; `part` of `num_parts` equal pieces of their memory (0 of 1: all).
gs_digest gs_trainer_state_params_digest(const gs_trainer_state *state, int part, int num_parts);

// A copy of the state in host memory. Its digests are those of the state it was taken from, so that
// a thread that writes it may compute them.
typedef struct gs_state_snapshot {
    const gs_state_tensor *tensors;  // borrowed from the state
    size_t num_tensors, num_params;
    uint8_t *memory;  // owned; tensors one after the other, each on 64 bytes
    size_t *offsets;  // owned; num_tensors of them
    size_t bytes, params_bytes;
    gs_position position;
} gs_state_snapshot;

// Memory for snapshots of `state`; take copies, restore copies back.
GS_NODISCARD gs_status gs_state_snapshot_init(gs_state_snapshot *snapshot,
                                              const gs_trainer_state *state);
void gs_state_snapshot_release(gs_state_snapshot *snapshot);
GS_NODISCARD gs_status gs_state_snapshot_take(gs_state_snapshot *snapshot,
                                              const gs_trainer_state *state);
GS_NODISCARD gs_status gs_state_snapshot_restore(const gs_state_snapshot *snapshot,
                                                 gs_trainer_state *state);
gs_digest gs_state_snapshot_digest(const gs_state_snapshot *snapshot);
gs_digest gs_state_snapshot_params_digest(const gs_state_snapshot *snapshot);

#endif
