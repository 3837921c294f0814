#include "coordinator/engine/runs/agents.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/engine/base/moves.h"
#include "coordinator/engine/base/old_copy.h"
#include "coordinator/engine/base/orders.h"
#include "coordinator/engine/base/checkpoints.h"
#include "coordinator/engine/base/places.h"
#include "coordinator/engine/runs/absence.h"
#include "coordinator/engine/runs/run_life.h"
#include "coordinator/engine/runs/witness.h"
#include "core/clock.h"

static void show_worker(gs_engine *engine, gs_agent *agent, const char *state) {
    gs_effect *effect = gs_mind_do(engine, GS_DO_SHOW_WORKER);
    effect->agent = agent;
    effect->worker_state = state;
}

void gs_agent_stream_gone(gs_engine *engine, gs_agent *agent, bool was_closed) {
    agent->was_closed = was_closed;
    agent->lost_ns = agent->gone_ns = engine->state.now_ns;
    gs_mind_log(engine, GS_SEVERITY_WARNING, "worker disconnected", "worker=%s", agent->name);
}

// That has begun: of one that is not recorded, who has ended meanwhile is seen when it is.
static gs_run *run_of(const gs_job *job) { return gs_job_is_unrecorded(job) ? NULL : job->run; }

// None of its ranks can tell of a step, and people are not told so.
static bool is_unexplained(const gs_run *run) {
    if (!run || run->phase != GS_RUN_TRAINING || run->job->state != GS_JOB_RUNNING) return false;
    for (int i = 0; i < run->num_members; i++)
        if (run->members[i].stream.call) return false;
    return true;
}

// Who lives with each agent: all at once, for many agents may be away, and ranks are many more.
static void count_members(gs_engine *engine) {
    const gs_agent_table *agents = &engine->state.agents;
    const gs_job_table *jobs = &engine->state.jobs;
    for (size_t i = 0; i < agents->count; i++) agents->items[i]->on = (gs_agent_members){0};
    for (size_t i = 0; i < jobs->count; i++) {
        const gs_run *run = jobs->items[i]->run;
        bool unexplained = is_unexplained(run_of(jobs->items[i]));
        for (int m = 0; run && m < run->num_members; m++) {
            const gs_member *member = &run->members[m];
            gs_agent *agent = member->stage == GS_MEMBER_EXITED ? NULL : gs_agent_table_find(agents, member->worker);
            if (!agent) continue;
            agent->on.count++;
            agent->on.closed += !member->stream.call && (member->stream_closed || member->stage == GS_MEMBER_LAUNCHED);
            agent->on.unexplained += unexplained;
        }
    }
}

// Trainers end with their agent. But an agent that is not heard may be well, and so may one whose connections were
// closed: a network closes them, too, before it is cut.
static bool looks_dead(const gs_agent *agent) { return agent->was_closed && agent->on.closed == agent->on.count; }

// Another rank of it, or who can end that one.
static bool is_within_reach(const gs_engine *engine, const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        if (member->stage == GS_MEMBER_EXITED) continue;
        const gs_agent *agent = gs_agent_table_find(&engine->state.agents, member->worker);
        if (member->stream.call || (agent && gs_agent_is_connected(agent))) return true;
    }
    return false;
}

// A witness may be wrong, and what the others are told may not reach them: they all may train on until one of them has left.
static void end_without(gs_engine *engine, const gs_agent *agent, gs_run *run) {
    if (run->phase >= GS_RUN_SETTLING || run->job->state == GS_JOB_STOPPING) return;
    int rank = 0;
    while (rank < run->num_members && !gs_agent_has(agent, &run->members[rank])) rank++;
    if (rank == run->num_members) return;
    gs_blame blame = {.kind = GS_FAILURE_LOST, .member = &run->members[rank], .reason = "WorkerLost", .fault = GS_FAULT_PEER_LOST};
    gs_run_fail(engine, run, &blame, "rank %d was lost with worker %s", rank, agent->name);
}

