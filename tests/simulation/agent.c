#include "tests/simulation/agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/checkpoint/life_sign.h"
#include "tests/simulation/fences.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/people.h"
#include "tests/simulation/trainer.h"

#define HEARTBEAT_NS (500 * MILLISECONDS)
#define ALONE_NS SECONDS
#define SHARES 0.25  // the host of another
#define GRACE_NS (30 * SECONDS)  // of trainers, when it is told to leave

static sim_agent *of(sim_peer *peer) { return (sim_agent *)(void *)peer; }

static gs_running_trainer running_of(const sim_world *world, const sim_trainer *trainer, int slot) {
    return (gs_running_trainer){.slot = slot, .pid = 1, .incarnation = trainer->peer.incarnation, .job = trainer->peer.job,
                                .cluster = trainer->cluster, .rank = trainer->rank, .world_size = trainer->world_size,
                                .generation = trainer->generation, .step = trainer->applied_step,
                                .membership = world->is_of_before ? GS_MEMBERSHIP_UNTOLD : trainer_membership(trainer)};
}

static void say_hello(sim_world *world, sim_peer *peer) {
    sim_agent *agent = of(peer);
    gs_engine_event event = peer_event(peer, GS_ON_AGENT_HELLO, -1);
    gs_agent_hello *hello = &event.agent_hello;
    *hello = (gs_agent_hello){.worker = agent->name, .host = agent->host, .boot_id = "boot", .network = agent->host,
                              .build = "", .data_root = "",
                              .pid = 1, .cores = 2, .num_slots = agent->num_slots, .is_leaving = agent->is_leaving,
                              .takes_cadence = !world->is_of_before};
    hello->looks_out = true;
    hello->shows_tokens = !world->is_of_before;
    hello->seen = peer_seen(peer);
    hello->devices.per_slot = 1;
    hello->running = calloc(MAX_SLOTS, sizeof *hello->running);
    for (int i = 0; i < agent->num_slots; i++) {
        if (agent->slots[i]) hello->running[hello->num_running++] = running_of(world, agent->slots[i], i);
    }
    peer_open_stream(world, peer, &event);
    for (sim_exit *exit = agent->exits; exit; exit = exit->next) exit->request = 0;
}

static void tell_exits(sim_world *world, sim_agent *agent) {
    for (sim_exit *exit = agent->exits; exit; exit = exit->next) {
        if (exit->request) continue;
        gs_engine_event event = peer_event(&agent->peer, GS_ON_EXITED, -1);
        event.exited = (gs_exit_report){.incarnation = exit->incarnation, .exit_code = exit->exit_code,
                                        .signal = exit->signal};
        exit->request = peer_call(world, &agent->peer, &event);
    }
}

static void add_exit(sim_world *world, sim_agent *agent, uint64_t incarnation, int exit_code, int signal) {
    sim_exit *exit = calloc(1, sizeof *exit);
    *exit = (sim_exit){.incarnation = incarnation, .exit_code = exit_code, .signal = signal, .next = agent->exits};
    agent->exits = exit;
    if (peer_moves(world, &agent->peer)) tell_exits(world, agent);
}

static void start_rank(sim_world *world, sim_agent *agent, const sim_item *item) {
    const sim_trainer *there = item->slot >= 0 && item->slot < agent->num_slots ? agent->slots[item->slot] : NULL;
    if (there && there->peer.incarnation == item->incarnation) return;  // said twice
    if (there) oracle_fail(world, "%s is told to start a trainer in slot %d, where one is", agent->name, item->slot);
    if (there || agent->is_leaving) add_exit(world, agent, item->incarnation, 75, 0);
    else agent->slots[item->slot] = trainer_start(world, agent, item);
}

static void connected(sim_world *world, sim_peer *peer) {
    world_tell(world, "%s connects", of(peer)->name);
    say_hello(world, peer);
    tell_exits(world, of(peer));
}

static void lost(sim_world *world, sim_peer *peer) {
    of(peer)->is_welcome = false;
    world_tell(world, "%s has lost its coordinator", of(peer)->name);
}

// With what it takes to be its coordinator.
static void describe(sim_world *world, sim_agent *agent, const sim_trainer *trainer, int slot) {
    const sim_wish *wish = people_wish_of(world, trainer->peer.job);
    if (!wish) return;
    gs_engine_event event = peer_event(&agent->peer, GS_ON_DESCRIBED, -1);
    event.described = (gs_described_trainer){.running = running_of(world, trainer, slot), .launch_token = trainer->launch_token,
                                             .last_generation = trainer->last_generation,
                                             .writes_as = world->is_of_before ? "" : trainer->launch_cluster,
                                             .checkpoints_dir = "", .spec = malloc(sizeof *wish->spec)};
    *event.described.spec = *wish->spec;
    snprintf(event.described.spec_digest, sizeof event.described.spec_digest, "%s", wish->fingerprint);
    peer_send(world, &agent->peer, &event);
}

