// After an abort: who applies the step in flight, and who saves. A pure decision.
//
// Rests on two facts: applied counts in a generation differ by at most one, and who entered the commit
// of a step holds its complete reduced gradients.
#ifndef COORDINATOR_RULES_SETTLE_H
#define COORDINATOR_RULES_SETTLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gs_settle_member {
    bool survived;         // settled in time; out: false of one alone that says it is further than it can be
    int64_t applied_step;
    bool is_apart;         // takes steps of its own between sums: may be further than the others
    bool complete;         // holds the complete gradients of applied_step + 1
    // Out:
    bool apply, save;
} gs_settle_member;

// `reported_step` is the largest applied step that anybody of the generation reported, dead or alive.
// Returns the step at which the survivors are afterwards; -1 without survivors.
int64_t gs_settle_decide(gs_settle_member *members, size_t num_members, int64_t reported_step,
                         int64_t saved_step);

#endif
