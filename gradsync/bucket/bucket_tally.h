// What the buckets of a step say beside gradients. This rank's share is written before a bucket
// travels: what it used, its samples, that it took part. What all ranks said is read from the
// reduced bucket and compared with what was announced. The squares of reduced gradients are taken
// at the same moment.
//
// The host writes and reads each bucket in place, while it is in cache. To a GPU all is enqueued,
// through a mirror, and read behind one wait for all buckets; a sample mean waits once more, for
// the samples that it divides by. Which of the two it is, is settled when the tally is made.
#ifndef GRADSYNC_BUCKET_BUCKET_TALLY_H
#define GRADSYNC_BUCKET_BUCKET_TALLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/bucket/bucket_mirror.h"
#include "gradsync/bucket/grad_layout.h"
#include "gradsync/comm/work_stream.h"

// What the step is, the same on every rank but for the last.
typedef struct gs_bucket_step {
    int64_t step;
    double scale;    // of the sums
    int num_ranks;   // in the sums
    int num_active;  // of them that are to have data
    bool active;     // this rank has
} gs_bucket_step;

typedef struct gs_tally_world gs_tally_world;

typedef struct gs_bucket_tally {
    const gs_tally_world *world;
    const gs_grad_layout *layout;  // borrowed
    gs_device *device;             // borrowed
    bool sample_mean;              // sums are divided by the samples that they carry
    gs_bucket_mirror mirror;       // of a GPU's buckets
    // of the step
    gs_bucket_step step;
    int64_t samples;  // of this rank; the owner writes it before a bucket travels
    uint8_t *used;    // by this rank, for each parameter; the owner writes it
    // what the buckets taken so far say, the same on every rank
    uint8_t *used_anywhere;
    double *squares;  // of each reduced gradient; NaN when it is not finite; on a GPU the mirror's
    int64_t total_samples;  // -1 until a bucket has told
    bool has_read;          // on a GPU: what the buckets of this step said
} gs_bucket_tally;

// Borrows layout and device until release, which is also for after an error. Needs `place` next.
GS_NODISCARD gs_status gs_bucket_tally_init(gs_bucket_tally *tally, const gs_grad_layout *layout,
                                            gs_device *device, bool sample_mean);
// When nothing of a step is on its way any more.
void gs_bucket_tally_release(gs_bucket_tally *tally);
// After each change of the layout.
void gs_bucket_tally_place(gs_bucket_tally *tally);

void gs_bucket_tally_begin(gs_bucket_tally *tally, const gs_bucket_step *step);
// This rank's share into bucket `index`, before it is posted. Elements that nothing else writes: on
// a GPU they go to the stream `on`.
void gs_bucket_tally_write(const gs_bucket_tally *tally, size_t index, gs_work_stream on);
// Bucket `index` is reduced.
GS_NODISCARD gs_status gs_bucket_tally_take(gs_bucket_tally *tally, size_t index);
// All of them are: results are there for work on the compute stream.
GS_NODISCARD gs_status gs_bucket_tally_close(gs_bucket_tally *tally, gs_deadline deadline);
// The squares of a gradient that was changed after its bucket was taken.
void gs_bucket_tally_measure(gs_bucket_tally *tally, size_t param);
// After `close`, and after what else changed gradients: waits for the compute stream. Then what
// buckets said is there, and all that was measured.
GS_NODISCARD gs_status gs_bucket_tally_read(gs_bucket_tally *tally, gs_deadline deadline);

#endif
