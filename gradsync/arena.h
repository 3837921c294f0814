// Memory that the ranks of a host may share: where gradients live.
//
// An arena is an anonymous, sealed memory file mapped by its owner. It belongs to the trainer and
// outlives every communicator: after an abort the reduced gradients in it are still needed. A
// communicator passes the descriptor to the other ranks of the host, so that each can write its slice
// of the result into everybody's buffer. Nothing to leak: no name in any file system.
#ifndef GRADSYNC_ARENA_H
#define GRADSYNC_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

typedef struct gs_arena gs_arena;

// `bytes` are rounded up to whole pages, backed at once (a full /dev/shm or memory limit is an error
// here, not a bus error in a step), touched by the calling thread and zero.
GS_NODISCARD gs_status gs_arena_create(gs_arena **out, size_t bytes);
void gs_arena_destroy(gs_arena *arena);

void *gs_arena_data(const gs_arena *arena);
size_t gs_arena_bytes(const gs_arena *arena);
int gs_arena_fd(const gs_arena *arena);  // borrowed
bool gs_arena_contains(const gs_arena *arena, const void *data, size_t bytes);

#endif
