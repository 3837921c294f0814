// What a process has written and would now have count, as long as nobody has taken over from it: manifests, and the fence itself.
// Between the look at the fence and the rename that makes a file count a process may be suspended for as long as anybody likes.
// So the file lies where those who take over find it, under a name that says whose it is, and is there before its writer looks:
//
//   CHECKPOINTS/JOB/.draft-<16 hex of the cluster>-<generation>-<8 hex>
//
// Whoever puts up a fence removes then what that fence refuses. A draft from before the fence is gone, and its rename finds nothing;
// the writer of a later one sees the fence. Lists of checkpoints, and the sweep of what saves have left, pass by names with a dot.
//
// It lies beside the fence, and not where it is going: on a network's disk, who has changed a directory is told anew what is in it.
#ifndef RPC_CHECKPOINT_DRAFT_H
#define RPC_CHECKPOINT_DRAFT_H

#include <stdint.h>

#include "core/digest.h"
#include "core/directory.h"
#include "core/status.h"
#include "rpc/json/json.h"

typedef struct gs_draft {
    const gs_directory *directory;  // borrowed
    char name[64];
    uint64_t bytes;
    gs_digest digest;  // of the whole file
} gs_draft;

// Of ranks of this generation. `object` is taken.
GS_NODISCARD gs_status gs_draft_write(gs_draft *draft, gs_json *object, const gs_directory *directory, const char *cluster,
                                      uint32_t generation);
// ABORTED: it was removed, and nothing is written. In either case it is no more.
GS_NODISCARD gs_status gs_draft_publish(const gs_draft *draft, gs_file_place place);
void gs_draft_drop(const gs_draft *draft);
// Of all whom a fence of these ranks, which stands, refuses: those of other clusters, and of generations before. 0 refuses nobody.
GS_NODISCARD gs_status gs_draft_remove_refused(const gs_directory *directory, const char *cluster, uint32_t generation);

#endif
