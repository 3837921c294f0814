#include "rpc/wire/rpc_context.h"

#include <errno.h>
#include <stdlib.h>

#include <zmq.h>

struct gs_rpc_context {
    void *zmq;
};

gs_status gs_rpc_context_create(gs_rpc_context **out) {
    gs_rpc_context *context = calloc(1, sizeof *context);
    if (!context) return gs_error(GS_RESOURCE_EXHAUSTED, "rpc: out of memory");
    context->zmq = zmq_ctx_new();
    if (!context->zmq) {
        free(context);
        return gs_error_from_errno(errno, "rpc: ZeroMQ context");
    }
    // ZeroMQ starts its threads with the first socket, and aborts the process where it cannot: better now than when a job has
    // taken the memory that there is.
    void *first = zmq_socket(context->zmq, ZMQ_PAIR);
    if (!first) {
        gs_status status = gs_error_from_errno(errno, "rpc: ZeroMQ threads");
        gs_rpc_context_destroy(context);
        return status;
    }
    zmq_close(first);
    *out = context;
    return gs_ok();
}

void gs_rpc_context_destroy(gs_rpc_context *context) {
    if (!context) return;
    while (zmq_ctx_term(context->zmq) != 0 && errno == EINTR) continue;
    free(context);
}

void *gs_rpc_context_zmq(const gs_rpc_context *context) {
    return context->zmq;
}
