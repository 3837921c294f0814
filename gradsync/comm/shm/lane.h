// One lane of a rank: its collectives in order, from post to finish.
//
// A collective goes through four points: posted by the owner; published, when its input is where
// others may read it; processed, when all have arrived and this rank has done its share; finished,
// when all that it waits for is done. A rank that runs ahead publishes and leaves: whoever comes
// later finds the others' part done. What lies half done in a lane holds up no other.
//
// What is the owner's and what the moving thread's is said with each function; facts are anybody's.
#ifndef GRADSYNC_COMM_SHM_LANE_H
#define GRADSYNC_COMM_SHM_LANE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gradsync/comm/collective.h"
#include "gradsync/comm/comm_failure.h"
#include "gradsync/comm/shm/mover.h"
#include "gradsync/comm/shm/post.h"
#include "gradsync/comm/shm/segment.h"
#include "kernels/device.h"

typedef struct gs_shm_work {
    // The owner's, before `posted` counts it.
    gs_collective collective;
    _Atomic int64_t posted_ns;
    // The moving thread's.
    gs_shm_algorithm algorithm;
    int flat_slot;
    _Atomic int64_t all_arrived_ns, started_ns, finished_ns;
} gs_shm_work;

typedef struct gs_shm_lane {
    _Atomic uint64_t posted;  // owner
    _Atomic uint64_t finished;
    // The moving thread's.
    gs_shm_mover mover;
    uint64_t published, processed;
    uint64_t all_done;  // every rank has processed all up to here, as last seen
    int num_arrived;    // ranks known to have published processed + 1
    uint64_t num_flats;
    uint64_t flat_users[GS_SHM_FLAT_SLOTS];  // the last collective in each slot
    gs_comm_failure cause;  // of what ranks said, once a move has found an error in it
    gs_shm_work works[GS_SHM_MAX_POSTED];
} gs_shm_lane;

// A zeroed one.
void gs_shm_lane_open(gs_shm_lane *lane, gs_shm_segment *segment, int number, gs_device *device);

// The owner.
void gs_shm_lane_post(gs_shm_lane *lane, uint64_t sequence, const gs_collective *collective);

typedef struct gs_shm_moves {
    bool moved, finished;  // anything; a collective
    bool more;             // a turn ended with something that could be moved left
} gs_shm_moves;

// The moving thread: one turn, which ends with a collective of many bytes. Adds to `moves`.
GS_NODISCARD gs_status gs_shm_lane_move(gs_shm_lane *lane, gs_shm_moves *moves);
// The moving thread: why the last move ended with an error.
gs_comm_failure gs_shm_lane_cause(const gs_shm_lane *lane);
// The moving thread: how it stands with a rank that `sequence` waits for.
gs_shm_health gs_shm_lane_check_rank(gs_shm_lane *lane, int rank, uint64_t sequence);

static inline uint64_t gs_shm_lane_finished(const gs_shm_lane *lane) {
    return atomic_load_explicit(&lane->finished, memory_order_acquire);
}

static inline bool gs_shm_lane_has_work(const gs_shm_lane *lane) {
    return atomic_load_explicit(&lane->posted, memory_order_acquire) != gs_shm_lane_finished(lane);
}

static inline const gs_collective *gs_shm_lane_collective(const gs_shm_lane *lane,
                                                          uint64_t sequence) {
    return &lane->works[sequence % GS_SHM_MAX_POSTED].collective;
}

gs_work_times gs_shm_lane_times(const gs_shm_lane *lane, uint64_t sequence);

// Who keeps `sequence` from being finished: ranks that did not arrive, else those that did not do
// their share. Returns how many.
int gs_shm_lane_list_missing(const gs_shm_lane *lane, uint64_t sequence,
                             int missing[GS_SHM_MAX_RANKS], bool *arrived);
// Of one of its collectives, with nobody accused.
gs_comm_failure gs_shm_lane_failure(const gs_shm_lane *lane, uint64_t sequence,
                                    gs_comm_failure_kind kind);

#endif
