#include "coordinator/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/agents.h"
#include "coordinator/checkpoints.h"
#include "coordinator/events.h"
#include "coordinator/job_control.h"
#include "coordinator/membership.h"
#include "coordinator/run.h"
#include "coordinator/scheduler.h"
#include "core/clock.h"

// What it starts from is known by then: after a start of the coordinator it may be on the disk alone.
static bool wants_slots(const gs_job *job) {
    return !job->run && !job->held_back && !job->stop_asked &&
           !gs_job_state_terminal(job->state) && !gs_checkpoints_pending(job);
}

// Slots of all workers that are connected.
typedef struct pools_of_all {
    gs_slot_pools free, total;
    bool lacks_nccl;  // one that has GPUs
} pools_of_all;

static pools_of_all count_slots(const gs_coordinator *coordinator) {
    pools_of_all pools = {0};
    for (size_t i = 0; i < coordinator->num_agents; i++) {
        const gs_agent *agent = coordinator->agents[i];
        if (!agent->stream) continue;
        gs_slot_pools free = gs_agent_free_slots(agent), all = gs_agent_all_slots(agent);
        pools.free.plain += free.plain;
        pools.free.gpu += free.gpu;
        pools.total.plain += all.plain;
        pools.total.gpu += all.gpu;
        pools.lacks_nccl |= all.gpu > 0 && !agent->devices.nccl[0];
    }
    return pools;
}

// Free or not: a job that may wait for a GPU does not start on CPUs because one is busy now.
static bool takes_gpus(const gs_job *job, int least, const pools_of_all *pools) {
    if (gs_job_spec_needs_gpu(&job->spec)) return true;
    if (pools->lacks_nccl && job->spec.world.max > 1) return false;
    return gs_job_spec_may_use_gpu(&job->spec) && pools->total.gpu >= least;
}

static void describe_job(gs_schedule_job *out, gs_job *job, const pools_of_all *pools,
                         int64_t now_ns) {
    *out = (gs_schedule_job){.least = (int)job->spec.world.min, .most = (int)job->spec.world.max};
    if (job->world_wanted > 0) out->least = out->most = job->world_wanted;
    out->needs_gpu = takes_gpus(job, out->least, pools);
    out->backing_off = job->not_before_ns > now_ns;
    int free_slots = out->needs_gpu ? pools->free.gpu : pools->free.plain + pools->free.gpu;
    if (free_slots < out->least) job->enough_since_ns = 0;
    else if (job->enough_since_ns == 0) job->enough_since_ns = now_ns;
    int64_t window_ns = (int64_t)(job->spec.world.join_window_seconds * (double)GS_NS_PER_SEC);
    // After a fault nobody waits for replacements.
    out->join_passed = job->committed || (job->enough_since_ns > 0 &&
                                          now_ns - job->enough_since_ns >= window_ns);
}

static int compare_agents(const void *a, const void *b) {
    return strcmp((*(gs_agent *const *)a)->name, (*(gs_agent *const *)b)->name);
}

static void place_member(gs_coordinator *coordinator, gs_member *member, gs_agent *agent, int *slot,
                         bool slot_has_gpu, bool on_gpu) {
    while (!gs_agent_slot_is_free(agent, *slot, slot_has_gpu)) (*slot)++;
    snprintf(member->device, sizeof member->device, "%s", on_gpu ? "cuda" : "cpu");
    if (on_gpu)
        gs_agent_devices_uuids(member->device_uuid, sizeof member->device_uuid, &agent->devices,
                               *slot);
    snprintf(member->worker, sizeof member->worker, "%s", agent->name);
    snprintf(member->host, sizeof member->host, "%s", agent->host);
    member->slot = (*slot)++;
    member->incarnation = gs_coordinator_draw(coordinator);
    member->launch_token = gs_coordinator_draw(coordinator);
    member->heard_ns = gs_now_ns();
}

static void show_launch(gs_coordinator *coordinator, gs_job *job, int ranks) {
    gs_job_state state = job->committed ? GS_JOB_RECOVERING : GS_JOB_STARTING;
    int64_t step = gs_checkpoints_newest_step(job);
    if (step > 0) {
        gs_job_move(coordinator, job, state, "RestoringCheckpoint",
                    "starting %d ranks from the checkpoint of step %lld", ranks, (long long)step);
    } else {
        gs_job_move(coordinator, job, state, "Rendezvous", "starting %d ranks", ranks);
    }
}

