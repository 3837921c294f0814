// Collectives on GPUs: NCCL, found at run time, on a stream of its own beside the computation.
//
// What the library lacks is here: deadlines for every step of coming up, for every wait and for
// leaving; agreement before it is asked; host memory; sums along trees; an owner who is never inside a
// call that may not return. Sums run in the library's order, the same on all ranks and in every run
// with the same ranks, library and environment; 16-bit types are rounded at each addition.
//
// After an error the owner's next wait, or destroy, leaves the library's communicator by its abort.
// Other ranks learn of it by their own deadline, by a connection that closes, or from who told us.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradsync/comm/backends.h"
#include "gradsync/comm/nccl/memory.h"
#include "gradsync/comm/nccl/state.h"

static void close_lane(gs_nccl_lane *lane) {
    for (size_t i = 0; i < GS_NCCL_MAX_POSTED; i++) gs_event_destroy(lane->works[i].ready);
    for (size_t i = 0; i < GS_NCCL_MAX_LAUNCHES; i++) {
        gs_event_destroy(lane->launches[i].started);
        gs_event_destroy(lane->launches[i].finished);
    }
    gs_nccl_free_staging(lane);
    gs_stream_destroy(lane->stream);
}

static void destroy_nccl(void *backend) {
    gs_nccl_comm *nccl = backend;
    if (!nccl) return;
    gs_nccl_leave(nccl);
    if (nccl->is_leaked) return;
    for (int i = 0; i < nccl->num_lanes; i++) close_lane(&nccl->lanes[i]);
    gs_event_destroy(nccl->anchor);
    gs_event_destroy(nccl->next_anchor);
    gs_stream_destroy(nccl->entry);
    gs_nccl_library_close(nccl->library);
    pthread_mutex_destroy(&nccl->lock);
    free(nccl);
}

static gs_status create_nccl(void **out, const gs_comm_options *options, gs_stages *stages,
                             char *reason, size_t reason_bytes, gs_deadline deadline) {
    size_t lanes_bytes = (size_t)options->num_lanes * sizeof(gs_nccl_lane);
    gs_nccl_comm *nccl = calloc(1, sizeof *nccl + lanes_bytes);
    if (!nccl) return gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    pthread_mutex_init(&nccl->lock, NULL);
    nccl->rank = options->rank;
    nccl->world_size = options->world_size;
    nccl->device = options->device;
    nccl->arena = options->arena;
    nccl->interrupt = (gs_interrupt){.ask = options->interrupt, .ctx = options->interrupt_ctx};
    nccl->abort_hung = options->abort_hung;
    nccl->abort_hung_ctx = options->abort_hung_ctx;
    nccl->options = options;
    nccl->num_lanes = options->num_lanes;
    for (int i = 0; i < nccl->num_lanes; i++) nccl->lanes[i].comm = nccl;
    gs_status status = gs_nccl_open(nccl, stages, reason, reason_bytes, deadline);
    nccl->options = NULL;
    if (status.code) {
        gs_nccl_fail(nccl, status, &(gs_comm_failure){.reporter = nccl->rank, .bucket = -1});
        destroy_nccl(nccl);
        return status;
    }
    *out = nccl;
    return gs_ok();
}

// Where the input is final, kept until the collective's turn comes: the compute stream goes on.
static void mark_ready(gs_nccl_comm *nccl, gs_nccl_work *work) {
    work->follows = !gs_nccl_is_host(nccl, &work->collective);
    if (!work->follows) return;
    gs_stream_follow(nccl->entry, gs_device_stream(nccl->device));
    gs_event_record(work->ready, nccl->entry);
}

static gs_status add_work(gs_nccl_lane *lane, uint64_t sequence, const gs_collective *collective) {
    gs_nccl_work *work = gs_nccl_work_of(lane, sequence);
    gs_event *ready = work->ready;
    *work = (gs_nccl_work){
        .collective = *collective, .ready = ready, .posted_ns = gs_now_ns()};
    GS_TRY(gs_nccl_cut_work(lane, work));
    mark_ready(lane->comm, work);
    lane->posted = sequence;
    return gs_ok();
}

