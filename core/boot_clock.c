#include "core/boot_clock.h"

#include <time.h>

#include "core/clock.h"

int64_t gs_boot_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * GS_NS_PER_SEC + now.tv_nsec + 1;
}

double gs_seconds_since_boot_ns(int64_t begin_ns) { return gs_seconds_of(gs_boot_ns() - begin_ns); }
