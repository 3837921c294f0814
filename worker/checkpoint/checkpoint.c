#include "worker/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/failpoint.h"
#include "core/random.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors.h"

// Free space wanted, as a multiple of what is to be written.
#define FREE_SPACE_FACTOR 1.2

static gs_status make_directories(const char *path) {
    char at[PATH_MAX];
    if (snprintf(at, sizeof at, "%s", path) >= (int)sizeof at) {
        return gs_error(GS_INVALID_ARGUMENT, "checkpoint directory: the path is too long");
    }
    for (char *slash = strchr(at + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(at, 0755) < 0 && errno != EEXIST) return gs_error_from_errno(errno, "%s", at);
        *slash = '/';
    }
    if (mkdir(at, 0755) < 0 && errno != EEXIST) return gs_error_from_errno(errno, "%s", at);
    return gs_ok();
}

static gs_status check_space(const char *directory, size_t bytes) {
    struct statvfs facts;
    if (statvfs(directory, &facts) < 0) return gs_error_from_errno(errno, "%s", directory);
    double has = (double)facts.f_bavail * (double)facts.f_frsize;
    double wants = (double)bytes * FREE_SPACE_FACTOR;
    if (has >= wants) return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "%s: %.0f MiB free, a checkpoint wants %.0f MiB",
                    directory, has / 1048576, wants / 1048576);
}

// Nothing in it tells one job from another: equal states make equal files.
static gs_status write_part(const char *path, const gs_state_snapshot *snapshot) {
    GS_FAILPOINT("checkpoint.write");
    gs_safetensors_entry *entries = calloc(snapshot->num_tensors, sizeof *entries);
    if (!entries) return gs_error(GS_RESOURCE_EXHAUSTED, "checkpoint: out of memory");
    for (size_t i = 0; i < snapshot->num_tensors; i++) {
        const gs_state_tensor *tensor = &snapshot->tensors[i];
        entries[i] = (gs_safetensors_entry){.name = tensor->name,
                                            .dtype = tensor->dtype,
                                            .num_dims = tensor->num_dims,
                                            .data = snapshot->data[i]};
        memcpy(entries[i].shape, tensor->shape, sizeof entries[i].shape);
    }
    char step[24], consumed[24];
    snprintf(step, sizeof step, "%lld", (long long)snapshot->position.step);
    snprintf(consumed, sizeof consumed, "%lld", (long long)snapshot->position.consumed);
    const gs_safetensors_metadata_entry metadata[] = {
        {"part", "0"}, {"step", step}, {"consumed", consumed}};
    gs_status status = gs_safetensors_write(path, entries, snapshot->num_tensors, metadata,
                                            sizeof metadata / sizeof metadata[0], NULL, NULL);
    free(entries);
    return status;
}

static gs_json *describe_part(const gs_manifest_part *part) {
    gs_json *row = gs_json_new_object(), *crcs = gs_json_new_array();
    char digest[GS_DIGEST_TEXT_LEN];
    gs_digest_format(digest, part->digest);
    for (size_t i = 0; i < part->num_crcs; i++) {
        gs_json_push(crcs, gs_json_new_int((int64_t)part->crcs[i]));
    }
    gs_json_set_string(row, "name", part->name);
    gs_json_set_int(row, "bytes", (int64_t)part->bytes);
    gs_json_set_string(row, "digest", digest);
    gs_json_set_int(row, "block_bytes", GS_MANIFEST_BLOCK_BYTES);
    gs_json_set(row, "crc32c", crcs);
    return row;
}

static gs_json *build_manifest(const gs_state_snapshot *snapshot, const gs_manifest_part *part,
                               const gs_checkpoint_options *options,
                               const gs_checkpoint_result *result) {
    gs_json *out = gs_json_new_object(), *parts = gs_json_new_array();
    char digest[GS_DIGEST_TEXT_LEN];
    gs_json_set_string(out, "format", "gradsync-checkpoint");
    gs_json_set_int(out, "format_version", 1);
    gs_json_set_string(out, "library_version", GRADSYNC_VERSION);
    // The name's eight hex digits.
    gs_json_set_string(out, "id", result->name + strlen(result->name) - 8);
    gs_json_set_string(out, "job", options->job);
    gs_json_set_string(out, "reason", options->reason);
    gs_json_set_time(out, "created_at", gs_wall_ms());
    gs_json_set_int(out, "world_size", options->world_size);
    gs_json_set_int(out, "num_shards", options->spec->logical_shards);
    gs_json_set_int(out, "seed", options->spec->model.seed);
    gs_json_set(out, "position", gs_manifest_position(&snapshot->position));
    gs_digest_format(digest, gs_state_snapshot_params_digest(snapshot));
    gs_json_set_string(out, "params_digest", digest);
    gs_digest_format(digest, result->state_digest);
    gs_json_set_string(out, "state_digest", digest);
    gs_json_set(out, "spec", gs_manifest_spec(options->spec));
    gs_json_push(parts, describe_part(part));
    gs_json_set(out, "parts", parts);
    gs_json_set(out, "tensors", gs_manifest_tensors(snapshot));
    return out;
}

