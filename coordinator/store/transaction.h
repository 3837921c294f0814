// Writes that are waiting together, committed together: one wait for the disk for all of them.
//
// Each write is whole or not there: where one of its rows cannot be written, none of it is. A status of ok means that it
// is durable, an error that nothing of it is stored, also when the disk is full, and that no start finds it: a commit whose sync
// failed is taken back before anybody is told. Where the disk refuses that, too, the error says that the next start may find it.
#ifndef COORDINATOR_STORE_TRANSACTION_H
#define COORDINATOR_STORE_TRANSACTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/store/job_store.h"

typedef struct gs_write gs_write;

// The threads of the writer (writer.h): who is in whose way.
typedef enum gs_write_lane {
    GS_LANE_ROWS = 0,  // of the store, and gets it: part of a transaction, done after its commit
    GS_LANE_READS,     // of what ended jobs have on the disk, gets it for gs_job_store_recall_job alone: no commit waits
    GS_LANE_LOGS,      // appended, searched
    GS_LANE_LOOKS,     // at the files of checkpoints: short, and starts of jobs wait for them
    GS_LANE_BULK,      // checkpoints read whole, or removed
    GS_LANE_TREES,     // all that deleted jobs have left: nobody waits for it
    GS_NUM_LANES
} gs_write_lane;

struct gs_write {  // first member of the caller's own struct
    gs_status (*run)(gs_write *write, gs_job_store *store);  // thread of the lane; `store` NULL but for rows and reads
    void (*done)(gs_write *write, gs_status status);         // loop; frees the object
    gs_write_lane lane;
    bool is_unnumbered;    // a recording does not know of it: nothing that is decided depends on it
    bool is_behind_looks;  // it waits in that lane first, and what was asked there before it is done
    size_t bytes;     // that it holds while it waits, about
    uint64_t number;  // in order of submission
    gs_status status;
    gs_write *next;
};

// Runs them in their order and sets the status of each. The caller's thread owns the store.
void gs_transaction_run(gs_job_store *store, gs_write **writes, size_t num_writes);

#endif
