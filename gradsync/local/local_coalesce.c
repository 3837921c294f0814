#include "gradsync/local/local_coalesce.h"

#include <stdlib.h>

#include "core/bucket_plan.h"
#include "gradsync/tensor/flatten.h"

#define STAGED_SECONDS 600.0

// Tensors of a list in chunks: members[first[c] .. first[c + 1]) are those of chunk c, in list
// order.
typedef struct chunking {
    size_t num_chunks;
    size_t *first, *members;
    gs_device_tensor *templates, *windows;  // room for the largest chunk
} chunking;

static void release_chunking(chunking *cut) {
    free(cut->first);
    free(cut->members);
    free(cut->templates);
    free(cut->windows);
}

// A counting sort: chunk_of says where each tensor goes.
static void sort_members(chunking *cut, const size_t *chunk_of, size_t num_tensors) {
    for (size_t i = 0; i < num_tensors; i++) cut->first[chunk_of[i] + 1]++;
    for (size_t c = 0; c < cut->num_chunks; c++) cut->first[c + 1] += cut->first[c];
    for (size_t i = 0; i < num_tensors; i++) cut->members[cut->first[chunk_of[i]]++] = i;
    for (size_t c = cut->num_chunks; c > 0; c--) cut->first[c] = cut->first[c - 1];
    cut->first[0] = 0;
}

static gs_status cut_chunks(chunking *cut, const gs_device_tensor *tensors, size_t num_tensors,
                            size_t limit_bytes) {
    *cut = (chunking){0};
    gs_plan_tensor *sizes = calloc(num_tensors, sizeof *sizes);
    size_t *chunk_of = calloc(num_tensors, sizeof *chunk_of);
    cut->first = calloc(num_tensors + 2, sizeof *cut->first);
    cut->members = calloc(num_tensors, sizeof *cut->members);
    cut->templates = calloc(num_tensors, sizeof *cut->templates);
    cut->windows = calloc(num_tensors, sizeof *cut->windows);
    gs_status status = gs_ok();
    if (!sizes || !chunk_of || !cut->first || !cut->members || !cut->templates || !cut->windows)
        status = gs_error(GS_RESOURCE_EXHAUSTED, "chunks: out of memory");
    for (size_t i = 0; i < num_tensors && !status.code; i++)
        sizes[i] = (gs_plan_tensor){.count = gs_device_tensor_count(&tensors[i]),
                                    .dtype = tensors[i].dtype};
    if (!status.code)
        status = gs_take_tensors(chunk_of, &cut->num_chunks, sizes, num_tensors,
                                 limit_bytes ? limit_bytes : GS_LOCAL_COALESCE_BYTES, true);
    if (!status.code) sort_members(cut, chunk_of, num_tensors);
    if (status.code) release_chunking(cut);
    free(sizes);
    free(chunk_of);
    return status;
}

// A flat buffer for chunk `c` on `device`, owned by the lists; its windows take their places in
// `list`.
static gs_status open_windows(gs_tensor_lists *lists, gs_device_tensor *list, const chunking *cut,
                              size_t c, const gs_device_tensor *like, gs_device *device) {
    size_t num_members = cut->first[c + 1] - cut->first[c], count = 0;
    const size_t *members = cut->members + cut->first[c];
    for (size_t i = 0; i < num_members; i++) {
        cut->templates[i] = like[members[i]];
        count += gs_device_tensor_count(&cut->templates[i]);
    }
    gs_device_tensor shape = {
        .dtype = cut->templates[0].dtype, .num_dims = 1, .shape = {(int64_t)count}};
    gs_device_tensor flat;
    GS_TRY(gs_tensor_lists_add_buffer(lists, &flat, &shape, device));
    GS_TRY(gs_unflatten(cut->windows, &flat, cut->templates, num_members));
    for (size_t i = 0; i < num_members; i++) list[members[i]] = cut->windows[i];
    return gs_ok();
}

static gs_status check_broadcast(const gs_device_tensor *tensors, size_t num_tensors,
                                 gs_device *const *devices, size_t num_devices) {
    if (!num_tensors) return gs_error(GS_INVALID_ARGUMENT, "broadcast: no tensors");
    if (!num_devices) return gs_error(GS_INVALID_ARGUMENT, "broadcast: no devices");
    GS_TRY(gs_status_prefix(gs_device_tensors_check(tensors, num_tensors), "broadcast"));
    for (size_t d = 0; d < num_devices; d++) {
        if (!devices[d]) return gs_error(GS_INVALID_ARGUMENT, "broadcast: device %zu is none", d);
    }
    for (size_t i = 0; i < num_tensors; i++) {
        if (tensors[i].device != devices[0])
            return gs_error(GS_INVALID_ARGUMENT, "broadcast: tensor %zu is not on the first device",
                            i);
    }
    return gs_ok();
}

