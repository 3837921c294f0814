// What a trainer is asked to do: requests wait here and are read between steps; an abort reaches
// the communicator at once.
#ifndef WORKER_CONTROL_MAILBOX_H
#define WORKER_CONTROL_MAILBOX_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "worker/control/plan_offer.h"

// A process is asked to leave once; generations come and go in it, and an abort ends one of them.
#define GS_EVERY_GENERATION UINT32_MAX

// Written by any thread, read by the compute thread.
typedef struct gs_mailbox {
    atomic_bool wants_drain, drain_saves, aborted, has_offer;
    atomic_bool orphaned;  // nobody has been there to ask anything for longer than the ranks are to go on
    _Atomic int64_t report_every_ns;  // that reports are to be apart
    const volatile sig_atomic_t *drain_signal;  // set by a signal handler; NULL: none

    pthread_mutex_t lock;  // of what follows
    uint32_t generation;   // that the compute thread is in; 0: none yet
    uint32_t aborted_up_to;  // generations that have ended; valid with a reason
    gs_comm *comm;         // borrowed while set
    char abort_reason[200];  // "": nothing has ended
    gs_plan_offer offer;  // owned; digest 0: none
} gs_mailbox;

void gs_mailbox_init(gs_mailbox *mailbox);
void gs_mailbox_release(gs_mailbox *mailbox);

// Any thread.
void gs_mailbox_ask_to_drain(gs_mailbox *mailbox, bool save);
// Generation `generation` has ended, and those before it: the first reason wins. One that the compute
// thread has left behind is told in vain; one that it is not yet in has ended when it comes to it.
void gs_mailbox_abort(gs_mailbox *mailbox, uint32_t generation, const char *reason);
void gs_mailbox_set_report_every(gs_mailbox *mailbox, int64_t every_ns);
int64_t gs_mailbox_report_every_ns(const gs_mailbox *mailbox);
bool gs_mailbox_drains(const gs_mailbox *mailbox, bool *save);
bool gs_mailbox_aborted(const gs_mailbox *mailbox);
// ABORTED with the reason once the generation has ended.
GS_NODISCARD gs_status gs_mailbox_check(gs_mailbox *mailbox);

// A plan that is to be used as soon as all ranks hold it. Takes the offer; one that was not taken
// yet goes.
void gs_mailbox_offer_plan(gs_mailbox *mailbox, gs_plan_offer *offer);
// Compute thread: the offer for `generation`, the caller's now; those for others are dropped.
// False: none.
bool gs_mailbox_take_plan(gs_mailbox *mailbox, gs_plan_offer *out, uint32_t generation);

// Compute thread: the next generation; what ended those before it is over.
void gs_mailbox_begin(gs_mailbox *mailbox, uint32_t generation);
// Compute thread: the communicator that an abort is to reach; NULL before it is destroyed.
void gs_mailbox_set_comm(gs_mailbox *mailbox, gs_comm *comm);

#endif
