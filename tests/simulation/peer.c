#include "tests/simulation/peer.h"

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

// The coordinator hears of it behind `delay_ns`.
static void lose(sim_world *world, sim_peer *peer, bool was_closed, int64_t delay_ns) {
    if (!peer->connection) return;
    lost_connection *lost = malloc(sizeof *lost);
    *lost = (lost_connection){peer->connection, peer->life, was_closed};
    // Behind what was said over it.
    int64_t least_ns = peer->next_message_ns + 1 - world->now_ns;
    world_after(world, delay_ns > least_ns ? delay_ns : least_ns, tell_coordinator, 0, lost);
    peer->connection = 0;
    peer->stream_request = 0;
    peer->lost_ns = world->now_ns;
    if (peer->is_gone) return;
    peer->ops->lost(world, peer);
    world_after(world, dice_delay_ns(&world->dice, RECONNECT_NS), look_for_coordinator, peer->id, NULL);
}

void peer_end(sim_world *world, sim_peer *peer) {
    peer->is_gone = true;
    bool reaches = !is_cut(peer->line);
    // A close that cannot be told is silence.
    lose(world, peer, reaches, reaches ? dice_delay_ns(&world->dice, MILLISECONDS) : SILENCE_NS);
}

void peers_lose_coordinator(sim_world *world) {
    for (sim_peer *peer = world->peers; peer; peer = peer->next) {
        if (!peer->connection) continue;
        peer->connection = 0;
        peer->stream_request = 0;
        peer->lost_ns = world->now_ns;
        if (peer->is_gone) continue;
        peer->ops->lost(world, peer);
        world_after(world, dice_delay_ns(&world->dice, RECONNECT_NS), look_for_coordinator, peer->id, NULL);
    }
}

static void fall_silent(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    sim_line *line = *(sim_line **)what;
    free(what);
    if (!line->cut_ns || world->now_ns - line->cut_ns < SILENCE_NS) return;
    for (sim_peer *peer = world->peers; peer; peer = peer->next) {
        if (peer->line == line && !peer->is_gone) lose(world, peer, false, dice_delay_ns(&world->dice, MILLISECONDS));
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

typedef struct message {
    gs_engine_event event;
    sim_caller caller;
    uint64_t request, life;
    bool is_stream;
} message;

static void release_message(void *what) {
    message *sent = what;
    gs_engine_event_release(&sent->event);
    free(sent);
}

static void deliver(sim_world *world, uint64_t id, void *what) {
    message *sent = what;
    sim_peer *peer = find_peer(world, id);
    bool holds = peer && (peer->connection == sent->caller.connection || (peer->is_gone && !is_cut(peer->line)));
    if (!holds || coordinator_life(world) != sent->life) {
        release_message(what);
        return;
    }
    if (peer->line->to_coordinator_down) {
        if (sent->request) world_after_owned(world, REPEAT_NS, deliver, id, what, release_message);
        else release_message(what);
        return;
    }
    coordinator_hear(world, &sent->caller, sent->request, sent->is_stream, &sent->event);
    free(sent);
}

gs_engine_event peer_event(const sim_peer *peer, gs_engine_event_kind kind, int64_t generation) {
    return (gs_engine_event){.kind = kind,
                             .from = {.incarnation = peer->incarnation, .job = peer->job, .generation = generation}};
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
    if (peer->line->from_coordinator_down || suspended) {
        int64_t wait_ns = suspended ? peer->suspended_until_ns - world->now_ns : REPEAT_NS;
        if (peer->next_item_ns < world->now_ns + wait_ns) peer->next_item_ns = world->now_ns + wait_ns;
        world_after(world, wait_ns, hand_over, id, sent);
        return;
    }
    if (sent->is_item) peer->ops->item(world, peer, &sent->item);
    else peer->ops->answer(world, peer, &sent->answer);
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
