// A checkpoint as one safetensors file, whoever wrote it and in however many parts: for programs that know
// nothing of checkpoints. Tensors have their own names and shapes; parameters are fp32.
#ifndef RPC_CHECKPOINT_CHECKPOINT_EXPORT_H
#define RPC_CHECKPOINT_CHECKPOINT_EXPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct gs_checkpoint_export_options {
    bool model_alone;  // parameters and buffers; without what an optimizer and hooks keep
} gs_checkpoint_export_options;

typedef struct gs_checkpoint_export {
    int64_t step;
    size_t num_parts, num_tensors;
    size_t bytes;  // of the file
} gs_checkpoint_export;

// `path`: a checkpoint's directory. Verified first, then copied piece by piece: memory for manifest and
// headers, and a MiB. On an error nothing is left behind, as with ALREADY_EXISTS: `file` is never replaced.
//   DATA_LOSS            a part is damaged: names file and block
//   NOT_FOUND            no such checkpoint, or a part of it is gone
//   RESOURCE_EXHAUSTED   the disk is full
GS_NODISCARD gs_status gs_checkpoint_export_write(gs_checkpoint_export *out, const char *file,
                                                  const char *path,
                                                  const gs_checkpoint_export_options *options);

#endif
