#include "worker/state/grad_memory.h"

#include "gradsync/comm/device_arena.h"

gs_status gs_grad_memory_reserve(gs_grad_memory *memory, size_t bytes, gs_device *device) {
    gs_arena *arena = memory->arena;
    if (arena && gs_arena_bytes(arena) >= bytes && !gs_arena_is_disturbed(arena)) return gs_ok();
    gs_grad_memory_release(memory);
    return gs_arena_create_on(&memory->arena, bytes, device);
}

void gs_grad_memory_release(gs_grad_memory *memory) {
    gs_arena_destroy(memory->arena);
    *memory = (gs_grad_memory){0};
}
