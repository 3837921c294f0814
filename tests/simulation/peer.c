#include "tests/simulation/peer.h"

#include <stdio.h>
#include <stdlib.h>

#define LATENCY_NS (MILLISECONDS)
#define REPEAT_NS (500 * MILLISECONDS)
#define SILENCE_NS (700 * MILLISECONDS)  // of a line: ends a connection
#define RECONNECT_NS (200 * MILLISECONDS)

static sim_peer *find_peer(sim_world *world, uint64_t id) {
    for (sim_peer *peer = world->peers; peer; peer = peer->next) {
        if (peer->id == id) return peer;
    }
    return NULL;
}

bool peer_hears(const sim_world *world, const sim_peer *peer) {
    return !peer->is_gone && peer->connection && peer->life == coordinator_life(world);
}

void peer_see(sim_peer *peer, const sim_item *welcome) {
    snprintf(peer->seen_cluster, sizeof peer->seen_cluster, "%s", welcome->cluster);
    peer->seen_epoch = welcome->epoch;
    peer->seen_life = welcome->life;
    peer->orphan_ns = welcome->orphan_ns;
}

gs_seen_life peer_seen(const sim_peer *peer) { return (gs_seen_life){peer->seen_cluster, peer->seen_epoch, peer->seen_life, false}; }

static bool is_cut(const sim_line *line) { return line->to_coordinator_down || line->from_coordinator_down; }

static void look_for_coordinator(sim_world *world, uint64_t id, void *what) {
    (void)what;
    sim_peer *peer = find_peer(world, id);
    if (!peer || peer->is_gone || peer->connection) return;
    bool suspended = peer->suspended_until_ns > world->now_ns;
    if (suspended || is_cut(peer->line) || !coordinator_is_alive(world)) {
        world_after(world, dice_delay_ns(&world->dice, RECONNECT_NS), look_for_coordinator, id, NULL);
        return;
    }
    peer->connection = world_new_id(world);
    peer->life = coordinator_life(world);
    peer->connected_ns = peer->next_item_ns = peer->next_message_ns = world->now_ns;
    peer->items_held_ns = peer->messages_held_ns = world->now_ns;
    peer->ops->connected(world, peer);
}

void peer_create(sim_world *world, sim_peer *peer) {
    peer->id = world_new_id(world);
    peer->lost_ns = world->now_ns;
    peer->next = world->peers;
    world->peers = peer;
    world_after(world, dice_delay_ns(&world->dice, 5 * MILLISECONDS), look_for_coordinator, peer->id, NULL);
}

typedef struct lost_connection {
    uint64_t connection, life;
    bool was_closed;
} lost_connection;

static void tell_coordinator(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    lost_connection *lost = what;
    if (coordinator_life(world) == lost->life) coordinator_lose(world, lost->connection, lost->was_closed);
    free(lost);
}

// The coordinator hears of it behind `delay_ns`, and behind what was said.
static void break_for_coordinator(sim_world *world, const sim_peer *peer, bool was_closed, int64_t delay_ns) {
    lost_connection *lost = malloc(sizeof *lost);
    *lost = (lost_connection){peer->connection, peer->life, was_closed};
    int64_t least_ns = peer->next_message_ns + 1 - world->now_ns;
    int64_t held_ns = peer->messages_held_ns + 1 - world->now_ns;
    if (delay_ns < least_ns) delay_ns = least_ns;
    if (was_closed && delay_ns < held_ns) delay_ns = held_ns;
    world_after(world, delay_ns, tell_coordinator, 0, lost);
}

static void break_for_peer(sim_world *world, sim_peer *peer) {
    peer->connection = 0;
    peer->stream_request = 0;
    peer->lost_ns = world->now_ns;
    if (peer->is_gone) return;
    peer->ops->lost(world, peer);
    world_after(world, dice_delay_ns(&world->dice, RECONNECT_NS), look_for_coordinator, peer->id, NULL);
}

void peer_end(sim_world *world, sim_peer *peer) {
    peer->is_gone = true;
    if (!peer->connection) return;
    bool reaches = !is_cut(peer->line);
    // A close that cannot be told is silence.
    break_for_coordinator(world, peer, reaches, reaches ? dice_delay_ns(&world->dice, MILLISECONDS) : SILENCE_NS);
    break_for_peer(world, peer);
}

void peers_lose_coordinator(sim_world *world) {
    for (sim_peer *peer = world->peers; peer; peer = peer->next) {
        if (peer->connection) break_for_peer(world, peer);
    }
}

