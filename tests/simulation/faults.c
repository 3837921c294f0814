#include "tests/simulation/faults.h"

#include <stdlib.h>
#include <string.h>

#include "tests/simulation/coordinator.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/files.h"
#include "tests/simulation/group.h"
#include "tests/simulation/people.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/rows.h"

#define MOST_FAULTS 8
#define LONGEST_STAND (100 * SECONDS)

static sim_trainer *any_trainer(sim_world *world) {
    int count = 0;
    for (sim_trainer *trainer = world->trainers; trainer; trainer = trainer->next) count += trainer_lives(trainer);
    if (!count) return NULL;
    int64_t chosen = dice_between(&world->dice, 0, count - 1);
    for (sim_trainer *trainer = world->trainers; trainer; trainer = trainer->next) {
        if (trainer_lives(trainer) && chosen-- == 0) return trainer;
    }
    return NULL;
}

static sim_agent *any_agent(sim_world *world) {
    return world->agents[dice_between(&world->dice, 0, world->num_agents - 1)];
}

static int64_t away(sim_world *world) { return dice_delay_ns(&world->dice, 3 * SECONDS); }

static void mend_line(sim_world *world, uint64_t index, void *what) {
    (void)what;
    world_tell(world, "the line of w%llu is whole again", (unsigned long long)index);
    line_set(world, world->agents[index]->line, false, false);
}

static void cut(sim_world *world, sim_agent *agent, int64_t ns) {
    int64_t ways = dice_between(&world->dice, 1, 3);
    world_tell(world, "the line of %s is cut (%s) for %.1f s", agent->name,
               ways == 1 ? "to the coordinator" : ways == 2 ? "from it" : "both ways", (double)ns / 1e9);
    line_set(world, agent->line, ways & 1, ways & 2);
    world_after(world, ns, mend_line, (uint64_t)agent->index, NULL);
    if (dice_chance(&world->dice, 0.1)) people_release_soon(world);
}

static int64_t cut_ns(sim_world *world) {
    static const int64_t lengths[] = {200, 1000, 2000, 5000, 12000, 25000, 45000};
    return lengths[dice_between(&world->dice, 0, 6)] * MILLISECONDS;
}

static void cut_one(sim_world *world) { cut(world, any_agent(world), cut_ns(world)); }

// Each host in its way, as when a switch fails.
static void cut_all(sim_world *world) {
    int64_t ns = cut_ns(world);
    for (int i = 0; i < world->num_agents; i++) cut(world, world->agents[i], ns);
}

static void mend_host(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    world_tell(world, "the coordinator's host is on the network again");
    line_set(world, &world->people->line, false, false);
    for (int i = 0; i < world->num_agents; i++) line_set(world, world->agents[i]->line, false, false);
}

// All that lead to it, in the same way.
static void cut_host(sim_world *world) {
    int64_t ns = cut_ns(world), ways = dice_between(&world->dice, 1, 3);
    world_tell(world, "the coordinator's host is cut off (%s) for %.1f s", ways == 1 ? "hears nothing" : ways == 2 ? "is not heard" : "both ways",
               (double)ns / 1e9);
    line_set(world, &world->people->line, ways & 1, ways & 2);
    for (int i = 0; i < world->num_agents; i++) line_set(world, world->agents[i]->line, ways & 1, ways & 2);
    world_after(world, ns, mend_host, 0, NULL);
}

static void reset_connections(sim_world *world) {
    bool all = dice_chance(&world->dice, 0.3);
    int64_t left = all ? INT64_MAX : dice_between(&world->dice, 1, 3);
    double chance = all ? 1 : 0.3;
    for (sim_peer *peer = world->peers; peer && left > 0; peer = peer->next) {
        if (peer->is_gone || !peer->connection || !dice_chance(&world->dice, chance)) continue;
        left--;
        world_tell(world, "connection %llu breaks", (unsigned long long)peer->connection);
        peer_reset(world, peer, dice_chance(&world->dice, 0.5));
    }
}

