// The buckets of a step on their way: launched strictly in plan order as they become ready, led
// through the phases of their hooks, harvested as the last of them ends.
//
// The same order on every rank, whatever order gradients come in: a late bucket holds back the
// ready ones behind it, in every phase. Phases of different buckets overlap; each posts in a lane
// of its own, where the order is that of the buckets. Each bucket carries what its rank says about
// the step, so that it means the same alone; what that is, and what reduced buckets say, is the
// tally's. A bucket that nobody opened, since none of its members was written, becomes zeros when
// its place is free, and goes. One that rests is passed over in its
// turn. Which gradient is ready when is the reducer's business. On a GPU
// everything here is enqueued.
#ifndef GRADSYNC_REDUCER_BUCKET_QUEUE_H
#define GRADSYNC_REDUCER_BUCKET_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/dtype.h"
#include "core/status.h"
#include "gradsync/bucket/bucket_tally.h"
#include "gradsync/bucket/grad_layout.h"
#include "gradsync/comm/comm.h"
#include "gradsync/hooks/comm_hook.h"
#include "gradsync/hooks/hook_set.h"
#include "kernels/device.h"

// A lane of a communicator takes 1024 collectives, some of which are for tails that post behind all buckets, and
// most hooks post one to three for a bucket in a phase. With no more buckets than that (gs_bucket_queue_most tells
// of other hooks) all are posted when the last one is pushed.
#define GS_MAX_BUCKETS_IN_FLIGHT 256

// Whom it works for; all borrowed until release.
typedef struct gs_bucket_queue_options {
    const gs_grad_layout *layout;
    gs_bucket_tally *tally;
    gs_comm *comm;
    gs_hook_set *hooks;
    gs_device *device;
    const gs_reduce_tree *tree;  // exact mode; else NULL
    void (*finished)(void *ctx, size_t bucket);  // told of each that is done; NULL: nobody
    void *finished_ctx;
} gs_bucket_queue_options;

typedef struct gs_bucket_queue {
    gs_bucket_queue_options options;
    bool posts_ahead;  // the host posts long before the device comes to it
    size_t most_in_flight;
    int max_phases;
    gs_phase_times *phases;  // max_phases for each bucket; NULL: there is one phase
    // of the step
    size_t first_filling;  // buckets before it are ready, or further
    // Buckets before next_run[p] have begun phase p, or their hook has none; next_run[0]: are in flight or done.
    size_t next_run[GS_HOOK_MAX_PHASES];
    size_t next_done;  // buckets before it are done
    // Where the buckets of each pass travel: results are added to those of earlier ones, and the
    // last says the rest.
    bool adds, is_last_pass;
    // how it went
    int64_t owner_ns;  // spent here except in finish and in waits for windows
    int64_t window_wait_ns;
    int64_t encode_ns, decode_ns;  // in hooks (gs_reduce_stats)
    uint64_t num_out_of_turn;  // became ready before an earlier bucket
} gs_bucket_queue;

GS_NODISCARD gs_status gs_bucket_queue_init(gs_bucket_queue *queue,
                                            const gs_bucket_queue_options *options);
// Aborts the communicator with `reason` when buckets are in flight, and waits until it lets go of
// their memory.
void gs_bucket_queue_release(gs_bucket_queue *queue, const char *reason);

// No bucket is in flight. The step is the tally's.
void gs_bucket_queue_begin(gs_bucket_queue *queue);
// The next pass of the step, behind all buckets of the last one.
GS_NODISCARD gs_status gs_bucket_queue_begin_pass(gs_bucket_queue *queue, bool is_first,
                                                  bool is_last, gs_deadline deadline);
// All members of bucket `index` are final. Launches what may go; never blocks for other ranks.
GS_NODISCARD gs_status gs_bucket_queue_push(gs_bucket_queue *queue, size_t index);
// Bucket `index` may be opened: the one before it in its window is done.
static inline bool gs_bucket_queue_is_free(const gs_bucket_queue *queue, size_t index) {
    size_t before = queue->options.layout->buckets[index].before;
    return before == GS_NO_BUCKET || before < queue->next_done;
}
// Until it is. Bucket `before` and all in front of it have been pushed.
GS_NODISCARD gs_status gs_bucket_queue_await_place(gs_bucket_queue *queue, size_t index,
                                                   gs_deadline deadline);
// Between two pushes: moves what is in flight.
GS_NODISCARD gs_status gs_bucket_queue_progress(gs_bucket_queue *queue);
// The error of a function that was handed in, a hook's or a tail's: all ranks leave with it, so
// rank, step and `what` go before it. Not where a rank is named already, as by the communicator, or
// another one aborted.
GS_NODISCARD gs_status gs_bucket_queue_blame(const gs_bucket_queue *queue, gs_status status,
                                             const char *what);
// Nothing of the step has been posted: other ranks know nothing of it.
bool gs_bucket_queue_is_untouched(const gs_bucket_queue *queue);
// Until all buckets are done. On a GPU: until their results are there for work on the compute
// stream.
GS_NODISCARD gs_status gs_bucket_queue_finish(gs_bucket_queue *queue, gs_deadline deadline);

// So many buckets are in flight at most, when hooks post up to `most_posts` for one in a phase: lane 0 then
// takes GS_MOST_TAIL_POSTS more.
#define GS_MOST_TAIL_POSTS 64
size_t gs_bucket_queue_most(int most_posts);

#endif
