// Which tensors a checkpoint has, and in which part each of their elements lies: what its manifest says, read
// as hostile input.
#ifndef RPC_CHECKPOINT_CHECKPOINT_LAYOUT_H
#define RPC_CHECKPOINT_CHECKPOINT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/param_spec.h"
#include "core/segment.h"
#include "core/status.h"
#include "rpc/json/json.h"

#define GS_CHECKPOINT_MANIFEST "MANIFEST.json"
#define GS_CHECKPOINT_FILE_LEN 48  // of a file's name: "part-12.safetensors", "part-12.json"

void gs_checkpoint_part_name(char name[GS_CHECKPOINT_FILE_LEN], size_t part);
void gs_checkpoint_record_name(char name[GS_CHECKPOINT_FILE_LEN], size_t part);

typedef struct gs_checkpoint_tensor {
    const char *name;
    gs_dtype dtype;
    int num_dims;
    int64_t shape[GS_MAX_DIMS];
    size_t count;  // elements
    bool is_own;   // a row for each rank, of what was its own
} gs_checkpoint_tensor;

typedef struct gs_checkpoint_piece {
    gs_segment segment;
    size_t part;
} gs_checkpoint_piece;

typedef struct gs_checkpoint_layout {
    size_t num_parts, num_tensors, num_pieces;
    gs_checkpoint_tensor *tensors;  // owned, in the manifest's order; names are the manifest's
    gs_checkpoint_piece *pieces;    // owned, in order of tensor and element; none is empty
} gs_checkpoint_layout;

// Every element of every tensor is in one part and in one alone. DATA_LOSS names tensor and element, or
// part. The manifest is borrowed until release.
GS_NODISCARD gs_status gs_checkpoint_layout_parse(gs_checkpoint_layout *layout,
                                                  const gs_json *manifest);
void gs_checkpoint_layout_release(gs_checkpoint_layout *layout);

#endif
