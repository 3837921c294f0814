// Row numbers that kernels read, written by the host piece by piece. On a GPU work that was
// enqueued may still read earlier pieces: they lie in pinned memory and are taken in turns.
#ifndef GRADSYNC_SPARSE_ROW_PLACES_H
#define GRADSYNC_SPARSE_ROW_PLACES_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "kernels/device.h"

#define GS_NUM_ROW_PLACES ((size_t)4096)  // of a piece

typedef struct gs_row_places {
    gs_device *device;  // borrowed
    int32_t *memory;
    int num_turns, next;
} gs_row_places;

// Release after an error, too.
GS_NODISCARD gs_status gs_row_places_init(gs_row_places *places, gs_device *device);
void gs_row_places_release(gs_row_places *places);
// Room for a piece. Waits for the compute stream when all turns have been taken.
GS_NODISCARD gs_status gs_row_places_take(gs_row_places *places, int32_t **piece);

#endif
