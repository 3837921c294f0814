#include "rpc/checkpoint/checkpoint_commit.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/failpoint.h"
#include "rpc/checkpoint/checkpoint_layout.h"
#include "rpc/checkpoint/fence.h"
#include "rpc/checkpoint/part_record.h"
#include "rpc/json/sealed_json.h"

static gs_status path_of(char path[PATH_MAX], const char *directory, const char *name) {
    if (snprintf(path, PATH_MAX, "%s/%s", directory, name) < PATH_MAX) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "checkpoint directory: the path is too long");
}

static gs_status read_record(gs_json **record, const char *directory, size_t part) {
    char name[GS_CHECKPOINT_FILE_LEN], path[PATH_MAX];
    gs_checkpoint_record_name(name, part);
    GS_TRY(path_of(path, directory, name));
    return gs_sealed_json_read(record, path);
}

// Sizes are looked at once more: a record speaks of what its rank wrote, and this is what is there.
static gs_status check_sizes(uint64_t *bytes, const gs_json *manifest, const char *directory) {
    const gs_json *parts = gs_json_get(manifest, "parts");
    for (size_t i = 0; i < gs_json_count(parts); i++) {
        char path[PATH_MAX];
        struct stat facts;
        const gs_json *part = gs_json_at(parts, i);
        GS_TRY(path_of(path, directory, gs_json_string_or(part, "name", "")));
        if (lstat(path, &facts) != 0) return gs_error_from_errno(errno, "%s", path);
        int64_t wanted = gs_json_int_or(part, "bytes", -1);
        if (!S_ISREG(facts.st_mode) || facts.st_size != wanted)
            return gs_error(GS_DATA_LOSS, "%s: has %lld bytes, recorded were %lld", path,
                            (long long)facts.st_size, (long long)wanted);
        *bytes += (uint64_t)wanted;
    }
    return gs_ok();
}

// The first goes last: while it is there, others may be.
static void remove_records(const char *directory, size_t num_parts) {
    for (size_t i = num_parts; i-- > 0;) {
        char name[GS_CHECKPOINT_FILE_LEN], path[PATH_MAX];
        gs_checkpoint_record_name(name, i);
        if (!path_of(path, directory, name).code) unlink(path);
    }
}

// Of one who ended between the manifest and this.
static void remove_left_records(const char *directory, size_t num_parts) {
    char name[GS_CHECKPOINT_FILE_LEN], path[PATH_MAX];
    gs_checkpoint_record_name(name, 0);
    if (!path_of(path, directory, name).code && access(path, F_OK) == 0)
        remove_records(directory, num_parts);
}

static gs_status check_directory(const char *path) {
    struct stat facts;
    if (lstat(path, &facts) != 0) return gs_error_from_errno(errno, "%s", path);
    if (S_ISDIR(facts.st_mode)) return gs_ok();
    return gs_error(GS_DATA_LOSS, "%s: is no directory", path);
}

static gs_status read_records(gs_json **records, const char *directory, size_t num_parts) {
    for (size_t i = 1; i < num_parts; i++) GS_TRY(read_record(&records[i], directory, i));
    return gs_ok();
}

// Takes the first record.
static gs_status join_records(gs_json **manifest, size_t *num_parts, gs_json *first,
                              const char *directory) {
    *num_parts = gs_part_record_num_parts(first);
    gs_json **records = calloc(*num_parts + 1, sizeof *records);
    gs_status status = gs_error(GS_DATA_LOSS, "part 0: its record is none");
    if (!records) status = gs_error(GS_RESOURCE_EXHAUSTED, "manifest: out of memory");
    if (records && *num_parts) {
        records[0] = gs_json_retain(first);
        status = read_records(records, directory, *num_parts);
        if (!status.code) status = gs_part_records_join(manifest, records, *num_parts);
    }
    for (size_t i = 0; records && i < *num_parts; i++) gs_json_release(records[i]);
    free(records);
    gs_json_release(first);
    return status;
}

// Of ranks whose place others have taken, it would be the job's newest.
static gs_status pass_fence(gs_status said) {
    if (said.code == GS_FAILED_PRECONDITION) said.code = GS_DATA_LOSS;
    return said;
}

static gs_status write_manifest(const gs_json *manifest, uint64_t *bytes, const char *path, const char *directory) {
    char parent[PATH_MAX];
    gs_fenced_file file = {0};
    const gs_fence writer = gs_fence_of(manifest);
    GS_TRY(path_of(parent, directory, ".."));
    GS_TRY(pass_fence(gs_fence_check(parent, &writer)));
    GS_TRY(check_sizes(bytes, manifest, directory));
    GS_FAILPOINT("checkpoint.commit");
    GS_TRY(pass_fence(gs_fence_publish(gs_json_copy(manifest), path, parent, &writer, &file)));
    *bytes += file.bytes;
    return gs_ok();
}

static gs_status make_manifest(gs_json **manifest, uint64_t *bytes, const char *directory,
                               const char *path) {
    gs_json *first;
    size_t num_parts;
    GS_TRY(read_record(&first, directory, 0));
    GS_TRY(join_records(manifest, &num_parts, first, directory));
    gs_status status = write_manifest(*manifest, bytes, path, directory);
    if (!status.code) {
        remove_records(directory, num_parts);
        return status;
    }
    gs_json_release(*manifest);
    *manifest = NULL;
    return status;
}

static gs_status read_manifest(gs_json **manifest, uint64_t *bytes, const char *directory,
                               const char *path) {
    struct stat facts;
    gs_checkpoint_layout layout;
    GS_TRY(gs_sealed_json_read(manifest, path));
    gs_status status = gs_checkpoint_layout_parse(&layout, *manifest);
    if (!status.code) status = check_sizes(bytes, *manifest, directory);
    if (!status.code && stat(path, &facts) == 0) *bytes += (uint64_t)facts.st_size;
    if (!status.code) remove_left_records(directory, layout.num_parts);
    gs_checkpoint_layout_release(&layout);
    if (!status.code) return status;
    gs_json_release(*manifest);
    *manifest = NULL;
    return status;
}

gs_status gs_checkpoint_commit(gs_json **manifest, uint64_t *bytes, const char *directory) {
    char path[PATH_MAX];
    *manifest = NULL;
    *bytes = 0;
    GS_TRY(check_directory(directory));
    GS_TRY(path_of(path, directory, GS_CHECKPOINT_MANIFEST));
    gs_status status = gs_ok();
    if (access(path, F_OK) != 0) status = make_manifest(manifest, bytes, directory, path);
    if (*manifest) return status;
    // Somebody else was faster, and the records are gone.
    if (status.code && access(path, F_OK) != 0) return status;
    *bytes = 0;
    return read_manifest(manifest, bytes, directory, path);
}
