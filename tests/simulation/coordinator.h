// The coordinator of a world: the real engine, lives one after the other, on the world's disk. What it does with the
// effects of its engine is what serve does: answers and items go out on lines, rows and looks at files to the disk.
#ifndef TESTS_SIMULATION_COORDINATOR_H
#define TESTS_SIMULATION_COORDINATOR_H

#include "coordinator/engine/engine.h"
#include "tests/simulation/world.h"

// Who calls: of an agent's or a trainer's host, or people.
typedef enum sim_caller_kind { CALLER_AGENT = 0, CALLER_TRAINER, CALLER_PEOPLE } sim_caller_kind;

typedef struct sim_caller {
    sim_caller_kind kind;
    uint64_t id;
    uint64_t connection;  // answers go to who is still on it
} sim_caller;

// What a peer hears.
typedef struct sim_answer {
    uint64_t request;  // its own number
    bool ends_stream;
    gs_status status;
    bool apply, save;    // of a Settle
    uint64_t job;        // of a job shown
    gs_job_state state;  // of that job
    bool is_forgotten;   // it was made by this request, has ended and is forgotten
} sim_answer;

typedef struct sim_item {
    uint64_t request;  // the Hello whose stream it is on: who has said another takes it no more
    bool is_for_agent;
    gs_member_order member_order;
    gs_agent_order agent_order;
    uint64_t job, incarnation, launch_token;
    uint32_t generation, last_generation;
    int64_t begun_ns;  // its run
    int rank, world_size, slot;
    char cluster[GS_CLUSTER_NAME_LEN];  // whose coordinator it is
    uint32_t epoch;                     // of its start
    uint64_t life;                      // the same
    bool send_params, kill, save;
    int64_t base_step, resume_step, target, save_every, grace_ns, orphan_ns;
    char plan_hash[GS_DIGEST_TEXT_LEN];
    char checkpoint[GS_CHECKPOINT_NAME_LEN];  // to resume from; "": none
} sim_item;

void coordinator_create(sim_world *world);
void coordinator_destroy(sim_world *world);
bool coordinator_is_alive(const sim_world *world);
uint64_t coordinator_life(const sim_world *world);        // number of its life; 0: dead
const gs_state *coordinator_state(const sim_world *world);  // NULL: dead
const gs_engine *coordinator_engine(const sim_world *world);

// A message has come. The event is taken. `request` is the caller's number; 0: one-way.
void coordinator_hear(sim_world *world, const sim_caller *caller, uint64_t request, bool is_stream,
                      gs_engine_event *event);
// The other end of a connection is gone: at its end (`was_closed`), or by silence.
void coordinator_lose(sim_world *world, uint64_t connection, bool was_closed);
// From the disk, for an effect of this life.
void coordinator_complete(sim_world *world, uint64_t life, gs_engine_event *event);

void coordinator_kill(sim_world *world, int64_t away_ns);
void coordinator_cut_power(sim_world *world, int64_t away_ns);  // of its host: what a disk had not written is gone
// Behind so many more effects of a kind: the rest of that step never happens. GS_NUM_EFFECTS: of any kind.
void coordinator_kill_at_effect(sim_world *world, gs_effect_kind kind, int effects, int64_t away_ns);
void coordinator_let_live(sim_world *world);
void coordinator_shut_down(sim_world *world, int64_t away_ns);  // told to: what is behind is written first
void coordinator_suspend(sim_world *world, int64_t ns);
int64_t coordinator_stands_ns(const sim_world *world);  // for how long yet; 0: it runs
// Lives that ended behind an effect of each kind, in all histories; `unfinished`: others of that step never happened.
typedef struct coordinator_ends {
    long all, unfinished;
} coordinator_ends;
extern coordinator_ends coordinator_ended[GS_NUM_EFFECTS];
// Rows of all tables that have been taken, of all lives.
extern uint64_t coordinator_taken[GS_NUM_MACHINES][GS_MAX_TRANSITIONS];

#endif
