#include "worker/data/data_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/below.h"

gs_status gs_data_file_open(gs_data_file *file, int root_fd, const char *name) {
    *file = (gs_data_file){0};
    int fd;
    GS_TRY(gs_open_below(&fd, root_fd, name, 0));

    gs_status status = gs_ok();
    struct stat info;
    if (fstat(fd, &info) != 0) {
        status = gs_error_from_errno(errno, "%s", name);
    } else if (!S_ISREG(info.st_mode)) {
        status = gs_error(GS_INVALID_ARGUMENT, "%s: not a regular file", name);
    } else {
        file->name = strdup(name);
        if (!file->name) status = gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", name);
    }
    if (status.code) {
        close(fd);
        return status;
    }
    file->fd = fd;
    file->bytes = (size_t)info.st_size;
    return gs_ok();
}

static gs_status say_cut_short(const gs_data_file *file, size_t at) {
    struct stat info;
    long long bytes = fstat(file->fd, &info) == 0 ? (long long)info.st_size : (long long)at;
    return gs_error(
        GS_DATA_LOSS,
        "%s: was cut short while the job reads it: %zu bytes when it was opened, %lld now",
        file->name, file->bytes, bytes);
}

gs_status gs_data_file_read(const gs_data_file *file, void *to, size_t begin, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(file->fd, (char *)to + done, bytes - done, (off_t)(begin + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return gs_error_from_errno(errno, "%s: read", file->name);
        if (got == 0) return say_cut_short(file, begin + done);
        done += (size_t)got;
    }
    return gs_ok();
}

void gs_data_file_close(gs_data_file *file) {
    if (!file || !file->name) return;
    close(file->fd);
    free(file->name);
    *file = (gs_data_file){0};
}
