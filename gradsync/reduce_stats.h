// When each bucket was ready, posted and done in one step: plain numbers, no registry.
#ifndef GRADSYNC_REDUCE_STATS_H
#define GRADSYNC_REDUCE_STATS_H

#include <stddef.h>
#include <stdint.h>

typedef struct gs_bucket_times {
    int64_t ready_ns;        // its last gradient was marked ready
    int64_t posted_ns;       // its turn came and the hook ran
    int64_t all_arrived_ns;  // the last rank had posted it, as seen here
    int64_t started_ns;      // first byte moved here
    int64_t finished_ns;     // all ranks done
    uint64_t bytes;          // gradient bytes, before any hook
    uint64_t wire_bytes;     // what the hook sent
    const char *algorithm;   // constant text: "direct"
} gs_bucket_times;

typedef struct gs_reduce_stats {
    int64_t step;
    int64_t begin_ns;           // gs_reducer_begin
    int64_t backward_begin_ns;  // first mark of the reducing pass; without one, its end
    int64_t backward_end_ns;    // end of the reducing pass
    int64_t end_ns;             // gs_reducer_finish returned
    int64_t busy_ns;            // union of [started, finished] over buckets
    int64_t exposed_ns;         // waiting in finish, and work done for buckets inside the owner's calls
    int64_t wait_ns;            // sum over buckets: posted to all arrived
    size_t num_buckets;
    const gs_bucket_times *buckets;  // num_buckets; valid until the next begin
    uint64_t ready_order_mismatches;  // buckets that became ready out of plan order in this step
} gs_reduce_stats;

// busy_ns and wait_ns from the times of the buckets, which start in order.
void gs_reduce_stats_sum_buckets(gs_reduce_stats *stats);

#endif
