// One optimizer step in pieces: each bucket's parameters as soon as its gradients are reduced,
// while others are on their way; what is left at the end.
//
//   begin ─▶ bucket, bucket, … ─┬─▶ finish   the rest is stepped, and it holds
//                               └─▶ undo     as if the step had not begun
//
// A step is a transaction, and whether it counts is known behind its last bucket: a gradient that
// is not finite, a rank that is lost. So an update keeps what a parameter was, and writes its state
// beside that of before: undo copies the parameter back and turns to that state again. (With 16
// bits beside the masters both are copied before they are updated.) That memory, as large as
// parameters and their state, is made once. Results have the bits of gs_optimizer_step. What needs
// all gradients first, as clipping by their norm, cannot be had here.
//
// So a segment's state lies elsewhere after a step (gs_optimizer_state).
//
// A backward pass may read parameters whose gradients are final already (a layer's input gradient
// is made from its weight). With `waits_for_release` a parameter is updated when it has been
// released as well; without, by whoever marks a gradient only when that backward no longer reads
// the parameter, at once.
//
// What nobody used is not updated. A host knows that of each bucket as it is reduced. On a GPU the answer lies behind
// work that is only enqueued: there a parameter is updated early when this rank used it itself, the others at the end.
// All of it is enqueued on the compute stream, behind the backward that was, and nothing waits.
//
// Threads: as its optimizer: one at a time, any.
#ifndef GRADSYNC_OPTIM_EARLY_STEP_H
#define GRADSYNC_OPTIM_EARLY_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/status.h"
#include "gradsync/optim/mixed_precision.h"
#include "gradsync/optim/optimizer.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

typedef struct gs_early_step gs_early_step;

// All borrowed until destroy but for `early`.
typedef struct gs_early_step_options {
    gs_optimizer *optimizer;
    // One for each segment of the optimizer, as gs_optimizer_step has them. NULL: masters of `mixed` in halves.
    void *const *params;
    gs_mixed_precision *mixed;  // NULL; else `params` are its masters
    // One for each parameter (copied): it may be updated before finish. NULL: all. What changes its
    // gradient behind its bucket, a tail of the reducer, makes it one that may not.
    const bool *early;
    gs_device *device;
    bool waits_for_release;
    char reserved[7];  // 0
} gs_early_step_options;

GS_NODISCARD gs_status gs_early_step_create_sized(gs_early_step **out,
                                                  const gs_early_step_options *options,
                                                  size_t options_bytes);
GS_NODISCARD static inline gs_status gs_early_step_create(gs_early_step **out,
                                                          const gs_early_step_options *options) {
    return gs_early_step_create_sized(out, options, sizeof *options);
}
// Leaves parameters as they are: undo is called before.
void gs_early_step_destroy(gs_early_step *step);

// Before the step's first bucket may be reduced. A step that was neither finished nor undone is
// undone.
void gs_early_step_begin(gs_early_step *step, float lr, float grad_scale);
// These parameters hold their reduced gradients (gs_reducer_options.bucket_finished): once for
// each. `grads` as for gs_optimizer_step, borrowed until finish, as is `used` (gs_reducer_used): what is not known to
// be used waits for finish. NULL: nothing is known yet, FAILED_PRECONDITION. Errors stick and come out of check and
// finish.
void gs_early_step_bucket(gs_early_step *step, const size_t *params, size_t num_params,
                          void *const *grads, const uint8_t *used);
// The step's last backward reads this parameter no more, or none of them: all passes have ended.
void gs_early_step_release(gs_early_step *step, size_t param);
void gs_early_step_release_all(gs_early_step *step);
// What went wrong so far, for whoever commits with others before finish.
GS_NODISCARD gs_status gs_early_step_check(const gs_early_step *step);
// The step counts: updates what has not been, with the reducer's result, and forgets what was
// before. After an error undo still takes all back that buckets did.
GS_NODISCARD gs_status gs_early_step_finish(gs_early_step *step, void *const *grads,
                                            const uint8_t *used);
// The step does not count: parameters, state and counts are what they were at begin. Nothing to do
// without a step.
void gs_early_step_undo(gs_early_step *step);
// How many parameters the open step has updated so far.
size_t gs_early_step_num_updated(const gs_early_step *step);

GS_END_DECLS

#endif
