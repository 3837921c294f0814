// What the coordinator says of ranks and jobs has to be so (P7): who trains is not called silent or hung, and a job's end has the
// cause that it names.
#ifndef TESTS_SIMULATION_VERDICTS_H
#define TESTS_SIMULATION_VERDICTS_H

#include "coordinator/engine/engine.h"
#include "tests/simulation/world.h"

void verdicts_see_effect(sim_world *world, const gs_effect *effect);

#endif
