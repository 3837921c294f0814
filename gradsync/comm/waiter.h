// How to wait for another process without burning a core or losing a microsecond: poll, pause,
// poll.
//
// A pause is short at first (spin), then yields the processor for about 100 µs, then sleeps on
// events for at most a few milliseconds: on one, or on any of several where the kernel can (Linux
// 5.16; before that on one after the other, for a fraction of a millisecond each).
#ifndef GRADSYNC_COMM_WAITER_H
#define GRADSYNC_COMM_WAITER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"
#include "gradsync/comm/futex_event.h"

#define GS_WAITER_MOST_EVENTS 16

typedef struct gs_waiter {
    gs_futex_event *event;    // the one; or NULL, and
    gs_futex_event **events;  // any of num_events (≤ GS_WAITER_MOST_EVENTS), borrowed
    int num_events;
    int spin_polls;    // about 500 where each waiter has a core, 50 where not
    int64_t sleep_ns;  // the longest sleep; 0: 5 ms, for waits that must notice a dead peer
    // Private:
    int polls, yields;
    int next;  // event to sleep on, where the kernel takes but one
    int64_t yield_until_ns;
    uint32_t seen[GS_WAITER_MOST_EVENTS];
    bool armed;
} gs_waiter;

// Between two polls. True: time has passed, so look at deadlines and at who is still alive. The
// poll that follows may be the last before a sleep, so it must look at everything the waiter waits
// for.
bool gs_waiter_pause(gs_waiter *waiter, gs_deadline deadline);
// Something moved: the next pauses are short again. Also to be called when waiting ends.
void gs_waiter_reset(gs_waiter *waiter);

#endif