void peer_reset(sim_world *world, sim_peer *peer, bool looks_closed) {
    if (peer->is_gone || !peer->connection) return;
    bool comes_late = dice_chance(&world->dice, 0.6);
    int64_t late_ns = comes_late ? dice_delay_ns(&world->dice, 300 * MILLISECONDS) : 0;
    peer->old_connection = comes_late ? peer->connection : 0;
    peer->old_until_ns = world->now_ns + late_ns;
    break_for_coordinator(world, peer, looks_closed, late_ns + 1);
    break_for_peer(world, peer);
}

// Of the connection that it had when this was foreseen.
static void notice(sim_world *world, uint64_t id, void *what) {
    sim_peer *peer = find_peer(world, id);
    uint64_t connection = *(uint64_t *)what;
    free(what);
    if (peer && !peer->is_gone && peer->connection == connection) break_for_peer(world, peer);
}

static void notice_after(sim_world *world, const sim_peer *peer, int64_t ns) {
    uint64_t *what = malloc(sizeof *what);
    *what = peer->connection;
    world_after(world, ns, notice, peer->id, what);
}

static bool has_connection(const sim_peer *peer) { return peer->connection && !peer->is_gone; }

// Both ends give up, neither knows of the other.
static void fall_silent(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    sim_line *line = *(sim_line **)what;
    free(what);
    if (!line->cut_ns || world->now_ns - line->cut_ns < SILENCE_NS) return;
    for (sim_peer *peer = world->peers; peer; peer = peer->next) {
        if (peer->line != line || !has_connection(peer)) continue;
        break_for_coordinator(world, peer, false, dice_delay_ns(&world->dice, 100 * MILLISECONDS));
        notice_after(world, peer, dice_delay_ns(&world->dice, 100 * MILLISECONDS));
    }
}

void line_set(sim_world *world, sim_line *line, bool to_coordinator_down, bool from_coordinator_down) {
    line->to_coordinator_down = to_coordinator_down;
    line->from_coordinator_down = from_coordinator_down;
    if (!is_cut(line)) {
        line->cut_ns = 0;
        return;
    }
    if (!line->cut_ns) line->cut_ns = world->now_ns;
    sim_line **what = malloc(sizeof(sim_line *));
    *what = line;
    world_after(world, SILENCE_NS, fall_silent, 0, what);
}

// Who hears nothing for long looks for another connection; what is said over it waits, too.
void peers_miss_coordinator(sim_world *world, int64_t ns) {
    for (sim_peer *peer = world->peers; peer && ns > SILENCE_NS; peer = peer->next) {
        if (!has_connection(peer) || dice_chance(&world->dice, 0.3)) continue;
        break_for_coordinator(world, peer, true, SILENCE_NS + dice_delay_ns(&world->dice, 100 * MILLISECONDS));
        notice_after(world, peer, SILENCE_NS);
    }
}

bool peer_moves(const sim_world *world, const sim_peer *peer) {
    return !peer->is_gone && peer->suspended_until_ns <= world->now_ns;
}

void peer_suspend(sim_world *world, sim_peer *peer, int64_t ns) {
    if (peer->suspended_until_ns < world->now_ns + ns) peer->suspended_until_ns = world->now_ns + ns;
    if (ns <= SILENCE_NS || !has_connection(peer)) return;
    break_for_coordinator(world, peer, false, SILENCE_NS + dice_delay_ns(&world->dice, 100 * MILLISECONDS));
    notice_after(world, peer, ns);
}

typedef struct message {
    gs_engine_event event;
    sim_caller caller;
    uint64_t request, life;
    int64_t one_way;  // its number
    bool is_stream;
} message;

static void release_message(void *what) {
    message *sent = what;
    gs_engine_event_release(&sent->event);
    free(sent);
}

static void deliver(sim_world *world, uint64_t id, void *what);

static void wait_on_the_way(sim_world *world, sim_peer *peer, message *sent, int64_t until_ns) {
    world_after_owned(world, until_ns - world->now_ns, deliver, peer->id, sent, release_message);
}

// One-way messages are counted: behind a newer one an older is nothing.
static bool is_stale(sim_peer *peer, const message *sent) {
    if (sent->request) return false;
    if (sent->one_way <= peer->last_one_way) return true;
    peer->last_one_way = sent->one_way;
    return false;
}

