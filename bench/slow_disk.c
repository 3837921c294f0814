// Preloaded into a program under test: while the file named by BENCH_SLOW_DISK exists, whatever
// forces data out takes 200 ms longer, as on a disk that is busy or worn out. Needs no privileges
// and no debug build.
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
EXPORTED int fsync(int fd);
EXPORTED int fdatasync(int fd);

static void wait_when_slow(void) {
    const char *flag = getenv("BENCH_SLOW_DISK");
    struct timespec delay = {.tv_nsec = 200000000};
    if (flag && access(flag, F_OK) == 0) nanosleep(&delay, NULL);
}

int fsync(int fd) {
    wait_when_slow();
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    wait_when_slow();
    return (int)syscall(SYS_fdatasync, fd);
}
