// MANIFEST.json of a checkpoint: what lies in the part files, check sums of every block, and what the run
// was. Its last member is the digest of all bytes before it, so that no byte can change unseen.
#ifndef WORKER_CHECKPOINT_MANIFEST_H
#define WORKER_CHECKPOINT_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/status.h"
#include "rpc/json/json.h"
#include "rpc/schema/job_spec.h"
#include "worker/state/state_snapshot.h"
#include "worker/state/trainer_state.h"

#define GS_MANIFEST_BLOCK_BYTES (1024 * 1024)

typedef struct gs_manifest_part {
    const char *name;
    uint64_t bytes;
    gs_digest digest;  // of the whole file
    uint32_t *crcs;    // CRC-32C of each block; owned
    size_t num_crcs;
} gs_manifest_part;

// Reads `path` once and computes bytes, digest and check sums of a part. Release with the pair.
GS_NODISCARD gs_status gs_manifest_part_read(gs_manifest_part *part, const char *path);
void gs_manifest_part_release(gs_manifest_part *part);
// DATA_LOSS names the first block of `found` that is not what `entry` (a member of "parts") says.
GS_NODISCARD gs_status gs_manifest_part_check(const gs_manifest_part *found, const gs_json *entry);

// The members of a job specification that decide results: two runs with equal ones compute the same.
gs_json *gs_manifest_spec(const gs_job_spec *spec);
// INVALID_ARGUMENT names the first member that differs: "/optimizer/lr is 0.1, the checkpoint has 0.2".
GS_NODISCARD gs_status gs_manifest_spec_compare(const gs_json *ours, const gs_json *theirs);

gs_json *gs_manifest_position(const gs_position *position);
// Names, dtypes, shapes; and that all are in part 0.
gs_json *gs_manifest_tensors(const gs_state_snapshot *snapshot, bool in_one_part);

#endif
