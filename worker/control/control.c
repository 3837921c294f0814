#include "worker/control/control.h"

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
    gs_mailbox_init(&control->mailbox);
}

void gs_control_release(gs_control *control) {
    gs_progress_release(&control->progress);
    gs_mailbox_release(&control->mailbox);
}
