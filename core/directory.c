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
