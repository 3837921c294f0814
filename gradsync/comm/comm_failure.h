// Who is to blame when a collective did not end, as values: no program has to read a status's text.
#ifndef GRADSYNC_COMM_COMM_FAILURE_H
#define GRADSYNC_COMM_COMM_FAILURE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/abi.h"

GS_BEGIN_DECLS

#define GS_COMM_MAX_RANKS 4096

typedef enum gs_comm_failure_kind {
    GS_COMM_FAILURE_OTHER = 0,  // claims that differ, a device's error, an abort from outside, or none
    GS_COMM_FAILURE_TIMEOUT,    // `missing` did not come in time
    GS_COMM_FAILURE_PEER_LOST   // `missing` died, or left
} gs_comm_failure_kind;

typedef struct gs_comm_failure {
    gs_comm_failure_kind kind;
    uint64_t sequence;  // of the collective that did not end, in its lane; 0: not known
    int32_t lane;
    int64_t step;
    int32_t bucket;  // -1: none
    uint64_t missing[GS_COMM_MAX_RANKS / 64];  // a bit for each rank; none where it is not known who
} gs_comm_failure;

bool gs_comm_failure_names(const gs_comm_failure *failure, int rank);
void gs_comm_failure_add(gs_comm_failure *failure, int rank);  // to the missing

GS_END_DECLS

#endif
