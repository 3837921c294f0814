#include "worker/control/mailbox.h"

#include <stdio.h>

#include "worker/telemetry/telemetry.h"

void gs_mailbox_init(gs_mailbox *mailbox) {
    *mailbox = (gs_mailbox){.report_every_ns = GS_REPORT_EVERY_NS};
    pthread_mutex_init(&mailbox->lock, NULL);
}

void gs_mailbox_release(gs_mailbox *mailbox) {
    gs_plan_offer_release(&mailbox->offer);
    pthread_mutex_destroy(&mailbox->lock);
}

bool gs_mailbox_aborted(const gs_mailbox *mailbox) {
    return atomic_load(&mailbox->aborted);
}

void gs_mailbox_ask_to_drain(gs_mailbox *mailbox, bool save) {
    if (save) atomic_store(&mailbox->drain_saves, true);
    atomic_store(&mailbox->wants_drain, true);
}

// Under the lock: whether the generation that the compute thread is in has ended.
static bool has_ended(const gs_mailbox *mailbox) {
    return *mailbox->abort_reason && mailbox->aborted_up_to >= mailbox->generation;
}

void gs_mailbox_abort(gs_mailbox *mailbox, uint32_t generation, const char *reason) {
    pthread_mutex_lock(&mailbox->lock);
    if (generation >= mailbox->generation) {
        if (!has_ended(mailbox))
            snprintf(mailbox->abort_reason, sizeof mailbox->abort_reason, "%s",
                     *reason ? reason : "the generation ended");
        if (generation > mailbox->aborted_up_to) mailbox->aborted_up_to = generation;
        atomic_store(&mailbox->aborted, true);
        if (mailbox->comm) gs_comm_abort(mailbox->comm, mailbox->abort_reason);
    }
    pthread_mutex_unlock(&mailbox->lock);
}

void gs_mailbox_begin(gs_mailbox *mailbox, uint32_t generation) {
    pthread_mutex_lock(&mailbox->lock);
    mailbox->generation = generation;
    atomic_store(&mailbox->aborted, has_ended(mailbox));
    pthread_mutex_unlock(&mailbox->lock);
}

void gs_mailbox_offer_plan(gs_mailbox *mailbox, gs_plan_offer *offer) {
    pthread_mutex_lock(&mailbox->lock);
    gs_plan_offer old = mailbox->offer;
    mailbox->offer = *offer;
    pthread_mutex_unlock(&mailbox->lock);
    *offer = (gs_plan_offer){0};
    gs_plan_offer_release(&old);
    atomic_store(&mailbox->has_offer, true);
}

bool gs_mailbox_take_plan(gs_mailbox *mailbox, gs_plan_offer *out, uint32_t generation) {
    *out = (gs_plan_offer){0};
    if (!atomic_load_explicit(&mailbox->has_offer, memory_order_relaxed)) return false;
    atomic_store(&mailbox->has_offer, false);
    pthread_mutex_lock(&mailbox->lock);
    *out = mailbox->offer;
    mailbox->offer = (gs_plan_offer){0};
    pthread_mutex_unlock(&mailbox->lock);
    if (out->digest && out->generation == generation) return true;
    gs_plan_offer_release(out);
    return false;
}

void gs_mailbox_set_report_every(gs_mailbox *mailbox, int64_t every_ns) {
    atomic_store(&mailbox->report_every_ns, every_ns);
}

int64_t gs_mailbox_report_every_ns(const gs_mailbox *mailbox) {
    return atomic_load(&mailbox->report_every_ns);
}

bool gs_mailbox_drains(const gs_mailbox *mailbox, bool *save) {
    bool signalled = mailbox->drain_signal && *mailbox->drain_signal;
    *save = atomic_load(&mailbox->drain_saves) || signalled;
    return signalled || atomic_load(&mailbox->wants_drain);
}

gs_status gs_mailbox_check(gs_mailbox *mailbox) {
    if (!atomic_load(&mailbox->aborted)) return gs_ok();
    pthread_mutex_lock(&mailbox->lock);
    gs_status status = gs_error(GS_ABORTED, "%s", mailbox->abort_reason);
    pthread_mutex_unlock(&mailbox->lock);
    return status;
}

void gs_mailbox_set_comm(gs_mailbox *mailbox, gs_comm *comm) {
    pthread_mutex_lock(&mailbox->lock);
    mailbox->comm = comm;
    // An abort that came while the communicator was being made must not be missed.
    if (comm && atomic_load(&mailbox->aborted)) gs_comm_abort(comm, mailbox->abort_reason);
    pthread_mutex_unlock(&mailbox->lock);
}
