#include "coordinator/store/curve_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/store/files/files.h"
#include "core/failpoint.h"

#define MAX_PATH_BYTES 1300
// Versions before wrote without an end: of such a file the newest part counts.
#define MAX_READ_BYTES (8 * GS_CURVE_FILE_BYTES)

static void path_of(char *path, const char *directory) {
    snprintf(path, MAX_PATH_BYTES, "%s/metrics.jsonl", directory);
}

// Where the last whole line ends.
static off_t end_of_lines(int file, off_t size) {
    char last = '\n';
    while (size > 0 && pread(file, &last, 1, size - 1) == 1 && last != '\n') size--;
    return size;
}

static gs_status write_all(int file, const char *text, size_t bytes, const char *path) {
    while (bytes > 0) {
        ssize_t written = write(file, text, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return gs_error_from_errno(written < 0 ? errno : ENOSPC, "curves: write %s", path);
        text += written;
        bytes -= (size_t)written;
    }
    return gs_ok();
}

static gs_status append(int file, size_t *size, const char *text, size_t bytes, const char *path) {
    struct stat info;
    if (fstat(file, &info) < 0) return gs_error_from_errno(errno, "curves: %s", path);
    off_t end = end_of_lines(file, info.st_size);
    if (end < info.st_size && ftruncate(file, end) < 0) return gs_error_from_errno(errno, "curves: %s", path);
    gs_status status = write_all(file, text, bytes, path);
    // A part of a line would swallow the next one. Where even this fails, the next append sees to it.
    if (status.code && ftruncate(file, end) < 0) return status;
    *size = (size_t)end + (status.code ? 0 : bytes);
    return status;
}

// What is thinned by itself: an evaluation or a value that is no number is what people look for.
static int kind_of(const char *line, size_t length) {
    if (memmem(line, length, "\"eval_loss\"", 11)) return 1;
    return memmem(line, length, "NaN", 3) || memmem(line, length, "Infinity", 8) ? 2 : 0;
}

static int64_t step_of(const char *line, size_t length) {
    const char *at = memmem(line, length, "\"step\":", 7);
    return at ? strtoll(at + 7, NULL, 10) : 0;
}

// Lines of each kind that are at least so many steps apart, and the last one. Steps that were redone follow a line of a
// later step, and are a line of their own.
static size_t thin(char *text, size_t bytes, int64_t apart) {
    size_t kept = 0;
    int64_t last[3] = {INT64_MIN / 2, INT64_MIN / 2, INT64_MIN / 2};
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end ? (size_t)(end - text) + 1 - at : bytes - at;
        int kind = kind_of(text + at, length);
        int64_t step = step_of(text + at, length);
        if (step < last[kind] || step - last[kind] >= apart || at + length == bytes) {
            memmove(text + kept, text + at, length);
            kept += length;
            last[kind] = step;
        }
        at += length;
    }
    return kept;
}

static gs_status replace(const char *directory, const char *path, const char *text, size_t bytes) {
    char beside[MAX_PATH_BYTES + 8];
    snprintf(beside, sizeof beside, "%s.thin", path);
    int file = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) return gs_error_from_errno(errno, "curves: %s", beside);
    gs_status status = write_all(file, text, bytes, beside);
    if (!status.code && fsync(file) < 0) status = gs_error_from_errno(errno, "curves: sync %s", beside);
    if (close(file) < 0 && !status.code) status = gs_error_from_errno(errno, "curves: close %s", beside);
    GS_FAILPOINT_VOID("curves.thin");
    if (!status.code && rename(beside, path) < 0) status = gs_error_from_errno(errno, "curves: %s", path);
    if (status.code) {
        unlink(beside);
        return status;
    }
    int list = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (list >= 0) {
        (void)!fsync(list);  // the old file is as good
        close(list);
    }
    return gs_ok();
}

static gs_status make_smaller(const char *directory, const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    GS_TRY(gs_curve_file_read(&text, &bytes, directory));
    for (int64_t apart = 1; bytes > GS_CURVE_FILE_BYTES / 2 && apart < INT64_MAX / 8; apart *= 2) bytes = thin(text, bytes, apart);
    gs_status status = replace(directory, path, text, bytes);
    free(text);
    return status;
}

gs_status gs_curve_file_append(const char *directory, const char *text, size_t bytes) {
    GS_TRY(gs_file_make_directory(directory));
    char path[MAX_PATH_BYTES];
    size_t size = 0;
    path_of(path, directory);
    int file = open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) return gs_error_from_errno(errno, "curves: %s", path);
    gs_status status = append(file, &size, text, bytes, path);
    if (close(file) < 0 && !status.code) status = gs_error_from_errno(errno, "curves: close %s", path);
    if (status.code || size <= GS_CURVE_FILE_BYTES) return status;
    // The lines are there; where there is no room for a smaller file, the next append tries again.
    gs_status smaller = make_smaller(directory, path);
    return smaller.code && size > 2 * GS_CURVE_FILE_BYTES ? smaller : gs_ok();
}

gs_status gs_curve_file_read(char **text, size_t *bytes, const char *directory) {
    char path[MAX_PATH_BYTES];
    path_of(path, directory);
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) return gs_error_from_errno(errno, "curves: %s", path);
    struct stat info;
    gs_status status = fstat(file, &info) < 0 ? gs_error_from_errno(errno, "curves: %s", path) : gs_ok();
    size_t size = status.code ? 0 : (size_t)info.st_size, skipped = size > MAX_READ_BYTES ? size - MAX_READ_BYTES : 0;
    char *made = status.code ? NULL : malloc(size - skipped + 1);
    if (!status.code && !made) status = gs_error(GS_RESOURCE_EXHAUSTED, "curves: out of memory");
    size_t filled = 0;
    while (made && filled < size - skipped) {
        ssize_t got = pread(file, made + filled, size - skipped - filled, (off_t)(skipped + filled));
        if (got <= 0) break;
        filled += (size_t)got;
    }
    close(file);
    GS_TRY(status);
    while (filled > 0 && made[filled - 1] != '\n') filled--;
    const char *first = skipped ? memchr(made, '\n', filled) : NULL;
    size_t cut = first ? (size_t)(first - made) + 1 : 0;
    memmove(made, made + cut, filled - cut);
    *bytes = filled - cut;
    made[*bytes] = '\0';
    *text = made;
    return gs_ok();
}
