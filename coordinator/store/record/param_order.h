// The order in which gradients come, as [param…] in messages and records.
#ifndef COORDINATOR_STORE_RECORD_PARAM_ORDER_H
#define COORDINATOR_STORE_RECORD_PARAM_ORDER_H

#include "coordinator/model/job.h"
#include "core/status.h"
#include "rpc/json/json.h"

gs_json *gs_param_order_encode(const gs_param_order *order);
// Each of as many parameters as there are numbers, once. INVALID_ARGUMENT names the place.
GS_NODISCARD gs_status gs_param_order_decode(gs_param_order *out, const gs_json *list);

#endif