// How many slots of each pool a run takes of each agent.
typedef struct placement {
    gs_agent **agents;  // owned, by name
    int *plain, *gpu;   // owned
    size_t count;
} placement;

static void release_placement(placement *at) {
    free(at->agents);
    free(at->plain);
    free(at->gpu);
}

// False: out of memory.
static bool find_placement(placement *at, const gs_coordinator *coordinator,
                           const gs_schedule_job *decision, gs_slot_pools free_pools) {
    size_t count = coordinator->num_agents;
    *at = (placement){.agents = calloc(count + 1, sizeof(gs_agent *)),
                      .plain = calloc(count + 1, sizeof(int)),
                      .gpu = calloc(count + 1, sizeof(int)),
                      .count = count};
    int *free_slots = calloc(count + 1, sizeof(int));
    bool found = at->agents && at->plain && at->gpu && free_slots;
    if (found) {
        memcpy(at->agents, coordinator->agents, count * sizeof(gs_agent *));
        qsort(at->agents, count, sizeof(gs_agent *), compare_agents);
        gs_slot_pools take =
            gs_schedule_take(decision->needs_gpu, decision->ranks, free_pools);
        for (size_t i = 0; i < count; i++) free_slots[i] = gs_agent_free_slots(at->agents[i]).plain;
        gs_schedule_spread(at->plain, free_slots, count, take.plain);
        for (size_t i = 0; i < count; i++) free_slots[i] = gs_agent_free_slots(at->agents[i]).gpu;
        gs_schedule_spread(at->gpu, free_slots, count, take.gpu);
    }
    free(free_slots);
    return found;
}

static gs_run *place_run(gs_coordinator *coordinator, gs_job *job, const gs_schedule_job *decision, const placement *at) {
    gs_run *run = gs_run_create(job, decision->ranks);
    if (!run) return NULL;
    int index = 0;
    for (size_t i = 0; i < at->count; i++) {
        int slot = 0, gpu_slot = 0;
        for (int k = 0; k < at->gpu[i]; k++)
            place_member(coordinator, &run->members[index++], at->agents[i], &gpu_slot, true,
                         decision->needs_gpu);
        for (int k = 0; k < at->plain[i]; k++)
            place_member(coordinator, &run->members[index++], at->agents[i], &slot, false, false);
    }
    return run;
}

static void start_members(gs_coordinator *coordinator, gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        gs_agent *agent = gs_agents_find(coordinator, member->worker);
        if (agent && gs_agent_start_rank(coordinator, agent, member, i)) continue;
        gs_blame blame = {.kind = GS_FAILURE_LOST, .member = member, .reason = "WorkerLost",
                          .class = "infrastructure", .fault = GS_FAULT_PEER_LOST};
        gs_run_fail(coordinator, run, &blame, "worker %s could not be told to start a rank",
                    member->worker);
        // Nobody was told of the others: there is nothing of them to wait for.
        for (int k = i; k < run->num_members; k++) {
            gs_member_exited(coordinator, &run->members[k], -1, 0, NULL);
        }
        return;
    }
}

static void launch_job(gs_coordinator *coordinator, gs_job *job, const gs_schedule_job *decision,
                       gs_slot_pools free_pools) {
    placement at;
    int ranks = decision->ranks;
    gs_run *run = NULL;
    if (find_placement(&at, coordinator, decision, free_pools)) run = place_run(coordinator, job, decision, &at);
    release_placement(&at);
    if (!run) return;  // out of memory: the next turn tries again
    gs_checkpoints_drop_missing(coordinator, job);
    job->run = run;
    gs_run_index_members(run, &coordinator->members);
    job->slots_needed = 0;
    job->enough_since_ns = 0;
    if (!job->started_ms) job->started_ms = gs_wall_ms();
    show_launch(coordinator, job, ranks);
    gs_run_enter(run, GS_RUN_LAUNCHING, coordinator->timing.hello_ns);
    start_members(coordinator, run);
}

