// How a state is made, in three files for themselves alone: trainer_state_build.c makes it, trainer_state_draw.c gives it
// first values, trainer_state_layout.c deals it to the ranks of a generation. Compute thread.
#ifndef WORKER_STATE_TRAINER_STATE_PARTS_H
#define WORKER_STATE_TRAINER_STATE_PARTS_H

#include "worker/state/trainer_state.h"

// What parameters have that passes read.
gs_dtype gs_precision_dtype(const gs_job_spec *spec);
GS_NODISCARD gs_status gs_state_make_loss_scale(gs_trainer_state *state, const gs_job_spec *spec);

gs_mixed_precision_options gs_state_mixed_options(const gs_trainer_state *state,
                                                  const gs_job_spec *spec);
GS_NODISCARD gs_status gs_state_make_mixed(gs_trainer_state *state,
                                           const gs_mixed_precision_options *options);

// For all of the parameters, or for segments of them (not NULL, though there may be none).
GS_NODISCARD gs_status gs_state_make_optimizer(gs_trainer_state *state, const gs_job_spec *spec,
                                               const gs_segment *segments, size_t num_segments);

// fp32 views of all parameters, one after the other, in `memory` of params_bytes.
void gs_state_place_params(const gs_trainer_state *state, void *memory, void **params);

// First values from the seed of `spec`, in memory that is laid out.
GS_NODISCARD gs_status gs_state_draw_params(gs_trainer_state *state, const gs_job_spec *spec);

// Of a sharded state: where the parameters and masters lie that a rank owns.
void gs_state_free_own_params(gs_trainer_state *state);

#endif
