// Why a collective did not end, as values: no program has to read a status's text.
#ifndef GRADSYNC_COMM_COMM_FAILURE_H
#define GRADSYNC_COMM_COMM_FAILURE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/status.h"

GS_BEGIN_DECLS

#define GS_COMM_MAX_RANKS 4096

typedef enum gs_comm_failure_kind {
    GS_COMM_FAILURE_NONE = 0,
    GS_COMM_FAILURE_TIMEOUT,    // the accused did not come in time; a rank that accuses itself: its own
                                // input or device did not
    GS_COMM_FAILURE_PEER_LOST,  // the accused died, or left; nobody, where a backend does not know who
    GS_COMM_FAILURE_MISMATCH,   // the accused posted something else than the others
    GS_COMM_FAILURE_DAMAGED,    // the accused wrote what cannot be
    GS_COMM_FAILURE_DEVICE,     // the reporter's device, or its library, failed: it accuses itself
    GS_COMM_FAILURE_ABORTED     // the reporter was told to, from outside; nobody is accused
} gs_comm_failure_kind;

typedef struct gs_comm_failure {
    gs_comm_failure_kind kind;
    int32_t reporter;   // the rank that found it out, or aborted; −1: not known
    int32_t lane;
    uint64_t sequence;  // in its lane, of the collective that did not end; 0: not known
    int64_t step;
    int32_t bucket;  // −1: none
    uint64_t accused[GS_COMM_MAX_RANKS / 64];  // a bit for each rank
} gs_comm_failure;

bool gs_comm_failure_names(const gs_comm_failure *failure, int rank);  // among the accused
void gs_comm_failure_accuse(gs_comm_failure *failure, int rank);
int gs_comm_failure_num_accused(const gs_comm_failure *failure);
const char *gs_comm_failure_kind_name(gs_comm_failure_kind kind);  // "peer lost"

// Whether an error of this code can be what the failure was told as: else it is another one, of whoever
// called, and the failure is what the others know of by now.
bool gs_comm_failure_may_be(const gs_comm_failure *failure, gs_code code);

GS_END_DECLS

#endif
