#include "coordinator/store/files/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/directory.h"

#define READ_BYTES (1 << 20)
#define MOST_WALKS 8
#define MOST_DEPTH 100  // directories that are open at a time; what is deeper no save has made

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

// By descriptors from the root on: whoever writes there is not whoever reads here.
static gs_status open_to_read(int *file, const char *path, int levels) {
    char above[PATH_MAX];
    const char *slash = strrchr(path, '/');
    gs_directory directory;
    if (!slash || slash == path || (size_t)(slash - path) >= sizeof above)
        return gs_error(GS_INVALID_ARGUMENT, "%s: is no path of a file to verify", path);
    snprintf(above, sizeof above, "%.*s", (int)(slash - path), path);
    gs_status status = gs_status_prefix(gs_directory_open(&directory, above, levels), "verify");
    if (status.code == GS_DATA_LOSS) status.code = GS_UNAVAILABLE;  // as error_of_read
    if (status.code) return status;
    *file = openat(directory.fd, slash + 1, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (*file < 0) status = error_of_read(errno, path);
    gs_directory_close(&directory);
    return status;
}

gs_status gs_file_verify(const char *path, int levels, int64_t bytes, const char *digest) {
    struct stat facts;
    int file;
    GS_TRY(open_to_read(&file, path, levels));
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

// The directory that holds the last of `levels` names of a path, by descriptors: no link in the place of one of these names is
// followed, also not one that somebody puts there meanwhile. What is above them is the operator's word.
static gs_status open_parent(int *parent, char name[NAME_MAX + 1], const char *path, int levels) {
    char above[PATH_MAX];
    const char *rest = path + strlen(path);
    for (int i = 0; i < levels; i++)
        while (rest > path && *--rest != '/') continue;
    if (rest == path || strlen(path) >= sizeof above) return gs_error(GS_INVALID_ARGUMENT, "%s: is no path to remove", path);
    snprintf(above, sizeof above, "%.*s", (int)(rest - path), path);
    int at = open(above, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (at >= 0) {
        size_t bytes = strcspn(++rest, "/");
        if (bytes == 0 || bytes > NAME_MAX) {
            close(at);
            return gs_error(GS_INVALID_ARGUMENT, "%s: is no path to remove", path);
        }
        snprintf(name, NAME_MAX + 1, "%.*s", (int)bytes, rest);
        rest += bytes;
        if (!*rest) break;
        int next = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), failed = errno;
        close(at);
        errno = failed;
        at = next;
    }
    *parent = at;
    if (at >= 0) return gs_ok();
    if (errno == ELOOP || errno == ENOTDIR) return gs_error(GS_PERMISSION_DENIED, "%s: a name in it is a link, or no directory", path);
    return gs_error_from_errno(errno, "remove %s", path);
}

// One that is of nothing, or of what another has removed, is as it should be. Returns what failed, of errno.
static int remove_entry(int parent, const char *name, const atomic_bool *stopping, int depth);

static int remove_entries(DIR *list, const atomic_bool *stopping, int depth) {
    for (const struct dirent *entry; (errno = 0, entry = readdir(list));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        int failed = remove_entry(dirfd(list), entry->d_name, stopping, depth + 1);
        if (failed) return failed;
    }
    return errno;
}

static int remove_entry(int parent, const char *name, const atomic_bool *stopping, int depth) {
    if (stopping && atomic_load(stopping)) return ECANCELED;
    if (depth > MOST_DEPTH) return ENAMETOOLONG;
    int directory = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    // A link, a file, a pipe: the name alone.
    if (directory < 0 && (errno == ENOTDIR || errno == ELOOP))
        return unlinkat(parent, name, 0) == 0 || errno == ENOENT ? 0 : errno;
    if (directory < 0) return errno == ENOENT ? 0 : errno;
    DIR *list = fdopendir(directory);
    if (!list) {
        int failed = errno;
        close(directory);
        return failed;
    }
    int failed = remove_entries(list, stopping, depth);
    closedir(list);
    if (failed) return failed;
    return unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : errno;
}

// Somebody puts things there, or exchanges them, while they are removed: then the walk begins anew.
static bool has_changed(int failed) {
    return failed == ENOTEMPTY || failed == EEXIST || failed == EISDIR || failed == ENOTDIR;
}

static gs_status remove_all(int parent, const char *name, const char *path, const atomic_bool *stopping) {
    for (int walks = 0; walks < MOST_WALKS; walks++) {
        int failed = remove_entry(parent, name, stopping, 0);
        if (!failed) return gs_ok();
        if (failed == ECANCELED) return gs_error(GS_CANCELLED, "remove %s: the process ends", path);
        if (!has_changed(failed)) return gs_error_from_errno(failed, "remove %s", path);
    }
    return gs_error(GS_UNAVAILABLE, "remove %s: it changes all the time", path);
}

static gs_status remove_tree(const char *path, int levels, const atomic_bool *stopping) {
    int parent;
    char name[NAME_MAX + 1];
    gs_status status = open_parent(&parent, name, path, levels);
    if (status.code) return status.code == GS_NOT_FOUND ? gs_ok() : status;
    status = remove_all(parent, name, path, stopping);
    close(parent);
    return status;
}

gs_status gs_file_remove_tree(const char *path, int levels) { return remove_tree(path, levels, NULL); }

gs_status gs_file_remove_tree_unless(const char *path, const atomic_bool *stopping) { return remove_tree(path, 1, stopping); }

static gs_status remove_manifest(int parent, const char *name, const char *path) {
    int directory = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0 && (errno == ELOOP || errno == ENOTDIR))
        return gs_error(GS_PERMISSION_DENIED, "%s: is a link, or no directory", path);
    if (directory < 0) return gs_error_from_errno(errno, "remove %s", path);
    gs_status status = gs_ok();
    if (unlinkat(directory, "MANIFEST.json", 0) != 0 && errno != ENOENT)
        status = gs_error_from_errno(errno, "remove %s/MANIFEST.json", path);
    if (!status.code && fsync(directory) != 0) status = gs_error_from_errno(errno, "sync %s", path);
    close(directory);
    return status;
}

gs_status gs_file_remove_checkpoint(const char *directory) {
    int parent;
    char name[NAME_MAX + 1];
    GS_TRY(open_parent(&parent, name, directory, 2));
    gs_status status = remove_manifest(parent, name, directory);
    if (!status.code) status = remove_all(parent, name, directory, NULL);
    close(parent);
    return status;
}

gs_status gs_file_make_directory(const char *path) {
    if (mkdir(path, 0700) == 0 || errno == EEXIST) return gs_ok();
    return gs_error_from_errno(errno, "make directory %s", path);
}

bool gs_file_name_plain(const char *name) {
    size_t span = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return span > 0 && span < 200 && !name[span] && name[0] != '.';
}
