#include "gradsync/sparse_tensor.h"

#include <stdlib.h>

#include "gradsync/local_coalesce.h"
#include "gradsync/row_set.h"

#define COPY_SECONDS 600.0

gs_status gs_broadcast_sparse(gs_tensor_lists *out, const gs_sparse_tensor *tensors,
                              size_t num_tensors, gs_device *const *devices, size_t num_devices,
                              size_t limit_bytes) {
    gs_device_tensor *parts = calloc(num_tensors ? 2 * num_tensors : 1, sizeof *parts);
    if (!parts) return gs_error(GS_RESOURCE_EXHAUSTED, "sparse broadcast: out of memory");
    for (size_t i = 0; i < num_tensors; i++) {
        parts[2 * i] = tensors[i].indices;
        parts[2 * i + 1] = tensors[i].values;
    }
    gs_status status =
        gs_broadcast_coalesced(out, parts, 2 * num_tensors, devices, num_devices, limit_bytes);
    free(parts);
    return status;
}

static size_t columns_of(const gs_device_tensor *values) {
    size_t columns = 1;
    for (int d = 1; d < values->num_dims; d++) columns *= (size_t)values->shape[d];
    return columns;
}

static gs_status check_tensor(const gs_sparse_tensor *tensor, const gs_sparse_tensor *first,
                              size_t position) {
    const gs_device_tensor *indices = &tensor->indices, *values = &tensor->values;
    if (indices->dtype != GS_I32 || values->dtype != GS_FP32)
        return gs_error(GS_INVALID_ARGUMENT, "sparse tensor %zu: %s indices and %s values",
                        position, gs_dtype_name(indices->dtype), gs_dtype_name(values->dtype));
    if (indices->num_dims != 1 || values->num_dims < 1 || indices->shape[0] != values->shape[0])
        return gs_error(GS_INVALID_ARGUMENT, "sparse tensor %zu: not as many values as indices",
                        position);
    if (tensor->num_rows != first->num_rows || columns_of(values) != columns_of(&first->values))
        return gs_error(GS_INVALID_ARGUMENT,
                        "sparse tensor %zu: %lld rows of %zu against %lld of %zu", position,
                        (long long)tensor->num_rows, columns_of(values), (long long)first->num_rows,
                        columns_of(&first->values));
    if (tensor->num_rows < 0 || tensor->num_rows > INT32_MAX)
        return gs_error(GS_INVALID_ARGUMENT, "sparse tensor %zu: %lld rows", position,
                        (long long)tensor->num_rows);
    const int32_t *rows = indices->data;
    for (int64_t i = 0; i < indices->shape[0]; i++) {
        if (rows[i] < 0 || rows[i] >= tensor->num_rows)
            return gs_error(GS_INVALID_ARGUMENT,
                            "sparse tensor %zu: index %lld is %d, not in [0, %lld)", position,
                            (long long)i, (int)rows[i], (long long)tensor->num_rows);
    }
    return gs_ok();
}

static gs_status check_tensors(const gs_sparse_tensor *tensors, size_t num_tensors) {
    if (!num_tensors) return gs_error(GS_INVALID_ARGUMENT, "sparse sum of no tensors");
    for (size_t i = 0; i < num_tensors; i++) {
        GS_TRY(gs_device_tensors_check(&tensors[i].indices, 1));
        GS_TRY(gs_device_tensors_check(&tensors[i].values, 1));
        GS_TRY(check_tensor(&tensors[i], &tensors[0], i));
    }
    return gs_ok();
}

static gs_status alloc_sum(gs_sparse_sum *out, const gs_sparse_tensor *like, size_t num_rows,
                           gs_device *device) {
    gs_device_tensor indices = like->indices, values = like->values;
    indices.shape[0] = values.shape[0] = (int64_t)num_rows;
    GS_TRY(gs_held_tensor_alloc(&out->indices, &indices, device));
    return gs_held_tensor_alloc(&out->values, &values, device);
}

static gs_status add_all(gs_sparse_sum *out, const gs_sparse_tensor *tensors, size_t num_tensors,
                         gs_row_set *set, gs_device *device) {
    size_t most = 1;
    for (size_t t = 0; t < num_tensors; t++) {
        const int32_t *rows = tensors[t].indices.data;
        size_t count = (size_t)tensors[t].indices.shape[0];
        if (count > most) most = count;
        for (size_t i = 0; i < count; i++) gs_row_set_add(set, rows[i]);
    }
    gs_row_set_sort(set);
    GS_TRY(alloc_sum(out, &tensors[0], set->count, device));
    GS_TRY(gs_device_upload(device, out->indices.tensor.data, set->rows,
                            set->count * sizeof *set->rows));
    int32_t *places = calloc(most, sizeof *places);
    if (!places) return gs_error(GS_RESOURCE_EXHAUSTED, "sparse sum: out of memory");
    for (size_t t = 0; t < num_tensors; t++) {
        const int32_t *rows = tensors[t].indices.data;
        size_t count = (size_t)tensors[t].indices.shape[0];
        for (size_t i = 0; i < count; i++) places[i] = set->place_of[rows[i]];
        gs_device_kernels(device)->add_rows(gs_device_stream(device), out->values.tensor.data,
                                            places, tensors[t].values.data, count,
                                            columns_of(&tensors[t].values));
    }
    gs_status status =
        gs_stream_wait(gs_device_stream(device), gs_deadline_in_seconds(COPY_SECONDS));
    free(places);
    return status;
}

gs_status gs_reduce_add_sparse(gs_sparse_sum *out, const gs_sparse_tensor *tensors,
                               size_t num_tensors, gs_device *destination) {
    *out = (gs_sparse_sum){0};
    GS_TRY(check_tensors(tensors, num_tensors));
    if (!destination) destination = tensors[0].values.device;
    out->num_rows = tensors[0].num_rows;
    gs_row_set set;
    GS_TRY(gs_row_set_init(&set, (size_t)out->num_rows, (size_t)out->num_rows));
    gs_status status = add_all(out, tensors, num_tensors, &set, destination);
    gs_row_set_release(&set);
    if (status.code) gs_sparse_sum_release(out);
    return status;
}

void gs_sparse_sum_release(gs_sparse_sum *sum) {
    if (!sum) return;
    gs_held_tensor_release(&sum->indices);
    gs_held_tensor_release(&sum->values);
    *sum = (gs_sparse_sum){0};
}
