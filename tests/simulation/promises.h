// What must stay true because somebody was told so, or because it is on the disk (P8): jobs that were accepted, stopped or deleted,
// states that are durable, checkpoints that were acknowledged. Across all lives of the coordinator.
#ifndef TESTS_SIMULATION_PROMISES_H
#define TESTS_SIMULATION_PROMISES_H

#include "coordinator/engine/engine.h"
#include "tests/simulation/world.h"

void promises_create(sim_world *world);
void promises_destroy(sim_world *world);

// To people.
void promises_accepted(sim_world *world, const char *key, uint64_t job);
void promises_stopped(sim_world *world, uint64_t job, gs_job_state state);  // as it was shown then
void promises_check_told(sim_world *world, const gs_job *job);  // people are shown it as it is
void promises_delete_asked(sim_world *world, uint64_t job);
void promises_delete_refused(sim_world *world, uint64_t job);  // it has not ended
void promises_deleted(sim_world *world, uint64_t job);
bool promises_has_deleted(const sim_world *world, uint64_t job, const char *cluster);  // this one, and its people know
void promises_check_accepted(sim_world *world, const gs_job *job);  // people are told that it is
// To ranks; what is recorded is as good as told.
void promises_saved(sim_world *world, uint64_t job, const char *directory, int64_t step);
// That it has said that the target is reached: once all have, nobody is started again.
void promises_left(sim_world *world, uint64_t job, uint32_t generation, int rank, int world_size);
void promises_lost(sim_world *world, uint64_t job, const char *directory, int64_t step);  // its files are gone, and nobody has been told
void promises_damaged(sim_world *world, uint64_t job, const char *directory);
int64_t promises_newest_save(const sim_world *world, uint64_t job);  // 0: none
void promises_removed(sim_world *world, uint64_t job, const char *directory);  // by the coordinator; NULL: all
void promises_check_resume(sim_world *world, uint64_t job, int64_t step);  // a rank starts from there

// What a disk that lied has lost, what is in another data directory, or what cannot be read excuses no more than this.
typedef struct promised_rows {
    bool has_job, has_key, has_tombstone;
} promised_rows;
void promises_find_rows(sim_world *world, promised_rows (*find)(const sim_world *world, uint64_t job));  // other rows than a moment ago
bool promises_is_excused(const sim_world *world, uint64_t job);  // nobody here has heard of it
void promises_can_read(sim_world *world, uint64_t job, bool is_readable);  // by the life that begins

// What is written, and what has become of it.
void promises_see_effect(sim_world *world, const gs_effect *effect);
void promises_see_event(sim_world *world, const gs_engine_event *event);
// One of which the disk does not say yet what has become of it; NULL: none.
const gs_job *promises_find_unwritten(const sim_world *world, const gs_state *state);
bool promises_stored_set(const sim_world *world, uint64_t job, uint32_t generation);  // it trains, the disk has said
void promises_begin_life(sim_world *world, const gs_state *state);  // what was adopted is on the disk
void promises_end_life(sim_world *world);
void promises_check(sim_world *world, const gs_state *state);

#endif
