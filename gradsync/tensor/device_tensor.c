#include "gradsync/tensor/device_tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES ((size_t)4 << 20)  // on its way through the host

gs_device_tensor gs_device_tensor_make(const gs_param_spec *spec, void *data, gs_device *device) {
    gs_device_tensor tensor = {
        .data = data, .dtype = spec->dtype, .num_dims = spec->num_dims, .device = device};
    memcpy(tensor.shape, spec->shape, sizeof tensor.shape);
    return tensor;
}

size_t gs_device_tensor_count(const gs_device_tensor *tensor) {
    size_t count = 1;
    for (int i = 0; i < tensor->num_dims; i++) count *= (size_t)tensor->shape[i];
    return count;
}

size_t gs_device_tensor_bytes(const gs_device_tensor *tensor) {
    return gs_device_tensor_count(tensor) * gs_dtype_bytes(tensor->dtype);
}

bool gs_device_tensor_same_shape(const gs_device_tensor *a, const gs_device_tensor *b) {
    if (a->num_dims != b->num_dims) return false;
    for (int i = 0; i < a->num_dims; i++) {
        if (a->shape[i] != b->shape[i]) return false;
    }
    return true;
}

void gs_device_tensor_format_shape(char text[GS_SHAPE_TEXT_LEN], const gs_device_tensor *tensor) {
    size_t at = (size_t)snprintf(text, GS_SHAPE_TEXT_LEN, "[");
    for (int i = 0; i < tensor->num_dims && at + 24 < GS_SHAPE_TEXT_LEN; i++)
        at += (size_t)snprintf(text + at, GS_SHAPE_TEXT_LEN - at, "%s%lld", i ? "," : "",
                               (long long)tensor->shape[i]);
    snprintf(text + at, GS_SHAPE_TEXT_LEN - at, "]");
}

gs_status gs_device_tensors_check(const gs_device_tensor *tensors, size_t num_tensors) {
    for (size_t i = 0; i < num_tensors; i++) {
        const gs_device_tensor *tensor = &tensors[i];
        if (!tensor->device || !tensor->data)
            return gs_error(GS_INVALID_ARGUMENT, "tensor %zu: no %s", i,
                            tensor->device ? "memory" : "device");
        if (!gs_dtype_bytes(tensor->dtype))
            return gs_error(GS_INVALID_ARGUMENT, "tensor %zu: dtype unset", i);
        if (tensor->num_dims < 0 || tensor->num_dims > GS_MAX_DIMS)
            return gs_error(GS_INVALID_ARGUMENT, "tensor %zu: %d dimensions", i, tensor->num_dims);
        for (int d = 0; d < tensor->num_dims; d++) {
            if (tensor->shape[d] < 0)
                return gs_error(GS_INVALID_ARGUMENT, "tensor %zu: dimension %d is %lld", i, d,
                                (long long)tensor->shape[d]);
        }
    }
    return gs_ok();
}

bool gs_device_reaches(const gs_device *device, const gs_device *other) {
    return device == other || (gs_device_is_host(device) && gs_device_is_host(other));
}

static gs_status carry(gs_device *to_device, char *to, gs_device *from_device, const char *from,
                       size_t bytes) {
    size_t most = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
    void *piece = malloc(most);
    gs_status status = gs_ok();
    if (!piece) status = gs_error(GS_RESOURCE_EXHAUSTED, "copy between devices: out of memory");
    for (size_t at = 0, part; at < bytes && !status.code; at += part) {
        part = bytes - at < most ? bytes - at : most;
        status = gs_device_download(from_device, piece, from + at, part);
        if (!status.code) status = gs_device_upload(to_device, to + at, piece, part);
    }
    free(piece);
    return gs_status_prefix(status, "copy from %s to %s", gs_device_name(from_device),
                            gs_device_name(to_device));
}

void gs_device_move(gs_device *to_device, void *to, gs_device *from_device, const void *from,
                    size_t bytes) {
    gs_stream *stream = gs_device_stream(to_device);
    if (!bytes) return;
    if (gs_device_reaches(to_device, from_device))
        gs_device_kernels(to_device)->copy(stream, to, from, bytes);
    else
        gs_stream_fail(stream, carry(to_device, to, from_device, from, bytes));
}

