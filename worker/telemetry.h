// Plain numbers of a step → the Step report: last values, running totals, histograms, history.
//
// Reports are cumulative, so that lost ones do not matter; the history of steps is kept, bounded, until it
// has been told. Owned by the compute thread.
#ifndef WORKER_TELEMETRY_H
#define WORKER_TELEMETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/metrics.h"
#include "rpc/json.h"
#include "worker/session.h"

#define GS_HISTORY_STEPS 4096   // kept
#define GS_REPORTED_STEPS 256   // in one report
#define GS_REPORTED_BUCKETS 64

typedef struct gs_history_entry {
    int64_t step;
    double loss, grad_norm, lr, step_seconds, tokens_per_second, comm_exposed_seconds,
        overlap_ratio;
} gs_history_entry;

typedef struct gs_telemetry_totals {
    int64_t steps, tokens, samples, skipped_steps, nonfinite;
    uint64_t payload_bytes, wire_bytes, order_mismatches;
    double comm_busy_seconds, comm_exposed_seconds, wait_seconds;
    gs_step_phases phases;
} gs_telemetry_totals;

typedef struct gs_telemetry {
    uint32_t generation;
    int rank, world_size;
    // Of the last step.
    gs_step_facts last;
    int64_t applied_step;
    double step_seconds, comm_busy_seconds, comm_exposed_seconds, overlap_ratio, wait_seconds,
        backward_seconds;
    gs_telemetry_totals totals;
    gs_histogram step_histogram, reduce_histogram;
    // Oldest first; the first num_told have been told. When nobody listens for long, every second one of
    // those that wait is dropped: the whole time stays covered.
    gs_history_entry history[GS_HISTORY_STEPS];
    int num_history, num_told, num_in_report;
    bool unheard;  // the last report was not heard
    gs_evaluation evaluation;
    bool has_evaluation;
    int64_t reported_ns;
} gs_telemetry;

void gs_telemetry_init(gs_telemetry *telemetry, const gs_session *session);
// After the step was applied.
void gs_telemetry_observe(gs_telemetry *telemetry, const gs_step_facts *facts, int64_t step_ns);
// Seconds that saves took from the loop.
void gs_telemetry_add_checkpoint(gs_telemetry *telemetry, double seconds);
bool gs_telemetry_is_due(const gs_telemetry *telemetry);
// The Step report, with the next of the history that waits. Before the next step begins.
gs_json *gs_telemetry_report(gs_telemetry *telemetry, bool with_history);
// Whether it was heard. After one that was not, the last that were told are told again: they may have been
// lost on their way (who keeps a series takes a step again in the place of the old one).
void gs_telemetry_note_heard(gs_telemetry *telemetry, bool heard);
// Something is left to be told.
bool gs_telemetry_waits(const gs_telemetry *telemetry);

#endif
