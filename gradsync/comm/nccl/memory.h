// Memory of the library's own, which it can map into its peers.
#ifndef GRADSYNC_COMM_NCCL_MEMORY_H
#define GRADSYNC_COMM_NCCL_MEMORY_H

#include "gradsync/tensor/arena.h"

extern const gs_arena_allocator gs_nccl_memory;

#endif