// Whose connections were closed with their agent's: those whose set takes no step any more, whether they live or not;
// all of them where their host has a witness, but for those of which the disk will tell, or others who end their set. True: there
// were some.
static bool give_up_members(gs_engine *engine, const gs_agent *agent) {
    if (agent->on.count == 0 || !looks_dead(agent)) return false;
    bool found = false;
    bool are_dead = gs_witness_of_end(engine, agent);
    const gs_job_table *jobs = &engine->state.jobs;
    for (size_t i = 0; i < jobs->count; i++) {
        gs_run *run = run_of(jobs->items[i]);
        bool is_over = run && gs_run_is_broken(run);
        if (!run || (!is_over && (!are_dead || gs_absence_is_told(engine, run)))) continue;
        if (!is_over && is_within_reach(engine, run)) {
            end_without(engine, agent, run);
            continue;
        }
        for (int m = 0; m < run->num_members; m++) {
            gs_member *member = &run->members[m];
            if (!gs_agent_has(agent, member)) continue;
            gs_member_exited(engine, member, -1, 0, NULL);
            found = true;
        }
    }
    return found;
}

// They have ended, or cannot say that they train. `is_first`: their worker is missed since now, and ranks of others may be heard.
// A network closes connections one by one, so that who is still heard tells of steps meanwhile: of a set of which nobody is
// heard it is said whenever that is.
static void explain_absence(gs_engine *engine, const gs_agent *agent, bool is_first) {
    const gs_job_table *jobs = &engine->state.jobs;
    if ((!is_first && agent->on.unexplained == 0) || !looks_dead(agent)) return;
    bool has_witness = gs_witness_of_end(engine, agent);
    for (size_t i = 0; i < jobs->count; i++) {
        const gs_run *run = run_of(jobs->items[i]);
        bool stands = run && is_first && run->phase == GS_RUN_TRAINING && jobs->items[i]->state == GS_JOB_RUNNING &&
                      run->progress_ns <= agent->lost_ns;
        if ((!stands && !is_unexplained(run)) || (has_witness && !gs_absence_is_told(engine, run))) continue;
        int count = 0;
        for (int m = 0; m < run->num_members; m++)
            count += gs_agent_has(agent, &run->members[m]);
        if (count == 0) continue;
        gs_job_move(engine, jobs->items[i], GS_JOB_RECOVERING, "WorkerGone",
                    "worker %s is gone with its %d ranks, or cut off%s: the job goes on when it is back, or another worker of "
                    "its host (%s) is there, or after %lld s; `gradsync release` says that they are dead",
                    agent->name, count, agent->looks_out ? ", as some looks into its checkpoint directory will tell" : "", agent->host,
                    (long long)(run->orphan_ns / GS_NS_PER_SEC));
    }
}

static bool has_unknown(const gs_agent *agent) {
    for (int i = 0; i < agent->num_slots; i++)
        if (agent->slots[i].is_unknown) return true;
    return false;
}

// Of a GPU that both see: who trains on it has it, and else who had it.
static void share_devices(gs_agent *agent, gs_agent *other) {
    gs_agent_devices *own = &agent->devices, *theirs = &other->devices;
    for (int i = 0; i < own->count; i++) {
        int there = gs_agent_devices_find(theirs, own->items[i].uuid);
        if (there < 0 || theirs->items[there].is_taken) continue;
        if (gs_agent_slot_is_busy(agent, i / own->per_slot) &&
            !gs_agent_slot_is_busy(other, there / theirs->per_slot))
            gs_agent_devices_leave(theirs, there, agent->name);
        else
            gs_agent_devices_leave(own, i, other->name);
    }
}

// Two workers of one host may see the same GPUs. Who is away for a moment keeps its own.
static void claim_devices(gs_engine *engine, gs_agent *agent) {
    const gs_agent_table *agents = &engine->state.agents;
    for (int i = 0; i < agent->devices.count; i++) agent->devices.items[i].is_taken = false;
    for (size_t i = 0; i < agents->count; i++) {
        gs_agent *other = agents->items[i];
        if (other != agent && other->devices.count > 0) share_devices(agent, other);
    }
}

