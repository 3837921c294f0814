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

// Written by any thread, read by the compute thread.
typedef struct gs_mailbox {
    atomic_bool wants_drain, drain_saves, aborted, has_offer;
    const volatile sig_atomic_t *drain_signal;  // set by a signal handler; NULL: none

    pthread_mutex_t lock;  // of what follows
    gs_comm *comm;         // borrowed while set
    char abort_reason[200];
    gs_plan_offer offer;  // owned; digest 0: none
} gs_mailbox;

void gs_mailbox_init(gs_mailbox *mailbox);
void gs_mailbox_release(gs_mailbox *mailbox);

// Any thread.
void gs_mailbox_ask_to_drain(gs_mailbox *mailbox, bool save);
void gs_mailbox_abort(gs_mailbox *mailbox, const char *reason);  // the first reason wins
bool gs_mailbox_drains(const gs_mailbox *mailbox, bool *save);
bool gs_mailbox_aborted(const gs_mailbox *mailbox);
// ABORTED with the reason once gs_mailbox_abort was called.
GS_NODISCARD gs_status gs_mailbox_check(gs_mailbox *mailbox);

// A plan that is to be used as soon as all ranks hold it. Takes the offer; one that was not taken
// yet goes.
void gs_mailbox_offer_plan(gs_mailbox *mailbox, gs_plan_offer *offer);
// Compute thread: the offer for `generation`, the caller's now; those for others are dropped.
// False: none.
bool gs_mailbox_take_plan(gs_mailbox *mailbox, gs_plan_offer *out, uint32_t generation);

// Compute thread: the communicator that an abort is to reach; NULL before it is destroyed.
void gs_mailbox_set_comm(gs_mailbox *mailbox, gs_comm *comm);

#endif
