#include "coordinator/model/cluster.h"

#include <string.h>

bool gs_cluster_is_other(const gs_cluster *cluster, const char *id) {
    return id && *id && strcmp(id, cluster->id) != 0;
}

bool gs_cluster_is_older(const gs_cluster *cluster, const gs_seen_life *seen) {
    if (!seen->cluster || strcmp(seen->cluster, cluster->id) != 0 || !seen->life || seen->epoch <= 0) return false;
    if (seen->epoch > (int64_t)cluster->epoch) return true;
    uint64_t known = (uint64_t)(uintptr_t)gs_u64_map_get(&cluster->lives, (uint64_t)seen->epoch);
    return known != 0 && known != seen->life;
}

int64_t gs_cluster_epoch_of(const gs_cluster *cluster, const gs_seen_life *seen) {
    if (!seen->cluster || strcmp(seen->cluster, cluster->id) != 0 || !seen->life || seen->epoch <= 0) return 0;
    uint64_t known = (uint64_t)(uintptr_t)gs_u64_map_get(&cluster->lives, (uint64_t)seen->epoch);
    return known == seen->life ? seen->epoch : 0;
}

void gs_cluster_release(gs_cluster *cluster) { gs_u64_map_release(&cluster->lives); }
