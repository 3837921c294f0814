// The arena that suits a device: on the CPU memory that ranks of a host share; on a GPU memory that
// the library of its communicators can map into peers, or the device's own where there is none,
// which is only slower.
#ifndef GRADSYNC_COMM_DEVICE_ARENA_H
#define GRADSYNC_COMM_DEVICE_ARENA_H

#include "core/abi.h"
#include "gradsync/tensor/arena.h"

GS_BEGIN_DECLS

// `device` is borrowed until destroy.
GS_NODISCARD gs_status gs_arena_create_on(gs_arena **out, size_t bytes, gs_device *device);

GS_END_DECLS

#endif