// After a worker has gone, or has come back with other GPUs.
static void claim_left_devices(gs_engine *engine) {
    const gs_agent_table *agents = &engine->state.agents;
    for (size_t i = 0; i < agents->count; i++) {
        gs_agent *agent = agents->items[i];
        bool lacks = false;
        for (int d = 0; d < agent->devices.count; d++) lacks |= agent->devices.items[d].is_taken;
        if (lacks) claim_devices(engine, agent);
    }
}

static void lose_agent(gs_engine *engine, gs_agent *agent) {
    gs_agent_table_unlink(&engine->state.agents, agent);
    if (agent->devices.count > 0) claim_left_devices(engine);
    engine->state.schedule_needed = true;
    gs_mind_bury(engine, agent, (void (*)(void *))gs_agent_destroy);
}

static void tell_lost(gs_engine *engine, gs_agent *agent) {
    if (agent->told_lost) return;
    agent->told_lost = true;
    gs_note_add(engine, NULL, NULL, GS_SEVERITY_WARNING, "WorkerLost", "worker %s on %s is %s", agent->name,
                agent->host, agent->was_closed ? "gone" : "silent");
    show_worker(engine, agent, "lost");
}

// With nothing on it that may still run.
static bool is_lost(const gs_engine *engine, const gs_agent *agent) {
    bool may_return = engine->state.now_ns - agent->lost_ns < engine->state.timing.orphan_ns;
    return agent->on.count == 0 && !(may_return && has_unknown(agent));
}

void gs_agents_tick(gs_engine *engine) {
    const gs_agent_table *agents = &engine->state.agents;
    bool are_counted = false;
    for (size_t i = 0; i < agents->count; i++) {
        gs_agent *agent = agents->items[i];
        if (gs_agent_is_connected(agent) ||
            engine->state.now_ns - agent->lost_ns < engine->state.timing.agent_dead_ns)
            continue;
        if (!are_counted) count_members(engine);
        are_counted = true;
        bool is_first = !agent->told_lost;
        tell_lost(engine, agent);
        explain_absence(engine, agent, is_first);
        if (give_up_members(engine, agent)) count_members(engine);
        if (!is_lost(engine, agent)) continue;
        lose_agent(engine, agent);
        i--;
    }
}

// Of another coordinator, or of a database that is lost: nobody here can say that it should end.
static void leave_alone(gs_engine *engine, const gs_agent *agent, int index) {
    const gs_agent_slot *slot = &agent->slots[index];
    char job[GS_JOB_ID_LEN];
    gs_job_id_format(job, slot->job);
    gs_mind_log(engine, GS_SEVERITY_WARNING, "trainer of an unknown job",
                "worker=%s slot=%d job=%s rank=%d pid=%lld", agent->name, index, job, slot->rank,
                (long long)slot->pid);
    gs_note_add(engine, NULL, NULL, GS_SEVERITY_WARNING, "UnknownTrainer",
                "worker %s slot %d runs rank %d of job %s, which is not known here: it is left alone "
                "and keeps the slot; is this the right data directory?",
                agent->name, index, slot->rank, job);
}

static bool is_unknown(const gs_engine *engine, const gs_running_trainer *running) {
    const gs_job_table *jobs = &engine->state.jobs;
    bool names_cluster = running->cluster && *running->cluster;
    const gs_job *job = gs_job_table_get(jobs, running->job);
    if (job && gs_job_is_unrecorded(job)) return true;
    if (gs_job_is_of_other(job, &engine->state.cluster, running->cluster)) return true;
    return !job && !gs_job_table_is_gone(jobs, running->job, names_cluster);
}

// It has ranks of the job, or had some in its last run.
static bool had_ranks(const gs_job *job, const char *worker) {
    for (int i = 0; job->run && i < job->run->num_members; i++)
        if (strcmp(job->run->members[i].worker, worker) == 0) return true;
    return gs_job_had_worker(job, worker);
}

