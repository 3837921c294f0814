#include "coordinator/scheduler.h"

void gs_schedule_decide(gs_schedule_job *jobs, size_t num_jobs, int free_slots, int total_slots) {
    bool reserved = false;
    size_t holder = 0;
    for (size_t i = 0; i < num_jobs; i++) {
        gs_schedule_job *job = &jobs[i];
        job->ranks = 0;
        job->behind = 0;
        if (job->backing_off) {
            job->wait = GS_WAIT_BACKOFF;
            continue;
        }
        if (reserved && free_slots >= job->least) {
            job->wait = GS_WAIT_TURN;
            job->behind = holder;
            continue;
        }
        if (free_slots < job->least) job->wait = GS_WAIT_SLOTS;
        else if (free_slots < job->most && !job->join_passed) job->wait = GS_WAIT_JOIN;
        else {
            job->wait = GS_WAIT_NONE;
            job->ranks = free_slots < job->most ? free_slots : job->most;
            free_slots -= job->ranks;
            continue;
        }
        if (!reserved && job->least <= total_slots) {
            reserved = true;
            holder = i;
        }
    }
}

void gs_schedule_spread(int *taken, const int *free_slots, size_t num_agents, int ranks) {
    for (size_t i = 0; i < num_agents; i++) taken[i] = 0;
    while (ranks > 0) {
        size_t best = num_agents;
        for (size_t i = 0; i < num_agents; i++) {
            int left = free_slots[i] - taken[i];
            if (left > 0 && (best == num_agents || left > free_slots[best] - taken[best])) best = i;
        }
        if (best == num_agents) return;
        taken[best]++;
        ranks--;
    }
}
