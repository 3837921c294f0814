// Windows: the few places in which buckets take turns, and what stays of them.
//
//   window 0 | window 1 | … | buckets with a place of their own | parts of the others, or of all
//
// The n-th bucket that takes a window has the one of number n mod num_windows, and each window is
// as large as the largest of its buckets. A parameter whose gradient is open long before its turn,
// as that of a tied embedding, keeps its bucket out of the windows. Of a bucket that is reduced
// this rank's even part is moved to where it stays. All follows from plan, shapes and rank.
#ifndef GRADSYNC_BUCKET_GRAD_WINDOWS_H
#define GRADSYNC_BUCKET_GRAD_WINDOWS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "gradsync/bucket/bucket.h"

typedef struct gs_windows_shape {
    size_t num_windows;       // 0: each bucket has a place of its own
    const bool *opens_early;  // by parameter; NULL: none does
    size_t num_parts;         // even ones of each bucket (bucket.h)
    size_t own_part;          // the one that stays
    bool adds_up;  // several passes of a step leave results: none lies where the next pass writes
} gs_windows_shape;

typedef struct gs_grad_window {
    size_t bytes, offset_bytes;
    size_t last;  // the bucket that has it last in a step
} gs_grad_window;

typedef struct gs_grad_windows {
    gs_windows_shape shape;   // with a copy of opens_early
    gs_grad_window *windows;  // num_windows
} gs_grad_windows;

// Release after an error, too.
GS_NODISCARD gs_status gs_grad_windows_init(gs_grad_windows *windows, const gs_windows_shape *shape,
                                            size_t num_params);
void gs_grad_windows_release(gs_grad_windows *windows);

// Places buckets that lie behind each other so far, with their members' offsets, and all results.
// The bytes that they take; without windows 0, for nothing moves.
size_t gs_grad_windows_place(const gs_grad_windows *windows, gs_bucket *buckets, size_t num_buckets,
                             size_t *param_offset_bytes);

#endif
