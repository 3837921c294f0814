#include "coordinator/engine/adoption.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/engine/base/checkpoints.h"
#include "coordinator/engine/base/generations.h"
#include "coordinator/engine/base/late_answers.h"
#include "coordinator/engine/base/moves.h"
#include "coordinator/engine/base/orders.h"
#include "coordinator/engine/runs/run_life.h"
#include "coordinator/model/memory.h"
#include "core/clock.h"

#define ASK_AGAIN_NS GS_NS_PER_SEC
#define MAX_ADOPTIONS 64  // at a time

typedef struct described_rank {
    char worker[64];
    bool is_on_gpu;
    gs_running_trainer running;
    uint64_t launch_token;
    bool shows_token;
} described_rank;

struct gs_adoption {
    uint64_t job;
    gs_kept_call held;
    int64_t asked_ns, deadline_ns;  // behind it what has been described must do
    char cluster[GS_CLUSTER_NAME_LEN];  // whose they are; "": nobody but this one has been named
    char written_as[GS_CLUSTER_NAME_LEN];  // who had started those of the newest generation; "": not told
    char spec_digest[GS_DIGEST_TEXT_LEN];
    gs_job_spec *spec;      // owned; NULL: nobody has described it yet
    described_rank *ranks;  // owned
    uint32_t last_generation;  // that any of their coordinators is known to have given out before it started them
    size_t num_ranks, max_ranks;
    struct gs_adoption *next;
};

static void release(void *what) {
    gs_adoption *adoption = what;
    free(adoption->spec);
    free(adoption->ranks);
    free(adoption);
}

void gs_adoptions_release(gs_engine *engine) {
    while (engine->adoptions) {
        gs_adoption *adoption = engine->adoptions;
        engine->adoptions = adoption->next;
        release(adoption);
    }
}

static gs_adoption *find(const gs_engine *engine, uint64_t job) {
    gs_adoption *adoption = engine->adoptions;
    while (adoption && adoption->job != job) adoption = adoption->next;
    return adoption;
}

// The call is the caller's to answer.
static gs_call take(gs_engine *engine, gs_adoption *adoption) {
    gs_adoption **link = &engine->adoptions;
    while (*link != adoption) link = &(*link)->next;
    *link = adoption->next;
    gs_mind_bury(engine, adoption, release);
    return gs_kept_take(engine, &adoption->held);
}

static void refuse(gs_engine *engine, gs_adoption *adoption, gs_status status, const char *code, const char *hint) {
    char job[GS_JOB_ID_LEN];
    gs_job_id_format(job, adoption->job);
    gs_note_add(engine, NULL, NULL, GS_SEVERITY_WARNING, "NotAdopted", "job %s: %s", job, status.message);
    gs_reply_refusal(engine, take(engine, adoption), status, code, hint);
}

static bool is_of(const gs_agent_slot *slot, uint64_t job) { return slot->is_unknown && slot->job == job; }

static described_rank *find_rank(const gs_adoption *adoption, uint64_t incarnation) {
    for (size_t i = 0; i < adoption->num_ranks; i++) {
        if (adoption->ranks[i].running.incarnation == incarnation) return &adoption->ranks[i];
    }
    return NULL;
}

// Nothing else is to be heard of it. One whose communicator is not up yet may say soon that it is.
static bool is_described(const gs_adoption *adoption, uint64_t incarnation) {
    const described_rank *rank = find_rank(adoption, incarnation);
    return rank && rank->running.membership != GS_MEMBERSHIP_FORMS;
}

// Together with the others it can take a step. Who doesn't say where it stands is judged by its steps.
static bool can_train(const described_rank *rank) {
    gs_membership is = rank->running.membership;
    return is == GS_MEMBERSHIP_UNTOLD || is == GS_MEMBERSHIP_WAITS || is == GS_MEMBERSHIP_TRAINS;
}

