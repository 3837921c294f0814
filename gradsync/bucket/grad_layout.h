// Where each gradient lies: a plan laid out in the slots of an arena, and the views into it.
//
// A slot holds one set of gradients, all buckets one after the other. In exact mode there are
// several, for partial sums. Where a gradient is written and where its result lies when it is
// reduced are two things, which everybody asks for by name. Both are in slot 0, and they are one
// place but for buckets in windows (grad_windows.h), of which there is one slot. Offsets follow
// from plan and shapes, and in windows from the rank.
#ifndef GRADSYNC_BUCKET_GRAD_LAYOUT_H
#define GRADSYNC_BUCKET_GRAD_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/bucket_plan.h"
#include "core/param_spec.h"
#include "core/segment.h"
#include "core/status.h"
#include "gradsync/bucket/bucket.h"
#include "gradsync/bucket/grad_windows.h"
#include "gradsync/bucket/tally_carrier.h"
#include "gradsync/comm/work_stream.h"
#include "kernels/device.h"

typedef struct gs_grad_layout {
    gs_param_spec *params;  // owned copy, in registration order
    size_t num_params;
    gs_bucket_plan plan;   // owned copy
    gs_bucket *buckets;    // plan.num_buckets
    size_t *bucket_of;     // parameter → bucket
    size_t *offset_bytes;  // parameter → offset in a slot
    size_t *counts;        // parameter → elements of its dense gradient; 0 for a sparse one
    gs_dtype *dtypes;      // parameter → of its main gradient
    void **grads;          // slot · num_params + parameter → gradient; NULL for a sparse one
    void **results;        // parameter → where element 0 of its result lies, or would; NULL for a sparse one
    char *memory;          // borrowed
    size_t slot_bytes;  // from one slot to the next, whatever the plan; with windows: of this one
    int num_slots;
    size_t num_parts;   // even ones of each bucket (bucket.h)
    gs_grad_windows windows;
    bool has_reserved;  // false: a tally apart; buckets lie as ever, and these elements are unused
    gs_device *device;  // whose memory it is, where that is not the host's; else NULL
} gs_grad_layout;

typedef struct gs_grad_layout_shape {
    const gs_param_spec *params;
    size_t num_params;
    int num_slots;      // 0: no memory, only where gradients would lie in a slot
    gs_device *device;  // whose memory it is; NULL: the host's; borrowed
    gs_tally_carrier tally;
    size_t num_parts;  // even ones of each bucket; 0: 1
    // Windows, where the tally is apart and there is one slot; 0: none.
    size_t num_windows;
    size_t own_part;          // which part of a bucket stays
    const bool *opens_early;  // by parameter (grad_windows.h); NULL: none does
    bool adds_up;             // several passes of a step leave results
} gs_grad_layout_shape;

// Bytes of memory that it needs, for any plan of these parameters; with windows for this one.
GS_NODISCARD gs_status gs_grad_layout_bytes(size_t *bytes, const gs_grad_layout_shape *shape,
                                            const gs_bucket_plan *plan);

// `memory` (gs_grad_layout_bytes, on 256 bytes) is borrowed until release; parameters are copied.
// Needs a plan next.
GS_NODISCARD gs_status gs_grad_layout_init(gs_grad_layout *layout,
                                           const gs_grad_layout_shape *shape, void *memory);
void gs_grad_layout_release(gs_grad_layout *layout);

// Lays out a copy of `plan`. Gradients in the memory lose their meaning.
GS_NODISCARD gs_status gs_grad_layout_set_plan(gs_grad_layout *layout, const gs_bucket_plan *plan);

// Slots, parts and the own one of another shape, in memory that is large enough for it; the rest is
// as it was. The same about gradients.
GS_NODISCARD gs_status gs_grad_layout_resize(gs_grad_layout *layout,
                                             const gs_grad_layout_shape *shape);

// Whether these elements of a parameter have a place among results.
bool gs_grad_layout_keeps(const gs_grad_layout *layout, const gs_segment *segment);
// Moves what a bucket that is reduced leaves on this rank to where its result lies, or adds it to
// what an earlier pass of the step left. Where that is one place there is nothing to do.
void gs_grad_layout_keep(const gs_grad_layout *layout, const gs_bucket *bucket, bool adds,
                         gs_work_stream on);

static inline char *gs_grad_layout_slot(const gs_grad_layout *layout, int slot) {
    return layout->memory + (size_t)slot * layout->slot_bytes;
}

static inline void *const *gs_grad_layout_grads(const gs_grad_layout *layout, int slot) {
    return layout->grads + (size_t)slot * layout->num_params;
}

static inline void *const *gs_grad_layout_results(const gs_grad_layout *layout) {
    return layout->results;
}

// Of a bucket: bucket->result.count elements of it.
static inline void *gs_grad_layout_result(const gs_grad_layout *layout, const gs_bucket *bucket) {
    return gs_grad_layout_slot(layout, 0) + bucket->result.offset_bytes;
}

static inline void *gs_grad_layout_bucket(const gs_grad_layout *layout, int slot,
                                          const gs_bucket *bucket) {
    return gs_grad_layout_slot(layout, slot) + bucket->offset_bytes;
}

#endif
