#include "coordinator/store/record/param_order.h"

#include <stdlib.h>

gs_json *gs_param_order_encode(const gs_param_order *order) {
    gs_json *list = gs_json_new_array();
    for (size_t i = 0; i < order->count; i++) gs_json_push(list, gs_json_new_int((int64_t)order->params[i]));
    return list;
}

gs_status gs_param_order_decode(gs_param_order *out, const gs_json *list) {
    size_t count = gs_json_count(list);
    size_t *params = calloc(count ? count : 1, sizeof *params);
    uint8_t *seen = calloc(count ? count : 1, sizeof *seen);
    gs_status status = params && seen ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "order: out of memory");
    for (size_t i = 0; i < count && !status.code; i++) {
        int64_t param = -1;
        bool known = gs_json_int(&param, gs_json_at(list, i)) && param >= 0 && param < (int64_t)count &&
                     !seen[param];
        if (!known) {
            status = gs_error(GS_INVALID_ARGUMENT, "order[%zu]: no parameter, or named twice", i);
            break;
        }
        seen[param] = 1;
        params[i] = (size_t)param;
    }
    free(seen);
    if (status.code) free(params);
    else *out = (gs_param_order){.params = params, .count = count};
    return status;
}
