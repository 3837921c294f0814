// What the buckets of a step say beside gradients. This rank's share is written before a bucket
// travels: what it used, its samples, that it took part. What all ranks said is read from the
// reduced bucket and compared with what was announced. The squares of reduced gradients are taken
// at the same moment.
//
// In buckets: the host writes and reads each in place, while it is in cache. To a GPU all is
// enqueued, through a mirror, and read behind one wait for all buckets; a sample mean waits once
// more, for the samples that it divides by. Apart (tally_carrier.h): buckets carry nothing, and one
// collective behind them all says the same, also where a rank has a part of the result alone; a
// sample mean has a second one before it. Which of them it is, is settled when the tally is made.
#ifndef GRADSYNC_BUCKET_BUCKET_TALLY_H
#define GRADSYNC_BUCKET_BUCKET_TALLY_H

#include <stdbool.h>
#include <stddef.h>

#include "core/clock.h"
#include "core/segment.h"
#include "core/status.h"
#include "gradsync/bucket/tally_state.h"
#include "gradsync/comm/work_stream.h"

// Borrows layout and device until release, which is also for after an error. Needs `place` next. A
// layout without reserved elements is for a tally apart.
GS_NODISCARD gs_status gs_bucket_tally_init(gs_bucket_tally *tally, const gs_grad_layout *layout,
                                            gs_device *device, bool sample_mean);
// From the next step on this rank takes squares of those parameters alone that `measured_by` (copied)
// says are its own, and `read` is one collective more that tells all of them. Ranks are those of each
// step: of fewer than were named, modulo how many there are. A GPU takes all as ever.
// INVALID_ARGUMENT: a negative rank.
GS_NODISCARD gs_status gs_bucket_tally_deal(gs_bucket_tally *tally, const int *measured_by);
// When nothing of a step is on its way any more.
void gs_bucket_tally_release(gs_bucket_tally *tally);
// After each change of the layout, or of which buckets rest.
void gs_bucket_tally_place(gs_bucket_tally *tally);

void gs_bucket_tally_begin(gs_bucket_tally *tally, const gs_bucket_step *step);
// This rank's share into bucket `index`, before it is posted. Elements that nothing else writes: on
// a GPU they go to the stream `on`.
void gs_bucket_tally_write(const gs_bucket_tally *tally, size_t index, gs_work_stream on);
// This rank has these segments of the result of bucket `index` alone, apart from each other; said
// before the bucket is taken, in every step anew. INVALID_ARGUMENT names a segment that is not of
// the bucket; UNIMPLEMENTED where the tally is in buckets.
GS_NODISCARD gs_status gs_bucket_tally_hold(gs_bucket_tally *tally, size_t index,
                                            const gs_segment *segments, size_t num_segments);
// A bucket's result is this rank's own, on all ranks; said before it is taken. UNIMPLEMENTED where
// the tally is apart, squares are dealt, or a sample mean divides what ranks have in common.
GS_NODISCARD gs_status gs_bucket_tally_own(gs_bucket_tally *tally);
// Whether a rank's result of this step is known to be partial: here.
bool gs_bucket_tally_is_partial(const gs_bucket_tally *tally);
// Bucket `index` is reduced.
GS_NODISCARD gs_status gs_bucket_tally_take(gs_bucket_tally *tally, size_t index);
// Which parameters of taken buckets are known to be used by some rank: in place all that are; on a GPU those of this
// rank. NULL where that is known behind the last one alone.
const uint8_t *gs_bucket_tally_used(const gs_bucket_tally *tally);
// All of them are: results are there for work on the compute stream.
GS_NODISCARD gs_status gs_bucket_tally_close(gs_bucket_tally *tally, gs_deadline deadline);
// The squares of a gradient that was changed after its bucket was taken.
void gs_bucket_tally_measure(gs_bucket_tally *tally, size_t param);
// On a GPU, after `close` and after what else changed gradients: `read` waits for what the compute stream was given so
// far, and not for what follows. *squares becomes where the sums of squares of all parameters lie, in pinned memory, for
// what is enqueued now: of those whose gradient is not finite, or whose squares are beyond fp32, they are not finite either.
// UNIMPLEMENTED where they are not all there yet: on the host, apart, with gradients of fp64.
GS_NODISCARD gs_status gs_bucket_tally_mark(gs_bucket_tally *tally, const double **squares);
// After `close`, and after what else changed gradients: waits for the compute stream. Then what
// buckets said is there, all that was measured, and whether it is finite, the same on all ranks:
// where results are a rank's own, by a small collective.
GS_NODISCARD gs_status gs_bucket_tally_read(gs_bucket_tally *tally, gs_deadline deadline);

#endif
