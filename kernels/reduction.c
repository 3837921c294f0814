#include "kernels/reduction.h"

// How deep the stack grows; 0 when the program is none.
static int measure_depth(const gs_reduction *r) {
    int depth = 0, deepest = 0;
    for (int k = 0; k < r->num_inputs; k++) {
        depth++;
        if (depth > deepest) deepest = depth;
        int merges = r->merges ? r->merges[k] : k > 0;
        if (merges >= depth) return 0;
        depth -= merges;
    }
    return depth == 1 ? deepest : 0;
}

static gs_status check_wire(const gs_reduction *r) {
    if (!r->wire_dtype) return gs_ok();
    if (r->wire_dtype != GS_FP16 && r->wire_dtype != GS_BF16) {
        return gs_error(GS_INVALID_ARGUMENT, "reduce: wire dtype %s has not 16 bits",
                        gs_dtype_name(r->wire_dtype));
    }
    if ((r->dtype != GS_FP32 && r->dtype != GS_FP64) || r->op != GS_OP_SUM || r->merges) {
        return gs_error(GS_INVALID_ARGUMENT,
                        "reduce: a wire dtype is for plain sums of fp32 and fp64, not for %s, "
                        "operation %d%s",
                        gs_dtype_name(r->dtype), (int)r->op, r->merges ? ", merges" : "");
    }
    return gs_ok();
}

gs_status gs_reduction_check(int *depth, const gs_reduction *r) {
    bool is_float =
        r->dtype == GS_FP32 || r->dtype == GS_FP64 || r->dtype == GS_FP16 || r->dtype == GS_BF16;
    if (!is_float && r->dtype != GS_I64 && r->dtype != GS_I32) {
        return gs_error(GS_INVALID_ARGUMENT, "reduce: dtype %s", gs_dtype_name(r->dtype));
    }
    if (r->num_inputs < 1 || r->num_inputs > GS_REDUCE_MAX_INPUTS) {
        return gs_error(GS_INVALID_ARGUMENT, "reduce: %d inputs are not in [1, %d]", r->num_inputs,
                        GS_REDUCE_MAX_INPUTS);
    }
    if ((unsigned)r->op > GS_OP_MIN) {
        return gs_error(GS_INVALID_ARGUMENT, "reduce: operation %d", (int)r->op);
    }
    if (!is_float && r->scale != 1.0) {
        return gs_error(GS_INVALID_ARGUMENT, "reduce: %s takes no scale, got %g",
                        gs_dtype_name(r->dtype), r->scale);
    }
    GS_TRY(check_wire(r));
    *depth = measure_depth(r);
    if (*depth == 0) {
        return gs_error(GS_INVALID_ARGUMENT, "reduce: merges of %d inputs do not leave one value",
                        r->num_inputs);
    }
    return gs_ok();
}
