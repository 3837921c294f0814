#include "gradsync/bucket/main_grad.h"

static void reduce(void *out, const void *const *inputs, int num_inputs, double scale,
                   gs_dtype dtype, size_t count, gs_work_stream on) {
    const gs_reduction reduction = {.outputs = &out,
                                    .inputs = inputs,
                                    .num_outputs = 1,
                                    .num_inputs = num_inputs,
                                    .dtype = dtype,
                                    .op = GS_OP_SUM,
                                    .scale = scale,
                                    .count = count};
    gs_device_kernels(on.device)->reduce(on.stream, &reduction);
}

// Zero has the same bits in every type.
void gs_main_grad_zero(void *grad, gs_dtype dtype, size_t count, gs_work_stream on) {
    if (!count) return;
    gs_device_kernels(on.device)->fill(on.stream, grad, 0,
                                       count * (gs_dtype_bytes(dtype) / sizeof(float)));
}

void gs_main_grad_add(void *left, const void *right, gs_dtype dtype, size_t count,
                      gs_work_stream on) {
    if (!count) return;
    if (dtype == GS_FP32)
        gs_device_kernels(on.device)->add(on.stream, left, left, right, count);
    else
        reduce(left, (const void *const[]){left, right}, 2, 1, dtype, count, on);
}

void gs_main_grad_scale(void *grad, double factor, gs_dtype dtype, size_t count,
                        gs_work_stream on) {
    if (count) reduce(grad, (const void *const[]){grad}, 1, factor, dtype, count, on);
}
