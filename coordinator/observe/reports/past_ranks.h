// Which workers had which ranks of a job in generations that are over: whose last lines may still come.
#ifndef COORDINATOR_OBSERVE_REPORTS_PAST_RANKS_H
#define COORDINATOR_OBSERVE_REPORTS_PAST_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Of this life of the coordinator, and not without end: above this the earliest give way.
#define GS_MOST_PAST_RANKS 16384

typedef struct gs_past_rank {
    uint64_t worker;  // a hash of its name
    uint32_t generation;
    int rank;
} gs_past_rank;

typedef struct gs_past_ranks {  // {0} is empty
    gs_past_rank *items;        // owned
    size_t count, reserved, next;
} gs_past_ranks;

void gs_past_ranks_release(gs_past_ranks *past);
// generation 0: its run ended before it had one. Without memory it is not kept.
void gs_past_ranks_add(gs_past_ranks *past, const char *worker, int rank, uint32_t generation);
// generation 0: what a rank says before it is told its generation, of any run.
bool gs_past_ranks_have(const gs_past_ranks *past, const char *worker, int64_t rank, int64_t generation);

#endif
