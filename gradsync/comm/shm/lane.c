#include "gradsync/comm/shm/lane.h"

#include "core/clock.h"
#include "core/failpoint.h"

void gs_shm_lane_open(gs_shm_lane *lane, gs_shm_segment *segment, int number, gs_device *device) {
    lane->mover = (gs_shm_mover){
        .segment = segment, .blocks = gs_shm_blocks_of_lane(segment, number), .device = device};
}

static gs_shm_work *work_of(gs_shm_lane *lane, uint64_t sequence) {
    return &lane->works[sequence % GS_SHM_MAX_POSTED];
}

static void stamp(_Atomic int64_t *at_ns) {
    atomic_store_explicit(at_ns, gs_now_ns(), memory_order_relaxed);
}

void gs_shm_lane_post(gs_shm_lane *lane, uint64_t sequence, const gs_collective *collective) {
    gs_shm_work *work = work_of(lane, sequence);
    work->collective = *collective;
    stamp(&work->posted_ns);
    atomic_store_explicit(&work->all_arrived_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&work->started_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&work->finished_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&lane->posted, sequence, memory_order_release);
}

// What a peer says to have processed; 0 when that cannot be: nobody gets through a collective to
// which this rank did not come.
static uint64_t done_of(const gs_shm_lane *lane, int rank) {
    uint64_t done =
        atomic_load_explicit(&lane->mover.blocks.of[rank]->done.value, memory_order_acquire);
    return done <= atomic_load_explicit(&lane->posted, memory_order_acquire) ? done : 0;
}

// Whether every rank has processed `sequence`. Looks at the others only when it has to.
static bool all_have_done(gs_shm_lane *lane, uint64_t sequence) {
    const gs_shm_segment *segment = lane->mover.segment;
    if (lane->all_done >= sequence) return true;
    uint64_t least = lane->processed;
    for (int i = 0; i < segment->world_size && least >= sequence; i++) {
        if (i == segment->rank) continue;
        uint64_t done = done_of(lane, i);
        if (done < least) least = done;
    }
    if (least < sequence) return false;
    lane->all_done = least;
    return true;
}

// A post and a slot may be written anew once everybody is through with their last use.
static bool may_publish(gs_shm_lane *lane, uint64_t sequence, const gs_shm_work *work) {
    if (sequence > GS_SHM_MAX_POSTED && !all_have_done(lane, sequence - GS_SHM_MAX_POSTED))
        return false;
    return work->algorithm != GS_SHM_FLAT ||
           all_have_done(lane, lane->flat_users[lane->num_flats % GS_SHM_FLAT_SLOTS]);
}

static gs_status publish_posts(gs_shm_lane *lane, uint64_t posted, gs_shm_moves *moves) {
    const gs_shm_lane_blocks *blocks = &lane->mover.blocks;
    while (lane->published < posted) {
        uint64_t sequence = lane->published + 1;
        gs_shm_work *work = work_of(lane, sequence);
        work->algorithm = gs_shm_choose_early(blocks->segment, &work->collective);
        if (!may_publish(lane, sequence, work)) break;
        GS_FAILPOINT("comm.publish");
        if (work->algorithm == GS_SHM_FLAT) {
            work->flat_slot = (int)(lane->num_flats++ % GS_SHM_FLAT_SLOTS);
            lane->flat_users[work->flat_slot] = sequence;
            gs_shm_copy_to_flat(&lane->mover, &work->collective, work->flat_slot);
        }
        gs_shm_fill_post(blocks, sequence, &work->collective, work->algorithm);
        gs_shm_post *post = &blocks->own->posts[sequence % GS_SHM_MAX_POSTED];
        atomic_store_explicit(&post->sequence, sequence, memory_order_release);
        lane->published = sequence;
        blocks->segment->owes_notice = true;
        moves->moved = true;
    }
    return gs_ok();
}

static bool all_have_arrived(gs_shm_lane *lane, uint64_t sequence) {
    const gs_shm_lane_blocks *blocks = &lane->mover.blocks;
    while (lane->num_arrived < blocks->segment->world_size) {
        if (!gs_shm_has_arrived(blocks, lane->num_arrived, sequence)) return false;
        lane->num_arrived++;
    }
    return true;
}

// The first look at a collective for which all have come.
static gs_status start_work(gs_shm_lane *lane, uint64_t sequence, gs_shm_work *work) {
    gs_shm_mover *mover = &lane->mover;
    int64_t now_ns = gs_now_ns();
    atomic_store_explicit(&work->all_arrived_ns, now_ns, memory_order_relaxed);
    GS_TRY(gs_shm_check_posts(&mover->blocks, sequence, &work->collective, work->algorithm,
                              mover->places, &lane->cause));
    if (work->algorithm == GS_SHM_UNDECIDED)
        work->algorithm = gs_shm_choose_late(mover->segment, mover->places, &work->collective);
    atomic_store_explicit(&work->started_ns, now_ns, memory_order_relaxed);
    return gs_ok();
}

static gs_status process_work(gs_shm_lane *lane, uint64_t sequence, gs_shm_work *work,
                              gs_shm_moves *moves, bool *complete) {
    gs_shm_mover *mover = &lane->mover;
    *complete = true;
    if (!atomic_load_explicit(&work->started_ns, memory_order_relaxed)) {
        GS_TRY(start_work(lane, sequence, work));
        moves->moved = true;
    }
    switch (work->algorithm) {
    case GS_SHM_FLAT:
        gs_shm_run_flat(mover, &work->collective, work->flat_slot);
        break;
    case GS_SHM_DIRECT:
        gs_shm_give_notice(mover->segment);
        GS_TRY(gs_shm_run_direct(mover, &work->collective));
        break;
    case GS_SHM_PIPELINE: {
        bool chunk_moved;
        gs_shm_give_notice(mover->segment);
        GS_TRY(gs_shm_run_pipeline(mover, &work->collective, &chunk_moved, complete));
        moves->moved |= chunk_moved;
        break;
    }
    default:
        break;
    }
    return gs_ok();
}

