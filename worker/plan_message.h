// A bucket plan as `prepare` brings it: decoded, and checked against the hash that came with it.
#ifndef WORKER_PLAN_MESSAGE_H
#define WORKER_PLAN_MESSAGE_H

#include "core/bucket_plan.h"
#include "core/status.h"
#include "rpc/json.h"

// INVALID_ARGUMENT names the bucket; FAILED_PRECONDITION when the hash is not the plan's.
GS_NODISCARD gs_status gs_plan_message_decode(gs_bucket_plan *out, const gs_json *plan);

#endif
