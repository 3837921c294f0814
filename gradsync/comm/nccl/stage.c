// Host memory on its way through the device: pinned memory and device memory of the same layout, in slots
// that are taken and given back in order.
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "gradsync/comm/nccl/memory.h"
#include "gradsync/comm/nccl/state.h"

#define HALF_BYTES (GS_NCCL_SLOT_BYTES / 2)
#define BARRIER_BYTES 64
#define TREE_ALIGNMENT ((size_t)4096)

bool gs_nccl_registers_own(void) {
    const char *windows = getenv("GRADSYNC_NCCL_WINDOWS");
    return windows && strcmp(windows, "all") == 0;
}

// The library's where it is to be registered and the library gives some: else it is the device's, and says so to the
// other ranks.
static gs_status alloc_own(gs_nccl_lane *lane) {
    gs_nccl_region *own = &lane->own;
    gs_device *device = lane->comm->device;
    if (gs_nccl_registers_own() &&
        !gs_nccl_memory.alloc(&own->memory, &lane->own_ctx, device, own->bytes).code)
        return gs_ok();
    own->memory = lane->own_ctx = NULL;
    return gs_device_alloc(device, &own->memory, own->bytes);
}

gs_status gs_nccl_make_staging(gs_nccl_lane *lane) {
    size_t slots_bytes = GS_NCCL_NUM_SLOTS * GS_NCCL_SLOT_BYTES;
    bool has_tree = lane->comm->world_size > 1;
    size_t tree_at = gs_round_up(slots_bytes + BARRIER_BYTES, TREE_ALIGNMENT);
    GS_TRY(gs_device_alloc_pinned(lane->comm->device, (void **)&lane->pinned, slots_bytes));
    lane->own = (gs_nccl_region){.name = "staging", .bytes = tree_at + (has_tree ? GS_NCCL_TREE_BYTES : 0)};
    GS_TRY(alloc_own(lane));
    lane->staging = lane->own.memory;
    lane->tree_memory = has_tree ? lane->staging + tree_at : NULL;
    return gs_ok();
}

void gs_nccl_free_staging(gs_nccl_lane *lane) {
    gs_device *device = lane->comm->device;
    if (lane->own_ctx)
        gs_nccl_memory.free(lane->own.memory, lane->own_ctx, device, lane->own.bytes);
    else if (lane->own.memory)
        gs_device_free(device, lane->own.memory);
    gs_device_free_pinned(device, lane->pinned);
}

static bool is_host(const gs_nccl_comm *nccl, const void *memory) {
    if (!memory) return false;
    if (nccl->arena && gs_arena_contains(nccl->arena, memory, 1))
        return gs_arena_fd(nccl->arena) >= 0;
    return !gs_device_is_device_memory(nccl->device, memory);
}

// What this rank's part in it touches.
static bool sends(const gs_nccl_comm *nccl, const gs_collective *collective) {
    return collective->kind != GS_BROADCAST || collective->root == nccl->rank;
}

static bool receives(const gs_nccl_comm *nccl, const gs_collective *collective) {
    return collective->kind != GS_REDUCE || collective->root == nccl->rank;
}

static size_t send_parts(const gs_nccl_comm *nccl, const gs_collective *collective) {
    return collective->kind == GS_REDUCE_SCATTER ? (size_t)nccl->world_size : 1;
}

static size_t recv_parts(const gs_nccl_comm *nccl, const gs_collective *collective) {
    return collective->kind == GS_ALLGATHER ? (size_t)nccl->world_size : 1;
}

bool gs_nccl_is_host(const gs_nccl_comm *nccl, const gs_collective *collective) {
    if (collective->kind == GS_BARRIER || collective->count == 0) return true;
    return (!sends(nccl, collective) || is_host(nccl, collective->send)) &&
           (!receives(nccl, collective) || is_host(nccl, collective->recv));
}

