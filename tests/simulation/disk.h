// What is asked of the disk, as by the threads of the product's writer: what one does stays in order, and others may
// overtake it. Rows that wait together are one transaction; answers come some time after it was done.
#ifndef TESTS_SIMULATION_DISK_H
#define TESTS_SIMULATION_DISK_H

#include "coordinator/engine/engine.h"
#include "tests/simulation/world.h"

void disk_create(sim_world *world);
void disk_destroy(sim_world *world);

// What an effect asks of the disk; it answers that life.
void disk_perform(sim_world *world, uint64_t life, const gs_effect *effect, const gs_state *state);
// The process that asked is dead: what was not begun is lost, what was being done is done or not.
void disk_crash(sim_world *world, bool power_failed);

bool disk_is_well(sim_world *world);  // neither slow nor unreadable
void disk_slow(sim_world *world, int64_t extra_ns);        // each write; 0: as usual

#endif
