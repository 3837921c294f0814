// Communicators, of ffi.h.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradsync/ffi/object.h"

gs_ffi_comm *gs_ffi_comm_new(void) {
    gs_ffi_comm *comm = calloc(1, sizeof *comm);
    if (comm) comm->options.world_size = 1;
    return comm;
}

static gs_status check_closed(const gs_ffi_comm *comm) {
    GS_TRY(gs_ffi_given(comm, "communicator"));
    return gs_ffi_expect(!comm->comm, "the communicator is open");
}

static gs_status check_open(const gs_ffi_comm *comm) {
    GS_TRY(gs_ffi_given(comm, "communicator"));
    return gs_ffi_expect(comm->comm, "the communicator is not open");
}

// Nothing of an open communicator changes.
static int begin_setting(gs_ffi_comm *comm) {
    return gs_ffi_keep(comm, check_closed(comm));
}

int gs_ffi_comm_set_rank(gs_ffi_comm *comm, int rank, int world_size) {
    int code = begin_setting(comm);
    if (code) return code;
    comm->options.rank = rank;
    comm->options.world_size = world_size;
    return 0;
}

int gs_ffi_comm_set_lanes(gs_ffi_comm *comm, int num_lanes) {
    int code = begin_setting(comm);
    if (!code) comm->options.num_lanes = num_lanes;
    return code;
}

int gs_ffi_comm_set_generation(gs_ffi_comm *comm, uint32_t generation) {
    int code = begin_setting(comm);
    if (!code) comm->options.generation = generation;
    return code;
}

static gs_status set_backend(gs_ffi_comm *comm, const char *name) {
    GS_TRY(check_closed(comm));
    GS_TRY(gs_ffi_given(name, "backend's name"));
    if (strlen(name) >= sizeof comm->backend)
        return gs_error(GS_INVALID_ARGUMENT, "a backend's name of %zu bytes, below %zu",
                        strlen(name), sizeof comm->backend);
    snprintf(comm->backend, sizeof comm->backend, "%s", name);
    return gs_ok();
}

int gs_ffi_comm_set_backend(gs_ffi_comm *comm, const char *name) {
    return gs_ffi_keep(comm, set_backend(comm, name));
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
    int code = begin_setting(comm);
    if (code) return code;
    comm->exchange = exchange;
    comm->exchange_ctx = ctx;
    comm->options.exchange = exchange ? call_exchange : NULL;
    comm->options.exchange_ctx = comm;
    return 0;
}

int gs_ffi_comm_set_interrupt(gs_ffi_comm *comm, int (*interrupt)(void *ctx), void *ctx) {
    int code = begin_setting(comm);
    if (code) return code;
    comm->options.interrupt = interrupt;
    comm->options.interrupt_ctx = ctx;
    return 0;
}

static gs_status open_comm(gs_ffi_comm *comm, const gs_ffi_device *device,
                           const gs_ffi_arena *arena, gs_deadline deadline) {
    GS_TRY(check_closed(comm));
    GS_TRY(gs_ffi_given(device, "device"));
    GS_TRY(gs_ffi_expect(device->device, "the communicator's device is not open"));
    GS_TRY(gs_ffi_expect(!arena || arena->arena, "the communicator's arena is not open"));
    gs_comm_options options = comm->options;
    options.backend = comm->backend;
    options.device = device->device;
    options.arena = arena ? arena->arena : NULL;
    return gs_comm_create(&comm->comm, &options, deadline);
}

int gs_ffi_comm_open(gs_ffi_comm *comm, gs_ffi_device *device, gs_ffi_arena *arena,
                     int64_t within_ns) {
    return gs_ffi_keep(comm, open_comm(comm, device, arena, gs_ffi_deadline(within_ns)));
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
    gs_status status = check_open(comm);
    if (!status.code) status = gs_comm_run(comm->comm, &collective, gs_ffi_deadline(within_ns));
    return gs_ffi_keep(comm, status);
}

int gs_ffi_comm_failure(gs_ffi_comm *comm, int *kind, int64_t *step, int *bucket, int *ranks,
                        int most) {
    gs_comm_failure failure = {.bucket = -1};
    int count = 0;
    if (comm && comm->comm) gs_comm_explain(comm->comm, &failure);
    if (kind) *kind = (int)failure.kind;
    if (step) *step = failure.step;
    if (bucket) *bucket = failure.bucket;
    for (int rank = 0; failure.kind && rank < gs_comm_world_size(comm->comm); rank++) {
        if (!gs_comm_failure_names(&failure, rank)) continue;
        if (ranks && count < most) ranks[count] = rank;
        count++;
    }
    return count;
}

const char *gs_ffi_comm_backend(const gs_ffi_comm *comm) {
    return comm && comm->comm ? gs_comm_backend_name(comm->comm) : "";
}

void gs_ffi_comm_abort(gs_ffi_comm *comm, const char *reason) {
    if (comm && comm->comm) gs_comm_abort(comm->comm, reason ? reason : "the host said so");
}

int gs_ffi_comm_wait_ended(gs_ffi_comm *comm, int64_t within_ns) {
    gs_status status = check_open(comm);
    if (!status.code) status = gs_comm_wait_ended(comm->comm, gs_ffi_deadline(within_ns));
    return gs_ffi_keep(comm, status);
}

void gs_ffi_comm_free(gs_ffi_comm *comm) {
    if (!comm) return;
    gs_comm_destroy(comm->comm);
    free(comm);
}
