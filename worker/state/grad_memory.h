// The memory that a trainer's gradients lie in, from one generation to the next: it is the
// trainer's, and its communicators borrow it.
//
// It is given anew where a generation wants more of it, and where ranks of an earlier one may still
// write into it: a frozen rank that wakes up finds the old memory, which nobody reads any more.
// Compute thread.
#ifndef WORKER_STATE_GRAD_MEMORY_H
#define WORKER_STATE_GRAD_MEMORY_H

#include <stddef.h>

#include "core/status.h"
#include "gradsync/tensor/arena.h"
#include "kernels/device.h"

typedef struct gs_grad_memory {
    gs_arena *arena;  // owned; NULL: none yet
} gs_grad_memory;     // {0} is empty

// At least `bytes`, whose content is not kept. Between communicators.
GS_NODISCARD gs_status gs_grad_memory_reserve(gs_grad_memory *memory, size_t bytes,
                                              gs_device *device);
void gs_grad_memory_release(gs_grad_memory *memory);

#endif