// As a network does that closes what goes over it, and then is away: to the coordinator all on the host seem to have ended.
static void close_and_cut_of(sim_world *world, sim_agent *agent) {
    world_tell(world, "all connections of %s are closed by the network", agent->name);
    for (sim_peer *peer = world->peers; peer; peer = peer->next) {
        if (peer->line == agent->line) peer_reset(world, peer, true);
    }
    cut(world, agent, cut_ns(world));
}

static void close_and_cut(sim_world *world) { close_and_cut_of(world, any_agent(world)); }

static void suspend_agent(sim_world *world, sim_agent *agent, int64_t ns, bool with_trainers) {
    if (agent->is_dead) return;
    if (ns > LONGEST_STAND) ns = LONGEST_STAND;  // everybody is back before the world ends
    world_tell(world, "%s stands still for %.1f s%s", agent->name, (double)ns / 1e9, with_trainers ? ", with its trainers" : "");
    peer_suspend(world, &agent->peer, ns);
    for (int i = 0; i < agent->num_slots && with_trainers; i++) {
        if (agent->slots[i]) trainer_suspend(world, agent->slots[i], ns);
    }
}

// It stands still, with its trainers or without, for longer than it takes others to come, behind a network that is cut.
static void suspend_and_cut(sim_world *world) {
    sim_agent *agent = any_agent(world);
    int64_t ns = 20 * SECONDS + dice_delay_ns(&world->dice, 30 * SECONDS);
    if (agent->is_dead) return;
    if (dice_chance(&world->dice, 0.5)) close_and_cut_of(world, agent);
    else cut(world, agent, cut_ns(world));
    suspend_agent(world, agent, ns, dice_chance(&world->dice, 0.3));
}

// The checkpoints lie where its host does not get any more, with the coordinator or without.
static void lose_sight(sim_world *world) {
    sim_agent *agent = any_agent(world);
    int64_t ns = cut_ns(world);
    world_tell(world, "%s does not see where checkpoints lie for %.1f s", agent->name, (double)ns / 1e9);
    agent_lose_disk(world, agent, ns);
    if (dice_chance(&world->dice, 0.5)) close_and_cut_of(world, agent);
    else if (dice_chance(&world->dice, 0.7)) cut(world, agent, cut_ns(world));
}

// What is full takes no sign that they live, and shows its fence.
static void fill_checkpoints(sim_world *world) {
    sim_agent *agent = any_agent(world);
    int64_t ns = cut_ns(world);
    world_tell(world, "%s has no room where checkpoints lie for %.1f s", agent->name, (double)ns / 1e9);
    agent_lose_room(world, agent, ns);
    if (dice_chance(&world->dice, 0.8)) close_and_cut_of(world, agent);
}

// A worker, with its trainers or without; or a host, with all that is on it.
static void suspend_host(sim_world *world) {
    sim_agent *agent = any_agent(world);
    int64_t ns = dice_delay_ns(&world->dice, 3 * SECONDS);
    bool with_trainers = dice_chance(&world->dice, 0.6), with_others = with_trainers && dice_chance(&world->dice, 0.5);
    for (int i = 0; i < world->num_agents; i++) {
        sim_agent *other = world->agents[i];
        if (other == agent || (with_others && agent_is_beside(agent, other))) suspend_agent(world, other, ns, with_trainers);
    }
}

static void slow_rank(sim_world *world) {
    sim_trainer *trainer = any_trainer(world);
    if (!trainer || !trainer->group) return;
    world_tell(world, "trainer %d is slow", trainer->number);
    if (trainer->group->step_ns < SECONDS) trainer->group->step_ns *= 3;
}

static void kill_trainer(sim_world *world) {
    sim_trainer *trainer = any_trainer(world);
    if (!trainer) return;
    world_tell(world, "trainer %d is killed", trainer->number);
    trainer_kill(world, trainer, 9);
}

