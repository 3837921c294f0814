// A file of a checkpoint, as its manifest speaks of it: bytes, digest, and a check sum for each block, so
// that damage is found and its place is named.
#ifndef RPC_CHECKPOINT_MANIFEST_PART_H
#define RPC_CHECKPOINT_MANIFEST_PART_H

#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/directory.h"
#include "core/status.h"
#include "rpc/json/json.h"

#define GS_MANIFEST_BLOCK_BYTES (1024 * 1024)

typedef struct gs_manifest_part {
    const char *name;
    uint64_t bytes;
    gs_digest digest;  // of the whole file
    uint32_t *crcs;    // CRC-32C of each block; owned
    size_t num_crcs;
} gs_manifest_part;

// Reads a file once and computes bytes, digest and check sums of a part, whose name is borrowed. Release with the pair.
GS_NODISCARD gs_status gs_manifest_part_read(gs_manifest_part *part, gs_file_place place);
void gs_manifest_part_release(gs_manifest_part *part);
// Its row in a manifest's "parts"; the caller's.
gs_json *gs_manifest_part_to_json(const gs_manifest_part *part);
// DATA_LOSS names the first block of `found` that is not what `entry` (a member of "parts") says.
GS_NODISCARD gs_status gs_manifest_part_check(const gs_manifest_part *found, const gs_json *entry);

#endif
