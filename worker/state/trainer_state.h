// All that a run is at one step: parameters, optimizer state, committed buffers, position. Nothing
// else may influence the next step.
//
// The state is a list of named tensors, four integers and the loss scale; checkpoints, snapshots
// and digests are walks over it. It outlives sessions: an aborted step leaves it as it was.
//
// Of a sharded job (reducer.sharding) a rank holds all parameters, in 16 bits where precision says so, and of masters
// and the optimizer's state what it owns. Which that is comes with a generation: before it the state is a position and
// what it will be filled from, and with each one it is laid out anew. Tensors keep their names and shapes, whatever
// lies here of them.
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
#include "worker/state/state_shards.h"

#define GS_PARAM_BOUNDARY_BYTES 64  // between parameters of a block and in digests; zeros are between

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

typedef struct gs_trainer_state gs_trainer_state;

// What a sharded state is filled from when it is laid out: a checkpoint that is open, a file of parameters. It is kept
// for the next time.
typedef struct gs_state_source {
    void *ctx;      // owned
    bool is_drawn;  // it writes over initial values
    // Writes what lies here, and the position. NULL: there are initial values alone.
    gs_status (*fill)(void *ctx, gs_trainer_state *state);
    // Of tensor `index` of the state as a whole, for ranks that have no source. NULL: it has nothing that others lack.
    gs_status (*read)(void *ctx, size_t index, void *to, size_t first_byte, size_t num_bytes);
    void (*release)(void *ctx);
} gs_state_source;

// Owned by the compute thread. Fields are for reading; who changes them is said beside.
struct gs_trainer_state {
    gs_device *device;  // borrows until release
    gs_model model;
    size_t num_params, num_buffers;
    gs_param_spec *param_specs;  // num_params of them; their dtype is the precision's
    const gs_param_spec *buffer_specs;
    // fp32 views into one block, in the model's order; the optimizer step changes them. With a
    // precision of 16 bits they are the masters; NULL when those are split (gradsync/optim/mixed_precision.h), or
    // sharded (own_params).
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

    bool is_sharded;
    gs_state_shards *shards;  // owned; who owns what, since the state was laid out; NULL: all is here
    // Of a sharded state: where each segment begins that the optimizer has. NULL: masters in halves.
    void **own_params;
    void *masters;        // owned; of a sharded state of 16 bits: the memory of own_params
    gs_copy_run *halves;  // owned; of a sharded state of 16 bits: where each parameter lies as all have it; else NULL
    gs_state_source source;   // owned; of a sharded state

    void *memory;  // of the parameters, or of the halves of their masters; sharded, in 16 bits: of those
    size_t memory_bytes;
    size_t params_bytes;   // of all params as fp32, each on a boundary of 64 bytes
    bool owns_memory;
    gs_device_copy *copy;  // owned; what follows belongs to the transfer that it makes
    gs_copy_run *runs;     // num_tensors of them: where each tensor lies
    gs_copy_run digested;  // begin_params_digest
    void **resting;        // of tensors of hooks: owned, while no reducer has them; else NULL
};

// Builds the model of `spec`, draws its first values from the seed, makes the optimizer. A sharded state has neither
// values nor an optimizer's state yet.
GS_NODISCARD gs_status gs_trainer_state_init(gs_trainer_state *state, const gs_job_spec *spec,
                                             gs_device *device);
void gs_trainer_state_release(gs_trainer_state *state);

// Takes a source instead of the one that was there.
void gs_trainer_state_give_source(gs_trainer_state *state, const gs_state_source *source);
// A sharded state for a generation: parameters in `memory` (of gs_shards_param_bytes; borrowed until
// release or the next lay_out), the optimizer's state as `shards` (taken, after an error too) say, both filled from the
// source. What was here before is given up: nobody has what another rank of a generation that is over held.
GS_NODISCARD gs_status gs_trainer_state_lay_out(gs_trainer_state *state, const gs_job_spec *spec,
                                                gs_state_shards *shards, void *memory);
