// What both PowerSGD hooks keep: residuals and factors of each parameter, launch tables, what they were asked for. A
// hook's own state begins with it, so that its slots here serve both.
//
//   state memory   errors │ factors │ what the hook itself has
#ifndef GRADSYNC_HOOKS_LOW_RANK_STATE_H
#define GRADSYNC_HOOKS_LOW_RANK_STATE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "gradsync/hooks/comm_hook.h"
#include "gradsync/hooks/low_rank_exchange.h"
#include "gradsync/hooks/low_rank_options.h"
#include "gradsync/hooks/param_state.h"

// Elements of a parameter's error (with error feedback alone) and factor; `ctx` is a gs_low_rank_options.
typedef struct gs_low_rank_counts {
    size_t (*error)(const void *ctx, const gs_hook_param *param);
    size_t (*factor)(const void *ctx, const gs_hook_param *param);
} gs_low_rank_counts;

typedef struct gs_low_rank_state {
    gs_low_rank_options options;
    gs_low_rank_wire wire;
    gs_device *device;            // borrowed, as params
    const gs_hook_param *params;
    size_t num_params;
    gs_param_state errors, factors;
    gs_low_rank_tables tables;
    void *pinned;           // owned; where factors are drawn
    gs_hook_report report;  // of the step in hand
} gs_low_rank_state;

// Bytes of errors and factors.
GS_NODISCARD gs_status gs_low_rank_state_bytes(size_t *bytes, const gs_hook_setup *setup,
                                               const gs_low_rank_counts *counts);
// Errors and factors in the setup's memory, `rest` what lies behind them; room for drawing, and tables for so many
// matrices with so many rows together. Release after an error, too.
GS_NODISCARD gs_status gs_low_rank_state_init(gs_low_rank_state *self, void **rest,
                                              const gs_hook_setup *setup,
                                              const gs_low_rank_counts *counts);
GS_NODISCARD gs_status gs_low_rank_state_alloc(gs_low_rank_state *self, size_t drawn_bytes,
                                               size_t num_matrices, size_t num_rows);
void gs_low_rank_state_release(gs_low_rank_state *self);

// A column of Q that became zero starts again from its first draw: without an epsilon, whose zeros are the original's;
// more than two columns have none (orthogonalize_many).
bool gs_low_rank_state_restarts(const gs_low_rank_state *self, gs_low_rank shape);
// The step in hand, without the squares of what is owed.
gs_hook_report gs_low_rank_state_report(const gs_low_rank_state *self);

// Slots of the hooks.
void gs_low_rank_state_commit(void *state);
void gs_low_rank_state_rollback(void *state);
bool gs_low_rank_state_tensor(void *state, size_t index, gs_hook_tensor *out);

#endif
