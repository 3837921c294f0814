#include "coordinator/store/files/root_lock.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/directory.h"
#include "core/log.h"

#define ENDS_NS GS_NS_PER_SEC  // a process that was killed
#define TRY_NS (20 * GS_NS_PER_MS)
#define HOLDER_LEN 160

static void name_of(char name[64], const char *cluster) { snprintf(name, 64, "COORDINATOR-%.40s.lock", cluster); }

// What somebody else may have written.
static void read_holder(char holder[HOLDER_LEN], int file) {
    ssize_t got = pread(file, holder, HOLDER_LEN - 1, 0);
    holder[got > 0 ? got : 0] = '\0';
    holder[strcspn(holder, "\n")] = '\0';
    for (char *at = holder; *at; at++)
        if (!isprint((unsigned char)*at)) *at = '?';
}

// For people alone: where a full disk has no place for it, it is a lock all the same.
static void write_holder(int file, const char *data_dir) {
    char holder[HOLDER_LEN], host[64] = "";
    gethostname(host, sizeof host - 1);
    int length = snprintf(holder, sizeof holder, "%.80s on %.40s, pid %ld\n", data_dir, host, (long)getpid());
    if (ftruncate(file, 0) == 0 && pwrite(file, holder, (size_t)length, 0) == length) return;
    gs_log_warn("a lock does not say who holds it", "data_dir=%s", data_dir);
}

// Only its owner could make a file of ours: one that others made they could hold, too, and keep us out by it.
static gs_status open_lock(int *file, const gs_directory *root, const char *name) {
    struct stat info;
    *file = openat(root->fd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    if (*file < 0) return gs_error_from_errno(errno, "%s", name);
    if (fstat(*file, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid()) return gs_ok();
    close(*file);
    return gs_error(GS_UNIMPLEMENTED, "%s is not a file of this user", name);
}

static gs_status lock(int file, const char *directory, const char *cluster) {
    char holder[HOLDER_LEN];
    gs_deadline deadline = gs_deadline_in_ns(ENDS_NS);
    while (flock(file, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) return gs_error(GS_UNIMPLEMENTED, "no locks in %.200s: %s", directory, strerror(errno));
        if (!gs_deadline_passed(deadline)) {
            gs_sleep_ns(TRY_NS);
            continue;
        }
        read_holder(holder, file);
        return gs_error(GS_ALREADY_EXISTS,
                        "another coordinator of cluster %s commands over the checkpoints in %.120s (data directory %s): one of the two data "
                        "directories is a copy of the other",
                        cluster, directory, holder[0] ? holder : "unknown");
    }
    return gs_ok();
}

gs_status gs_root_lock_take(int *lock_fd, const char *directory, const char *cluster, const char *data_dir) {
    gs_directory root;
    char name[64];
    int file;
    name_of(name, cluster);
    GS_TRY(gs_directory_open(&root, directory, 0));
    gs_status status = open_lock(&file, &root, name);
    gs_directory_close(&root);
    GS_TRY(status);
    status = lock(file, directory, cluster);
    if (status.code) {
        close(file);
        return status;
    }
    write_holder(file, data_dir);
    *lock_fd = file;
    return gs_ok();
}

bool gs_root_lock_holds(int lock_fd, const char *directory, const char *cluster) {
    char path[1200], name[64];
    struct stat held, there;
    name_of(name, cluster);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return lock_fd >= 0 && fstat(lock_fd, &held) == 0 && lstat(path, &there) == 0 && held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}