static void deliver(sim_world *world, uint64_t id, void *what) {
    message *sent = what;
    sim_peer *peer = find_peer(world, id);
    uint64_t connection = sent->caller.connection;
    bool is_old = peer && peer->connection != connection && peer->old_connection == connection;
    bool holds = peer && (peer->connection == connection || is_old || (peer->is_gone && !is_cut(peer->line)));
    if (!holds || coordinator_life(world) != sent->life) {
        release_message(what);
        return;
    }
    if (is_old && world->now_ns < peer->old_until_ns) {
        wait_on_the_way(world, peer, sent, peer->old_until_ns);
        return;
    }
    if (peer->line->to_coordinator_down && peer->messages_held_ns <= world->now_ns)
        peer->messages_held_ns = world->now_ns + REPEAT_NS;
    if (!is_old && peer->messages_held_ns > world->now_ns) {
        wait_on_the_way(world, peer, sent, peer->messages_held_ns);
        return;
    }
    if (is_stale(peer, sent)) {
        release_message(what);
        return;
    }
    peer->spoke_ns = world->now_ns;
    coordinator_hear(world, &sent->caller, sent->request, sent->is_stream, &sent->event);
    free(sent);
}

gs_engine_event peer_event(const sim_peer *peer, gs_engine_event_kind kind, int64_t generation) {
    return (gs_engine_event){.kind = kind,
                             .from = {.who.incarnation = peer->incarnation, .who.job = peer->job, .who.token = peer->shown_token,
                                      .generation = generation}};
}

static uint64_t send(sim_world *world, sim_peer *peer, gs_engine_event *event, bool wants_answer, bool is_stream) {
    if (!peer->connection) {
        gs_engine_event_release(event);
        return 0;
    }
    message *sent = malloc(sizeof *sent);
    *sent = (message){.event = *event,
                      .caller = {peer->kind, peer->id, peer->connection},
                      .request = wants_answer ? ++peer->last_request : 0,
                      .life = peer->life,
                      .one_way = ++peer->num_one_way,
                      .is_stream = is_stream};
    uint64_t request = sent->request;
    // What goes over one connection comes in order.
    int64_t at_ns = world->now_ns + dice_delay_ns(&world->dice, LATENCY_NS);
    if (at_ns <= peer->next_message_ns) at_ns = peer->next_message_ns + 1;
    peer->next_message_ns = at_ns;
    world_after_owned(world, at_ns - world->now_ns, deliver, peer->id, sent, release_message);
    return request;
}

uint64_t peer_call(sim_world *world, sim_peer *peer, gs_engine_event *event) {
    return send(world, peer, event, true, false);
}

uint64_t peer_open_stream(sim_world *world, sim_peer *peer, gs_engine_event *event) {
    return peer->stream_request = send(world, peer, event, true, true);
}

void peer_send(sim_world *world, sim_peer *peer, gs_engine_event *event) { send(world, peer, event, false, false); }

typedef struct letter {
    sim_caller caller;
    bool is_item;
    sim_item item;
    sim_answer answer;
} letter;

static void hand_over(sim_world *world, uint64_t id, void *what) {
    letter *sent = what;
    sim_peer *peer = find_peer(world, id);
    if (!peer || peer->is_gone || peer->connection != sent->caller.connection) {
        free(sent);
        return;
    }
    bool suspended = peer->suspended_until_ns > world->now_ns;
    if (peer->items_held_ns <= world->now_ns && suspended) peer->items_held_ns = peer->suspended_until_ns;
    if (peer->items_held_ns <= world->now_ns && peer->line->from_coordinator_down)
        peer->items_held_ns = world->now_ns + REPEAT_NS;
    if (peer->items_held_ns > world->now_ns) {
        world_after(world, peer->items_held_ns - world->now_ns, hand_over, id, sent);
        return;
    }
    if (sent->is_item && sent->item.request == peer->stream_request) peer->ops->item(world, peer, &sent->item);
    else if (!sent->is_item) peer->ops->answer(world, peer, &sent->answer);
    free(sent);
}

// In order: what was said first comes first.
static void post(sim_world *world, letter *sent) {
    sim_peer *peer = find_peer(world, sent->caller.id);
    if (!peer || peer->connection != sent->caller.connection) {
        free(sent);
        return;
    }
    int64_t at_ns = world->now_ns + dice_delay_ns(&world->dice, LATENCY_NS);
    if (at_ns <= peer->next_item_ns) at_ns = peer->next_item_ns + 1;
    peer->next_item_ns = at_ns;
    world_after(world, at_ns - world->now_ns, hand_over, peer->id, sent);
}

void peer_answer(sim_world *world, const sim_caller *caller, const sim_answer *answer) {
    letter *sent = calloc(1, sizeof *sent);
    sent->caller = *caller;
    sent->answer = *answer;
    post(world, sent);
}

void peer_item(sim_world *world, const sim_caller *caller, const sim_item *item) {
    letter *sent = calloc(1, sizeof *sent);
    sent->caller = *caller;
    sent->is_item = true;
    sent->item = *item;
    post(world, sent);
}
