#include "rpc/checkpoint/checkpoint_commit.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/directory.h"
#include "core/failpoint.h"
#include "rpc/checkpoint/checkpoint_layout.h"
#include "rpc/checkpoint/fence.h"
#include "rpc/checkpoint/part_record.h"
#include "rpc/json/sealed_json.h"

static gs_status read_record(gs_json **record, const gs_directory *directory, size_t part) {
    char name[GS_CHECKPOINT_FILE_LEN];
    gs_checkpoint_record_name(name, part);
    return gs_sealed_json_read_at(record, (gs_file_place){directory, name});
}

// Sizes are looked at once more: a record speaks of what its rank wrote, and this is what is there.
static gs_status check_sizes(uint64_t *bytes, const gs_json *manifest, const gs_directory *directory) {
    const gs_json *parts = gs_json_get(manifest, "parts");
    for (size_t i = 0; i < gs_json_count(parts); i++) {
        struct stat facts;
        const gs_json *part = gs_json_at(parts, i);
        const char *name = gs_json_string_or(part, "name", "");
        if (!*name || strchr(name, '/')) return gs_error(GS_DATA_LOSS, "%s: part %zu has no name of a file", directory->path, i);
        if (fstatat(directory->fd, name, &facts, AT_SYMLINK_NOFOLLOW) != 0)
            return gs_error_from_errno(errno, "%s/%s", directory->path, name);
        int64_t wanted = gs_json_int_or(part, "bytes", -1);
        if (!S_ISREG(facts.st_mode) || facts.st_size != wanted)
            return gs_error(GS_DATA_LOSS, "%s/%s: has %lld bytes, recorded were %lld", directory->path, name,
                            (long long)facts.st_size, (long long)wanted);
        *bytes += (uint64_t)wanted;
    }
    return gs_ok();
}

static bool is_there(const gs_directory *directory, const char *name) {
    return faccessat(directory->fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

// The first goes last: while it is there, others may be.
static void remove_records(const gs_directory *directory, size_t num_parts) {
    for (size_t i = num_parts; i-- > 0;) {
        char name[GS_CHECKPOINT_FILE_LEN];
        gs_checkpoint_record_name(name, i);
        unlinkat(directory->fd, name, 0);
    }
}

// Of one who ended between the manifest and this.
static void remove_left_records(const gs_directory *directory, size_t num_parts) {
    char name[GS_CHECKPOINT_FILE_LEN];
    gs_checkpoint_record_name(name, 0);
    if (is_there(directory, name)) remove_records(directory, num_parts);
}

static gs_status read_records(gs_json **records, const gs_directory *directory, size_t num_parts) {
    for (size_t i = 1; i < num_parts; i++) GS_TRY(read_record(&records[i], directory, i));
    return gs_ok();
}

// Takes the first record.
static gs_status join_records(gs_json **manifest, size_t *num_parts, gs_json *first,
                              const gs_directory *directory) {
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

// A disk that gives an error now says nothing of the parts.
static gs_status pass_disk(gs_status said) {
    if (said.code == GS_DATA_LOSS) said.code = GS_UNAVAILABLE;
    return said;
}

// A checkpoint's directory, in its job's.
typedef struct opened {
    gs_directory job, checkpoint;
} opened;

static gs_file_place manifest_in(const opened *in) { return (gs_file_place){&in->checkpoint, GS_CHECKPOINT_MANIFEST}; }

static gs_status write_manifest(const gs_json *manifest, uint64_t *bytes, const opened *in) {
    gs_fenced_file file = {0};
    const gs_fence writer = gs_fence_of(manifest);
    GS_TRY(pass_fence(gs_fence_check_in(&in->job, &writer)));
    GS_TRY(check_sizes(bytes, manifest, &in->checkpoint));
    GS_FAILPOINT("checkpoint.commit");
    GS_TRY(pass_fence(pass_disk(gs_fence_publish(gs_json_copy(manifest), manifest_in(in), &in->job, &writer, &file))));
    *bytes += file.bytes;
    return gs_ok();
}

static gs_status make_manifest(gs_json **manifest, uint64_t *bytes, const opened *in) {
    gs_json *first;
    size_t num_parts;
    GS_TRY(read_record(&first, &in->checkpoint, 0));
    GS_TRY(join_records(manifest, &num_parts, first, &in->checkpoint));
    gs_status status = write_manifest(*manifest, bytes, in);
    if (!status.code) {
        remove_records(&in->checkpoint, num_parts);
        return status;
    }
    gs_json_release(*manifest);
    *manifest = NULL;
    return status;
}

static gs_status read_manifest(gs_json **manifest, uint64_t *bytes, const opened *in) {
    struct stat facts;
    gs_checkpoint_layout layout;
    const gs_directory *directory = &in->checkpoint;
    // Whoever gave it its name may have failed, or ended, before that was on the disk; the records go for it.
    gs_status status = pass_disk(gs_directory_sync(directory));
    if (status.code && status.code != GS_PERMISSION_DENIED) return status;  // who may not read it removes nothing from it either
    GS_TRY(gs_sealed_json_read_at(manifest, manifest_in(in)));
    status = gs_checkpoint_layout_parse(&layout, *manifest);
    if (!status.code) status = check_sizes(bytes, *manifest, directory);
    if (!status.code && fstatat(directory->fd, GS_CHECKPOINT_MANIFEST, &facts, AT_SYMLINK_NOFOLLOW) == 0)
        *bytes += (uint64_t)facts.st_size;
    if (!status.code) remove_left_records(directory, layout.num_parts);
    gs_checkpoint_layout_release(&layout);
    if (!status.code) return status;
    gs_json_release(*manifest);
    *manifest = NULL;
    return status;
}

static gs_status commit(gs_json **manifest, uint64_t *bytes, const opened *in) {
    gs_status status = gs_ok();
    if (!is_there(&in->checkpoint, GS_CHECKPOINT_MANIFEST)) status = make_manifest(manifest, bytes, in);
    if (*manifest) return status;
    // Somebody else was faster, and the records are gone.
    if (status.code && !is_there(&in->checkpoint, GS_CHECKPOINT_MANIFEST)) return status;
    *bytes = 0;
    return read_manifest(manifest, bytes, in);
}

// A link, or a file, in the place of a directory is nothing that will be right later.
static gs_status pass_link(gs_status said, const char *path) {
    struct stat facts;
    if (said.code && lstat(path, &facts) == 0 && !S_ISDIR(facts.st_mode)) said.code = GS_DATA_LOSS;
    return said;
}

gs_status gs_checkpoint_commit(gs_json **manifest, uint64_t *bytes, const char *path) {
    opened in;
    char parent[PATH_MAX];
    *manifest = NULL;
    *bytes = 0;
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path) return gs_error(GS_INVALID_ARGUMENT, "%s: is no checkpoint of a job", path);
    if (snprintf(parent, sizeof parent, "%.*s", (int)(slash - path), path) >= (int)sizeof parent)
        return gs_error(GS_INVALID_ARGUMENT, "checkpoint directory: the path is too long");
    GS_TRY(pass_link(gs_directory_open(&in.job, parent, 1), parent));
    gs_status status = pass_link(gs_directory_open_in(&in.checkpoint, &in.job, slash + 1), path);
    if (!status.code) {
        status = commit(manifest, bytes, &in);
        gs_directory_close(&in.checkpoint);
    }
    gs_directory_close(&in.job);
    return status;
}
