// What a rank tells of its steps, as plain numbers: the last one, totals, histograms, the newest waits, the history
// that has not been told. Cumulative, so that lost reports do not matter. rpc/README.md, "Step", has the meaning of
// each value; step_record.h is how it travels, JSON how workers of before said it and people are shown it.
#ifndef RPC_SCHEMA_STEP_REPORT_H
#define RPC_SCHEMA_STEP_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/metrics.h"
#include "rpc/json/json.h"

// V(name, member of the JSON or of its object, kind). Numbers are wire format: append, never reorder.
#define GS_STEP_REPORT_VALUES(V)                              \
    V(LOSS, "loss", REAL)                                     \
    V(GRAD_NORM, "grad_norm", REAL)                           \
    V(LR, "lr", REAL)                                         \
    V(LOSS_SCALE, "loss_scale", REAL)                         \
    V(SAMPLES, "samples", WHOLE)                              \
    V(TOKENS, "tokens", WHOLE)                                \
    V(STEP_SECONDS, "step_seconds", REAL)                     \
    V(TOKENS_PER_SECOND, "tokens_per_second", REAL)           \
    V(DATA, "phases/data", REAL)                              \
    V(FORWARD, "phases/forward", REAL)                        \
    V(BACKWARD, "phases/backward", REAL)                      \
    V(COMM_EXPOSED, "phases/comm_exposed", REAL)              \
    V(OPTIMIZER, "phases/optimizer", REAL)                    \
    V(CHECKPOINT, "phases/checkpoint", REAL)                  \
    V(COMM_BUSY_SECONDS, "comm_busy_seconds", REAL)           \
    V(COMM_EXPOSED_SECONDS, "comm_exposed_seconds", REAL)     \
    V(OVERLAP_RATIO, "overlap_ratio", REAL)                   \
    V(WAIT_SECONDS, "wait_seconds", REAL)                     \
    V(BACKWARD_SECONDS, "backward_seconds", REAL)             \
    V(PAYLOAD_BYTES, "payload_bytes", WHOLE)                  \
    V(WIRE_BYTES, "wire_bytes", WHOLE)                        \
    V(ELEMENTS, "elements", WHOLE)                            \
    V(ELEMENTS_SENT, "elements_sent", WHOLE)                  \
    V(ERROR_FEEDBACK_NORM, "error_feedback_norm", REAL)       \
    V(UNUSED_PARAMETERS, "unused_parameters", WHOLE)          \
    V(UNUSED_BYTES, "unused_bytes", WHOLE)                    \
    V(COULD_BE_STATIC, "could_be_static", FLAG)               \
    V(EVAL_STEP, "eval/step", WHOLE)                          \
    V(EVAL_LOSS, "eval/loss", REAL)                           \
    V(EVAL_ACCURACY, "eval/accuracy", REAL)                   \
    V(EVAL_BATCHES, "eval/batches", WHOLE)                    \
    V(ALL_STEPS, "totals/steps", WHOLE)                       \
    V(ALL_TOKENS, "totals/tokens", WHOLE)                     \
    V(ALL_SAMPLES, "totals/samples", WHOLE)                   \
    V(ALL_SKIPPED_STEPS, "totals/skipped_steps", WHOLE)       \
    V(ALL_PAYLOAD_BYTES, "totals/payload_bytes", WHOLE)       \
    V(ALL_WIRE_BYTES, "totals/wire_bytes", WHOLE)             \
    V(ALL_COMM_BUSY, "totals/comm_busy_seconds", REAL)        \
    V(ALL_COMM_EXPOSED, "totals/comm_exposed_seconds", REAL)  \
    V(ALL_WAIT, "totals/wait_seconds", REAL)                  \
    V(ALL_STEP_SECONDS, "totals/step_seconds", REAL)          \
    V(ALL_BLOCKED, "totals/blocked_seconds", REAL)            \
    V(ALL_COPY_IN, "totals/copy_in_seconds", REAL)            \
    V(ALL_COPY_OUT, "totals/copy_out_seconds", REAL)          \
    V(ALL_ENCODE, "totals/encode_seconds", REAL)              \
    V(ALL_DECODE, "totals/decode_seconds", REAL)              \
    V(ALL_ORDER_MISMATCHES, "totals/order_mismatches", WHOLE) \
    V(ALL_NONFINITE, "totals/nonfinite", WHOLE)               \
    V(ALL_DATA, "totals/phases/data", REAL)                   \
    V(ALL_FORWARD, "totals/phases/forward", REAL)             \
    V(ALL_BACKWARD, "totals/phases/backward", REAL)           \
    V(ALL_EXPOSED, "totals/phases/comm_exposed", REAL)        \
    V(ALL_OPTIMIZER, "totals/phases/optimizer", REAL)         \
    V(ALL_CHECKPOINT, "totals/phases/checkpoint", REAL)

