#include "gradsync/local/scatter.h"

static gs_status scatter_part(gs_held_tensor *part, const gs_device_tensor *rows,
                              gs_device *device) {
    if (rows->device == device) {
        *part = (gs_held_tensor){.tensor = *rows};
        return gs_ok();
    }
    GS_TRY(gs_held_tensor_alloc(part, rows, device));
    gs_device_move(device, part->tensor.data, rows->device, rows->data,
                   gs_device_tensor_bytes(rows));
    return gs_ok();
}

gs_status gs_scatter(gs_held_tensor *parts, const gs_device_tensor *tensor,
                     gs_device *const *devices, size_t num_devices) {
    for (size_t d = 0; d < num_devices; d++) parts[d] = (gs_held_tensor){0};
    if (!num_devices) return gs_error(GS_INVALID_ARGUMENT, "scatter: no devices");
    GS_TRY(gs_status_prefix(gs_device_tensors_check(tensor, 1), "scatter"));
    if (!tensor->num_dims) return gs_error(GS_INVALID_ARGUMENT, "scatter: a scalar has no rows");
    int64_t num_rows = tensor->shape[0], first = 0;
    int64_t most = (num_rows + (int64_t)num_devices - 1) / (int64_t)num_devices;
    size_t row_bytes = num_rows ? gs_device_tensor_bytes(tensor) / (size_t)num_rows : 0;
    gs_status status = gs_ok();
    for (size_t d = 0; d < num_devices && !status.code; d++) {
        gs_device_tensor rows = *tensor;
        rows.data = (char *)tensor->data + (size_t)first * row_bytes;
        rows.shape[0] = num_rows - first < most ? num_rows - first : most;
        first += rows.shape[0];
        status = scatter_part(&parts[d], &rows, devices[d]);
    }
    for (size_t d = 0; d < num_devices && status.code; d++) gs_held_tensor_release(&parts[d]);
    return status;
}

static bool same_rows(const gs_device_tensor *a, const gs_device_tensor *b) {
    if (a->num_dims != b->num_dims || a->dtype != b->dtype) return false;
    for (int i = 1; i < a->num_dims; i++) {
        if (a->shape[i] != b->shape[i]) return false;
    }
    return true;
}

gs_status gs_gather(gs_held_tensor *out, const gs_device_tensor *parts, size_t num_parts,
                    gs_device *destination) {
    *out = (gs_held_tensor){0};
    if (!num_parts) return gs_error(GS_INVALID_ARGUMENT, "gather: no parts");
    GS_TRY(gs_status_prefix(gs_device_tensors_check(parts, num_parts), "gather"));
    gs_device_tensor whole = parts[0];
    whole.shape[0] = 0;
    if (!whole.num_dims) whole.num_dims = 1;
    for (size_t i = 0; i < num_parts; i++) {
        if (!same_rows(&parts[i], &parts[0])) {
            char ours[GS_SHAPE_TEXT_LEN], theirs[GS_SHAPE_TEXT_LEN];
            gs_device_tensor_format_shape(ours, &parts[i]);
            gs_device_tensor_format_shape(theirs, &parts[0]);
            return gs_error(GS_INVALID_ARGUMENT, "gather: part %zu is %s %s, part 0 is %s %s", i,
                            gs_dtype_name(parts[i].dtype), ours, gs_dtype_name(parts[0].dtype),
                            theirs);
        }
        whole.shape[0] += parts[i].num_dims ? parts[i].shape[0] : 1;
    }
    gs_device *device = destination ? destination : parts[0].device;
    GS_TRY(gs_held_tensor_alloc(out, &whole, device));
    char *at = out->tensor.data;
    for (size_t i = 0; i < num_parts; i++) {
        size_t bytes = gs_device_tensor_bytes(&parts[i]);
        gs_device_move(device, at, parts[i].device, parts[i].data, bytes);
        at += bytes;
    }
    return gs_ok();
}
