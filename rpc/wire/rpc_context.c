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
