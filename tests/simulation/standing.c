#include "tests/simulation/standing.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simulation/coordinator.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/fences.h"
#include "tests/simulation/files.h"
#include "tests/simulation/group.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/sets.h"
#include "tests/simulation/trainer.h"

#define MAX_DELETIONS 64
#define MAX_UNREAD 64
#define MAX_DEEDS 256
#define STANDSTILL_NS (2 * SECONDS)
#define CLOSED_NS (15 * SECONDS)
#define LEFT_NS (2 * SECONDS)  // behind the engine's own patience

// Asked of the disk, of a checkpoint, and not answered.
typedef struct disk_deed {
    uint64_t job;
    char directory[GS_CHECKPOINT_NAME_LEN];
} disk_deed;

// A start that did not come about.
typedef struct unread_save {
    uint64_t job;
    char directory[GS_CHECKPOINT_NAME_LEN];
    int64_t at_ns;
} unread_save;

struct sim_standing {
    uint64_t deletions[MAX_DELETIONS];  // of jobs, on their way to the disk
    int num_deletions;
    unread_save unread[MAX_UNREAD];
    int num_unread;
    disk_deed deeds[MAX_DEEDS];
    int num_deeds;
    gs_engine_event_kind kind;  // of the event that is being taken
    int64_t last_ns;            // when the one before was taken
    int64_t unwell_ns;          // when the disk was slow, or could not be read, last
};

void standing_create(sim_world *world) { world->standing = calloc(1, sizeof *world->standing); }
void standing_destroy(sim_world *world) { free(world->standing); }
void standing_end_life(sim_world *world) { world->standing->num_deletions = world->standing->num_deeds = 0; }

static int find_deletion(const sim_standing *standing, uint64_t job) {
    int i = 0;
    while (i < standing->num_deletions && standing->deletions[i] != job) i++;
    return i;
}

static int find_deed(const sim_standing *standing, uint64_t job, const char *directory) {
    int i = 0;
    while (i < standing->num_deeds && (standing->deeds[i].job != job || strcmp(standing->deeds[i].directory, directory) != 0)) i++;
    return i;
}

static void add_deed(sim_standing *standing, const gs_effect *effect) {
    if (standing->num_deeds == MAX_DEEDS) return;
    disk_deed *deed = &standing->deeds[standing->num_deeds++];
    deed->job = effect->job_id;
    snprintf(deed->directory, sizeof deed->directory, "%s", effect->text);
}

static void end_deed(sim_standing *standing, const gs_engine_event *event) {
    bool is_row = event->kind == GS_ON_STORED &&
                  (event->done.stored == GS_STORED_CHECKPOINT || event->done.stored == GS_STORED_CHECKPOINT_DELETED);
    if (!is_row && event->kind != GS_ON_FILES_REMOVED) return;
    int i = find_deed(standing, event->done.job, event->done.directory);
    if (i < standing->num_deeds) standing->deeds[i] = standing->deeds[--standing->num_deeds];
}

void standing_see_event(sim_world *world, const gs_engine_event *event) {
    sim_standing *standing = world->standing;
    standing->kind = event->kind;
    end_deed(standing, event);
    // An operator may have a job start from what nobody can look at.
    if (event->kind == GS_ON_RELEASE_JOB) standing->num_unread = 0;
    if (event->kind != GS_ON_STORED || event->done.stored != GS_STORED_JOB_DELETED) return;
    int i = find_deletion(standing, event->done.job);
    if (i < standing->num_deletions) standing->deletions[i] = standing->deletions[--standing->num_deletions];
}

// Behind its deletion it would be a row of nobody, or bring the job back.
static void check_write(sim_world *world, const gs_effect *effect) {
    sim_standing *standing = world->standing;
    bool is_deletion = effect->kind == GS_DO_DELETE_JOB;
    bool is_row = effect->kind == GS_DO_WRITE_JOB || effect->kind == GS_DO_WRITE_CHECKPOINT;
    if (is_deletion && standing->num_deletions < MAX_DELETIONS) standing->deletions[standing->num_deletions++] = effect->job_id;
    if (is_row && find_deletion(standing, effect->job_id) < standing->num_deletions)
        oracle_fail(world, "a row of job %s is written behind its deletion", effect->job->id_text);
}

void standing_unread(sim_world *world, uint64_t job, const char *directory) {
    sim_standing *standing = world->standing;
    if (standing->num_unread == MAX_UNREAD) return;
    unread_save *unread = &standing->unread[standing->num_unread++];
    *unread = (unread_save){.job = job, .at_ns = world->now_ns};
    snprintf(unread->directory, sizeof unread->directory, "%s", directory);
}

