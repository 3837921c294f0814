// The file of one part of a checkpoint: safetensors with an entry for each segment of the state
// (rpc/checkpoint/part_entry.h).
#ifndef WORKER_CHECKPOINT_PART_FILE_H
#define WORKER_CHECKPOINT_PART_FILE_H

#include <stddef.h>

#include "core/segment.h"
#include "core/status.h"
#include "rpc/checkpoint/safetensors.h"
#include "worker/checkpoint/spill.h"
#include "worker/state/state_snapshot.h"

// On which a part begins inside a tensor.
#define GS_PART_BOUNDARY_BYTES ((size_t)64)

// Part `part` of `num_parts` of the state's bytes, and the shares that the snapshot has; of a sharded state what is in
// the snapshot. The caller's, free().
GS_NODISCARD gs_status gs_part_file_cut(gs_segment **segments, size_t *num_segments,
                                        const gs_state_snapshot *snapshot, int part,
                                        int num_parts);
// Writes segments of a snapshot as safetensors.h says. Nothing in the file tells one job from another but
// what is in `metadata`.
//   spill  has what is here of the tensors whose data is NULL, one behind the other; NULL: all of it is in memory
GS_NODISCARD gs_status gs_part_file_write(gs_file_place place, const gs_state_snapshot *snapshot,
                                          const gs_spill *spill,
                                          const gs_segment *segments, size_t num_segments,
                                          const gs_safetensors_metadata_entry *metadata,
                                          size_t num_metadata);

#endif
