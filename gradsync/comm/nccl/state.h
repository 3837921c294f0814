// What the files of the NCCL backend share. All of it belongs to the communicator's owner, except what
// `lock` guards and the atomics.
//
// A lane is a communicator of the library and a stream of its own: kernels of all of them fit on the device
// together, so that none that waits for a peer keeps another from starting.
//
// A collective waits in its lane's order until it is launched; one of host memory in pieces that go through staging
// memory. Launching a piece is a call of the library that may go on behind our back: until it has
// settled nothing else is launched in the lane. A launch is retired when its event says that the stream is through.
//
// Each collective is a launch of its own, on purpose: the library picks algorithms and channels by all that
// is in a group, so groups must be equal on all ranks, and what happens to be ready together is not.
//
//   compute stream ──point──▶ entry ──ready──▶ stream: started · copy in · NCCL · scale · copy out · finished
#ifndef GRADSYNC_COMM_NCCL_STATE_H
#define GRADSYNC_COMM_NCCL_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "gradsync/comm/comm_backend.h"
#include "gradsync/comm/nccl/library.h"

#define GS_NCCL_MAX_POSTED 1024
#define GS_NCCL_MAX_LAUNCHES 64
#define GS_NCCL_NUM_SLOTS 8
#define GS_NCCL_TREE_BYTES ((size_t)16 << 20)
#define GS_NCCL_SLOT_BYTES ((size_t)1 << 20)  // input in the first half, output in the second

typedef struct gs_nccl_work {
    gs_collective collective;
    gs_event *ready;  // the input's point; kept with the place of the ring
    bool follows;     // `ready` was recorded
    bool staged;      // a buffer is the host's
    size_t piece_count;  // elements of all pieces but the last
    size_t num_pieces, num_launched, num_done;
    int64_t posted_ns, started_ns, finished_ns;
} gs_nccl_work;

typedef struct gs_nccl_launch {
    gs_event *started, *finished;  // timed
    uint64_t sequence;
    size_t first, count;  // elements of the piece
    int slot;             // of staging memory; -1: none
    int phase;            // of a sum along a tree
} gs_nccl_launch;

typedef struct gs_nccl_comm gs_nccl_comm;

// Memory that a lane's collectives read and write, as the library knows it.
typedef struct gs_nccl_region {
    const char *name;  // for people
    void *memory;
    size_t bytes;
    void *window, *registration;  // at most one
} gs_nccl_region;

typedef struct gs_nccl_lane {
    gs_nccl_comm *comm;
    gs_nccl_handle *handle;  // NULL: none yet, or no more
    gs_nccl_region arena;
    gs_nccl_region own;  // owned: staging and tree memory
    void *own_ctx;       // the allocator's, when it is the library's memory; NULL: the device's
    gs_stream *stream;

    unsigned char *pinned, *staging;  // NUM_SLOTS slots each; staging has 64 bytes more, for barriers; of `own`
    uint64_t slots_taken, slots_given_back;
    void *tree_memory;  // TREE_BYTES of `own`, where there are other ranks

    uint64_t posted, launched;  // sequences; launched: all pieces
    gs_nccl_work works[GS_NCCL_MAX_POSTED];
    gs_nccl_launch launches[GS_NCCL_MAX_LAUNCHES];
    uint64_t num_launches, num_retired;
    bool launching;  // the last launch has not settled
    _Atomic uint64_t finished;
} gs_nccl_lane;

struct gs_nccl_comm {
    int rank, world_size;
    gs_device *device;  // borrows
    gs_arena *arena;    // borrows; may be NULL
    const gs_comm_options *options;  // until all is open, then NULL
    gs_nccl_library *library;
    gs_stream *entry;  // of all lanes
    gs_event *anchor, *next_anchor;  // timed; `anchor` happened at anchor_ns
    int64_t anchor_ns;
    int64_t looked_ns;  // by the last progress, for errors

    gs_interrupt interrupt;
    void (*abort_hung)(void *ctx, const char *reason);  // NULL: nobody is told
    void *abort_hung_ctx;
    bool is_leaked;  // it could not be left: nothing of it is given back

    gs_comm_failure late;  // of the last wait whose deadline passed
    atomic_bool failed;
    pthread_mutex_t lock;
    gs_status failure;     // by lock until failed
    gs_comm_failure cause;  // of it; by lock until failed
    int num_lanes;
    gs_nccl_lane lanes[];
};

static inline gs_nccl_work *gs_nccl_work_of(gs_nccl_lane *lane, uint64_t sequence) {
    return &lane->works[sequence % GS_NCCL_MAX_POSTED];
}

