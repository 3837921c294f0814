// Preloaded into a program (full_disk.h). Files that are opened, made smaller or read are left alone, and so is what is
// mapped: the index of SQLite's log.
#include "tests/support/full_disk.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static gs_full_disk *disk;
static const char *root;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv(GS_FULL_DISK_STATE);
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *memory = mmap(NULL, sizeof *disk, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    root = getenv(GS_FULL_DISK_ROOT);
    if (memory != MAP_FAILED && root) disk = memory;
}

static bool refuses(int kind) {
    int kinds = atomic_load(&disk->kinds), error = atomic_load(&disk->error);
    if (!((kinds ? kinds : GS_FULL_DISK_WRITES) & kind)) return false;
    int64_t number = atomic_fetch_add(&disk->writes, 1) + 1, first = atomic_load(&disk->first);
    if (first == 0 || number < first || number > atomic_load(&disk->last)) return false;
    atomic_fetch_add(&disk->refused, 1);
    errno = error ? error : ENOSPC;
    return true;
}

static bool is_below(const char *path) {
    size_t length = strlen(root);
    return !strncmp(path, root, length) && path[length] == '/';
}

static bool refuses_file(int file, int kind) {
    struct stat info;
    char link[40], path[4096];
    if (!disk || fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return false;
    path[length] = '\0';
    return is_below(path) && refuses(kind);
}

// A directory, too: names are forced out with it.
static bool refuses_sync(int file) {
    char link[40], path[4096];
    if (!disk) return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return false;
    path[length] = '\0';
    return is_below(path) && refuses(GS_FULL_DISK_SYNCS);
}

static bool refuses_name(int directory, const char *path) {
    char link[40], whole[8192];
    if (!disk) return false;
    if (directory == AT_FDCWD || path[0] == '/') return is_below(path) && refuses(GS_FULL_DISK_NAMES);
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, whole, 4000);
    if (length <= 0) return false;
    snprintf(whole + length, sizeof whole - (size_t)length, "/%s", path);
    return is_below(whole) && refuses(GS_FULL_DISK_NAMES);
}

static bool refuses_new(const char *path) {
    struct stat info;
    return disk && is_below(path) && lstat(path, &info) != 0 && refuses(GS_FULL_DISK_WRITES);
}

#define NEXT(name) __typeof__(&name) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void *data, size_t bytes) {
    NEXT(write);
    return refuses_file(file, GS_FULL_DISK_WRITES) ? -1 : next(file, data, bytes);
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t at) {
    NEXT(pwrite);
    return refuses_file(file, GS_FULL_DISK_WRITES) ? -1 : next(file, data, bytes, at);
}

ssize_t pwrite64(int file, const void *data, size_t bytes, off64_t at) {
    NEXT(pwrite64);
    return refuses_file(file, GS_FULL_DISK_WRITES) ? -1 : next(file, data, bytes, at);
}

int mkdir(const char *path, mode_t mode) {
    NEXT(mkdir);
    return refuses_new(path) ? -1 : next(path, mode);
}

static mode_t mode_of(int flags, va_list more) { return flags & O_CREAT ? va_arg(more, mode_t) : 0; }

int open(const char *path, int flags, ...) {
    NEXT(open);
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    return (flags & O_CREAT) && refuses_new(path) ? -1 : next(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    NEXT(open64);
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    return (flags & O_CREAT) && refuses_new(path) ? -1 : next(path, flags, mode);
}

int fsync(int file) {
    NEXT(fsync);
    return refuses_sync(file) ? -1 : next(file);
}

int fdatasync(int file) {
    NEXT(fdatasync);
    return refuses_sync(file) ? -1 : next(file);
}

int close(int file) {
    NEXT(close);
    int flags = disk ? fcntl(file, F_GETFL) : -1;
    bool fails = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && refuses_file(file, GS_FULL_DISK_CLOSES);
    int error = errno, closed = next(file);
    if (!fails) return closed;
    errno = error;
    return -1;
}

int rename(const char *from, const char *to) {
    NEXT(rename);
    return refuses_name(AT_FDCWD, to) ? -1 : next(from, to);
}

int renameat(int from, const char *old, int to, const char *name) {
    NEXT(renameat);
    return refuses_name(to, name) ? -1 : next(from, old, to, name);
}

// The C library writes what it has buffered past the functions above: a stream of ours goes through them.
static ssize_t put(void *cookie, const char *data, size_t bytes) {
    ssize_t written = write((int)(intptr_t)cookie, data, bytes);
    return written < 0 ? 0 : written;
}

static int end(void *cookie) { return close((int)(intptr_t)cookie); }

FILE *fdopen(int file, const char *mode) {
    NEXT(fdopen);
    if (!disk || mode[0] == 'r') return next(file, mode);
    return fopencookie((void *)(intptr_t)file, mode, (cookie_io_functions_t){.write = put, .close = end});
}
