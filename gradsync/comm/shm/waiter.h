// How to wait for another process without burning a core or losing a microsecond: poll, pause,
// poll.
//
// A pause is short at first (spin), then yields the processor for about 100 µs, then sleeps on a
// futex for at most a few milliseconds. Whoever stores what is waited for notifies the event
// afterwards, which costs a fence when nobody sleeps. Events may lie in memory that processes
// share.
#ifndef GRADSYNC_COMM_SHM_WAITER_H
#define GRADSYNC_COMM_SHM_WAITER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"

typedef struct gs_futex_event {
    _Alignas(128) _Atomic uint32_t word;  // the futex: changes whenever sleepers are woken
    _Atomic uint32_t sleepers;
} gs_futex_event;  // {0} is ready

// After the store that others may wait for.
void gs_futex_event_notify(gs_futex_event *event);

typedef struct gs_waiter {
    gs_futex_event *event;
    int spin_polls;    // about 500 where each waiter has a core, 50 where not
    int64_t sleep_ns;  // the longest sleep; 0: 5 ms, for waits that must notice a dead peer
    // Private:
    int polls, yields;
    int64_t yield_until_ns;
    uint32_t seen;
    bool armed;
} gs_waiter;

// Between two polls. True: time has passed, so look at deadlines and at who is still alive. The
// poll that follows may be the last before a sleep, so it must look at everything the waiter waits
// for.
bool gs_waiter_pause(gs_waiter *waiter, gs_deadline deadline);
// Something moved: the next pauses are short again. Also to be called when waiting ends.
void gs_waiter_reset(gs_waiter *waiter);

#endif
