// Sets of ranks: one for each generation. One history of a job's steps (P1, P2), nothing that is over says anything (P3), and a number
// is given out once.
#ifndef TESTS_SIMULATION_SETS_H
#define TESTS_SIMULATION_SETS_H

#include "coordinator/engine/engine.h"
#include "tests/simulation/world.h"

void sets_create(sim_world *world);
void sets_destroy(sim_world *world);

// Of ranks.
void sets_prepared(sim_world *world, uint64_t job, uint32_t generation, int rank, uint64_t incarnation);
void sets_committed(sim_world *world, uint64_t job, uint32_t generation, int64_t step);
void sets_settled(sim_world *world, uint64_t job, uint32_t generation, int64_t step);
void sets_spoilt(sim_world *world, uint32_t generation);  // a rank has said that its state is not to be trusted
void sets_lied_to(sim_world *world, uint64_t job);  // one of its ranks has told of steps that nobody has taken
bool sets_have_liar(const sim_world *world, uint64_t job);
void sets_forget_numbers(sim_world *world);  // a disk that lied has lost which were reserved, or it is another one
bool sets_have_lost_numbers(const sim_world *world);
void sets_begin_life(sim_world *world, const gs_state *state);
bool sets_are_given_up(const sim_world *world, uint64_t job);
void sets_adopted(sim_world *world, uint64_t job);   // as people are told
void sets_given_up(sim_world *world, uint64_t job);  // an operator has asked for it

// Of the engine: before a step, what it does, behind it.
void sets_see_event(sim_world *world, const gs_engine_event *event);
void sets_see_effect(sim_world *world, const gs_effect *effect);
void sets_took(sim_world *world, const gs_engine_event *event, const gs_effects *effects);
void sets_answer_settle(sim_world *world, const sim_trainer *trainer, const gs_effect *effect);
void sets_judge_settlements(sim_world *world);  // by all answers of the step

int64_t sets_reached(const sim_world *world, uint64_t job);  // the furthest step that any set has come to

#endif
