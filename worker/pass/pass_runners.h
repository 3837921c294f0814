// The passes of a step on the replicas of a rank (model_replicas.h): each runs the shards that it
// would have as a process of its own, with batches of its own, and marks its gradients in
// gradsync/replicas/replicas.h.
#ifndef WORKER_PASS_PASS_RUNNERS_H
#define WORKER_PASS_PASS_RUNNERS_H

#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/replicas/replicas.h"
#include "worker/pass/model_replicas.h"
#include "worker/pass/pass_runner.h"

typedef struct gs_pass_runners gs_pass_runners;

// Borrowed until destroy, but for the shards.
typedef struct gs_pass_runners_options {
    gs_model_replicas *models;       // NULL: one replica
    const gs_pass_context *context;  // filled in before the first step
    const gs_job_spec *spec;
    const char *data_root;
    gs_logical_shards shards;      // of the rank
    int64_t consumed;              // samples, where the data goes on
    gs_data_loader *first_loader;  // replica 0's
} gs_pass_runners_options;

// *out stays NULL when there is one replica for each process. Opens the data of the others.
GS_NODISCARD gs_status gs_pass_runners_create(gs_pass_runners **out,
                                              const gs_pass_runners_options *options);
// Waits for the replicas' threads first.
void gs_pass_runners_destroy(gs_pass_runners *runners);

// The shards whose batches replica 0 takes, of the rank's.
gs_logical_shards gs_pass_runners_shards(const gs_model_replicas *models,
                                         const gs_logical_shards *shards);
// `whole`, or what the reducer of a rank with replicas is made from instead.
GS_NODISCARD gs_status gs_pass_runners_reducer_options(gs_reducer_options *out,
                                                       const gs_reducer_options *whole,
                                                       const gs_model_replicas *models,
                                                       const gs_job_spec *spec);
// Collective, behind the rank's reducer.
GS_NODISCARD gs_status gs_pass_runners_connect(gs_pass_runners *runners,
                                               const gs_reducer_options *whole, gs_reducer *reducer,
                                               gs_comm *comm, gs_deadline deadline);

// In place of gs_reducer_begin, and of running the passes.
GS_NODISCARD gs_status gs_pass_runners_begin(gs_pass_runners *runners, int64_t number);
GS_NODISCARD gs_status gs_pass_runners_run(gs_pass_runners *runners, gs_step_sums *sums,
                                           gs_step_facts *facts);

const size_t *gs_pass_runners_ready_order(const gs_pass_runners *runners, size_t *num_ready);

#endif
