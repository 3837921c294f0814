// Checkpoints behind the training: a snapshot stalls the loop for a copy, a thread of its own
// writes it.
//
// One snapshot buffer: while it is being written, another periodic save is skipped and counted; the
// loop never waits for the disk. Saves at the end of a run do wait, and need no copy.
#ifndef WORKER_CHECKPOINT_CHECKPOINT_WRITER_H
#define WORKER_CHECKPOINT_CHECKPOINT_WRITER_H

#include <stdbool.h>

#include "core/clock.h"
#include "core/status.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/save_team.h"

typedef struct gs_checkpoint_writer gs_checkpoint_writer;

typedef struct gs_checkpoint_writer_options {
    const char *directory, *job;   // as in gs_checkpoint_options; copied
    const char *cluster;           // borrows until destroy
    const gs_job_spec *spec;       // borrows until destroy
    const gs_trainer_state *state; // borrows until destroy
    // Called on the writer's thread when a save came to an end, well or not.
    void (*done)(void *ctx, const gs_checkpoint_result *result);
    void *ctx;
} gs_checkpoint_writer_options;

GS_NODISCARD gs_status gs_checkpoint_writer_create(gs_checkpoint_writer **out,
                                                   const gs_checkpoint_writer_options *options);
// Waits for a save in flight, however long: wait comes first where that must not be.
void gs_checkpoint_writer_destroy(gs_checkpoint_writer *writer);

// Compute thread: takes a snapshot and starts to write it. FAILED_PRECONDITION when the last one is
// still being written and the deadline for that has passed ({0}: do not wait).
//   team      NULL: each rank writes what is its own. Else, of a save in parts and where a rank of it is apart, a collective of all its
//             ranks, also of one that has nothing to save: the saver writes what the others bring, and reports each of those parts
//   bringing  with a team: what is to come by it, which the caller goes on with, or parts from, before the next save and destroy,
//             whatever is returned. NULL: nothing is
GS_NODISCARD gs_status gs_checkpoint_writer_start_save(gs_checkpoint_writer *writer,
                                                       const gs_checkpoint_request *request,
                                                       const gs_save_team *team, gs_bringing **bringing, gs_deadline deadline);
// The same from the state itself, which must stay as it is until the save has come to an end; a
// copy is made only where the host does not reach it.
GS_NODISCARD gs_status gs_checkpoint_writer_start_last_save(gs_checkpoint_writer *writer,
                                                            const gs_checkpoint_request *request,
                                                            const gs_save_team *team, gs_bringing **bringing, gs_deadline deadline);
// A save has begun and not come to an end.
bool gs_checkpoint_writer_is_busy(gs_checkpoint_writer *writer);
// Until the last save has come to an end; its status.
GS_NODISCARD gs_status gs_checkpoint_writer_wait(gs_checkpoint_writer *writer,
                                                 gs_deadline deadline);

#endif
