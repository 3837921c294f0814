// Which cluster this is, and which of its lives: drawn with the data directory and with each start, told in every
// welcome, compared at every Hello.
//
// Trainers of another cluster are nobody's here to command. Who has seen a life of this cluster that its database does
// not know shows that the database is an old copy: generations would be given out twice, so nothing starts.
#ifndef COORDINATOR_MODEL_CLUSTER_H
#define COORDINATOR_MODEL_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/u64_map.h"

#define GS_CLUSTER_NAME_LEN 24

typedef struct gs_cluster {
    char id[GS_CLUSTER_NAME_LEN];
    uint32_t epoch;    // of this start
    uint64_t life;     // the same
    gs_u64_map lives;  // of all starts that are remembered, by epoch
    bool is_old_copy;  // somebody has shown it
    uint32_t later_epoch;  // that was seen by then; 0: a generation was
    uint32_t later_generation;
    int64_t doubted_ns;    // a trainer has shown it, and no worker has denied it: since when; 0: nobody has
    int64_t doubted_epoch;  // that it has seen
    int64_t told_doubt_ns;  // when people were last told of what nobody has proven; 0: never
} gs_cluster;

// What a peer says of the coordinators that it has heard.
typedef struct gs_seen_life {
    const char *cluster;  // "": none
    int64_t epoch;        // 0: none
    uint64_t life;        // 0: none was told
    bool is_doubtful;     // nothing shows that a coordinator has said so, and its sender is one of whom that is asked
} gs_seen_life;

// "" is of an earlier version, which knows of no clusters: ours.
bool gs_cluster_is_other(const gs_cluster *cluster, const char *id);
// Epochs that are gone, and those before lives were counted, are not compared.
bool gs_cluster_is_older(const gs_cluster *cluster, const gs_seen_life *seen);
// The epoch of a life of this database; 0: it names none.
int64_t gs_cluster_epoch_of(const gs_cluster *cluster, const gs_seen_life *seen);
void gs_cluster_release(gs_cluster *cluster);

#endif
