#include "worker/state/state_snapshot.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

#define TENSOR_BOUNDARY_BYTES ((size_t)64)

static gs_state_tensor describe_own(const gs_own_tensor *own, int world_size) {
    gs_state_tensor tensor = {.dtype = own->dtype,
                              .num_dims = 2,
                              .shape = {world_size, (int64_t)own->count},
                              .bytes = (size_t)world_size * own->bytes};
    memcpy(tensor.name, own->name, sizeof own->name);
    return tensor;
}

static size_t bytes_here(const gs_state_snapshot *snapshot, size_t index) {
    return snapshot->here[index].count * gs_dtype_bytes(snapshot->tensors[index].dtype);
}

static gs_segment find_here(const gs_state_snapshot *snapshot, const gs_trainer_state *state,
                            size_t index) {
    if (index < snapshot->num_tensors) return gs_trainer_state_saved(state, index);
    size_t count = state->own.tensors[index - snapshot->num_tensors].count;
    return (gs_segment){.tensor = index,
                        .first = (size_t)snapshot->shares.first * count,
                        .count = (size_t)snapshot->shares.count * count};
}

static gs_status describe(gs_state_snapshot *snapshot, const gs_trainer_state *state,
                          gs_share_range shares) {
    size_t num_own = shares.count ? state->own.num_tensors : 0;
    size_t num_all = state->num_tensors + num_own;
    *snapshot = (gs_state_snapshot){.num_tensors = state->num_tensors,
                                    .num_params = state->num_params,
                                    .num_own = num_own,
                                    .shares = shares,
                                    .is_part = state->is_sharded,
                                    .params_bytes = state->params_bytes};
    snapshot->tensors = calloc(num_all + 1, sizeof *snapshot->tensors);
    snapshot->data = calloc(num_all + 1, sizeof *snapshot->data);
    snapshot->here = calloc(num_all + 1, sizeof *snapshot->here);
    if (!snapshot->tensors || !snapshot->data || !snapshot->here) {
        gs_state_snapshot_release(snapshot);
        return gs_error(GS_RESOURCE_EXHAUSTED, "snapshot: out of memory");
    }
    memcpy(snapshot->tensors, state->tensors, state->num_tensors * sizeof *state->tensors);
    for (size_t i = 0; i < num_own; i++)
        snapshot->tensors[state->num_tensors + i] =
            describe_own(&state->own.tensors[i], shares.world_size);
    for (size_t i = 0; i < num_all; i++) {
        snapshot->here[i] = find_here(snapshot, state, i);
        snapshot->bytes += gs_round_up(bytes_here(snapshot, i), TENSOR_BOUNDARY_BYTES);
    }
    return gs_ok();
}

static bool own_fits(const gs_state_snapshot *snapshot, const gs_own_tensors *own,
                     gs_share_range shares) {
    if (snapshot->num_own != (shares.count ? own->num_tensors : 0)) return false;
    const gs_share_range *had = &snapshot->shares;
    bool fits = !snapshot->num_own || (had->first == shares.first && had->count == shares.count &&
                                       had->world_size == shares.world_size);
    for (size_t i = 0; i < snapshot->num_own && fits; i++) {
        const gs_state_tensor *tensor = &snapshot->tensors[snapshot->num_tensors + i];
        fits = tensor->dtype == own->tensors[i].dtype &&
               tensor->shape[1] == (int64_t)own->tensors[i].count &&
               strcmp(tensor->name, own->tensors[i].name) == 0;
    }
    return fits;
}

bool gs_state_snapshot_fits(const gs_state_snapshot *snapshot, const gs_trainer_state *state,
                            gs_share_range shares) {
    bool fits = snapshot->num_tensors == state->num_tensors &&
                own_fits(snapshot, &state->own, shares);
    for (size_t i = 0; i < state->num_tensors && fits; i++) {
        gs_segment saved = gs_trainer_state_saved(state, i);
        fits = snapshot->here[i].first == saved.first && snapshot->here[i].count == saved.count &&
               snapshot->tensors[i].bytes == state->tensors[i].bytes &&
               snapshot->tensors[i].dtype == state->tensors[i].dtype &&
               strcmp(snapshot->tensors[i].name, state->tensors[i].name) == 0;
    }
    return fits;
}

gs_status gs_state_snapshot_init(gs_state_snapshot *snapshot, const gs_trainer_state *state,
                                 gs_share_range shares) {
    GS_TRY(describe(snapshot, state, shares));
    uint8_t *at = snapshot->memory = gs_alloc_aligned(snapshot->bytes, TENSOR_BOUNDARY_BYTES);
    if (!at) {
        size_t bytes = snapshot->bytes;
        gs_state_snapshot_release(snapshot);
        return gs_error(GS_RESOURCE_EXHAUSTED, "snapshot: no memory for %zu bytes", bytes);
    }
    for (size_t i = 0; i < snapshot->num_tensors + snapshot->num_own; i++) {
        snapshot->data[i] = at;
        at += gs_round_up(bytes_here(snapshot, i), TENSOR_BOUNDARY_BYTES);
    }
    return gs_ok();
}

// The digest of the parameters is one of a single run of bytes.
static bool params_are_one_run(const gs_state_snapshot *snapshot) {
    size_t offset = 0;
    for (size_t i = 0; i < snapshot->num_params; i++) {
        if (snapshot->data[i] != snapshot->data[0] + offset) return false;
        offset += gs_round_up(snapshot->tensors[i].bytes, TENSOR_BOUNDARY_BYTES);
    }
    return offset == snapshot->params_bytes;
}

