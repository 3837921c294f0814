// The plan that a session uses, and how it changes to another. Compute thread.
//
// A plan that is offered waits. Each commit says which plan waits here; when the same one waits on
// every rank, all of them change to it before the next step. Whoever got none, or another one,
// holds the change back, and never a step.
#ifndef WORKER_TRAINER_PLAN_SWITCH_H
#define WORKER_TRAINER_PLAN_SWITCH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/bucket_plan.h"
#include "core/clock.h"
#include "core/status.h"
#include "gradsync/reducer/reducer.h"
#include "worker/control/control.h"

typedef struct gs_plan_switch {
    gs_control *control;  // borrowed
    uint32_t generation;
    gs_bucket_plan plan;  // in use; owned
    int revision;         // its; 0: the one that the generation began with
    uint64_t digest;      // its, folded
    gs_plan_offer next;   // waits until all ranks have it; digest 0: none
    bool is_due;          // all have it: before the next step
    int num_phases;       // of the reducer's hooks, for the timeline; the owner writes it
} gs_plan_switch;

// Copies the plan, which is used from `step` on.
GS_NODISCARD gs_status gs_plan_switch_init(gs_plan_switch *out, gs_control *control,
                                           uint32_t generation, const gs_bucket_plan *plan,
                                           int64_t step);
void gs_plan_switch_release(gs_plan_switch *plans);

// The timeline from here on: steps of the plan in use.
void gs_plan_switch_show(const gs_plan_switch *plans);

// Looks at the mailbox; the folded digest of the plan that waits, for the vote, 0: none.
uint64_t gs_plan_switch_waiting(gs_plan_switch *plans);
// Collective: the plan that waits is in use from `step` on, which is about to begin.
GS_NODISCARD gs_status gs_plan_switch_run(gs_plan_switch *plans, gs_reducer *reducer, int64_t step,
                                          gs_deadline deadline);

#endif
