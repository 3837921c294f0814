// A world in which everything that happens is an appointment: what is to be done, when, to whom. Time passes only
// from one to the next; the dice say how long things take and what goes wrong.
//
// Who lives in it: a coordinator on a disk, agents with slots, trainers that they start, people who ask for jobs. They speak
// over lines (peer.h). Whatever happens can be told in words (world_tell).
#ifndef TESTS_SIMULATION_WORLD_H
#define TESTS_SIMULATION_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "tests/simulation/dice.h"

#define SECONDS INT64_C(1000000000)
#define MILLISECONDS INT64_C(1000000)

typedef struct sim_world sim_world;
typedef struct sim_oracle sim_oracle;    // oracle.h
typedef struct sim_coordinator sim_coordinator;  // coordinator.h
typedef struct sim_disk sim_disk;        // disk.h
typedef struct sim_rows sim_rows;        // rows.h
typedef struct sim_agent sim_agent;      // agent.h
typedef struct sim_trainer sim_trainer;  // trainer.h
typedef struct sim_group sim_group;      // group.h
typedef struct sim_people sim_people;    // people.h
typedef struct sim_promises sim_promises;  // promises.h
typedef struct sim_sets sim_sets;          // sets.h
typedef struct sim_standing sim_standing;  // standing.h

// `whom` is an id of whatever the deed knows, `what` a number or a block that it owns.
typedef void (*world_deed)(sim_world *world, uint64_t whom, void *what);

typedef struct world_appointment {
    int64_t at_ns;
    uint64_t order;
    world_deed deed;
    uint64_t whom;
    void *what;                    // owned until the deed is done
    void (*release)(void *what);   // NULL: free
} world_appointment;

typedef struct world_options {
    uint64_t seed;
    bool tells;  // in words, on stdout
    bool has_faults;
} world_options;

#define MAX_AGENTS 4

struct sim_world {
    world_options options;
    sim_dice dice;
    int64_t now_ns, end_ns;
    int64_t wall_ms;  // jumps as clocks do
    world_appointment *heap;
    size_t num_appointments, max_appointments;
    uint64_t num_made;
    sim_disk *disk;
    sim_rows *rows;
    struct saved_file *files;  // list; of checkpoints
    struct job_fence *fences;  // list; of jobs
    sim_coordinator *coordinator;
    sim_agent *agents[MAX_AGENTS];
    int num_agents;
    struct sim_peer *peers;  // list; all that ever were
    sim_trainer *trainers;   // list; all that ever were
    sim_group *groups;      // list
    sim_people *people;
    sim_oracle *oracle;
    sim_promises *promises;
    sim_sets *sets;
    sim_standing *standing;
    uint64_t last_id;
    bool is_of_before;  // its workers are of an older release: they don't say how far their trainers are
    bool is_calm;  // no more faults: everything gets well
    long num_events, num_faults;  // that the engine got; that befell anybody
    int num_trainers;             // started so far
};

extern const sim_world *world_of_clock;  // whose time gs_now_ns tells; NULL: none, it is the process's own

void world_create(sim_world *world, const world_options *options);
void world_destroy(sim_world *world);
void world_run(sim_world *world);  // until its end, or until the oracle has seen enough
uint64_t world_new_id(sim_world *world);

void world_after(sim_world *world, int64_t delay_ns, world_deed deed, uint64_t whom, void *what);
void world_after_owned(sim_world *world, int64_t delay_ns, world_deed deed, uint64_t whom, void *what,
                       void (*release)(void *what));
void world_tell(const sim_world *world, const char *format, ...) GS_PRINTF(2, 3);

#endif