// Its parameters lie in `memory` from now on, where the same values are: memory of the host.
GS_NODISCARD gs_status gs_trainer_state_move_params(gs_trainer_state *state, void *memory);
// Before that memory goes: there is no state until the next lay_out. Nothing to do where it was not laid out.
void gs_trainer_state_take_down(gs_trainer_state *state);

// Of tensor `index`, the elements that lie here: all, but of the optimizer's state and the masters of a sharded job.
gs_segment gs_trainer_state_held(const gs_trainer_state *state, size_t index);
// Those of them that this rank saves, so that each element is saved by one.
gs_segment gs_trainer_state_saved(const gs_trainer_state *state, size_t index);
// Nothing of it is another rank's.
static inline bool gs_trainer_state_is_whole(const gs_trainer_state *state) {
    return !state->is_sharded || (state->shards && state->shards->world_size == 1);
}

// Ranks of this step hold different ones: none of them is the job's.
static inline bool gs_trainer_state_is_apart(const gs_trainer_state *state) {
    return state->params_apart || state->optimizer_apart;
}

// Brings values up to date. After every change of params; the functions of this file do it
// themselves.
void gs_trainer_state_refresh(gs_trainer_state *state);

// One update of the optimizer, of all that is here, in whatever precision: params, or their masters and what follows them.
GS_NODISCARD gs_status gs_trainer_state_step(gs_trainer_state *state, void *const *grads, const uint8_t *used,
                                             float lr, float grad_scale);

// The optimizer's state lies elsewhere (gs_optimizer_state): after a step that its pieces have written beside.
void gs_trainer_state_find(gs_trainer_state *state);

// Where what lies here of tensor `index` begins; NULL when the host cannot reach it there.
void *gs_trainer_state_data(const gs_trainer_state *state, size_t index);
// What lies here of a tensor to or from host memory, as a checkpoint has it: parameters as their fp32 masters. Behind
// all that the device was given; done when they return. After the last write: refresh.
GS_NODISCARD gs_status gs_trainer_state_read(const gs_trainer_state *state, size_t index, void *host);
GS_NODISCARD gs_status gs_trainer_state_write(gs_trainer_state *state, size_t index,
                                              const void *host);
// A tensor as a whole, of which any bytes can be read.
typedef struct gs_whole_tensor {
    gs_status (*read)(void *ctx, void *to, size_t first_byte, size_t num_bytes);
    void *ctx;
} gs_whole_tensor;
// What is to lie here of tensor `index`, piece by piece out of the whole; of a parameter with masters elsewhere also
// what passes read of it.
GS_NODISCARD gs_status gs_trainer_state_take(gs_trainer_state *state, size_t index,
                                             const gs_whole_tensor *from);
size_t gs_trainer_state_total_elements(const gs_trainer_state *state);  // of the parameters

// The digest that ranks, checkpoints and tests compare: the bytes of every tensor in order, the
// position; of a sharded state without the optimizer's tensors, of which each rank has others, and with the 16 bits of
// parameters for their masters. {0}: the device could not be read, or there is no state yet.
gs_digest gs_trainer_state_digest(const gs_trainer_state *state);
// The same of what all ranks have alike: without local buffers.
gs_digest gs_trainer_state_common_digest(const gs_trainer_state *state);
// Of the parameters as a checkpoint has them, one behind the other; sharded, in 16 bits: of those.
gs_digest gs_trainer_state_params_digest(const gs_trainer_state *state);
// Of the parameters alone, as they lie in memory: `part` of `num_parts` equal pieces of it (0 of 1: all).
// Ranks of one kind of device compare it. Begin starts to bring the piece to the host, beside what the
// compute stream is given from then on; the parameters change after end alone. {0} as above.
void gs_trainer_state_begin_params_digest(gs_trainer_state *state, int part, int num_parts);
gs_digest gs_trainer_state_end_params_digest(gs_trainer_state *state);

// Into a digest, as every digest of a state has it.
void gs_position_digest(gs_digest_stream *stream, const gs_position *position);

#endif
