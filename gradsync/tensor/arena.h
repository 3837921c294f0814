// Memory that the ranks of a host may share: where gradients live.
//
// An arena is an anonymous, sealed memory file mapped by its owner. It belongs to the trainer and
// outlives every communicator: after an abort the reduced gradients in it are still needed. A
// communicator passes the descriptor to the other ranks of the host, so that each can write its slice
// of the result into everybody's buffer. Nothing to leak: no name in any file system.
//
// Threads: all functions but create and destroy may come from any, several at once. Destroy is one thread's,
// any, when no communicator and no reducer is left over the arena.
#ifndef GRADSYNC_TENSOR_ARENA_H
#define GRADSYNC_TENSOR_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "core/abi.h"
#include "core/status.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

typedef struct gs_arena gs_arena;

// `bytes` are rounded up to whole pages, backed at once (a full /dev/shm or memory limit is an error
// here, not a bus error in a step), touched by the calling thread and zero.
GS_NODISCARD gs_status gs_arena_create(gs_arena **out, size_t bytes);

// Who gives and takes a GPU's memory. A library that maps memory into peers wants it to be its own.
typedef struct gs_arena_allocator {
    // Zero when it returns. *ctx is what `free` is given.
    gs_status (*alloc)(void **memory, void **ctx, gs_device *device, size_t bytes);
    void (*free)(void *memory, void *ctx, gs_device *device, size_t bytes);
} gs_arena_allocator;

// `device` and `allocator` are borrowed until destroy; allocator NULL: the device's own. Which one suits a
// device's communicators comm/device_arena.h knows.
GS_NODISCARD gs_status gs_arena_create_from(gs_arena **out, size_t bytes, gs_device *device,
                                            const gs_arena_allocator *allocator);
void gs_arena_destroy(gs_arena *arena);

void *gs_arena_data(const gs_arena *arena);
size_t gs_arena_bytes(const gs_arena *arena);
int gs_arena_fd(const gs_arena *arena);  // borrowed; -1: not the host's memory
bool gs_arena_is_from(const gs_arena *arena, const gs_arena_allocator *allocator);
// Ranks of a communicator that was aborted may still be about to write into it, until they have ended
// (gs_comm_wait_ended). Communicators say both; no other is made over it meanwhile. Any thread.
bool gs_arena_is_disturbed(const gs_arena *arena);
void gs_arena_note_disturbed(gs_arena *arena);
void gs_arena_note_calm(gs_arena *arena);
bool gs_arena_contains(const gs_arena *arena, const void *data, size_t bytes);

GS_END_DECLS

#endif