static void suspend_trainer(sim_world *world) {
    sim_trainer *trainer = any_trainer(world);
    if (!trainer) return;
    int64_t ns = dice_delay_ns(&world->dice, 3 * SECONDS);
    world_tell(world, "trainer %d stands still for %.1f s", trainer->number, (double)ns / 1e9);
    if (dice_chance(&world->dice, 0.15)) ns = 100000 * SECONDS;  // for good
    trainer_suspend(world, trainer, ns);
}

static void kill_agent(sim_world *world) { agent_kill(world, any_agent(world), away(world)); }

static void kill_coordinator(sim_world *world) {
    world_tell(world, "the coordinator is killed");
    coordinator_kill(world, away(world));
}

static void cut_later(sim_world *world, uint64_t index, void *what) {
    (void)what;
    if (!world->is_calm) cut(world, world->agents[index], 40 * SECONDS);
}

static void kill_later(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    if (!world->is_calm) kill_coordinator(world);
}

static bool is_host_of(const sim_group *group, const sim_agent *agent) {
    bool is_of_set = false;
    for (int i = 0; i < group->num_members; i++) is_of_set |= agent_is_beside(group->members[i]->agent, agent);
    return is_of_set && agent->host == agent->name;
}

// The first host of a set is judged silent while the others are just about to be: nobody hears the verdict, and they train on. Then
// who has judged dies.
static void cut_in_turn(sim_world *world) {
    const sim_trainer *trainer = any_trainer(world);
    if (!trainer || !trainer->group) return;
    int64_t at_ns = 0;
    for (int i = 0; i < world->num_agents; i++) {
        if (!is_host_of(trainer->group, world->agents[i])) continue;
        world_after(world, at_ns, cut_later, (uint64_t)i, NULL);
        at_ns += dice_between(&world->dice, 2000, 3500) * MILLISECONDS;
    }
    world_after(world, at_ns + dice_between(&world->dice, 0, 8000) * MILLISECONDS, kill_later, 0, NULL);
}

// A set goes on alone by what a life of the coordinator has told it, and the next one, which may have another limit, does not hear it.
static void cut_and_restart(sim_world *world) {
    const sim_trainer *trainer = any_trainer(world);
    if (!trainer || !trainer->group) return;
    for (int i = 0; i < world->num_agents; i++)
        if (is_host_of(trainer->group, world->agents[i])) cut(world, world->agents[i], 55 * SECONDS);
    world_after(world, dice_between(&world->dice, 0, 3000) * MILLISECONDS, kill_later, 0, NULL);
}

static void cut_power(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    world_tell(world, "the coordinator's host loses its power");
    coordinator_cut_power(world, away(world));
}

static void kill_coordinator_soon(sim_world *world) {
    bool any = dice_chance(&world->dice, 0.3);
    gs_effect_kind kind = any ? GS_NUM_EFFECTS : (gs_effect_kind)dice_between(&world->dice, 0, GS_NUM_EFFECTS - 1);
    coordinator_kill_at_effect(world, kind, (int)dice_between(&world->dice, 1, any ? 40 : 6), away(world));
}

static void kill_in_transaction(sim_world *world) {
    if (!rows_end_soon(world, (int)dice_between(&world->dice, 0, 30))) kill_coordinator_soon(world);
}

static void suspend_coordinator(sim_world *world) {
    int64_t ns = dice_delay_ns(&world->dice, 3 * SECONDS);
    if (dice_chance(&world->dice, 0.2)) ns = dice_between(&world->dice, 10, 30) * SECONDS;
    world_tell(world, "the coordinator stands still for %.1f s", (double)ns / 1e9);
    coordinator_suspend(world, ns);
}

static void mend_disk(sim_world *world) {
    disk_slow(world, 0);
    *rows_trouble_of(world) = (rows_trouble){.room = -1};
}

static void mend_disk_soon(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    world_tell(world, "the disk is well again");
    mend_disk(world);
}

// Room for some rows more, and not for each.
static void fill_disk(sim_world *world) {
    int64_t room = dice_chance(&world->dice, 0.4) ? 0 : dice_between(&world->dice, 0, 20000);
    world_tell(world, "the disk has room for %lld bytes", (long long)room);
    rows_trouble_of(world)->room = room;
    world_after(world, dice_delay_ns(&world->dice, 5 * SECONDS), mend_disk_soon, 0, NULL);
}

