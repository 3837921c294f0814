#include "gradsync/reducer/ready_order.h"

#include <stdlib.h>
#include <string.h>

gs_status gs_ready_order_init(gs_ready_order *order, const gs_bucket_plan *plan) {
    size_t num_params = plan->num_params;
    *order = (gs_ready_order){.num_params = num_params};
    order->memory = calloc(2 * num_params + 1, sizeof *order->memory);
    if (!order->memory) return gs_error(GS_RESOURCE_EXHAUSTED, "ready order: out of memory");
    order->recording = order->memory;
    order->last = order->memory + num_params;
    if (num_params) memcpy(order->last, plan->params, num_params * sizeof *order->last);
    return gs_ok();
}

void gs_ready_order_release(gs_ready_order *order) {
    if (!order) return;
    free(order->memory);
    *order = (gs_ready_order){0};
}

void gs_ready_order_finish(gs_ready_order *order, const gs_bucket_plan *plan, const uint32_t *marks,
                           uint32_t serial) {
    order->num_ready = order->num_recorded;
    order->num_passes++;
    for (size_t i = 0; i < plan->num_params; i++) {
        if (marks[plan->params[i]] != serial) gs_ready_order_add(order, plan->params[i]);
    }
    size_t *recorded = order->recording;
    order->recording = order->last;
    order->last = recorded;
    order->num_recorded = 0;
}

_Static_assert(sizeof(size_t) == sizeof(int64_t), "an order travels as it is");

gs_status gs_ready_order_share(size_t *order, size_t num_params, gs_comm *comm,
                               gs_deadline deadline) {
    return gs_status_prefix(gs_comm_run(comm,
                                        &(gs_collective){.kind = GS_BROADCAST,
                                                         .send = order,
                                                         .recv = order,
                                                         .count = num_params,
                                                         .dtype = GS_I64,
                                                         .step = -1,
                                                         .bucket = -1},
                                        deadline),
                            "order of gradients");
}
