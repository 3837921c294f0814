#include "gradsync/tensor/flatten.h"

static gs_status check_alike(const gs_device_tensor *tensors, size_t num_tensors) {
    if (!num_tensors) return gs_error(GS_INVALID_ARGUMENT, "flatten: no tensors");
    GS_TRY(gs_status_prefix(gs_device_tensors_check(tensors, num_tensors), "flatten"));
    for (size_t i = 1; i < num_tensors; i++) {
        if (tensors[i].dtype != tensors[0].dtype)
            return gs_error(GS_INVALID_ARGUMENT, "flatten: tensor %zu is %s, tensor 0 is %s", i,
                            gs_dtype_name(tensors[i].dtype), gs_dtype_name(tensors[0].dtype));
        if (tensors[i].device != tensors[0].device)
            return gs_error(GS_INVALID_ARGUMENT, "flatten: tensor %zu is on another device than 0",
                            i);
    }
    return gs_ok();
}

gs_status gs_flatten(gs_held_tensor *flat, const gs_device_tensor *tensors, size_t num_tensors) {
    *flat = (gs_held_tensor){0};
    GS_TRY(check_alike(tensors, num_tensors));
    size_t count = 0;
    for (size_t i = 0; i < num_tensors; i++) count += gs_device_tensor_count(&tensors[i]);
    gs_device_tensor shape = {.data = tensors[0].data,
                              .dtype = tensors[0].dtype,
                              .num_dims = 1,
                              .shape = {(int64_t)count},
                              .device = tensors[0].device};
    flat->tensor = shape;
    if (num_tensors == 1) return gs_ok();

    gs_device *device = shape.device;
    GS_TRY(gs_held_tensor_alloc(flat, &shape, device));
    char *at = flat->tensor.data;
    for (size_t i = 0; i < num_tensors; i++) {
        size_t bytes = gs_device_tensor_bytes(&tensors[i]);
        if (bytes)
            gs_device_kernels(device)->copy(gs_device_stream(device), at, tensors[i].data, bytes);
        at += bytes;
    }
    return gs_ok();
}

gs_status gs_unflatten(gs_device_tensor *windows, const gs_device_tensor *flat,
                       const gs_device_tensor *templates, size_t num_templates) {
    size_t count = 0;
    for (size_t i = 0; i < num_templates; i++) {
        if (templates[i].dtype != flat->dtype)
            return gs_error(GS_INVALID_ARGUMENT, "unflatten: template %zu is %s, the buffer is %s",
                            i, gs_dtype_name(templates[i].dtype), gs_dtype_name(flat->dtype));
        count += gs_device_tensor_count(&templates[i]);
    }
    if (count != gs_device_tensor_count(flat))
        return gs_error(GS_INVALID_ARGUMENT,
                        "unflatten: templates have %zu elements, the buffer %zu", count,
                        gs_device_tensor_count(flat));
    char *at = flat->data;
    for (size_t i = 0; i < num_templates; i++) {
        windows[i] = templates[i];
        windows[i].data = at;
        windows[i].device = flat->device;
        at += gs_device_tensor_bytes(&templates[i]);
    }
    return gs_ok();
}
