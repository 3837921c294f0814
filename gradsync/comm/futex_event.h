// Something that a thread can sleep on until another, of any process, says that something has
// moved.
#ifndef GRADSYNC_COMM_FUTEX_EVENT_H
#define GRADSYNC_COMM_FUTEX_EVENT_H

#include <stdint.h>

#include "core/abi.h"

GS_BEGIN_DECLS

// {0} is ready. May lie in memory that processes share.
typedef struct gs_futex_event {
    uint32_t word __attribute__((aligned(128)));  // the futex: changes whenever sleepers are woken
    uint32_t sleepers;
} gs_futex_event;

// After the store that others may wait for: a fence when nobody sleeps.
void gs_futex_event_notify(gs_futex_event *event);

GS_END_DECLS

#endif
