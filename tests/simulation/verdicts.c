#include "tests/simulation/verdicts.h"

#include <inttypes.h>
#include <string.h>

#include "tests/simulation/agent.h"
#include "tests/simulation/coordinator.h"
#include "tests/simulation/group.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/people.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/sets.h"

#define STEADY_NS (8 * SECONDS)
#define SILENT_NS (6 * SECONDS)  // 15 heartbeats (coordinator/engine/deadlines.c)
#define HEARD_NS (2 * SECONDS)

// It has stepped all the time, also just now.
static bool is_steady(const sim_world *world, const sim_group *group) {
    return world->now_ns - group->steady_since_ns >= STEADY_NS && world->now_ns - group->stepped_ns <= GROUP_STALL_NS;
}

// One tells of steps that nobody has taken, and what the others tell is compared with that once all of them are there.
static bool hides_steps(const sim_world *world, const sim_group *group) {
    bool is_whole = true;
    for (int i = 0; i < group->num_members; i++) {
        const sim_peer *peer = &group->members[i]->peer;
        is_whole &= peer_hears(world, peer) && world->now_ns - peer->connected_ns > STEADY_NS;
    }
    return sets_have_liar(world, group->job) && !is_whole;
}

// No word of any of them has come for as long as a rank may be silent, and their workers are heard: it is nobody's network, as far as
// anybody can know, and nobody has told of a step.
static bool are_mute(const sim_world *world, const sim_group *group) {
    for (int i = 0; i < group->num_members; i++) {
        const sim_trainer *member = group->members[i];
        bool is_worker_heard = world->now_ns - member->agent->peer.spoke_ns < HEARD_NS;
        if (!is_worker_heard || world->now_ns - member->peer.spoke_ns < SILENT_NS) return false;
    }
    return true;
}

// Silence is not death (V2, V6): steps that advance protect all members from the coordinator's own verdicts.
static void check_fault(sim_world *world, const gs_effect *effect) {
    const char *reason = effect->note.reason;
    if (!effect->note.fault || effect->note.fault->reporter >= 0 || (strcmp(reason, "WorkerHung") != 0 && strcmp(reason, "WorkerSilent") != 0)) return;
    const sim_group *group = group_of_generation(world, effect->job->id, effect->note.generation);
    if (group && !strcmp(reason, "WorkerSilent") && are_mute(world, group)) return;
    if (group && is_steady(world, group) && !hides_steps(world, group) && !group_is_orphaned(world, group, 2 * SECONDS))
        oracle_fail(world, "%s: \"%s\", and generation %u has stepped all the time", reason, effect->note.message,
                    group->generation);
}

static bool was_there(const sim_world *world, const sim_trainer *trainer) {
    const sim_peer *peer = &trainer->peer;
    return trainer->state >= TRAINER_WAITING && trainer_moves(world, trainer) && peer_hears(world, peer) &&
           world->now_ns - peer->connected_ns > STEADY_NS && world->now_ns - peer->suspended_until_ns > STEADY_NS;
}

// It was adopted before its communicator was up, since its worker didn't say that.
static bool cannot_begin(const sim_world *world, const gs_member *member, const sim_trainer *trainer) {
    return world->is_of_before && member->was_up && trainer->state < TRAINER_ARMED;
}

// Who has been there for long enough is not late: what it is owed was not told to it.
static void check_late(sim_world *world, const gs_effect *effect) {
    const gs_run *run = effect->job->run;
    if (!effect->note.fault || strcmp(effect->note.reason, "WorkerLate") != 0 || !run || run->cause.member < 0) return;
    const gs_member *blamed = &run->members[run->cause.member];
    for (const sim_trainer *trainer = world->trainers; trainer; trainer = trainer->next) {
        if (trainer->peer.incarnation == blamed->incarnation && was_there(world, trainer) && !cannot_begin(world, blamed, trainer))
            oracle_fail(world, "trainer %d was there all the time: %s", trainer->number, effect->note.message);
    }
}

