#include "coordinator/rules/scheduler.h"

static int slots_for(bool needs_gpu, gs_slot_pools pools) {
    return needs_gpu ? pools.gpu : pools.plain + pools.gpu;
}

gs_slot_pools gs_schedule_take(bool needs_gpu, int ranks, gs_slot_pools free) {
    if (needs_gpu) return (gs_slot_pools){.gpu = ranks};
    int plain = ranks < free.plain ? ranks : free.plain;
    return (gs_slot_pools){.plain = plain, .gpu = ranks - plain};
}

// The oldest waiting job of each kind: on GPUs it keeps free GPUs, on CPUs all that is free.
typedef struct slot_holders {
    const gs_schedule_job *on_gpus, *on_cpus;  // NULL: none
} slot_holders;

static int slots_left(const gs_schedule_job *job, slot_holders holders, gs_slot_pools free) {
    if (holders.on_cpus || (holders.on_gpus && job->needs_gpu)) return 0;
    return holders.on_gpus ? free.plain : slots_for(job->needs_gpu, free);
}

static const gs_schedule_job *who_keeps(const gs_schedule_job *job, slot_holders holders) {
    const gs_schedule_job *alike = job->needs_gpu ? holders.on_gpus : holders.on_cpus;
    if (alike) return alike;
    return job->needs_gpu ? holders.on_cpus : holders.on_gpus;
}

static void decide_job(gs_schedule_job *job, const gs_schedule_job *jobs, slot_holders holders,
                       gs_slot_pools *free) {
    int usable = slots_left(job, holders, *free);
    if (usable < job->least) {
        const gs_schedule_job *keeper = who_keeps(job, holders);
        bool is_behind = keeper && slots_for(job->needs_gpu, *free) >= job->least;
        job->wait = is_behind ? GS_WAIT_TURN : GS_WAIT_SLOTS;
        job->behind = is_behind ? (size_t)(keeper - jobs) : 0;
        return;
    }
    if (usable < job->most && !job->join_passed) {
        job->wait = GS_WAIT_JOIN;
        return;
    }
    job->wait = GS_WAIT_NONE;
    job->may_take_gpus = usable > free->plain;
    job->ranks = usable < job->most ? usable : job->most;
    gs_slot_pools taken = gs_schedule_take(job->needs_gpu, job->ranks, *free);
    free->plain -= taken.plain;
    free->gpu -= taken.gpu;
}

void gs_schedule_decide(gs_schedule_job *jobs, size_t num_jobs, gs_slot_pools free,
                        gs_slot_pools total) {
    slot_holders holders = {0};
    for (size_t i = 0; i < num_jobs; i++) {
        gs_schedule_job *job = &jobs[i];
        job->ranks = 0;
        job->behind = 0;
        if (job->backing_off) {
            job->wait = GS_WAIT_BACKOFF;
            continue;
        }
        decide_job(job, jobs, holders, &free);
        if (job->wait == GS_WAIT_NONE || job->least > slots_for(job->needs_gpu, total)) continue;
        const gs_schedule_job **place = job->needs_gpu ? &holders.on_gpus : &holders.on_cpus;
        if (!*place) *place = job;
    }
}

void gs_schedule_spread(int *taken, const int *free_slots, size_t num_agents, int ranks, size_t lead) {
    for (size_t i = 0; i < num_agents; i++) taken[i] = i == lead && ranks > 0;
    if (lead < num_agents) ranks--;
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