static gs_status post_nccl(void *backend, int lane, uint64_t sequence,
                           const gs_collective *collective) {
    gs_nccl_comm *nccl = backend;
    gs_nccl_lane *at = &nccl->lanes[lane];
    if (!collective) return gs_nccl_progress(nccl);
    GS_TRY(gs_nccl_failure(nccl));
    gs_status status = add_work(at, sequence, collective);
    if (!status.code) status = gs_nccl_advance(nccl, &at);
    if (!status.code) return gs_ok();
    gs_comm_failure cause = gs_nccl_cause_of(at, status.code);
    gs_nccl_fail(nccl, gs_status_prefix(status, "rank %d", nccl->rank), &cause);
    return gs_nccl_failure(nccl);
}

static gs_status wait_nccl(void *backend, int lane, uint64_t sequence, gs_deadline deadline) {
    gs_nccl_comm *nccl = backend;
    return gs_nccl_wait(nccl, &nccl->lanes[lane], sequence, deadline);
}

// What peers' kernels still do the library does not tell: it is left, and theirs end by an abort of their own.
static gs_status wait_nccl_ended(void *backend, gs_comm_failure *lingering, gs_deadline deadline) {
    (void)lingering;
    (void)deadline;
    gs_nccl_comm *nccl = backend;
    gs_nccl_leave(nccl);
    gs_comm_failure left = {.kind = GS_COMM_FAILURE_ABORTED, .reporter = nccl->rank, .bucket = -1};
    gs_nccl_fail(nccl, gs_error(GS_ABORTED, "rank %d has left the communicator", nccl->rank), &left);
    return gs_ok();
}

static void abort_nccl(void *backend, const char *reason) {
    gs_nccl_comm *nccl = backend;
    gs_comm_failure told = {
        .kind = GS_COMM_FAILURE_ABORTED, .reporter = nccl->rank, .bucket = -1};
    gs_nccl_fail(nccl, gs_error(GS_ABORTED, "%s", reason), &told);
}

static uint64_t finished_of_nccl(const void *backend, int lane) {
    const gs_nccl_comm *nccl = backend;
    return gs_nccl_finished(&nccl->lanes[lane]);
}

// NCCL does not tell when others arrived: the start is when this rank's part began.
static bool times_of_nccl(const void *backend, int lane, uint64_t sequence, gs_work_times *times) {
    const gs_nccl_comm *nccl = backend;
    const gs_nccl_work *work = &nccl->lanes[lane].works[sequence % GS_NCCL_MAX_POSTED];
    *times = (gs_work_times){.posted_ns = work->posted_ns,
                             .all_arrived_ns = work->started_ns,
                             .started_ns = work->started_ns,
                             .finished_ns = work->finished_ns};
    return true;
}

static const char *algorithm_of_nccl(const void *backend, const gs_collective *collective) {
    const gs_nccl_comm *nccl = backend;
    if (collective->kind != GS_BARRIER && !collective->count) return "none";
    if (collective->tree) return "nccl-tree";
    return gs_nccl_is_host(nccl, collective) && collective->kind != GS_BARRIER ? "nccl-staged"
                                                                             : "nccl";
}

static gs_stream *stream_of_nccl(const void *backend) {
    return ((const gs_nccl_comm *)backend)->entry;
}

static void explain_nccl(void *backend, gs_comm_failure *out) {
    gs_nccl_comm *nccl = backend;
    if (nccl->late.sequence > gs_nccl_finished(&nccl->lanes[nccl->late.lane])) {
        *out = nccl->late;
        return;
    }
    pthread_mutex_lock(&nccl->lock);
    if (atomic_load(&nccl->failed)) *out = nccl->cause;
    pthread_mutex_unlock(&nccl->lock);
}

const gs_comm_backend gs_comm_nccl = {.name = "nccl",
                                      .wire = GS_WIRE_COPY,
                                      .create = create_nccl,
                                      .post = post_nccl,
                                      .wait = wait_nccl,
                                      .abort = abort_nccl,
                                      .wait_ended = wait_nccl_ended,
                                      .destroy = destroy_nccl,
                                      .finished = finished_of_nccl,
                                      .times = times_of_nccl,
                                      .algorithm = algorithm_of_nccl,
                                      .stream = stream_of_nccl,
                                      .explain = explain_nccl,
                                      .allocator = &gs_nccl_memory};
