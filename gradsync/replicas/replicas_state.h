// What replicas.c (the owner's side) and replica_pass.c (a replica's side) share; private to them.
#ifndef GRADSYNC_REPLICAS_REPLICAS_STATE_H
#define GRADSYNC_REPLICAS_REPLICAS_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "gradsync/bucket/bucket.h"
#include "gradsync/reducer/ready_order.h"
#include "gradsync/replicas/replicas.h"

typedef struct gs_replica {
    gs_replicas *replicas;
    int index;
    gs_device *device;
    char *memory;   // owned; a slot for each own shard in exact mode, else one; replica 0: none
    float **grads;  // slot · num_params + param; replica 0 writes where the reducer says
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

struct gs_replicas {
    gs_reducer_options whole;  // params point into the copy below
    gs_param_spec *params;     // owned copy
    gs_reducer *reducer;
    gs_comm *comm;
    gs_replica_divisor divisor;
    int num_replicas;
    gs_replica *each;
    double scale;  // of local sums, in this step
    bool exact;

    // Layout; changes between steps.
    gs_bucket_plan plan;
    gs_bucket *buckets;
    size_t *offset_bytes, *bucket_of;
    size_t slot_bytes;

    // Of the step. Owner, unless said.
    atomic_bool open;
    int64_t step, samples;
    gs_reducer_pass reducing;  // where sums go; written before replicas run
    size_t num_posted;
    uint32_t *order_marks;  // replica 0's marks for the ready order
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

// Keeps the first error, ends the step everywhere; returns what is kept.
gs_status gs_replicas_keep_error(gs_replicas *replicas, gs_status status);
gs_status gs_replicas_first_error(gs_replicas *replicas);
// Owner: what has been summed goes to the reducer.
GS_NODISCARD gs_status gs_replicas_post(gs_replicas *replicas);

static inline float *gs_replica_grad(const gs_replica *self, int slot, size_t param) {
    return self->memory ? self->grads[(size_t)slot * self->replicas->whole.num_params + param]
                        : self->replicas->reducing.grads[param];
}

#endif
