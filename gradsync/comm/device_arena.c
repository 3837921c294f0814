#include "gradsync/comm/device_arena.h"

#include "gradsync/comm/backends.h"

gs_status gs_arena_create_on(gs_arena **out, size_t bytes, gs_device *device) {
    if (gs_device_is_host(device)) return gs_arena_create(out, bytes);
#ifdef GRADSYNC_CUDA
    if (!gs_arena_create_from(out, bytes, device, gs_comm_nccl.allocator).code) return gs_ok();
#endif
    return gs_arena_create_from(out, bytes, device, NULL);
}
