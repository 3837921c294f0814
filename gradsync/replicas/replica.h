// One replica of a process: its passes, its marks, and the sums of the buckets that it is the last
// to complete. On the replica's thread; life and the begin of a step are the owner's.
#ifndef GRADSYNC_REPLICAS_REPLICA_H
#define GRADSYNC_REPLICAS_REPLICA_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/replicas/replica_group.h"

//   shards  of this replica, as if it were a process
GS_NODISCARD gs_status gs_replica_init(gs_replica *self, gs_replica_group *group,
                                       const gs_logical_shards *shards, int index,
                                       gs_device *device);
void gs_replica_release(gs_replica *self);
// After each change of the group's layout. Gradients in its memory lose their meaning.
void gs_replica_place(gs_replica *self);
void gs_replica_begin_step(gs_replica *self);

GS_NODISCARD gs_status gs_replica_open_pass(gs_replica *self, gs_reducer_pass *pass,
                                            int64_t samples);
GS_NODISCARD gs_status gs_replica_mark_ready(gs_replica *self, size_t param);
GS_NODISCARD gs_status gs_replica_mark_unused(gs_replica *self, size_t param);
GS_NODISCARD gs_status gs_replica_close_pass(gs_replica *self);

static inline float *gs_replica_grad(const gs_replica *self, int slot, size_t param) {
    return self->memory ? self->grads[(size_t)slot * self->group->whole.num_params + param]
                        : self->group->reducing.grads[param];
}

#endif
