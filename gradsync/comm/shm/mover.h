// Moves the bytes of a lane's collectives through the segment, one after the other: what to read, what to add,
// where to store.
//
// Three algorithms. Flat: the input was copied into a slot before arrival and every rank takes all
// it needs from the slots; one synchronisation. Direct: a rank reads its slice of everybody's arena
// and stores the result into everybody's arena. Pipeline: 64 KiB chunks through slots, for memory
// that is in no arena. When to do what is lane.h's business, and waiting is nobody's here.
//
// All functions belong to the moving thread.
#ifndef GRADSYNC_COMM_SHM_MOVER_H
#define GRADSYNC_COMM_SHM_MOVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gradsync/comm/collective.h"
#include "gradsync/comm/shm/post.h"
#include "gradsync/comm/shm/segment.h"
#include "kernels/device.h"

typedef struct gs_shm_mover {
    gs_shm_segment *segment;
    gs_shm_lane_blocks blocks;
    gs_device *device;  // of the moving thread
    // The pipeline, counted over the lane's collectives. `first_chunk` is the first of the current one.
    uint64_t first_chunk, chunks_in, chunks_out, chunks_read;
    gs_shm_place places[GS_SHM_MAX_RANKS];  // of the collective that is moved directly
} gs_shm_mover;

void gs_shm_copy_to_flat(gs_shm_mover *mover, const gs_collective *collective, int slot);
void gs_shm_run_flat(gs_shm_mover *mover, const gs_collective *collective, int slot);
GS_NODISCARD gs_status gs_shm_run_direct(gs_shm_mover *mover, const gs_collective *collective);
// Moves chunks that can be moved now, of a long collective not all at once. *moved: at least one step;
// *complete: all chunks.
GS_NODISCARD gs_status gs_shm_run_pipeline(gs_shm_mover *mover, const gs_collective *collective,
                                           bool *moved, bool *complete);
// Whether the counters of `rank` can be ones: nobody is further ahead than there are slots.
bool gs_shm_chunks_are_plausible(const gs_shm_mover *mover, int rank);

#endif
