// What a communicator is made of: who the rank is, how ranks reach each other, and what it borrows.
#ifndef GRADSYNC_COMM_COMM_OPTIONS_H
#define GRADSYNC_COMM_COMM_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/comm_failure.h"
#include "gradsync/tensor/arena.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

#define GS_COMM_MAX_LANES 8

// How some bytes of each rank reach the others, where they have no communicator yet: a barrier that
// carries data. Blocks until all that take part have come or the deadline passes.
//   tag        below 64 characters; unique among all that these ranks exchange in a generation
//   ranks      numbers in the world of who takes part, ascending, this one among them; NULL: all num_ranks
//              of the world. The same on all of them; others may meet at the same time
//   all        num_ranks · bytes, in the order of `ranks`; everyone passes the same `bytes` (≤ 64 KiB)
typedef gs_status (*gs_exchange)(void *ctx, const char *tag, const int *ranks, int num_ranks,
                                 const void *mine, size_t bytes, void *all, gs_deadline deadline);

typedef enum gs_helper_thread {
    GS_HELPER_AUTO = 0,  // where a core is spare beside the device's threads, for each rank of the host
    GS_HELPER_OFF,       // progress at every post and wait of the owner
    GS_HELPER_ON
} gs_helper_thread;

typedef struct gs_comm_options {
    const char *backend;  // "auto", "self", "shm", "net", "hosts", "nccl"; NULL: auto. The same on all ranks
    int rank, world_size;
    uint32_t generation;  // of the membership; nothing from another one is accepted
    gs_exchange exchange;
    void *exchange_ctx;
    // Asked again and again where create waits for ranks other than by `exchange`: an error ends
    // it. NULL: only the deadline does.
    gs_status (*check)(void *ctx);
    void *check_ctx;
    // Borrows until destroy; in-place collectives want it; may be NULL. One that an aborted communicator had is
    // refused until its ranks have ended (gs_comm_wait_ended).
    gs_arena *arena;
    gs_device *device;  // borrows until destroy; its kernels reduce
    gs_helper_thread helper;
    int ranks_on_host;  // 0: world_size
    int num_lanes;      // 0: 1; at most GS_COMM_MAX_LANES, the same on all ranks
    int reserved;       // 0
    // Asked at most every 100 ms inside every wait, on the thread that waits; not 0 ends the wait
    // with CANCELLED. gs_comm_wait may be called again; whatever waits for more than one collective
    // fails with it as with any other error. Must not call the communicator. NULL: nobody is asked.
    int (*interrupt)(void *ctx);
    void *interrupt_ctx;
    // nccl: told why the communicator cannot be left: kernels that do not end hold its memory and
    // its peers', and only the end of the process frees them. A supervised process ends here, with
    // GS_COMM_EXIT_ABORT_HUNG. NULL, or when it returns: what is held is leaked and the log says
    // so.
    void (*abort_hung)(void *ctx, const char *reason);
    void *abort_hung_ctx;
    // A group: a communicator of some ranks of the world, beside others. rank and world_size are those within
    // it then. For the call.
    const int *ranks;   // their world_size numbers in the world, ascending; NULL: 0 … world_size - 1
    // Part of all tags, so one of its own for each communicator that some rank makes in a generation: at most
    // 39 letters, digits or any of ._-/; NULL or "": that of the world.
    const char *group;
    const struct gs_comm_backend *own_backend;  // comm_backend.h, instead of `backend`; borrows until destroy
    void *own_backend_ctx;                      // for its create
    // net: the numeric address at which other ranks reach this one, and which its own connections come
    // from: "10.0.0.2", "fd00::2"; at most 45 characters. NULL or "": the loopback, for ranks of one host.
    const char *data_address;
    // Written where create fails because a rank did not reach another: PEER_LOST, which two they are, in numbers of the world and the
    // same on all ranks that heard of it; kind NONE where it failed for anything else. NULL: nobody wants to know.
    gs_comm_failure *unreached;
} gs_comm_options;

GS_END_DECLS

#endif
