// Writes that are waiting together, committed together: one wait for the disk for all of them.
//
// Each write is whole or not there: where one of its rows cannot be written, none of it is. A status of ok means that it
// is durable, an error that nothing of it is stored, also when the disk is full.
#ifndef COORDINATOR_STORE_TRANSACTION_H
#define COORDINATOR_STORE_TRANSACTION_H

#include <stdbool.h>
#include <stddef.h>

#include "coordinator/store/job_store.h"

typedef struct gs_write gs_write;

struct gs_write {  // first member of the caller's own struct
    gs_status (*run)(gs_write *write, gs_job_store *store);  // writer thread
    void (*done)(gs_write *write, gs_status status);         // loop; frees the object
    bool touches_store;  // part of a transaction: done only after its commit
    gs_status status;
    gs_write *next;
};

// Runs them in their order and sets the status of each. The caller's thread owns the store.
void gs_transaction_run(gs_job_store *store, gs_write **writes, size_t num_writes);

#endif
