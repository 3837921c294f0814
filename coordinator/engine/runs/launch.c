#include "coordinator/engine/runs/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/engine/base/checkpoints.h"
#include "coordinator/engine/base/moves.h"
#include "coordinator/engine/base/old_copy.h"
#include "coordinator/engine/base/orders.h"
#include "coordinator/engine/base/places.h"
#include "coordinator/engine/runs/placement.h"
#include "coordinator/engine/runs/replan.h"
#include "coordinator/engine/runs/run_life.h"
#include "coordinator/model/memory.h"
#include "coordinator/rules/scheduler.h"
#include "core/clock.h"
#include "core/u64_map.h"

#define LISTED_NS (2 * GS_NS_PER_SEC)  // what was on a disk so long ago is asked again: a pause
#define MOST_LISTS 2

static bool may_want_slots(const gs_job *job) {
    return !job->run && !job->held_back && !job->stop_asked && !gs_job_state_terminal(job->state);
}

static bool somebody_may_want_slots(const gs_job_table *jobs) {
    for (size_t i = 0; i < jobs->count; i++)
        if (may_want_slots(jobs->items[i])) return true;
    return false;
}

// Jobs with a rank somewhere: those of a set that is over have been asked to end, and may train until they have. Found once for
// all jobs that wait, of which there may be as many as there are slots.
static gs_u64_map find_there(const gs_engine *engine) {
    gs_u64_map there = {0};
    uint64_t last = 0;
    for (size_t i = 0; i < engine->state.agents.count; i++) {
        gs_agent *agent = engine->state.agents.items[i];
        for (int slot = 0; gs_agent_is_connected(agent) && slot < agent->num_slots; slot++) {
            uint64_t job = agent->slots[slot].job;
            if (!agent->slots[slot].incarnation || !job || job == last) continue;
            if (!gs_u64_map_get(&there, job) && !gs_u64_map_set(&there, job, agent)) abort();
            last = job;
        }
    }
    return there;
}

// Slots of all workers that are connected.
typedef struct pools_of_all {
    gs_slot_pools free, total;
    gs_slot_pools seeing;  // of the free ones: those whose worker may see the checkpoints here
    bool lacks_nccl;       // one that has GPUs
} pools_of_all;

