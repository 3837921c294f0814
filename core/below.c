#include "core/below.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// For kernels and sandboxes without openat2: one component after the other, no links at all.
static int open_by_components(int root_fd, const char *name, int flags) {
    int dir_fd = root_fd;
    for (const char *rest = name;;) {
        size_t len = strcspn(rest, "/");
        char part[256];
        if (len == 0 || len >= sizeof part) {
            if (dir_fd != root_fd) close(dir_fd);
            errno = len ? ENAMETOOLONG : EXDEV;
            return -1;
        }
        memcpy(part, rest, len);
        part[len] = 0;
        bool last = rest[len] == 0;
        int fd = -1;
        if (strcmp(part, "..") == 0)
            errno = EXDEV;
        else
            fd = openat(dir_fd, part,
                        O_CLOEXEC | O_NOFOLLOW | (last ? flags : O_PATH | O_DIRECTORY));
        int kept_errno = errno;
        if (dir_fd != root_fd) close(dir_fd);
        errno = kept_errno;
        if (fd < 0 || last) return fd;
        dir_fd = fd;
        rest += len + 1;
    }
}

gs_status gs_open_below(int *fd, int root_fd, const char *name, int flags) {
    // O_NONBLOCK: a pipe that someone put there must not hang the open.
    int all_flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags;
    struct open_how how = {.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    how.flags = (unsigned)all_flags;
    *fd = (int)syscall(SYS_openat2, root_fd, name, &how, sizeof how);
    if (*fd < 0 && (errno == ENOSYS || errno == EPERM))
        *fd = open_by_components(root_fd, name, all_flags);
    if (*fd >= 0) return gs_ok();
    if (errno == EXDEV || errno == ELOOP)
        return gs_error(GS_PERMISSION_DENIED, "%s: leads out of its directory", name);
    return gs_error_from_errno(errno, "%s", name);
}
