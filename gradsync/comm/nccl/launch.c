// One piece of a collective on the stream, from its launch to the day its event says that it is done.
#include <stdio.h>

#include "core/failpoint.h"
#include "gradsync/comm/nccl/state.h"

// A thread of the library launches; this is usually some tens of microseconds.
#define SETTLE_NS (200 * INT64_C(1000))
#define ANCHOR_NS (5 * GS_NS_PER_SEC)  // events count in float milliseconds: 0.5 µs after 5 s

gs_status gs_nccl_anchor_clock(gs_nccl_comm *nccl, gs_deadline deadline) {
    bool done = false;
    int64_t before_ns = gs_now_ns();
    gs_event_record(nccl->next_anchor, nccl->lanes[0].stream);
    do GS_TRY(gs_event_query(nccl->next_anchor, &done));
    while (!done && !gs_deadline_passed(deadline));
    if (!done) return gs_ok();
    gs_event *old = nccl->anchor;
    nccl->anchor = nccl->next_anchor;
    nccl->next_anchor = old;
    nccl->anchor_ns = before_ns + (gs_now_ns() - before_ns) / 2;
    return gs_ok();
}

static gs_status call_library(gs_nccl_lane *lane, const gs_nccl_launch *launch, const void *send,
                              void *recv) {
    const gs_collective *c = &gs_nccl_work_of(lane, launch->sequence)->collective;
    gs_nccl_target target = gs_nccl_target_of(lane);
    size_t count = launch->count;
    switch (c->kind) {
    case GS_ALLREDUCE:
        return gs_nccl_allreduce(&target, recv, send, count, gs_collective_sent_dtype(c), c->op);
    case GS_REDUCE:
        return gs_nccl_reduce(&target, recv, send, count, gs_collective_sent_dtype(c), c->op,
                              c->root);
    case GS_REDUCE_SCATTER:
        return gs_nccl_reduce_scatter(&target, recv, send, count, gs_collective_sent_dtype(c),
                                      c->op);
    case GS_ALLGATHER:
        return gs_nccl_allgather(&target, recv, send, count, c->dtype);
    case GS_BROADCAST:
        return gs_nccl_broadcast(&target, recv, send, count, c->dtype, c->root);
    default: {
        void *word = lane->staging + GS_NCCL_NUM_SLOTS * GS_NCCL_SLOT_BYTES;
        return gs_nccl_allreduce(&target, word, word, 1, GS_I32, GS_OP_SUM);
    }
    }
}

// The library's own scaled sum would keep it from its fastest kernels, and multiplies before it adds.
static void scale_result(gs_nccl_lane *lane, const gs_nccl_launch *launch, void *recv) {
    const gs_collective *c = &gs_nccl_work_of(lane, launch->sequence)->collective;
    if (!gs_collective_reduces(c) || c->scale == 0 || c->scale == 1) return;
    if (c->kind == GS_REDUCE && c->root != lane->comm->rank) return;
    const void *input = recv;
    gs_reduction scaling = {.outputs = &recv,
                            .inputs = &input,
                            .num_outputs = 1,
                            .num_inputs = 1,
                            .dtype = gs_collective_sent_dtype(c),
                            .op = c->op,
                            .scale = c->scale,
                            .count = launch->count};
    gs_device_kernels(lane->comm->device)->reduce(lane->stream, &scaling);
}

// 16 bits on their way: the library's collective is one of `wire`, between two casts.
static void cast_to_wire(gs_nccl_lane *lane, const gs_collective *c) {
    gs_collective_cast_to_wire(c, gs_device_kernels(lane->comm->device), lane->stream, c->wire,
                               c->send,
                               c->count * gs_collective_num_parts(c, lane->comm->world_size));
}

// Where the library leaves the result: in place, so of a reduce-scatter in the rank's own part.
static void *result_on_wire(const gs_nccl_lane *lane, const gs_collective *c) {
    size_t own = c->kind == GS_REDUCE_SCATTER ? (size_t)lane->comm->rank : 0;
    return (unsigned char *)c->wire + own * gs_collective_sent_bytes(c);
}

