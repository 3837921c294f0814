// The inside of a reducer, for those that work on it, each of which calls only those behind it: reducer_life.c (from
// its creation to its end), reducer.c (what callers call between), reducer_step.c (begin, finish), reducer_pass.c
// (passes and marks).
#ifndef GRADSYNC_REDUCER_REDUCER_STATE_H
#define GRADSYNC_REDUCER_REDUCER_STATE_H

#include <sys/types.h>

#include "gradsync/bucket/bucket_tally.h"
#include "gradsync/bucket/grad_copies.h"
#include "gradsync/bucket/grad_layout.h"
#include "gradsync/bucket/reduce_stats.h"
#include "gradsync/comm/comm.h"
#include "gradsync/hooks/hook_set.h"
#include "gradsync/reducer/bucket_queue.h"
#include "gradsync/reducer/options_check.h"
#include "gradsync/reducer/ready_order.h"
#include "gradsync/reducer/reducer_record.h"
#include "gradsync/reducer/reducer_types.h"
#include "gradsync/reducer/static_graph.h"
#include "gradsync/reducer/step_points.h"
#include "gradsync/step/trainability.h"

typedef enum gs_reducer_phase {
    GS_REDUCER_IDLE = 0,
    GS_REDUCER_OPEN,  // in a step
    GS_REDUCER_PASS   // in a pass of it
} gs_reducer_phase;

// Where the gradient of an own shard goes, and what is merged when it is complete.
typedef struct gs_shard_step {
    int slot, merges;
} gs_shard_step;

struct gs_reducer {
    gs_reducer_options options;  // params and plan point into the layout
    gs_comm *comm;
    pid_t owner;  // the process that made it
    gs_arena_parts parts;
    gs_hook_set hooks;
    gs_grad_layout layout;
    gs_shard_tree tree;
    gs_shard_step *shard_steps;  // own shards
    int num_passes;              // of a step, on this rank
    gs_status failed;            // the first error; nothing works any more
    gs_grad_copies copies;       // tensors NULL: gradients are views
    double grad_unit;            // of the gradients of the steps to come
    gs_static_graph graph;       // off unless promised
    gs_trainability trains;
    gs_bucket_tally tally;

    // of the step
    gs_reducer_phase phase;
    int64_t step, samples;
    bool active;     // this rank has data
    int num_active;  // ranks that are to have some
    int passes_run;
    bool has_buckets;  // all are reduced: finish has only to wait for the device
    int64_t finish_begin_ns;
    bool complete;
    bool undecided;  // begun, and neither committed nor rolled back
    bool nonfinite;  // what the last finish found
    gs_bucket_queue queue;
    gs_reducer_tail tails[GS_MAX_TAILS];
    size_t num_tails;

    // of the pass
    gs_reducer_pass pass;
    int slot;             // where its gradients go
    bool closes;          // gradients are final for the shard (exact mode) or the step when marked
    bool defers;          // no: when the pass ends, since marks are not counted yet
    bool settled_unused;  // a static graph's unused parameters
    uint32_t serial;      // of the pass, never 0
    uint32_t *marks;      // parameter → serial of the last pass that marked it
    uint32_t *unused_marks;  // the same of those said to be unused
    uint32_t *open_marks;    // with windows: of those said to be written; else NULL
    size_t num_seen;         // marked, or said to be unused
    size_t bytes_since_progress;

    gs_ready_order order;
    gs_reduce_stats stats, last_stats;
    gs_bucket_times *times;  // of last_stats
    gs_step_points points;   // on a GPU
    gs_reducer_record record;
};

// FAILED_PRECONDITION with rank, step and parameter: `what` follows its name.
gs_status gs_reducer_blame(const gs_reducer *reducer, size_t param, const char *what);
gs_status gs_reducer_misuse(const gs_reducer *reducer, const char *what);
// The first error sticks, and ends the step on every rank with its words.
gs_status gs_reducer_keep_error(gs_reducer *reducer, gs_status status);

#endif
