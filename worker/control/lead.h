// Whether a rank may take a step: as long as somebody leads it who would know that others have taken its place. That is its
// agent, which hears the coordinator or sees the fence where the checkpoints lie (worker/agent/lookout.h), or the coordinator
// itself. An agent that has both sends SIGSTOP to its trainers when it sees neither; one that is suspended itself cannot, and so
// its trainers look at when it has known last, and stand still between two steps, and before they commit one.
//
// A process that stood still is asleep with what it has heard: times are taken before what they are of, so that one that
// wakes up finds them old: a process that was stopped alone, and a host that was suspended as a whole (core/boot_clock.h).
#ifndef WORKER_CONTROL_LEAD_H
#define WORKER_CONTROL_LEAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "worker/control/mailbox.h"
#include "worker/launch.h"

typedef struct gs_lead {
    const gs_launch_page *page;    // borrowed; NULL: nobody leads this rank, and it asks nobody
    _Atomic int64_t answered_ns;   // a coordinator knew it, or knew that it does not
    _Atomic double limit_seconds;  // how long ranks go on alone; 0: for ever
} gs_lead;

// Before any thread looks.
void gs_lead_begin(gs_lead *lead, const gs_launch_page *page, double limit_seconds);
// Since when nobody has led it; 0: somebody does.
int64_t gs_lead_lost_since(const gs_lead *lead);
// Compute thread: returns as soon as somebody leads this rank. ABORTED: its generation has ended; UNAVAILABLE: nobody has for the
// limit and the margin.
GS_NODISCARD gs_status gs_lead_await(const gs_lead *lead, gs_mailbox *mailbox);

#endif
