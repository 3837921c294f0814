#include "worker/seen_coordinator.h"

#include <stdio.h>

void gs_seen_coordinator_note(gs_seen_coordinator *seen, const gs_json *welcome) {
    snprintf(seen->cluster, sizeof seen->cluster, "%s", gs_json_string_or(welcome, "cluster", ""));
    seen->epoch = gs_json_int_or(welcome, "coordinator_epoch", 0);
    if (gs_json_read_u64(&seen->life, welcome, "coordinator_life").code) seen->life = 0;
    snprintf(seen->proof, sizeof seen->proof, "%s", gs_json_string_or(welcome, "life_proof", ""));
}

void gs_seen_coordinator_say(const gs_seen_coordinator *seen, gs_json *hello) {
    if (!seen->cluster[0] || !seen->life) return;
    gs_json_set_string(hello, "seen_cluster", seen->cluster);
    gs_json_set_int(hello, "seen_epoch", seen->epoch);
    gs_json_set_u64(hello, "seen_life", seen->life);
    gs_json_set_string(hello, "seen_proof", seen->proof);
}
