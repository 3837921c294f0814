// Communicators, of ffi.h.
#include <stdio.h>
#include <stdlib.h>

#include "gradsync/ffi/object.h"

gs_ffi_comm *gs_ffi_comm_new(void) {
    gs_ffi_comm *comm = calloc(1, sizeof *comm);
    if (comm) comm->options.world_size = 1;
    return comm;
}

static int keep_setting(gs_ffi_comm *comm) {
    return gs_ffi_keep(&comm->object, gs_ffi_expect(!comm->comm, "the communicator is open"));
}

int gs_ffi_comm_set_rank(gs_ffi_comm *comm, int rank, int world_size) {
    comm->options.rank = rank;
    comm->options.world_size = world_size;
    return keep_setting(comm);
}

int gs_ffi_comm_set_generation(gs_ffi_comm *comm, uint32_t generation) {
    comm->options.generation = generation;
    return keep_setting(comm);
}

int gs_ffi_comm_set_backend(gs_ffi_comm *comm, const char *name) {
    snprintf(comm->backend, sizeof comm->backend, "%s", name);
    return keep_setting(comm);
}

static gs_status call_exchange(void *ctx, const char *tag, const int *ranks, int num_ranks,
                               const void *mine, size_t bytes, void *all, gs_deadline deadline) {
    const gs_ffi_comm *comm = ctx;
    char what[96];
    int code = comm->exchange(comm->exchange_ctx, tag, ranks, num_ranks, mine, bytes, all,
                              gs_deadline_left_ns(deadline));
    snprintf(what, sizeof what, "the exchange of \"%.64s\"", tag);
    return gs_ffi_returned(code, what);
}

int gs_ffi_comm_set_exchange(gs_ffi_comm *comm, gs_ffi_exchange exchange, void *ctx) {
    comm->exchange = exchange;
    comm->exchange_ctx = ctx;
    comm->options.exchange = exchange ? call_exchange : NULL;
    comm->options.exchange_ctx = comm;
    return keep_setting(comm);
}

int gs_ffi_comm_set_interrupt(gs_ffi_comm *comm, int (*interrupt)(void *ctx), void *ctx) {
    comm->options.interrupt = interrupt;
    comm->options.interrupt_ctx = ctx;
    return keep_setting(comm);
}

int gs_ffi_comm_open(gs_ffi_comm *comm, gs_ffi_device *device, gs_ffi_arena *arena,
                     int64_t within_ns) {
    gs_comm_options options = comm->options;
    options.backend = comm->backend;
    options.device = device->device;
    options.arena = arena ? arena->arena : NULL;
    gs_status status = gs_ffi_expect(!comm->comm, "the communicator is open");
    if (!status.code) status = gs_comm_create(&comm->comm, &options, gs_ffi_deadline(within_ns));
    return gs_ffi_keep(&comm->object, status);
}

int gs_ffi_comm_run(gs_ffi_comm *comm, int kind, const void *send, void *recv, size_t count,
                    int dtype, int op, int root, int64_t within_ns) {
    const gs_collective collective = {.kind = (gs_collective_kind)kind,
                                      .send = send,
                                      .recv = recv,
                                      .count = count,
                                      .dtype = (gs_dtype)dtype,
                                      .op = (gs_reduce_op)op,
                                      .root = root,
                                      .bucket = -1};
    gs_status status = gs_ffi_expect(comm->comm, "the communicator is not open");
    if (!status.code) status = gs_comm_run(comm->comm, &collective, gs_ffi_deadline(within_ns));
    return gs_ffi_keep(&comm->object, status);
}

int gs_ffi_comm_failure(gs_ffi_comm *comm, int *kind, int64_t *step, int *bucket, int *ranks,
                        int most) {
    gs_comm_failure failure = {.bucket = -1};
    int count = 0;
    if (comm->comm) gs_comm_explain(comm->comm, &failure);
    *kind = (int)failure.kind;
    *step = failure.step;
    *bucket = failure.bucket;
    for (int rank = 0; rank < comm->options.world_size; rank++) {
        if (!gs_comm_failure_names(&failure, rank)) continue;
        if (count < most) ranks[count] = rank;
        count++;
    }
    return count;
}

const char *gs_ffi_comm_backend(const gs_ffi_comm *comm) {
    return comm->comm ? gs_comm_backend_name(comm->comm) : "";
}

void gs_ffi_comm_abort(gs_ffi_comm *comm, const char *reason) {
    if (comm->comm) gs_comm_abort(comm->comm, reason);
}

void gs_ffi_comm_free(gs_ffi_comm *comm) {
    if (!comm) return;
    gs_comm_destroy(comm->comm);
    free(comm);
}
