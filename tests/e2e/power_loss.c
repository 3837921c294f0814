// Preloaded into a program: what it forces out of the page cache below POWER_ROOT is kept in POWER_SHADOW, as a disk has
// it when the power goes that moment: of a file the bytes that it had at its last fsync, of a directory the names at its
// own. Stricter than most file systems, which write more than they are asked to (power_loss.py puts it together).
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// Numbers of removed files are used again; with the time of birth they are not.
static int key_of(char text[64], int folder, const char *name) {
    struct statx info;
    if (statx(folder, name, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_TYPE | STATX_BTIME, &info) != 0) return 0;
    snprintf(text, 64, "%llu.%lld.%u", (unsigned long long)info.stx_ino, (long long)info.stx_btime.tv_sec,
             info.stx_btime.tv_nsec);
    return S_ISDIR(info.stx_mode) ? 'd' : S_ISREG(info.stx_mode) ? 'f' : 'o';
}

static void write_names(int out, int fd) {
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *entry;
    while (list && (entry = readdir(list))) {
        char key[64];
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        int kind = key_of(key, copy, entry->d_name);
        if (kind) dprintf(out, "%c %s %s\n", kind, key, entry->d_name);
    }
    if (list) closedir(list);
}

static void write_bytes(int out, int fd) {
    static _Thread_local char buffer[65536];
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);  // it may be open for writing alone
    int in = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes;
    while (in >= 0 && (bytes = read(in, buffer, sizeof buffer)) > 0)
        if (write(out, buffer, (size_t)bytes) != bytes) abort();
    if (in >= 0) close(in);
}

static void keep(int fd) {
    static atomic_uint number;
    const char *root = getenv("POWER_ROOT"), *shadow = getenv("POWER_SHADOW");
    char link[64], path[4096], key[64], made[4200], name[4200];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!root || !shadow || length < 0) return;
    path[length] = '\0';
    if (strncmp(path, root, strlen(root)) != 0) return;
    int kind = key_of(key, fd, "");
    if (kind != 'd' && kind != 'f') return;
    snprintf(name, sizeof name, "%s/%s", shadow, key);
    snprintf(made, sizeof made, "%s/new.%d.%u", shadow, (int)getpid(), atomic_fetch_add(&number, 1));
    int out = open(made, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (out < 0) abort();
    if (kind == 'd') write_names(out, fd);
    else write_bytes(out, fd);
    close(out);
    if (rename(made, name) != 0) abort();
}

int fsync(int fd);
int fdatasync(int fd);

int fsync(int fd) {
    int result = (int)syscall(SYS_fsync, fd);
    if (result == 0) keep(fd);
    return result;
}

int fdatasync(int fd) {
    int result = (int)syscall(SYS_fdatasync, fd);
    if (result == 0) keep(fd);
    return result;
}
