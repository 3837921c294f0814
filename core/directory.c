#include "core/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Who may not read the parent of what is there had no hand in it; some file systems refuse to sync a directory, and have
// nothing better to offer.
static gs_status sync_parent(const char *path, bool was_there) {
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    size_t length = strlen(parent);
    while (length > 1 && parent[length - 1] == '/') parent[--length] = '\0';
    char *slash = strrchr(parent, '/');
    if (!slash) snprintf(parent, sizeof parent, ".");
    else slash[slash == parent] = '\0';
    int folder = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return was_there ? gs_ok() : gs_error_from_errno(errno, "%s", parent);
    bool failed = fsync(folder) != 0 && errno != EINVAL;
    gs_status status = failed ? gs_error_from_errno(errno, "sync %s", parent) : gs_ok();
    close(folder);
    return status;
}

gs_status gs_directory_make(const char *path, mode_t mode) {
    if (strlen(path) >= PATH_MAX) return gs_error(GS_INVALID_ARGUMENT, "directory: the path is too long");
    bool made = mkdir(path, mode) == 0;
    if (!made && errno != EEXIST) return gs_error_from_errno(errno, "%s", path);
    return sync_parent(path, !made);
}

gs_status gs_directory_make_path(const char *path, mode_t mode) {
    char at[PATH_MAX];
    if (snprintf(at, sizeof at, "%s", path) >= (int)sizeof at)
        return gs_error(GS_INVALID_ARGUMENT, "directory: the path is too long");
    for (char *slash = strchr(at + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(at, mode) == 0) GS_TRY(sync_parent(at, false));
        else if (errno != EEXIST) return gs_error_from_errno(errno, "%s", at);
        *slash = '/';
    }
    return gs_directory_make(path, mode);
}

gs_status gs_directory_refuse_links(const char *path, int levels) {
    char at[PATH_MAX];
    if (snprintf(at, sizeof at, "%s", path) >= (int)sizeof at)
        return gs_error(GS_INVALID_ARGUMENT, "directory: the path is too long");
    for (; levels > 0; levels--) {
        struct stat facts;
        size_t length = strlen(at);
        while (length > 1 && at[length - 1] == '/') at[--length] = '\0';
        if (lstat(at, &facts) == 0 && S_ISLNK(facts.st_mode))
            return gs_error(GS_PERMISSION_DENIED, "%s: is a symbolic link, and leads elsewhere", at);
        char *slash = strrchr(at, '/');
        if (!slash || slash == at) break;
        *slash = '\0';
    }
    return gs_ok();
}

// To be told apart from what is no directory for another reason.
static gs_status refusal_of(int error_number, int parent, const char *name, const char *path) {
    struct stat facts;
    bool is_known = (error_number == ELOOP || error_number == ENOTDIR) && fstatat(parent, name, &facts, AT_SYMLINK_NOFOLLOW) == 0;
    if (is_known && S_ISLNK(facts.st_mode))
        return gs_error(GS_PERMISSION_DENIED, "%s: is a symbolic link, and leads elsewhere", path);
    return gs_error_from_errno(error_number, "%s", path);
}

// `name` in `parent` is what out->path says.
static gs_status open_here(gs_directory *out, int parent, const char *name, int flags) {
    struct stat facts;
    out->fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
    // What may be walked through and not be read is as good for all but to list and to sync it.
    if (out->fd < 0 && errno == EACCES) out->fd = openat(parent, name, O_PATH | O_DIRECTORY | O_CLOEXEC | flags);
    if (out->fd < 0) return refusal_of(errno, parent, name, out->path);
    const mode_t shared = S_ISGID | S_IWGRP | S_IXGRP;
    out->is_shared = fstat(out->fd, &facts) == 0 && (facts.st_mode & shared) == shared;
    return gs_ok();
}

static gs_status name_in(gs_directory *out, const gs_directory *parent, const char *name) {
    if (!*name || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, ".."))
        return gs_error(GS_INVALID_ARGUMENT, "%s: \"%s\" is no name of a directory", parent->path, name);
    if (snprintf(out->path, sizeof out->path, "%s/%s", parent->path, name) < (int)sizeof out->path) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "directory: the path is too long");
}

gs_status gs_directory_open_in(gs_directory *out, const gs_directory *parent, const char *name) {
    GS_TRY(name_in(out, parent, name));
    return open_here(out, parent->fd, name, O_NOFOLLOW);
}