static pools_of_all count_slots(const gs_engine *engine) {
    pools_of_all pools = {0};
    for (size_t i = 0; i < engine->state.agents.count; i++) {
        const gs_agent *agent = engine->state.agents.items[i];
        if (!gs_agent_is_connected(agent)) continue;
        gs_slot_pools free = gs_agent_free_slots(agent), all = gs_agent_all_slots(agent);
        pools.free.plain += free.plain;
        pools.free.gpu += free.gpu;
        pools.seeing.plain += agent->place == GS_PLACE_APART ? 0 : free.plain;
        pools.seeing.gpu += agent->place == GS_PLACE_APART ? 0 : free.gpu;
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

// A job that may shrink does so before it takes slots that were complained about.
static void leave_out_blamed(const gs_engine *engine, gs_schedule_job *out, const gs_job *job, int free_slots) {
    if (!job->complaints.count || out->least == out->most) return;
    gs_slot_pools unblamed = gs_placement_unblamed(engine, job);
    int slots = out->needs_gpu ? unblamed.gpu : unblamed.plain + unblamed.gpu;
    if (slots == free_slots || slots < out->least || slots >= out->most) return;
    // Others may still come within the window.
    int most = out->join_passed ? slots : out->most - (free_slots - slots);
    out->most = most > out->least ? most : out->least;
}

static void describe_job(const gs_engine *engine, gs_schedule_job *out, gs_job *job, const pools_of_all *pools) {
    int64_t now_ns = engine->state.now_ns;
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
    leave_out_blamed(engine, out, job, free_slots);
}

static void show_launch(gs_engine *engine, gs_job *job, int ranks) {
    gs_job_state state = job->committed ? GS_JOB_RECOVERING : GS_JOB_STARTING;
    int64_t step = gs_checkpoints_newest_step(&job->checkpoints);
    if (step > 0) {
        gs_job_move(engine, job, state, "RestoringCheckpoint",
                    "starting %d ranks from the checkpoint of step %lld", ranks, (long long)step);
    } else {
        gs_job_move(engine, job, state, "Rendezvous", "starting %d ranks", ranks);
    }
}

static void start_members(gs_engine *engine, gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        gs_agent *agent = gs_agent_table_find(&engine->state.agents, member->worker);
        if (agent && gs_order_start_rank(engine, agent, member)) continue;
        gs_blame blame = {.kind = GS_FAILURE_LOST, .member = member, .reason = "WorkerLost",
                          .class = "infrastructure", .fault = GS_FAULT_PEER_LOST};
        gs_run_fail(engine, run, &blame, "worker %s could not be told to start a rank", member->worker);
        // Nobody was told of the others: there is nothing of them to wait for.
        for (int k = i; k < run->num_members; k++) gs_member_exited(engine, &run->members[k], -1, 0, NULL);
        return;
    }
}

static void free_slot(gs_engine *engine, const gs_member *member) {
    const gs_agent *agent = gs_agent_table_find(&engine->state.agents, member->worker);
    if (agent && gs_agent_holds(agent, member)) agent->slots[member->slot] = (gs_agent_slot){0};
}

void gs_on_too_large(gs_engine *engine, const gs_engine_event *event) {
    gs_member *member = gs_state_member(&engine->state, event->too_large.incarnation);
    const char *size = event->too_large.text;
    if (!member || member->stage == GS_MEMBER_EXITED) return;
    gs_run *run = member->job->run;
    if (event->too_large.is_replan) {
        gs_replan_refuse(engine, run, size);
        return;
    }
    bool is_launch = event->too_large.is_launch;
    gs_blame blame = {.kind = GS_FAILURE_ERROR, .reason = is_launch ? "SpecificationTooLarge" : "PlanRefused",
                      .class = "user", .fault = GS_FAULT_MISMATCH,
                      .hint = is_launch ? "a shorter specification" : "a model of fewer parameters"};
    run->no_restart = true;
    if (is_launch) {
        gs_run_fail(engine, run, &blame, "the order to start a rank, with the specification, takes %s", size);
        free_slot(engine, member);
        gs_member_exited(engine, member, -1, 0, NULL);
    } else {
        gs_run_fail(engine, run, &blame, "the plan of %zu parameters in %zu buckets takes %s", run->plan.num_params,
                    run->plan.num_buckets, size);
    }
}

// A disk is slow, or what was found took long to read: ranks that nobody hears may have saved meanwhile. A disk that stays slow
// keeps no job waiting for that.
static bool lists_again(gs_engine *engine, gs_checkpoints *checkpoints) {
    bool is_old = checkpoints->listed_ns && engine->state.now_ns - checkpoints->listed_ns >= LISTED_NS;
    if (!is_old || checkpoints->num_lists == MOST_LISTS) return false;
    checkpoints->num_lists++;
    checkpoints->is_checked = false;
    return true;
}

// What it starts from is known then: a rank that was not heard has saved on the disk alone.
static bool knows_checkpoints(gs_engine *engine, gs_job *job) {
    gs_checkpoints *checkpoints = &job->checkpoints;
    if (checkpoints->is_given_up) return true;
    if (!checkpoints->is_found) gs_checkpoints_find_more(engine, job);
    checkpoints->is_found = true;
    if (gs_checkpoints_pending(checkpoints) || !gs_checkpoints_are_checked(engine, job)) return false;
    if (!lists_again(engine, checkpoints)) return true;
    gs_checkpoints_find_more(engine, job);
    return false;
}

// It goes on without the job, and is asked again then. Where it was never started nobody writes.
static void forget_disk(gs_job *job) {
    if (job->started_ms) job->checkpoints.is_found = false;
    job->checkpoints.is_checked = false;
}

// A set of which nobody sees the job's checkpoint would begin without it, and end for it. True while a worker that does may come: as long
// as ranks that nobody hears are waited for.
static bool await_place(gs_engine *engine, gs_job *job) {
    int64_t limit_ns = engine->state.timing.orphan_ns;
    if (!job->apart_since_ns) job->apart_since_ns = engine->state.now_ns;
    if (engine->state.now_ns - job->apart_since_ns >= limit_ns) return false;
    gs_job_explain(engine, job, "CheckpointElsewhere",
                   "no worker with a free slot sees the checkpoint of step %lld; a worker that does is waited for, %lld s at most",
                   (long long)gs_checkpoints_newest_step(&job->checkpoints), (long long)(limit_ns / GS_NS_PER_SEC));
    return true;
}

// There are slots enough, and none of them is where the job's checkpoint is seen: they are left to others.
static bool lacks_place(const gs_job *job, const gs_schedule_job *decision, const pools_of_all *pools) {
    gs_slot_pools free = pools->free, seeing = pools->seeing;
    int free_slots = decision->needs_gpu ? free.gpu : free.plain + free.gpu;
    if (gs_checkpoints_newest_step(&job->checkpoints) <= 0 || decision->backing_off || free_slots < decision->least) return false;
    bool takes_gpus = decision->needs_gpu || decision->most > free.plain;
    return !(takes_gpus && seeing.gpu > 0) && (decision->needs_gpu || !seeing.plain);
}

static bool waits_for_place(gs_engine *engine, gs_job *job, const gs_schedule_job *decision, gs_slot_pools free_pools) {
    // The same of what older jobs have left.
    bool sees = gs_checkpoints_newest_step(&job->checkpoints) <= 0 ||
                gs_placement_sees_checkpoint(engine, job, decision, free_pools);
    if (!sees) return await_place(engine, job);
    job->apart_since_ns = 0;
    return false;
}

static void note_begun(gs_job *job) {
    const gs_checkpoint *newest = gs_checkpoints_newest(&job->checkpoints);
    job->begun_step = newest ? newest->step : 0;
    snprintf(job->begun_directory, sizeof job->begun_directory, "%s", newest ? newest->directory : "");
}

static void launch_job(gs_engine *engine, gs_job *job, const gs_schedule_job *decision,
                       gs_slot_pools free_pools) {
    if (!knows_checkpoints(engine, job)) return;  // its slots stay its own until the answer is here
    gs_run *run = gs_placement_make_run(engine, job, decision, free_pools);
    job->run = run;
    note_begun(job);
    if (job->checkpoints.is_given_up) gs_checkpoints_leave(job, job->begun_step);
    job->checkpoints.were_checked |= !job->checkpoints.is_given_up;
    job->checkpoints.is_found = job->checkpoints.is_checked = job->checkpoints.is_given_up = false;
    job->checkpoints.num_lists = 0;
    for (int i = 0; i < run->num_members; i++) {
        if (!gs_u64_map_set(&engine->state.members, run->members[i].incarnation, &run->members[i])) abort();
    }
    job->slots_needed = 0;
    job->enough_since_ns = 0;
    if (!job->started_ms) job->started_ms = engine->state.wall_ms;
    show_launch(engine, job, decision->ranks);
    run->phase_deadline_ns = engine->state.now_ns + engine->state.timing.hello_ns;
    gs_place_tell_apart(engine, run);
    start_members(engine, run);
}

// Why no worker has a GPU, in the words of the first one that is connected.
static void explain_no_gpu(gs_engine *engine, gs_job *job) {
    const gs_agent *agent = NULL;
    for (size_t i = 0; i < engine->state.agents.count && !agent; i++) {
        if (gs_agent_is_connected(engine->state.agents.items[i])) agent = engine->state.agents.items[i];
    }
    if (!agent) {
        gs_job_explain(engine, job, "WaitingForWorkers", "the job needs GPUs and no worker is connected");
        return;
    }
    job->wait = GS_JOB_WAITS_FOR_DEVICE;
    gs_job_explain(engine, job, "NoDevice", "the job needs GPUs and no worker offers one; worker %s on %s: %s",
                   agent->name, agent->host, agent->devices.reason);
}

static void explain_slots(gs_engine *engine, gs_job *job,
                          const gs_schedule_job *decision, const pools_of_all *pools,
                          int free_slots) {
    if (job->state != GS_JOB_QUEUED) {
        job->waiting_since_ms = engine->state.wall_ms;
        job->waiting_since_ns = engine->state.now_ns;
        gs_job_move(engine, job, GS_JOB_QUEUED, "WaitingForWorkers",
                    "fewer than %d slots are left", decision->least);
    }
    if (decision->needs_gpu && pools->total.gpu == 0) {
        explain_no_gpu(engine, job);
        return;
    }
    gs_job_explain(engine, job, "WaitingForWorkers",
                   "%d of %d required slots%s free; start another worker or lower world.min",
                   free_slots, decision->least, decision->needs_gpu ? " with a GPU" : "");
}

static void explain_wait(gs_engine *engine, gs_job *job, const gs_schedule_job *decision,
                         gs_job *const *waiting, const pools_of_all *pools) {
    int free_slots =
        decision->needs_gpu ? pools->free.gpu : pools->free.plain + pools->free.gpu;
    job->wait = GS_JOB_WAITS_FOR_SLOTS;
    job->slots_needed = decision->least;
    job->slots_free = free_slots;
    switch (decision->wait) {
    case GS_WAIT_NONE: break;
    case GS_WAIT_BACKOFF: break;  // the end of the last run said it
    case GS_WAIT_SLOTS: explain_slots(engine, job, decision, pools, free_slots); break;
    case GS_WAIT_JOIN:
        gs_job_explain(engine, job, "JoinWindow",
                       "%d slots are free, enough for world.min; waiting up to %g s for %d",
                       free_slots, job->spec.world.join_window_seconds, decision->most);
        break;
    case GS_WAIT_TURN:
        gs_job_explain(engine, job, "WaitingForTurn",
                       "job %s is older and has reserved the free slots",
                       waiting[decision->behind]->id_text);
        break;
    }
}

static void give_up_waiting(gs_engine *engine, gs_job *job) {
    double wait_seconds = job->spec.world.wait_seconds;
    if (wait_seconds <= 0 || job->state != GS_JOB_QUEUED) return;
    if (gs_seconds_of(engine->state.now_ns - job->waiting_since_ns) < wait_seconds) return;
    bool no_device = job->wait == GS_JOB_WAITS_FOR_DEVICE;
    char why[256];
    snprintf(why, sizeof why, "%s", no_device ? job->message : "");
    gs_job_end(engine, job, GS_JOB_FAILED, no_device ? "NoDevice" : "NotEnoughWorkers",
               "%d slots did not become free within %g s%s%s", job->slots_needed, wait_seconds,
               no_device ? ": " : "", why);
}

void gs_launch_waiting(gs_engine *engine) {
    const gs_job_table *jobs = &engine->state.jobs;
    engine->state.schedule_needed = false;
    if (gs_old_copy_is_possible(engine) || !somebody_may_want_slots(jobs)) return;
    pools_of_all pools = count_slots(engine);
    gs_u64_map there = find_there(engine);
    gs_job **waiting = gs_model_alloc(jobs->count, sizeof *waiting);
    gs_schedule_job *decisions = gs_model_alloc(jobs->count, sizeof *decisions);
    size_t count = 0;
    for (size_t i = 0; i < jobs->count; i++) {
        gs_job *job = jobs->items[i];  // oldest first
        if (!may_want_slots(job) || gs_u64_map_get(&there, job->id) || gs_checkpoints_wait_for_disk(engine, job)) continue;
        describe_job(engine, &decisions[count], job, &pools);
        if (lacks_place(job, &decisions[count], &pools) && await_place(engine, job)) forget_disk(job);
        else waiting[count++] = job;
    }
    if (count > 0) gs_schedule_decide(decisions, count, pools.free, pools.total);
    for (size_t i = 0; i < count; i++) {
        if (decisions[i].wait == GS_WAIT_NONE && waits_for_place(engine, waiting[i], &decisions[i], pools.free)) {
            forget_disk(waiting[i]);
        } else if (decisions[i].wait == GS_WAIT_NONE) {
            launch_job(engine, waiting[i], &decisions[i], pools.free);
            pools.free = count_slots(engine).free;
        } else {
            forget_disk(waiting[i]);
            explain_wait(engine, waiting[i], &decisions[i], waiting, &pools);
            give_up_waiting(engine, waiting[i]);
        }
    }
    gs_u64_map_release(&there);
    free(waiting);
    free(decisions);
}
