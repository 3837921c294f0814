// What the replicas of a process share, and one of them. replica.c has what a replica's thread does
// with it, replicas.c what the owner does.
#ifndef GRADSYNC_REPLICAS_REPLICA_GROUP_H
#define GRADSYNC_REPLICAS_REPLICA_GROUP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/bucket/grad_layout.h"
#include "gradsync/reducer/ready_order.h"
#include "gradsync/reducer/reducer_types.h"

typedef struct gs_replica_group gs_replica_group;

typedef struct gs_replica {
    gs_replica_group *group;
    int index;
    gs_device *device;
    char *memory;  // owned; a slot for each own shard in exact mode, else one; replica 0: none
    void **grads;  // slot · num_params + param; replica 0 writes where the reducer says
    int first_shard, num_shards, num_slots, num_passes;

    // The replica's thread, in a step; the owner between steps.
    gs_reducer_pass pass;
    bool in_pass;
    uint32_t serial;      // of the pass, never 0
    size_t num_marked;    // in the pass
    size_t *num_pending;  // bucket → members not ready in the reducing pass
    uint8_t *used;        // slot · num_params + param; the owner reads what is complete
    int64_t *samples;     // of each pass
    // Written by the replica's thread; the owner looks when it must say who is missing.
    _Atomic uint32_t *marks;  // param → serial of the last pass that marked it
    atomic_int passes_begun, passes_ended;
    _Atomic uint32_t serial_seen;
} gs_replica;

struct gs_replica_group {
    gs_reducer_options
        whole;  // as one reducer for each replica would have it; params are the layout's
    int num_replicas;
    gs_replica *each;
    bool exact;
    // Without memory: where a gradient lies in a slot of any replica's. Changes between steps.
    gs_grad_layout layout;

    // Of the step. Owner, unless said.
    atomic_bool open;
    int64_t step;
    double scale;              // of local sums
    gs_reducer_pass reducing;  // where sums go; written before replicas run
    uint32_t *order_marks;     // replica 0's marks for the ready order
    gs_ready_order order;

    atomic_int *num_incomplete;  // bucket → replicas that have not completed it
    atomic_bool failed;
    pthread_mutex_t lock;  // of what follows
    pthread_cond_t moved;
    size_t *summed;  // buckets in the order in which their sums were done; read below num_summed
    atomic_size_t num_summed;
    int num_ended;
    gs_status error;
};

// Parameters are copied. Needs a plan for its layout, and its replicas, next. Release after an
// error, too.
GS_NODISCARD gs_status gs_replica_group_init(gs_replica_group *group,
                                             const gs_reducer_options *whole, int num_replicas);
void gs_replica_group_release(gs_replica_group *group);

// Any thread: keeps the first error and wakes the owner. Returns what is kept; *is_first: it is
// this one.
gs_status gs_replica_group_fail(gs_replica_group *group, gs_status status, bool *is_first);
gs_status gs_replica_group_error(gs_replica_group *group);

#endif