// A directory that was opened already is closed.
static gs_status descend(gs_directory *at, char *rest) {
    for (char *next = NULL, *name = strtok_r(rest, "/", &next); name; name = strtok_r(NULL, "/", &next)) {
        gs_directory below;
        gs_status status = gs_directory_open_in(&below, at, name);
        gs_directory_close(at);
        if (status.code) return status;
        *at = below;
    }
    return gs_ok();
}

// Where the last `levels` names of a path begin.
static char *last_names(char *path, int levels) {
    char *at = path + strlen(path);
    for (; levels > 0 && at > path; levels--) {
        while (at > path && at[-1] == '/') at--;
        while (at > path && at[-1] != '/') at--;
    }
    return at;
}

gs_status gs_directory_open(gs_directory *out, const char *path, int levels) {
    char whole[PATH_MAX];
    if (snprintf(whole, sizeof whole, "%s", path) >= (int)sizeof whole)
        return gs_error(GS_INVALID_ARGUMENT, "directory: the path is too long");
    char *rest = last_names(whole, levels);
    size_t length = (size_t)(rest - whole);
    while (length > 1 && whole[length - 1] == '/') length--;
    if (!length && *whole == '/') length = 1;  // as many names as it has are counted from its root
    snprintf(out->path, sizeof out->path, "%.*s", length ? (int)length : 1, length ? whole : ".");
    GS_TRY(open_here(out, AT_FDCWD, out->path, 0));
    return descend(out, rest);
}

// Set-group-ID is there by itself, and a filter of system calls may refuse to set it; then the umask has to leave the group its bits.
static void share(const gs_directory *made) {
    struct stat facts;
    if (fstat(made->fd, &facts) == 0 && (facts.st_mode & S_IRWXG) != S_IRWXG) fchmod(made->fd, (facts.st_mode & 07777) | S_IRWXG);
}

gs_status gs_directory_make_in(gs_directory *out, const gs_directory *parent, const char *name, bool is_new) {
    GS_TRY(name_in(out, parent, name));
    bool made = mkdirat(parent->fd, name, parent->is_shared ? 0770 : 0755) == 0;
    if (!made && (is_new || errno != EEXIST)) return gs_error_from_errno(errno, "%s", out->path);
    GS_TRY(open_here(out, parent->fd, name, O_NOFOLLOW));
    if (made && parent->is_shared) {
        share(out);
        out->is_shared = true;
    }
    gs_status status = gs_directory_sync(parent);
    // As sync_parent: who may not read the parent of what is there had no hand in it.
    if (!made && status.code == GS_PERMISSION_DENIED) return gs_ok();
    if (!status.code) return status;
    gs_directory_close(out);
    if (made) unlinkat(parent->fd, name, AT_REMOVEDIR);  // not where somebody has put something into it already
    return status;
}

void gs_directory_close(const gs_directory *directory) { close(directory->fd); }

gs_status gs_directory_confirm(const gs_directory *directory, const char *path, int levels) {
    gs_directory found;
    struct stat here, there;
    GS_TRY(gs_directory_open(&found, path, levels));
    bool is_same = fstat(directory->fd, &here) == 0 && fstat(found.fd, &there) == 0 && here.st_dev == there.st_dev &&
                   here.st_ino == there.st_ino;
    gs_directory_close(&found);
    if (is_same) return gs_ok();
    return gs_error(GS_PERMISSION_DENIED, "%s: another directory has taken its place meanwhile", path);
}

// Some file systems refuse to sync a directory, and have nothing better to offer.
gs_status gs_directory_sync(const gs_directory *directory) {
    if (fsync(directory->fd) == 0 || errno == EINVAL) return gs_ok();
    return gs_error_from_errno(errno == EBADF ? EACCES : errno, "sync %s", directory->path);
}

int gs_file_place_fd(gs_file_place place) { return place.directory ? place.directory->fd : AT_FDCWD; }

gs_status gs_file_place_share(gs_file_place place, int fd) {
    struct stat facts;
    if (!place.directory || !place.directory->is_shared) return gs_ok();
    if (fstat(fd, &facts) != 0) return gs_error_from_errno(errno, GS_PLACE, GS_PLACE_OF(place));
    if (facts.st_mode & S_IRGRP || fchmod(fd, (facts.st_mode & 0777) | S_IRGRP) == 0) return gs_ok();
    return gs_error_from_errno(errno, GS_PLACE ": for its group", GS_PLACE_OF(place));
}
