// Plain numbers of a step → the Step report: last values, running totals, histograms, history.
//
// Reports are cumulative, so that lost ones do not matter; the history of steps is kept, bounded, until it
// has been told. Owned by the compute thread.
#ifndef WORKER_TELEMETRY_TELEMETRY_H
#define WORKER_TELEMETRY_TELEMETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/metrics.h"
#include "rpc/schema/step_report.h"
#include "worker/telemetry/step_facts.h"

#define GS_HISTORY_STEPS 4096   // kept
// How often, unless the coordinator says otherwise.
#define GS_REPORT_EVERY_NS (100 * GS_NS_PER_MS)

typedef struct gs_history_entry {
    int64_t step;
    double loss, grad_norm, lr, step_seconds, tokens_per_second, comm_exposed_seconds,
        overlap_ratio;
} gs_history_entry;

typedef struct gs_telemetry_totals {
    int64_t steps, tokens, samples, skipped_steps, nonfinite;
    uint64_t payload_bytes, wire_bytes, order_mismatches;
    double comm_busy_seconds, comm_exposed_seconds, wait_seconds, copy_in_seconds, copy_out_seconds;
    double encode_seconds, decode_seconds;  // in communication hooks
    double step_seconds, blocked_seconds;  // of all steps; with a bucket posted that others had not
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
    uint64_t payload_bytes, wire_bytes;
    bool knows_residuals;
    double residual_norm;  // of the last step that knew it
    gs_telemetry_totals totals;
    gs_histogram step_histogram, reduce_histogram, queue_histogram;
    gs_report_waits waits[GS_REPORT_MAX_WAITS];  // the newest, oldest first; ranks pick the same steps
    int num_waits;
    double usual_step_seconds;  // moving average, with what lies between two steps
    int64_t observed_ns;        // the last step; 0: none
    // Oldest first; the first num_told have been told. When nobody listens for long, every second one of
    // those that wait is dropped: the whole time stays covered.
    gs_history_entry history[GS_HISTORY_STEPS];
    int num_history, num_told, num_in_report;
    bool unheard;  // the last report was not heard
    gs_evaluation evaluation;
    bool has_evaluation;
    int64_t report_every_ns, reported_ns;
    gs_report_rows rows;  // of the last report
} gs_telemetry;

void gs_telemetry_init(gs_telemetry *telemetry, uint32_t generation, int rank, int world_size);
// After the step was applied.
void gs_telemetry_observe(gs_telemetry *telemetry, const gs_step_facts *facts, int64_t step_ns);
// Seconds that saves took from the loop.
void gs_telemetry_add_checkpoint(gs_telemetry *telemetry, double seconds);
bool gs_telemetry_is_due(const gs_telemetry *telemetry);
// The Step report, with the next of the history that waits. Before the next step begins; it lasts as long.
gs_step_report gs_telemetry_report(gs_telemetry *telemetry, bool with_history);
// Whether it was heard. After one that was not, the last that were told are told again: they may have been
// lost on their way (who keeps a series takes a step again in the place of the old one).
void gs_telemetry_note_heard(gs_telemetry *telemetry, bool heard);
// Something is left to be told.
bool gs_telemetry_waits(const gs_telemetry *telemetry);

#endif
