#include "rpc/json/sealed_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"

enum { LOCK_MS = 5000, LOCK_POLL_MS = 10 };

bool gs_file_mark_equal(const gs_file_mark *a, const gs_file_mark *b) {
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes && a->changed_s == b->changed_s &&
           a->changed_ns == b->changed_ns;
}

gs_file_mark gs_file_mark_of(const struct stat *facts) {
    return (gs_file_mark){facts->st_dev, facts->st_ino, facts->st_size, facts->st_ctim.tv_sec, facts->st_ctim.tv_nsec};
}

gs_status gs_file_mark_take(gs_file_mark *mark, const char *path) {
    struct stat facts;
    *mark = (gs_file_mark){0};
    if (stat(path, &facts) != 0) return gs_error_from_errno(errno, "%s", path);
    *mark = gs_file_mark_of(&facts);
    return gs_ok();
}

gs_status gs_file_check_guarded(const struct stat *facts, const char *path, unsigned forbidden) {
    if (facts->st_mode & forbidden)
        return gs_error(GS_FAILED_PRECONDITION, "%s: others than its owner may %s it; chmod 600 mends it", path,
                        forbidden & S_IROTH ? "read or change" : "change");
    // Root reads what is its users', and they may change that.
    if (facts->st_uid == geteuid() || facts->st_uid == 0 || geteuid() == 0) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION, "%s belongs to user %u, who may change it", path, (unsigned)facts->st_uid);
}

gs_status gs_file_lock(int *fd, const char *path) {
    char lock[PATH_MAX];
    snprintf(lock, sizeof lock, "%s.lock", path);
    *fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0) return gs_error_from_errno(errno, "%s", lock);
    gs_deadline deadline = gs_deadline_in_ms(LOCK_MS);
    gs_status status = gs_ok();
    while (!status.code && flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            status = gs_error_from_errno(errno, "%s", lock);
        else if (gs_deadline_passed(deadline))
            status = gs_error(GS_UNAVAILABLE, "%s: another process has held it for %d s", lock, LOCK_MS / 1000);
        else
            gs_sleep_ns(LOCK_POLL_MS * GS_NS_PER_MS);
    }
    if (status.code) close(*fd);
    return status;
}
