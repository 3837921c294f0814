// Whether this database is an old copy of the cluster's: who has seen a life that it does not know says so.
//
// What a worker says is believed, and this coordinator ends: workers are where sets start. A trainer may have been
// welcomed by an old copy itself, of which its worker knows better; so its word waits for a worker's.
//
// Where keys are shown both say it with what a coordinator has given them (observe/hosts/told_life.h). Without that they are refused, which
// is noted, and nobody ends.
#ifndef COORDINATOR_ENGINE_BASE_OLD_COPY_H
#define COORDINATOR_ENGINE_BASE_OLD_COPY_H

#include "coordinator/engine/base/mind.h"

// UNAVAILABLE: it has seen a life that this database does not know. Said aloud; nothing starts from then on, and this
// coordinator ends, so that whoever asks again finds the right one.
GS_NODISCARD gs_status gs_old_copy_ask_worker(gs_engine *engine, const gs_seen_life *seen, const char *worker);
// The same, unless a worker knows as new a life of this database; until one has said so nobody is judged or started, and
// not for long.
GS_NODISCARD gs_status gs_old_copy_ask_trainer(gs_engine *engine, const gs_seen_life *seen);

// The same as the first, of what it runs: a generation of this cluster that this database has not given out yet.
GS_NODISCARD gs_status gs_old_copy_ask_running(gs_engine *engine, const gs_agent_hello *hello, bool shows_key);
// UNAVAILABLE for a trainer of such a generation that belongs to nobody here. It asks again, and its worker's word decides: an
// answer for good would have it leave a generation that lives elsewhere. So it is told by one that is going down, too.
GS_NODISCARD gs_status gs_old_copy_ask_stranger(const gs_engine *engine, const gs_trainer_hello *hello);
// Such a generation has left its fence where the job's checkpoints lie. Whether its ranks live the disk does not say; numbers that
// are given from now on are above it, so that it does not keep out those who come next.
void gs_old_copy_note_fence(gs_engine *engine, gs_job *job, uint32_t left_by);

void gs_old_copy_tick(gs_engine *engine);
bool gs_old_copy_is_possible(const gs_engine *engine);  // it is one, or somebody says so and nobody has denied it

#endif
