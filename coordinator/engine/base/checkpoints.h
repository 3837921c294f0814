// What has been saved: taken from a report or from the disk, verified by reading, recorded, retained, deleted; and
// whether it is still there before a job starts from it.
#ifndef COORDINATOR_ENGINE_BASE_CHECKPOINTS_H
#define COORDINATOR_ENGINE_BASE_CHECKPOINTS_H

#include "coordinator/engine/base/mind.h"

// One that is on the disk as `report` says (its files are taken). One that is known already is left alone. `is_told`: by the ranks
// that have just written it, so that the next start waits for nobody else to read it.
void gs_checkpoint_take(gs_engine *engine, gs_job *job, const char *directory, gs_checkpoint_report *report, bool is_told);
// What could not be read is read again, now that the disk answers.
void gs_checkpoints_read_again(gs_engine *engine, gs_job *job);
// A save that failed. `settling`: of survivors, so the next run begins with an older checkpoint.
void gs_checkpoint_failed(gs_engine *engine, gs_job *job, int64_t step, gs_save_failure cause, const char *error,
                          bool settling);
// Before a start: asks for those that are no longer on the disk, because a worker that found one damaged has
// renamed it or somebody has deleted it. False: the answer is awaited.
bool gs_checkpoints_are_checked(gs_engine *engine, gs_job *job);
// Asks for that now, whoever has asked before: GS_ON_CHECKPOINTS_CHECKED follows.
void gs_checkpoints_check(gs_engine *engine, gs_job *job);
// Of an ended job: those that are more than it keeps go, when the disk has said what is there.
void gs_checkpoints_retain(gs_engine *engine, gs_job *job);
// After a start of the coordinator: takes up deletions that were begun.
void gs_checkpoints_resume(gs_engine *engine, gs_job *job);

// Asks what is on the disk and not known: whole or with all its parts and of this job, it is taken; what is neither and
// old is removed.
void gs_checkpoints_find_more(gs_engine *engine, gs_job *job);
// The same of all jobs behind a start of the coordinator, those that have ended last and a few at a time: who waits for a disk
// waits for nobody else's.
void gs_checkpoints_look_around(gs_engine *engine);
// The same in a moment, for what the disk could not read just now; a start waits for it. Not for ever: who has asked often
// enough starts from what there is.
void gs_checkpoints_find_again(gs_engine *engine, gs_job *job);
// The same for what was not heard, as often as that happens. False: it is asked for already.
bool gs_checkpoints_find_soon(gs_engine *engine, gs_job *job);
// The disk itself did not answer: nothing is known of what is on it, and a start waits until it does, or until an operator
// has given it up.
void gs_checkpoints_miss_disk(gs_engine *engine, gs_job *job, gs_status status);
void gs_checkpoints_find_disk(gs_engine *engine, gs_job *job);  // it answers
// A start waits for it: people are told why.
bool gs_checkpoints_wait_for_disk(gs_engine *engine, gs_job *job);
bool gs_checkpoints_give_up_disk(gs_job *job);  // false: nobody waits for it
// The disk has answered something: where nothing is to be asked again, the next trouble is another one.
void gs_checkpoints_settle(gs_job *job);

// Rows that could not be written are tried again, and looks at the disk.
void gs_checkpoints_tick(gs_engine *engine);

void gs_on_verified(gs_engine *engine, const gs_completion *done);
void gs_on_checkpoint_stored(gs_engine *engine, const gs_completion *done);
void gs_on_checkpoint_row_deleted(gs_engine *engine, const gs_completion *done);
void gs_on_files_removed(gs_engine *engine, const gs_completion *done);
void gs_on_checkpoints_checked(gs_engine *engine, const gs_completion *done);

// A checkpoint of this step is there to start from; INVALID_ARGUMENT names those that are.
GS_NODISCARD gs_status gs_checkpoints_find_step(const gs_job *job, int64_t step);
// The next start goes on from there, which the disk has just been seen to have; it waits for no later one that is being read.
// Later ones, also those that are found yet, stay until its ranks have begun: what was named may turn out to be damaged.
void gs_checkpoints_go_back(gs_job *job, int64_t step);
// The ranks of a generation hold this step: where it was named, later ones are removed.
void gs_checkpoints_begin(gs_engine *engine, gs_job *job, int64_t step);
// An operator has it start from there without the disk: what ranks so far have saved behind that is not looked for any more, and what
// is being read of it is forgotten.
void gs_checkpoints_leave(gs_job *job, int64_t step);
// A start has ended before its ranks held a step: nothing is lost for it, and the next one asks the disk for all.
void gs_checkpoints_leave_none(gs_job *job);

#endif