// Of a run that lies here, what the snapshot has.
static gs_copy_run find_run(const gs_state_snapshot *snapshot, const gs_trainer_state *state,
                            size_t index) {
    size_t element_bytes = gs_dtype_bytes(snapshot->tensors[index].dtype);
    gs_segment here = snapshot->here[index], held = gs_trainer_state_held(state, index);
    if (!here.count) return (gs_copy_run){0};
    return gs_copy_run_part(&state->runs[index], (here.first - held.first) * element_bytes,
                            here.count * element_bytes);
}

static void *find_data(const gs_state_snapshot *snapshot, const gs_trainer_state *state,
                       size_t index) {
    size_t num_tensors = snapshot->num_tensors;
    bool is_reached = index < num_tensors && gs_trainer_state_data(state, index);
    if (is_reached && bytes_here(snapshot, index)) return find_run(snapshot, state, index).data;
    if (index < num_tensors) return NULL;
    return snapshot->shares.count == 1 ? gs_own_tensors_data(&state->own, index - num_tensors) : NULL;
}

static void take_digests(gs_state_snapshot *snapshot, const gs_trainer_state *state) {
    if (!snapshot->is_part) return;
    snapshot->digest = gs_trainer_state_digest(state);
    snapshot->params_digest = gs_trainer_state_params_digest(state);
}

gs_status gs_state_snapshot_view(gs_state_snapshot *snapshot, const gs_trainer_state *state,
                                 gs_share_range shares) {
    GS_TRY(describe(snapshot, state, shares));
    bool is_reached = true;
    for (size_t i = 0; i < snapshot->num_tensors + snapshot->num_own; i++) {
        snapshot->data[i] = find_data(snapshot, state, i);
        is_reached = is_reached && (snapshot->data[i] || !bytes_here(snapshot, i));
    }
    if (!is_reached || (!snapshot->is_part && !params_are_one_run(snapshot))) {
        gs_state_snapshot_release(snapshot);
        return gs_error(GS_UNIMPLEMENTED, "snapshot: the host does not reach the state");
    }
    take_digests(snapshot, state);
    snapshot->position = state->position;
    return gs_ok();
}

void gs_state_snapshot_release(gs_state_snapshot *snapshot) {
    free(snapshot->memory);
    free(snapshot->tensors);
    free(snapshot->data);
    free(snapshot->here);
    *snapshot = (gs_state_snapshot){0};
}

// Where a transfer of all tensors is in the snapshot's memory.
typedef struct cursor {
    const gs_state_snapshot *snapshot;
    size_t tensor, done_bytes;  // of that tensor
} cursor;

static uint8_t *advance(cursor *at, size_t bytes) {
    const gs_state_snapshot *snapshot = at->snapshot;
    while (at->done_bytes == bytes_here(snapshot, at->tensor) &&
           at->tensor + 1 < snapshot->num_tensors) {
        at->tensor++;
        at->done_bytes = 0;
    }
    uint8_t *place = snapshot->data[at->tensor] + at->done_bytes;
    at->done_bytes += bytes;
    return place;
}

static void take_bytes(void *ctx, const void *bytes, size_t num_bytes) {
    if (num_bytes) memcpy(advance(ctx, num_bytes), bytes, num_bytes);
}

static void fill_bytes(void *ctx, void *bytes, size_t num_bytes) {
    if (num_bytes) memcpy(bytes, advance(ctx, num_bytes), num_bytes);
}

static gs_status take_shares(const gs_state_snapshot *snapshot, const gs_trainer_state *state) {
    for (size_t i = 0; i < snapshot->num_own; i++) {
        uint8_t *to = snapshot->data[snapshot->num_tensors + i];
        for (int k = 0; k < snapshot->shares.count; k++) {
            GS_TRY(gs_own_tensors_read(&state->own, state->copy, i, snapshot->shares.first + k,
                                       state->position.step, to));
            to += state->own.tensors[i].bytes;
        }
    }
    return gs_ok();
}

static gs_status take_tensors(const gs_state_snapshot *snapshot, const gs_trainer_state *state) {
    cursor at = {.snapshot = snapshot};
    gs_copy_run *runs = calloc(snapshot->num_tensors + 1, sizeof *runs);
    if (!runs) return gs_error(GS_RESOURCE_EXHAUSTED, "snapshot: out of memory");
    for (size_t i = 0; i < snapshot->num_tensors; i++) runs[i] = find_run(snapshot, state, i);
    gs_status status =
        gs_device_copy_read(state->copy, runs, snapshot->num_tensors, take_bytes, &at);
    free(runs);
    return status;
}

gs_status gs_state_snapshot_take(gs_state_snapshot *snapshot, const gs_trainer_state *state) {
    GS_TRY(take_shares(snapshot, state));
    GS_TRY(take_tensors(snapshot, state));
    take_digests(snapshot, state);
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
    if (snapshot->is_part) return snapshot->digest;
    gs_digest_stream *stream = gs_digest_stream_create();
    if (!stream) return (gs_digest){0};
    for (size_t i = 0; i < snapshot->num_tensors; i++) {
        gs_digest_stream_add(stream, snapshot->data[i], snapshot->tensors[i].bytes);
    }
    gs_position_digest(stream, &snapshot->position);
    gs_digest digest = gs_digest_stream_value(stream);
    gs_digest_stream_destroy(stream);
    return digest;
}

// Parameters come first, each on its boundary: padding is zero, as it is in the state.
gs_digest gs_state_snapshot_params_digest(const gs_state_snapshot *snapshot) {
    return snapshot->is_part ? snapshot->params_digest
                             : gs_digest_of(snapshot->data[0], snapshot->params_bytes);
}
