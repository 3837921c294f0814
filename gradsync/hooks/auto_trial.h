// Whether compression shows in steps. A link that sums would keep busy for longer than a step takes gets out of the way by it, that is
// certain; but what a quicker link saves may be hidden behind a backward pass, or be paid for by kernels on cores that others need. So
// steps with it are compared with as many of plain sums, and it stays where they are slower.
//
// What steps take is this rank's until ranks have agreed; all else follows from numbers that are alike on all.
#ifndef GRADSYNC_HOOKS_AUTO_TRIAL_H
#define GRADSYNC_HOOKS_AUTO_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

#include "gradsync/hooks/auto_costs.h"

typedef enum gs_auto_trial_phase {
    GS_TRIAL_OPEN = 0,  // nobody has looked
    GS_TRIAL_PLAIN,     // all buckets go as plain sums, to see
    GS_TRIAL_GAINS,     // compression shows, or is certain to
    GS_TRIAL_IDLE       // it does not
} gs_auto_trial_phase;

typedef struct gs_auto_trial {
    gs_auto_trial_phase phase;
    int64_t look_at;  // GS_TRIAL_PLAIN: the step of the plan at which it ends
    double with_seconds, without_seconds;  // of a step, agreed; 0: not known
    // This rank's, since the way that buckets go has changed.
    double steps[GS_AUTO_RING];
    int num_steps;
    int64_t last_ns;
} gs_auto_trial;

// A step counts, or does not: its time is none then, nor is that of the next one.
void gs_auto_trial_note_step(gs_auto_trial *trial, int64_t now_ns, bool counts);
// Of the usual one of the last steps; 0: too few.
double gs_auto_trial_step_seconds(const gs_auto_trial *trial);

// At a look in step `step` of the plan, with what ranks agreed on. Whether buckets may be compressed from now on.
//   step_seconds   of the slowest rank; 0: not known
//   plain_seconds  of all sums of a step, plain ones, behind each other
//   was_compressed, would_be  whether a bucket was in the steps that were timed, and would be
bool gs_auto_trial_decide(gs_auto_trial *trial, int64_t step, double step_seconds, double plain_seconds, bool was_compressed,
                          bool would_be);

#endif
