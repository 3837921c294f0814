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
#include "core/random.h"

static bool wants_slots(const gs_job *job) {
    return !job->run && !job->held_back && !job->stop_asked && !gs_job_state_terminal(job->state);
}

static void describe_job(gs_schedule_job *out, gs_job *job, int free_slots, int64_t now_ns) {
    *out = (gs_schedule_job){.least = (int)job->spec.world.min, .most = (int)job->spec.world.max};
    if (job->world_wanted > 0) out->least = out->most = job->world_wanted;
    out->backing_off = job->not_before_ns > now_ns;
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

static void place_member(gs_member *member, gs_agent *agent, int *slot) {
    while (agent->slots[*slot].incarnation != 0) (*slot)++;
    snprintf(member->worker, sizeof member->worker, "%s", agent->name);
    snprintf(member->host, sizeof member->host, "%s", agent->host);
    member->slot = (*slot)++;
    member->incarnation = gs_random_from_system();
    member->launch_token = gs_random_from_system();
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

static gs_run *place_run(gs_coordinator *coordinator, gs_job *job, int ranks, gs_agent **agents,
                         const int *taken) {
    gs_run *run = gs_run_create(job, ranks);
    if (!run) return NULL;
    int index = 0;
    for (size_t i = 0; i < coordinator->num_agents; i++) {
        int slot = 0;
        for (int k = 0; k < taken[i]; k++) place_member(&run->members[index++], agents[i], &slot);
    }
    return run;
}

static void start_members(gs_coordinator *coordinator, gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        gs_agent *agent = gs_agents_find(coordinator, member->worker);
        if (agent && gs_agent_start_rank(coordinator, agent, member, i)) continue;
        gs_blame blame = {.kind = GS_FAILURE_LOST, .member = member, .reason = "WorkerLost",
                          .class = "infrastructure"};
        gs_run_fail(coordinator, run, &blame, "worker %s could not be told to start a rank",
                    member->worker);
        // Nobody was told of the others: there is nothing of them to wait for.
        for (int k = i; k < run->num_members; k++) {
            gs_member_exited(coordinator, &run->members[k], -1, 0, NULL);
        }
        return;
    }
}

static void launch_job(gs_coordinator *coordinator, gs_job *job, int ranks) {
    size_t count = coordinator->num_agents;
    gs_agent **agents = calloc(count + 1, sizeof(gs_agent *));
    int *free_slots = calloc(count + 1, sizeof(int)), *taken = calloc(count + 1, sizeof(int));
    gs_run *run = NULL;
    if (agents && free_slots && taken) {
        memcpy(agents, coordinator->agents, count * sizeof(gs_agent *));
        qsort(agents, count, sizeof(gs_agent *), compare_agents);
        for (size_t i = 0; i < count; i++) free_slots[i] = gs_agent_free_slots(agents[i]);
        gs_schedule_spread(taken, free_slots, count, ranks);
        run = place_run(coordinator, job, ranks, agents, taken);
    }
    free(agents);
    free(free_slots);
    free(taken);
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

static void explain_wait(gs_coordinator *coordinator, gs_job *job, const gs_schedule_job *decision,
                         gs_job *const *waiting, int free_slots) {
    job->slots_needed = decision->least;
    job->slots_free = free_slots;
    switch (decision->wait) {
    case GS_WAIT_NONE: break;
    case GS_WAIT_BACKOFF: break;  // the end of the last run said it
    case GS_WAIT_SLOTS:
        if (job->state != GS_JOB_QUEUED) {
            job->waiting_since_ms = gs_wall_ms();
            gs_job_move(coordinator, job, GS_JOB_QUEUED, "WaitingForWorkers",
                        "fewer than %d slots are left", decision->least);
        }
        gs_job_explain(coordinator, job, "WaitingForWorkers",
                       "%d of %d required slots free; start another worker or lower world.min",
                       free_slots, decision->least);
        break;
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
    gs_job_end(coordinator, job, GS_JOB_FAILED, "NotEnoughWorkers",
               "%d slots did not become free within %g s", job->slots_needed, wait_seconds);
}

void gs_launch_waiting(gs_coordinator *coordinator) {
    coordinator->schedule_needed = false;
    int64_t now_ns = gs_now_ns();
    int free_slots = 0, total_slots = 0;
    for (size_t i = 0; i < coordinator->num_agents; i++) {
        free_slots += gs_agent_free_slots(coordinator->agents[i]);
        if (coordinator->agents[i]->stream) total_slots += coordinator->agents[i]->num_slots;
    }
    gs_job **waiting = calloc(coordinator->num_jobs + 1, sizeof *waiting);
    gs_schedule_job *decisions = calloc(coordinator->num_jobs + 1, sizeof *decisions);
    size_t count = 0;
    for (size_t i = 0; waiting && decisions && i < coordinator->num_jobs; i++) {
        gs_job *job = coordinator->jobs[i];  // oldest first
        if (!wants_slots(job)) continue;
        describe_job(&decisions[count], job, free_slots, now_ns);
        waiting[count++] = job;
    }
    if (count > 0) gs_schedule_decide(decisions, count, free_slots, total_slots);
    for (size_t i = 0; i < count; i++) {
        if (decisions[i].wait == GS_WAIT_NONE) {
            launch_job(coordinator, waiting[i], decisions[i].ranks);
            free_slots -= decisions[i].ranks;
        } else {
            explain_wait(coordinator, waiting[i], &decisions[i], waiting, free_slots);
            give_up_waiting(coordinator, waiting[i]);
        }
    }
    free(waiting);
    free(decisions);
}
