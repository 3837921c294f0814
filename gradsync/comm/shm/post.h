// What ranks say about a collective before a byte of it is touched, and whether they say the same.
#ifndef GRADSYNC_COMM_SHM_POST_H
#define GRADSYNC_COMM_SHM_POST_H

#include <stdbool.h>
#include <stdint.h>

#include "gradsync/comm/collective.h"
#include "gradsync/comm/shm/segment.h"

typedef enum gs_shm_algorithm {
    GS_SHM_UNDECIDED = 0,  // direct or pipeline, by where everybody's buffers turn out to be
    GS_SHM_NONE,           // nothing to move
    GS_SHM_FLAT,
    GS_SHM_DIRECT,
    GS_SHM_PIPELINE
} gs_shm_algorithm;

// Where the data of a rank's collective lies, copied out of its post: checked once and not read
// again, since a rank gone wild may still write there.
typedef struct gs_shm_place {
    uint64_t send_offset, recv_offset, part_stride_bytes;  // as in gs_shm_post
} gs_shm_place;

// By what is equal on all ranks.
gs_shm_algorithm gs_shm_choose_early(const gs_shm_segment *segment,
                                     const gs_collective *collective);
// Once all have arrived: direct if all buffers that it would touch lie in arenas.
gs_shm_algorithm gs_shm_choose_late(const gs_shm_segment *segment, const gs_shm_place *places,
                                    const gs_collective *collective);

// Whether the own buffers do: what choose_late would say if all ranks' buffers lay alike.
bool gs_shm_lies_in_arena(const gs_shm_segment *segment, const gs_collective *collective);

// Everything of the own post but its sequence, which publishes it.
//   algorithm  the early choice
void gs_shm_fill_post(const gs_shm_lane_blocks *blocks, uint64_t sequence,
                      const gs_collective *collective, gs_shm_algorithm algorithm);
const gs_shm_post *gs_shm_post_of(const gs_shm_lane_blocks *blocks, int rank, uint64_t sequence);
static inline bool gs_shm_has_arrived(const gs_shm_lane_blocks *blocks, int rank,
                                      uint64_t sequence) {
    const gs_shm_post *post = &blocks->of[rank]->posts[sequence % GS_SHM_MAX_POSTED];
    return atomic_load_explicit(&post->sequence, memory_order_acquire) == sequence;
}

// Of a collective of this rank, with nobody accused.
gs_comm_failure gs_shm_failure_of(const gs_shm_lane_blocks *blocks, uint64_t sequence,
                                  const gs_collective *collective, gs_comm_failure_kind kind);

// All have arrived: FAILED_PRECONDITION names the rank that posted something else, and both things;
// DATA_LOSS names a rank whose post points outside its arena. Where the algorithm is undecided,
// `places` gets everybody's. After an error `cause` says of what kind, and whom it accuses: of claims that
// differ all that are not what most ranks posted, and between equals what the lower rank did.
GS_NODISCARD gs_status gs_shm_check_posts(const gs_shm_lane_blocks *blocks, uint64_t sequence,
                                          const gs_collective *collective,
                                          gs_shm_algorithm algorithm, gs_shm_place *places,
                                          gs_comm_failure *cause);
// Whether the word that says what `rank` has posted in the slot of `sequence` can be one.
bool gs_shm_post_is_plausible(const gs_shm_lane_blocks *blocks, int rank, uint64_t sequence);

#endif
