#include "coordinator/scheduler.h"

static int slots_for(bool needs_gpu, gs_slot_pools pools) {
    return needs_gpu ? pools.gpu : pools.plain + pools.gpu;
}

gs_slot_pools gs_schedule_take(bool needs_gpu, int ranks, gs_slot_pools free) {
    if (needs_gpu) return (gs_slot_pools){.gpu = ranks};
    int plain = ranks < free.plain ? ranks : free.plain;
    return (gs_slot_pools){.plain = plain, .gpu = ranks - plain};
}

// What is left to a job behind one that holds slots back.
static int slots_behind(const gs_schedule_job *job, const gs_schedule_job *holder,
                        gs_slot_pools free) {
    if (!holder) return slots_for(job->needs_gpu, free);
    return holder->needs_gpu && !job->needs_gpu ? free.plain : 0;
}

static void decide_job(gs_schedule_job *job, const gs_schedule_job *holder, size_t holder_index,
                       gs_slot_pools *free) {
    int usable = slots_behind(job, holder, *free);
    if (usable < job->least) {
        bool is_behind = holder && slots_for(job->needs_gpu, *free) >= job->least;
        job->wait = is_behind ? GS_WAIT_TURN : GS_WAIT_SLOTS;
        job->behind = is_behind ? holder_index : 0;
        return;
    }
    if (usable < job->most && !job->join_passed) {
        job->wait = GS_WAIT_JOIN;
        return;
    }
    job->wait = GS_WAIT_NONE;
    job->ranks = usable < job->most ? usable : job->most;
    gs_slot_pools taken = gs_schedule_take(job->needs_gpu, job->ranks, *free);
    free->plain -= taken.plain;
    free->gpu -= taken.gpu;
}

void gs_schedule_decide(gs_schedule_job *jobs, size_t num_jobs, gs_slot_pools free,
                        gs_slot_pools total) {
    const gs_schedule_job *holder = NULL;
    for (size_t i = 0; i < num_jobs; i++) {
        gs_schedule_job *job = &jobs[i];
        job->ranks = 0;
        job->behind = 0;
        if (job->backing_off) {
            job->wait = GS_WAIT_BACKOFF;
            continue;
        }
        decide_job(job, holder, holder ? (size_t)(holder - jobs) : 0, &free);
        bool waits = job->wait == GS_WAIT_SLOTS || job->wait == GS_WAIT_JOIN;
        // The next one that waits for the other pool holds nothing: one holder keeps the rule plain.
        if (waits && !holder && job->least <= slots_for(job->needs_gpu, total)) holder = job;
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