gs_status gs_broadcast_coalesced(gs_tensor_lists **out, const gs_device_tensor *tensors,
                                 size_t num_tensors, gs_device *const *devices, size_t num_devices,
                                 size_t limit_bytes) {
    *out = NULL;
    GS_TRY(check_broadcast(tensors, num_tensors, devices, num_devices));
    chunking cut;
    GS_TRY(cut_chunks(&cut, tensors, num_tensors, limit_bytes));
    gs_tensor_lists *lists;
    gs_status status =
        gs_tensor_lists_create(&lists, num_devices, num_tensors, cut.num_chunks * num_devices);
    for (size_t i = 0; i < num_tensors && !status.code; i++)
        gs_tensor_lists_of(lists, 0)[i] = tensors[i];
    for (size_t d = 1; d < num_devices && !status.code; d++) {
        for (size_t c = 0; c < cut.num_chunks && !status.code; c++)
            status =
                open_windows(lists, gs_tensor_lists_of(lists, d), &cut, c, tensors, devices[d]);
        // Gathered right into the buffer of the device that receives: no copy on the first one.
        if (!status.code) gs_tensor_lists_refresh(lists, d);
    }
    release_chunking(&cut);
    if (!status.code) *out = lists;
    if (status.code) gs_tensor_lists_destroy(lists);
    return status;
}

gs_status gs_broadcast_tensor(gs_tensor_lists **out, const gs_device_tensor *tensor,
                              gs_device *const *devices, size_t num_devices) {
    return gs_broadcast_coalesced(out, tensor, 1, devices, num_devices, 0);
}

static gs_status check_summable(const gs_device_tensor *tensor, size_t position) {
    if (tensor->dtype != GS_U8) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "tensor %zu: there is no sum of u8", position);
}

// List `d` against list 0.
static gs_status compare_lists(const gs_tensor_list *lists, size_t d) {
    if (lists[d].num_tensors != lists[0].num_tensors)
        return gs_error(GS_INVALID_ARGUMENT, "list %zu has %zu tensors, list 0 has %zu", d,
                        lists[d].num_tensors, lists[0].num_tensors);
    GS_TRY(gs_status_prefix(gs_device_tensors_check(lists[d].tensors, lists[d].num_tensors),
                            "list %zu", d));
    for (size_t i = 0; i < lists[0].num_tensors; i++) {
        const gs_device_tensor *ours = &lists[d].tensors[i], *theirs = &lists[0].tensors[i];
        if (!gs_device_tensor_same_shape(ours, theirs)) {
            char a[GS_SHAPE_TEXT_LEN], b[GS_SHAPE_TEXT_LEN];
            gs_device_tensor_format_shape(a, ours);
            gs_device_tensor_format_shape(b, theirs);
            return gs_error(GS_INVALID_ARGUMENT, "list %zu, tensor %zu: shape %s against %s", d, i,
                            a, b);
        }
        if (ours->dtype != theirs->dtype)
            return gs_error(GS_INVALID_ARGUMENT, "list %zu, tensor %zu: dtype %s against %s", d, i,
                            gs_dtype_name(ours->dtype), gs_dtype_name(theirs->dtype));
        if (ours->device != lists[d].tensors[0].device)
            return gs_error(GS_INVALID_ARGUMENT, "list %zu, tensor %zu: on another device than 0",
                            d, i);
        GS_TRY(check_summable(ours, i));
    }
    return gs_ok();
}

static gs_status check_lists(const gs_tensor_list *lists, size_t num_lists,
                             const gs_device *destination) {
    if (!num_lists) return gs_error(GS_INVALID_ARGUMENT, "no lists");
    if (num_lists > GS_REDUCE_MAX_INPUTS)
        return gs_error(GS_INVALID_ARGUMENT, "%zu lists are more than %d", num_lists,
                        GS_REDUCE_MAX_INPUTS);
    if (!lists[0].num_tensors) return gs_error(GS_INVALID_ARGUMENT, "no tensors");
    bool holds = !destination;
    for (size_t d = 0; d < num_lists; d++) {
        GS_TRY(compare_lists(lists, d));
        holds = holds || lists[d].tensors[0].device == destination;
    }
    return holds ? gs_ok()
                 : gs_error(GS_INVALID_ARGUMENT, "the destination is none of the lists' devices");
}

