#include "coordinator/store/data_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/directory.h"

gs_status gs_data_dir_default(char *path, size_t path_bytes, bool is_root) {
    const char *service = getenv("STATE_DIRECTORY"), *state = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    int bytes;
    if (service && *service == '/')
        bytes = snprintf(path, path_bytes, "%.*s", (int)strcspn(service, ":"), service);
    else if (is_root)
        bytes = snprintf(path, path_bytes, "/var/lib/gradsync");
    else if (state && *state == '/')
        bytes = snprintf(path, path_bytes, "%s/gradsync", state);
    else if (home && *home == '/')
        bytes = snprintf(path, path_bytes, "%s/.local/state/gradsync", home);
    else
        return gs_error(GS_FAILED_PRECONDITION, "data_dir: there is no HOME to put it into; give one");
    if ((size_t)bytes < path_bytes) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "data_dir: the path of the default is too long; give one");
}

static gs_status make_path(const char *path) {
    size_t length = strlen(path);
    if (length == 0 || length >= 1000) {
        return gs_error(GS_INVALID_ARGUMENT, "data_dir: must be 1 to 999 characters");
    }
    return gs_status_prefix(gs_directory_make_path(path, 0700), "data_dir");
}

gs_status gs_data_dir_lock(int *lock_fd, const char *path) {
    GS_TRY(make_path(path));
    char lock_path[1200];
    snprintf(lock_path, sizeof lock_path, "%s/coordinator.lock", path);
    int file = open(lock_path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) return gs_error_from_errno(errno, "data_dir: %s", lock_path);
    char holder[32] = "";
    if (flock(file, LOCK_EX | LOCK_NB) != 0) {
        int reason = errno;
        gs_status status = gs_error_from_errno(reason, "data_dir: %s", lock_path);
        if (reason == EWOULDBLOCK) {
            ssize_t got = pread(file, holder, sizeof holder - 1, 0);
            holder[strcspn(got > 0 ? holder : "", "\n")] = '\0';
            status = gs_error(GS_FAILED_PRECONDITION,
                              "data directory %s is in use by another coordinator (pid %s, %s)", path,
                              holder[0] ? holder : "unknown", lock_path);
        }
        close(file);
        return status;
    }
    int length = snprintf(holder, sizeof holder, "%ld\n", (long)getpid());
    if (ftruncate(file, 0) != 0 || pwrite(file, holder, (size_t)length, 0) != length) {
        gs_status status = gs_error_from_errno(errno, "data_dir: %s", lock_path);
        close(file);
        return status;
    }
    *lock_fd = file;
    return gs_ok();
}
