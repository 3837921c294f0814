#include "worker/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/directory.h"
#include "core/failpoint.h"
#include "core/random.h"
#include "rpc/checkpoint/fence.h"
#include "rpc/checkpoint/manifest_part.h"
#include "rpc/checkpoint/part_record.h"
#include "rpc/checkpoint/safetensors.h"
#include "rpc/json/sealed_json.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/part_file.h"

// Free space wanted, as a multiple of what is to be written.
#define FREE_SPACE_FACTOR 1.2

static gs_fence fence_of(const gs_checkpoint_options *options) {
    return (gs_fence){.cluster = options->cluster ? options->cluster : "",
                      .generation = options->request.generation};
}

// The job's directory, made where it is missing. What is above it is the operator's word, and may be links.
gs_status gs_checkpoint_open_directory(gs_directory *job, const char *directory) {
    char root[PATH_MAX];
    if (snprintf(root, sizeof root, "%s", directory) >= (int)sizeof root)
        return gs_error(GS_INVALID_ARGUMENT, "checkpoint directory: the path is too long");
    size_t length = strlen(root);
    while (length > 1 && root[length - 1] == '/') root[--length] = '\0';
    char *slash = strrchr(root, '/');
    gs_directory above;
    if (slash && slash > root) {
        *slash = '\0';
        GS_TRY(gs_directory_make_path(root, 0755));
    }
    GS_TRY(gs_directory_open(&above, !slash ? "." : slash == root ? "/" : root, 0));
    gs_status status = gs_directory_make_in(job, &above, slash ? slash + 1 : root, false);
    gs_directory_close(&above);
    return status;
}

gs_status gs_checkpoint_take_over(const gs_checkpoint_options *options) {
    const gs_fence mine = fence_of(options);
    gs_directory job;
    GS_TRY(gs_checkpoint_open_directory(&job, options->directory));
    gs_status status = gs_fence_raise_in(&job, &mine);
    gs_directory_close(&job);
    return status;
}

// Passes on what the fence has said.
static gs_status note_fence(gs_checkpoint_result *result, gs_status status) {
    result->is_fenced = status.code == GS_FAILED_PRECONDITION;
    if (result->is_fenced) result->cause = "fenced";
    return status;
}

// Who could not take over when it began, because the disk was full, does so now: else nothing keeps those before it out.
static gs_status hold_fence(gs_checkpoint_result *result, const gs_directory *job, const gs_checkpoint_options *options) {
    const gs_fence mine = fence_of(options);
    bool stands;
    GS_TRY(note_fence(result, gs_fence_check_in(job, &mine)));
    if (!mine.generation || !*mine.cluster) return gs_ok();
    GS_TRY(gs_fence_stands_in(&stands, job, &mine));
    return stands ? gs_ok() : note_fence(result, gs_fence_raise_in(job, &mine));
}

static gs_status check_space(const gs_directory *job, size_t bytes) {
    struct statvfs facts;
    if (fstatvfs(job->fd, &facts) < 0) return gs_error_from_errno(errno, "%s", job->path);
    double has = (double)facts.f_bavail * (double)facts.f_frsize;
    double wants = (double)bytes * FREE_SPACE_FACTOR;
    if (has >= wants) return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "%s: %.0f MiB free, a checkpoint wants %.0f MiB",
                    job->path, has / 1048576, wants / 1048576);
}

