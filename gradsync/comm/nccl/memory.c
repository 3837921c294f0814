#include "gradsync/comm/nccl/memory.h"

#include "core/log.h"
#include "gradsync/comm/nccl/library.h"

#define WAIT_SECONDS 30.0

static gs_status wait_for_device(gs_device *device) {
    return gs_stream_wait(gs_device_stream(device), gs_deadline_in_seconds(WAIT_SECONDS));
}

// The library unmaps at once, under kernels that may still run; the device's own way waits for
// them.
static void free_memory(void *memory, void *ctx, gs_device *device, size_t bytes) {
    gs_status status = wait_for_device(device);
    if (status.code == GS_DEADLINE_EXCEEDED)
        gs_log_warn("an arena was not freed", "bytes=%zu error=\"%s\"", bytes, status.message);
    else
        gs_nccl_free(ctx, memory);
    gs_nccl_library_close(ctx);
}

static gs_status alloc_memory(void **memory, void **ctx, gs_device *device, size_t bytes) {
    gs_nccl_library *library;
    // The library allocates on the device that is the thread's: a wait makes it ours.
    GS_TRY(wait_for_device(device));
    GS_TRY(gs_nccl_library_open(&library));
    gs_status status = gs_nccl_alloc(library, memory, bytes);
    if (status.code) {
        gs_nccl_library_close(library);
        return status;
    }
    gs_device_kernels(device)->clear(gs_device_stream(device), *memory, bytes);
    status = wait_for_device(device);
    if (status.code) free_memory(*memory, library, device, bytes);
    *ctx = library;
    return status;
}

const gs_arena_allocator gs_nccl_memory = {.alloc = alloc_memory, .free = free_memory};