// All that are there and have not said it yet. How many trainers of it there are.
static int ask(gs_engine *engine, gs_adoption *adoption) {
    int count = 0;
    adoption->asked_ns = engine->state.now_ns;
    for (size_t i = 0; i < engine->state.agents.count; i++) {
        gs_agent *agent = engine->state.agents.items[i];
        for (int slot = 0; gs_agent_is_connected(agent) && slot < agent->num_slots; slot++) {
            if (!is_of(&agent->slots[slot], adoption->job)) continue;
            count++;
            if (!is_described(adoption, agent->slots[slot].incarnation)) gs_order_describe_slot(engine, agent, slot);
        }
    }
    return count;
}

// Its slot still holds it.
static gs_agent *agent_of(const gs_engine *engine, const described_rank *rank) {
    gs_agent *agent = gs_agent_table_find(&engine->state.agents, rank->worker);
    bool holds = agent && gs_agent_is_connected(agent) && rank->running.slot < agent->num_slots &&
                 agent->slots[rank->running.slot].incarnation == rank->running.incarnation;
    return holds ? agent : NULL;
}

static uint32_t newest_generation(const gs_adoption *adoption) {
    uint32_t newest = 0;
    for (size_t i = 0; i < adoption->num_ranks; i++) {
        if (adoption->ranks[i].running.generation > newest) newest = adoption->ranks[i].running.generation;
    }
    return newest;
}

// By rank; NULL: not all ranks of that generation are there and in their communicator. The caller frees it.
static described_rank **whole_world(const gs_engine *engine, const gs_adoption *adoption, int *world_size) {
    uint32_t generation = newest_generation(adoption);
    *world_size = 0;
    for (size_t i = 0; i < adoption->num_ranks; i++) {
        const gs_running_trainer *running = &adoption->ranks[i].running;
        if (running->generation == generation && running->world_size > *world_size) *world_size = running->world_size;
    }
    if (!generation || *world_size < 1 || (size_t)*world_size > adoption->num_ranks) return NULL;
    described_rank **world = gs_model_alloc((size_t)*world_size, sizeof *world);
    int found = 0;
    for (size_t i = 0; i < adoption->num_ranks; i++) {
        described_rank *rank = &adoption->ranks[i];
        int at = rank->running.rank;
        if (rank->running.generation != generation || at < 0 || at >= *world_size || world[at] || !can_train(rank) ||
            !agent_of(engine, rank))
            continue;
        world[at] = rank;
        found++;
    }
    if (found == *world_size) return world;
    free(world);
    return NULL;
}

static void make_member(gs_engine *engine, gs_member *member, const described_rank *rank) {
    const gs_running_trainer *running = &rank->running;
    gs_agent *agent = agent_of(engine, rank);
    snprintf(member->worker, sizeof member->worker, "%s", agent->name);
    snprintf(member->host, sizeof member->host, "%s", agent->host);
    snprintf(member->boot_id, sizeof member->boot_id, "%s", agent->boot_id);
    member->is_on_gpu = rank->is_on_gpu;
    member->slot = (int)running->slot;
    member->rank = running->rank;
    member->pid = running->pid;
    member->incarnation = running->incarnation;
    member->launch_token = rank->launch_token;
    member->shows_token = rank->shows_token;
    member->stage = GS_MEMBER_UP;
    member->was_up = true;
    member->applied_step = running->step;
}

// As after a restart of the coordinator: its ranks have gone on, and check in, as soon as they may.
static void make_run(gs_engine *engine, gs_job *job, described_rank **world, int world_size) {
    int64_t now_ns = engine->state.now_ns;
    gs_run *run = gs_run_create(job, world_size, now_ns);
    job->run = run;
    for (int i = 0; i < world_size; i++) {
        make_member(engine, &run->members[i], world[i]);
        if (world[i]->running.step > run->step) run->step = world[i]->running.step;
    }
    // What its ranks were told elsewhere is not known before they are here: as long as most are, or longer.
    int64_t limit_ns = engine->state.timing.orphan_ns, usual_ns = gs_timing_default.orphan_ns;
    run->orphan_ns = run->told_orphan_ns = limit_ns > usual_ns ? limit_ns : usual_ns;
    run->phase = GS_RUN_RELOADING;
    run->generation = job->generation;
    run->base_step = run->step;
    run->step_before = job->step;  // ranks of earlier generations that are there still may have come further
    run->has_trained = true;
    run->begun_ns = run->phase_since_ns = run->progress_ns = now_ns;
}

