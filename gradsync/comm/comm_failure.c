#include "gradsync/comm/comm_failure.h"

#include <stddef.h>

bool gs_comm_failure_names(const gs_comm_failure *failure, int rank) {
    return rank >= 0 && rank < GS_COMM_MAX_RANKS && failure->accused[rank / 64] >> (rank % 64) & 1;
}

void gs_comm_failure_accuse(gs_comm_failure *failure, int rank) {
    if (rank < 0 || rank >= GS_COMM_MAX_RANKS) return;
    failure->accused[rank / 64] |= UINT64_C(1) << (rank % 64);
}

int gs_comm_failure_num_accused(const gs_comm_failure *failure) {
    int count = 0;
    for (size_t i = 0; i < GS_COMM_MAX_RANKS / 64; i++)
        count += __builtin_popcountll(failure->accused[i]);
    return count;
}

const char *gs_comm_failure_kind_name(gs_comm_failure_kind kind) {
    static const char *const names[] = {"none",    "timeout", "peer lost", "mismatch",
                                        "damaged", "device",  "aborted"};
    return (size_t)kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}

bool gs_comm_failure_may_be(const gs_comm_failure *failure, gs_code code) {
    switch (failure->kind) {
    case GS_COMM_FAILURE_NONE: return false;
    case GS_COMM_FAILURE_TIMEOUT: return code == GS_DEADLINE_EXCEEDED || code == GS_ABORTED;
    case GS_COMM_FAILURE_PEER_LOST: return code == GS_UNAVAILABLE || code == GS_ABORTED;
    case GS_COMM_FAILURE_MISMATCH: return code == GS_FAILED_PRECONDITION || code == GS_ABORTED;
    case GS_COMM_FAILURE_DAMAGED: return code == GS_DATA_LOSS || code == GS_ABORTED;
    case GS_COMM_FAILURE_DEVICE: return code != GS_OK;
    case GS_COMM_FAILURE_ABORTED: return code == GS_ABORTED;
    }
    return false;
}
