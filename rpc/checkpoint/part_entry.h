// An entry of a part file of a checkpoint, which holds a segment of the state: a tensor that lies in the file
// as a whole has its own name and shape; a slice of one is "NAME@BEGIN", of one dimension.
#ifndef RPC_CHECKPOINT_PART_ENTRY_H
#define RPC_CHECKPOINT_PART_ENTRY_H

#include <stdbool.h>
#include <stddef.h>

#include "core/segment.h"
#include "core/status.h"
#include "rpc/checkpoint/checkpoint_layout.h"
#include "rpc/checkpoint/safetensors.h"

#define GS_PART_ENTRY_NAME_LEN 320

// Longer names are cut: no entry has them.
void gs_part_entry_name(char name[GS_PART_ENTRY_NAME_LEN], const char *tensor, size_t first,
                        bool is_whole);
// The entry of a segment of `tensor`. DATA_LOSS: it is not there, or is something else.
GS_NODISCARD gs_status gs_part_entry_find(const gs_safetensor **entry, const gs_safetensors *file,
                                          const gs_checkpoint_tensor *tensor, gs_segment segment);

#endif
