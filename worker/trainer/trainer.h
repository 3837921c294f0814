// The trainer of one rank: boots, joins a generation, steps until the target, a drain or an abort; and may then
// join the next one with what it holds.
//
// It is driven through gs_control and knows no coordinator. After an abort it settles: what it holds at
// the end is a step boundary, never something half-applied.
#ifndef WORKER_TRAINER_TRAINER_H
#define WORKER_TRAINER_TRAINER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/bucket_plan.h"
#include "core/digest.h"
#include "core/status.h"
#include "rpc/schema/job_spec.h"
#include "worker/control/control.h"
#include "worker/control/outcome.h"
#include "worker/control/rendezvous.h"
#include "worker/state/trainer_state.h"
#include "worker/trainer/session.h"

typedef struct gs_trainer gs_trainer;

typedef struct gs_trainer_options {  // everything borrowed until destroy
    const gs_job_spec *spec;
    gs_control *control;
    const char *job;              // id, for files and logs
    const char *data_root;
    const char *data_address;     // as gs_comm_options
    const char *checkpoints_dir;  // of the job
    const char *cluster;          // that the job is of; NULL or "": not known
    const char *resume;           // a checkpoint directory; NULL or "": start from the beginning
    int num_threads;
    const char *device;  // "cpu", "cuda:0"; NULL: "cpu"
    const char *place;   // who that is, for the error of a device that is not there: "rank 0 on worker a"
    bool is_apart;         // whoever saved `resume` may have seen another directory: others will give the state
    bool *bad_checkpoint;  // set where create fails because `resume` is damaged or not there; may be NULL
} gs_trainer_options;

// Validates everything that can be known without the others: model, data, checkpoint.
GS_NODISCARD gs_status gs_trainer_create(gs_trainer **out, const gs_trainer_options *options);
// False: a save in flight has not come to an end by the deadline. Destroy would wait for it.
GS_NODISCARD bool gs_trainer_await_saves(gs_trainer *trainer, gs_deadline deadline);
// At the end, when nobody directs this trainer any more: rank 0 makes a checkpoint of the parts that all
// have written last.
void gs_trainer_commit_saves(gs_trainer *trainer);
void gs_trainer_destroy(gs_trainer *trainer);

const gs_trainer_state *gs_trainer_get_state(const gs_trainer *trainer);
gs_digest gs_trainer_data_digest(const gs_trainer *trainer);
const char *gs_trainer_arithmetic(const gs_trainer *trainer);

typedef struct gs_assignment {
    gs_place place;
    int num_shards;
    const gs_bucket_plan *plan;
    bool plan_is_observed;  // made from an order that was observed
} gs_assignment;

// Takes a place in a generation. The one before ends here: ranks that are still in it are waited for, for two
// seconds.
GS_NODISCARD gs_status gs_trainer_prepare(gs_trainer *trainer, const gs_assignment *assignment);
// Collective: makes the communicator, and everybody's state that of the most advanced rank.
GS_NODISCARD gs_status gs_trainer_connect(gs_trainer *trainer, gs_deadline deadline);
const gs_session *gs_trainer_get_session(const gs_trainer *trainer);  // NULL before prepare

// Steps to the end, whatever it is.
void gs_trainer_run(gs_trainer *trainer, gs_trainer_outcome *outcome);
// Tells what nobody was there to hear while it ran; false: still nobody is.
bool gs_trainer_report_rest(gs_trainer *trainer);
// The same end for an error outside run: aborts what was prepared, settles, saves when told to.
void gs_trainer_give_up(gs_trainer *trainer, gs_status why, gs_trainer_outcome *outcome);

#endif
