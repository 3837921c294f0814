// The ranks of one generation in their communicator.
#ifndef TESTS_SIMULATION_GROUP_H
#define TESTS_SIMULATION_GROUP_H

#include "tests/simulation/trainer.h"

#define MAX_RANKS 8

struct sim_group {
    uint32_t generation;
    uint64_t id, job;
    int world_size, num_members;
    sim_trainer *members[MAX_RANKS];
    int64_t step_ns;
    bool is_stepping, is_broken, drains;
    sim_group *next;
};

sim_group *group_join(sim_world *world, sim_trainer *trainer, int world_size);
void group_try_to_step(sim_world *world, sim_group *group);
void group_drain(sim_group *group);
// A rank is gone, or does not answer: the others find out, each in its time.
void group_break(sim_world *world, sim_group *group);
// The communicator fails though everybody lives.
void groups_destroy(sim_world *world);

#endif
