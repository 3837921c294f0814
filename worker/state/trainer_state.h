// All that a run is at one step: parameters, optimizer state, committed buffers, position. Nothing
// else may influence the next step.
//
// The state is a list of named tensors, four integers and the loss scale; checkpoints, snapshots
// and digests are walks over it. It outlives sessions: an aborted step leaves it as it was.
#ifndef WORKER_STATE_TRAINER_STATE_H
#define WORKER_STATE_TRAINER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "gradsync/optim/grad_scaler.h"
#include "gradsync/optim/mixed_precision.h"
#include "gradsync/optim/optimizer.h"
#include "gradsync/step/buffers.h"
#include "gradsync/step/model.h"
#include "kernels/device.h"
#include "rpc/schema/job_spec.h"
#include "worker/state/device_copy.h"
#include "worker/state/own_tensors.h"

#define GS_STATE_NAME_LEN (GS_PARAM_NAME_LEN + 32)

// A tensor of the state as a checkpoint names it: parameters by their own name,
// "optimizer.exp_avg.NAME", "buffer.NAME", "optimizer.num_updates" (one i64 for each parameter), and
// "hook/…".
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
    // precision of 16 bits they are the masters; NULL when those are split (gradsync/optim/mixed_precision.h).
    void **params;
    gs_mixed_precision *mixed;  // NULL: precision is fp32
    // What passes read, of the model's dtype: params, or what 16 bits hold of them (refresh), as such or
    // in fp32.
    void *const *values;
    bool rounds_grads;  // a pass's gradients are to be rounded to 16 bits: the model's kernels are fp32
    gs_grad_scaler_options loss_scaling;
    gs_buffers *buffers;
    bool buffers_are_local;  // each rank has its own
    gs_optimizer *optimizer;
    gs_position position;  // the step that was applied changes it
    // What each rank has changed by itself since all had the same (replica_average.h).
    bool params_apart, optimizer_apart;
    gs_state_tensor *tensors;
    size_t num_tensors;
    size_t num_model_tensors;  // of them; behind them what hooks carry (hook_tensors.h)
    gs_own_tensors own;        // what each rank has apart: in no digest, and nobody's to receive

    void *memory;  // of the parameters, or of the halves of their masters
    size_t memory_bytes;
    size_t params_bytes;   // of all params as fp32, each on a boundary of 64 bytes
    bool owns_memory;
    gs_device_copy *copy;  // owned; what follows belongs to the transfer that it makes
    gs_copy_run *runs;     // num_tensors of them: where each tensor lies
    gs_copy_run digested;  // begin_params_digest
    void **resting;        // of tensors of hooks: owned, while no reducer has them; else NULL
} gs_trainer_state;

// Builds the model of `spec`, draws its first values from the seed, makes the optimizer.
GS_NODISCARD gs_status gs_trainer_state_init(gs_trainer_state *state, const gs_job_spec *spec,
                                             gs_device *device);
void gs_trainer_state_release(gs_trainer_state *state);

// Ranks of this step hold different ones: none of them is the job's.
static inline bool gs_trainer_state_is_apart(const gs_trainer_state *state) {
    return state->params_apart || state->optimizer_apart;
}

// Brings values up to date. After every change of params; the functions of this file do it
// themselves.
void gs_trainer_state_refresh(gs_trainer_state *state);

// Where tensor `index` lies; NULL when the host cannot reach it there.
void *gs_trainer_state_data(const gs_trainer_state *state, size_t index);
// One tensor to or from host memory, as a checkpoint has it: parameters as their fp32 masters. Behind all
// that the device was given; done when they return. After the last write: refresh.
GS_NODISCARD gs_status gs_trainer_state_read(const gs_trainer_state *state, size_t index, void *host);
GS_NODISCARD gs_status gs_trainer_state_write(gs_trainer_state *state, size_t index,
                                              const void *host);
// The same from pieces: `fill` is given where the next bytes of the tensor go.
GS_NODISCARD gs_status gs_trainer_state_fill(gs_trainer_state *state, size_t index,
                                             gs_copy_fill fill, void *ctx);
size_t gs_trainer_state_total_elements(const gs_trainer_state *state);  // of the parameters

// The digest that ranks, checkpoints and tests compare: the bytes of every tensor in order, the
// position. {0}: the device could not be read.
gs_digest gs_trainer_state_digest(const gs_trainer_state *state);
// The same of what all ranks have alike: without local buffers.
gs_digest gs_trainer_state_common_digest(const gs_trainer_state *state);
// Of the parameters alone, as they lie in memory: `part` of `num_parts` equal pieces of it (0 of 1: all).
// Ranks of one kind of device compare it. Begin starts to bring the piece to the host, beside what the
// compute stream is given from then on; the parameters change after end alone. {0} as above.
void gs_trainer_state_begin_params_digest(gs_trainer_state *state, int part, int num_parts);
gs_digest gs_trainer_state_end_params_digest(gs_trainer_state *state);

// Into a digest, as every digest of a state has it.
void gs_position_digest(gs_digest_stream *stream, const gs_position *position);

#endif