// Whose rank another cluster has adopted: of its last generation, or of one that was formed there since. Where keys are shown a
// worker says so of what it has, or had: what any other one says would end any job.
static gs_job *job_of_adopted(const gs_engine *engine, const gs_agent *agent, const gs_principal *principal,
                              const gs_running_trainer *running) {
    gs_job *job = gs_job_table_get(&engine->state.jobs, running->job);
    if (!job || gs_job_is_unrecorded(job) || gs_job_state_terminal(job->state)) return NULL;
    const gs_member *member = gs_state_member(&engine->state, running->incarnation);
    if (member && member->job == job && member->stage != GS_MEMBER_EXITED)
        return !principal->is_known || gs_agent_has(agent, member) ? job : NULL;
    if (!job->generation || running->generation < job->generation) return NULL;
    return !principal->is_known || had_ranks(job, agent->name) ? job : NULL;
}

// The job is theirs now: its ranks train on there. None of them is ended, and no other set is started.
static void give_away(gs_engine *engine, gs_job *job, const gs_running_trainer *running) {
    gs_run *run = job->run;
    job->stop_asked = true;
    job->stop_outcome = GS_JOB_CANCELLED;
    snprintf(job->stop_reason, sizeof job->stop_reason, "AdoptedElsewhere");
    if (!run) {
        gs_job_end(engine, job, GS_JOB_CANCELLED, "AdoptedElsewhere", "cluster %.23s has adopted its ranks: they train on there",
                   running->cluster);
        return;
    }
    if (job->state != GS_JOB_STOPPING)
        gs_job_move(engine, job, GS_JOB_STOPPING, "AdoptedElsewhere",
                    "cluster %.23s has adopted its ranks: they train on there", running->cluster);
    if (!run->generation || run->generation > running->generation) {  // another set, begun before this was known
        gs_run_kill(engine, run, 0);
        return;
    }
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].stage != GS_MEMBER_EXITED) gs_member_exited(engine, &run->members[i], -1, 0, NULL);
    }
}

static void note_unknown(gs_engine *engine, gs_agent *agent, const gs_principal *principal, const gs_running_trainer *running) {
    gs_job *job = job_of_adopted(engine, agent, principal, running);
    if (job) give_away(engine, job, running);
    leave_alone(engine, agent, (int)running->slot);
}

// The line of its host was away: its silence begins anew, and that of the others where no rank is there to tell of their steps.
static void begin_silence(const gs_engine *engine, gs_run *run, gs_member *member) {
    member->heard_ns = engine->state.now_ns;
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].stream.call) return;
    }
    for (int i = 0; i < run->num_members; i++) run->members[i].heard_ns = engine->state.now_ns;
}

// Another generation of its job has begun: its directory is closed to what it would save, and until then it would take steps.
static bool has_successors(const gs_engine *engine, const gs_running_trainer *running) {
    const gs_job *job = gs_job_table_get(&engine->state.jobs, running->job);
    return job && running->generation && running->generation < job->generation;
}

// It was started, and a life of the coordinator ended before it had a place in a generation: it has nothing to save, and may stand
// on its way to its Hello for as long as it likes. Of workers that tell no cluster nobody knows.
static bool has_never_trained(const gs_running_trainer *running) {
    return running->cluster && *running->cluster && !running->generation && running->step <= 0;
}

