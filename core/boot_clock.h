// Nanoseconds since the host booted, the time in which it was suspended included: for what others may have done meanwhile.
//
// gs_now_ns (core/clock.h) stands still with the host, as the kernel's timeouts do. That is right for whoever waits for
// somebody beside it: both slept. It is wrong for what an other host may have taken over: who wakes up must find old what is
// old. The two are never compared with each other.
#ifndef CORE_BOOT_CLOCK_H
#define CORE_BOOT_CLOCK_H

#include <stdint.h>

int64_t gs_boot_ns(void);  // never goes back, never 0; the same for all processes of a host
double gs_seconds_since_boot_ns(int64_t begin_ns);

#endif
