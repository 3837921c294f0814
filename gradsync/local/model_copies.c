#include "gradsync/local/model_copies.h"

#include <stdlib.h>

#include "gradsync/local/local_coalesce.h"

gs_status gs_broadcast_forward(gs_tensor_lists **out, gs_broadcast_record *record,
                               const gs_device_tensor *tensors, size_t num_tensors,
                               gs_device *const *devices, size_t num_devices) {
    *out = NULL;
    *record = (gs_broadcast_record){.num_inputs = num_tensors, .num_devices = num_devices};
    if (!num_tensors) return gs_tensor_lists_create(out, num_devices, 0, 0);
    record->device = tensors[0].device;
    return gs_broadcast_coalesced(out, tensors, num_tensors, devices, num_devices, 0);
}

gs_status gs_broadcast_backward(gs_tensor_lists **out, const gs_broadcast_record *record,
                                const gs_device_tensor *grads, size_t num_grads) {
    *out = NULL;
    size_t num_inputs = record->num_inputs, num_devices = record->num_devices;
    if (num_grads != num_inputs * num_devices)
        return gs_error(GS_INVALID_ARGUMENT,
                        "broadcast: %zu gradients of %zu tensors on %zu devices", num_grads,
                        num_inputs, num_devices);
    if (!num_inputs) return gs_tensor_lists_create(out, 1, 0, 0);
    gs_tensor_list *lists = calloc(num_devices, sizeof *lists);
    if (!lists) return gs_error(GS_RESOURCE_EXHAUSTED, "broadcast: out of memory");
    for (size_t d = 0; d < num_devices; d++)
        lists[d] = (gs_tensor_list){grads + d * num_inputs, num_inputs};
    gs_status status = gs_reduce_add_coalesced(out, lists, num_devices, record->device, 0);
    free(lists);
    return status;
}

struct gs_model_copies {
    gs_tensor_lists *params, *buffers;
    gs_broadcast_record record;
    size_t *distinct;  // owned; record.num_inputs places in the table of parameters
    gs_tensor_lists *param_memory, *buffer_memory;
};

// Places of a table: which distinct tensor each holds. ABSENT for none.
#define ABSENT SIZE_MAX

typedef struct identities {
    size_t *index_of;  // place → distinct tensor
    size_t *distinct;  // distinct tensor → its first place
    size_t num_distinct;
    gs_device_tensor *tensors;  // the distinct ones
} identities;

static void release_identities(identities *found) {
    free(found->index_of);
    free(found->distinct);
    free(found->tensors);
    *found = (identities){0};
}

static int compare_memory(const void *a, const void *b, void *table) {
    const gs_device_tensor *tensors = table;
    size_t left = *(const size_t *)a, right = *(const size_t *)b;
    const char *x = tensors[left].data, *y = tensors[right].data;
    if (x != y) return x < y ? -1 : 1;
    return left < right ? -1 : left > right;
}

static gs_status check_same(const gs_device_tensor *table, size_t place, size_t first) {
    if (gs_device_tensor_same_shape(&table[place], &table[first]) &&
        table[place].dtype == table[first].dtype)
        return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "places %zu and %zu share memory in different shapes",
                    first, place);
}

// Sorted by memory, so that equal ones are neighbours; then numbered in order of first appearance.
static gs_status identify(identities *found, const gs_device_tensor *table, size_t num_places) {
    *found = (identities){0};
    size_t *sorted = calloc(num_places + 1, sizeof *sorted);
    found->index_of = calloc(num_places + 1, sizeof *found->index_of);
    found->distinct = calloc(num_places + 1, sizeof *found->distinct);
    found->tensors = calloc(num_places + 1, sizeof *found->tensors);
    gs_status status = gs_ok();
    if (!sorted || !found->index_of || !found->distinct || !found->tensors)
        status = gs_error(GS_RESOURCE_EXHAUSTED, "model copies: out of memory");
    if (!status.code) {
        for (size_t i = 0; i < num_places; i++) sorted[i] = i;
        qsort_r(sorted, num_places, sizeof *sorted, compare_memory, (void *)(uintptr_t)table);
    }
    // First: each place's first twin. Then: that twin's number. A tensor without elements has the
    // address of whatever lies behind it, and is nobody's twin.
    for (size_t i = 0, first = ABSENT; i < num_places && !status.code; i++) {
        size_t place = sorted[i];
        found->index_of[place] = table[place].data ? place : ABSENT;
        if (!table[place].data || !gs_device_tensor_count(&table[place])) continue;
        if (first == ABSENT || table[place].data != table[first].data) first = place;
        found->index_of[place] = first;
        status = check_same(table, place, first);
    }
    for (size_t i = 0; i < num_places && !status.code; i++) {
        size_t first = found->index_of[i];
        if (first == ABSENT) continue;
        if (first == i) {
            found->distinct[found->num_distinct] = i;
            found->tensors[found->num_distinct] = table[i];
            found->index_of[i] = found->num_distinct++;
        } else {
            found->index_of[i] = found->index_of[first];
        }
    }
    free(sorted);
    return status;
}

