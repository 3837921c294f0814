// Loading: everything is verified before the state is touched, and read in pieces as the device takes them.
#include "worker/checkpoint/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/json/sealed_json.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/part_file.h"
#include "worker/state/hook_tensors.h"

#define NEWEST_FORMAT 2

// A checkpoint that is being read. What ranks had of their own is read when it is dealt, and a sharded state when it is
// laid out: until then it stays open, whatever becomes of the files.
typedef struct opened {
    const char *path;   // borrowed, for the load
    gs_json *manifest;  // owned
    gs_checkpoint_layout layout;
    gs_position position;
    gs_safetensors **files;        // owned; one for each part
    const gs_safetensor **entries; // owned; one for each piece of the layout
    size_t *tensors;               // owned; for each tensor of the state, which of the layout's
    int64_t num_shares;            // of each tensor that was each rank's own; 0: there is none
} opened;

// Only runs with precision fp16 have one; that both are such was compared before.
static gs_status read_loss_scale(gs_grad_scaler *loss_scale, const gs_json *from) {
    *loss_scale = (gs_grad_scaler){0};
    if (!gs_json_get(from, "loss_scale")) return gs_ok();
    double scale = gs_json_double_or(from, "loss_scale", 0);
    loss_scale->scale = (float)scale;
    if (!(scale > 0) || isinf(loss_scale->scale)) {
        return gs_error(GS_DATA_LOSS, "position: loss_scale %g, must be finite and above 0", scale);
    }
    return gs_json_read_int(&loss_scale->growth_tracker, from, "growth_tracker", 0, INT64_MAX);
}

static gs_status read_position(gs_position *position, const gs_json *manifest) {
    const gs_json *from = gs_json_get(manifest, "position");
    GS_TRY(gs_json_read_int(&position->step, from, "step", 0, INT64_MAX));
    GS_TRY(gs_json_read_int(&position->consumed, from, "consumed", 0, INT64_MAX));
    GS_TRY(gs_json_read_int(&position->skipped_steps, from, "skipped_steps", 0, INT64_MAX));
    GS_TRY(gs_json_read_int(&position->skipped_in_a_row, from, "skipped_in_a_row", 0, INT64_MAX));
    return read_loss_scale(&position->loss_scale, from);
}

static gs_status check_manifest(const gs_json *manifest) {
    int64_t version = gs_json_int_or(manifest, "format_version", 0);
    if (version >= 1 && version <= NEWEST_FORMAT) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "checkpoint format %lld, this build reads 1 to %d",
                    (long long)version, NEWEST_FORMAT);
}

static gs_status check_spec(const gs_json *manifest, const gs_job_spec *spec) {
    gs_json *ours = gs_manifest_spec(spec);
    gs_status status = gs_manifest_spec_compare(ours, gs_json_get(manifest, "spec"));
    gs_json_release(ours);
    return status;
}

static void part_path(char path[PATH_MAX], const opened *it, size_t part) {
    char name[GS_CHECKPOINT_FILE_LEN];
    gs_checkpoint_part_name(name, part);
    snprintf(path, PATH_MAX, "%s/%s", it->path, name);
}

static gs_status check_parts(const opened *it) {
    const gs_json *parts = gs_json_get(it->manifest, "parts");
    for (size_t i = 0; i < it->layout.num_parts; i++) {
        char path[PATH_MAX];
        gs_manifest_part part;
        part_path(path, it, i);
        GS_TRY(gs_manifest_part_read(&part, path));
        gs_status status = gs_manifest_part_check(&part, gs_json_at(parts, i));
        gs_manifest_part_release(&part);
        if (status.code) return status;
    }
    return gs_ok();
}

// Tensors are in the state's order, but for checkpoints of another build.
static gs_status find_tensor(size_t *index, const gs_checkpoint_layout *layout, size_t guess,
                             const char *name) {
    for (size_t i = 0; i < layout->num_tensors; i++) {
        *index = (guess + i) % layout->num_tensors;
        if (strcmp(layout->tensors[*index].name, name) == 0) return gs_ok();
    }
    return gs_error(GS_INVALID_ARGUMENT, "the checkpoint has no tensor \"%s\"", name);
}

