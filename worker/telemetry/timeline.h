// The last steps of this rank: when each phase and each bucket began and ended. A ring of bounded size.
//
// The compute thread writes the step that is open and files it when it ends; any thread may copy filed
// steps out, one at a time, so that filing waits for one copy at most. Nothing is allocated between
// gs_timeline_prepare calls. Times are gs_now_ns of this host: ranks of one host share that clock, others
// do not, and nothing here corrects them.
#ifndef WORKER_TELEMETRY_TIMELINE_H
#define WORKER_TELEMETRY_TIMELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/bucket/reduce_stats.h"

typedef struct gs_timeline gs_timeline;

typedef enum gs_span_kind {
    GS_SPAN_UNSET = 0,
    GS_SPAN_DATA,
    GS_SPAN_FORWARD,
    GS_SPAN_BACKWARD,
    GS_SPAN_REDUCTION,  // finish: what of it was not hidden behind backward
    GS_SPAN_COMMIT,
    GS_SPAN_OPTIMIZER,
    GS_SPAN_CHECKPOINT,
    GS_SPAN_EVALUATE,
    GS_SPAN_OPENING,  // buffers and rounds that ranks share before they compute
    GS_NUM_SPAN_KINDS
} gs_span_kind;
const char *gs_span_kind_name(gs_span_kind kind);

typedef struct gs_span {
    gs_span_kind kind;
    int64_t begin_ns, end_ns;
} gs_span;

#define GS_TIMELINE_SPANS 96            // of a step; later ones are counted, not kept
#define GS_TIMELINE_BYTES (32u << 20)   // of a ring; with many buckets it holds fewer steps
#define GS_TIMELINE_BUCKETS 2048        // of a step; later ones are counted, not kept

typedef struct gs_timeline_step {
    int64_t step, begin_ns, end_ns;
    uint32_t generation;
    int plan_revision;     // 0: the one that the generation began with
    uint64_t plan_digest;  // folded
    int64_t samples;
    bool applied;  // false: left out, its gradients were not finite
    int num_spans, num_spans_dropped;
    gs_span spans[GS_TIMELINE_SPANS];
    size_t num_unused;
    uint64_t unused_bytes;
    int64_t backward_begin_ns, backward_end_ns;  // of the reducing pass
    size_t num_buckets, num_buckets_dropped;
    gs_bucket_times *buckets;
    int max_phases;          // of a bucket's hook; 0: each has one
    gs_phase_times *phases;  // max_phases for each bucket; behind the buckets, in their memory
} gs_timeline_step;

// How much of a message it is: spans and buckets, one with phases more than one.
static inline size_t gs_timeline_step_rows(const gs_timeline_step *step) {
    return (size_t)step->num_spans +
           step->num_buckets * (size_t)(1 + (step->max_phases + 3) / 4);
}

// `ring_steps` at least 1.
GS_NODISCARD gs_status gs_timeline_create(gs_timeline **out, int64_t ring_steps);
void gs_timeline_destroy(gs_timeline *timeline);

// Compute thread.
typedef struct gs_timeline_plan {
    uint32_t generation;
    int revision;
    uint64_t digest;
    size_t num_buckets;
    int num_phases;  // of a bucket at most
} gs_timeline_plan;
// Between steps: what the steps from now on are about, and room for that many buckets. Steps that were
// filed stay, as many as there is room for. NULL timelines are fine here and below: nothing is kept.
GS_NODISCARD gs_status gs_timeline_prepare(gs_timeline *timeline, const gs_timeline_plan *plan);
void gs_timeline_begin(gs_timeline *timeline, int64_t step);
// A phase of the open step that began at begin_ns and ends now. The same kind without a gap after it
// makes one span.
void gs_timeline_add(gs_timeline *timeline, gs_span_kind kind, int64_t begin_ns);
// One that is known afterwards; what of it lies before the open step is left out.
void gs_timeline_add_span(gs_timeline *timeline, const gs_span *span);
// How the open step was reduced; copied.
void gs_timeline_reduced(gs_timeline *timeline, const gs_reduce_stats *stats);
// Files the open step. Without this it is dropped at the next begin.
void gs_timeline_finish(gs_timeline *timeline, int64_t samples, bool applied);

// Any thread.
void gs_timeline_switch(gs_timeline *timeline, bool on);  // on at first
// The numbers of the oldest and the newest step filed; false: none.
bool gs_timeline_range(gs_timeline *timeline, int64_t *oldest, int64_t *newest);
// The first step from which on, up to `to_step`, at most max_rows spans and buckets are filed; at least
// to_step itself, at most down to from_step.
int64_t gs_timeline_fit(gs_timeline *timeline, int64_t from_step, int64_t to_step, size_t max_rows);
// A copy of one step; its buckets are the caller's (gs_timeline_step_release). NOT_FOUND: not filed, or
// no longer.
GS_NODISCARD gs_status gs_timeline_copy(gs_timeline_step *out, gs_timeline *timeline, int64_t step);
void gs_timeline_step_release(gs_timeline_step *step);

#endif
