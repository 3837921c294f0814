// What other ranks bring to be saved, between the thread that computes, which receives it, and the one that writes checkpoints, which
// gives it to the disk: whatever the disk does, the first never waits for it, and is told how much there is room for. Pieces wait in
// memory of a fixed size, parts on the disk (spill.h).
//
// Two threads: "computes" and "writes" below. Made and destroyed by either, while the other is not inside.
#ifndef WORKER_CHECKPOINT_PART_INTAKE_H
#define WORKER_CHECKPOINT_PART_INTAKE_H

#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "worker/checkpoint/spill.h"
#include "worker/state/state_snapshot.h"

#define GS_INTAKE_PIECE_BYTES ((size_t)4 << 20)
// In memory at a time.
#define GS_INTAKE_PIECES 8

typedef struct gs_brought_part {
    int rank;
    // Owned; of a state that all have whole, what is common is borrowed from the saver's own. What came is in `spill`, and NULL here.
    gs_state_snapshot snapshot;
    gs_spill *spill;   // owned; NULL: there is none
    gs_status status;  // not OK: it did not come, or could not be kept
} gs_brought_part;

typedef struct gs_part_intake gs_part_intake;

// `directory` of the job's checkpoints: looked at by the thread that writes alone.
GS_NODISCARD gs_status gs_part_intake_create(gs_part_intake **out, const char *directory, int most_parts);
void gs_part_intake_destroy(gs_part_intake *intake);  // NULL is fine

// Computes: the next part begins, of which so many bytes come. The snapshot is the intake's from here on. `status`: of what could be
// known already; not OK: nothing comes.
void gs_part_intake_begin(gs_part_intake *intake, int rank, gs_state_snapshot *snapshot, size_t bytes, gs_status status);
// Computes: pieces of it that there is room for now; 0: none by the deadline ({0}: it is not waited for); -1: it cannot be kept.
int gs_part_intake_room(gs_part_intake *intake, gs_deadline deadline);
// Computes: memory of a piece, into which it may come, where there is room.
uint8_t *gs_part_intake_piece(gs_part_intake *intake);
// Computes: so many bytes of it came, which follow those before.
void gs_part_intake_put(gs_part_intake *intake, size_t bytes);
void gs_part_intake_complete(gs_part_intake *intake);  // computes: the part is whole, and compared
// Computes, and lets go of it: nothing comes any more. `why`: what parts that are not whole are told; OK where all are.
void gs_part_intake_end(gs_part_intake *intake, gs_status why);

// Writes: what comes, until its end.
void gs_part_intake_run(gs_part_intake *intake);
// Writes, behind that.
int gs_part_intake_count(const gs_part_intake *intake);
gs_brought_part *gs_part_intake_part(gs_part_intake *intake, int index);
// Of one of them, which is written or given up: the disk has its room again.
void gs_part_intake_drop(gs_part_intake *intake, int index);

#endif
