#include "tests/simulation/group.h"

#include <stdlib.h>
#include <string.h>

#include "tests/simulation/people.h"
#include "tests/simulation/sets.h"

#define NOTICE_NS (300 * MILLISECONDS)

static sim_group *find_group(sim_world *world, uint64_t id) {
    for (sim_group *group = world->groups; group; group = group->next) {
        if (group->id == id) return group;
    }
    return NULL;
}

static bool is_of(const sim_group *group, const sim_item *start) {
    return group->generation == start->generation && group->job == start->job && group->begun_ns == start->begun_ns;
}

sim_group *group_join(sim_world *world, sim_trainer *trainer, const sim_item *start) {
    sim_group *group = world->groups;
    while (group && !is_of(group, start)) group = group->next;
    if (!group) {
        group = calloc(1, sizeof *group);
        *group = (sim_group){.generation = start->generation,
                             .id = world_new_id(world),
                             .job = start->job,
                             .begun_ns = start->begun_ns,
                             .world_size = start->world_size,
                             .step_ns = dice_between(&world->dice, 100, 500) * MILLISECONDS,
                             .next = world->groups};
        world->groups = group;
    }
    if (group->num_members < MAX_RANKS) group->members[group->num_members++] = trainer;
    return group;
}

void group_drain(sim_group *group) { group->drains = true; }

static bool all_in(const sim_group *group, trainer_state state) {
    if (group->num_members < group->world_size) return false;
    for (int i = 0; i < group->num_members; i++) {
        if (group->members[i]->state != state) return false;
    }
    return true;
}

static void leave_together(sim_world *world, sim_group *group, gs_bye_reason reason, int exit_code, const char *saved_as) {
    if (saved_as) trainer_save(world, group->members[0], saved_as);
    // A rank may say what it likes.
    int liar = dice_chance(&world->dice, 0.003) && !world->is_calm ? group->num_members - 1 : -1;
    for (int i = 0; i < group->num_members; i++)
        trainer_leave(world, group->members[i], i != liar ? reason : reason == GS_BYE_DRAINED ? GS_BYE_DATA_ENDED : GS_BYE_DRAINED, exit_code);
}

bool group_is_orphaned(const sim_world *world, const sim_group *group, int64_t in_ns) {
    for (int i = 0; i < group->num_members; i++) {
        const sim_peer *peer = &group->members[i]->peer;
        if (peer->connection || world->now_ns - peer->lost_ns + in_ns < peer->orphan_ns) return false;
    }
    return true;
}

const sim_group *group_of_generation(const sim_world *world, uint64_t job, uint32_t generation) {
    const sim_group *group = world->groups;
    while (group && (group->generation != generation || group->job != job)) group = group->next;
    return group;
}

const sim_group *group_that_trains(const sim_world *world, uint64_t job) {
    const sim_group *group = world->groups;
    while (group && (group->job != job || group->is_broken || !all_in(group, TRAINER_RUNNING))) group = group->next;
    return group;
}

// Nobody has applied it, and some do not hold all of it yet.
static void miss_gradients(sim_world *world, const sim_group *group) {
    for (int i = 0; i < group->num_members; i++)
        if (dice_chance(&world->dice, 0.3)) group->members[i]->is_complete = false;
}

// All have entered the commit: all have the whole gradients. Some may not live to apply them.
static void commit(sim_world *world, sim_group *group) {
    int64_t step = group->members[0]->applied_step + 1;
    if (world->now_ns - group->stepped_ns > GROUP_STALL_NS) group->steady_since_ns = world->now_ns;
    group->stepped_ns = world->now_ns;
    for (int i = 0; i < group->num_members; i++) group->members[i]->is_complete = true;
    for (int i = 0; i < group->num_members; i++) {
        sim_trainer *member = group->members[i];
        if (!world->is_calm && world->options.has_faults && dice_chance(&world->dice, 0.0006)) {
            world_tell(world, "rank %d of generation %u dies in the commit of step %lld", member->rank, group->generation,
                       (long long)step);
            world->num_faults++;
            trainer_kill(world, member, 9);
            if (dice_chance(&world->dice, 0.5)) {  // the others have not heard yet that all are in
                if (i == 0) miss_gradients(world, group);
                break;
            }
            continue;
        }
        trainer_applied(world, member);
        sets_committed(world, group->job, group->generation, member->applied_step);
    }
}