// Ranks that have no number yet may follow others of the job that had one, and have left a fence.
static bool leap(gs_engine *engine, const gs_adoption *adoption, gs_job *job) {
    uint32_t used = job->generation > adoption->last_generation ? job->generation : adoption->last_generation;
    return gs_generations_leap(engine, used, &job->least_generation);
}

static gs_job *make_job(gs_engine *engine, gs_adoption *adoption) {
    gs_job *job = gs_job_create(adoption->job, adoption->spec);
    if (!job) return NULL;
    job->created_ms = job->started_ms = job->state_since_ms = job->waiting_since_ms = engine->state.wall_ms;
    job->waiting_since_ns = job->aged_ns = engine->state.now_ns;
    job->generation = job->begun_generation = newest_generation(adoption);
    snprintf(job->adopted_from, sizeof job->adopted_from, "%s", adoption->cluster);
    if (strcmp(adoption->written_as, adoption->cluster) != 0) snprintf(job->written_as, sizeof job->written_as, "%s", adoption->written_as);
    for (size_t i = 0; i < adoption->num_ranks; i++) {
        if (adoption->ranks[i].running.step > job->step) job->step = adoption->ranks[i].running.step;
    }
    job->adopted_step = job->step;
    job->committed = job->step > 0;
    job->held_back = true;  // neither scheduled nor told of before it is durable
    return job;
}

// Those of the run train on; all others save and end.
static void claim_slots(gs_engine *engine, const gs_job *job) {
    double grace_seconds = gs_seconds_of(engine->state.timing.save_ns);
    for (size_t i = 0; i < engine->state.agents.count; i++) {
        gs_agent *agent = engine->state.agents.items[i];
        for (int k = 0; k < agent->num_slots; k++) {
            gs_agent_slot *slot = &agent->slots[k];
            if (!is_of(slot, job->id)) continue;
            slot->is_unknown = false;
            gs_order_adopt_slot(engine, agent, k);
            if (!gs_state_member(&engine->state, slot->incarnation))
                gs_order_stop_slot(engine, agent, k, slot->incarnation, false, grace_seconds);
        }
    }
}

// Not in its slot any more, or with its worker: seen while nobody listened for it.
static bool has_left(const gs_engine *engine, const gs_member *member) {
    const gs_agent *agent = gs_agent_table_find(&engine->state.agents, member->worker);
    return !agent || (gs_agent_is_connected(agent) && !gs_agent_holds(agent, member));
}

static void begin_run(gs_engine *engine, gs_run *run) {
    int64_t now_ns = engine->state.now_ns;
    run->begun_ns = run->phase_since_ns = run->progress_ns = now_ns;
    run->phase_deadline_ns = now_ns + engine->state.timing.agent_grace_ns;
    for (int i = 0; i < run->num_members; i++) {
        run->members[i].heard_ns = now_ns;
        if (!gs_u64_map_set(&engine->state.members, run->members[i].incarnation, &run->members[i])) abort();
    }
}

static gs_status going_down(void) { return gs_error(GS_UNAVAILABLE, "the coordinator is going down"); }

gs_status gs_adoption_stored(gs_engine *engine, gs_job *job) {
    if (engine->state.cluster.is_old_copy) return going_down();  // nobody is commanded from here
    job->held_back = false;
    gs_run *run = job->run;
    if (run) begin_run(engine, run);
    claim_slots(engine, job);
    for (int i = 0; run && i < run->num_members; i++)
        if (has_left(engine, &run->members[i])) gs_member_exited(engine, &run->members[i], -1, 0, NULL);
    gs_checkpoints_find_more(engine, job);
    engine->state.schedule_needed = true;
    return gs_ok();
}

