// What the host and a GPU tell each other about buckets, through pinned memory: reserved elements,
// on their way out and back, and sums of squares. Where the host's memory is the device's there is
// none.
//
// Everything is enqueued. What came back is there after a wait for the compute stream.
#ifndef GRADSYNC_BUCKET_BUCKET_MIRROR_H
#define GRADSYNC_BUCKET_BUCKET_MIRROR_H

#include <stddef.h>
#include <stdint.h>

#include "core/segment.h"
#include "core/status.h"
#include "gradsync/bucket/grad_layout.h"
#include "gradsync/comm/work_stream.h"

typedef struct gs_bucket_mirror {
    gs_device *device;             // NULL: there is none
    const gs_grad_layout *layout;  // borrowed
    char *out, *in;                // pinned: reserved elements of all buckets, one after the other
    double *squares;               // pinned: of each parameter's result
    uint64_t *num_nonfinite;       // pinned: of those whose squares are infinite
    gs_square_item *items;         // pinned: of fp32 gradients, in order of the plan
    size_t *offset_bytes;          // bucket → its reserved elements in `out` and in `in`
    size_t *first_item;            // bucket → its first item
    size_t *num_items;             // bucket → how many there are
    size_t *item_of;               // parameter → its item; SIZE_MAX: none, fp64 or empty
    gs_segment *held;              // parameter → what is measured of its gradient
} gs_bucket_mirror;

// For any plan of the layout, which is borrowed; none for the host. Release after an error, too.
GS_NODISCARD gs_status gs_bucket_mirror_init(gs_bucket_mirror *mirror,
                                             const gs_grad_layout *layout);
void gs_bucket_mirror_release(gs_bucket_mirror *mirror);
// After each change of the layout, when nothing of an older one is on its way.
void gs_bucket_mirror_place(gs_bucket_mirror *mirror);

// What is measured of bucket `index` until this is said again or `place`: all of it, or these
// segments, one of each parameter at most. In a GPU's memory when nothing measures the bucket.
void gs_bucket_mirror_hold_all(const gs_bucket_mirror *mirror, size_t index);
void gs_bucket_mirror_hold(const gs_bucket_mirror *mirror, size_t index, const gs_segment *segments,
                           size_t num_segments);

// What the host has written to `out` becomes the reserved elements of bucket `index`.
void gs_bucket_mirror_send(const gs_bucket_mirror *mirror, size_t index, gs_work_stream on);
// The reserved elements of bucket `index` come to `in`.
void gs_bucket_mirror_fetch(const gs_bucket_mirror *mirror, size_t index);
// Squares of what is held of bucket `index`, of one parameter.
void gs_bucket_mirror_measure(const gs_bucket_mirror *mirror, size_t index);
void gs_bucket_mirror_measure_param(const gs_bucket_mirror *mirror, size_t param);
// After a wait: `squares` as gs_grad_squares_main has them; NaN where a gradient is not finite.
// Waits again only for fp64 gradients and for squares beyond fp32.
GS_NODISCARD gs_status gs_bucket_mirror_settle(const gs_bucket_mirror *mirror,
                                               gs_deadline deadline);

#endif
