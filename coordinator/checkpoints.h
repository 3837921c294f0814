// What has been saved: reported, verified by reading, listed, retained. Loop thread; files and rows are
// touched by the writer.
#ifndef COORDINATOR_CHECKPOINTS_H
#define COORDINATOR_CHECKPOINTS_H

#include "coordinator/checkpoint_parts.h"
#include "coordinator/coordinator.h"

gs_checkpoints *gs_checkpoints_create(void);  // NULL: out of memory
void gs_checkpoints_destroy(gs_checkpoints *checkpoints);
GS_NODISCARD gs_status gs_checkpoints_load(gs_coordinator *coordinator, gs_job_store *store);
// After a start: takes up deletions that were begun, adopts what was saved while no coordinator was there, and
// removes what a crash left: directories older than an hour that are no checkpoint.
void gs_checkpoints_sweep(gs_coordinator *coordinator, gs_job *job);

void gs_checkpoints_job_directory(char *path, size_t path_bytes, const gs_coordinator *coordinator,
                                  const gs_job *job);
// {step, directory} of the newest one that was verified; NULL: none.
gs_json *gs_checkpoints_newest(const gs_coordinator *coordinator, const gs_job *job);
int64_t gs_checkpoints_newest_step(const gs_job *job);  // −1: none
// Before a start: forgets those that are no longer on the disk, because a worker that found one damaged has
// renamed it or somebody has deleted it, and says so.
void gs_checkpoints_drop_missing(gs_coordinator *coordinator, gs_job *job);
bool gs_checkpoints_pending(const gs_job *job);         // looked for, or being verified
void gs_checkpoints_purge(gs_coordinator *coordinator, gs_job *job);  // files of a job that goes

typedef struct gs_checkpoint_facts {
    int64_t last_success_ms, last_success_step, last_bytes, last_verified_ms;
    uint64_t failures_space, failures_io, failures_digest, failures_deadline,
        failures_residuals;
    gs_histogram save_seconds;
} gs_checkpoint_facts;
const gs_checkpoint_facts *gs_checkpoints_facts(const gs_job *job);

// A checkpoint that is on the disk as `report` says, in the words of the Checkpointed message: verified by
// reading, then recorded. One that is known already is left alone.
void gs_checkpoints_take(gs_coordinator *coordinator, gs_job *job, const char *directory,
                         const gs_json *report);
// A save that failed: {step, cause, error}.
void gs_checkpoints_note_failed(gs_coordinator *coordinator, gs_job *job, const gs_json *report);
bool gs_checkpoints_knows(const gs_job *job, const char *directory);
gs_json *gs_checkpoints_names(const gs_job *job);  // an object with a member for each that is known
// Saves whose parts are still coming.
gs_part_saves *gs_checkpoints_part_saves(const gs_job *job);

void gs_checkpointed(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request);
void gs_list_checkpoints(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                         const gs_json *request);

#endif
