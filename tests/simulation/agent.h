// An agent: its host, which another one may share, its slots, the processes in them. It tells of exits until they are acknowledged.
#ifndef TESTS_SIMULATION_AGENT_H
#define TESTS_SIMULATION_AGENT_H

#include "tests/simulation/peer.h"

#define MAX_SLOTS 3

typedef struct sim_exit {
    uint64_t incarnation, request;  // request 0: not told yet
    int exit_code, signal;
    struct sim_exit *next;
} sim_exit;

struct sim_agent {
    sim_peer peer;
    sim_line own_line;
    sim_line *line;    // of its host: its own, or that of the first there
    const char *host;  // the name of the first there
    int index, num_slots;
    char name[8];
    sim_trainer *slots[MAX_SLOTS];  // NULL: free
    sim_exit *exits;
    bool is_dead, is_leaving, is_lost;
    bool is_welcome;       // to a coordinator that it is connected to: one that stands still takes connections, and welcomes nobody
    int64_t heard_ns;      // of its coordinator, last
    int64_t seen_ns;       // that the directories of its trainers are not closed to them, last
    int64_t disk_back_ns;  // until then its host does not see them
    int64_t room_back_ns;  // until then its host sees them, and cannot write there
    bool holds;            // its trainers stand still
    int64_t turned_ns, stood_ns;  // its last turn; when it woke up behind a standstill, until it is welcome: 0
    int64_t pulse_ns;      // when it knew last that no others have taken the place of its trainers
    int64_t away_ns;  // when it leaves: until it is started again
};

void agent_create(sim_world *world, int index, int64_t joins_after_ns);
void agent_destroy(sim_agent *agent);
void agent_lose_disk(sim_world *world, sim_agent *agent, int64_t ns);
void agent_lose_room(sim_world *world, sim_agent *agent, int64_t ns);
bool agent_is_beside(const sim_agent *agent, const sim_agent *other);  // on one host; or the same
// A process of it has ended.
void agent_reap(sim_world *world, sim_agent *agent, const sim_trainer *trainer, int exit_code, int signal);
void agent_leave(sim_world *world, sim_agent *agent, int64_t away_ns);  // told to: with all on it, once they have saved
void agent_kill(sim_world *world, sim_agent *agent, int64_t away_ns);  // with all on it

#endif