static void slow_disk(sim_world *world) {
    int64_t ms = dice_between(&world->dice, 100, 5000);
    world_tell(world, "the disk takes %lld ms more", (long long)ms);
    disk_slow(world, ms * MILLISECONDS);
    if (dice_chance(&world->dice, 0.5)) people_give_up(world);
    world_after(world, dice_delay_ns(&world->dice, 8 * SECONDS), mend_disk_soon, 0, NULL);
}

static void fail_disk(sim_world *world) {
    rows_trouble *trouble = rows_trouble_of(world);
    if (dice_chance(&world->dice, 0.7)) trouble->one_fails = dice_chance(&world->dice, 0.3) ? 1 : 0.3;
    else trouble->all_fail = 0.5;
    world_tell(world, "writes fail: one of them with %.1f, all of a transaction with %.1f", trouble->one_fails, trouble->all_fail);
    world_after(world, dice_delay_ns(&world->dice, 5 * SECONDS), mend_disk_soon, 0, NULL);
}

static void fail_commits(sim_world *world) {
    rows_trouble *trouble = rows_trouble_of(world);
    trouble->all_fail = 0.5;
    trouble->is_fatal = true;
    world_tell(world, "commits fail, and the coordinator is killed behind one");
    world_after(world, dice_delay_ns(&world->dice, 10 * SECONDS), mend_disk_soon, 0, NULL);
}

static void fail_reads(sim_world *world) {
    world_tell(world, "reads fail");
    rows_trouble_of(world)->reads_fail = 0.5;
    // Not longer than the coordinator asks again (checkpoints.c): behind that it starts from what there is.
    world_after(world, dice_between(&world->dice, 1, 12) * SECONDS, mend_disk_soon, 0, NULL);
    if (dice_chance(&world->dice, 0.5)) coordinator_kill(world, away(world));
}

// It says that it has written; a loss of power shows what it has.
static void lie(sim_world *world) {
    world_tell(world, "the disk lies");
    rows_trouble_of(world)->lies = true;
    int64_t ns = dice_delay_ns(&world->dice, 6 * SECONDS);
    world_after(world, ns, cut_power, 0, NULL);
    world_after(world, ns + MILLISECONDS, mend_disk_soon, 0, NULL);
}

static void read_again(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    if (!rows_repair(world)) return;
    world_tell(world, "the record is repaired, and the coordinator started again");
    coordinator_kill(world, SECONDS / 5);
}

static void spoil_record(sim_world *world) {
    rows_spoil(world);
    coordinator_kill(world, away(world));
    world_after(world, dice_delay_ns(&world->dice, 10 * SECONDS), read_again, 0, NULL);
}

static void exchange_directory(sim_world *world) {
    coordinator_kill(world, away(world));
    if (rows_exchange(world)) world_tell(world, "the coordinator is started with the data directory of %s", rows_cluster(world));
}

static void exchange_again(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    if (!world->is_calm) exchange_directory(world);
}

// By mistake, or because the first is lost; most find out and go back.
static void mistake_directory(sim_world *world) {
    exchange_directory(world);
    if (dice_chance(&world->dice, 0.7)) world_after(world, dice_delay_ns(&world->dice, 12 * SECONDS), exchange_again, 0, NULL);
}

static void jump_clock(sim_world *world) {
    world->wall_ms += dice_between(&world->dice, -86400, 86400) * 1000;
    world_tell(world, "the wall clock jumps");
}

static void err(sim_world *world) {
    sim_trainer *trainer = any_trainer(world);
    if (trainer) trainer_err(world, trainer);
}

static void repeat(sim_world *world) {
    sim_trainer *trainer = any_trainer(world);
    if (!trainer || !trainer->group) return;
    world_tell(world, "trainer %d says what is of an earlier generation", trainer->number);
    trainer_repeat_itself(world, trainer);
}

