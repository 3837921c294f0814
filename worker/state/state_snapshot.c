#include "worker/state/state_snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

#define TENSOR_BOUNDARY_BYTES ((size_t)64)

gs_status gs_state_snapshot_init(gs_state_snapshot *snapshot, const gs_trainer_state *state) {
    *snapshot = (gs_state_snapshot){.tensors = state->tensors,
                                    .num_tensors = state->num_tensors,
                                    .num_params = state->num_params,
                                    .params_bytes = state->params_bytes};
    snapshot->offsets = calloc(state->num_tensors, sizeof *snapshot->offsets);
    for (size_t i = 0; i < state->num_tensors && snapshot->offsets; i++) {
        snapshot->offsets[i] = snapshot->bytes;
        snapshot->bytes += gs_round_up(state->tensors[i].bytes, TENSOR_BOUNDARY_BYTES);
    }
    snapshot->memory = gs_alloc_aligned(snapshot->bytes, TENSOR_BOUNDARY_BYTES);
    if (snapshot->offsets && snapshot->memory) return gs_ok();
    size_t bytes = snapshot->bytes;
    gs_state_snapshot_release(snapshot);
    return gs_error(GS_RESOURCE_EXHAUSTED, "snapshot: no memory for %zu bytes", bytes);
}

void gs_state_snapshot_release(gs_state_snapshot *snapshot) {
    free(snapshot->memory);
    free(snapshot->offsets);
    *snapshot = (gs_state_snapshot){0};
}

// Where a transfer of all tensors is in the snapshot's memory.
typedef struct cursor {
    const gs_state_snapshot *snapshot;
    size_t tensor, done_bytes;  // of that tensor
} cursor;

static uint8_t *advance(cursor *at, size_t bytes) {
    const gs_state_snapshot *snapshot = at->snapshot;
    while (at->done_bytes == snapshot->tensors[at->tensor].bytes &&
           at->tensor + 1 < snapshot->num_tensors) {
        at->tensor++;
        at->done_bytes = 0;
    }
    uint8_t *place = snapshot->memory + snapshot->offsets[at->tensor] + at->done_bytes;
    at->done_bytes += bytes;
    return place;
}

static void take_bytes(void *ctx, const void *bytes, size_t num_bytes) {
    if (num_bytes) memcpy(advance(ctx, num_bytes), bytes, num_bytes);
}

static void fill_bytes(void *ctx, void *bytes, size_t num_bytes) {
    if (num_bytes) memcpy(bytes, advance(ctx, num_bytes), num_bytes);
}

gs_status gs_state_snapshot_take(gs_state_snapshot *snapshot, const gs_trainer_state *state) {
    cursor at = {.snapshot = snapshot};
    GS_TRY(gs_device_copy_read(state->copy, state->runs, state->num_tensors, take_bytes, &at));
    snapshot->position = state->position;
    return gs_ok();
}

gs_status gs_state_snapshot_restore(const gs_state_snapshot *snapshot, gs_trainer_state *state) {
    cursor at = {.snapshot = snapshot};
    GS_TRY(gs_device_copy_write(state->copy, state->runs, state->num_tensors, fill_bytes, &at));
    state->position = snapshot->position;
    gs_trainer_state_refresh(state);
    return gs_ok();
}

gs_digest gs_state_snapshot_digest(const gs_state_snapshot *snapshot) {
    gs_digest_stream *stream = gs_digest_stream_create();
    if (!stream) return (gs_digest){0};
    for (size_t i = 0; i < snapshot->num_tensors; i++) {
        gs_digest_stream_add(stream, snapshot->memory + snapshot->offsets[i],
                             snapshot->tensors[i].bytes);
    }
    gs_position_digest(stream, &snapshot->position);
    gs_digest digest = gs_digest_stream_value(stream);
    gs_digest_stream_destroy(stream);
    return digest;
}

// Parameters come first, each on its boundary: padding is zero, as it is in the state.
gs_digest gs_state_snapshot_params_digest(const gs_state_snapshot *snapshot) {
    return gs_digest_of(snapshot->memory, snapshot->params_bytes);
}