// Why no worker has a GPU, in the words of the first one that is connected.
static void explain_no_gpu(gs_coordinator *coordinator, gs_job *job) {
    const gs_agent *agent = NULL;
    for (size_t i = 0; i < coordinator->num_agents && !agent; i++) {
        if (coordinator->agents[i]->stream) agent = coordinator->agents[i];
    }
    if (agent)
        gs_job_explain(coordinator, job, "NoDevice",
                       "the job needs GPUs and no worker offers one; worker %s on %s: %s",
                       agent->name, agent->host, agent->devices.reason);
    else
        gs_job_explain(coordinator, job, "WaitingForWorkers",
                       "the job needs GPUs and no worker is connected");
}

static void explain_slots(gs_coordinator *coordinator, gs_job *job,
                          const gs_schedule_job *decision, const pools_of_all *pools,
                          int free_slots) {
    if (job->state != GS_JOB_QUEUED) {
        job->waiting_since_ms = gs_wall_ms();
        gs_job_move(coordinator, job, GS_JOB_QUEUED, "WaitingForWorkers",
                    "fewer than %d slots are left", decision->least);
    }
    if (decision->needs_gpu && pools->total.gpu == 0) {
        explain_no_gpu(coordinator, job);
        return;
    }
    gs_job_explain(coordinator, job, "WaitingForWorkers",
                   "%d of %d required slots%s free; start another worker or lower world.min",
                   free_slots, decision->least, decision->needs_gpu ? " with a GPU" : "");
}

static void explain_wait(gs_coordinator *coordinator, gs_job *job, const gs_schedule_job *decision,
                         gs_job *const *waiting, const pools_of_all *pools) {
    int free_slots =
        decision->needs_gpu ? pools->free.gpu : pools->free.plain + pools->free.gpu;
    job->slots_needed = decision->least;
    job->slots_free = free_slots;
    switch (decision->wait) {
    case GS_WAIT_NONE: break;
    case GS_WAIT_BACKOFF: break;  // the end of the last run said it
    case GS_WAIT_SLOTS: explain_slots(coordinator, job, decision, pools, free_slots); break;
    case GS_WAIT_JOIN:
        gs_job_explain(coordinator, job, "JoinWindow",
                       "%d slots are free, enough for world.min; waiting up to %g s for %d",
                       free_slots, job->spec.world.join_window_seconds, decision->most);
        break;
    case GS_WAIT_TURN:
        gs_job_explain(coordinator, job, "WaitingForTurn",
                       "job %s is older and has reserved the free slots",
                       waiting[decision->behind]->id_text);
        break;
    }
}

static void give_up_waiting(gs_coordinator *coordinator, gs_job *job) {
    double wait_seconds = job->spec.world.wait_seconds;
    if (wait_seconds <= 0 || job->state != GS_JOB_QUEUED) return;
    if ((double)(gs_wall_ms() - job->waiting_since_ms) / 1000 < wait_seconds) return;
    bool no_device = strcmp(job->reason, "NoDevice") == 0;
    char why[256];
    snprintf(why, sizeof why, "%s", no_device ? job->message : "");
    gs_job_end(coordinator, job, GS_JOB_FAILED, no_device ? "NoDevice" : "NotEnoughWorkers",
               "%d slots did not become free within %g s%s%s", job->slots_needed, wait_seconds,
               no_device ? ": " : "", why);
}

void gs_launch_waiting(gs_coordinator *coordinator) {
    coordinator->schedule_needed = false;
    if (coordinator->is_old_copy) return;
    int64_t now_ns = gs_now_ns();
    pools_of_all pools = count_slots(coordinator);
    gs_job **waiting = calloc(coordinator->num_jobs + 1, sizeof *waiting);
    gs_schedule_job *decisions = calloc(coordinator->num_jobs + 1, sizeof *decisions);
    size_t count = 0;
    for (size_t i = 0; waiting && decisions && i < coordinator->num_jobs; i++) {
        gs_job *job = coordinator->jobs[i];  // oldest first
        if (!wants_slots(job)) continue;
        describe_job(&decisions[count], job, &pools, now_ns);
        waiting[count++] = job;
    }
    if (count > 0) gs_schedule_decide(decisions, count, pools.free, pools.total);
    for (size_t i = 0; i < count; i++) {
        if (decisions[i].wait == GS_WAIT_NONE) {
            launch_job(coordinator, waiting[i], &decisions[i], pools.free);
            pools.free = count_slots(coordinator).free;
        } else {
            explain_wait(coordinator, waiting[i], &decisions[i], waiting, &pools);
            give_up_waiting(coordinator, waiting[i]);
        }
    }
    free(waiting);
    free(decisions);
}
