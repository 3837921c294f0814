// What MANIFEST.json of a checkpoint says of the run and of its tensors; of the part files it has rows
// (rpc/checkpoint/manifest_part.h). Its last member is the digest of all bytes before it, so that no byte can change unseen.
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

// The members of a job specification that decide results: two runs with equal ones compute the same.
gs_json *gs_manifest_spec(const gs_job_spec *spec);
// INVALID_ARGUMENT names the first member that differs: "/optimizer/lr is 0.1, the checkpoint has 0.2".
GS_NODISCARD gs_status gs_manifest_spec_compare(const gs_json *ours, const gs_json *theirs);

gs_json *gs_manifest_position(const gs_position *position);
// Names, dtypes, shapes; and that all are in part 0.
gs_json *gs_manifest_tensors(const gs_state_snapshot *snapshot, bool in_one_part);

#endif
