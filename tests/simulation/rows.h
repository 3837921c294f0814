// The rows of the store, in the very words of the product's records. Those of a transaction are written together or not
// at all; one that fails leaves the others alone.
#ifndef TESTS_SIMULATION_ROWS_H
#define TESTS_SIMULATION_ROWS_H

#include "coordinator/store/record/job_documents.h"
#include "tests/simulation/row_state.h"
#include "tests/simulation/world.h"

// What goes wrong with writes.
typedef struct rows_trouble {
    double one_fails, all_fail;  // chances: of a write, of the commit of all that go together
    bool is_fatal;               // the coordinator is killed within a second of the first commit that failed
    double reads_fail;           // of a start, and of looks at files
    int64_t room;                // bytes that can be written yet; −1: any number
    bool lies;                   // what is written is not on the disk yet, whatever it says
} rows_trouble;

void rows_create(sim_world *world);
void rows_destroy(sim_world *world);
rows_trouble *rows_trouble_of(sim_world *world);
const gs_retention *rows_retention(const sim_world *world);

void row_write_fill(sim_world *world, row_write *write, const gs_effect *effect, const gs_state *state);
// Kept from when it was first written: one that has ended long ago has its specification in its row alone.
const gs_job_documents *rows_documents_of(sim_world *world, const gs_job *job);
void row_write_release(row_write *write);
// One transaction. Each has its status then.
void rows_commit(sim_world *world, row_write **writes, size_t num_writes);
// The process that wrote has ended; with its host, when the power failed.
void rows_crash(sim_world *world, bool power_failed);
// A new life: its epoch and a block of generations are durable, all that can be read is adopted. NULL: it cannot be now.
gs_engine *rows_wake_engine(sim_world *world, const gs_timing *timing);
// In the midst of a transaction, where the store is the product's.
bool rows_end_soon(sim_world *world, int operations);  // false: it is not
bool rows_have_ended(const sim_world *world);
void rows_are_others(sim_world *world);  // than a moment ago: some are lost, or it is another directory

// The next start is on another data directory: an empty one, or the one from before. False: there is no other.
bool rows_exchange(sim_world *world);
const char *rows_cluster(const sim_world *world);  // that a start would be of; not where the store is the product's

// The record of a job cannot be read until it is repaired; each start finds out.
void rows_spoil(sim_world *world);
bool rows_repair(sim_world *world);  // all; false: there was nothing to repair

#endif