// The table on each device, by index: copies of the distinct tensors in the places that held them.
static gs_status fill_tables(gs_tensor_lists **tables, const identities *found,
                             const gs_tensor_lists *copies, const gs_device_tensor *table,
                             size_t num_places, gs_device *const *devices, size_t num_devices) {
    GS_TRY(gs_tensor_lists_create(tables, num_devices, num_places, 0));
    for (size_t d = 0; d < num_devices; d++) {
        for (size_t i = 0; i < num_places; i++) {
            gs_device_tensor *place = &gs_tensor_lists_of(*tables, d)[i];
            size_t index = found->index_of[i];
            *place = index == ABSENT ? table[i] : gs_tensor_lists_of(copies, d)[index];
            place->device = devices[d];
        }
    }
    return gs_ok();
}

static gs_status copy_params(gs_model_copies *out, const gs_model_tables *tables,
                             gs_device *const *devices, size_t num_devices) {
    identities found;
    gs_status status = identify(&found, tables->params, tables->num_params);
    if (!status.code)
        status = gs_broadcast_forward(&out->param_memory, &out->record, found.tensors,
                                      found.num_distinct, devices, num_devices);
    if (!status.code)
        status = fill_tables(&out->params, &found, out->param_memory, tables->params,
                             tables->num_params, devices, num_devices);
    if (!status.code) {
        out->distinct = found.distinct;
        found.distinct = NULL;
    }
    release_identities(&found);
    return gs_status_prefix(status, "parameters");
}

static gs_status copy_buffers(gs_model_copies *out, const gs_model_tables *tables,
                              gs_device *const *devices, size_t num_devices) {
    identities found;
    gs_status status = identify(&found, tables->buffers, tables->num_buffers);
    if (!status.code && found.num_distinct)
        status = gs_broadcast_coalesced(&out->buffer_memory, found.tensors, found.num_distinct,
                                        devices, num_devices, 0);
    if (!status.code)
        status = fill_tables(&out->buffers, &found, out->buffer_memory, tables->buffers,
                             tables->num_buffers, devices, num_devices);
    release_identities(&found);
    return gs_status_prefix(status, "buffers");
}

gs_status gs_model_copies_create(gs_model_copies **out, const gs_model_tables *tables,
                                 gs_device *const *devices, size_t num_devices) {
    *out = NULL;
    if (!num_devices) return gs_error(GS_INVALID_ARGUMENT, "model copies: no devices");
    gs_model_copies *copies = calloc(1, sizeof *copies);
    if (!copies) return gs_error(GS_RESOURCE_EXHAUSTED, "model copies: out of memory");
    gs_status status = copy_params(copies, tables, devices, num_devices);
    if (!status.code) status = copy_buffers(copies, tables, devices, num_devices);
    if (!status.code) *out = copies;
    if (status.code) gs_model_copies_destroy(copies);
    return gs_status_prefix(status, "model copies");
}

void gs_model_copies_destroy(gs_model_copies *copies) {
    if (!copies) return;
    gs_tensor_lists_destroy(copies->params);
    gs_tensor_lists_destroy(copies->buffers);
    gs_tensor_lists_destroy(copies->param_memory);
    gs_tensor_lists_destroy(copies->buffer_memory);
    free(copies->distinct);
    free(copies);
}

gs_tensor_lists *gs_model_copies_params(const gs_model_copies *copies) {
    return copies->params;
}

gs_tensor_lists *gs_model_copies_buffers(const gs_model_copies *copies) {
    return copies->buffers;
}

const gs_broadcast_record *gs_model_copies_record(const gs_model_copies *copies) {
    return &copies->record;
}

const size_t *gs_model_copies_distinct(const gs_model_copies *copies) {
    return copies->distinct;
}
