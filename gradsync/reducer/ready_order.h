// The order in which gradients really became ready: what a better plan is made from.
//
// One list is recorded while the reducing pass runs, the last complete one can be read meanwhile.
#ifndef GRADSYNC_REDUCER_READY_ORDER_H
#define GRADSYNC_REDUCER_READY_ORDER_H

#include <stddef.h>
#include <stdint.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/bucket_plan.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"

GS_BEGIN_DECLS

typedef struct gs_ready_order {
    size_t num_params;
    size_t *recording, num_recorded;
    size_t *last;  // num_params of them; the first num_ready were marked
    size_t num_ready;
    uint64_t num_passes;  // finished so far
    size_t *memory;
} gs_ready_order;

// Until a pass has been recorded the order is the plan's.
GS_NODISCARD gs_status gs_ready_order_init(gs_ready_order *order, const gs_bucket_plan *plan);
void gs_ready_order_release(gs_ready_order *order);

static inline void gs_ready_order_begin(gs_ready_order *order) {
    order->num_recorded = 0;
}

// Each parameter once a pass.
static inline void gs_ready_order_add(gs_ready_order *order, size_t param) {
    order->recording[order->num_recorded++] = param;
}

// Parameters that were not marked (marks[i] != serial) follow in plan order, and the list becomes
// the last one.
void gs_ready_order_finish(gs_ready_order *order, const gs_bucket_plan *plan, const uint32_t *marks,
                           uint32_t serial);

// Collective: every rank gets rank 0's order, so that all come to the same plan (plan_policy.h) without a
// coordinator; what stood in `order` elsewhere goes.
GS_NODISCARD gs_status gs_ready_order_share(size_t *order, size_t num_params, gs_comm *comm,
                                            gs_deadline deadline);

GS_END_DECLS

#endif