// Nothing in it tells one job from another: equal states make equal files.
static gs_status write_whole(gs_file_place place, const gs_state_snapshot *snapshot) {
    GS_FAILPOINT("checkpoint.write");
    size_t num_tensors = snapshot->num_tensors + snapshot->num_own;
    gs_safetensors_entry *entries = calloc(num_tensors, sizeof *entries);
    if (!entries) return gs_error(GS_RESOURCE_EXHAUSTED, "checkpoint: out of memory");
    for (size_t i = 0; i < num_tensors; i++) {
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
    gs_status status = gs_safetensors_write_at(place, entries, num_tensors, metadata,
                                               sizeof metadata / sizeof metadata[0]);
    free(entries);
    return status;
}

// The name's eight hex digits.
static const char *id_of(const gs_checkpoint_result *result) {
    return result->name + strlen(result->name) - 8;
}

// What the run was: all of a manifest that does not speak of files.
static gs_json *describe_run(const gs_state_snapshot *snapshot,
                             const gs_checkpoint_options *options,
                             const gs_checkpoint_result *result) {
    gs_json *out = gs_json_new_object();
    char digest[GS_DIGEST_TEXT_LEN];
    bool is_whole = result->request.num_parts == 1;
    gs_json_set_string(out, "format", "gradsync-checkpoint");
    gs_json_set_int(out, "format_version", is_whole ? 1 : 2);
    gs_json_set_string(out, "library_version", GRADSYNC_VERSION);
    gs_json_set_string(out, "id", id_of(result));
    gs_json_set_string(out, "job", options->job);
    if (options->cluster && *options->cluster) gs_json_set_string(out, "cluster", options->cluster);
    if (options->request.generation) gs_json_set_int(out, "generation", options->request.generation);
    gs_json_set_string(out, "reason", result->request.reason);
    if (is_whole) gs_json_set_time(out, "created_at", gs_wall_ms());
    gs_json_set_int(out, "world_size", result->request.world_size);
    gs_json_set_int(out, "num_shards", options->spec->logical_shards);
    gs_json_set_int(out, "seed", options->spec->model.seed);
    gs_json_set(out, "position", gs_manifest_position(&snapshot->position));
    gs_digest_format(digest, gs_state_snapshot_params_digest(snapshot));
    gs_json_set_string(out, "params_digest", digest);
    gs_digest_format(digest, result->state_digest);
    gs_json_set_string(out, "state_digest", digest);
    gs_json_set(out, "spec", gs_manifest_spec(options->spec));
    return out;
}

static gs_json *build_manifest(const gs_state_snapshot *snapshot, const gs_manifest_part *part,
                               const gs_checkpoint_options *options,
                               const gs_checkpoint_result *result) {
    gs_json *out = describe_run(snapshot, options, result), *parts = gs_json_new_array();
    gs_json_push(parts, gs_manifest_part_to_json(part));
    gs_json_set(out, "parts", parts);
    gs_json_set(out, "tensors", gs_manifest_tensors(snapshot, true));
    return out;
}

// A checkpoint's directory, in its job's: what is written, and read back, is in these two, whatever becomes of their names.
typedef struct opened {
    const gs_directory *job, *checkpoint;
    const char *name;  // of the checkpoint's
} opened;

// What is read back is what the check sums speak of: a bad write shows here, not at a resume.
static gs_status read_back(gs_manifest_part *part, gs_checkpoint_result *result, gs_file_place place,
                           const gs_state_snapshot *snapshot) {
    GS_TRY(gs_manifest_part_read(part, place));
    result->part_bytes = part->bytes;
    result->part_digest = part->digest;
    result->state_digest = gs_state_snapshot_digest(snapshot);
    return gs_ok();
}

static gs_status write_one(gs_checkpoint_result *result, const opened *in, const char *closing,
                           const gs_state_snapshot *snapshot, const gs_checkpoint_options *options) {
    gs_manifest_part part = {0};
    gs_fenced_file manifest = {0};
    const gs_fence mine = fence_of(options);
    const gs_file_place place = {in->checkpoint, result->part_name};
    gs_status status = write_whole(place, snapshot);
    if (!status.code) status = read_back(&part, result, place, snapshot);
    if (!status.code)
        status = note_fence(result, gs_fence_publish(build_manifest(snapshot, &part, options, result),
                                                     (gs_file_place){in->checkpoint, closing}, in->job, &mine, &manifest));
    gs_manifest_part_release(&part);
    result->manifest_digest = manifest.digest;
    result->bytes = result->part_bytes + manifest.bytes;
    return status;
}

static gs_status write_segments(const gs_checkpoint_result *result, gs_file_place place,
                                const gs_state_snapshot *snapshot, const gs_spill *spill,
                                const gs_segment *segments,
                                size_t num_segments) {
    GS_FAILPOINT("checkpoint.write");
    char part[16];
    snprintf(part, sizeof part, "%d", result->request.part);
    const gs_safetensors_metadata_entry metadata[] = {{"checkpoint", id_of(result)},
                                                      {"part", part}};
    return gs_part_file_write(place, snapshot, spill, segments, num_segments, metadata,
                              sizeof metadata / sizeof metadata[0]);
}

static gs_status write_record(gs_checkpoint_result *result, gs_file_place place, gs_json *record) {
    gs_digest digest;
    uint64_t record_bytes = 0;
    gs_status status = gs_sealed_json_write_at(record, place, &record_bytes, &digest);
    result->bytes = result->part_bytes + record_bytes;
    return status;
}

// The record comes last: where it is, its part is whole.
static gs_status write_part(gs_checkpoint_result *result, const opened *in, const char *closing,
                            const gs_state_snapshot *snapshot, const gs_checkpoint_options *options) {
    gs_manifest_part part = {0};
    gs_segment *segments;
    size_t num_segments;
    const gs_checkpoint_request *request = &result->request;
    const gs_file_place place = {in->checkpoint, result->part_name};
    GS_TRY(gs_part_file_cut(&segments, &num_segments, snapshot, request->part,
                            request->num_parts));
    gs_status status = write_segments(result, place, snapshot, options->spill, segments, num_segments);
    if (!status.code) status = read_back(&part, result, place, snapshot);
    if (!status.code) {
        gs_json *head = describe_run(snapshot, options, result);
        gs_json_set(head, "tensors", gs_manifest_tensors(snapshot, false));
        status = write_record(result, (gs_file_place){in->checkpoint, closing},
                              gs_part_record_make(head, gs_manifest_part_to_json(&part),
                                                  (size_t)request->part,
                                                  (size_t)request->num_parts, segments,
                                                  num_segments));
    }
    gs_manifest_part_release(&part);
    free(segments);
    return status;
}

static bool is_there(const gs_directory *directory, const char *name) {
    return faccessat(directory->fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

// Of the part and of what says that it is there: the manifest, or its record.
static gs_status write_files(gs_checkpoint_result *result, const opened *in, const gs_state_snapshot *snapshot,
                             const gs_checkpoint_options *options) {
    char record[GS_CHECKPOINT_FILE_LEN];
    bool is_whole = result->request.num_parts == 1;
    const char *closing = is_whole ? GS_CHECKPOINT_MANIFEST : record, *path = in->checkpoint->path;
    gs_checkpoint_record_name(record, (size_t)result->request.part);
    if (is_there(in->checkpoint, GS_CHECKPOINT_MANIFEST))
        return gs_error(GS_FAILED_PRECONDITION, "%s: is a checkpoint already", path);
    if (is_there(in->checkpoint, closing))
        return gs_error(GS_FAILED_PRECONDITION, "%s/%s: is there already", path, closing);
    gs_status status = is_whole ? write_one(result, in, closing, snapshot, options)
                                : write_part(result, in, closing, snapshot, options);
    // Under this name nobody would find what was written into a directory that has another now.
    if (!status.code) status = gs_directory_confirm(in->checkpoint, path, 2);
    if (status.code) {
        unlinkat(in->checkpoint->fd, closing, 0);
        unlinkat(in->checkpoint->fd, result->part_name, 0);
        unlinkat(in->job->fd, in->name, AT_REMOVEDIR);
    }
    return status;
}

static gs_status save_in(gs_checkpoint_result *result, const gs_directory *job, const gs_state_snapshot *snapshot,
                         const gs_checkpoint_options *options) {
    gs_directory checkpoint;
    GS_TRY(hold_fence(result, job, options));
    size_t num_parts = snapshot->is_part ? 1 : (size_t)result->request.num_parts;
    GS_TRY(check_space(job, snapshot->bytes / num_parts));
    // Another rank may have made it for its own part.
    bool is_whole = result->request.num_parts == 1;
    GS_TRY(gs_directory_make_in(&checkpoint, job, result->name, is_whole));
    const opened in = {job, &checkpoint, result->name};
    gs_status status = write_files(result, &in, snapshot, options);
    gs_directory_close(&checkpoint);
    return status;
}

static gs_status save(gs_checkpoint_result *result, const gs_state_snapshot *snapshot,
                      const gs_checkpoint_options *options) {
    gs_directory job;
    GS_TRY(gs_checkpoint_open_directory(&job, options->directory));
    gs_status status = save_in(result, &job, snapshot, options);
    gs_directory_close(&job);
    return status;
}

// The same on all ranks that write parts of one save, and of no other.
static uint32_t draw_id(const gs_position *position, const gs_checkpoint_options *options) {
    const gs_checkpoint_request *request = &options->request;
    if (request->num_parts == 1) return (uint32_t)gs_random_from_system();
    char text[200];
    int length = snprintf(text, sizeof text, "%.60s %.40s %u %lld", options->job, request->reason,
                          request->generation, (long long)position->step);
    return (uint32_t)gs_digest_fold(gs_digest_of(text, (size_t)length));
}

gs_checkpoint_result gs_checkpoint_announce(const gs_position *position,
                                            const gs_checkpoint_options *options) {
    gs_checkpoint_result result = {.step = position->step,
                                   .samples = position->consumed,
                                   .request = options->request,
                                   .cause = "io"};
    snprintf(result.name, sizeof result.name, "step-%010lld-%08x", (long long)position->step,
             draw_id(position, options));
    gs_checkpoint_part_name(result.part_name, (size_t)options->request.part);
    return result;
}

gs_status gs_checkpoint_save(gs_checkpoint_result *result, const gs_state_snapshot *snapshot,
                             const gs_checkpoint_options *options) {
    int64_t begin_ns = gs_now_ns();
    *result = gs_checkpoint_announce(&snapshot->position, options);
    result->status = gs_status_prefix(save(result, snapshot, options), "checkpoint of step %lld",
                                      (long long)snapshot->position.step);
    if (result->status.code == GS_RESOURCE_EXHAUSTED) result->cause = "space";
    result->seconds = gs_seconds_since(begin_ns);
    return result->status;
}
