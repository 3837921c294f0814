// The memory that the ranks of one host share: who has posted what, who has finished, who lives,
// and everybody's arena.
//
// Each rank owns a control block, with a part for each lane, that it alone maps writable: a crashed peer
// can scribble on nothing that others decide by. One page is writable by all: the abort word, the lives, the event
// to sleep on. All of it is anonymous memory passed by descriptor: nothing to leak. How the ranks
// come by each other's descriptors is shm_handshake.h.
//
// A life is a robust mutex that a rank's moving thread holds from begin to end of the communicator;
// the kernel releases it at that thread's death, within microseconds, whatever the process was
// doing.
#ifndef GRADSYNC_COMM_SHM_SEGMENT_H
#define GRADSYNC_COMM_SHM_SEGMENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/status.h"
#include "gradsync/comm/collective.h"
#include "gradsync/comm/comm_failure.h"
#include "gradsync/comm/waiter.h"

#define GS_SHM_MAX_RANKS 64
#define GS_SHM_MAX_POSTED 1024  // collectives in flight in a lane
#define GS_SHM_FLAT_SLOTS 8
#define GS_SHM_FLAT_BYTES ((size_t)16384)
#define GS_SHM_CHUNK_SLOTS 4
#define GS_SHM_CHUNK_BYTES ((size_t)65536)
#define GS_SHM_MAGIC UINT64_C(0x31307368636e7973)

typedef struct gs_shm_post {
    _Alignas(128) _Atomic uint64_t sequence;  // stored last: the rank has arrived
    gs_collective_claim claim;                           // with the sequence in the first 64 bytes
    // Where the data lies in the rank's arena, counted from 1; 0: elsewhere.
    uint64_t send_offset, recv_offset, part_stride_bytes;
} gs_shm_post;

typedef struct gs_shm_counter {
    _Alignas(128) _Atomic uint64_t value;
} gs_shm_counter;

typedef struct gs_shm_lane_block {
    gs_shm_counter done;  // all collectives of the lane up to here are processed by this rank
    // The chunk pipeline, counted over all collectives: copied in, own slice reduced, read to the
    // end.
    gs_shm_counter chunks_in, chunks_out, chunks_read;
    gs_shm_post posts[GS_SHM_MAX_POSTED];  // collective q at q mod GS_SHM_MAX_POSTED
    _Alignas(4096) unsigned char flat[GS_SHM_FLAT_SLOTS][GS_SHM_FLAT_BYTES];
    unsigned char chunk_in[GS_SHM_CHUNK_SLOTS][GS_SHM_CHUNK_BYTES];
    unsigned char chunk_out[GS_SHM_CHUNK_SLOTS][GS_SHM_CHUNK_BYTES];
} gs_shm_lane_block;

typedef struct gs_shm_control {
    uint64_t magic;
    uint32_t generation;
    int32_t rank;
    _Atomic uint64_t proof;     // of the handshake: the segment's nonce, written by this rank
    _Atomic uint32_t has_left;  // the rank ended its communicator in peace
    gs_shm_lane_block lanes[];  // as many as the communicator has
} gs_shm_control;

typedef struct gs_shm_life {
    _Alignas(128) pthread_mutex_t mutex;
} gs_shm_life;

// A gs_comm_failure, as ranks of one host pass it on.
typedef struct gs_shm_cause {
    uint64_t accused, sequence;
    int64_t step;
    int32_t kind, reporter, lane, bucket;
} gs_shm_cause;

typedef struct gs_shm_common {
    uint64_t magic, nonce;
    gs_futex_event event;  // notified after everything that a peer may wait for
    _Alignas(128) _Atomic uint32_t abort_state;
    int32_t abort_code;
    char abort_reason[252];
    gs_shm_cause abort_cause;
    gs_shm_life lives[GS_SHM_MAX_RANKS];
} gs_shm_common;

typedef struct gs_shm_segment {
    int rank, world_size, num_lanes;
    uint32_t generation;
    int num_cores;      // that all ranks have together
    size_t flat_bytes;  // the most that goes through the flat slots; ≤ GS_SHM_FLAT_BYTES
    gs_shm_common *common;
    gs_shm_control *own;
    const gs_shm_control *controls[GS_SHM_MAX_RANKS];  // the own one, too
    unsigned char *arenas[GS_SHM_MAX_RANKS];           // own one borrowed; NULL: none
    size_t arena_bytes[GS_SHM_MAX_RANKS];
    bool holds_life;        // the own one; moving thread
    pthread_t life_holder;  // while it is held
    bool owes_notice;       // moving thread: something was stored that a sleeping peer may wait for
} gs_shm_segment;

// What all ranks say and move in one lane.
typedef struct gs_shm_lane_blocks {
    gs_shm_segment *segment;
    int lane;
    gs_shm_lane_block *own;
    const gs_shm_lane_block *of[GS_SHM_MAX_RANKS];  // the own one, too
} gs_shm_lane_blocks;

gs_shm_lane_blocks gs_shm_blocks_of_lane(gs_shm_segment *segment, int lane);

// Fetches a line for writing while there is time: a store to a line that a peer has read would wait
// for it later.
static inline void gs_shm_prefetch_for_write(void *line) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(unsigned char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

// The moving thread. A notice costs a fence, which waits for the stores before it: so it is given once for
// several stores, and not before the first look at the peers; but always before time is spent here.
static inline void gs_shm_give_notice(gs_shm_segment *segment) {
    if (!segment->owes_notice) return;
    segment->owes_notice = false;
    gs_futex_event_notify(&segment->common->event);
}

// Memory files, sealed; the caller closes the descriptor.
GS_NODISCARD gs_status gs_shm_make_control(int *fd, gs_shm_segment *segment);
GS_NODISCARD gs_status gs_shm_make_common(int *fd, gs_shm_segment *segment, uint64_t nonce);
// Maps what a peer sent. Refused unless it is sealed against shrinking and large enough.
GS_NODISCARD gs_status gs_shm_map_common(gs_shm_segment *segment, int fd, uint64_t nonce);
GS_NODISCARD gs_status gs_shm_map_control(gs_shm_segment *segment, int rank, int fd);
GS_NODISCARD gs_status gs_shm_map_arena(gs_shm_segment *segment, int rank, int fd, size_t bytes);
void gs_shm_unmap(gs_shm_segment *segment);

typedef enum gs_shm_health {
    GS_SHM_ALIVE = 0,
    GS_SHM_LEFT,
    GS_SHM_DEAD,
    GS_SHM_DAMAGED
} gs_shm_health;

// The moving thread: holds the own life from here on; end gives it back.
GS_NODISCARD gs_status gs_shm_begin_life(gs_shm_segment *segment);
void gs_shm_end_life(gs_shm_segment *segment);
bool gs_shm_life_goes_on(gs_shm_segment *segment, int rank);  // it may still store
gs_shm_health gs_shm_check_life(gs_shm_segment *segment, int rank);
bool gs_shm_is_damaged(const gs_shm_segment *segment, int rank);  // by what its block begins with

// The first reason wins, with its failure, which is all that the other ranks know of it. Any thread.
void gs_shm_abort(gs_shm_segment *segment, gs_status reason, const gs_comm_failure *failure);
void gs_shm_abort_failure(const gs_shm_segment *segment, gs_comm_failure *out);  // none: no abort yet
bool gs_shm_aborted(const gs_shm_segment *segment);
gs_status gs_shm_abort_reason(const gs_shm_segment *segment);

#endif
