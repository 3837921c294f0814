// The optimizer's update on a GPU, enqueued behind the reduced gradients before the host knows what they are
// (GRADSYNC_CUDA_FACTOR_ON_DEVICE=1): a kernel makes the factor of clipping and unscaling from the sums of squares, and
// decides whether there is an update at all. The host hears of both while the update runs. The bits are those of an update
// that waited for it.
//
// Of one rank alone: where there are several, all of them commit before the first changes anything, and what was changed
// before could not be taken back. Nor where it is not this device's kernels that update. Then updates wait for the host,
// and the log says why.
//
// A step is: gs_reducer_finish_buckets, launch, gs_reducer_finish, resolve. All take NULL, which is a job without it, and do
// nothing. Compute thread.
#ifndef WORKER_PASS_UPDATE_AHEAD_H
#define WORKER_PASS_UPDATE_AHEAD_H

#include <stdbool.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/reducer/reducer.h"
#include "rpc/schema/job_spec.h"
#include "worker/pass/device_times.h"
#include "worker/state/trainer_state.h"

typedef struct gs_update_ahead gs_update_ahead;

// All borrowed until destroy.
typedef struct gs_update_ahead_options {
    const gs_job_spec *spec;
    gs_trainer_state *state;
    const gs_reducer *reducer;
    const gs_comm *comm;
    gs_device_times *times;
    bool updates_in_backward;
} gs_update_ahead_options;

// *out stays NULL where it was not asked for, or cannot be, which the log says with the reason.
GS_NODISCARD gs_status gs_update_ahead_create(gs_update_ahead **out, const gs_update_ahead_options *options);
void gs_update_ahead_destroy(gs_update_ahead *update);

// Whether the open step may be updated ahead: one that is an error when it is finished, for what the host knows by now, may
// not.
bool gs_update_ahead_may(const gs_update_ahead *update);
// Behind gs_reducer_finish_buckets, which gave `squares`. An error leaves nothing launched, or the device in trouble.
GS_NODISCARD gs_status gs_update_ahead_launch(gs_update_ahead *update, const double *squares, float lr);
// What became of it: *updated false: nothing has changed, and the step is to be updated as any other, if it is to be. An
// error: nobody knows, and the state is broken.
GS_NODISCARD gs_status gs_update_ahead_resolve(gs_update_ahead *update, bool *updated, gs_deadline deadline);

#endif
