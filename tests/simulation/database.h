// The product's own store, on SQLite, on a simulated file system: in a share of the histories it keeps the rows. Each start
// finds all that was acknowledged, and of what was being written a transaction whole or nothing.
#ifndef TESTS_SIMULATION_DATABASE_H
#define TESTS_SIMULATION_DATABASE_H

#include "tests/simulation/rows.h"

typedef struct sim_database sim_database;

// What was met with, in all histories.
typedef struct database_counts {
    long histories, transactions, crashes, in_transactions, power_failures;
    long doubts;                             // behind so many of them something that failed could not be taken back yet
    long starts, refused;                    // a start that the disk did not let happen
    long found_newest, found_last, found_older;  // all that was acknowledged; with what was being written; of a disk that lied
    long found_unclear;                      // several writes had failed, each in its way
    long set_aside;                          // as damaged
} database_counts;
extern database_counts database_counted;

sim_database *database_create(sim_world *world);
void database_destroy(sim_database *database);

void database_fill(sim_world *world, row_write *write, const gs_effect *effect, const gs_state *state);
void database_commit(sim_world *world, sim_database *database, row_state *now, const rows_trouble *trouble, row_write **writes,
                     size_t num_writes);
// Its process ends in the midst of what it writes next, behind so many operations of the file system.
void database_end_soon(sim_database *database, int operations);
bool database_has_ended(const sim_database *database);
void database_crash(sim_world *world, sim_database *database, bool power_failed);
// NULL: it cannot be opened now. `now` is what was found.
gs_engine *database_wake_engine(sim_world *world, sim_database *database, row_state *now, const rows_trouble *trouble,
                                const gs_timing *timing);

#endif