static void adopt(gs_engine *engine, gs_adoption *adoption, described_rank **world, int world_size) {
    gs_job *job = make_job(engine, adoption);
    if (!job || !leap(engine, adoption, job)) {
        gs_job_destroy(job);
        refuse(engine, adoption, gs_error(GS_RESOURCE_EXHAUSTED, "adopt: no memory or no generations are left"), NULL, NULL);
        return;
    }
    gs_call call = take(engine, adoption);
    const gs_late_answer *answer = gs_late_answer_add(engine, GS_LATE_ADOPT, call, job);
    gs_job_table_add(&engine->state.jobs, job);
    gs_mind_do(engine, GS_DO_ADD_JOB)->job = job;
    gs_job_move(engine, job, GS_JOB_QUEUED, "Adopted",
                world ? "all ranks of generation %u are here at step %lld" : "of generation %u, at step %lld, not all ranks are here and in their communicator",
                job->generation, (long long)job->step);
    if (world) {
        job->world_size = world_size;
        make_run(engine, job, world, world_size);
        gs_job_move(engine, job, job->committed ? GS_JOB_RECOVERING : GS_JOB_STARTING, "Adopted",
                    "its %d ranks train on, and check in", world_size);
    }
    gs_job_write(engine, job)->ticket = answer->ticket;
}

static bool is_going_down(const gs_engine *engine) {
    return engine->state.cluster.is_old_copy || engine->state.draining;
}

// It is known here: the same answer, once that is durable.
static void answer_again(gs_engine *engine, gs_call call, gs_job *job) {
    if (job->held_back) {
        gs_reply_refusal(engine, call, gs_error(GS_FAILED_PRECONDITION, "job %s is not recorded yet, or is being deleted", job->id_text),
                         "in_flight", "ask again in a moment");
        return;
    }
    gs_late_answer *answer = gs_late_answer_add(engine, GS_LATE_ADOPT_AGAIN, call, job);
    answer->shows_end = gs_job_state_terminal(job->state);
    gs_job_write(engine, job)->ticket = answer->ticket;
}

// False: it has been refused.
static bool may_adopt(gs_engine *engine, gs_adoption *adoption) {
    gs_job *job = gs_job_table_get(&engine->state.jobs, adoption->job);
    if (job) {  // meanwhile
        answer_again(engine, take(engine, adoption), job);
        return false;
    }
    if (is_going_down(engine)) {
        refuse(engine, adoption, going_down(), NULL, NULL);
        return false;
    }
    const gs_job *other = gs_job_table_live_name(&engine->state.jobs, adoption->spec->name);
    if (!other) return true;
    refuse(engine, adoption, gs_error(GS_ALREADY_EXISTS, "job %s is called \"%s\", too", other->id_text, adoption->spec->name),
           "conflict", "stop that job, or wait for its end; the trainers go on meanwhile");
    return false;
}

static void try_to_adopt(gs_engine *engine, gs_adoption *adoption) {
    bool is_late = engine->state.now_ns >= adoption->deadline_ns;
    if (!adoption->num_ranks) {
        if (is_late)
            refuse(engine, adoption, gs_error(GS_UNAVAILABLE, "no worker has said what it runs"), NULL, NULL);
        return;
    }
    int world_size = 0;
    described_rank **world = whole_world(engine, adoption, &world_size);
    if ((world || is_late) && may_adopt(engine, adoption)) adopt(engine, adoption, world, world_size);
    free(world);
}

void gs_adoptions_skip(gs_engine *engine, int64_t skipped_ns) {
    for (gs_adoption *adoption = engine->adoptions; adoption; adoption = adoption->next) adoption->deadline_ns += skipped_ns;
}

