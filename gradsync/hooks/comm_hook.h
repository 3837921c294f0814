// The contract of a communication hook: a ready bucket in, work out.
//
// To add one: a file in gradsync/hooks/, a line in the table of comm_hook.c.
#ifndef GRADSYNC_HOOKS_COMM_HOOK_H
#define GRADSYNC_HOOKS_COMM_HOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/dtype.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

// A bucket as a hook sees it. `data` holds the gradients, padding included, then the reserved elements,
// all of them `dtype`. When the reducer has a wire dtype there is also room for a copy of the gradients
// in it: `wire`, `count` elements on a boundary of 64 bytes, in the arena, this bucket's own for the
// whole step. On a GPU all of it is the GPU's memory: gradients are final behind the compute stream's point,
// reserved elements on the communicator's stream; work that belongs before a post goes there
// (gs_comm_stream), and `finish` finds what arrived on the compute stream. A hook that can compress casts
// data → wire in `run`, reduces wire with `scale` folded in and the reserved elements apart, as they are, and
// casts back in `finish`. One that cannot ignores it.
typedef struct gs_hook_bucket {
    int index, num_buckets;  // in plan order; a static graph leaves out buckets that nobody uses
    bool is_last;            // no bucket follows in this step
    int64_t step;
    int32_t num_active;     // ranks that have data; both go into every collective that a hook posts
    void *data;             // in the arena; the result goes here too
    gs_dtype dtype;         // GS_FP32 or GS_FP64
    size_t count;           // gradients; 0 for a sparse parameter, whose bucket is reserved elements alone
    size_t reserved_count;  // behind them: summed exactly, never compressed; scaled like gradients
    double scale;           // what turns the sum into the result wanted: 1 / divisor, or 1
    const gs_reduce_tree *tree;  // exact mode; else NULL
    size_t part_stride_bytes;
    void *wire;  // NULL: no wire dtype; always NULL in exact mode
    gs_dtype wire_dtype;
    gs_device *device;  // whose kernels and stream the hook uses
} gs_hook_bucket;

typedef struct gs_comm_hook {
    const char *name;
    gs_status (*create)(void **state, gs_comm *comm);  // after an error there is nothing to destroy
    // Starts the reduction of a bucket; *work is the last collective of it, and there is one. Never blocks.
    // Errors, also of finish, reach all ranks with this rank, step, bucket and the hook's name before them.
    gs_status (*run)(void *state, gs_comm *comm, const gs_hook_bucket *bucket, gs_work *work,
                     uint64_t *wire_bytes);
    // After *work is done: turns what arrived into the result in `data`.
    gs_status (*finish)(void *state, const gs_hook_bucket *bucket);
    void (*destroy)(void *state);
} gs_comm_hook;

const gs_comm_hook *gs_comm_hook_find(const char *name);  // NULL: no such hook

GS_END_DECLS

// What a reducer takes without a hook of its own: "allreduce"; with a wire dtype "compress". Not of the shared
// library's names: gs_comm_hook_find has them.
extern const gs_comm_hook gs_hook_allreduce;
extern const gs_comm_hook gs_hook_compress;

#endif
