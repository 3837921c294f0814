#include "worker/checkpoint/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/failpoint.h"
#include "core/random.h"

struct gs_spill {
    int fd;
    size_t bytes;
};

// A full disk by its other names too.
static gs_status disk_error(int error_number, const gs_directory *directory, const char *what) {
    if (error_number == EDQUOT || error_number == EFBIG)
        return gs_error(GS_RESOURCE_EXHAUSTED, "%s: %s: %s", directory->path, what, strerror(error_number));
    return gs_error_from_errno(error_number, "%s: %s", directory->path, what);
}

// Not every file system makes files without a name: one that loses it at once is as good.
static gs_status open_nameless(int *fd, const gs_directory *directory) {
    char name[40];
    *fd = openat(directory->fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd >= 0) return gs_ok();
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return disk_error(errno, directory, "create");
    snprintf(name, sizeof name, "spill.tmp.%016llx", (unsigned long long)gs_random_from_system());
    *fd = openat(directory->fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (*fd < 0) return disk_error(errno, directory, "create");
    if (unlinkat(directory->fd, name, 0) == 0) return gs_ok();
    gs_status status = disk_error(errno, directory, "unlink");
    close(*fd);
    return status;
}

// The kernel's own call: the C library's writes every block where a file system cannot claim room, while all ranks wait.
static int claim_room(int fd, size_t bytes) {
    while (bytes && fallocate(fd, 0, 0, (off_t)bytes) != 0) {
        if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return 0;  // what is missing is told by a write
        if (errno != EINTR) return errno;
    }
    return 0;
}

gs_status gs_spill_open(gs_spill **out, const gs_directory *directory, size_t bytes) {
    gs_spill *spill = calloc(1, sizeof *spill);
    if (!spill) return gs_error(GS_RESOURCE_EXHAUSTED, "spill: out of memory");
    spill->bytes = bytes;
    gs_status status = open_nameless(&spill->fd, directory);
    if (status.code) {
        free(spill);
        return status;
    }
    int error_number = claim_room(spill->fd, bytes);
    if (error_number) {
        gs_spill_close(spill);
        return disk_error(error_number, directory, "allocate");
    }
    *out = spill;
    return gs_ok();
}

void gs_spill_close(gs_spill *spill) {
    if (!spill) return;
    close(spill->fd);
    free(spill);
}

static gs_status check_range(const gs_spill *spill, size_t first, size_t bytes) {
    if (first <= spill->bytes && bytes <= spill->bytes - first) return gs_ok();
    return gs_error(GS_INTERNAL, "spill: bytes %zu + %zu of %zu", first, bytes, spill->bytes);
}

gs_status gs_spill_write(gs_spill *spill, size_t first, const void *data, size_t bytes) {
    const char *from = data;
    GS_TRY(check_range(spill, first, bytes));
    GS_FAILPOINT("spill.write");
    while (bytes) {
        ssize_t written = pwrite(spill->fd, from, bytes, (off_t)first);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return gs_error_from_errno(errno, "spill: write");
        from += written;
        first += (size_t)written;
        bytes -= (size_t)written;
    }
    return gs_ok();
}

gs_status gs_spill_read(const gs_spill *spill, size_t first, void *to, size_t bytes) {
    char *at = to;
    GS_TRY(check_range(spill, first, bytes));
    while (bytes) {
        ssize_t got = pread(spill->fd, at, bytes, (off_t)first);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return gs_error_from_errno(errno, "spill: read");
        if (got == 0) return gs_error(GS_DATA_LOSS, "spill: %zu bytes are not there", bytes);
        at += got;
        first += (size_t)got;
        bytes -= (size_t)got;
    }
    return gs_ok();
}