static gs_status write_files(gs_checkpoint_result *result, const char *path,
                             const gs_state_snapshot *snapshot,
                             const gs_checkpoint_options *options) {
    char part_path[PATH_MAX], manifest_path[PATH_MAX];
    snprintf(part_path, sizeof part_path, "%s/" GS_CHECKPOINT_PART, path);
    snprintf(manifest_path, sizeof manifest_path, "%s/" GS_CHECKPOINT_MANIFEST, path);

    gs_manifest_part part = {0};
    uint64_t manifest_bytes = 0;
    gs_status status = write_part(part_path, snapshot);
    // What is read back is what the check sums speak of: a bad write shows here, not at a resume.
    if (!status.code) status = gs_manifest_part_read(&part, part_path);
    if (!status.code) {
        result->part_bytes = part.bytes;
        result->part_digest = part.digest;
        result->state_digest = gs_state_snapshot_digest(snapshot);
        status = gs_manifest_write(build_manifest(snapshot, &part, options, result), manifest_path,
                                   &manifest_bytes, &result->manifest_digest);
    }
    gs_manifest_part_release(&part);
    result->bytes = result->part_bytes + manifest_bytes;
    if (status.code) {
        unlink(manifest_path);
        unlink(part_path);
        rmdir(path);
    }
    return status;
}

static gs_status save(gs_checkpoint_result *result, const gs_state_snapshot *snapshot,
                      const gs_checkpoint_options *options) {
    char path[PATH_MAX];
    GS_TRY(make_directories(options->directory));
    GS_TRY(check_space(options->directory, snapshot->bytes));
    if (snprintf(path, sizeof path, "%s/%s", options->directory, result->name) >=
        (int)sizeof path - 64) {
        return gs_error(GS_INVALID_ARGUMENT, "checkpoint directory: the path is too long");
    }
    if (mkdir(path, 0755) < 0) return gs_error_from_errno(errno, "%s", path);
    return write_files(result, path, snapshot, options);
}

gs_status gs_checkpoint_save(gs_checkpoint_result *result, const gs_state_snapshot *snapshot,
                             const gs_checkpoint_options *options) {
    int64_t begin_ns = gs_now_ns();
    *result = (gs_checkpoint_result){.step = snapshot->position.step,
                                     .samples = snapshot->position.consumed,
                                     .reason = options->reason,
                                     .world_size = options->world_size};
    snprintf(result->name, sizeof result->name, "step-%010lld-%08x",
             (long long)snapshot->position.step, (unsigned)gs_random_from_system());
    snprintf(result->part_name, sizeof result->part_name, GS_CHECKPOINT_PART);
    result->status = gs_status_prefix(save(result, snapshot, options), "checkpoint of step %lld",
                                      (long long)snapshot->position.step);
    result->cause = result->status.code == GS_RESOURCE_EXHAUSTED ? "space" : "io";
    result->seconds = gs_seconds_since(begin_ns);
    return result->status;
}