static void take_item(sim_world *world, sim_peer *peer, const sim_item *item) {
    sim_agent *agent = of(peer);
    if (item->agent_order == GS_TELL_AGENT_WELCOME) {  // behind the orders to kill
        agent->stood_ns = 0;
        agent->is_welcome = true;
        peer_see(peer, item);
        return;
    }
    if (item->agent_order == GS_TELL_START_RANK) {
        start_rank(world, agent, item);
        return;
    }
    sim_trainer *trainer = item->slot >= 0 && item->slot < agent->num_slots ? agent->slots[item->slot] : NULL;
    if (!trainer || trainer->peer.incarnation != item->incarnation) return;
    if (item->agent_order == GS_TELL_STOP_RANK) trainer_stop(world, trainer, item->kill ? 0 : item->grace_ns);
    else if (item->agent_order == GS_TELL_DESCRIBE_RANK) describe(world, agent, trainer, item->slot);
    else if (item->agent_order == GS_TELL_ADOPT_RANK) memcpy(trainer->cluster, item->cluster, sizeof trainer->cluster);
}

static void take_answer(sim_world *world, sim_peer *peer, const sim_answer *answer) {
    sim_agent *agent = of(peer);
    if (answer->request == peer->stream_request) {  // refused, or replaced
        peer->stream_request = 0;
        agent->is_welcome = false;
        return;
    }
    (void)world;
    for (sim_exit **link = &agent->exits; *link; link = &(*link)->next) {
        sim_exit *exit = *link;
        if (exit->request != answer->request || answer->status.code) continue;
        *link = exit->next;
        free(exit);
        return;
    }
}

static const sim_peer_ops ops = {connected, lost, take_item, take_answer};

static bool is_done(const sim_agent *agent) {
    for (int i = 0; i < agent->num_slots; i++) {
        if (agent->slots[i]) return false;
    }
    return !agent->exits;
}

static void look(sim_world *world, sim_agent *agent) {
    for (int i = 0; i < agent->num_slots; i++) {
        sim_trainer *trainer = agent->slots[i];
        if (!trainer) continue;
        if (world->now_ns >= agent->room_back_ns) fences_sign(world, trainer->peer.job, trainer->generation);
        if (!fences_are_above(world, trainer->peer.job, trainer->launch_cluster, trainer->generation)) continue;
        world_tell(world, "%s: others have taken the place of trainer %d", agent->name, trainer->number);
        trainer_kill(world, trainer, 9);
    }
    agent->seen_ns = world->now_ns;
}

// Nobody is heard: signs of life are left where checkpoints lie, and who finds that others have taken its place there ends; who
// does not see that either, and is not heard, takes no step.
static void look_out(sim_world *world, sim_agent *agent) {
    if (agent->is_dead || !peer_moves(world, &agent->peer)) return;
    if (agent->is_welcome && peer_hears(world, &agent->peer)) agent->heard_ns = world->now_ns;
    bool is_alone = world->now_ns - agent->heard_ns >= ALONE_NS;
    if (is_alone && world->now_ns >= agent->disk_back_ns) look(world, agent);
    int64_t known_ns = !agent->holds && agent->heard_ns > agent->seen_ns ? agent->heard_ns : agent->seen_ns;
    bool holds = is_alone && world->now_ns - known_ns >= GS_LIFE_UNSEEN_NS;
    if (holds != agent->holds) world_tell(world, holds ? "%s has its trainers stand still" : "%s lets its trainers go on", agent->name);
    agent->holds = holds;
    if (!holds && (!agent->stood_ns || agent->seen_ns >= agent->stood_ns)) agent->pulse_ns = world->now_ns;
}

// What it has from the coordinator may be from before it stood still.
static void wake_up(sim_world *world, sim_agent *agent) {
    if (agent->is_dead || !peer_moves(world, &agent->peer)) return;
    if (world->now_ns - agent->turned_ns >= GS_LIFE_UNSEEN_NS) {
        agent->stood_ns = agent->heard_ns = world->now_ns;
        agent->is_welcome = false;
        if (peer_hears(world, &agent->peer)) say_hello(world, &agent->peer);
    }
    agent->turned_ns = world->now_ns;
}

void agent_lose_disk(sim_world *world, sim_agent *agent, int64_t ns) {
    for (int i = 0; i < world->num_agents; i++)
        if (agent_is_beside(world->agents[i], agent)) world->agents[i]->disk_back_ns = world->now_ns + ns;
}

void agent_lose_room(sim_world *world, sim_agent *agent, int64_t ns) {
    for (int i = 0; i < world->num_agents; i++)
        if (agent_is_beside(world->agents[i], agent)) world->agents[i]->room_back_ns = world->now_ns + ns;
}

