// Whether this worker sees the coordinator's checkpoint directory, and not another one of that name. The coordinator leaves a
// mark there (rpc/checkpoint/place_mark.h); who finds it is in the same place, whatever the path.
//
// A thread of its own, which may hang with a disk: then what it has seen grows old.
#ifndef WORKER_AGENT_SHARED_PLACE_H
#define WORKER_AGENT_SHARED_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

typedef struct gs_shared_place gs_shared_place;

typedef struct gs_place_sight {
    // "unknown", "same", "other" (a mark of another life: a copy), "missing" (no mark, or no directory), "unreadable", "silent" (no answer)
    const char *state;
    char path[1024];
    char detail[256];  // what the system said; "": nothing
    bool is_writable;
    int64_t free_bytes;  // −1: not known
    int64_t num_looks;
} gs_place_sight;

bool gs_place_sight_is_apart(const gs_place_sight *sight);  // what the coordinator goes by is not seen here: its directory is another one

GS_NODISCARD gs_status gs_shared_place_start(gs_shared_place **out);
void gs_shared_place_stop(gs_shared_place *place);  // NULL is fine

// From now on it is looked there, at once and every few seconds, for the mark of this life of a coordinator.
void gs_shared_place_set(gs_shared_place *place, const char *directory, const char *cluster, uint64_t life);
// What was seen last.
gs_place_sight gs_shared_place_sight(gs_shared_place *place);
// Looks again, and waits for it at most so long.
gs_place_sight gs_shared_place_look(gs_shared_place *place, double seconds);

#endif