static gs_status check_tensor(const gs_state_tensor *wanted, const gs_checkpoint_tensor *found) {
    if (found->dtype != wanted->dtype)
        return gs_error(GS_INVALID_ARGUMENT, "tensor \"%s\" is %s, the checkpoint has %s",
                        wanted->name, gs_dtype_name(wanted->dtype), gs_dtype_name(found->dtype));
    bool same = found->num_dims == wanted->num_dims;
    for (int d = 0; same && d < wanted->num_dims; d++) same = found->shape[d] == wanted->shape[d];
    if (same) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT,
                    "tensor \"%s\" has %zu bytes in %d dimensions, the checkpoint has %zu in %d",
                    wanted->name, wanted->bytes, wanted->num_dims,
                    found->count * gs_dtype_bytes(found->dtype), found->num_dims);
}

static size_t count_own(const gs_checkpoint_layout *layout) {
    size_t num_own = 0;
    for (size_t i = 0; i < layout->num_tensors; i++) num_own += layout->tensors[i].is_own;
    return num_own;
}

// Every tensor of the state is there, with its dtype and shape, and nothing else is but shares of ranks.
static gs_status match_tensors(opened *it, const gs_trainer_state *state) {
    const gs_checkpoint_layout *layout = &it->layout;
    it->tensors = calloc(state->num_tensors + 1, sizeof *it->tensors);
    if (!it->tensors) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < state->num_tensors; i++) {
        GS_TRY(find_tensor(&it->tensors[i], layout, i, state->tensors[i].name));
        GS_TRY(check_tensor(&state->tensors[i], &layout->tensors[it->tensors[i]]));
    }
    size_t num_found = layout->num_tensors - count_own(layout);
    if (num_found == state->num_tensors) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "the checkpoint has %zu tensors, this model wants %zu",
                    num_found, state->num_tensors);
}

// What hooks carried when it was saved has a place in the state before there are hooks.
static gs_status add_hook_tensors(gs_trainer_state *state, const gs_checkpoint_layout *layout) {
    for (size_t i = 0; i < layout->num_tensors; i++) {
        const gs_checkpoint_tensor *found = &layout->tensors[i];
        size_t known = state->num_model_tensors;
        if (strncmp(found->name, GS_HOOK_TENSOR_PREFIX, strlen(GS_HOOK_TENSOR_PREFIX)) != 0)
            continue;
        if (found->is_own) continue;
        while (known < state->num_tensors && strcmp(state->tensors[known].name, found->name) != 0)
            known++;
        if (known < state->num_tensors) continue;
        gs_state_tensor tensor = {.dtype = found->dtype,
                                  .num_dims = found->num_dims,
                                  .bytes = found->count * gs_dtype_bytes(found->dtype)};
        snprintf(tensor.name, sizeof tensor.name, "%s", found->name);
        memcpy(tensor.shape, found->shape, sizeof tensor.shape);
        GS_TRY(gs_hook_tensors_add(state, &tensor));
    }
    return gs_ok();
}

static gs_status open_parts(opened *it) {
    const gs_checkpoint_layout *layout = &it->layout;
    it->files = calloc(layout->num_parts + 1, sizeof(gs_safetensors *));
    it->entries = calloc(layout->num_pieces + 1, sizeof(const gs_safetensor *));
    if (!it->files || !it->entries) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < layout->num_parts; i++) {
        char path[PATH_MAX];
        part_path(path, it, i);
        GS_TRY(gs_safetensors_open(&it->files[i], path));
    }
    for (size_t i = 0; i < layout->num_pieces; i++) {
        const gs_checkpoint_piece *piece = &layout->pieces[i];
        gs_status status =
            gs_part_file_find(&it->entries[i], it->files[piece->part],
                              &layout->tensors[piece->segment.tensor], piece->segment);
        if (status.code) return gs_status_prefix(status, "part-%zu.safetensors", piece->part);
    }
    return gs_ok();
}

static void close_checkpoint(opened *it) {
    for (size_t i = 0; it->files && i < it->layout.num_parts; i++)
        gs_safetensors_close(it->files[i]);
    free(it->files);
    free(it->entries);
    free(it->tensors);
    gs_checkpoint_layout_release(&it->layout);
    gs_json_release(it->manifest);
    free(it);
}

