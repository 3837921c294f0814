#include "coordinator/store/files/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/directory.h"

#define READ_BYTES (1 << 20)
#define MOST_WALKS 8

// What an EIO is of: of bytes that are lost, or of a disk that is away for a moment. Who asks again finds out.
static gs_status error_of_read(int error_number, const char *path) {
    gs_status status = gs_error_from_errno(error_number, "verify: %s", path);
    if (error_number == EIO) status.code = GS_UNAVAILABLE;
    return status;
}

static gs_status digest_file(gs_digest *digest, int64_t *bytes, int file, const char *path) {
    void *buffer = malloc(READ_BYTES);
    gs_digest_stream *stream = gs_digest_stream_create();
    gs_status status = gs_ok();
    *bytes = 0;
    if (!buffer || !stream) status = gs_error(GS_RESOURCE_EXHAUSTED, "verify: out of memory");
    while (!status.code) {
        ssize_t got = read(file, buffer, READ_BYTES);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) status = error_of_read(errno, path);
        if (got <= 0) break;
        gs_digest_stream_add(stream, buffer, (size_t)got);
        *bytes += got;
    }
    if (!status.code) *digest = gs_digest_stream_value(stream);
    gs_digest_stream_destroy(stream);
    free(buffer);
    return status;
}

gs_status gs_file_verify(const char *path, int64_t bytes, const char *digest) {
    struct stat facts;
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return error_of_read(errno, path);
    if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        close(file);
        return gs_error(GS_DATA_LOSS, "%s: is no regular file", path);
    }
    gs_digest found = {0}, wanted = {0};
    int64_t found_bytes = 0;
    gs_status status = digest_file(&found, &found_bytes, file, path);
    close(file);
    if (status.code) return status;
    if (bytes >= 0 && found_bytes != bytes) {
        return gs_error(GS_DATA_LOSS, "%s: has %lld bytes, reported were %lld", path,
                        (long long)found_bytes, (long long)bytes);
    }
    if (!digest[0]) return gs_ok();
    if (!gs_digest_parse(&wanted, digest)) {
        return gs_error(GS_INVALID_ARGUMENT, "%s: \"%s\" is no digest", path, digest);
    }
    if (gs_digest_equal(found, wanted)) return gs_ok();
    char text[GS_DIGEST_TEXT_LEN];
    gs_digest_format(text, found);
    return gs_error(GS_DATA_LOSS, "%s: digest is %s, reported was %s", path, text, digest);
}

bool gs_file_is_gone(const char *path) {
    return access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

static _Thread_local const atomic_bool *ends_walk;  // a walk has no context

// What another has removed is as it should be.
static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *at) {
    (void)info;
    (void)type;
    (void)at;
    if (ends_walk && atomic_load(ends_walk)) {
        errno = ECANCELED;
        return -1;
    }
    return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

// A walk ends early where a directory that it has come to is gone, or has got something behind it: then there is another.
gs_status gs_file_remove_tree(const char *path) {
    for (int walks = 0; walks < MOST_WALKS; walks++) {
        int failed = nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0 ? 0 : errno;
        if (!failed || gs_file_is_gone(path)) return gs_ok();
        if (failed == ECANCELED) return gs_error(GS_CANCELLED, "remove %s: the process ends", path);
        if (failed != ENOENT && failed != ENOTEMPTY && failed != EEXIST) return gs_error_from_errno(failed, "remove %s", path);
    }
    return gs_error(GS_UNAVAILABLE, "remove %s: it changes all the time", path);
}

gs_status gs_file_remove_tree_unless(const char *path, const atomic_bool *stopping) {
    ends_walk = stopping;
    gs_status status = gs_file_remove_tree(path);
    ends_walk = NULL;
    return status;
}

static gs_status sync_directory(const char *path) {
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return gs_error_from_errno(errno, "open %s", path);
    gs_status status = fsync(directory) == 0 ? gs_ok() : gs_error_from_errno(errno, "sync %s", path);
    close(directory);
    return status;
}

gs_status gs_file_remove_checkpoint(const char *directory) {
    char manifest[2300];
    GS_TRY(gs_directory_refuse_links(directory, 2));
    snprintf(manifest, sizeof manifest, "%s/MANIFEST.json", directory);
    if (unlink(manifest) != 0 && errno != ENOENT) {
        return gs_error_from_errno(errno, "remove %s", manifest);
    }
    if (gs_file_is_gone(directory)) return gs_ok();
    GS_TRY(sync_directory(directory));
    return gs_file_remove_tree(directory);
}

gs_status gs_file_make_directory(const char *path) {
    if (mkdir(path, 0700) == 0 || errno == EEXIST) return gs_ok();
    return gs_error_from_errno(errno, "make directory %s", path);
}

bool gs_file_name_plain(const char *name) {
    size_t span = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return span > 0 && span < 200 && !name[span] && name[0] != '.';
}
