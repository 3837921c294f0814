#include "gradsync/comm/waiter.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define YIELD_NS INT64_C(100000)
#define YIELDS_PER_CHECK 16
// A dead peer wakes nobody; this bounds how long it goes unnoticed.
#define SLEEP_NS (5 * GS_NS_PER_MS)
#define TURN_NS (GS_NS_PER_MS / 5)  // on one event of several
// Headers of older systems have neither.
#define NUMBER_OF_FUTEX_WAITV 449
#define FUTEX_OF_32_BITS 2

static void relax_core(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static int count_events(const gs_waiter *waiter) {
    return waiter->event ? 1 : waiter->num_events;
}

static gs_futex_event *event_of(const gs_waiter *waiter, int i) {
    return waiter->event ? waiter->event : waiter->events[i];
}

static void disarm(gs_waiter *waiter) {
    for (int i = 0; waiter->armed && i < count_events(waiter); i++)
        __atomic_fetch_sub(&event_of(waiter, i)->sleepers, 1, __ATOMIC_RELAXED);
    waiter->armed = false;
}

static void arm(gs_waiter *waiter) {
    for (int i = 0; i < count_events(waiter); i++) {
        gs_futex_event *event = event_of(waiter, i);
        __atomic_fetch_add(&event->sleepers, 1, __ATOMIC_RELAXED);
        waiter->seen[i] = __atomic_load_n(&event->word, __ATOMIC_ACQUIRE);
    }
    __sync_synchronize();
    waiter->armed = true;
}

static struct timespec timespec_of(int64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / GS_NS_PER_SEC),
                             .tv_nsec = (long)(ns % GS_NS_PER_SEC)};
}

// Shared, not private: the word may be another process's, too.
static void sleep_on_one(gs_waiter *waiter, int i, int64_t most_ns) {
    struct timespec timeout = timespec_of(most_ns);
    syscall(SYS_futex, &event_of(waiter, i)->word, FUTEX_WAIT, waiter->seen[i], &timeout, NULL, 0);
}

// False: this kernel cannot.
static bool sleep_on_any(gs_waiter *waiter, int64_t most_ns) {
    struct {
        uint64_t value, address;
        uint32_t flags, reserved;
    } waits[GS_WAITER_MOST_EVENTS] = {0};
    for (int i = 0; i < waiter->num_events; i++) {
        waits[i].value = waiter->seen[i];
        waits[i].address = (uintptr_t)&waiter->events[i]->word;
        waits[i].flags = FUTEX_OF_32_BITS;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t until_ns = (int64_t)until.tv_sec * GS_NS_PER_SEC + until.tv_nsec + most_ns;
    until = timespec_of(until_ns);
    return syscall(NUMBER_OF_FUTEX_WAITV, waits, waiter->num_events, 0, &until, CLOCK_MONOTONIC) >=
               0 ||
           (errno != ENOSYS && errno != EPERM && errno != EINVAL);
}

static void sleep_on_events(gs_waiter *waiter, gs_deadline deadline) {
    int num_events = count_events(waiter);
    int64_t left_ns = gs_deadline_left_ns(deadline);
    int64_t most_ns = waiter->sleep_ns ? waiter->sleep_ns : SLEEP_NS;
    if (left_ns > most_ns) left_ns = most_ns;
    if (num_events == 1) {
        sleep_on_one(waiter, 0, left_ns);
    } else if (num_events > 1 && !sleep_on_any(waiter, left_ns)) {
        sleep_on_one(waiter, waiter->next, left_ns < TURN_NS ? left_ns : TURN_NS);
        waiter->next = (waiter->next + 1) % num_events;
    } else if (num_events == 0) {
        gs_sleep_ns(left_ns);
    }
    disarm(waiter);
}

bool gs_waiter_pause(gs_waiter *waiter, gs_deadline deadline) {
    if (waiter->polls < waiter->spin_polls) {
        waiter->polls++;
        relax_core();
        return false;
    }
    if (waiter->armed) {
        sleep_on_events(waiter, deadline);
        return true;
    }
    int64_t now_ns = gs_now_ns();
    if (!waiter->yield_until_ns) waiter->yield_until_ns = now_ns + YIELD_NS;
    if (now_ns < waiter->yield_until_ns) {
        sched_yield();
        return ++waiter->yields % YIELDS_PER_CHECK == 0;
    }
    arm(waiter);
    return true;
}

void gs_waiter_reset(gs_waiter *waiter) {
    disarm(waiter);
    waiter->polls = 0;
    waiter->yields = 0;
    waiter->yield_until_ns = 0;
}
