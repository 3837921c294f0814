#include "gradsync/local/sparse_tensor.h"

#include <stdlib.h>

#include "gradsync/local/local_coalesce.h"
#include "gradsync/sparse/row_places.h"
#include "gradsync/sparse/row_set.h"

#define COPY_SECONDS 600.0

gs_status gs_broadcast_sparse(gs_tensor_lists **out, const gs_sparse_tensor *tensors,
                              size_t num_tensors, gs_device *const *devices, size_t num_devices,
                              size_t limit_bytes) {
    *out = NULL;
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
    return gs_ok();
}

// The indices of a tensor in host memory, to be freed; checked.
static gs_status fetch_rows(int32_t **out, const gs_sparse_tensor *tensor, size_t position) {
    const gs_device_tensor *indices = &tensor->indices;
    size_t bytes = gs_device_tensor_bytes(indices);
    int32_t *rows = *out = malloc(bytes + 1);
    if (!rows) return gs_error(GS_RESOURCE_EXHAUSTED, "sparse sum: out of memory");
    GS_TRY(gs_device_download(indices->device, rows, indices->data, bytes));
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

static gs_status collect_rows(gs_row_set *set, const gs_sparse_tensor *tensor, size_t position) {
    int32_t *rows;
    gs_status status = fetch_rows(&rows, tensor, position);
    for (int64_t i = 0; i < tensor->indices.shape[0] && !status.code; i++)
        gs_row_set_add(set, rows[i]);
    free(rows);
    return status;
}

// Rows of a tensor to their places in the sum, piece by piece.
static gs_status add_rows(gs_device *device, float *sum, const gs_row_set *set,
                          const gs_sparse_tensor *tensor, const float *values) {
    int32_t *rows, *places;
    gs_row_places pieces = {0};
    size_t count = (size_t)tensor->indices.shape[0], columns = columns_of(&tensor->values);
    gs_stream *stream = gs_device_stream(device);
    gs_status status = fetch_rows(&rows, tensor, 0);
    if (!status.code) status = gs_row_places_init(&pieces, device);
    for (size_t first = 0, part; first < count && !status.code; first += part) {
        part = count - first < GS_NUM_ROW_PLACES ? count - first : GS_NUM_ROW_PLACES;
        status = gs_row_places_take(&pieces, &places);
        for (size_t i = 0; i < part && !status.code; i++)
            places[i] = set->place_of[rows[first + i]];
        if (!status.code)
            gs_device_kernels(device)->add_rows(stream, sum, places, values + first * columns, part,
                                                columns);
    }
    if (!status.code) status = gs_stream_wait(stream, gs_deadline_in_seconds(COPY_SECONDS));
    gs_row_places_release(&pieces);
    free(rows);
    return status;
}

static gs_status add_tensor(gs_device *device, float *sum, const gs_row_set *set,
                            const gs_sparse_tensor *tensor) {
    const gs_device_tensor *values = &tensor->values;
    if (gs_device_reaches(device, values->device))
        return add_rows(device, sum, set, tensor, values->data);
    gs_held_tensor staged;
    GS_TRY(gs_held_tensor_alloc(&staged, values, device));
    gs_device_move(device, staged.tensor.data, values->device, values->data,
                   gs_device_tensor_bytes(values));
    gs_status status = add_rows(device, sum, set, tensor, staged.tensor.data);
    gs_held_tensor_release(&staged);
    return status;
}

static gs_status add_all(gs_sparse_sum *out, const gs_sparse_tensor *tensors, size_t num_tensors,
                         gs_row_set *set, gs_device *device) {
    for (size_t t = 0; t < num_tensors; t++) GS_TRY(collect_rows(set, &tensors[t], t));
    gs_row_set_sort(set);
    GS_TRY(alloc_sum(out, &tensors[0], set->count, device));
    GS_TRY(gs_device_upload(device, out->indices.tensor.data, set->rows,
                            set->count * sizeof *set->rows));
    for (size_t t = 0; t < num_tensors; t++)
        GS_TRY(add_tensor(device, out->values.tensor.data, set, &tensors[t]));
    return gs_ok();
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