void gs_adoptions_tick(gs_engine *engine) {
    for (gs_adoption *adoption = engine->adoptions, *next; adoption; adoption = next) {
        next = adoption->next;
        if (engine->state.now_ns - adoption->asked_ns >= ASK_AGAIN_NS) ask(engine, adoption);
        if (engine->state.now_ns >= adoption->deadline_ns) try_to_adopt(engine, adoption);
    }
}

// Whom another cluster calls its own: who names this one, or none, has been told of an adoption that nobody knows any more.
static bool is_foreign(const gs_engine *engine, const gs_running_trainer *running) {
    return gs_cluster_is_other(&engine->state.cluster, running->cluster);
}

// What must be alike of all that are adopted together, and where their checkpoints must lie. ok: it fits.
static gs_status compare(const gs_engine *engine, const gs_adoption *adoption, const gs_described_trainer *described) {
    char job[GS_JOB_ID_LEN], own[1100];
    gs_job_id_format(job, adoption->job);
    snprintf(own, sizeof own, "%s/%s", engine->state.checkpoints_dir, job);
    if (described->checkpoints_dir[0] && strcmp(described->checkpoints_dir, own) != 0)
        return gs_error(GS_FAILED_PRECONDITION, "its checkpoints are in %.150s, this coordinator's in %.150s",
                        described->checkpoints_dir, own);
    if (!adoption->spec) return gs_ok();
    if (strcmp(described->spec_digest, adoption->spec_digest) != 0)
        return gs_error(GS_FAILED_PRECONDITION, "its trainers have different specifications");
    if (adoption->cluster[0] && is_foreign(engine, &described->running) &&
        strcmp(described->running.cluster, adoption->cluster) != 0)
        return gs_error(GS_FAILED_PRECONDITION, "its trainers are of clusters %.23s and %.23s", adoption->cluster,
                        described->running.cluster);
    return gs_ok();
}

// Again, where it had said that its communicator is not up.
static void add_rank(const gs_engine *engine, gs_adoption *adoption, const gs_agent *agent, gs_described_trainer *described) {
    if (!adoption->spec) {
        adoption->spec = described->spec;
        described->spec = NULL;
        snprintf(adoption->spec_digest, sizeof adoption->spec_digest, "%s", described->spec_digest);
    }
    if (is_foreign(engine, &described->running))
        snprintf(adoption->cluster, sizeof adoption->cluster, "%s", described->running.cluster);
    // An agent of before says nothing of it, and takes back nothing.
    uint32_t newest = newest_generation(adoption);
    bool says = described->writes_as && *described->writes_as;
    if (described->running.generation > newest || (described->running.generation == newest && says))
        snprintf(adoption->written_as, sizeof adoption->written_as, "%s", described->writes_as ? described->writes_as : "");
    if (described->last_generation > adoption->last_generation) adoption->last_generation = described->last_generation;
    described_rank *rank = find_rank(adoption, described->running.incarnation);
    if (!rank) {
        adoption->ranks = gs_model_grow(adoption->ranks, adoption->num_ranks, &adoption->max_ranks, sizeof *adoption->ranks);
        rank = &adoption->ranks[adoption->num_ranks++];
    }
    *rank = (described_rank){.running = described->running, .launch_token = described->launch_token,
                              .shows_token = agent->shows_tokens};
    rank->running.cluster = NULL;
    snprintf(rank->worker, sizeof rank->worker, "%s", agent->name);
    rank->is_on_gpu = described->is_on_gpu;
}

