#include "tests/support/counting_backend.h"

#include "gradsync/comm/backends.h"

static counted_bytes counted;
static int world_size;

static gs_status create(void **out, const gs_comm_options *options, gs_stages *stages, char *reason,
                        size_t reason_bytes, gs_deadline deadline) {
    world_size = options->world_size;
    return gs_comm_shm.create(out, options, stages, reason, reason_bytes, deadline);
}

static double times_in_a_ring(const gs_collective *collective) {
    double others = world_size - 1;
    switch (collective->kind) {
    case GS_ALLREDUCE:
        return 2 * others / world_size;
    case GS_ALLGATHER:
    case GS_REDUCE_SCATTER:
        return others;
    default:
        return 1;
    }
}

static gs_status post(void *backend, int lane, uint64_t sequence, const gs_collective *collective) {
    if (collective && collective->bucket >= 0) {
        size_t bytes = collective->kind == GS_BARRIER ? 0 : gs_collective_sent_bytes(collective);
        counted.in_a_ring += (double)bytes * times_in_a_ring(collective);
        counted.num_collectives++;
    }
    return gs_comm_shm.post(backend, lane, sequence, collective);
}

static gs_status wait(void *backend, int lane, uint64_t sequence, gs_deadline deadline) {
    return gs_comm_shm.wait(backend, lane, sequence, deadline);
}

static void abort_shm(void *backend, const char *reason) {
    gs_comm_shm.abort(backend, reason);
}

static gs_status wait_ended(void *backend, gs_comm_failure *lingering, gs_deadline deadline) {
    return gs_comm_shm.wait_ended(backend, lingering, deadline);
}

static void destroy(void *backend) {
    gs_comm_shm.destroy(backend);
}

static uint64_t finished(const void *backend, int lane) {
    return gs_comm_shm.finished(backend, lane);
}

static bool times(const void *backend, int lane, uint64_t sequence, gs_work_times *out) {
    return gs_comm_shm.times(backend, lane, sequence, out);
}

static const char *algorithm(const void *backend, const gs_collective *collective) {
    return gs_comm_shm.algorithm(backend, collective);
}

static void explain(void *backend, gs_comm_failure *out) {
    gs_comm_shm.explain(backend, out);
}

const gs_comm_backend counting_backend = {.name = "counting",
                                          .wire = GS_WIRE_NONE,
                                          .create = create,
                                          .post = post,
                                          .wait = wait,
                                          .abort = abort_shm,
                                          .wait_ended = wait_ended,
                                          .destroy = destroy,
                                          .finished = finished,
                                          .times = times,
                                          .algorithm = algorithm,
                                          .explain = explain};

counted_bytes counting_backend_take(void) {
    counted_bytes taken = counted;
    counted = (counted_bytes){0};
    return taken;
}
