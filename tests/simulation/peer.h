// One that speaks to the coordinator: an agent, a trainer, or people. Its line goes over its host; a connection lives on it as long as
// both ends and the line do, and is made anew.
//
// What goes over one connection comes in order, in both ways. When it breaks, both ends notice, each in its time: until then a
// coordinator talks to nobody, and what it still reads of the old connection may come behind what is said over the next
// one. Calls that were not answered are asked again, of whoever is there then, whether they were heard or not.
#ifndef TESTS_SIMULATION_PEER_H
#define TESTS_SIMULATION_PEER_H

#include "tests/simulation/coordinator.h"

typedef struct sim_line {
    bool to_coordinator_down, from_coordinator_down;
    int64_t cut_ns;  // since when either is; 0: neither
} sim_line;

typedef struct sim_peer sim_peer;
typedef struct sim_peer_ops {
    void (*connected)(sim_world *world, sim_peer *peer);
    void (*lost)(sim_world *world, sim_peer *peer);
    void (*item)(sim_world *world, sim_peer *peer, const sim_item *item);
    void (*answer)(sim_world *world, sim_peer *peer, const sim_answer *answer);
} sim_peer_ops;

struct sim_peer {
    sim_caller_kind kind;
    uint64_t id, incarnation, job;
    uint64_t shown_token;  // 0: none
    const sim_peer_ops *ops;
    sim_line *line;  // of its host
    bool is_gone;    // its process has ended
    int64_t suspended_until_ns;
    uint64_t connection, life;  // 0: none; of the coordinator that it leads to
    int64_t connected_ns, lost_ns, next_item_ns, next_message_ns;
    int64_t spoke_ns;  // when the coordinator got a word of it, last
    int64_t items_held_ns, messages_held_ns;  // what is on its way waits until then
    uint64_t old_connection;                  // that the coordinator still reads from; 0: none
    int64_t old_until_ns;
    int64_t last_one_way;                     // number of the newest that was heard
    int64_t num_one_way;
    uint64_t last_request, stream_request;
    char seen_cluster[GS_CLUSTER_NAME_LEN];  // of the coordinator that has welcomed it last; "": none
    uint32_t seen_epoch;
    uint64_t seen_life;
    int64_t orphan_ns;  // that it goes on alone, as that welcome said
    sim_peer *next;
};

void peer_create(sim_world *world, sim_peer *peer);  // and it looks for the coordinator
void peer_end(sim_world *world, sim_peer *peer);     // its process dies
void peer_see(sim_peer *peer, const sim_item *welcome);
gs_seen_life peer_seen(const sim_peer *peer);  // its text is the peer's
bool peer_hears(const sim_world *world, const sim_peer *peer);

// Sends the event (taken) as a call, a stream or one way. Returns the number of the request; 0: one way, or there is no connection.
uint64_t peer_call(sim_world *world, sim_peer *peer, gs_engine_event *event);
uint64_t peer_open_stream(sim_world *world, sim_peer *peer, gs_engine_event *event);
void peer_send(sim_world *world, sim_peer *peer, gs_engine_event *event);
gs_engine_event peer_event(const sim_peer *peer, gs_engine_event_kind kind, int64_t generation);

// Of the coordinator.
void peer_answer(sim_world *world, const sim_caller *caller, const sim_answer *answer);
void peer_item(sim_world *world, const sim_caller *caller, const sim_item *item);
void peers_lose_coordinator(sim_world *world);
void peers_miss_coordinator(sim_world *world, int64_t ns);  // it stands still for so long

// Its connection breaks; what is on its way may come late. Some resets look like the end of a process.
void peer_reset(sim_world *world, sim_peer *peer, bool looks_closed);
void peer_suspend(sim_world *world, sim_peer *peer, int64_t ns);  // its process stands still
bool peer_moves(const sim_world *world, const sim_peer *peer);

void line_set(sim_world *world, sim_line *line, bool to_coordinator_down, bool from_coordinator_down);

#endif
