// What a run can be resumed from: a directory with part files and a manifest, written atomically.
//
//   CHECKPOINTS/JOB/step-<10 digits>-<8 hex>/part-0.safetensors   tensors of the state, by name
//   CHECKPOINTS/JOB/step-<10 digits>-<8 hex>/MANIFEST.json        sizes, digests, position: the commit point
//
// One rank writes both; or each rank writes a part of the state and its record beside it, and the manifest
// is written when all are there (rpc/checkpoint/checkpoint_commit.h). A directory without a manifest is
// garbage. Nothing in it depends on the world size. Loading verifies everything, byte for byte, before it
// touches the state.
#ifndef WORKER_CHECKPOINT_CHECKPOINT_H
#define WORKER_CHECKPOINT_CHECKPOINT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/directory.h"
#include "core/status.h"
#include "rpc/checkpoint/checkpoint_layout.h"
#include "rpc/schema/job_spec.h"
#include "worker/checkpoint/spill.h"
#include "worker/state/state_snapshot.h"
#include "worker/state/trainer_state.h"

#define GS_CHECKPOINT_NAME_LEN 32  // "step-0000000100-1a2b3c4d"

// What is to be saved, by this rank alone or by several.
typedef struct gs_checkpoint_request {
    const char *reason;  // "periodic", "final", "stop", "settled", "orphaned"; constant text
    int world_size;
    // Of the state, by bytes, or what this rank has of a sharded one; num_parts 1: all of it, and the manifest.
    int part, num_parts;
    uint32_t generation;  // of these ranks: it makes the directory of their parts the same, and is compared with the fence
} gs_checkpoint_request;

typedef struct gs_checkpoint_options {
    const char *directory;  // of the job: CHECKPOINTS/JOB; made when missing
    const char *job;        // id, for the manifest
    const char *cluster;    // that the job is of; "": not known
    const gs_job_spec *spec;
    gs_checkpoint_request request;
    const gs_spill *spill;  // what the snapshot has not in memory (part_file.h)
} gs_checkpoint_options;

typedef struct gs_checkpoint_result {
    gs_status status;   // of the save
    const char *cause;  // of a failure: "space", "io", "deadline", "residuals", "fenced"
    bool is_fenced;     // others have taken over from these ranks
    int64_t step, samples;
    gs_checkpoint_request request;
    char name[GS_CHECKPOINT_NAME_LEN];
    char part_name[GS_CHECKPOINT_FILE_LEN];
    uint64_t bytes;  // of all files that were written here
    uint64_t part_bytes;
    double seconds;
    gs_digest part_digest, manifest_digest;  // of the files; a part has no manifest
    gs_digest state_digest;  // of what is in it, whoever saved it: equal states have equal ones
} gs_checkpoint_result;

// The job's directory, made where it is missing.
GS_NODISCARD gs_status gs_checkpoint_open_directory(gs_directory *out, const char *directory);
// Says which save of a state at `position` that is, and where it lies; nothing is written yet.
gs_checkpoint_result gs_checkpoint_announce(const gs_position *position,
                                            const gs_checkpoint_options *options);
// Writes a snapshot, or a part of it. Leaves nothing behind when it fails: RESOURCE_EXHAUSTED for a full
// disk (checked before the first byte too). The result is filled in either case; its status is returned as
// well.
GS_NODISCARD gs_status gs_checkpoint_save(gs_checkpoint_result *result,
                                          const gs_state_snapshot *snapshot,
                                          const gs_checkpoint_options *options);

// From now on the directory takes checkpoints of these ranks and of those after them (rpc/checkpoint/fence.h).
// FAILED_PRECONDITION: it belongs to later ones.
GS_NODISCARD gs_status gs_checkpoint_take_over(const gs_checkpoint_options *options);

// Brings `state` to what `path` (a checkpoint directory) holds; on an error the state is as it was,
// unless the file is cut short while it is read. A sharded state takes it as its source, verified now, read when it is
// laid out, and of it what the rank holds; the position is known at once.
//   DATA_LOSS            damaged: names file and block, or part and tensor
//   INVALID_ARGUMENT     another model (names the tensor), or a setting that decides results differs
//   NOT_FOUND            no such checkpoint, or a part of it is gone
GS_NODISCARD gs_status gs_checkpoint_load(gs_trainer_state *state, const char *path,
                                          const gs_job_spec *spec);

#endif