// Each start looks first; one may fail by what was lost since.
static void check_resume(sim_world *world, const gs_effect *effect) {
    const sim_standing *standing = world->standing;
    const gs_checkpoint *resume = effect->agent_message.resume;
    for (int i = 0; resume && i < standing->num_unread; i++) {
        const unread_save *unread = &standing->unread[i];
        if (unread->job != effect->job->id || strcmp(unread->directory, resume->directory) != 0) continue;
        if (!files_find(world, unread->job, unread->directory))
            oracle_fail(world, "ranks of job %s are started once more from %s, which is gone", effect->job->id_text, resume->directory);
    }
}

// An agent that says that it runs one of another set is proof that this lives.
static void check_beside(sim_world *world, const gs_effect *effect) {
    const gs_state *state = coordinator_state(world);
    for (size_t i = 0; i < state->agents.count; i++) {
        const gs_agent *agent = state->agents.items[i];
        for (int slot = 0; gs_agent_is_connected(agent) && slot < agent->num_slots; slot++) {
            uint64_t incarnation = agent->slots[slot].incarnation;
            if (!incarnation || agent->slots[slot].job != effect->job->id) continue;
            const gs_member *member = gs_state_member(state, incarnation);
            if (!member || member->job != effect->job)
                oracle_fail(world, "ranks of job %s are started, and %s tells of one of another set", effect->job->id_text, agent->name);
        }
    }
}

// One of its ranks is so.
static bool has_odd_rank(const sim_world *world, const gs_run *run, trainer_oddity oddity) {
    for (const sim_trainer *trainer = world->trainers; trainer && oddity; trainer = trainer->next) {
        for (int i = 0; i < run->num_members && trainer->oddity == oddity; i++)
            if (run->members[i].incarnation == trainer->peer.incarnation) return true;
    }
    return false;
}

// Who is blamed has told of steps that nobody has taken.
static bool has_lied(const sim_world *world, const gs_run *run) {
    const sim_trainer *trainer = run->cause.set && run->cause.member >= 0 ? world->trainers : NULL;
    while (trainer && trainer->peer.incarnation != run->members[run->cause.member].incarnation) trainer = trainer->next;
    return trainer && trainer->has_lied;
}

// Ranks that are built alike are not told that they differ, and nobody who has reached the target is to blame for anything.
static void check_note(sim_world *world, const gs_effect *effect) {
    static const struct {
        const char *reason;
        trainer_oddity oddity;
    } mismatches[] = {{"PlanMismatch", ODDITY_PLAN}, {"PlanRefused", ODDITY_NONE}, {"DataMismatch", ODDITY_DATA},
                      {"ArithmeticMismatch", ODDITY_ARITHMETIC}, {"StateMismatch", ODDITY_STATE}};
    const gs_run *run = effect->job ? effect->job->run : NULL;
    if (!effect->note.fault) return;
    for (size_t i = 0; i < sizeof mismatches / sizeof *mismatches; i++) {
        bool is_known = run && (has_odd_rank(world, run, mismatches[i].oddity) ||
                                (mismatches[i].oddity == ODDITY_STATE && has_lied(world, run)));
        if (strcmp(effect->note.reason, mismatches[i].reason) != 0 || is_known) continue;
        oracle_fail(world, "%s: %s", effect->note.reason, effect->note.message);
    }
    if (!run || !run->cause.set || run->cause.member < 0 || strcmp(run->cause.reason, effect->note.reason) != 0) return;
    if (run->members[run->cause.member].bye.reason && !strcmp(effect->note.reason, "Released"))
        oracle_fail(world, "an operator gives up rank %d, which has said Bye, and its generation fails by that", run->cause.member);
}

// Of one that lives another set would know nothing.
static void check_run_end(sim_world *world, const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].stage != GS_MEMBER_EXITED)
            oracle_fail(world, "the run of generation %u ends, and rank %d of it has not", run->generation, i);
    }
}

void standing_see_effect(sim_world *world, const gs_effect *effect) {
    if (effect->kind == GS_DO_END_RUN) check_run_end(world, effect->run);
    if (effect->kind == GS_DO_WRITE_CHECKPOINT || effect->kind == GS_DO_DELETE_CHECKPOINT || effect->kind == GS_DO_REMOVE_CHECKPOINT)
        add_deed(world->standing, effect);
    if (effect->kind == GS_DO_DELETE_JOB || effect->kind == GS_DO_WRITE_JOB || effect->kind == GS_DO_WRITE_CHECKPOINT)
        check_write(world, effect);
    else if (effect->kind == GS_DO_NOTE) check_note(world, effect);
    else if (effect->kind == GS_DO_TELL_AGENT && effect->agent_message.order == GS_TELL_START_RANK) {
        check_beside(world, effect);
        check_resume(world, effect);
    }
}

