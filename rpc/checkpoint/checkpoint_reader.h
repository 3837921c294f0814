// A checkpoint open for reading: every byte of its parts was compared with the manifest's check sums, and a
// tensor reads as one whatever parts its elements lie in. Needs memory for the manifest and the files'
// headers, and none for their data.
#ifndef RPC_CHECKPOINT_CHECKPOINT_READER_H
#define RPC_CHECKPOINT_CHECKPOINT_READER_H

#include <stddef.h>

#include "core/status.h"
#include "rpc/checkpoint/checkpoint_layout.h"
#include "rpc/json/json.h"

typedef struct gs_checkpoint_reader gs_checkpoint_reader;

// `path`: a checkpoint's directory, and how many of its last names may be no links. Its files stay open until close, whatever becomes
// of their names.
//   PERMISSION_DENIED  one of these names is a link
//   DATA_LOSS          damaged: names file and block, or part and tensor
//   INVALID_ARGUMENT   of a format that this build does not read
//   NOT_FOUND          no such checkpoint, or a part of it is gone
GS_NODISCARD gs_status gs_checkpoint_reader_open(gs_checkpoint_reader **out, const char *path, int levels);
void gs_checkpoint_reader_close(gs_checkpoint_reader *reader);

const gs_json *gs_checkpoint_reader_manifest(const gs_checkpoint_reader *reader);
const gs_checkpoint_layout *gs_checkpoint_reader_layout(const gs_checkpoint_reader *reader);
// INVALID_ARGUMENT: there is no such tensor. `guess`: where it probably is.
GS_NODISCARD gs_status gs_checkpoint_reader_find(const gs_checkpoint_reader *reader, size_t *tensor,
                                                 const char *name, size_t guess);
// Bytes [begin, begin + bytes) of a tensor. DATA_LOSS: a file was cut short since it was opened.
GS_NODISCARD gs_status gs_checkpoint_reader_read(const gs_checkpoint_reader *reader, size_t tensor,
                                                 void *to, size_t begin, size_t bytes);

#endif
