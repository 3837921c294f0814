// The buckets of a step on their way: launched strictly in plan order as they become ready,
// harvested as their collectives end. What the reduced buckets say about the step is collected
// here.
//
// The same order on every rank, whatever order gradients come in: a late bucket holds back the
// ready ones behind it. The last bucket waits until the queue is sealed, since it carries the
// samples. Which gradient is ready when is the reducer's business.
#ifndef GRADSYNC_BUCKET_QUEUE_H
#define GRADSYNC_BUCKET_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm.h"
#include "gradsync/comm_hook.h"
#include "gradsync/grad_layout.h"
#include "kernels/device.h"

// Whom it works for; all borrowed until release.
typedef struct gs_bucket_queue_options {
    const gs_grad_layout *layout;
    gs_comm *comm;
    const gs_comm_hook *hook;
    gs_device *device;
    const gs_reduce_tree *tree;  // exact mode; else NULL
    double scale;                // of the sums
} gs_bucket_queue_options;

typedef struct gs_bucket_queue {
    gs_bucket_queue_options options;
    void *hook_state;
    // of the step
    int64_t step;
    size_t first_filling;  // buckets before it are ready, or further
    size_t next_launch;    // buckets before it are in flight or done
    size_t next_done;      // buckets before it are done
    bool sealed;
    int64_t samples;  // of this rank, once sealed
    uint8_t *used;    // by this rank, for each parameter; the owner of the queue writes it
    // what the buckets done so far say, the same on every rank
    uint8_t *used_anywhere;
    double *squares;  // of each reduced gradient
    bool finite;
    int64_t total_samples;
    // how it went
    int64_t owner_ns;          // spent here except in finish
    uint64_t num_out_of_turn;  // became ready before an earlier bucket
} gs_bucket_queue;

GS_NODISCARD gs_status gs_bucket_queue_init(gs_bucket_queue *queue,
                                            const gs_bucket_queue_options *options);
// Aborts the communicator when buckets are in flight, and waits until it lets go of their memory.
void gs_bucket_queue_release(gs_bucket_queue *queue);

void gs_bucket_queue_begin(gs_bucket_queue *queue, int64_t step);
// All members of bucket `index` are final. Launches what may go; never blocks for other ranks.
GS_NODISCARD gs_status gs_bucket_queue_push(gs_bucket_queue *queue, size_t index);
// Between two pushes: moves what is in flight.
GS_NODISCARD gs_status gs_bucket_queue_progress(gs_bucket_queue *queue);
// All buckets are ready, `samples` are this rank's.
GS_NODISCARD gs_status gs_bucket_queue_seal(gs_bucket_queue *queue, int64_t samples);
// Until all buckets are done.
GS_NODISCARD gs_status gs_bucket_queue_finish(gs_bucket_queue *queue, gs_deadline deadline);

#endif
