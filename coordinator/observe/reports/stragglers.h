// Who holds the others up, from what each rank measured on its own clock. Loop thread.
//
// A rank that comes last waits for nobody: the straggler is the rank that waits least. Steps are compared
// when every rank has told them. Over the last GS_STRAGGLER_WINDOW of them a rank is flagged when its
// median lag is above 10 % of a step and it was last in more than 70 % of them, for a whole window; the
// flag goes at half of both. With four ranks or more its computing time must stand out too (robust z above
// 4), unless its transfers do. Pure but for memory: no clock, no job.
#ifndef COORDINATOR_OBSERVE_REPORTS_STRAGGLERS_H
#define COORDINATOR_OBSERVE_REPORTS_STRAGGLERS_H

#include <stdbool.h>
#include <stdint.h>

#define GS_STRAGGLER_WINDOW 64

// One step of one rank, as in the `waits` of a Step report; seconds.
typedef struct gs_straggler_sample {
    double compute, wait, transfer, data, step_seconds;
} gs_straggler_sample;

typedef struct gs_straggler_view {
    double lag_seconds;         // moving average
    double median_lag_seconds;  // over the window
    double share_last;          // of the window, 0 to 1
    double compute_ratio;       // median computing time / median over ranks of it
    // That others waited for it, so far; steps between two compared ones count as the later one. And what of
    // it came while it was flagged. Neither ever falls.
    double blame_seconds, lost_seconds;
    int64_t last_arrivals;      // steps in which it was last, so far
    bool flagged;
    const char *phase;  // "data", "compute" or "network"; "" while not flagged
} gs_straggler_view;

typedef struct gs_stragglers gs_stragglers;

gs_stragglers *gs_stragglers_create(int num_ranks);  // NULL: out of memory
void gs_stragglers_destroy(gs_stragglers *stragglers);  // NULL is fine
// What is known of each rank, to be shown by another thread; takes no steps. NULL: of none, or out of memory.
gs_stragglers *gs_stragglers_copy_views(const gs_stragglers *from);
// Steps that were told before (reports repeat) and those too old to compare are left out, and numbers
// that no step has: none below 0, none above 1e9, all finite.
void gs_stragglers_add(gs_stragglers *stragglers, int rank, int64_t step,
                       const gs_straggler_sample *sample);

int64_t gs_stragglers_num_compared(const gs_stragglers *stragglers);  // steps so far
gs_straggler_view gs_stragglers_view(const gs_stragglers *stragglers, int rank);
// Median duration of a step in the window; what it would be if the flagged ranks had the median computing
// time. 0: not known yet.
double gs_stragglers_step_seconds(const gs_stragglers *stragglers);
double gs_stragglers_whatif_step_seconds(const gs_stragglers *stragglers);
// Steps in which a rank's lag was more than a whole usual step, without it being a straggler.
int64_t gs_stragglers_num_spikes(const gs_stragglers *stragglers);

#endif