static void lie_of_steps(sim_world *world) {
    sim_trainer *trainer = any_trainer(world);
    if (trainer && trainer->state == TRAINER_RUNNING) trainer_lie(world, trainer);
}

static void forge(sim_world *world) {
    sim_trainer *trainer = any_trainer(world);
    if (!trainer) return;
    world_tell(world, "somebody says hello as trainer %d", trainer->number);
    trainer_forge_hello(world, trainer);
}

// A host that does not come back. What is asked for can be had without it.
static void lose_host(sim_world *world) {
    sim_agent *lost = any_agent(world);
    int64_t left = 0;
    for (int i = 0; i < world->num_agents; i++)
        left += agent_is_beside(world->agents[i], lost) || world->agents[i]->is_lost ? 0 : world->agents[i]->num_slots;
    for (int i = 0; i < world->people->num_wishes; i++) {
        const gs_job_spec *spec = world->people->wishes[i].spec;
        bool wants_all = spec->restart.on_worker_lost == GS_ON_RESTART || spec->restart.on_worker_error == GS_ON_RESTART;
        if (left < (wants_all ? spec->world.max : spec->world.min)) return;
    }
    if (lost->is_dead) return;
    world_tell(world, "the host of %s is lost for good", lost->name);
    line_set(world, lost->line, true, true);
    for (int i = 0; i < world->num_agents; i++) {
        sim_agent *other = world->agents[i];
        if (!agent_is_beside(other, lost)) continue;
        other->is_lost = true;
        agent_kill(world, other, 100000 * SECONDS);
    }
}

// A rank says of another what ends it.
static void accuse(sim_world *world) {
    static const gs_fault_kind kinds[] = {GS_FAULT_TIMEOUT, GS_FAULT_DAMAGED, GS_FAULT_DIVERGENCE, GS_FAULT_ABORTED};
    sim_trainer *trainer = any_trainer(world);
    if (!trainer || !trainer->group || trainer->state != TRAINER_RUNNING) return;
    world_tell(world, "trainer %d accuses another", trainer->number);
    trainer_accuse(world, trainer, kinds[dice_between(&world->dice, 0, 3)], (int)dice_between(&world->dice, 0, trainer->world_size - 1));
    group_break(world, trainer->group);
}

static void shut_coordinator_down(sim_world *world) {
    world_tell(world, "the coordinator is told to stop");
    coordinator_shut_down(world, away(world));
}

// The same slots, new processes, within 50 ms.
static void restart_worker(sim_world *world) {
    agent_kill(world, any_agent(world), dice_between(&world->dice, 1, 50) * MILLISECONDS);
}

static void meddle(sim_world *world) { people_meddle(world); }

static void break_communicator(sim_world *world) {
    sim_trainer *trainer = any_trainer(world);
    if (!trainer || !trainer->group) return;
    world_tell(world, "the communicator of generation %u breaks", trainer->generation);
    group_break(world, trainer->group);
}

static void shut_worker_down(sim_world *world) {
    agent_leave(world, any_agent(world), away(world));
}

static void damage(sim_world *world) { files_damage(world); }

static void lose_files(sim_world *world) {
    const saved_file *file = files_any(world, &world->dice);
    if (file) files_lose(world, file);
}

static bool is_recording(const sim_world *world, const saved_file *file) {
    const gs_state *state = coordinator_state(world);
    const gs_job *job = state ? gs_job_table_get(&state->jobs, file->job) : NULL;
    for (size_t i = 0; job && i < job->checkpoints.count; i++) {
        const gs_checkpoint *item = &job->checkpoints.items[i];
        if (!strcmp(item->directory, file->directory)) return item->state == GS_CHECKPOINT_RECORDING;
    }
    return false;
}

static void lose_unrecorded(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    const saved_file *file = world->files;
    while (file && !is_recording(world, file)) file = file->next;
    if (!file) return;
    uint64_t job = file->job;
    files_lose(world, file);
    for (sim_trainer *trainer = world->trainers; trainer; trainer = trainer->next) {
        if (!trainer_lives(trainer) || trainer->peer.job != job) continue;
        trainer_kill(world, trainer, 9);
        return;
    }
}

