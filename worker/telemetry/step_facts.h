// What is known of a step when it is over, and of an evaluation: plain numbers.
#ifndef WORKER_TELEMETRY_STEP_FACTS_H
#define WORKER_TELEMETRY_STEP_FACTS_H

#include <stdbool.h>
#include <stdint.h>

#include "gradsync/bucket/reduce_stats.h"

// Seconds of one step, by phase.
typedef struct gs_step_phases {
    double data, forward, backward, comm_exposed, optimizer, checkpoint;
} gs_step_phases;

typedef struct gs_step_facts {
    int64_t step;                // its number, from 0
    double loss;                 // mean over all micro-batches of all ranks
    double grad_norm, lr;        // of the gradients without the loss scale
    double loss_scale;           // of this step; 0: precision is not fp16
    int64_t samples, positions;  // of the global batch; of a sample
    int nonfinite_ranks;         // > 0: no update
    bool has_shadows;            // ranks without data took part
    bool drain, checkpoint;      // agreed by all ranks
    bool save_is_due;            // by the clock of one of them
    bool orphaned;               // all are
    int saving_ranks;            // whose part of the last checkpoint was still being written
    bool inputs_ended;  // with OUT_OF_RANGE: a rank has no data left and the job stops then
    bool diverged;      // with the error: parameters were not the same on all ranks
    bool state_is_broken;  // with the error: an update was on its way, and nobody knows what became of it
    gs_step_phases phases;
    int plan_revision;       // that began with this step; 0: it was in use before
    double switch_seconds;   // that it took
    double opening_seconds;  // in what ranks agree on before they compute: waiting for the last one
    const gs_reduce_stats *stats;  // until the next step
    uint64_t row_wire_bytes;       // of the embedding's rows, which travel beside the buckets
    bool could_be_static;          // this rank used the same parameters in all steps so far
} gs_step_facts;

typedef struct gs_evaluation {
    int64_t step, batches;
    double loss, accuracy;
    bool has_accuracy;
} gs_evaluation;

#endif
