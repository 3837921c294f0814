// Deleted jobs whose checkpoints are owed to be removed: each is in the store until its files are gone, so that neither a kill
// nor a disk that is away for a while leaves them for ever. And who may have them: a job that comes back with its trainers, or
// the removal. Loop thread, but for what is said.
#ifndef COORDINATOR_STORE_FILES_PURGES_H
#define COORDINATOR_STORE_FILES_PURGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct gs_purges gs_purges;

// Of those that people ask for. Each is looked through for one that is asked about.
#define GS_MAX_OWED_PURGES 10000

gs_purges *gs_purges_create(void);  // never NULL
void gs_purges_destroy(gs_purges *purges);
// To be tried at that time. Nothing where the job has come back.
void gs_purges_owe(gs_purges *purges, uint64_t job, int64_t at_ns);
bool gs_purges_are_full(gs_purges *purges);
// The next whose time has come: now it waits for the thread that removes.
bool gs_purges_next(gs_purges *purges, uint64_t *job, int64_t now_ns);
void gs_purges_forget(gs_purges *purges, uint64_t job);  // it is done, or not owed any more

// Any thread, right before it removes. False: its files are not to be touched.
bool gs_purges_begin(gs_purges *purges, uint64_t job);

// Before a job is recorded: no removal of its files begins any more. False: one has begun.
bool gs_purges_hold(gs_purges *purges, uint64_t job);
// What was held: `is_recorded`, its files are its own again; else they are owed as before.
void gs_purges_release(gs_purges *purges, uint64_t job, bool is_recorded, int64_t at_ns);

void gs_purges_stop(gs_purges *purges);  // none begins any more, and the one that has begun ends where it is
const atomic_bool *gs_purges_stopping(const gs_purges *purges);

#endif