// While rows cannot be written, so that nobody has recorded it yet; the next start finds out.
static void lose_what_is_recorded(sim_world *world) {
    world_tell(world, "writes fail, and somebody clears up");
    rows_trouble_of(world)->one_fails = 1;
    world_after(world, dice_between(&world->dice, 1, 5) * SECONDS, lose_unrecorded, 0, NULL);
    world_after(world, 8 * SECONDS, mend_disk_soon, 0, NULL);
}

typedef struct fault_row {
    void (*befall)(sim_world *world);
    int weight;
} fault_row;

static const fault_row rows[] = {
    {kill_trainer, 6},   {suspend_trainer, 3},     {kill_agent, 3},          {kill_coordinator, 3},
    {kill_coordinator_soon, 8}, {kill_in_transaction, 3}, {suspend_coordinator, 3}, {cut_one, 5},       {cut_all, 4},
    {cut_host, 2},       {cut_in_turn, 2}, {cut_and_restart, 2},        {reset_connections, 5},   {close_and_cut, 2},      {suspend_host, 3},
    {lose_sight, 3},     {suspend_and_cut, 2},     {fill_checkpoints, 2},    {slow_rank, 1},
    {fill_disk, 2},      {slow_disk, 2},           {fail_disk, 3},          {fail_reads, 2},
    {fail_commits, 2},   {lie, 1},            {spoil_record, 1},         {jump_clock, 1},         {meddle, 3},
    {mistake_directory, 2},
    {err, 3},            {accuse, 2},               {shut_coordinator_down, 2}, {restart_worker, 2},
    {repeat, 1},             {lie_of_steps, 1}, {forge, 1},         {lose_host, 2},
    {break_communicator, 3}, {shut_worker_down, 2}, {damage, 2},            {lose_files, 2},          {lose_what_is_recorded, 1},
};

static void befall(sim_world *world, uint64_t row, void *what) {
    (void)what;
    if (world->is_calm) return;
    world->num_faults++;
    rows[row].befall(world);
}

static uint64_t draw(sim_dice *dice) {
    int sum = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) sum += rows[i].weight;
    int64_t chosen = dice_between(dice, 0, sum - 1);
    uint64_t row = 0;
    while (chosen >= rows[row].weight) chosen -= rows[row++].weight;
    return row;
}

void faults_plan(sim_world *world, int64_t within_ns) {
    int64_t count = dice_between(&world->dice, 1, MOST_FAULTS);
    for (int64_t i = 0; i < count; i++) {
        int64_t at_ns = (int64_t)((double)within_ns * (double)(dice_roll(&world->dice) >> 11) * 0x1p-53);
        uint64_t row = draw(&world->dice);
        world_after(world, at_ns, befall, row, NULL);
        // Trouble comes in twos: during what the first one led to.
        if (dice_chance(&world->dice, 0.4))
            world_after(world, at_ns + dice_delay_ns(&world->dice, 500 * MILLISECONDS), befall, draw(&world->dice), NULL);
    }
}

// Of jobs that a disk that lied has lost: nobody knows them, and somebody has to look after their trainers.
static void end_lost_trainers(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    for (sim_trainer *trainer = world->trainers; trainer; trainer = trainer->next) {
        if (!trainer_lives(trainer) || !promises_is_excused(world, trainer->peer.job)) continue;
        world_tell(world, "an operator ends trainer %d", trainer->number);
        trainer_kill(world, trainer, 9);
    }
    world_after(world, 20 * SECONDS, end_lost_trainers, 0, NULL);
}

void faults_mend_all(sim_world *world) {
    for (sim_group *group = world->groups; group; group = group->next)
        if (group->step_ns > SECONDS / 2) group->step_ns = SECONDS / 2;
    end_lost_trainers(world, 0, NULL);
    mend_host(world, 0, NULL);
    mend_disk(world);
    read_again(world, 0, NULL);
    coordinator_let_live(world);
}
