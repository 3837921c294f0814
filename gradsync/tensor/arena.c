#include "gradsync/tensor/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/memory.h"

struct gs_arena {
    unsigned char *data;
    size_t bytes;
    int fd;
    gs_device *device;                    // borrows; NULL: the host's memory
    const gs_arena_allocator *allocator;  // NULL: the device's own
    void *allocator_ctx;
    atomic_int num_disturbances;  // aborted communicators whose ranks have not ended
};

// The number in a file of one number; SIZE_MAX when there is none ("max" of a control group).
static size_t read_number(const char *path) {
    unsigned long long number;
    FILE *file = fopen(path, "re");
    if (!file) return SIZE_MAX;
    bool read = fscanf(file, "%llu", &number) == 1;
    fclose(file);
    return read ? (size_t)number : SIZE_MAX;
}

// The number behind `name` in a file of such lines; `otherwise` when there is none.
static size_t read_named_number(const char *path, const char *name, size_t otherwise) {
    char line[128];
    size_t len = strlen(name), number = otherwise;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, len) == 0) number = (size_t)strtoull(line + len, NULL, 10);
    }
    if (file) fclose(file);
    return number;
}

static size_t read_available_bytes(void) {
    size_t kilobytes = read_named_number("/proc/meminfo", "MemAvailable:", SIZE_MAX / 1024);
    size_t available_bytes = kilobytes * 1024;
    size_t limit_bytes = read_number("/sys/fs/cgroup/memory.max");
    size_t used_bytes = read_number("/sys/fs/cgroup/memory.current");
    if (limit_bytes != SIZE_MAX && used_bytes != SIZE_MAX) {
        // Files that were read count as used until somebody wants their memory.
        const char *stat = "/sys/fs/cgroup/memory.stat";
        size_t cached_bytes = read_named_number(stat, "inactive_file ", 0) +
                              read_named_number(stat, "active_file ", 0);
        used_bytes = used_bytes > cached_bytes ? used_bytes - cached_bytes : 0;
        size_t left_bytes = limit_bytes > used_bytes ? limit_bytes - used_bytes : 0;
        if (left_bytes < available_bytes) available_bytes = left_bytes;
    }
    return available_bytes;
}

// Anonymous shared memory has no limit of its own: asking for more than there is does not fail, it
// calls the kernel's out-of-memory killer.
static gs_status check_available(size_t bytes) {
    size_t available_bytes = read_available_bytes();
    if (bytes <= available_bytes) return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "arena of %zu bytes: %zu bytes of memory are available",
                    bytes, available_bytes);
}

static gs_status make_file(gs_arena *arena) {
    arena->fd = memfd_create("gradsync-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (arena->fd < 0) return gs_error_from_errno(errno, "arena: memfd_create");
    // Allocates now: without it the lack of memory would be a bus error in the middle of a step.
    int error;
    do error = posix_fallocate(arena->fd, 0, (off_t)arena->bytes);
    while (error == EINTR);
    if (error) return gs_error_from_errno(error, "arena of %zu bytes", arena->bytes);
    if (fcntl(arena->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return gs_error_from_errno(errno, "arena: seal");
    return gs_ok();
}

// Page tables are filled by the caller's thread, so that pages lie on its NUMA node.
static gs_status map_file(gs_arena *arena) {
    void *data = mmap(NULL, arena->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena->fd, 0);
    if (data == MAP_FAILED) return gs_error_from_errno(errno, "arena: map %zu bytes", arena->bytes);
    arena->data = data;
    for (size_t at = 0; at < arena->bytes; at += 4096) {
        ((volatile unsigned char *)arena->data)[at] = 0;
    }
    return gs_ok();
}

static gs_status make_arena(gs_arena **out, size_t bytes) {
    if (bytes > (size_t)INT64_MAX / 2)
        return gs_error(GS_INVALID_ARGUMENT, "arena: %zu bytes are too many", bytes);
    gs_arena *arena = calloc(1, sizeof *arena);
    if (!arena) return gs_error(GS_RESOURCE_EXHAUSTED, "arena: out of memory");
    arena->bytes = gs_round_up(bytes ? bytes : 1, (size_t)sysconf(_SC_PAGESIZE));
    arena->fd = -1;
    *out = arena;
    return gs_ok();
}

gs_status gs_arena_create(gs_arena **out, size_t bytes) {
    gs_arena *arena;
    GS_TRY(make_arena(&arena, bytes));
    gs_status status = check_available(arena->bytes);
    if (!status.code) status = make_file(arena);
    if (!status.code) status = map_file(arena);
    if (status.code) {
        gs_arena_destroy(arena);
        return status;
    }
    *out = arena;
    return gs_ok();
}

static gs_status take_device_memory(gs_arena *arena) {
    void *data = NULL;
    gs_status status = arena->allocator ? arena->allocator->alloc(&data, &arena->allocator_ctx,
                                                                  arena->device, arena->bytes)
                                        : gs_device_alloc(arena->device, &data, arena->bytes);
    GS_TRY(gs_status_prefix(status, "arena"));
    arena->data = data;
    return gs_ok();
}

static void give_device_memory_back(gs_arena *arena) {
    if (!arena->data) return;
    if (arena->allocator)
        arena->allocator->free(arena->data, arena->allocator_ctx, arena->device, arena->bytes);
    else
        gs_device_free(arena->device, arena->data);
}

gs_status gs_arena_create_from(gs_arena **out, size_t bytes, gs_device *device,
                               const gs_arena_allocator *allocator) {
    gs_arena *arena;
    GS_TRY(make_arena(&arena, bytes));
    arena->device = device;
    arena->allocator = allocator;
    gs_status status = take_device_memory(arena);
    if (status.code) {
        gs_arena_destroy(arena);
        return status;
    }
    *out = arena;
    return gs_ok();
}

void gs_arena_destroy(gs_arena *arena) {
    if (!arena) return;
    if (arena->device)
        give_device_memory_back(arena);
    else if (arena->data)
        munmap(arena->data, arena->bytes);
    if (arena->fd >= 0) close(arena->fd);
    free(arena);
}

void *gs_arena_data(const gs_arena *arena) {
    return arena->data;
}

size_t gs_arena_bytes(const gs_arena *arena) {
    return arena->bytes;
}

int gs_arena_fd(const gs_arena *arena) {
    return arena->fd;
}

bool gs_arena_is_from(const gs_arena *arena, const gs_arena_allocator *allocator) {
    return arena->allocator == allocator;
}

bool gs_arena_is_disturbed(const gs_arena *arena) {
    return atomic_load(&arena->num_disturbances) > 0;
}

void gs_arena_note_disturbed(gs_arena *arena) {
    atomic_fetch_add(&arena->num_disturbances, 1);
}

void gs_arena_note_calm(gs_arena *arena) {
    atomic_fetch_sub(&arena->num_disturbances, 1);
}

bool gs_arena_contains(const gs_arena *arena, const void *data, size_t bytes) {
    uintptr_t first = (uintptr_t)arena->data, at = (uintptr_t)data;
    return at >= first && at - first <= arena->bytes && bytes <= arena->bytes - (at - first);
}
