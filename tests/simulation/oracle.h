// Who knows what must never be, and remembers what has been promised. What it finds ends the history.
#ifndef TESTS_SIMULATION_ORACLE_H
#define TESTS_SIMULATION_ORACLE_H

#include "coordinator/engine/engine.h"
#include "tests/simulation/world.h"

void oracle_create(sim_world *world);
void oracle_destroy(sim_world *world);
void oracle_fail(sim_world *world, const char *format, ...) GS_PRINTF(2, 3);
const char *oracle_finding(const sim_world *world);  // NULL: nothing is wrong
bool oracle_is_done(const sim_world *world);

// P8: what was answered is true afterwards.
void oracle_promised(sim_world *world, const char *key, uint64_t job);
void oracle_may_be_deleted(sim_world *world, uint64_t job);
void oracle_answered_job(sim_world *world, const gs_job *job);
void oracle_acknowledged_save(sim_world *world, uint64_t job, const char *directory, int64_t step);
void oracle_damaged(sim_world *world, uint64_t job, const char *directory);
void oracle_removed(sim_world *world, uint64_t job, const char *directory);  // by the coordinator; NULL: all
// What a disk that lied has lost, or what cannot be read, excuses no more than this.
void oracle_excuse_job(sim_world *world, uint64_t job);                    // it may be gone
void oracle_can_read(sim_world *world, uint64_t job, bool is_readable);  // by the life that begins
void oracle_check_recovery(sim_world *world);  // a life begins

// P1, P2, P3: one history.
void oracle_prepared(sim_world *world, uint64_t job, uint32_t generation, int rank, uint64_t incarnation);
void oracle_started(sim_world *world, uint64_t job, int64_t step);
void oracle_committed(sim_world *world, uint64_t job, uint32_t generation, int64_t step);
void oracle_settled(sim_world *world, uint64_t job, uint32_t generation, int64_t step);

// After each event.
void oracle_check_state(sim_world *world);
void oracle_see_effect(sim_world *world, const gs_effect *effect);
// P4: all jobs have ended, nobody runs for one that has, slots are free.
void oracle_judge_end(sim_world *world);

#endif
