// Preloaded into a program under test: while the file named by BENCH_SLOW_DISK exists, whatever
// forces data out takes 200 ms longer, as on a disk that is busy or worn out; and while the one named by BENCH_HUNG_DISK does,
// neither that nor a write at a place of a file comes to an end, as on a server of files that is gone. Needs no privileges and no
// debug build.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
EXPORTED int fsync(int fd);
EXPORTED int fdatasync(int fd);
EXPORTED ssize_t pwrite(int fd, const void *data, size_t bytes, off_t place);
EXPORTED ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t place);

// Whatever its caller would wait for beside it.
static void wait_while_hung(void) {
    const char *flag = getenv("BENCH_HUNG_DISK");
    struct timespec look = {.tv_nsec = 50000000};
    while (flag && access(flag, F_OK) == 0) nanosleep(&look, NULL);
}

static void wait_when_slow(void) {
    const char *flag = getenv("BENCH_SLOW_DISK");
    struct timespec delay = {.tv_nsec = 200000000};
    if (flag && access(flag, F_OK) == 0) nanosleep(&delay, NULL);
}

int fsync(int fd) {
    wait_when_slow();
    wait_while_hung();
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    wait_when_slow();
    wait_while_hung();
    return (int)syscall(SYS_fdatasync, fd);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t place) {
    wait_while_hung();
    return syscall(SYS_pwrite64, fd, data, bytes, place);
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t place) {
    wait_while_hung();
    return syscall(SYS_pwrite64, fd, data, bytes, place);
}
