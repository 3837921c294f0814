// The contract of a communication hook: a ready bucket in, work out.
//
// To add one: a file in gradsync/hooks/, a line in the table of comm_hook.c.
#ifndef GRADSYNC_COMM_HOOK_H
#define GRADSYNC_COMM_HOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/comm.h"

typedef struct gs_hook_bucket {
    int index, num_buckets;
    int64_t step;
    float *data;    // gradients, then reserved elements; in the arena; the result goes here too
    size_t count;   // gradients, padding included
    size_t reserved_count;  // behind them: summed exactly, never compressed; scaled like gradients
    double scale;           // what turns the sum into the result wanted: 1 / divisor, or 1
    const gs_reduce_tree *tree;  // exact mode; else NULL
    size_t part_stride_bytes;
} gs_hook_bucket;

typedef struct gs_comm_hook {
    const char *name;
    gs_status (*create)(void **state, gs_comm *comm);
    // Starts the reduction of a bucket; *work is the last collective of it. Never blocks.
    gs_status (*run)(void *state, gs_comm *comm, const gs_hook_bucket *bucket, gs_work *work,
                     uint64_t *wire_bytes);
    // After *work is done: turns what arrived into the result in `data`.
    gs_status (*finish)(void *state, const gs_hook_bucket *bucket);
    void (*destroy)(void *state);
} gs_comm_hook;

extern const gs_comm_hook gs_hook_allreduce;
const gs_comm_hook *gs_comm_hook_find(const char *name);  // NULL: no such hook

#endif