static void cast_from_wire(gs_nccl_lane *lane, const gs_collective *c) {
    if (c->kind == GS_REDUCE && c->root != lane->comm->rank) return;
    gs_device_kernels(lane->comm->device)
        ->cast(lane->stream, c->recv, c->dtype, result_on_wire(lane, c), c->wire_dtype, 1, c->count);
}

static gs_nccl_launch *last_launch(gs_nccl_lane *lane) {
    return &lane->launches[(lane->num_launches - 1) % GS_NCCL_MAX_LAUNCHES];
}

static bool is_tree(const gs_nccl_work *work) {
    return work->collective.tree != NULL && work->collective.count > 0;
}

// What follows the library's work on the stream.
static void close_launch(gs_nccl_lane *lane, gs_nccl_launch *launch) {
    const gs_nccl_work *work = gs_nccl_work_of(lane, launch->sequence);
    const gs_collective *collective = &work->collective;
    if (collective->kind != GS_BARRIER && collective->count > 0 && !is_tree(work)) {
        void *recv = launch->slot >= 0 ? (void *)(lane->staging +
                                                  (size_t)launch->slot * GS_NCCL_SLOT_BYTES +
                                                  GS_NCCL_SLOT_BYTES / 2)
                     : collective->wire_dtype ? result_on_wire(lane, collective)
                                              : collective->recv;
        scale_result(lane, launch, recv);
        if (collective->wire_dtype) cast_from_wire(lane, collective);
        gs_nccl_stage_out(lane, launch);
    }
    gs_event_record(launch->finished, lane->stream);
    lane->launching = false;
}

static gs_status settle_launch(gs_nccl_lane *lane) {
    bool in_progress = true;
    gs_deadline soon = gs_deadline_in_ns(SETTLE_NS);
    GS_TRY(gs_nccl_query(lane->comm->library, lane->handle, &in_progress));
    while (in_progress && !gs_deadline_passed(soon))
        GS_TRY(gs_nccl_query(lane->comm->library, lane->handle, &in_progress));
    if (in_progress) return gs_ok();
    gs_nccl_launch *launch = last_launch(lane);
    bool more = false;
    if (is_tree(gs_nccl_work_of(lane, launch->sequence)))
        GS_TRY(gs_nccl_launch_tree(lane, launch, &more));
    if (!more) close_launch(lane, launch);
    return gs_ok();
}

static gs_status stamp_work(gs_nccl_lane *lane, const gs_nccl_launch *launch, gs_nccl_work *work) {
    int64_t started_ns = 0, finished_ns = 0;
    GS_TRY(gs_event_elapsed(lane->comm->anchor, launch->started, &started_ns));
    GS_TRY(gs_event_elapsed(lane->comm->anchor, launch->finished, &finished_ns));
    started_ns += lane->comm->anchor_ns;
    finished_ns += lane->comm->anchor_ns;
    // The anchor is as good as this thread was prompt: no time before its cause, none in the future.
    int64_t now_ns = gs_now_ns();
    if (started_ns < work->posted_ns) started_ns = work->posted_ns;
    if (started_ns > now_ns) started_ns = now_ns;
    if (finished_ns < started_ns) finished_ns = started_ns;
    if (finished_ns > now_ns) finished_ns = now_ns;
    if (!work->started_ns) work->started_ns = started_ns;
    work->finished_ns = finished_ns;
    return gs_ok();
}

