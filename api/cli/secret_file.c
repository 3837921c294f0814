#include "api/cli/secret_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

gs_status gs_cli_secret_file_begin(gs_cli_secret_file *file, const char *path) {
    *file = (gs_cli_secret_file){.path = path, .fd = -1};
    if (!path) return gs_ok();
    file->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file->fd < 0 && errno == EEXIST) return gs_error(GS_ALREADY_EXISTS, "--out: %s is there already", path);
    if (file->fd < 0) return gs_error_from_errno(errno, "--out: %s", path);
    return gs_ok();
}

static gs_status write_line(int fd, const char *text) {
    size_t bytes = strlen(text);
    for (size_t put = 0; put < bytes;) {
        ssize_t got = write(fd, text + put, bytes - put);
        if (got < 0 && errno != EINTR) return gs_error_from_errno(errno, "write");
        if (got > 0) put += (size_t)got;
    }
    if (write(fd, "\n", 1) != 1) return gs_error_from_errno(errno, "write");
    return fsync(fd) == 0 || errno == EINVAL ? gs_ok() : gs_error_from_errno(errno, "fsync");
}

gs_status gs_cli_secret_file_finish(gs_cli_secret_file *file, const char *text) {
    if (!file->path) {
        puts(text);
        return fflush(stdout) == 0 ? gs_ok() : gs_error_from_errno(errno, "standard output");
    }
    gs_status status = gs_status_prefix(write_line(file->fd, text), "--out: %s", file->path);
    if (status.code) {
        gs_cli_secret_file_abandon(file);
        return status;
    }
    close(file->fd);
    file->fd = -1;
    return gs_ok();
}

void gs_cli_secret_file_abandon(gs_cli_secret_file *file) {
    if (file->fd < 0) return;
    close(file->fd);
    file->fd = -1;
    unlink(file->path);
}
