// Which parameters train in the steps of a session (model.freeze), and the gradients that passes
// are given then.
//
// Every rank comes to it by itself, from specification and step. At the first step of a session,
// and where some rule begins or ends, the owner tells reducer, optimizer and gather; ranks compare
// there. Compute thread.
#ifndef WORKER_PASS_FROZEN_PARAMS_H
#define WORKER_PASS_FROZEN_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/param_spec.h"
#include "core/status.h"
#include "rpc/schema/job_spec.h"

typedef struct gs_frozen_params gs_frozen_params;

// Borrows all until destroy. NULL: the job freezes nothing; every function takes it.
GS_NODISCARD gs_status gs_frozen_params_create(gs_frozen_params **out, const gs_job_spec *spec,
                                               const gs_param_spec *params, size_t num_params);
void gs_frozen_params_destroy(gs_frozen_params *frozen);

// Whether others than those of the last turn train at `step`, as far as is known; then turn.
bool gs_frozen_params_is_due(const gs_frozen_params *frozen, int64_t step);
// From `step` on these train: a flag for each parameter, which stay until the next turn.
const bool *gs_frozen_params_turn(gs_frozen_params *frozen, int64_t step, size_t *num_frozen);
// `grads` (one for each parameter) without those of frozen ones, for gs_model_pass; valid until the next call.
void *const *gs_frozen_params_grads(gs_frozen_params *frozen, void *const *grads);

#endif
