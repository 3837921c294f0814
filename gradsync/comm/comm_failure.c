#include "gradsync/comm/comm_failure.h"

bool gs_comm_failure_names(const gs_comm_failure *failure, int rank) {
    return rank >= 0 && rank < GS_COMM_MAX_RANKS && failure->missing[rank / 64] >> (rank % 64) & 1;
}

void gs_comm_failure_add(gs_comm_failure *failure, int rank) {
    if (rank < 0 || rank >= GS_COMM_MAX_RANKS) return;
    failure->missing[rank / 64] |= UINT64_C(1) << (rank % 64);
}
