// Which cluster this is, and which of its lives: drawn with the data directory and with each start, told in every
// welcome, compared at every Hello. Loop thread.
//
// Trainers of another cluster are nobody's here to command. Who has seen a life of this cluster that its database does
// not know shows that the database is an old copy: generations would be given out twice, so nothing starts.
#ifndef COORDINATOR_CLUSTER_H
#define COORDINATOR_CLUSTER_H

#include "coordinator/coordinator.h"
#include "coordinator/job_store.h"

GS_NODISCARD gs_status gs_cluster_load(gs_coordinator *coordinator, gs_job_store *store,
                                       const gs_store_start *start);
void gs_cluster_release(gs_coordinator *coordinator);
// What the receiver says again at its next Hello.
void gs_cluster_welcome(const gs_coordinator *coordinator, gs_json *item);
bool gs_cluster_is_other(const gs_coordinator *coordinator, const gs_json *speaker);
// FAILED_PRECONDITION: it has seen what this database does not know; said aloud, and nothing starts from then on.
GS_NODISCARD gs_status gs_cluster_check(gs_coordinator *coordinator, const gs_json *hello, const char *who);

#endif
