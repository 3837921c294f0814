#include "gradsync/bucket/grad_copies.h"

#include <stdlib.h>
#include <string.h>

static bool is_float(gs_dtype dtype) {
    return dtype == GS_FP32 || dtype == GS_FP64 || dtype == GS_FP16 || dtype == GS_BF16;
}

gs_status gs_separate_grads_check(const gs_separate_grad *tensors, const gs_param_spec *params,
                                  size_t num_params) {
    for (size_t i = 0; i < num_params; i++) {
        if (params[i].sparse) continue;
        if (!tensors[i].data && gs_param_spec_count(&params[i]))
            return gs_error(GS_INVALID_ARGUMENT,
                            "parameter %zu \"%.100s\": its separate gradient has no memory", i,
                            params[i].name);
        if (!is_float(tensors[i].dtype) ||
            (uintptr_t)tensors[i].data % gs_dtype_bytes(tensors[i].dtype))
            return gs_error(GS_INVALID_ARGUMENT,
                            "parameter %zu \"%.100s\": its separate gradient is %s, or lies on no "
                            "boundary of it",
                            i, params[i].name, gs_dtype_name(tensors[i].dtype));
    }
    return gs_ok();
}

gs_status gs_grad_copies_init(gs_grad_copies *copies, const gs_separate_grad *tensors,
                              const gs_grad_layout *layout, gs_device *device) {
    size_t num_params = layout->num_params;
    *copies = (gs_grad_copies){.num_params = num_params};
    copies->tensors = calloc(num_params, sizeof *copies->tensors);
    copies->grads = calloc(num_params, sizeof *copies->grads);
    copies->written = calloc(num_params, sizeof *copies->written);
    if (!copies->tensors || !copies->grads || !copies->written) {
        gs_grad_copies_release(copies);
        return gs_error(GS_RESOURCE_EXHAUSTED, "separate gradients: out of memory");
    }
    memcpy(copies->tensors, tensors, num_params * sizeof *tensors);
    for (size_t i = 0; i < num_params; i++) copies->grads[i] = tensors[i].data;
    return gs_copy_table_init(&copies->table, num_params, layout->num_slots, device);
}

gs_status gs_grad_copies_place(gs_grad_copies *copies, const gs_grad_layout *layout) {
    gs_copy_table *table = &copies->table;
    if (!copies->tensors || !table->device) return gs_ok();
    if (layout->num_slots > table->num_slots) {
        gs_device *device = table->device;
        gs_copy_table_release(table);
        GS_TRY(gs_copy_table_init(table, layout->num_params, layout->num_slots, device));
    }
    gs_copy_table_place(table, copies->tensors, layout);
    return gs_ok();
}

void gs_grad_copies_release(gs_grad_copies *copies) {
    if (!copies) return;
    gs_copy_table_release(&copies->table);
    free(copies->tensors);
    free(copies->grads);
    free(copies->written);
    *copies = (gs_grad_copies){0};
}

void gs_grad_copies_begin_window(gs_grad_copies *copies) {
    memset(copies->written, 0, copies->num_params);
}

static void move(void *out, gs_dtype out_dtype, const void *in, gs_dtype in_dtype, size_t count,
                 gs_device *device) {
    const gs_kernels *kernels = gs_device_kernels(device);
    if (!count) return;
    if (out_dtype == in_dtype)
        kernels->copy(gs_device_stream(device), out, in, count * gs_dtype_bytes(in_dtype));
    else
        kernels->cast(gs_device_stream(device), out, out_dtype, in, in_dtype, 1, count);
}

void gs_grad_copies_in(const gs_grad_copies *copies, const gs_grad_layout *layout, int slot,
                       size_t param, gs_device *device) {
    const gs_separate_grad *tensor = &copies->tensors[param];
    if (copies->table.device) return;
    move(gs_grad_layout_grads(layout, slot)[param], layout->dtypes[param], tensor->data,
         tensor->dtype, layout->counts[param], device);
}

static void copy_out(const gs_grad_copies *copies, const gs_grad_layout *layout, size_t param,
                     gs_device *device) {
    const gs_separate_grad *tensor = &copies->tensors[param];
    move(tensor->data, tensor->dtype, gs_grad_layout_results(layout)[param], layout->dtypes[param],
         layout->counts[param], device);
}

void gs_grad_copies_bucket_in(const gs_grad_copies *copies, const gs_grad_layout *layout, int slot,
                              size_t index, gs_work_stream on) {
    if (copies->table.device)
        gs_copy_table_in(&copies->table, copies->tensors, layout, slot, index, copies->written, on);
}

void gs_grad_copies_bucket_out(const gs_grad_copies *copies, const gs_grad_layout *layout,
                               size_t index, const uint8_t *flags, gs_device *device) {
    const gs_bucket *bucket = &layout->buckets[index];
    if (copies->table.device) {
        gs_copy_table_out(&copies->table, copies->tensors, layout, index, flags);
        return;
    }
    for (size_t i = 0; i < bucket->num_params; i++) {
        if (flags[bucket->params[i]]) copy_out(copies, layout, bucket->params[i], device);
    }
}