static gs_status process_posts(gs_shm_lane *lane, gs_shm_moves *moves) {
    gs_shm_lane_block *own = lane->mover.blocks.own;
    bool has_turn = true;
    while (has_turn && lane->processed < lane->published) {
        uint64_t sequence = lane->processed + 1;
        gs_shm_work *work = work_of(lane, sequence);
        if (!all_have_arrived(lane, sequence)) return gs_ok();
        bool complete;
        GS_TRY(process_work(lane, sequence, work, moves, &complete));
        if (!complete) return gs_ok();
        GS_FAILPOINT("comm.done");
        atomic_store_explicit(&own->done.value, sequence, memory_order_release);
        lane->mover.segment->owes_notice = true;
        lane->processed = sequence;
        lane->num_arrived = 0;
        gs_shm_prefetch_for_write(&own->posts[(sequence + 1) % GS_SHM_MAX_POSTED]);
        moves->moved = true;
        has_turn = work->algorithm != GS_SHM_DIRECT && work->algorithm != GS_SHM_PIPELINE;
    }
    moves->more |= lane->processed < lane->published;
    return gs_ok();
}

static void finish_posts(gs_shm_lane *lane, gs_shm_moves *moves) {
    uint64_t finished = atomic_load_explicit(&lane->finished, memory_order_relaxed);
    uint64_t before = finished;
    while (finished < lane->processed) {
        gs_shm_work *work = work_of(lane, finished + 1);
        // Only direct writes into this rank's memory from outside.
        if (work->algorithm == GS_SHM_DIRECT && !all_have_done(lane, finished + 1)) break;
        stamp(&work->finished_ns);
        finished++;
    }
    if (finished == before) return;
    moves->moved = moves->finished = true;
    atomic_store_explicit(&lane->finished, finished, memory_order_release);
}

gs_status gs_shm_lane_move(gs_shm_lane *lane, gs_shm_moves *moves) {
    uint64_t posted = atomic_load_explicit(&lane->posted, memory_order_acquire);
    // Polling comes to nothing most of the time, and even a status that is ok costs something.
    if (lane->published < posted) GS_TRY(publish_posts(lane, posted, moves));
    if (lane->processed < lane->published && all_have_arrived(lane, lane->processed + 1))
        GS_TRY(process_posts(lane, moves));
    finish_posts(lane, moves);
    return gs_ok();
}

gs_shm_health gs_shm_lane_check_rank(gs_shm_lane *lane, int rank, uint64_t sequence) {
    const gs_shm_lane_blocks *blocks = &lane->mover.blocks;
    gs_shm_health health = gs_shm_check_life(blocks->segment, rank);
    bool plausible = atomic_load(&blocks->of[rank]->done.value) <= atomic_load(&lane->posted) &&
                     gs_shm_post_is_plausible(blocks, rank, sequence) &&
                     gs_shm_chunks_are_plausible(&lane->mover, rank);
    return health == GS_SHM_ALIVE && !plausible ? GS_SHM_DAMAGED : health;
}

gs_work_times gs_shm_lane_times(const gs_shm_lane *lane, uint64_t sequence) {
    const gs_shm_work *work = &lane->works[sequence % GS_SHM_MAX_POSTED];
    return (gs_work_times){
        .posted_ns = atomic_load_explicit(&work->posted_ns, memory_order_relaxed),
        .all_arrived_ns = atomic_load_explicit(&work->all_arrived_ns, memory_order_relaxed),
        .started_ns = atomic_load_explicit(&work->started_ns, memory_order_relaxed),
        .finished_ns = atomic_load_explicit(&work->finished_ns, memory_order_relaxed)};
}

int gs_shm_lane_list_missing(const gs_shm_lane *lane, uint64_t sequence,
                             int missing[GS_SHM_MAX_RANKS], bool *arrived) {
    const gs_shm_segment *segment = lane->mover.segment;
    int num_missing = 0;
    *arrived = false;
    for (int i = 0; i < segment->world_size; i++) {
        if (i != segment->rank && !gs_shm_has_arrived(&lane->mover.blocks, i, sequence))
            missing[num_missing++] = i;
    }
    if (num_missing) return num_missing;
    *arrived = true;
    for (int i = 0; i < segment->world_size; i++) {
        if (i != segment->rank && done_of(lane, i) < sequence) missing[num_missing++] = i;
    }
    return num_missing;
}

gs_comm_failure gs_shm_lane_failure(const gs_shm_lane *lane, uint64_t sequence,
                                    gs_comm_failure_kind kind) {
    return gs_shm_failure_of(&lane->mover.blocks, sequence, gs_shm_lane_collective(lane, sequence),
                             kind);
}

// An error that is not between ranks is this one's: its device does not do what it is told.
gs_comm_failure gs_shm_lane_cause(const gs_shm_lane *lane) {
    if (lane->cause.kind) return lane->cause;
    gs_comm_failure cause = gs_shm_lane_failure(lane, lane->processed + 1, GS_COMM_FAILURE_DEVICE);
    gs_comm_failure_accuse(&cause, lane->mover.segment->rank);
    return cause;
}