// Every tensor of the state is in the file, with its dtype and shape, and nothing else is.
static gs_status check_tensors(const gs_trainer_state *state, const gs_safetensors *file) {
    for (size_t i = 0; i < state->num_tensors; i++) {
        const gs_state_tensor *wanted = &state->tensors[i];
        const gs_safetensor *found = gs_safetensors_find(file, wanted->name);
        if (!found) {
            return gs_error(GS_INVALID_ARGUMENT, "the checkpoint has no tensor \"%s\"",
                            wanted->name);
        }
        if (found->dtype != wanted->dtype) {
            return gs_error(GS_INVALID_ARGUMENT, "tensor \"%s\" is %s, the checkpoint has %s",
                            wanted->name, gs_dtype_name(wanted->dtype), found->dtype_name);
        }
        bool same = found->num_dims == wanted->num_dims && found->bytes == wanted->bytes;
        for (int d = 0; same && d < wanted->num_dims; d++) {
            same = found->shape[d] == wanted->shape[d];
        }
        if (!same) {
            return gs_error(GS_INVALID_ARGUMENT,
                            "tensor \"%s\" has %zu bytes in %d dimensions, the checkpoint has %zu "
                            "in %d",
                            wanted->name, wanted->bytes, wanted->num_dims, found->bytes,
                            found->num_dims);
        }
    }
    if (gs_safetensors_count(file) == state->num_tensors) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "the checkpoint has %zu tensors, this model wants %zu",
                    gs_safetensors_count(file), state->num_tensors);
}

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

static gs_status check_manifest(const gs_json *manifest, const gs_job_spec *spec) {
    int64_t version = gs_json_int_or(manifest, "format_version", 0);
    if (version != 1) {
        return gs_error(GS_INVALID_ARGUMENT, "checkpoint format %lld, this build reads 1",
                        (long long)version);
    }
    gs_json *ours = gs_manifest_spec(spec);
    gs_status status = gs_manifest_spec_compare(ours, gs_json_get(manifest, "spec"));
    gs_json_release(ours);
    return status;
}

static gs_status check_part(const char *path, const gs_json *manifest) {
    const gs_json *parts = gs_json_get(manifest, "parts");
    if (gs_json_count(parts) != 1) return gs_error(GS_DATA_LOSS, "the manifest lists no part");
    gs_manifest_part part;
    GS_TRY(gs_manifest_part_read(&part, path));
    gs_status status = gs_manifest_part_check(&part, gs_json_at(parts, 0));
    gs_manifest_part_release(&part);
    return status;
}

// How far a tensor has been read.
typedef struct reading {
    const gs_safetensors *file;
    const gs_safetensor *tensor;
    size_t done_bytes;
    gs_status status;
} reading;

static void read_piece(void *ctx, void *bytes, size_t num_bytes) {
    reading *at = ctx;
    if (at->status.code) return;
    at->status = gs_safetensors_read(at->file, at->tensor, bytes, at->done_bytes, num_bytes);
    at->done_bytes += num_bytes;
}

static gs_status take_tensors(gs_trainer_state *state, const gs_safetensors *file) {
    for (size_t i = 0; i < state->num_tensors; i++) {
        reading at = {.file = file, .tensor = gs_safetensors_find(file, state->tensors[i].name)};
        GS_TRY(gs_trainer_state_fill(state, i, read_piece, &at));
        if (at.status.code)
            return gs_status_prefix(at.status, GS_CHECKPOINT_PART ": tensor \"%s\"",
                                    at.tensor->name);
    }
    return gs_ok();
}

static gs_status load(gs_trainer_state *state, const char *path, const gs_json *manifest,
                      const gs_job_spec *spec) {
    char part_path[PATH_MAX];
    snprintf(part_path, sizeof part_path, "%s/" GS_CHECKPOINT_PART, path);
    gs_position position;
    gs_safetensors *file = NULL;
    GS_TRY(check_part(part_path, manifest));
    GS_TRY(check_manifest(manifest, spec));
    GS_TRY(read_position(&position, manifest));
    GS_TRY(gs_safetensors_open(&file, part_path));
    gs_status status = check_tensors(state, file);
    if (!status.code) status = take_tensors(state, file);
    gs_safetensors_close(file);
    if (!status.code) {
        state->position = position;
        gs_trainer_state_refresh(state);
    }
    return status;
}

gs_status gs_checkpoint_load(gs_trainer_state *state, const char *path, const gs_job_spec *spec) {
    char manifest_path[PATH_MAX];
    gs_json *manifest = NULL;
    if (snprintf(manifest_path, sizeof manifest_path, "%s/" GS_CHECKPOINT_MANIFEST, path) >=
        (int)sizeof manifest_path - 64) {
        return gs_error(GS_INVALID_ARGUMENT, "checkpoint: the path is too long");
    }
    gs_status status = gs_manifest_read(&manifest, manifest_path);
    if (!status.code) status = load(state, path, manifest, spec);
    gs_json_release(manifest);
    const char *slash = strrchr(path, '/');
    return gs_status_prefix(status, "checkpoint %s", slash ? slash + 1 : path);
}
