// Who knows what must never be. What it finds ends the history. It asks after each event:
//
//     promises.h   what was answered or is durable stays true (P8)
//     sets.h       one history of steps, nothing that is over says anything (P1, P2, P3, S3, S4)
//     verdicts.h   what is said of ranks and jobs is so (P7)
//     standing.h   nothing stands that the rules would have moved on
//
// and itself looks after slots, calls and ends (P4, S1).
#ifndef TESTS_SIMULATION_ORACLE_H
#define TESTS_SIMULATION_ORACLE_H

#include "coordinator/engine/engine.h"
#include "tests/simulation/world.h"

void oracle_create(sim_world *world);
void oracle_destroy(sim_world *world);
void oracle_fail(sim_world *world, const char *format, ...) GS_PRINTF(2, 3);
const char *oracle_finding(const sim_world *world);  // NULL: nothing is wrong
bool oracle_is_done(const sim_world *world);

// Around each step of the engine.
void oracle_see_event(sim_world *world, const gs_engine_event *event);
void oracle_took(sim_world *world, const gs_engine_event *event, const gs_effects *effects);
void oracle_see_effect(sim_world *world, const gs_effect *effect);  // each that is performed
void oracle_check_state(sim_world *world);
void oracle_begin_life(sim_world *world);  // all that was stored is adopted
void oracle_end_life(sim_world *world);
// P4: all jobs have ended, nobody runs for one that has, slots are free.
void oracle_judge_end(sim_world *world);

#endif
