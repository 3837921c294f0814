// Whether this database is an old copy of the cluster's: who has seen a life that it does not know says so.
//
// What a worker says is believed, and this coordinator ends: workers are where sets start. A trainer may have been
// welcomed by an old copy itself, of which its worker knows better; so its word waits for a worker's.
#ifndef COORDINATOR_ENGINE_BASE_OLD_COPY_H
#define COORDINATOR_ENGINE_BASE_OLD_COPY_H

#include "coordinator/engine/base/mind.h"

// UNAVAILABLE: it has seen a life that this database does not know. Said aloud; nothing starts from then on, and this
// coordinator ends, so that whoever asks again finds the right one.
GS_NODISCARD gs_status gs_old_copy_ask_worker(gs_engine *engine, const gs_seen_life *seen, const char *worker);
// The same, unless a worker knows as new a life of this database; until one has said so nobody is judged or started, and
// not for long.
GS_NODISCARD gs_status gs_old_copy_ask_trainer(gs_engine *engine, const gs_seen_life *seen);

void gs_old_copy_tick(gs_engine *engine);
bool gs_old_copy_is_possible(const gs_engine *engine);  // it is one, or somebody says so and nobody has denied it

#endif
