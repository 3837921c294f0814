// What a hook keeps of each parameter from step to step: residuals, the factor that the next step
// starts from. A tensor of each parameter in two copies, in memory of the hook's state; which copy
// holds is said for each parameter apart. A step writes beside what holds; a commit makes hold what
// it wrote, and a parameter that it did not write (its bucket did not travel, or was not compressed
// yet) keeps what it had. So all ranks, which write the same ones, have the same copy hold.
//
// Keyed by parameter: a plan moves nothing.
#ifndef GRADSYNC_HOOKS_PARAM_STATE_H
#define GRADSYNC_HOOKS_PARAM_STATE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "gradsync/hooks/comm_hook.h"

typedef struct gs_param_state_options {
    const char *name;             // of its tensors
    bool is_own;                  // as in gs_hook_tensor
    const gs_hook_param *params;  // of the setup
    size_t num_params;
    // Elements to keep, of the gradient's dtype; 0: none. NULL: those of the gradient.
    size_t (*count)(const void *ctx, const gs_hook_param *param);
    const void *ctx;
} gs_param_state_options;

typedef struct gs_param_state {
    const char *name;
    bool is_own, is_on_host;
    const gs_hook_param *params;  // borrowed
    size_t num_params;
    struct gs_kept_tensor *tensors;  // of each parameter
} gs_param_state;

// Of both copies, each tensor on a line of its own; SIZE_MAX when they do not fit.
size_t gs_param_state_bytes(const gs_param_state_options *options);
// `memory`: so many bytes on 64, what holds first; borrowed until release. `device`: whose it is.
// Release after an error, too.
GS_NODISCARD gs_status gs_param_state_init(gs_param_state *state,
                                           const gs_param_state_options *options, gs_device *device,
                                           void *memory);
void gs_param_state_release(gs_param_state *state);

// What the last commit left; NULL: nothing is kept of it.
void *gs_param_state_held(const gs_param_state *state, size_t param);
// Where the step in hand writes, all of it; from now on the next commit makes it hold.
void *gs_param_state_write(gs_param_state *state, size_t param);
size_t gs_param_state_count(const gs_param_state *state, size_t param);

void gs_param_state_commit(gs_param_state *state);
void gs_param_state_rollback(gs_param_state *state);

size_t gs_param_state_num_tensors(const gs_param_state *state);
// Tensor `index` of those that are kept, in order of parameters; false behind the last.
bool gs_param_state_tensor(const gs_param_state *state, size_t index, gs_hook_tensor *tensor);

#endif