static inline gs_nccl_target gs_nccl_target_of(const gs_nccl_lane *lane) {
    return (gs_nccl_target){lane->comm->library, lane->handle, gs_stream_native(lane->stream)};
}

// init.c: everything that ranks agree on, the communicator, its memory, and the proof that it adds.
GS_NODISCARD gs_status gs_nccl_open(gs_nccl_comm *nccl, gs_stages *stages, char *reason,
                                    size_t reason_bytes, gs_deadline deadline);

// register.c
typedef struct gs_nccl_manner {
    bool windows, registers;  // what all ranks may
    const char *how;          // out: what became of it
} gs_nccl_manner;
// Of all ranks together, with the same manner.
GS_NODISCARD gs_status gs_nccl_register_region(gs_nccl_lane *lane, gs_nccl_region *region, gs_stages *stages,
                                               gs_nccl_manner *manner, gs_deadline deadline);

static inline uint64_t gs_nccl_finished(const gs_nccl_lane *lane) {
    return atomic_load_explicit(&lane->finished, memory_order_acquire);
}

// launch.c: what can be done without waiting for others: settles, retires, launches. After an error `at` is the
// lane where it came up.
GS_NODISCARD gs_status gs_nccl_advance(gs_nccl_comm *nccl, gs_nccl_lane **at);
// Keeps events' times within microseconds; where nothing is in flight.
GS_NODISCARD gs_status gs_nccl_anchor_clock(gs_nccl_comm *nccl, gs_deadline deadline);

// stage.c
// Whether GRADSYNC_NCCL_WINDOWS is "all": staging and tree memory are the library's, and registered as the arena is.
bool gs_nccl_registers_own(void);
GS_NODISCARD gs_status gs_nccl_make_staging(gs_nccl_lane *lane);
void gs_nccl_free_staging(gs_nccl_lane *lane);
// Whether no device memory takes part on this rank.
bool gs_nccl_is_host(const gs_nccl_comm *nccl, const gs_collective *collective);
// Where a work's buffers are, and so its pieces.
GS_NODISCARD gs_status gs_nccl_cut_work(gs_nccl_lane *lane, gs_nccl_work *work);
// The piece's buffers for the library; copies in what is to travel.
void gs_nccl_stage_in(gs_nccl_lane *lane, const gs_nccl_launch *launch, const void **send,
                      void **recv);
void gs_nccl_stage_out(gs_nccl_lane *lane, const gs_nccl_launch *launch);  // on the stream
void gs_nccl_hand_over(gs_nccl_lane *lane, const gs_nccl_launch *launch);  // when that is done

// tree.c: a sum along a tree in phases, each one launch of the library; *more: call again when
// this one has settled.
GS_NODISCARD gs_status gs_nccl_launch_tree(gs_nccl_lane *lane, gs_nccl_launch *launch, bool *more);
// Cuts a tree's work: pieces whose inputs fit into the workspace.
GS_NODISCARD gs_status gs_nccl_cut_tree(gs_nccl_lane *lane, gs_nccl_work *work);

// wait.c
GS_NODISCARD gs_status gs_nccl_wait(gs_nccl_comm *nccl, gs_nccl_lane *lane, uint64_t sequence, gs_deadline deadline);
// Moves what can be moved, and looks every few ms for errors that the library knows of.
GS_NODISCARD gs_status gs_nccl_progress(gs_nccl_comm *nccl);
// Until the library's last call in the lane has settled.
GS_NODISCARD gs_status gs_nccl_settle(const gs_nccl_lane *lane, const char *call, gs_deadline deadline);
// What became of register.c's work, undone.
GS_NODISCARD gs_status gs_nccl_deregister_region(gs_nccl_lane *lane, gs_nccl_region *region, gs_deadline deadline);
// The first failure wins; any thread.
void gs_nccl_fail(gs_nccl_comm *nccl, gs_status status, const gs_comm_failure *cause);
// Of the lane's oldest collective that is not finished, what an error of the library or the device is. The library does
// not say which rank is gone or asked for something else: nobody is accused then. A device is this rank's own.
gs_comm_failure gs_nccl_cause_of(gs_nccl_lane *lane, gs_code code);
GS_NODISCARD gs_status gs_nccl_failure(gs_nccl_comm *nccl);  // ok when there is none
// An abort of others while this rank comes up; ok from then on.
GS_NODISCARD gs_status gs_nccl_check(const gs_nccl_comm *nccl);
// Leaves the library's communicators, all together: cleanly where all is well, else by abort. Says so in the log
// when it takes long. When they do not come to an end within 5 s they are leaked, the log says what
// was in flight, and the host is told (gs_comm_options.abort_hung). Again: nothing.
void gs_nccl_leave(gs_nccl_comm *nccl);

#endif