static void beat(sim_world *world, uint64_t index, void *what) {
    (void)what;
    sim_agent *agent = world->agents[index];
    if (agent->is_leaving && !agent->is_dead && is_done(agent)) agent_kill(world, agent, agent->away_ns);
    wake_up(world, agent);
    look_out(world, agent);
    if (peer_hears(world, &agent->peer) && peer_moves(world, &agent->peer)) {
        gs_engine_event event = peer_event(&agent->peer, GS_ON_AGENT_HEARTBEAT, -1);
        event.agent_heartbeat.is_leaving = agent->is_leaving;
        peer_send(world, &agent->peer, &event);
        if (!agent->peer.stream_request) say_hello(world, &agent->peer);
        tell_exits(world, agent);
    }
    world_after(world, HEARTBEAT_NS, beat, index, NULL);
}

static void begin_life(sim_world *world, sim_agent *agent) {
    agent->peer = (sim_peer){.kind = CALLER_AGENT, .ops = &ops, .line = agent->line,
                             .incarnation = dice_roll(&world->dice) | 1};
    agent->is_dead = agent->is_leaving = agent->holds = agent->is_welcome = false;
    agent->heard_ns = agent->turned_ns = agent->pulse_ns = world->now_ns;
    agent->stood_ns = 0;
    peer_create(world, &agent->peer);
}

static void unlink_peer(sim_world *world, const sim_peer *peer) {
    sim_peer **link = &world->peers;
    while (*link && *link != peer) link = &(*link)->next;
    if (*link) *link = peer->next;
}

static void live_again(sim_world *world, uint64_t index, void *what) {
    (void)what;
    sim_agent *agent = world->agents[index];
    if (!agent->is_dead || agent->is_lost) return;
    world_tell(world, "%s is started", agent->name);
    unlink_peer(world, &agent->peer);
    begin_life(world, agent);
}

void agent_create(sim_world *world, int index, int64_t joins_after_ns) {
    sim_agent *agent = calloc(1, sizeof *agent);
    world->agents[index] = agent;
    agent->index = index;
    agent->num_slots = (int)dice_between(&world->dice, 1, MAX_SLOTS);
    snprintf(agent->name, sizeof agent->name, "w%d", index);
    agent->line = &agent->own_line;
    agent->host = agent->name;
    if (index > 0 && dice_chance(&world->dice, SHARES)) {
        const sim_agent *other = world->agents[dice_between(&world->dice, 0, index - 1)];
        agent->line = other->line;
        agent->host = other->host;
    }
    agent->is_dead = true;
    if (joins_after_ns > 0) world_after(world, joins_after_ns, live_again, (uint64_t)index, NULL);
    else begin_life(world, agent);
    world_after(world, HEARTBEAT_NS, beat, (uint64_t)index, NULL);
}

void agent_destroy(sim_agent *agent) {
    while (agent->exits) {
        sim_exit *exit = agent->exits;
        agent->exits = exit->next;
        free(exit);
    }
    free(agent);
}

bool agent_is_beside(const sim_agent *agent, const sim_agent *other) { return agent->line == other->line; }

void agent_reap(sim_world *world, sim_agent *agent, const sim_trainer *trainer, int exit_code, int signal) {
    for (int i = 0; i < agent->num_slots; i++) {
        if (agent->slots[i] == trainer) agent->slots[i] = NULL;
    }
    if (agent->is_dead) return;  // and with it what it would have told
    add_exit(world, agent, trainer->peer.incarnation, exit_code, signal);
}

void agent_leave(sim_world *world, sim_agent *agent, int64_t away_ns) {
    if (agent->is_dead || agent->is_leaving) return;
    world_tell(world, "%s is told to leave", agent->name);
    agent->is_leaving = true;
    agent->away_ns = away_ns;
    for (int i = 0; i < agent->num_slots; i++) {
        if (agent->slots[i]) trainer_stop(world, agent->slots[i], GRACE_NS);
    }
}

void agent_kill(sim_world *world, sim_agent *agent, int64_t away_ns) {
    if (agent->is_dead) return;
    world_tell(world, agent->is_leaving ? "%s has left" : "%s is killed, with all on it", agent->name);
    agent->is_dead = true;
    agent->is_leaving = false;
    peer_end(world, &agent->peer);
    for (int i = 0; i < agent->num_slots; i++) {
        if (agent->slots[i]) trainer_kill(world, agent->slots[i], 9);
    }
    while (agent->exits) {
        sim_exit *exit = agent->exits;
        agent->exits = exit->next;
        free(exit);
    }
    world_after(world, away_ns, live_again, (uint64_t)agent->index, NULL);
}