// What the receiving device does not reach, as a copy of its own.
static gs_status stage_input(gs_held_tensor *staged, const void **input, const gs_device_tensor *of,
                             gs_device *device) {
    *input = of->data;
    if (gs_device_reaches(device, of->device)) return gs_ok();
    GS_TRY(gs_held_tensor_alloc(staged, of, device));
    gs_device_move(device, staged->tensor.data, of->device, of->data, gs_device_tensor_bytes(of));
    *input = staged->tensor.data;
    return gs_ok();
}

static gs_status add_tensors(const gs_device_tensor *out, const gs_tensor_list *lists,
                             size_t num_lists, size_t position) {
    const void *inputs[GS_REDUCE_MAX_INPUTS];
    gs_held_tensor staged[GS_REDUCE_MAX_INPUTS];
    gs_stream *stream = gs_device_stream(out->device);
    gs_status status = gs_ok();
    bool waits = false;
    for (size_t d = 0; d < num_lists; d++) {
        staged[d] = (gs_held_tensor){0};
        if (!status.code)
            status = stage_input(&staged[d], &inputs[d], &lists[d].tensors[position], out->device);
        waits = waits || staged[d].owned;
    }
    if (!status.code)
        gs_device_kernels(out->device)
            ->reduce(stream, &(gs_reduction){.outputs = &(void *){out->data},
                                             .inputs = inputs,
                                             .num_outputs = 1,
                                             .num_inputs = (int)num_lists,
                                             .dtype = out->dtype,
                                             .op = GS_OP_SUM,
                                             .scale = 1,
                                             .count = gs_device_tensor_count(out)});
    if (waits && !status.code)
        status = gs_stream_wait(stream, gs_deadline_in_seconds(STAGED_SECONDS));
    for (size_t d = 0; d < num_lists; d++) gs_held_tensor_release(&staged[d]);
    return status;
}

static gs_status add_lists(gs_tensor_lists **out, const gs_tensor_list *lists, size_t num_lists,
                           gs_device *destination, size_t limit_bytes) {
    const gs_device_tensor *like = lists[0].tensors;
    size_t num_tensors = lists[0].num_tensors;
    chunking cut;
    GS_TRY(cut_chunks(&cut, like, num_tensors, limit_bytes));
    gs_tensor_lists *sums;
    gs_status status = gs_tensor_lists_create(&sums, 1, num_tensors, cut.num_chunks);
    gs_device_tensor *sum = status.code ? NULL : gs_tensor_lists_of(sums, 0);
    for (size_t c = 0; c < cut.num_chunks && !status.code; c++)
        status = open_windows(sums, sum, &cut, c, like, destination);
    for (size_t i = 0; i < num_tensors && !status.code; i++)
        status = add_tensors(&sum[i], lists, num_lists, i);
    release_chunking(&cut);
    if (!status.code) *out = sums;
    if (status.code) gs_tensor_lists_destroy(sums);
    return status;
}

gs_status gs_reduce_add_coalesced(gs_tensor_lists **out, const gs_tensor_list *lists,
                                  size_t num_lists, gs_device *destination, size_t limit_bytes) {
    *out = NULL;
    GS_TRY(gs_status_prefix(check_lists(lists, num_lists, destination), "reduce_add"));
    if (num_lists > 1)
        return add_lists(out, lists, num_lists,
                         destination ? destination : lists[0].tensors[0].device, limit_bytes);
    GS_TRY(gs_tensor_lists_create(out, 1, lists[0].num_tensors, 0));
    for (size_t i = 0; i < lists[0].num_tensors; i++)
        gs_tensor_lists_of(*out, 0)[i] = lists[0].tensors[i];
    return gs_ok();
}

gs_status gs_reduce_add(gs_held_tensor *out, const gs_device_tensor *tensors, size_t num_tensors,
                        gs_device *destination) {
    *out = (gs_held_tensor){0};
    gs_tensor_list lists[GS_REDUCE_MAX_INPUTS];
    for (size_t i = 0; i < num_tensors && i < GS_REDUCE_MAX_INPUTS; i++)
        lists[i] = (gs_tensor_list){&tensors[i], 1};
    GS_TRY(gs_status_prefix(check_lists(lists, num_tensors, destination), "reduce_add"));
    if (num_tensors == 1) {
        out->tensor = tensors[0];
        return gs_ok();
    }
    GS_TRY(gs_held_tensor_alloc(out, &tensors[0], destination ? destination : tensors[0].device));
    gs_status status = add_tensors(&out->tensor, lists, num_tensors, 0);
    if (status.code) gs_held_tensor_release(out);
    return status;
}
