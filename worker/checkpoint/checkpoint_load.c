// Loading: everything is verified before the state is touched, and read in pieces as the device takes them.
#include "worker/checkpoint/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/manifest.h"
#include "worker/state/hook_tensors.h"

// A checkpoint that is being read. What ranks had of their own is read when it is dealt, and a sharded state when it is
// laid out: until then it stays open, whatever becomes of the files.
typedef struct opened {
    gs_checkpoint_reader *reader;        // owned
    const gs_json *manifest;             // the reader's
    const gs_checkpoint_layout *layout;  // the reader's
    gs_position position;
    size_t *tensors;     // owned; for each tensor of the state, which of the layout's
    int64_t num_shares;  // of each tensor that was each rank's own; 0: there is none
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
    if (gs_json_get(from, "forgiven_overflows")) {
        int64_t num_forgiven;
        GS_TRY(gs_json_read_int(&num_forgiven, from, "forgiven_overflows", 0,
                                GS_SPEC_MAX_HYSTERESIS - 1));
        loss_scale->num_forgiven = (int32_t)num_forgiven;
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

static gs_status check_spec(const gs_json *manifest, const gs_job_spec *spec) {
    gs_json *ours = gs_manifest_spec(spec);
    gs_status status = gs_manifest_spec_compare(ours, gs_json_get(manifest, "spec"));
    gs_json_release(ours);
    return status;
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
    const gs_checkpoint_layout *layout = it->layout;
    it->tensors = calloc(state->num_tensors + 1, sizeof *it->tensors);
    if (!it->tensors) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < state->num_tensors; i++) {
        GS_TRY(gs_checkpoint_reader_find(it->reader, &it->tensors[i], state->tensors[i].name, i));
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

static void close_checkpoint(opened *it) {
    gs_checkpoint_reader_close(it->reader);
    free(it->tensors);
    free(it);
}

static void close_source(void *ctx) {
    close_checkpoint(ctx);
}

typedef struct read_tensor {
    const gs_checkpoint_reader *reader;
    size_t tensor;
} read_tensor;

static gs_status read_bytes(void *ctx, void *to, size_t first_byte, size_t num_bytes) {
    const read_tensor *from = ctx;
    return gs_checkpoint_reader_read(from->reader, from->tensor, to, first_byte, num_bytes);
}

// Of each tensor, what lies here.
static gs_status take_tensors(gs_trainer_state *state, const opened *it) {
    for (size_t i = 0; i < state->num_tensors; i++) {
        read_tensor from = {it->reader, it->tensors[i]};
        GS_TRY(gs_trainer_state_take(state, i, &(gs_whole_tensor){read_bytes, &from}));
    }
    return gs_ok();
}

static gs_status read_share(void *ctx, const char *name, int rank, gs_dtype dtype, size_t count,
                            void *to) {
    const opened *it = ctx;
    size_t index;
    GS_TRY(gs_checkpoint_reader_find(it->reader, &index, name, 0));
    const gs_checkpoint_tensor *found = &it->layout->tensors[index];
    if (!found->is_own || found->dtype != dtype || found->shape[1] != (int64_t)count)
        return gs_error(GS_INVALID_ARGUMENT,
                        "tensor \"%s\" is %zu elements of %s, the checkpoint has something else",
                        name, count, gs_dtype_name(dtype));
    size_t bytes = count * gs_dtype_bytes(dtype);
    return gs_checkpoint_reader_read(it->reader, index, to, (size_t)rank * bytes, bytes);
}

static uint64_t origin_of(const gs_json *manifest, int64_t step) {
    const char *id = gs_json_string_or(manifest, "id", "");
    return gs_hash64(id, strlen(id), (uint64_t)step) >> 2 | 1;
}

// Of as many ranks in every tensor.
static gs_status count_shares(opened *it) {
    for (size_t i = 0; i < it->layout->num_tensors; i++) {
        const gs_checkpoint_tensor *tensor = &it->layout->tensors[i];
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
                              .num_tensors = count_own(it->layout),
                              .ctx = it,
                              .read = read_share,
                              .release = close_source};
    for (int rank = 0; rank < it->num_shares; rank++) gs_share_claim_add(&source.claim, rank);
    gs_own_tensors_give(&state->own, &source);
}

static gs_status verify(gs_trainer_state *state, opened *it, const gs_job_spec *spec) {
    GS_TRY(count_shares(it));
    GS_TRY(check_spec(it->manifest, spec));
    GS_TRY(read_position(&it->position, it->manifest));
    GS_TRY(add_hook_tensors(state, it->layout));
    return match_tensors(it, state);
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

static gs_status read_for_others(void *ctx, size_t index, void *to, size_t first_byte, size_t num_bytes) {
    const opened *it = ctx;
    return gs_checkpoint_reader_read(it->reader, it->tensors[index], to, first_byte, num_bytes);
}

// The whole state at once; or a source of what a rank will hold of it. Takes the checkpoint when it is OK.
static gs_status hand_over(gs_trainer_state *state, opened *it) {
    if (state->is_sharded) {
        state->position = it->position;
        gs_trainer_state_give_source(
            state, &(gs_state_source){.ctx = it, .fill = fill_state, .read = read_for_others, .release = close_source});
        return gs_ok();
    }
    GS_TRY(take_state(state, it));
    if (it->num_shares) give_shares(state, it);
    else close_checkpoint(it);
    return gs_ok();
}

gs_status gs_checkpoint_load(gs_trainer_state *state, const char *path, const gs_job_spec *spec) {
    gs_checkpoint_reader *reader;
    GS_TRY(gs_checkpoint_reader_open(&reader, path, 2));  // of the job, of the checkpoint
    opened *it = calloc(1, sizeof *it);
    if (!it) {
        gs_checkpoint_reader_close(reader);
        return gs_error(GS_RESOURCE_EXHAUSTED, "checkpoint: out of memory");
    }
    *it = (opened){.reader = reader,
                   .manifest = gs_checkpoint_reader_manifest(reader),
                   .layout = gs_checkpoint_reader_layout(reader)};
    gs_status status = verify(state, it, spec);
    if (!status.code) status = hand_over(state, it);
    if (!status.code) return status;
    gs_hook_tensors_forget(state);
    close_checkpoint(it);
    const char *slash = strrchr(path, '/');
    return gs_status_prefix(status, "checkpoint %s", slash ? slash + 1 : path);
}
