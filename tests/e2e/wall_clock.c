// Preloaded into a program: its wall clock is the machine's with the seconds added that GRADSYNC_WALL_FILE holds, a number of 8
// bytes. All other clocks are the machine's.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *added;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("GRADSYNC_WALL_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *memory = file >= 0 ? mmap(NULL, sizeof *added, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    if (memory != MAP_FAILED) added = memory;
    if (file >= 0) close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int result = (int)syscall(SYS_clock_gettime, clock, at);
    if (result == 0 && added && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += *added;
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    *at = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return result;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
