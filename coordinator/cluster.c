#include "coordinator/cluster.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/events.h"

static void load_life(void *ctx, const gs_store_row *row) {
    gs_coordinator *coordinator = ctx;
    // Without memory for it that life is one that nobody is asked about.
    (void)!gs_u64_map_set(&coordinator->lives, row->id, (void *)(uintptr_t)row->job);
}

gs_status gs_cluster_load(gs_coordinator *coordinator, gs_job_store *store, const gs_store_start *start) {
    snprintf(coordinator->cluster, sizeof coordinator->cluster, "%s", start->cluster);
    coordinator->life = start->life;
    return gs_job_store_load_lives(store, load_life, coordinator);
}

void gs_cluster_release(gs_coordinator *coordinator) {
    gs_u64_map_release(&coordinator->lives);
}

void gs_cluster_welcome(const gs_coordinator *coordinator, gs_json *item) {
    gs_json_set_string(item, "cluster", coordinator->cluster);
    gs_json_set_int(item, "coordinator_epoch", coordinator->epoch);
    gs_json_set_u64(item, "coordinator_life", coordinator->life);
}

bool gs_cluster_is_other(const gs_coordinator *coordinator, const gs_json *speaker) {
    const char *cluster = gs_json_string_or(speaker, "cluster", "");
    return *cluster && strcmp(cluster, coordinator->cluster) != 0;
}

// Epochs that are gone, and those before lives were counted, have none.
static bool has_seen_another_life(const gs_coordinator *coordinator, int64_t epoch, const gs_json *hello) {
    uint64_t seen = 0;
    if (gs_json_read_u64(&seen, hello, "seen_life").code || epoch <= 0) return false;
    if (epoch > coordinator->epoch) return true;
    uint64_t known = (uint64_t)(uintptr_t)gs_u64_map_get(&coordinator->lives, (uint64_t)epoch);
    return known != 0 && known != seen;
}

gs_status gs_cluster_check(gs_coordinator *coordinator, const gs_json *hello, const char *who) {
    int64_t epoch = gs_json_int_or(hello, "seen_epoch", 0);
    const char *cluster = gs_json_string_or(hello, "seen_cluster", "");
    if (strcmp(cluster, coordinator->cluster) != 0 || !has_seen_another_life(coordinator, epoch, hello))
        return gs_ok();
    gs_status status = gs_error(GS_FAILED_PRECONDITION,
                                "%s has seen coordinator epoch %lld of cluster %s, which this database (epoch %u) "
                                "does not know: it is an old copy",
                                who, (long long)epoch, coordinator->cluster, coordinator->epoch);
    if (!coordinator->is_old_copy)
        gs_event_add(coordinator, NULL, NULL, GS_SEVERITY_ERROR, "OldDatabase",
                     "%s; no trainer is started or ended from here. Start the coordinator on the newer data, or end "
                     "all workers first",
                     status.message);
    coordinator->is_old_copy = true;
    return status;
}
