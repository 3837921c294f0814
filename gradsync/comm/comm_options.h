// What a communicator is made of: who the rank is, how ranks reach each other, and what it borrows.
#ifndef GRADSYNC_COMM_COMM_OPTIONS_H
#define GRADSYNC_COMM_COMM_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/tensor/arena.h"
#include "kernels/device.h"

#define GS_COMM_MAX_LANES 8

// all_bytes = world_size · bytes, rank after rank; every rank passes the same `bytes` (≤ 64 KiB)
// and the same tags in the same order. Blocks until all have come or the deadline passes.
typedef gs_status (*gs_exchange)(void *ctx, const char *tag, const void *mine, size_t bytes,
                                 void *all, gs_deadline deadline);

typedef enum gs_helper_thread {
    GS_HELPER_AUTO = 0,  // where a core is spare beside the device's threads, for each rank of the host
    GS_HELPER_OFF,       // progress at every post and wait of the owner
    GS_HELPER_ON
} gs_helper_thread;

typedef struct gs_comm_options {
    const char *backend;  // "auto", "self", "shm", "nccl"; NULL: auto
    int rank, world_size;
    uint32_t generation;  // of the membership; nothing from another one is accepted
    gs_exchange exchange;
    void *exchange_ctx;
    // Asked again and again where create waits for ranks other than by `exchange`: an error ends
    // it. NULL: only the deadline does.
    gs_status (*check)(void *ctx);
    void *check_ctx;
    gs_arena *arena;    // borrows until destroy; in-place collectives want it; may be NULL
    gs_device *device;  // borrows until destroy; its kernels reduce
    gs_helper_thread helper;
    int ranks_on_host;  // 0: world_size
    int num_lanes;      // 0: 1; at most GS_COMM_MAX_LANES, the same on all ranks
} gs_comm_options;

#endif
