#include "gradsync/comm/shm/waiter.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define YIELD_NS INT64_C(100000)
#define YIELDS_PER_CHECK 16
// A dead peer wakes nobody; this bounds how long it goes unnoticed.
#define SLEEP_NS (5 * GS_NS_PER_MS)

static void relax_core(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

void gs_futex_event_notify(gs_futex_event *event) {
    // Pairs with the fence of a sleeper: either it sees what was stored before, or it is seen here.
    __sync_synchronize();
    if (atomic_load_explicit(&event->sleepers, memory_order_relaxed) == 0) return;
    atomic_fetch_add_explicit(&event->word, 1, memory_order_release);
    syscall(SYS_futex, &event->word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void disarm(gs_waiter *waiter) {
    if (waiter->armed) atomic_fetch_sub_explicit(&waiter->event->sleepers, 1, memory_order_relaxed);
    waiter->armed = false;
}

static void arm(gs_waiter *waiter) {
    atomic_fetch_add_explicit(&waiter->event->sleepers, 1, memory_order_relaxed);
    waiter->seen = atomic_load_explicit(&waiter->event->word, memory_order_acquire);
    __sync_synchronize();
    waiter->armed = true;
}

static void sleep_on_event(gs_waiter *waiter, gs_deadline deadline) {
    int64_t left_ns = gs_deadline_left_ns(deadline);
    int64_t most_ns = waiter->sleep_ns ? waiter->sleep_ns : SLEEP_NS;
    if (left_ns > most_ns) left_ns = most_ns;
    struct timespec timeout = {.tv_sec = (time_t)(left_ns / GS_NS_PER_SEC),
                               .tv_nsec = (long)(left_ns % GS_NS_PER_SEC)};
    // Shared, not private: the word may be another process's, too.
    syscall(SYS_futex, &waiter->event->word, FUTEX_WAIT, waiter->seen, &timeout, NULL, 0);
    disarm(waiter);
}

bool gs_waiter_pause(gs_waiter *waiter, gs_deadline deadline) {
    if (waiter->polls < waiter->spin_polls) {
        waiter->polls++;
        relax_core();
        return false;
    }
    if (waiter->armed) {
        sleep_on_event(waiter, deadline);
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
