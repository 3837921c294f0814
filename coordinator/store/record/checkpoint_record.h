// A checkpoint as the store keeps it, and as people see it.
#ifndef COORDINATOR_STORE_RECORD_CHECKPOINT_RECORD_H
#define COORDINATOR_STORE_RECORD_CHECKPOINT_RECORD_H

#include "coordinator/model/checkpoint.h"
#include "core/status.h"
#include "rpc/json/json.h"

gs_json *gs_checkpoint_to_view(const gs_checkpoint *checkpoint);

// The row of one that is verified. The text is the caller's (free()).
GS_NODISCARD gs_status gs_checkpoint_to_record(char **text, const gs_checkpoint *checkpoint);
// Fills all but the directory, which is the row's key.
GS_NODISCARD gs_status gs_checkpoint_from_record(gs_checkpoint *checkpoint, const char *text);

#endif
