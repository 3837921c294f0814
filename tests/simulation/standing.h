// What must not stand as it does, and what is done in the wrong order: promises of the engine's rules about runs, rows and agents that
// no rank or person notices at once.
#ifndef TESTS_SIMULATION_STANDING_H
#define TESTS_SIMULATION_STANDING_H

#include "coordinator/engine/engine.h"
#include "tests/simulation/world.h"

void standing_create(sim_world *world);
void standing_destroy(sim_world *world);
void standing_see_event(sim_world *world, const gs_engine_event *event);
void standing_took(sim_world *world, const gs_engine_event *event, const gs_effects *effects);
void standing_see_effect(sim_world *world, const gs_effect *effect);
void standing_check(sim_world *world, const gs_state *state);
void standing_end_life(sim_world *world);
// A rank could not begin: what it should start from cannot be read.
void standing_unread(sim_world *world, uint64_t job, const char *directory);

#endif
