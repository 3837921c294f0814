#include "gradsync/bucket/reduce_stats.h"

void gs_reduce_stats_sum_buckets(gs_reduce_stats *stats) {
    int64_t busy_until_ns = 0;
    stats->busy_ns = stats->wait_ns = stats->first_launch_ns = 0;
    for (size_t b = 0; b < stats->num_buckets; b++) {
        const gs_bucket_times *times = &stats->buckets[b];
        int64_t from_ns = times->started_ns > busy_until_ns ? times->started_ns : busy_until_ns;
        if (times->started_ns && times->finished_ns > from_ns) {
            stats->busy_ns += times->finished_ns - from_ns;
            busy_until_ns = times->finished_ns;
        }
        if (times->all_arrived_ns > times->posted_ns)
            stats->wait_ns += times->all_arrived_ns - times->posted_ns;
        if (times->posted_ns && (!stats->first_launch_ns || times->posted_ns < stats->first_launch_ns))
            stats->first_launch_ns = times->posted_ns;
    }
}

double gs_reduce_stats_overlap_ratio(const gs_reduce_stats *stats) {
    int64_t hidden_ns = stats->busy_ns - stats->exposed_ns;
    if (stats->busy_ns <= 0 || hidden_ns <= 0) return 0;
    return (double)hidden_ns / (double)stats->busy_ns;
}
