// The optimizer inside the backward pass (optimizer.in_backward, reducer.zero_overlap interleaved):
// parameters are updated bucket by bucket, as their gradients are reduced and backward reads them
// no more, while other buckets are on their way. With zero_overlap step that begins when the passes
// have ended. Where nothing moves buckets meanwhile (gs_comm_moves_alone) an update keeps others
// waiting, and costs more than one at the end: there it is that of a job without it
// (GRADSYNC_EARLY_UPDATES in the environment: 1 early, 0 never), and so it is where one rank on a
// CPU sends nothing, whatever the environment says: what the job's memory was foretold by. The step
// stays a transaction: until it is committed all of it can be taken back
// (gradsync/optim/early_step.h). Of a sharded state a rank updates what it owns.
//
// A step is: begin, before the reducer's; bucket and release, as they come; end_passes, behind the
// last pass; then finish or undo. All take NULL, which is a job without it, and do nothing. Compute
// thread.
#ifndef WORKER_PASS_BACKWARD_UPDATE_H
#define WORKER_PASS_BACKWARD_UPDATE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "gradsync/reducer/reducer.h"
#include "rpc/schema/job_spec.h"
#include "worker/state/trainer_state.h"

typedef struct gs_backward_update gs_backward_update;

// All borrowed until destroy.
typedef struct gs_backward_update_options {
    const gs_job_spec *spec;
    gs_trainer_state *state;
    const gs_reducer *reducer;
    void *const *own_grads;  // of a sharded state: where each own segment's gradient begins; else NULL
    const gs_comm *comm;
    bool adds_rows;  // gradients of the model's first parameter, its embedding, are complete at finish alone
} gs_backward_update_options;

// Whether updates come before the end of steps, on this rank; of own_grads and adds_rows it does not depend.
bool gs_backward_update_is_early(const gs_backward_update_options *options);
// *out stays NULL when the job does not want it; and when it has nothing to gain, or clips and waits for the norm of all
// gradients, which the log says with the reason.
GS_NODISCARD gs_status gs_backward_update_create(gs_backward_update **out,
                                                 const gs_backward_update_options *options);
// Takes a step back that is still open.
void gs_backward_update_destroy(gs_backward_update *update);

void gs_backward_update_begin(gs_backward_update *update, float lr, float grad_scale);
void gs_backward_update_bucket(gs_backward_update *update, size_t bucket);
// gs_model_pass.released, of the pass that reduces.
void gs_backward_update_release(void *update, size_t param);
void gs_backward_update_end_passes(gs_backward_update *update);
// What went wrong so far; before the step is committed.
GS_NODISCARD gs_status gs_backward_update_check(const gs_backward_update *update);
// The step counts: the rest is updated.
GS_NODISCARD gs_status gs_backward_update_finish(gs_backward_update *update,
                                                 const gs_reduce_result *reduced);
void gs_backward_update_undo(gs_backward_update *update);

#endif
