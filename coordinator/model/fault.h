// What is known of a fault as values: its kind, who told, whom it accuses, and in which collective. Plain.
#ifndef COORDINATOR_MODEL_FAULT_H
#define COORDINATOR_MODEL_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "rpc/schema/fault_kind.h"

#define GS_FAULT_MAX_RANKS 4096

typedef struct gs_fault_facts {
    gs_fault_kind kind;
    int reporter;         // the rank that saw it; −1: the coordinator did, or nobody knows
    uint64_t collective;  // its number in its lane; 0: none is known
    int lane;
    int64_t step;         // of the collective
    int bucket;           // −1: none
    uint64_t accused[GS_FAULT_MAX_RANKS / 64];  // a bit for each rank
} gs_fault_facts;

// A verdict of the coordinator's own. `accused` −1: nobody.
gs_fault_facts gs_fault_facts_of(gs_fault_kind kind, int accused);
void gs_fault_accuse(gs_fault_facts *facts, int64_t rank);  // ranks that there are not are left out
bool gs_fault_accuses(const gs_fault_facts *facts, int rank);
int gs_fault_first_accused(const gs_fault_facts *facts);  // −1: nobody is
// As of a run of `num_ranks`: nobody else is accused, and a reporter that is no rank is nobody.
void gs_fault_facts_bound(gs_fault_facts *facts, int num_ranks);

#endif
