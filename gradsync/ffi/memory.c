// Devices and arenas, of ffi.h.
#include <stdlib.h>

#include "gradsync/comm/device_arena.h"
#include "gradsync/ffi/object.h"

gs_ffi_device *gs_ffi_device_new(void) {
    return calloc(1, sizeof(gs_ffi_device));
}

static gs_status check_closed(const gs_ffi_device *device) {
    GS_TRY(gs_ffi_given(device, "device"));
    return gs_ffi_expect(!device->device, "the device is open");
}

int gs_ffi_device_set_threads(gs_ffi_device *device, int num_threads) {
    int code = gs_ffi_keep(device, check_closed(device));
    if (!code) device->options.num_threads = num_threads;
    return code;
}

int gs_ffi_device_open(gs_ffi_device *device, const char *name) {
    gs_status status = check_closed(device);
    if (!status.code) status = gs_ffi_given(name, "device's name");
    if (!status.code) status = gs_device_open(&device->device, name, &device->options);
    return gs_ffi_keep(device, status);
}

void gs_ffi_device_free(gs_ffi_device *device) {
    if (!device) return;
    gs_device_close(device->device);
    free(device);
}

gs_ffi_arena *gs_ffi_arena_new(void) {
    return calloc(1, sizeof(gs_ffi_arena));
}

static gs_status open_arena(gs_ffi_arena *arena, const gs_ffi_device *device, size_t bytes) {
    GS_TRY(gs_ffi_given(arena, "arena"));
    GS_TRY(gs_ffi_given(device, "device"));
    GS_TRY(gs_ffi_expect(!arena->arena, "the arena is open"));
    GS_TRY(gs_ffi_expect(device->device, "the arena's device is not open"));
    return gs_arena_create_on(&arena->arena, bytes, device->device);
}

int gs_ffi_arena_open(gs_ffi_arena *arena, gs_ffi_device *device, size_t bytes) {
    return gs_ffi_keep(arena, open_arena(arena, device, bytes));
}

void *gs_ffi_arena_data(const gs_ffi_arena *arena) {
    return arena && arena->arena ? gs_arena_data(arena->arena) : NULL;
}

size_t gs_ffi_arena_bytes(const gs_ffi_arena *arena) {
    return arena && arena->arena ? gs_arena_bytes(arena->arena) : 0;
}

void gs_ffi_arena_free(gs_ffi_arena *arena) {
    if (!arena) return;
    gs_arena_destroy(arena->arena);
    free(arena);
}
