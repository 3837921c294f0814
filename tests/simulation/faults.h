// What goes wrong, drawn from the dice.
#ifndef TESTS_SIMULATION_FAULTS_H
#define TESTS_SIMULATION_FAULTS_H

#include "tests/simulation/world.h"

void faults_plan(sim_world *world, int64_t within_ns);
void faults_mend_all(sim_world *world);  // lines, disk; who was killed comes back by itself

#endif
