// Deleted jobs whose checkpoints are owed to be removed: each is in the store until its files are gone, so that neither a kill
// nor a disk that is away for a while leaves them for ever. Loop thread.
#ifndef COORDINATOR_STORE_FILES_PURGES_H
#define COORDINATOR_STORE_FILES_PURGES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gs_purges gs_purges;

gs_purges *gs_purges_create(void);  // never NULL
void gs_purges_destroy(gs_purges *purges);
// To be tried at that time.
void gs_purges_owe(gs_purges *purges, uint64_t job, int64_t at_ns);
// The next whose time has come, and which is no longer listed: who tries it owes it again where that fails.
bool gs_purges_next(gs_purges *purges, uint64_t *job, int64_t now_ns);

#endif