static void adopt_trainer(gs_engine *engine, gs_agent *agent, const gs_principal *principal, const gs_running_trainer *running) {
    if (running->slot < 0 || running->slot >= agent->num_slots) return;
    gs_agent_slot *slot = &agent->slots[running->slot];
    *slot = (gs_agent_slot){.incarnation = running->incarnation,
                            .job = running->job,
                            .is_unknown = is_unknown(engine, running),
                            .rank = running->rank,
                            .world_size = running->world_size,
                            .generation = running->generation,
                            .step = running->step,
                            .since_ms = engine->state.wall_ms,
                            .pid = running->pid};
    snprintf(slot->cluster, sizeof slot->cluster, "%s", running->cluster ? running->cluster : "");
    if (slot->is_unknown) {
        note_unknown(engine, agent, principal, running);
        return;
    }
    // It was told when it was adopted, and may not have heard it.
    if (gs_cluster_is_other(&engine->state.cluster, slot->cluster)) gs_order_adopt_slot(engine, agent, (int)running->slot);
    gs_member *member = gs_state_member(&engine->state, running->incarnation);
    if (member && principal->is_known && !gs_agent_has(agent, member)) member = NULL;  // another worker's: nothing here is said of it
    bool is_over = !member || member->stage == GS_MEMBER_EXITED;
    if (is_over || member->kill_sent) {
        // What was ours and is not any more is asked to save and end.
        bool may_save = is_over && !has_successors(engine, running) && !has_never_trained(running);
        gs_order_stop_slot(engine, agent, (int)running->slot, running->incarnation, !may_save,
                           may_save ? gs_seconds_of(engine->state.timing.save_ns) : 0);
        return;
    }
    gs_run *run = member->job->run;
    begin_silence(engine, run, member);
    if (run->phase == GS_RUN_RELOADING && run->phase_deadline_ns)
        run->phase_deadline_ns = engine->state.now_ns + engine->state.timing.agent_grace_ns;
}

// What should run there and does not has ended unseen.
static void notice_missing(gs_engine *engine, const gs_agent *agent) {
    const gs_job_table *jobs = &engine->state.jobs;
    for (size_t i = 0; i < jobs->count; i++) {
        gs_run *run = run_of(jobs->items[i]);
        for (int m = 0; run && m < run->num_members; m++) {
            gs_member *member = &run->members[m];
            if (!gs_agent_has(agent, member)) continue;
            if (gs_agent_holds(agent, member)) continue;
            gs_member_exited(engine, member, -1, 0, NULL);
        }
    }
}

static gs_status out_of_memory(void) { return gs_error(GS_RESOURCE_EXHAUSTED, "agent: out of memory"); }

// The agent that says hello, known or new, with its slots empty; takes the devices.
static gs_status welcome_agent(gs_engine *engine, gs_agent **out, gs_agent_hello *hello, uint64_t incarnation) {
    gs_agent_table *agents = &engine->state.agents;
    gs_agent *agent = gs_agent_table_find(agents, hello->worker);
    if (agent && gs_agent_is_connected(agent) && agent->incarnation != incarnation) {
        return gs_error(GS_ALREADY_EXISTS, "worker \"%s\" is connected already (pid %lld on %s)", hello->worker,
                        (long long)agent->pid, agent->host);
    }
    gs_agent_slot *slots = calloc((size_t)hello->num_slots, sizeof *slots);
    bool is_new = !agent;
    if (slots && is_new) agent = gs_agent_table_add(agents, hello->worker);
    if (!slots || !agent) {
        free(slots);
        return out_of_memory();
    }
    if (agent->incarnation != incarnation) agent->place = GS_PLACE_UNKNOWN;  // another process, which may see another directory
    if (!gs_agent_table_rename(agents, agent, incarnation)) {
        free(slots);
        if (is_new) {
            gs_agent_table_unlink(agents, agent);
            gs_agent_destroy(agent);
        }
        return out_of_memory();
    }
    free(agent->slots);
    agent->slots = slots;
    agent->num_slots = hello->num_slots;
    gs_agent_devices_release(&agent->devices);
    agent->devices = hello->devices;
    hello->devices = (gs_agent_devices){0};
    snprintf(agent->host, sizeof agent->host, "%s", hello->host);
    snprintf(agent->boot_id, sizeof agent->boot_id, "%s", hello->boot_id);
    snprintf(agent->network, sizeof agent->network, "%s", hello->network ? hello->network : "");
    snprintf(agent->build, sizeof agent->build, "%s", hello->build);
    snprintf(agent->data_root, sizeof agent->data_root, "%s", hello->data_root);
    agent->pid = hello->pid;
    agent->cores = hello->cores;
    *out = agent;
    return gs_ok();
}

