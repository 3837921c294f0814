// The last coordinator that welcomed this process: said again at each Hello, so that one which runs on an old copy of its
// database finds out.
#ifndef WORKER_SEEN_COORDINATOR_H
#define WORKER_SEEN_COORDINATOR_H

#include <stdint.h>

#include "rpc/json/json.h"

typedef struct gs_seen_coordinator {
    char cluster[24];  // "": none yet
    int64_t epoch;
    uint64_t life;
    char proof[40];  // that it has said so, for one with its key; "": it gave none
} gs_seen_coordinator;

void gs_seen_coordinator_note(gs_seen_coordinator *seen, const gs_json *welcome);
void gs_seen_coordinator_say(const gs_seen_coordinator *seen, gs_json *hello);

#endif