static gs_status retire_launches(gs_nccl_lane *lane) {
    uint64_t closed = lane->num_launches - (lane->launching ? 1 : 0);
    while (lane->num_retired < closed) {
        gs_nccl_launch *launch = &lane->launches[lane->num_retired % GS_NCCL_MAX_LAUNCHES];
        gs_nccl_work *work = gs_nccl_work_of(lane, launch->sequence);
        bool done;
        GS_TRY(gs_event_query(launch->finished, &done));
        if (!done) break;
        // An error of a kernel sticks to its stream: with nothing behind it this does not wait.
        if (lane->num_retired + 1 == lane->num_launches)
            GS_TRY(gs_stream_wait(lane->stream, gs_deadline_in_ms(100)));
        GS_TRY(stamp_work(lane, launch, work));
        gs_nccl_hand_over(lane, launch);
        lane->num_retired++;
        if (++work->num_done == work->num_pieces) {
            GS_FAILPOINT("comm.done");
            atomic_store_explicit(&lane->finished, launch->sequence, memory_order_release);
        }
    }
    return gs_ok();
}

static gs_status launch_piece(gs_nccl_lane *lane, gs_nccl_launch *launch, gs_nccl_work *work) {
    const gs_collective *collective = &work->collective;
    const void *send;
    void *recv;
    bool more;
    if (work->num_launched == 0 && work->follows) gs_stream_wait_event(lane->stream, work->ready);
    gs_event_record(launch->started, lane->stream);
    work->num_launched++;
    lane->launching = true;
    if (is_tree(work)) return gs_nccl_launch_tree(lane, launch, &more);
    if (collective->kind != GS_BARRIER && collective->count == 0) return gs_ok();
    gs_nccl_stage_in(lane, launch, &send, &recv);
    if (collective->wire_dtype) {
        cast_to_wire(lane, collective);
        send = collective->wire;
        recv = result_on_wire(lane, collective);
    }
    return call_library(lane, launch, send, recv);
}

static gs_status launch_next(gs_nccl_lane *lane, bool *launched) {
    *launched = false;
    if (lane->launching || lane->launched == lane->posted) return gs_ok();
    if (lane->num_launches - lane->num_retired == GS_NCCL_MAX_LAUNCHES) return gs_ok();
    uint64_t sequence = lane->launched + 1;
    gs_nccl_work *work = gs_nccl_work_of(lane, sequence);
    if (work->staged && lane->slots_taken - lane->slots_given_back == GS_NCCL_NUM_SLOTS)
        return gs_ok();
    gs_nccl_launch *launch = &lane->launches[lane->num_launches % GS_NCCL_MAX_LAUNCHES];
    launch->sequence = sequence;
    launch->first = work->num_launched * work->piece_count;
    launch->count = work->collective.count - launch->first;
    if (launch->count > work->piece_count) launch->count = work->piece_count;
    launch->slot = work->staged ? (int)(lane->slots_taken++ % GS_NCCL_NUM_SLOTS) : -1;
    launch->phase = 0;
    lane->num_launches++;
    *launched = true;
    GS_FAILPOINT("comm.publish");
    GS_TRY(launch_piece(lane, launch, work));
    if (work->num_launched == work->num_pieces) lane->launched = sequence;
    return gs_ok();
}

static bool is_idle(const gs_nccl_comm *nccl) {
    for (int i = 0; i < nccl->num_lanes; i++) {
        if (nccl->lanes[i].num_launches != nccl->lanes[i].num_retired) return false;
    }
    return true;
}

static gs_status advance_lane(gs_nccl_lane *lane) {
    bool launched = true;
    while (launched) {
        if (lane->launching) GS_TRY(settle_launch(lane));
        GS_TRY(retire_launches(lane));
        GS_TRY(launch_next(lane, &launched));
    }
    return gs_ok();
}

gs_status gs_nccl_advance(gs_nccl_comm *nccl, gs_nccl_lane **at) {
    *at = &nccl->lanes[0];
    if (is_idle(nccl) && gs_now_ns() - nccl->anchor_ns > ANCHOR_NS)
        GS_TRY(gs_nccl_anchor_clock(nccl, gs_deadline_in_ms(1)));
    for (int i = 0; i < nccl->num_lanes; i++) {
        *at = &nccl->lanes[i];
        GS_TRY(advance_lane(*at));
    }
    return gs_ok();
}
