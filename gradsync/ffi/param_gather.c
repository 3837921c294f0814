// Gathers of parameters, of ffi.h.
#include "gradsync/sharded/param_gather.h"

#include <stdlib.h>

#include "gradsync/ffi/object.h"

struct gs_ffi_gather {
    gs_ffi_object object;
    gs_comm *comm;
    gs_param_gather *gather;
    size_t num_params;
};

gs_ffi_gather *gs_ffi_gather_new(void) {
    return calloc(1, sizeof(gs_ffi_gather));
}

static gs_status check_open(const gs_ffi_gather *gather) {
    GS_TRY(gs_ffi_given(gather, "gather"));
    return gs_ffi_expect(gather->gather, "the gather is not open");
}

static gs_status check_room(const gs_ffi_shards *shards, const gs_ffi_arena *arena,
                            size_t offset_bytes) {
    size_t bytes = gs_shards_param_bytes(shards->shards), has = gs_arena_bytes(arena->arena);
    if (offset_bytes % 256 == 0 && offset_bytes <= has && bytes <= has - offset_bytes)
        return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT,
                    "gather: %zu bytes from %zu on, a multiple of 256; the arena has %zu", bytes,
                    offset_bytes, has);
}

static gs_status check_parts(const gs_ffi_gather *gather, const gs_ffi_shards *shards,
                             const gs_ffi_comm *comm, const gs_ffi_arena *arena,
                             size_t offset_bytes) {
    GS_TRY(gs_ffi_given(gather, "gather"));
    GS_TRY(gs_ffi_given(shards, "shards"));
    GS_TRY(gs_ffi_given(arena, "arena"));
    GS_TRY(gs_ffi_expect(!gather->gather, "the gather is open"));
    GS_TRY(gs_ffi_expect(shards->shards, "the gather's shards are not open"));
    GS_TRY(gs_ffi_expect(comm->comm, "the gather's communicator is not open"));
    GS_TRY(gs_ffi_expect(arena->arena, "the gather's arena is not open"));
    return check_room(shards, arena, offset_bytes);
}

static gs_status open_gather(gs_ffi_gather *gather, const gs_ffi_shards *shards,
                             const gs_ffi_comm *comm, const gs_ffi_arena *arena,
                             size_t offset_bytes, int lane, gs_deadline deadline) {
    GS_TRY(gs_ffi_given(comm, "communicator"));
    GS_TRY(gs_ffi_tell_others(comm->comm, check_parts(gather, shards, comm, arena, offset_bytes)));
    gather->comm = comm->comm;
    gather->num_params = gs_shards_num_params(shards->shards);
    return gs_param_gather_create(
        &gather->gather,
        &(gs_param_gather_options){.shards = shards->shards,
                                   .comm = comm->comm,
                                   .params = (char *)gs_arena_data(arena->arena) + offset_bytes,
                                   .lane = lane},
        deadline);
}

int gs_ffi_gather_open(gs_ffi_gather *gather, const gs_ffi_shards *shards, gs_ffi_comm *comm,
                       gs_ffi_arena *arena, size_t offset_bytes, int lane, int64_t within_ns) {
    return gs_ffi_keep(gather, open_gather(gather, shards, comm, arena, offset_bytes, lane,
                                           gs_ffi_deadline(within_ns)));
}

int gs_ffi_gather_start(gs_ffi_gather *gather, int64_t step) {
    gs_status status = check_open(gather);
    if (!status.code) status = gs_param_gather_start(gather->gather, step);
    return gs_ffi_keep(gather, status);
}

static gs_status set_trainable(gs_ffi_gather *gather, const unsigned char *flags) {
    bool *trainable;
    GS_TRY(check_open(gather));
    GS_TRY(
        gs_ffi_tell_others(gather->comm, gs_ffi_flags_copy(&trainable, flags, gather->num_params)));
    gs_status status = gs_param_gather_set_trainable(gather->gather, trainable);
    free(trainable);
    return status;
}

int gs_ffi_gather_set_trainable(gs_ffi_gather *gather, const unsigned char *trainable) {
    return gs_ffi_keep(gather, set_trainable(gather, trainable));
}

int gs_ffi_gather_wait(gs_ffi_gather *gather, size_t param, int64_t within_ns) {
    gs_status status = check_open(gather);
    if (!status.code)
        status = gs_param_gather_wait(gather->gather, param, gs_ffi_deadline(within_ns));
    return gs_ffi_keep(gather, status);
}

int gs_ffi_gather_finish(gs_ffi_gather *gather, int64_t within_ns) {
    gs_status status = check_open(gather);
    if (!status.code) status = gs_param_gather_finish(gather->gather, gs_ffi_deadline(within_ns));
    return gs_ffi_keep(gather, status);
}

void gs_ffi_gather_free(gs_ffi_gather *gather) {
    if (!gather) return;
    gs_param_gather_destroy(gather->gather);
    free(gather);
}
