#include "worker/control/control.h"

#include <stdio.h>
#include <string.h>

static const char *kind_of_code(gs_code code) {
    switch (code) {
    case GS_DEADLINE_EXCEEDED: return "timeout";
    case GS_ABORTED:
    case GS_UNAVAILABLE: return "peer_lost";
    case GS_FAILED_PRECONDITION: return "mismatch";
    case GS_INVALID_ARGUMENT:
    case GS_NOT_FOUND:
    case GS_OUT_OF_RANGE:
    case GS_DATA_LOSS: return "data";
    default: return "internal";
    }
}

gs_fault gs_fault_of(gs_status status, gs_comm *comm) {
    gs_fault fault = {.kind = kind_of_code(status.code), .status = status, .comm.bucket = -1};
    bool waited = status.code == GS_DEADLINE_EXCEEDED || status.code == GS_ABORTED ||
                  status.code == GS_UNAVAILABLE;
    if (!comm || !waited) return fault;  // its own fault, whatever the others wait for by now
    gs_comm_explain(comm, &fault.comm);
    if (fault.comm.kind == GS_COMM_FAILURE_TIMEOUT) fault.kind = "timeout";
    if (fault.comm.kind == GS_COMM_FAILURE_PEER_LOST) fault.kind = "peer_lost";
    // A deadline that passed elsewhere than between ranks is this rank's own: a replica, the device.
    if (status.code == GS_DEADLINE_EXCEEDED && fault.comm.kind == GS_COMM_FAILURE_OTHER)
        gs_comm_failure_add(&fault.comm, gs_comm_rank(comm));
    return fault;
}

void gs_control_init(gs_control *control, const gs_control_ops *ops, void *ctx) {
    *control = (gs_control){.ops = ops, .ctx = ctx};
    pthread_mutex_init(&control->lock, NULL);
}

void gs_control_release(gs_control *control) {
    gs_progress_release(&control->progress);
    gs_plan_offer_release(&control->offer);
    pthread_mutex_destroy(&control->lock);
}

void gs_control_ask_to_drain(gs_control *control, bool save) {
    if (save) atomic_store(&control->drain_saves, true);
    atomic_store(&control->wants_drain, true);
}

void gs_control_abort(gs_control *control, const char *reason) {
    pthread_mutex_lock(&control->lock);
    if (!atomic_load(&control->aborted)) {
        snprintf(control->abort_reason, sizeof control->abort_reason, "%s", reason);
        atomic_store(&control->aborted, true);
    }
    if (control->comm) gs_comm_abort(control->comm, control->abort_reason);
    pthread_mutex_unlock(&control->lock);
}

void gs_control_offer_plan(gs_control *control, gs_plan_offer *offer) {
    pthread_mutex_lock(&control->lock);
    gs_plan_offer old = control->offer;
    control->offer = *offer;
    pthread_mutex_unlock(&control->lock);
    *offer = (gs_plan_offer){0};
    gs_plan_offer_release(&old);
    atomic_store(&control->has_offer, true);
}

bool gs_control_take_plan(gs_control *control, gs_plan_offer *out, uint32_t generation) {
    *out = (gs_plan_offer){0};
    if (!atomic_load_explicit(&control->has_offer, memory_order_relaxed)) return false;
    atomic_store(&control->has_offer, false);
    pthread_mutex_lock(&control->lock);
    *out = control->offer;
    control->offer = (gs_plan_offer){0};
    pthread_mutex_unlock(&control->lock);
    if (out->digest && out->generation == generation) return true;
    gs_plan_offer_release(out);
    return false;
}

bool gs_control_drains(const gs_control *control, bool *save) {
    bool signalled = control->drain_signal && *control->drain_signal;
    *save = atomic_load(&control->drain_saves) || signalled;
    return signalled || atomic_load(&control->wants_drain);
}

gs_status gs_control_check(gs_control *control) {
    if (!atomic_load(&control->aborted)) return gs_ok();
    pthread_mutex_lock(&control->lock);
    gs_status status = gs_error(GS_ABORTED, "%s", control->abort_reason);
    pthread_mutex_unlock(&control->lock);
    return status;
}

void gs_control_set_comm(gs_control *control, gs_comm *comm) {
    pthread_mutex_lock(&control->lock);
    control->comm = comm;
    // An abort that came while the communicator was being made must not be missed.
    if (comm && atomic_load(&control->aborted)) gs_comm_abort(comm, control->abort_reason);
    pthread_mutex_unlock(&control->lock);
}