static void close_source(void *ctx) {
    close_checkpoint(ctx);
}

// How far a tensor has been read: its pieces follow each other.
typedef struct reading {
    const opened *it;
    size_t piece, done_bytes;  // of the piece
    gs_status status;
} reading;

static void read_bytes(void *ctx, void *bytes, size_t num_bytes) {
    reading *at = ctx;
    char *to = bytes;
    while (num_bytes && !at->status.code) {
        const gs_safetensor *entry = at->it->entries[at->piece];
        const gs_safetensors *file = at->it->files[at->it->layout.pieces[at->piece].part];
        size_t part_bytes = entry->bytes - at->done_bytes;
        if (part_bytes > num_bytes) part_bytes = num_bytes;
        at->status = gs_safetensors_read(file, entry, to, at->done_bytes, part_bytes);
        to += part_bytes;
        num_bytes -= part_bytes;
        at->done_bytes += part_bytes;
        if (at->done_bytes == entry->bytes) {
            at->piece++;
            at->done_bytes = 0;
        }
    }
}

static size_t first_piece_of(const gs_checkpoint_layout *layout, size_t tensor) {
    size_t low = 0, high = layout->num_pieces;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (layout->pieces[middle].segment.tensor < tensor)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Behind the elements before `first`.
static reading read_from(const opened *it, size_t tensor, size_t first) {
    const gs_checkpoint_layout *layout = &it->layout;
    reading at = {.it = it, .piece = first_piece_of(layout, tensor)};
    while (at.piece < layout->num_pieces) {
        const gs_segment *segment = &layout->pieces[at.piece].segment;
        if (segment->tensor != tensor || first < segment->first + segment->count) break;
        at.piece++;
    }
    if (at.piece < layout->num_pieces && layout->pieces[at.piece].segment.tensor == tensor)
        at.done_bytes = (first - layout->pieces[at.piece].segment.first) *
                        gs_dtype_bytes(layout->tensors[tensor].dtype);
    return at;
}

// Of each tensor, what lies here.
static gs_status take_tensors(gs_trainer_state *state, const opened *it) {
    for (size_t i = 0; i < state->num_tensors; i++) {
        reading at = read_from(it, it->tensors[i], gs_trainer_state_held(state, i).first);
        GS_TRY(gs_trainer_state_fill(state, i, read_bytes, &at));
        if (at.status.code)
            return gs_status_prefix(at.status, "part-%zu.safetensors: tensor \"%s\"",
                                    it->layout.pieces[at.piece].part, state->tensors[i].name);
    }
    return gs_ok();
}

// Elements [first, first + count) of a tensor, which lie in one part or in several.
static gs_status read_elements(const opened *it, size_t tensor, size_t first, size_t count,
                               char *to) {
    const gs_checkpoint_layout *layout = &it->layout;
    size_t element_bytes = gs_dtype_bytes(layout->tensors[tensor].dtype);
    const gs_segment wanted = {tensor, first, count};
    for (size_t i = first_piece_of(layout, tensor);
         i < layout->num_pieces && layout->pieces[i].segment.tensor == tensor; i++) {
        const gs_checkpoint_piece *piece = &layout->pieces[i];
        gs_segment both = gs_segment_intersect(piece->segment, wanted);
        if (!both.count) continue;
        GS_TRY(gs_safetensors_read(it->files[piece->part], it->entries[i],
                                   to + (both.first - first) * element_bytes,
                                   (both.first - piece->segment.first) * element_bytes,
                                   both.count * element_bytes));
    }
    return gs_ok();
}

static gs_status read_share(void *ctx, const char *name, int rank, gs_dtype dtype, size_t count,
                            void *to) {
    const opened *it = ctx;
    size_t index;
    GS_TRY(find_tensor(&index, &it->layout, 0, name));
    const gs_checkpoint_tensor *found = &it->layout.tensors[index];
    if (!found->is_own || found->dtype != dtype || found->shape[1] != (int64_t)count)
        return gs_error(GS_INVALID_ARGUMENT,
                        "tensor \"%s\" is %zu elements of %s, the checkpoint has something else",
                        name, count, gs_dtype_name(dtype));
    return read_elements(it, index, (size_t)rank * count, count, to);
}

static uint64_t origin_of(const gs_json *manifest, int64_t step) {
    const char *id = gs_json_string_or(manifest, "id", "");
    return gs_hash64(id, strlen(id), (uint64_t)step) >> 2 | 1;
}

// Of as many ranks in every tensor.
static gs_status count_shares(opened *it) {
    for (size_t i = 0; i < it->layout.num_tensors; i++) {
        const gs_checkpoint_tensor *tensor = &it->layout.tensors[i];
        if (!tensor->is_own) continue;
        if (!it->num_shares) it->num_shares = tensor->shape[0];
        if (tensor->shape[0] != it->num_shares || it->num_shares < 1 ||
            it->num_shares > GS_COMM_MAX_RANKS)
            return gs_error(GS_DATA_LOSS, "manifest: tensor \"%.100s\" is of %lld ranks",
                            tensor->name, (long long)tensor->shape[0]);
    }
    return gs_ok();
}

// What ranks had of their own, for whoever goes on with it: takes the checkpoint.
static void give_shares(gs_trainer_state *state, opened *it) {
    gs_share_source source = {.claim = {.origin = origin_of(it->manifest, state->position.step),
                                        .step = state->position.step,
                                        .world_size = it->num_shares,
                                        .rank = -1},
                              .num_tensors = count_own(&it->layout),
                              .ctx = it,
                              .read = read_share,
                              .release = close_source};
    for (int rank = 0; rank < it->num_shares; rank++) gs_share_claim_add(&source.claim, rank);
    gs_own_tensors_give(&state->own, &source);
}

static gs_status verify(gs_trainer_state *state, opened *it, const gs_job_spec *spec) {
    GS_TRY(check_manifest(it->manifest));
    GS_TRY(gs_checkpoint_layout_parse(&it->layout, it->manifest));
    GS_TRY(count_shares(it));
    GS_TRY(check_parts(it));
    GS_TRY(check_spec(it->manifest, spec));
    GS_TRY(read_position(&it->position, it->manifest));
    GS_TRY(add_hook_tensors(state, &it->layout));
    GS_TRY(match_tensors(it, state));
    return open_parts(it);
}

static gs_status take_state(gs_trainer_state *state, const opened *it) {
    GS_TRY(take_tensors(state, it));
    state->position = it->position;
    gs_trainer_state_refresh(state);
    return gs_ok();
}

static gs_status fill_state(void *ctx, gs_trainer_state *state) {
    return gs_status_prefix(take_state(state, ctx), "checkpoint");
}

// The whole state at once; or a source of what a rank will hold of it. Takes the checkpoint when it is OK.
static gs_status hand_over(gs_trainer_state *state, opened *it) {
    if (state->is_sharded) {
        state->position = it->position;
        gs_trainer_state_give_source(
            state, &(gs_state_source){.ctx = it, .fill = fill_state, .release = close_source});
        return gs_ok();
    }
    GS_TRY(take_state(state, it));
    if (it->num_shares) give_shares(state, it);
    else close_checkpoint(it);
    return gs_ok();
}

gs_status gs_checkpoint_load(gs_trainer_state *state, const char *path, const gs_job_spec *spec) {
    char manifest_path[PATH_MAX];
    if (snprintf(manifest_path, sizeof manifest_path, "%s/" GS_CHECKPOINT_MANIFEST, path) >=
        (int)sizeof manifest_path - 64) {
        return gs_error(GS_INVALID_ARGUMENT, "checkpoint: the path is too long");
    }
    opened *it = calloc(1, sizeof *it);
    if (!it) return gs_error(GS_RESOURCE_EXHAUSTED, "checkpoint: out of memory");
    it->path = path;
    gs_status status = gs_sealed_json_read(&it->manifest, manifest_path);
    if (!status.code) {
        status = verify(state, it, spec);
        if (!status.code) status = hand_over(state, it);
        if (status.code) gs_hook_tensors_forget(state);
    }
    if (status.code) close_checkpoint(it);
    const char *slash = strrchr(path, '/');
    return gs_status_prefix(status, "checkpoint %s", slash ? slash + 1 : path);
}
