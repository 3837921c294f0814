// What a rank leaves beside its part of a checkpoint, in a sealed file: which part of which save it is, its
// check sums, the segments that lie in it. The records of all parts together are the manifest.
#ifndef RPC_CHECKPOINT_PART_RECORD_H
#define RPC_CHECKPOINT_PART_RECORD_H

#include <stddef.h>

#include "core/segment.h"
#include "core/status.h"
#include "rpc/json/json.h"

// `head`: what all parts of a save say alike: the manifest's members but "parts", its tensors without where
// they lie. `file`: the row of "parts". Both are taken.
gs_json *gs_part_record_make(gs_json *head, gs_json *file, size_t part, size_t num_parts,
                             const gs_segment *segments, size_t num_segments);

// How many parts the save of this record has; 0: it is no record.
size_t gs_part_record_num_parts(const gs_json *record);

// The manifest (the caller's) that these records, part 0 first, come to. DATA_LOSS names the part that is
// missing or of another save and what it says differently, or the tensor and element that is in no part or
// in two.
GS_NODISCARD gs_status gs_part_records_join(gs_json **manifest, gs_json *const *records,
                                            size_t num_parts);

#endif
