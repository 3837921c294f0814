// The moment at which parts that many ranks have written become a checkpoint: the manifest is written. What
// is on the disk decides, and nothing else: whoever sees all parts may do it, as often as it likes, and a
// report that was lost costs nothing.
//
//   step-…/part-0.safetensors  part-0.json  part-1.safetensors  part-1.json  …   parts and their records
//   step-…/MANIFEST.json                                                         from then on a checkpoint
#ifndef RPC_CHECKPOINT_CHECKPOINT_COMMIT_H
#define RPC_CHECKPOINT_CHECKPOINT_COMMIT_H

#include <stdint.h>

#include "core/status.h"
#include "rpc/json/json.h"

// The manifest of `path`: the one that is there, else that of its parts, written atomically; their records
// go then. *bytes is of manifest and parts. Blocks for the disk, and for nothing else that may lie there.
//   NOT_FOUND   some part is not there (yet): names it
//   DATA_LOSS   parts that do not belong together, a size that is not as recorded, a gap, an overlap; a
//               path that is a link; ranks whose place others have taken (fence.h)
GS_NODISCARD gs_status gs_checkpoint_commit(gs_json **manifest, uint64_t *bytes, const char *path);

#endif