static bool has_no_data(const sim_world *world, const sim_group *group) {
    const sim_wish *wish = people_wish_of(world, group->job);
    return wish && wish->data_steps && group->members[0]->applied_step >= wish->data_steps;
}

// Ranks change to a plan together, when all of them have it.
static void switch_plan(sim_group *group) {
    const char *next = group->members[0]->next_plan_hash;
    for (int i = 0; i < group->num_members; i++) {
        if (!next[0] || strcmp(group->members[i]->next_plan_hash, next) != 0) return;
    }
    for (int i = 0; i < group->num_members; i++) trainer_switch_plan(group->members[i]);
}

static void step(sim_world *world, uint64_t id, void *what) {
    (void)what;
    sim_group *group = find_group(world, id);
    group->is_stepping = false;
    if (group->is_broken || !all_in(group, TRAINER_RUNNING)) {
        group_break(world, group);
        return;
    }
    for (int i = 0; i < group->num_members; i++) {
        const sim_trainer *member = group->members[i];
        if (trainer_moves(world, member) && !trainer_is_led(world, member)) {
            group_try_to_step(world, group);
            return;
        }
        if (trainer_moves(world, member)) continue;
        // It stands still: the others wait for a time, and then accuse it.
        if (dice_chance(&world->dice, 0.1)) group_break(world, group);
        else group_try_to_step(world, group);
        return;
    }
    if (group->members[0]->applied_step < group->members[0]->target && !has_no_data(world, group)) commit(world, group);
    if (!all_in(group, TRAINER_RUNNING)) {
        group_break(world, group);
        return;
    }
    const sim_trainer *first = group->members[0];
    if (first->applied_step >= first->target) leave_together(world, group, GS_BYE_TARGET_REACHED, 0, "final");
    else if (has_no_data(world, group)) leave_together(world, group, GS_BYE_DATA_ENDED, 0, "final");
    else if (group->drains) leave_together(world, group, GS_BYE_DRAINED, 0, "stop");
    else if (group_is_orphaned(world, group, 0)) leave_together(world, group, GS_BYE_ORPHANED, 75, "orphaned");
    else {
        switch_plan(group);
        if (first->save_every > 0 && first->applied_step % first->save_every == 0)
            trainer_save(world, group->members[0], "periodic");
        group_try_to_step(world, group);
    }
}

void group_try_to_step(sim_world *world, sim_group *group) {
    if (group->is_stepping || group->is_broken || !all_in(group, TRAINER_RUNNING)) return;
    group->is_stepping = true;
    world_after(world, dice_delay_ns(&world->dice, group->step_ns), step, group->id, NULL);
}

static void notice(sim_world *world, uint64_t id, void *what) {
    sim_group *group = find_group(world, id);
    int rank = *(int *)what;
    free(what);
    sim_trainer *member = group->members[rank];
    bool stands = member->state == TRAINER_RUNNING || member->state == TRAINER_ARMED || member->state == TRAINER_CONNECTING;
    if (stands && trainer_moves(world, member)) trainer_settle(world, member);
    else if (stands) world_after(world, NOTICE_NS, notice, id, memcpy(malloc(sizeof rank), &rank, sizeof rank));
}

void group_break(sim_world *world, sim_group *group) {
    if (group->is_broken) return;
    group->is_broken = true;
    for (int i = 0; i < group->num_members; i++) {
        int *rank = malloc(sizeof *rank);
        *rank = i;
        world_after(world, dice_delay_ns(&world->dice, NOTICE_NS), notice, group->id, rank);
    }
}

void groups_destroy(sim_world *world) {
    while (world->groups) {
        sim_group *group = world->groups;
        world->groups = group->next;
        free(group);
    }
}
