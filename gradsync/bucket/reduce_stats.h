// When each bucket was ready, posted and done in one step: plain numbers, no registry.
//
// With a GPU marks of parameters and copies are timed where the host enqueues them; the ends of passes and the
// movement of buckets where the device comes to them, on the clock of gs_now_ns to within some microseconds. There a
// bucket is ready and posted when its collective starts; that others come late is a part of its movement. A backward
// pass launched as a graph begins where the graph's first gradient is final.
#ifndef GRADSYNC_BUCKET_REDUCE_STATS_H
#define GRADSYNC_BUCKET_REDUCE_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"

GS_BEGIN_DECLS

typedef struct gs_bucket_times {
    int64_t ready_ns;        // its last gradient was marked ready
    int64_t posted_ns;       // its turn came and the hook ran
    int64_t all_arrived_ns;  // the last rank had posted it, as seen here
    int64_t started_ns;      // first byte moved here
    int64_t finished_ns;     // all ranks done
    int64_t copy_in_ns;      // spent copying separate gradients in, all passes of the step
    int64_t copy_out_ns;     // spent copying results out of it
    uint64_t bytes;          // gradient bytes, before any hook
    uint64_t wire_bytes;     // what the hook sent
    const char *algorithm;   // constant text: "direct"
} gs_bucket_times;

// A phase of a bucket's hook; zeros: the hook has no such phase, or it posted nothing.
typedef struct gs_phase_times {
    int64_t posted_ns, started_ns, finished_ns;
} gs_phase_times;

typedef struct gs_reduce_stats {
    int64_t step;
    int64_t begin_ns;           // gs_reducer_begin
    int64_t forward_begin_ns;   // gs_reducer_note_forward; 0: the host did not tell
    int64_t backward_begin_ns;  // first mark of the reducing pass; without one, its end
    int64_t backward_end_ns;    // end of the reducing pass
    int64_t first_launch_ns;    // of a bucket; 0: none was launched
    int64_t end_ns;             // gs_reducer_finish returned
    int64_t busy_ns;            // union of [started, finished] over buckets
    // Waiting in finish, and work done for buckets inside the owner's calls. GPU: from the end of the backward
    // pass to that of the last bucket, both on the device.
    int64_t exposed_ns;
    int64_t wait_ns;            // sum over buckets: posted to all arrived
    size_t num_buckets;
    const gs_bucket_times *buckets;  // num_buckets; valid until the next begin
    uint64_t ready_order_mismatches;  // buckets that became ready out of plan order in this step
    size_t num_unused;      // parameters that no rank used in this step
    uint64_t unused_bytes;  // of their gradients
    // When each parameter was marked, since backward_begin_ns; −1: it was not. NULL: this step was not
    // timed (record_options.h). num_params of them; valid until the next begin.
    const int64_t *param_ready_ns;
    // Phases of buckets, where a hook has several: max_phases for each bucket, one bucket after the other. NULL:
    // all of them have one. Valid until the next begin.
    int max_phases;
    const gs_phase_times *phases;
    // Communication hooks, of all buckets: this rank's time in their phases without that of posting, and in their
    // last word without what goes on elsewhere. GPU: the host's, which enqueues.
    int64_t encode_ns, decode_ns;
    // What hooks compress, and what they send in its place: elements of gradients. 0: nothing in this step.
    uint64_t elements, elements_sent;
    // L2 norm of what this rank has yet to add to results, as the last commit left it. Known where a hook carries
    // it, in sampled steps (record_options.h).
    bool knows_residuals;
    double residual_norm;
    int64_t window_wait_ns;  // what gradients waited for their windows (gs_window_options), in
                             // exposed_ns as well
} gs_reduce_stats;

// busy_ns, wait_ns and first_launch_ns from the times of the buckets, which start in order.
void gs_reduce_stats_sum_buckets(gs_reduce_stats *stats);
// How much of the busy time was hidden behind the owner's own work, 0 to 1; 0 when nothing was busy.
double gs_reduce_stats_overlap_ratio(const gs_reduce_stats *stats);

GS_END_DECLS

#endif