typedef enum gs_report_value {
#define GS_STEP_REPORT_NAME(name, member, kind) GS_REPORT_##name,
    GS_STEP_REPORT_VALUES(GS_STEP_REPORT_NAME)
#undef GS_STEP_REPORT_NAME
        GS_NUM_REPORT_VALUES
} gs_report_value;
#define GS_REPORT_FIRST_TOTAL GS_REPORT_ALL_STEPS  // from here on they count from the start of the trainer
#define GS_NUM_REPORT_TOTALS (GS_NUM_REPORT_VALUES - GS_REPORT_FIRST_TOTAL)
_Static_assert(GS_NUM_REPORT_VALUES <= 64, "a bit of `known` for each");

typedef enum gs_report_histogram_kind {
    GS_REPORT_STEPS = 0,  // "step_histogram"
    GS_REPORT_REDUCES,
    GS_REPORT_QUEUES,
    GS_NUM_REPORT_HISTOGRAMS
} gs_report_histogram_kind;

#define GS_REPORT_MAX_BUCKETS 64
#define GS_REPORT_MAX_WAITS 16
#define GS_REPORT_MAX_HISTORY 256

// Seconds since the backward pass began.
typedef struct gs_report_bucket {
    int32_t index;           // −1: of all that have no entry of their own
    int32_t ready_position;  // −1: not known
    uint64_t bytes;
    bool travelled;  // else launched, arrived and finished say nothing
    char algorithm[15];
    double ready, launched, arrived, finished, algbw, busbw;
} gs_report_bucket;

// What tells a straggler, of one step; seconds.
typedef struct gs_report_waits {
    int64_t step;
    double compute, wait, transfer, data, step_seconds;
} gs_report_waits;

typedef enum gs_report_point {
    GS_POINT_LOSS = 0,
    GS_POINT_GRAD_NORM,
    GS_POINT_LR,
    GS_POINT_STEP_SECONDS,
    GS_POINT_TOKENS_PER_SECOND,
    GS_POINT_COMM_EXPOSED_SECONDS,
    GS_POINT_OVERLAP_RATIO,
    GS_NUM_REPORT_POINTS
} gs_report_point;

// A step of the history, as the points of the job's curves.
typedef struct gs_report_step {
    int64_t step;
    uint64_t known;  // bits by gs_report_point
    double points[GS_NUM_REPORT_POINTS];
} gs_report_step;

typedef struct gs_step_report {
    int64_t generation, rank, step;
    uint64_t known;  // bits of the values that were told; the others are 0
    double values[GS_NUM_REPORT_VALUES];
    uint8_t num_bins[GS_NUM_REPORT_HISTOGRAMS];  // 0: not told
    gs_histogram histograms[GS_NUM_REPORT_HISTOGRAMS];
    // Borrowed; oldest first.
    const gs_report_bucket *buckets;
    const gs_report_waits *waits;
    const gs_report_step *history;
    size_t num_buckets, num_waits, num_history;
} gs_step_report;

// Room for the rows of one report.
typedef struct gs_report_rows {
    gs_report_bucket buckets[GS_REPORT_MAX_BUCKETS];
    gs_report_waits waits[GS_REPORT_MAX_WAITS];
    gs_report_step history[GS_REPORT_MAX_HISTORY];
} gs_report_rows;

void gs_step_report_set(gs_step_report *report, gs_report_value which, double value);
bool gs_step_report_knows(const gs_step_report *report, gs_report_value which);
double gs_step_report_get(const gs_step_report *report, gs_report_value which, double fallback);

gs_json *gs_step_report_to_json(const gs_step_report *report);
gs_json *gs_report_bucket_to_json(const gs_report_bucket *bucket);
gs_json *gs_report_step_to_json(const gs_report_step *step);
// A Step of a worker of before. What does not fit is left out, as it is where numbers are looked up by name.
void gs_step_report_from_json(gs_step_report *report, gs_report_rows *rows, const gs_json *step);

#endif