void gs_on_agent_hello(gs_engine *engine, gs_engine_event *event) {
    gs_agent_hello *hello = &event->agent_hello;
    gs_agent *agent = NULL;
    gs_status status = hello->refusal;
    if (!status.code) status = gs_old_copy_ask_worker(engine, &hello->seen, hello->worker);
    if (!status.code) status = gs_old_copy_ask_running(engine, hello, event->from.who.principal.is_known);
    bool known = !status.code && gs_agent_table_find(&engine->state.agents, hello->worker);
    if (!status.code) status = welcome_agent(engine, &agent, hello, event->from.who.incarnation);
    if (status.code) {
        gs_end_stream(engine, event->from.call, status);
        return;
    }
    event->was_admitted = true;
    gs_end_stream(engine, gs_kept_take(engine, &agent->stream), gs_error(GS_ABORTED, "said hello again"));
    gs_kept_set(engine, &agent->stream, event->from.call, GS_CALL_AGENT_STREAM, agent);
    agent->was_closed = agent->told_lost = false;
    agent->seen_epoch = gs_cluster_epoch_of(&engine->state.cluster, &hello->seen);
    agent->is_leaving = hello->is_leaving;
    agent->takes_cadence = hello->takes_cadence;
    agent->looks_out = hello->looks_out;
    agent->shows_tokens = hello->shows_tokens;
    gs_place_await(engine, agent, hello->tells_place);
    agent->heard_ns = agent->connected_ns = engine->state.now_ns;
    for (size_t i = 0; i < hello->num_running; i++) adopt_trainer(engine, agent, &event->from.who.principal, &hello->running[i]);
    gs_tell_agent_welcome(engine, agent);  // last: who is told neither to kill a trainer nor to stop it lets it go on
    notice_missing(engine, agent);
    claim_devices(engine, agent);
    claim_left_devices(engine);
    if (!known) {
        gs_note_add(engine, NULL, NULL, GS_SEVERITY_INFO, "WorkerJoined",
                    "worker %s on %s offers %d slots, %d with a GPU", agent->name, agent->host,
                    agent->num_slots, gs_agent_all_slots(agent).gpu);
    }
    show_worker(engine, agent, "idle");
    engine->state.schedule_needed = true;
}

void gs_on_agent_heartbeat(gs_engine *engine, const gs_engine_event *event) {
    gs_agent *agent = gs_agent_table_of_incarnation(&engine->state.agents, event->from.who.incarnation);
    if (!agent) return;
    agent->heard_ns = engine->state.now_ns;
    agent->heartbeat_ns = agent->told_heartbeat_ns;
    agent->is_leaving |= event->agent_heartbeat.is_leaving;
    gs_place_take(engine, agent, event->agent_heartbeat.place);
}

// Of a set that is over: it was asked to save, and could tell nobody.
static void look_for_saves(gs_engine *engine, const gs_agent_slot *slot) {
    gs_job *job = slot->is_unknown ? NULL : gs_job_table_get(&engine->state.jobs, slot->job);
    if (!job || gs_state_member(&engine->state, slot->incarnation) || gs_job_state_terminal(job->state)) return;
    gs_checkpoints_find_more(engine, job);
}

void gs_on_exited(gs_engine *engine, gs_engine_event *event) {
    gs_exit_report *exit = &event->exited;
    if (exit->refusal.code) {
        gs_reply_error(engine, event->from.call, exit->refusal);
        return;
    }
    gs_agent *agent = gs_agent_table_of_incarnation(&engine->state.agents, event->from.who.incarnation);
    gs_member *member = gs_state_member(&engine->state, exit->incarnation);
    for (int i = 0; agent && i < agent->num_slots; i++) {
        if (agent->slots[i].incarnation != exit->incarnation) continue;
        look_for_saves(engine, &agent->slots[i]);
        agent->slots[i] = (gs_agent_slot){0};
    }
    engine->state.schedule_needed = true;
    if (member && member->stage != GS_MEMBER_EXITED) {
        gs_member_exited(engine, member, exit->exit_code, exit->signal, exit->log_tail);
        exit->log_tail = NULL;
    }
    event->was_admitted = true;
    gs_reply_ok(engine, event->from.call);
}
