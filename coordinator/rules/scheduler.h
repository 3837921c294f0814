// Which waiting job gets how many free slots: a pure decision, so that it can be tested alone.
//
// Jobs are looked at by priority (age). A job that has waited longest keeps the free slots it cannot
// use yet from those behind it, so that small jobs cannot starve it — unless it could not run even if
// every slot were free. Slots with a GPU and slots without are two pools: a job on GPUs takes of the first
// alone, one on CPUs takes slots without as long as there are any, and one that waits for GPUs reserves no
// others: behind it the oldest one on CPUs that waits reserves what is left.
#ifndef COORDINATOR_RULES_SCHEDULER_H
#define COORDINATOR_RULES_SCHEDULER_H

#include <stdbool.h>
#include <stddef.h>

typedef enum gs_wait_kind {
    GS_WAIT_NONE = 0,   // start now
    GS_WAIT_SLOTS,      // fewer than least are free
    GS_WAIT_JOIN,       // enough are free, more may come within the window
    GS_WAIT_BACKOFF,    // not yet, after a failure
    GS_WAIT_TURN        // an older job has reserved what is free
} gs_wait_kind;

typedef struct gs_slot_pools {
    int plain, gpu;
} gs_slot_pools;

typedef struct gs_schedule_job {  // in order of priority
    int least, most;   // ranks
    bool needs_gpu;    // each rank
    bool backing_off;
    bool join_passed;  // the window for more than `least` has passed
    // Out:
    int ranks;  // to start, 0: wait
    bool may_take_gpus;  // slots with one that are free are nobody's, so that one on CPUs may have them in place of others
    gs_wait_kind wait;
    size_t behind;  // GS_WAIT_TURN: index of the job that has reserved
} gs_schedule_job;

void gs_schedule_decide(gs_schedule_job *jobs, size_t num_jobs, gs_slot_pools free,
                        gs_slot_pools total);
// Of `ranks` of a job how many slots of each pool it takes.
gs_slot_pools gs_schedule_take(bool needs_gpu, int ranks, gs_slot_pools free);

// Deals `ranks` over agents so that the load is spread: each rank goes to the agent with most free
// slots, the first of equals. taken[i] is what agent i gets; `lead`, where it is one of them, has a free slot and gets one of the
// ranks whatever others have.
void gs_schedule_spread(int *taken, const int *free_slots, size_t num_agents, int ranks, size_t lead);

#endif
