// The record of a reducer: what it is and how its steps went, as record_options.h lets others read it.
//
// Owned by the reducer, on its thread. What orders and sums gradients is not decided here.
#ifndef GRADSYNC_REDUCER_REDUCER_RECORD_H
#define GRADSYNC_REDUCER_REDUCER_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bucket_plan.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "gradsync/bucket/reduce_stats.h"
#include "gradsync/reducer/record_options.h"
#include "kernels/device.h"

// What construction knows; strings and lists are copied or constant text.
typedef struct gs_record_facts {
    const gs_param_spec *params;  // borrowed while the record lives
    size_t num_params;
    const gs_bucket_plan *plan;
    int rank, world_size, num_shards, passes_per_shard;
    bool exact, unused_is_error, static_graph, separate_grads;
    const char *op, *hook, *wire_dtype, *backend, *algorithm;  // constant text
    gs_device *device;
} gs_record_facts;

// A mean over the sampled steps in which the time was known.
typedef struct gs_record_time {
    int64_t last_ns;  // of the last sampled step; −1: not known
    double mean_ns;
    int64_t num_samples;
} gs_record_time;

struct gs_reducer_record {
    gs_record_level level;  // never unset
    int64_t sample_every;
    char job[64], model[64];
    gs_record_options told;  // by the host; job and model are NULL
    gs_record_facts facts;   // its plan is NULL
    char host[65], dtypes[64], arithmetic[256], device[16];
    int64_t pid;
    int num_threads;
    uint64_t total_param_bytes;

    // Plans: the first one, and the one in force once it was rebuilt.
    size_t num_buckets, num_rebuilt_buckets;
    uint64_t *bucket_bytes;          // num_buckets
    uint64_t bucket_cap_bytes;       // largest limit of the plan in force
    uint64_t *rebuilt_bucket_bytes;  // num_rebuilt_buckets
    size_t *rebuilt_params;          // num_params: the rebuilt buckets' members, one after the other
    int64_t num_rebuilds;

    // Steps.
    int64_t step, num_steps, num_samples;  // the last one's number; begun; sampled and finished
    bool sampled;                          // the present step
    gs_record_time forward, backward, comm, overlap;
    gs_reduce_stats last;  // of the last sampled step; its lists are NULL
    size_t num_unused;     // by all ranks, last finished step
    uint64_t unused_bytes;
    size_t num_locally_unused;
    // While this rank has used the same parameters in all steps so far.
    bool could_be_static;
    uint8_t *first_used;       // num_params
    size_t *last_ready_order;  // num_params, of the last sampled step
    int64_t *param_ready_ns;   // num_params; −1: not marked. Of the last sampled step with times

    bool times_params;  // marks of the present step are timed
    bool has_error;
    int64_t error_step;
    gs_status error;
};

GS_NODISCARD gs_status gs_reducer_record_init(gs_reducer_record *record,
                                              const gs_record_facts *facts,
                                              const gs_record_options *options);
void gs_reducer_record_release(gs_reducer_record *record);
// Another plan. Without memory for its lists they are left out.
void gs_reducer_record_set_plan(gs_reducer_record *record, const gs_bucket_plan *plan);

// A step opens; decides whether it is sampled.
void gs_reducer_record_begin(gs_reducer_record *record, int64_t step);
// Only while times_params: `param` is ready now.
void gs_reducer_record_mark(gs_reducer_record *record, size_t param, int64_t backward_begin_ns);
// The step is finished.
//   used   num_params flags: what this rank used
//   order  num_params parameters in ready order
void gs_reducer_record_finish(gs_reducer_record *record, const gs_reduce_stats *stats,
                              const uint8_t *used, const size_t *order);
// The first error of the reducer.
void gs_reducer_record_fail(gs_reducer_record *record, int64_t step, gs_status error);

#endif
