#include "gradsync/comm/net/lane.h"

#include <string.h>

#include "core/clock.h"
#include "core/failpoint.h"

// Cut collectives that move at a time: the second fills the gap at the end of the first. Each has a
// stage and a hold.
#define MOST_MOVING 2

void gs_net_lane_open(gs_net_lane *lane, gs_net_party *party, int number) {
    lane->party = party;
    lane->number = number;
}

void gs_net_lane_close(gs_net_lane *lane) {
    for (size_t i = 0; i < GS_NET_MAX_KNOWN; i++) {
        gs_net_work_destroy(lane->works[i]);
        lane->works[i] = NULL;
    }
}

void gs_net_lane_restore(gs_net_lane *lane) {
    for (uint64_t i = gs_net_lane_finished(lane) + 1; i <= lane->taken; i++)
        gs_net_work_restore(lane->works[i % GS_NET_MAX_KNOWN]);
}

static gs_net_stamps *stamps_of(gs_net_lane *lane, uint64_t sequence) {
    return &lane->stamps[sequence % GS_NET_MAX_POSTED];
}

static void stamp(_Atomic int64_t *at_ns, int64_t ns) {
    atomic_store_explicit(at_ns, ns, memory_order_relaxed);
}

void gs_net_lane_post(gs_net_lane *lane, uint64_t sequence, const gs_collective *collective,
                      const gs_net_shares *shares) {
    gs_net_stamps *stamps = stamps_of(lane, sequence);
    lane->posts[sequence % GS_NET_MAX_POSTED] = *collective;
    lane->shares[sequence % GS_NET_MAX_POSTED] = shares;
    stamp(&stamps->posted_ns, gs_now_ns());
    stamp(&stamps->all_arrived_ns, 0);
    stamp(&stamps->finished_ns, 0);
    atomic_store_explicit(&lane->posted, sequence, memory_order_release);
}

static gs_net_work **slot_of(gs_net_lane *lane, uint64_t sequence) {
    return &lane->works[sequence % GS_NET_MAX_KNOWN];
}

static gs_status find_work(gs_net_lane *lane, uint64_t sequence, gs_net_work **out) {
    gs_net_work **slot = slot_of(lane, sequence);
    if (!*slot) *slot = gs_net_work_create(lane->party, lane->number, sequence);
    if (!*slot) return gs_error(GS_RESOURCE_EXHAUSTED, "collective: out of memory");
    *out = *slot;
    return gs_ok();
}

// An error that is not between ranks is this one's.
static gs_status note_cause(gs_net_lane *lane, const gs_net_work *work, gs_status status) {
    if (!status.code || lane->cause.kind) return status;
    lane->cause = gs_net_work_failure(work, GS_COMM_FAILURE_DEVICE);
    gs_comm_failure_accuse(&lane->cause, lane->party->rank);
    return status;
}

static gs_status take_posts(gs_net_lane *lane, bool *moved) {
    uint64_t posted = atomic_load_explicit(&lane->posted, memory_order_acquire);
    while (lane->taken < posted) {
        gs_net_work *work = NULL;
        uint64_t sequence = lane->taken + 1;
        GS_TRY(find_work(lane, sequence, &work));
        lane->taken = sequence;
        size_t place = sequence % GS_NET_MAX_POSTED;
        GS_TRY(note_cause(
            lane, work, gs_net_work_post(work, &lane->posts[place], lane->shares[place])));
        *moved = true;
    }
    return gs_ok();
}

static int count_moving(gs_net_lane *lane) {
    int moving = 0;
    for (uint64_t i = gs_net_lane_finished(lane) + 1; i <= lane->started; i++)
        moving += !(*slot_of(lane, i))->course.is_small;
    return moving;
}

static gs_status start_works(gs_net_lane *lane, bool *moved) {
    while (lane->started < lane->taken) {
        gs_net_work *work = *slot_of(lane, lane->started + 1);
        if (!gs_net_work_is_claimed(work)) return gs_ok();
        if (!work->course.is_small && count_moving(lane) >= MOST_MOVING) return gs_ok();
        stamp(&stamps_of(lane, work->sequence)->all_arrived_ns, gs_now_ns());
        GS_TRY(note_cause(lane, work, gs_net_work_start(work, &lane->cause)));
        lane->started++;
        *moved = true;
    }
    return gs_ok();
}