gs_status gs_nccl_cut_work(gs_nccl_lane *lane, gs_nccl_work *work) {
    const gs_collective *collective = &work->collective;
    size_t element_bytes = gs_dtype_bytes(collective->dtype);
    work->num_pieces = 1;
    work->staged = false;
    work->piece_count = collective->count;
    if (collective->kind == GS_BARRIER || collective->count == 0) return gs_ok();
    work->staged =
        (sends(lane->comm, collective) && is_host(lane->comm, collective->send)) ||
        (receives(lane->comm, collective) && is_host(lane->comm, collective->recv));
    // A device that is lost knows its own memory no more.
    if (work->staged && gs_device_is_lost(lane->comm->device))
        return gs_error(GS_INTERNAL, "%s is lost to this process", gs_device_name(lane->comm->device));
    if (collective->tree) {
        if (!work->staged) return gs_nccl_cut_tree(lane, work);
        return gs_error(GS_UNIMPLEMENTED, "a sum along a tree wants memory of %s",
                        gs_device_name(lane->comm->device));
    }
    if (!work->staged && (!collective->wire_dtype || !is_host(lane->comm, collective->wire)))
        return gs_ok();
    if (collective->wire_dtype)
        return gs_error(GS_UNIMPLEMENTED, "a sum that is sent as %s wants memory of %s",
                        gs_dtype_name(collective->wire_dtype), gs_device_name(lane->comm->device));
    size_t parts = send_parts(lane->comm, collective);
    if (recv_parts(lane->comm, collective) > parts) parts = recv_parts(lane->comm, collective);
    work->piece_count = HALF_BYTES / (element_bytes * parts);
    work->num_pieces = (collective->count + work->piece_count - 1) / work->piece_count;
    return gs_ok();
}

static unsigned char *slot_of(unsigned char *memory, const gs_nccl_launch *launch) {
    return memory + (size_t)launch->slot * GS_NCCL_SLOT_BYTES;
}

static void copy_on_stream(gs_nccl_lane *lane, void *to, const void *from, size_t bytes) {
    gs_device_kernels(lane->comm->device)->copy(lane->stream, to, from, bytes);
}

void gs_nccl_stage_in(gs_nccl_lane *lane, const gs_nccl_launch *launch, const void **send,
                      void **recv) {
    const gs_collective *collective = &gs_nccl_work_of(lane, launch->sequence)->collective;
    size_t element_bytes = gs_dtype_bytes(collective->dtype);
    *send = collective->send;
    *recv = collective->recv;
    if (launch->slot < 0) return;
    unsigned char *staging = slot_of(lane->staging, launch), *pinned = slot_of(lane->pinned, launch);
    *send = staging;
    *recv = staging + HALF_BYTES;
    if (!sends(lane->comm, collective)) return;
    size_t bytes = launch->count * element_bytes, parts = send_parts(lane->comm, collective);
    const unsigned char *from = collective->send;
    bool from_host = is_host(lane->comm, from);
    for (size_t i = 0; i < parts; i++) {
        const unsigned char *part = from + (i * collective->count + launch->first) * element_bytes;
        if (from_host)
            memcpy(pinned + i * bytes, part, bytes);
        else
            copy_on_stream(lane, staging + i * bytes, part, bytes);
    }
    if (from_host) copy_on_stream(lane, staging, pinned, parts * bytes);
}

void gs_nccl_stage_out(gs_nccl_lane *lane, const gs_nccl_launch *launch) {
    const gs_collective *collective = &gs_nccl_work_of(lane, launch->sequence)->collective;
    if (launch->slot < 0 || !receives(lane->comm, collective)) return;
    size_t element_bytes = gs_dtype_bytes(collective->dtype);
    size_t bytes = launch->count * element_bytes, parts = recv_parts(lane->comm, collective);
    const unsigned char *from = slot_of(lane->staging, launch) + HALF_BYTES;
    unsigned char *to = collective->recv;
    if (is_host(lane->comm, to)) {
        copy_on_stream(lane, slot_of(lane->pinned, launch) + HALF_BYTES, from, parts * bytes);
        return;
    }
    for (size_t i = 0; i < parts; i++)
        copy_on_stream(lane, to + (i * collective->count + launch->first) * element_bytes,
                       from + i * bytes, bytes);
}

void gs_nccl_hand_over(gs_nccl_lane *lane, const gs_nccl_launch *launch) {
    const gs_collective *collective = &gs_nccl_work_of(lane, launch->sequence)->collective;
    if (launch->slot < 0) return;
    lane->slots_given_back++;
    unsigned char *to = collective->recv;
    if (!receives(lane->comm, collective) || !is_host(lane->comm, to)) return;
    size_t element_bytes = gs_dtype_bytes(collective->dtype);
    size_t bytes = launch->count * element_bytes, parts = recv_parts(lane->comm, collective);
    const unsigned char *from = slot_of(lane->pinned, launch) + HALF_BYTES;
    for (size_t i = 0; i < parts; i++)
        memcpy(to + (i * collective->count + launch->first) * element_bytes, from + i * bytes,
               bytes);
}
