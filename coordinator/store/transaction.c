#include "coordinator/store/transaction.h"

#include "core/failpoint.h"

// A write's own error leaves the others alone; one that ended the transaction is everybody's.
static gs_status run_whole(gs_job_store *store, gs_write *write) {
    GS_TRY(gs_job_store_begin_part(store));
    write->status = write->run(write, store);
    return gs_job_store_end_part(store, write->status);
}

static gs_status run_all(gs_job_store *store, gs_write **writes, size_t num_writes) {
    GS_TRY(gs_job_store_begin(store));
    for (size_t i = 0; i < num_writes; i++) GS_TRY(run_whole(store, writes[i]));
    GS_FAILPOINT("store.commit");
    return gs_job_store_commit(store);
}

void gs_transaction_run(gs_job_store *store, gs_write **writes, size_t num_writes) {
    for (size_t i = 0; i < num_writes; i++) writes[i]->status = gs_ok();
    gs_status status = run_all(store, writes, num_writes);
    if (!status.code) return;
    gs_job_store_rollback(store);
    for (size_t i = 0; i < num_writes; i++)
        if (!writes[i]->status.code) writes[i]->status = status;
}