void gs_on_described(gs_engine *engine, gs_engine_event *event) {
    gs_described_trainer *described = &event->described;
    const gs_running_trainer *running = &described->running;
    gs_agent *agent = gs_agent_table_of_incarnation(&engine->state.agents, event->from.who.incarnation);
    gs_adoption *adoption = find(engine, running->job);
    if (!agent || !adoption || running->slot < 0 || running->slot >= agent->num_slots) return;
    const gs_agent_slot *slot = &agent->slots[running->slot];
    if (!is_of(slot, running->job) || slot->incarnation != running->incarnation ||
        is_described(adoption, running->incarnation))
        return;
    event->was_admitted = true;
    if (is_going_down(engine)) {
        refuse(engine, adoption, going_down(), NULL, NULL);
        return;
    }
    gs_status status = described->refusal;
    if (!status.code) status = compare(engine, adoption, described);
    if (status.code) {
        refuse(engine, adoption, status, "wrong_state", "the trainers go on as they are; release asks them to save and end");
        return;
    }
    add_rank(engine, adoption, agent, described);
    try_to_adopt(engine, adoption);
}

static int count_unknown(const gs_engine *engine, uint64_t job) {
    int count = 0;
    for (size_t i = 0; i < engine->state.agents.count; i++) {
        const gs_agent *agent = engine->state.agents.items[i];
        for (int k = 0; k < agent->num_slots; k++) count += is_of(&agent->slots[k], job);
    }
    return count;
}

// Answers by itself and returns false where there is nothing to adopt.
static bool check_request(gs_engine *engine, gs_call call, uint64_t id, const char *text) {
    gs_job *job = gs_job_table_get(&engine->state.jobs, id);
    int count = count_unknown(engine, id);
    if (job && (count == 0 || job->held_back)) {
        answer_again(engine, call, job);
    } else if (job) {
        gs_reply_refusal(engine, call, gs_error(GS_FAILED_PRECONDITION, "job %s is known here, and %d trainers are another cluster's",
                                                text, count),
                         "wrong_state", "release asks those to save and end");
    } else if (count == 0) {
        gs_reply_error(engine, call, gs_error(GS_NOT_FOUND, "no trainer of job \"%.60s\" is unknown here", text));
    } else if (gs_late_answer_deletes(engine, id)) {  // asked twice, and done once: the other would take what is adopted now
        gs_reply_refusal(engine, call, gs_error(GS_FAILED_PRECONDITION, "job %s is being deleted", text), "in_flight",
                         "ask again in a moment");
    } else if (is_going_down(engine)) {
        gs_reply_error(engine, call, going_down());
    } else if (find(engine, id)) {
        gs_reply_refusal(engine, call, gs_error(GS_FAILED_PRECONDITION, "job %s is being adopted", text), "in_flight",
                         "ask again in a moment");
    } else {
        return true;
    }
    return false;
}

void gs_on_adopt_job(gs_engine *engine, gs_engine_event *event) {
    gs_call call = event->from.call;
    const char *text = event->adopt.job ? event->adopt.job : "";
    uint64_t id = 0;
    gs_job *known = gs_job_table_of_text(&engine->state.jobs, text);
    if (!known) known = gs_job_table_live_name(&engine->state.jobs, text);
    if (known) id = known->id;
    else if (!gs_job_id_parse(&id, text)) id = 0;
    event->was_admitted = true;
    if (!check_request(engine, call, id, text)) return;
    int num_adoptions = 0;
    for (const gs_adoption *other = engine->adoptions; other; other = other->next) num_adoptions++;
    gs_adoption *adoption = num_adoptions < MAX_ADOPTIONS ? calloc(1, sizeof *adoption) : NULL;
    if (!adoption) {
        gs_reply_error(engine, call, gs_error(GS_RESOURCE_EXHAUSTED, "adopt: out of memory, or %d are under way", num_adoptions));
        return;
    }
    char id_text[GS_JOB_ID_LEN];
    gs_job_id_format(id_text, id);
    gs_note_asker(engine, &event->from, NULL, "an adoption of", id_text);
    adoption->job = id;
    adoption->deadline_ns = engine->state.now_ns + 2 * engine->state.timing.grace_ns;
    adoption->next = engine->adoptions;
    engine->adoptions = adoption;
    gs_kept_set(engine, &adoption->held, call, GS_CALL_ANSWER, adoption);
    ask(engine, adoption);
}