static bool tells(const gs_effects *effects, const gs_member *member, gs_member_order order) {
    for (size_t i = 0; i < effects->count; i++) {
        const gs_effect *effect = &effects->items[i];
        if (effect->kind == GS_DO_TELL_MEMBER && effect->member == member && effect->member_message.order == order) return true;
    }
    return false;
}

// Who comes back hears what it has missed.
static void check_welcome(sim_world *world, const gs_engine_event *event, const gs_effects *effects) {
    const gs_member *member = gs_state_member(coordinator_state(world), event->from.who.incarnation);
    if (!event->was_admitted || !member || member->stage == GS_MEMBER_EXITED || !member->job->run) return;
    const gs_run *run = member->job->run;
    if (run->draining && (run->phase == GS_RUN_TRAINING || run->phase == GS_RUN_RELOADING) && !tells(effects, member, GS_TELL_DRAIN))
        oracle_fail(world, "rank %d of job %s is back and does not hear that its run drains", member->rank, member->job->id_text);
}

// That a disk could not be read says nothing of what is on it.
static void check_damage(sim_world *world, const gs_engine_event *event, const gs_effects *effects) {
    const gs_completion *done = &event->done;
    const saved_file *file = files_find(world, done->job, done->directory);
    if (done->status.code != GS_UNAVAILABLE || !file || file->is_damaged) return;
    for (size_t i = 0; i < effects->count; i++) {
        const gs_effect *effect = &effects->items[i];
        if (effect->kind == GS_DO_NOTE && !strcmp(effect->note.reason, "CheckpointDamaged"))
            oracle_fail(world, "%s is said to be damaged, and the disk could not be read", done->directory);
    }
}

// What was said while the process stood still is heard before anybody is judged.
static void check_first_tick(sim_world *world, const gs_effects *effects, int64_t stood_ns) {
    static const char *const verdicts[] = {"WorkerLate", "WorkerSilent", "WorkerHung"};
    if (stood_ns < STANDSTILL_NS) return;
    for (size_t i = 0; i < effects->count; i++) {
        const gs_effect *effect = &effects->items[i];
        for (size_t k = 0; effect->kind == GS_DO_NOTE && k < sizeof verdicts / sizeof *verdicts; k++) {
            if (effect->note.fault && !strcmp(effect->note.reason, verdicts[k]))
                oracle_fail(world, "%s behind a standstill of %" PRId64 " ms: %s", verdicts[k], stood_ns / MILLISECONDS, effect->note.message);
        }
    }
}

// What a rank was told to be kept is known.
static void check_save(sim_world *world, const gs_engine_event *event, const gs_effects *effects) {
    const gs_member *member = gs_state_member(coordinator_state(world), event->from.who.incarnation);
    if (!event->was_admitted || event->checkpointed.failed || !member || member->job->id != event->from.who.job) return;
    // People have gone back behind it.
    if (member->job->go_on_step && event->checkpointed.found.step > member->job->go_on_step) return;
    for (size_t i = 0; i < effects->count; i++) {
        const gs_effect *effect = &effects->items[i];
        bool is_ok = effect->kind == GS_DO_REPLY && effect->call == event->from.call && !effect->reply.status.code;
        if (is_ok && !gs_checkpoints_find(&member->job->checkpoints, event->checkpointed.directory))
            oracle_fail(world, "rank %d is told that %s is known, and it is not", member->rank, event->checkpointed.directory);
    }
}

void standing_took(sim_world *world, const gs_engine_event *event, const gs_effects *effects) {
    int64_t stood_ns = world->now_ns - world->standing->last_ns;
    world->standing->last_ns = world->now_ns;
    if (event->kind == GS_ON_TICK) check_first_tick(world, effects, stood_ns);
    else if (event->kind == GS_ON_CHECKPOINTED) check_save(world, event, effects);
    else if (event->kind == GS_ON_HELLO) check_welcome(world, event, effects);
    else if (event->kind == GS_ON_VERIFIED) check_damage(world, event, effects);
}

// Its ranks are all back, and nobody goes on.
static void check_reload(sim_world *world, const gs_run *run) {
    int back = 0;
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        if (member->stage == GS_MEMBER_EXITED) return;  // unseen: the run ends
        if (member->stage == GS_MEMBER_LEAVING) continue;
        if (!member->stream.call) return;
        back++;
    }
    if (back > 0 && run->phase == GS_RUN_RELOADING)
        oracle_fail(world, "all ranks of generation %u are back that have not left, and others are waited for", run->generation);
}

static void check_gone(sim_world *world, const gs_state *state, const gs_member *member) {
    if (member->stage != GS_MEMBER_LEAVING || member->stream.call) return;
    const gs_agent *agent = gs_agent_table_find(&state->agents, member->worker);
    if (agent && gs_agent_is_connected(agent)) return;
    int64_t gone_ns = agent && agent->lost_ns > member->bye.at_ns ? agent->lost_ns : member->bye.at_ns;
    if (state->now_ns - gone_ns > state->timing.agent_dead_ns + LEFT_NS)
        oracle_fail(world, "rank %d of generation %u has said Bye, is gone with its agent, and is waited for", member->rank,
                    member->job->run->generation);
}

