// What holds a job back, in words: a pure function of measured numbers.
//
// One verdict (what costs most, or why there is nothing to measure), one sentence with the numbers behind
// it, and findings, each with what to do about it. Nothing is guessed: what was not measured is not said.
#ifndef COORDINATOR_OBSERVE_METRICS_DIAGNOSIS_H
#define COORDINATOR_OBSERVE_METRICS_DIAGNOSIS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/model/job.h"
#include "coordinator/observe/reports/stragglers.h"
#include "rpc/json/json.h"

// A bucket in the last step of rank 0; seconds since backward began.
typedef struct gs_diagnosis_bucket {
    int64_t index, bytes;  // index −1: the rest of many
    double ready, launched, finished;
} gs_diagnosis_bucket;

// Of a failed job, or of the last failure of one that goes on.
typedef struct gs_diagnosis_failure {
    const char *message, *hint, *class, *host;  // borrowed; NULL or "": not known
    const char *kind;                           // of gs_fault_kind; NULL: of a coordinator of before
    const gs_json *accused;                     // borrowed; ranks
    int64_t reporter;                           // −1: not known
    int64_t rank;                               // −1: not known
    int64_t step, restarts;
} gs_diagnosis_failure;

typedef struct gs_diagnosis_facts {
    gs_job_state state;
    const char *reason, *message;  // of the state
    int slots_needed, slots_free;  // while it waits; 0 needed: it does not
    double waiting_seconds;
    bool failed_once;
    gs_diagnosis_failure failure;

    // Means over ranks of their totals, for each committed step that was reported. 0 steps: none of this
    // is known.
    int64_t steps;
    int world_size;
    double step_seconds, data, forward, backward, exposed, optimizer, checkpoint, waiting, copies;
    double overlap_ratio, backward_seconds;  // of the last step
    const gs_diagnosis_bucket *buckets;      // borrowed; in plan order
    size_t num_buckets;

    int64_t order_mismatches;  // steps whose buckets came out of plan order
    int64_t plan_revision, rebuild_after_steps;
    bool plan_is_fixed;  // no other order can be followed
    int64_t unused_parameters, unused_bytes;  // last step
    bool could_be_static, static_graph;
    int64_t skipped_steps;
    double loss;
    double loss_scale;  // 0: the job has none
    int64_t checkpoint_failures;

    const gs_straggler_view *ranks;  // borrowed; num_ranks
    int num_ranks;
    double whatif_step_seconds;
    int64_t num_spikes;
} gs_diagnosis_facts;

// {verdict, summary, findings:[{kind, detail, suggest, …}…]}; verdict is failed, waiting, not_running,
// straggler, communication, data, checkpoint, compute or healthy. The caller's.
gs_json *gs_diagnose(const gs_diagnosis_facts *facts);

#endif