gs_status gs_held_tensor_alloc(gs_held_tensor *out, const gs_device_tensor *like,
                               gs_device *device) {
    *out = (gs_held_tensor){.tensor = *like, .owned = true};
    out->tensor.device = device;
    out->tensor.data = NULL;
    size_t bytes = gs_device_tensor_bytes(like);
    return gs_device_alloc(device, &out->tensor.data, bytes ? bytes : 1);
}

void gs_held_tensor_release(gs_held_tensor *held) {
    if (held->owned) gs_device_free(held->tensor.device, held->tensor.data);
    *held = (gs_held_tensor){0};
}

struct gs_tensor_lists {
    size_t num_lists, num_tensors;  // tensors of each list
    gs_device_tensor *tensors;      // list after list
    gs_held_tensor *buffers;
    size_t num_buffers, max_buffers;
};

gs_status gs_tensor_lists_create(gs_tensor_lists **out, size_t num_lists, size_t num_tensors,
                                 size_t max_buffers) {
    *out = NULL;
    gs_tensor_lists *lists = calloc(1, sizeof *lists);
    if (lists) {
        *lists = (gs_tensor_lists){
            .num_lists = num_lists, .num_tensors = num_tensors, .max_buffers = max_buffers};
        lists->tensors = calloc(num_lists * num_tensors + 1, sizeof *lists->tensors);
        lists->buffers = calloc(max_buffers + 1, sizeof *lists->buffers);
    }
    if (!lists || !lists->tensors || !lists->buffers) {
        gs_tensor_lists_destroy(lists);
        return gs_error(GS_RESOURCE_EXHAUSTED, "lists of tensors: out of memory");
    }
    *out = lists;
    return gs_ok();
}

void gs_tensor_lists_destroy(gs_tensor_lists *lists) {
    if (!lists) return;
    for (size_t i = 0; i < lists->num_buffers; i++) gs_held_tensor_release(&lists->buffers[i]);
    free(lists->buffers);
    free(lists->tensors);
    free(lists);
}

size_t gs_tensor_lists_count(const gs_tensor_lists *lists) {
    return lists->num_lists;
}

size_t gs_tensor_lists_num_tensors(const gs_tensor_lists *lists) {
    return lists->num_tensors;
}

size_t gs_tensor_lists_num_buffers(const gs_tensor_lists *lists) {
    return lists->num_buffers;
}

gs_device_tensor *gs_tensor_lists_of(const gs_tensor_lists *lists, size_t list) {
    return lists->tensors + list * lists->num_tensors;
}

gs_status gs_tensor_lists_add_buffer(gs_tensor_lists *lists, gs_device_tensor *out,
                                     const gs_device_tensor *like, gs_device *device) {
    if (lists->num_buffers == lists->max_buffers)
        return gs_error(GS_FAILED_PRECONDITION, "lists of tensors: room for %zu buffers",
                        lists->max_buffers);
    gs_held_tensor *buffer = &lists->buffers[lists->num_buffers];
    GS_TRY(gs_held_tensor_alloc(buffer, like, device));
    lists->num_buffers++;
    *out = buffer->tensor;
    return gs_ok();
}

static bool follows(const gs_device_tensor *next, const gs_device_tensor *tensor) {
    return next->device == tensor->device &&
           (char *)tensor->data + gs_device_tensor_bytes(tensor) == next->data;
}

void gs_tensor_lists_refresh(const gs_tensor_lists *lists, size_t list) {
    const gs_device_tensor *from = gs_tensor_lists_of(lists, 0);
    const gs_device_tensor *to = gs_tensor_lists_of(lists, list);
    for (size_t first = 0, end; first < lists->num_tensors; first = end) {
        size_t bytes = gs_device_tensor_bytes(&from[first]);
        for (end = first + 1; end < lists->num_tensors; end++) {
            if (!follows(&from[end], &from[end - 1]) || !follows(&to[end], &to[end - 1])) break;
            bytes += gs_device_tensor_bytes(&from[end]);
        }
        if (to[first].data != from[first].data)
            gs_device_move(to[first].device, to[first].data, from[first].device, from[first].data,
                           bytes);
    }
}