static void check_end(sim_world *world, const gs_job *job) {
    int64_t reached = sets_reached(world, job->id);
    const sim_wish *wish = people_wish_of(world, job->id);
    if (!strcmp(job->reason, "TargetReached") && reached < job->spec.steps.target)
        oracle_fail(world, "job %s has reached its target %" PRId64 ", and no rank came further than step %" PRId64, job->id_text,
                    job->spec.steps.target, reached);
    if (!strcmp(job->reason, "StoppedByUser") && wish && !wish->wants_stop)
        oracle_fail(world, "job %s was stopped by a user, and nobody has asked for it", job->id_text);
    if (job->step > reached && !sets_have_liar(world, job->id))
        oracle_fail(world, "job %s is at step %" PRId64 ", and no rank came further than step %" PRId64, job->id_text, job->step,
                    reached);
}

// Nobody's clock but the coordinator's own ends a job, and it counts from when it was asked for.
static void check_patience(sim_world *world, const gs_job *job) {
    const sim_wish *wish = people_wish_of(world, job->id);
    if (!wish || wish->is_deleted || !wish->first_asked_ns) return;
    double seconds = (double)(world->now_ns - wish->first_asked_ns) / 1e9;
    bool waited = !strcmp(job->reason, "NotEnoughWorkers") || !strcmp(job->reason, "NoDevice");
    if (waited && seconds < job->spec.world.wait_seconds)
        oracle_fail(world, "job %s has waited %g s at most, and may %g s", job->id_text, seconds, job->spec.world.wait_seconds);
    if (!strcmp(job->reason, "DeadlineExceeded") && seconds < job->spec.steps.deadline_seconds)
        oracle_fail(world, "job %s is %g s old at most, and may be %g s", job->id_text, seconds, job->spec.steps.deadline_seconds);
}

// Trainers of a job whose record is lost are nobody's here: they are let go by an operator.
static void check_stop(sim_world *world, const gs_effect *effect) {
    const gs_agent_slot *slot = &effect->agent->slots[effect->agent_message.slot];
    uint64_t job = slot->job;
    if (slot->is_unknown && !sets_are_given_up(world, job))
        oracle_fail(world, "%s is told to end a trainer of cluster %s, and nobody has asked for it", effect->agent->name, slot->cluster);
    const sim_trainer *trainer = world->trainers;
    while (trainer && trainer->peer.incarnation != effect->agent_message.incarnation) trainer = trainer->next;
    const gs_job *known = gs_job_table_get(&coordinator_state(world)->jobs, job);
    bool is_other = trainer && strcmp(trainer->cluster, coordinator_state(world)->cluster.id) != 0;
    if (is_other && !sets_are_given_up(world, job) && !(known && !strcmp(known->adopted_from, trainer->cluster)))
        oracle_fail(world, "%s is told to end trainer %d, which is of cluster %s", effect->agent->name, trainer->number, trainer->cluster);
    if (promises_is_excused(world, job) && !gs_job_table_get(&coordinator_state(world)->jobs, job) && !sets_are_given_up(world, job))
        oracle_fail(world, "%s is told to end a trainer of a job that is not known", effect->agent->name);
}

// One of its workers has been able to all the while. Of one that stands still, or cannot write there, and whose network is away,
// nobody can know.
static bool leaves_signs(const sim_world *world, const sim_group *group) {
    for (int i = 0; i < group->num_members; i++) {
        const sim_agent *agent = group->members[i]->agent;
        int64_t away_ns = agent->disk_back_ns > agent->room_back_ns ? agent->disk_back_ns : agent->room_back_ns;
        if (world->now_ns - agent->peer.suspended_until_ns > STEADY_NS && world->now_ns - away_ns > STEADY_NS) return true;
    }
    return false;
}

// Who leaves signs of life where its checkpoints lie is not shut out from there.
static void check_shut_out(sim_world *world, const gs_effect *effect) {
    const sim_group *group = group_of_generation(world, effect->job->id, effect->life.generation);
    if (effect->life.raises && group && is_steady(world, group) && leaves_signs(world, group))
        oracle_fail(world, "generation %u is shut out from its checkpoints, and has stepped all the time", group->generation);
}

void verdicts_see_effect(sim_world *world, const gs_effect *effect) {
    if (effect->kind == GS_DO_NOTE && effect->job) {
        check_fault(world, effect);
        check_late(world, effect);
    }
    else if (effect->kind == GS_DO_TELL_AGENT && effect->agent_message.order == GS_TELL_STOP_RANK) check_stop(world, effect);
    else if (effect->kind == GS_DO_LOOK_FOR_LIFE) check_shut_out(world, effect);
    else if (effect->kind == GS_DO_END_JOB) {
        check_end(world, effect->job);
        check_patience(world, effect->job);
    }
}
