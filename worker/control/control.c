#include "worker/control/control.h"

static gs_fault_kind kind_of_code(gs_code code) {
    switch (code) {
    case GS_DEADLINE_EXCEEDED: return GS_FAULT_TIMEOUT;
    case GS_ABORTED:
    case GS_UNAVAILABLE: return GS_FAULT_PEER_LOST;
    case GS_FAILED_PRECONDITION: return GS_FAULT_MISMATCH;
    case GS_INVALID_ARGUMENT:
    case GS_NOT_FOUND:
    case GS_OUT_OF_RANGE:
    case GS_DATA_LOSS: return GS_FAULT_DATA;
    default: return GS_FAULT_INTERNAL;
    }
}

static gs_fault_kind kind_of_failure(gs_comm_failure_kind kind) {
    switch (kind) {
    case GS_COMM_FAILURE_TIMEOUT: return GS_FAULT_TIMEOUT;
    case GS_COMM_FAILURE_PEER_LOST: return GS_FAULT_PEER_LOST;
    case GS_COMM_FAILURE_MISMATCH: return GS_FAULT_MISMATCH;
    case GS_COMM_FAILURE_DAMAGED: return GS_FAULT_DAMAGED;
    case GS_COMM_FAILURE_DEVICE: return GS_FAULT_DEVICE;
    case GS_COMM_FAILURE_ABORTED: return GS_FAULT_ABORTED;
    default: return GS_FAULT_INTERNAL;
    }
}

gs_fault gs_fault_of(gs_status status, gs_comm *comm, const gs_comm_failure *unreached) {
    gs_fault fault = {.kind = kind_of_code(status.code),
                      .status = status,
                      .comm = {.reporter = -1, .bucket = -1}};
    if (!comm && !unreached) return fault;
    gs_comm_failure seen;
    if (comm) gs_comm_explain(comm, &seen);
    else seen = *unreached;
    if (gs_comm_failure_may_be(&seen, status.code)) {
        fault.comm = seen;
        fault.kind = kind_of_failure(seen.kind);
        return fault;
    }
    if (!comm) return fault;
    // Its own fault, whatever the others wait for by now; so is a deadline that passed elsewhere than
    // between ranks: a replica, the device.
    fault.comm.reporter = gs_comm_rank(comm);
    if (status.code == GS_DEADLINE_EXCEEDED) gs_comm_failure_accuse(&fault.comm, fault.comm.reporter);
    return fault;
}

void gs_control_init(gs_control *control, const gs_control_ops *ops, void *ctx) {
    *control = (gs_control){.ops = ops, .ctx = ctx};
    gs_mailbox_init(&control->mailbox);
}

void gs_control_release(gs_control *control) {
    gs_progress_release(&control->progress);
    gs_mailbox_release(&control->mailbox);
}
