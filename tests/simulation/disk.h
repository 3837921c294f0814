// What survives: rows of the store, in the very words of the product's records, and files of checkpoints. Writes are
// done in order, some time after they were asked for; a crash loses those that are not done, and perhaps not the
// one that was just being done.
#ifndef TESTS_SIMULATION_DISK_H
#define TESTS_SIMULATION_DISK_H

#include "coordinator/engine/engine.h"
#include "tests/simulation/world.h"

void disk_create(sim_world *world);
void disk_destroy(sim_world *world);

// A new life of the coordinator: rows are adopted, its epoch and a block of generations are durable.
gs_engine *disk_wake_engine(sim_world *world, const gs_timing *timing);
// What an effect asks of the disk; it answers that life.
void disk_perform(sim_world *world, uint64_t life, const gs_effect *effect, const gs_state *state);
// The process that asked is dead.
void disk_crash(sim_world *world);

void disk_fill(sim_world *world, bool is_full);
void disk_slow(sim_world *world, int64_t extra_ns);  // each write; 0: as usual

// Files. A directory names the job's checkpoint; one is complete at once.
void disk_save(sim_world *world, uint64_t job, const char *directory, int64_t step, uint32_t generation);
void disk_damage_newest(sim_world *world);
bool disk_has(const sim_world *world, uint64_t job, const char *directory);

#endif