// That one of its ranks has come to.
static int64_t furthest_of(const sim_world *world, const gs_run *run) {
    int64_t furthest = 0;
    for (const sim_trainer *trainer = world->trainers; trainer; trainer = trainer->next) {
        bool is_of_run = trainer->generation == run->generation && trainer->peer.job == run->job->id;
        if (is_of_run && trainer->applied_step > furthest) furthest = trainer->applied_step;
    }
    return furthest;
}

// All of them are here, and so are their workers: since when; INT64_MAX: they are not.
static int64_t here_since(const sim_world *world, const sim_group *group) {
    int64_t since_ns = group->begun_ns;
    for (int i = 0; i < group->num_members; i++) {
        const sim_trainer *member = group->members[i];
        const sim_peer *peers[] = {&member->peer, &member->agent->peer};
        for (int k = 0; k < 2; k++) {
            if (!peer_hears(world, peers[k]) || !peer_moves(world, peers[k])) return INT64_MAX;
            if (peers[k]->connected_ns > since_ns) since_ns = peers[k]->connected_ns;
            if (peers[k]->suspended_until_ns > since_ns) since_ns = peers[k]->suspended_until_ns;
        }
        if (member->state != TRAINER_RUNNING) return INT64_MAX;
    }
    return since_ns;
}

// Nothing that they do is kept: they are ended as soon as that can be known.
static void check_closed(sim_world *world, const gs_run *run) {
    const sim_group *group = group_of_generation(world, run->job->id, run->generation);
    if (!group || run->phase != GS_RUN_TRAINING || group->num_members < group->world_size) return;
    if (!fences_are_above(world, run->job->id, group->members[0]->launch_cluster, run->generation)) return;
    int64_t since_ns = here_since(world, group), raised_ns = fences_raised_ns(world, run->job->id);
    if (raised_ns > since_ns) since_ns = raised_ns;
    if (world->standing->unwell_ns > since_ns) since_ns = world->standing->unwell_ns;
    if (since_ns < world->now_ns - CLOSED_NS)
        oracle_fail(world, "generation %u is heard and trains, and its directory is closed to it", run->generation);
}

static void check_run(sim_world *world, const gs_state *state, const gs_run *run) {
    if (run->generation && run->step > furthest_of(world, run) && !sets_have_liar(world, run->job->id))
        oracle_fail(world, "generation %u is said to be at step %" PRId64 ", and its ranks came to step %" PRId64, run->generation,
                    run->step, furthest_of(world, run));
    check_reload(world, run);
    check_closed(world, run);
    for (int i = 0; i < run->num_members; i++) check_gone(world, state, &run->members[i]);
}

// Its files are good as long as they are there: it is removed, or good again.
static void check_removals(sim_world *world, const gs_job *job) {
    for (size_t i = 0; i < job->checkpoints.count; i++) {
        const gs_checkpoint *item = &job->checkpoints.items[i];
        if (item->state != GS_CHECKPOINT_DELETING || item->is_gone || !files_find(world, job->id, item->directory)) continue;
        const sim_standing *standing = world->standing;
        bool is_asked = find_deed(standing, job->id, item->directory) < standing->num_deeds || standing->num_deeds == MAX_DEEDS;
        if (!is_asked && !item->record_again_ns)
            oracle_fail(world, "%s of job %s is neither removed nor good again", item->directory, job->id_text);
    }
}

// Its trainers are told to end: nobody would do it else.
static void check_slots(sim_world *world, const gs_agent *agent) {
    for (int i = 0; i < agent->num_slots; i++) {
        const gs_agent_slot *slot = &agent->slots[i];
        if (slot->incarnation && slot->is_unknown && promises_has_deleted(world, slot->job, slot->cluster))
            oracle_fail(world, "%s runs a trainer of a job that was deleted, and that is not known any more", agent->name);
    }
}

void standing_check(sim_world *world, const gs_state *state) {
    if (!disk_is_well(world)) world->standing->unwell_ns = world->now_ns;
    for (size_t i = 0; world->standing->kind == GS_ON_TICK && i < state->jobs.count; i++) {
        const gs_job *job = state->jobs.items[i];
        if (job->run && !gs_job_is_unrecorded(job)) check_run(world, state, job->run);
        check_removals(world, job);
    }
    if (world->standing->kind != GS_ON_AGENT_HELLO) return;
    for (size_t i = 0; i < state->agents.count; i++) check_slots(world, state->agents.items[i]);
}