static gs_status finish_works(gs_net_lane *lane, bool *moved) {
    uint64_t finished = gs_net_lane_finished(lane);
    while (finished < lane->started) {
        gs_net_work **slot = slot_of(lane, finished + 1);
        if (!gs_net_work_is_complete(*slot)) return gs_ok();
        GS_FAILPOINT("comm.done");
        gs_net_work_finish(*slot);
        gs_net_work_destroy(*slot);
        *slot = NULL;
        finished++;
        stamp(&stamps_of(lane, finished)->finished_ns, gs_now_ns());
        atomic_store_explicit(&lane->finished, finished, memory_order_release);
        *moved = true;
    }
    return gs_ok();
}

gs_status gs_net_lane_move(gs_net_lane *lane, bool *moved) {
    GS_TRY(take_posts(lane, moved));
    GS_TRY(start_works(lane, moved));
    for (uint64_t i = gs_net_lane_finished(lane) + 1; i <= lane->started; i++) {
        gs_net_work *work = *slot_of(lane, i);
        GS_TRY(note_cause(lane, work, gs_net_work_advance(work, moved)));
    }
    return finish_works(lane, moved);
}

// Of a collective that is not finished, and not further ahead than a peer can be.
static bool is_plausible(gs_net_lane *lane, uint64_t sequence) {
    uint64_t posted = atomic_load_explicit(&lane->posted, memory_order_acquire);
    return sequence > gs_net_lane_finished(lane) && sequence <= posted + GS_NET_MAX_POSTED;
}

static gs_status blame_peer(gs_net_lane *lane, int peer, const gs_net_header *header,
                            gs_status status) {
    if (status.code != GS_DATA_LOSS) return status;
    lane->cause = (gs_comm_failure){.kind = GS_COMM_FAILURE_DAMAGED,
                                    .reporter = lane->party->rank,
                                    .lane = lane->number,
                                    .sequence = header->sequence,
                                    .bucket = -1};
    gs_comm_failure_accuse(&lane->cause, peer);
    return status;
}

gs_status gs_net_lane_place(gs_net_lane *lane, int peer, const gs_net_header *header, void **body) {
    gs_net_work *work = NULL;
    if (!is_plausible(lane, header->sequence))
        return blame_peer(lane, peer, header,
                          gs_error(GS_DATA_LOSS, "rank %d speaks of collective %llu of lane %d",
                                   peer, (unsigned long long)header->sequence, lane->number));
    GS_TRY(find_work(lane, header->sequence, &work));
    return blame_peer(lane, peer, header, gs_net_work_place(work, peer, header, body));
}

gs_status gs_net_lane_came(gs_net_lane *lane, int peer, const gs_net_header *header) {
    gs_net_work *work = *slot_of(lane, header->sequence);
    return blame_peer(lane, peer, header, gs_net_work_came(work, peer, header));
}

gs_work_times gs_net_lane_times(const gs_net_lane *lane, uint64_t sequence) {
    const gs_net_stamps *stamps = &lane->stamps[sequence % GS_NET_MAX_POSTED];
    int64_t arrived_ns = atomic_load_explicit(&stamps->all_arrived_ns, memory_order_relaxed);
    return (gs_work_times){
        .posted_ns = atomic_load_explicit(&stamps->posted_ns, memory_order_relaxed),
        .all_arrived_ns = arrived_ns,
        .started_ns = arrived_ns,
        .finished_ns = atomic_load_explicit(&stamps->finished_ns, memory_order_relaxed)};
}

const gs_net_work *gs_net_lane_first(const gs_net_lane *lane) {
    uint64_t sequence = gs_net_lane_finished(lane) + 1;
    return sequence <= lane->taken ? lane->works[sequence % GS_NET_MAX_KNOWN] : NULL;
}
