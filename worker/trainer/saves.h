// When a job's state is saved: at its cadence, without waiting for the disk; at the end, waited
// for. A save that fails stops no training, and the coordinator hears of each. Compute thread.
#ifndef WORKER_TRAINER_SAVES_H
#define WORKER_TRAINER_SAVES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "rpc/schema/job_spec.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/control/control.h"
#include "worker/state/trainer_state.h"

// Made of its first group of fields alone.
typedef struct gs_saves {
    // Borrows until release.
    const gs_job_spec *spec;
    gs_control *control;
    const gs_trainer_state *state;
    const char *job, *directory;

    gs_checkpoint_writer *writer;  // owned; made by the first save
    uint64_t num_skipped;
} gs_saves;

// False: a save in flight has not come to an end by the deadline.
GS_NODISCARD bool gs_saves_await(gs_saves *saves, gs_deadline deadline);
// Waits for a save in flight, however long.
void gs_saves_release(gs_saves *saves);

// After a step: saves where the cadence says so. Seconds that the training stood still; 0: nothing
// was due.
double gs_saves_when_due(gs_saves *saves, int world_size);
// The last save of a run: waits for it, and nothing changes the state after it was called.
GS_NODISCARD gs_status gs_saves_now(gs_saves *saves, const char *reason, int world_size);

#endif
