// Answers that wait until what they say is durable: each belongs to a write, by its ticket.
#ifndef COORDINATOR_ENGINE_BASE_LATE_ANSWERS_H
#define COORDINATOR_ENGINE_BASE_LATE_ANSWERS_H

#include "coordinator/engine/base/mind.h"

// To be told what becomes of the write that gets its ticket. Never NULL.
gs_late_answer *gs_late_answer_add(gs_engine *engine, gs_late_kind kind, gs_call call, const gs_job *job);
// The one of this ticket, which is forgotten here; gs_late_answer_bury is the caller's. NULL: nobody waits.
gs_late_answer *gs_late_answer_take(gs_engine *engine, uint64_t ticket);
// The next that waits for the disk of this job (0: of any, and longer than it may); else the same.
gs_late_answer *gs_late_answer_take_held(gs_engine *engine, uint64_t job);
void gs_late_answers_purge(gs_engine *engine, const gs_job *job);  // its deletions on their way take its files along
bool gs_late_answer_waits(const gs_engine *engine, const gs_job *job);  // one is about a write of it
bool gs_late_answer_deletes(const gs_engine *engine, uint64_t job);  // a deletion is on its way, whether the job is known still or not
// For another write, of the same ticket.
void gs_late_answer_wait_again(gs_engine *engine, gs_late_answer *answer);
void gs_late_answer_bury(gs_engine *engine, gs_late_answer *answer);
// To who was to be told that something is durable: why it is not.
void gs_reply_not_stored(gs_engine *engine, gs_call call, gs_status status);

#endif
