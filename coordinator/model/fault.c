#include "coordinator/model/fault.h"

gs_fault_facts gs_fault_facts_of(gs_fault_kind kind, int accused) {
    gs_fault_facts facts = {.kind = kind, .reporter = -1, .bucket = -1};
    gs_fault_accuse(&facts, accused);
    return facts;
}

void gs_fault_accuse(gs_fault_facts *facts, int64_t rank) {
    if (rank < 0 || rank >= GS_FAULT_MAX_RANKS) return;
    facts->accused[rank / 64] |= UINT64_C(1) << (rank % 64);
}

bool gs_fault_accuses(const gs_fault_facts *facts, int rank) {
    return rank >= 0 && rank < GS_FAULT_MAX_RANKS && (facts->accused[rank / 64] >> (rank % 64) & 1);
}

int gs_fault_first_accused(const gs_fault_facts *facts) {
    for (int rank = 0; rank < GS_FAULT_MAX_RANKS; rank++) {
        if (gs_fault_accuses(facts, rank)) return rank;
    }
    return -1;
}

void gs_fault_facts_bound(gs_fault_facts *facts, int num_ranks) {
    for (int rank = num_ranks; rank < GS_FAULT_MAX_RANKS; rank++) {
        facts->accused[rank / 64] &= ~(UINT64_C(1) << (rank % 64));
    }
    if (facts->reporter >= num_ranks) facts->reporter = -1;
}
