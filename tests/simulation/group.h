// The ranks of one generation in their communicator.
#ifndef TESTS_SIMULATION_GROUP_H
#define TESTS_SIMULATION_GROUP_H

#include "tests/simulation/trainer.h"

#define MAX_RANKS 8
#define GROUP_STALL_NS (2 * SECONDS)

struct sim_group {
    uint32_t generation;
    uint64_t id, job;
    int64_t begun_ns;  // its run
    int world_size, num_members;
    sim_trainer *members[MAX_RANKS];
    int64_t step_ns;
    int64_t stepped_ns, steady_since_ns;  // its last commit; since when they come one behind the other
    bool is_stepping, is_broken, drains;
    sim_group *next;
};

// Where numbers have come again (a disk has lost which were given out), that of its run.
sim_group *group_join(sim_world *world, sim_trainer *trainer, const sim_item *start);
// NULL: none. One that trains can commit: all its ranks are there and in it.
const sim_group *group_that_trains(const sim_world *world, uint64_t job);
const sim_group *group_of_generation(const sim_world *world, uint64_t job, uint32_t generation);
bool group_is_orphaned(const sim_world *world, const sim_group *group, int64_t in_ns);  // all of its ranks are, by then, each by its own limit
void group_try_to_step(sim_world *world, sim_group *group);
void group_drain(sim_group *group);
// A rank is gone, or does not answer: the others find out, each in its time.
void group_break(sim_world *world, sim_group *group);
void groups_destroy(sim_world *world);

#endif
