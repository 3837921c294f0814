#include "gradsync/bucket/copy_table.h"

#include <stdlib.h>

#include "core/memory.h"

static gs_status alloc_items(gs_cast_item **items, size_t num_slots, size_t num_params,
                             gs_device *device) {
    size_t count, bytes;
    void *memory;
    if (!gs_bytes_of(&count, num_slots, num_params) || !gs_bytes_of(&bytes, count, sizeof **items))
        return gs_error(GS_RESOURCE_EXHAUSTED, "copies of %zu gradients do not fit", num_params);
    GS_TRY(gs_device_alloc_pinned(device, &memory, bytes));
    *items = memory;
    return gs_ok();
}

gs_status gs_copy_table_init(gs_copy_table *table, size_t num_params, int num_slots,
                             gs_device *device) {
    *table = (gs_copy_table){0};
    if (gs_device_is_host(device)) return gs_ok();
    table->device = device;
    table->num_slots = num_slots;
    GS_TRY(alloc_items(&table->in, (size_t)num_slots, num_params, device));
    GS_TRY(alloc_items(&table->out, 1, num_params, device));
    table->params = calloc(num_params, sizeof *table->params);
    table->first = calloc(num_params + 1, sizeof *table->first);
    if (table->params && table->first) return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "separate gradients: out of memory");
}

void gs_copy_table_release(gs_copy_table *table) {
    if (!table->device) return;
    gs_device_free_pinned(table->device, table->in);
    gs_device_free_pinned(table->device, table->out);
    free(table->params);
    free(table->first);
    *table = (gs_copy_table){0};
}

// Members of a bucket type by type, so that those of one type are one launch.
static size_t place_bucket(gs_copy_table *table, size_t at, const gs_separate_grad *tensors,
                           const gs_bucket *bucket) {
    static const gs_dtype dtypes[] = {GS_FP32, GS_FP64, GS_FP16, GS_BF16};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        for (size_t i = 0; i < bucket->num_params; i++) {
            if (tensors[bucket->params[i]].dtype == dtypes[d])
                table->params[at++] = bucket->params[i];
        }
    }
    return at;
}

void gs_copy_table_place(gs_copy_table *table, const gs_separate_grad *tensors,
                         const gs_grad_layout *layout) {
    size_t num_places = 0;
    if (!table->device) return;
    for (size_t b = 0; b < layout->plan.num_buckets; b++) {
        table->first[b] = num_places;
        num_places = place_bucket(table, num_places, tensors, &layout->buckets[b]);
    }
    table->first[layout->plan.num_buckets] = num_places;
    for (int slot = 0; slot < layout->num_slots; slot++) {
        gs_cast_item *items = table->in + (size_t)slot * layout->num_params;
        for (size_t i = 0; i < num_places; i++) {
            size_t param = table->params[i];
            void *grad = gs_grad_layout_grads(layout, slot)[param], *tensor = tensors[param].data;
            items[i] = (gs_cast_item){grad, tensor, layout->counts[param]};
        }
    }
    for (size_t i = 0; i < num_places; i++) {
        size_t param = table->params[i];
        table->out[i] = (gs_cast_item){tensors[param].data, gs_grad_layout_results(layout)[param],
                                       layout->counts[param]};
    }
}

// Places [first, result) have tensors of one type, and the flag.
static size_t end_of_run(const gs_copy_table *table, const gs_separate_grad *tensors, size_t first,
                         size_t end, const uint8_t *flags) {
    gs_dtype dtype = tensors[table->params[first]].dtype;
    size_t at = first;
    while (at < end && flags[table->params[at]] && tensors[table->params[at]].dtype == dtype) at++;
    return at;
}

void gs_copy_table_in(const gs_copy_table *table, const gs_separate_grad *tensors,
                      const gs_grad_layout *layout, int slot, size_t index, const uint8_t *flags,
                      gs_work_stream on) {
    const gs_cast_item *items = table->in + (size_t)slot * layout->num_params;
    gs_dtype main_dtype = layout->buckets[index].dtype;
    for (size_t at = table->first[index], end = table->first[index + 1], next; at < end;
         at = next) {
        next = end_of_run(table, tensors, at, end, flags);
        if (next > at)
            gs_device_kernels(on.device)->cast_many(on.stream, items + at, next - at, main_dtype,
                                                    tensors[table->params[at]].dtype, 1);
        else
            next++;
    }
}

void gs_copy_table_out(const gs_copy_table *table, const gs_separate_grad *tensors,
                       const gs_grad_layout *layout, size_t index, const uint8_t *flags) {
    gs_dtype main_dtype = layout->buckets[index].dtype;
    for (size_t at = table->first[index], end = table->first[index + 1], next; at < end;
         at = next) {
        next = end_of_run(table, tensors, at, end, flags);
        if (next > at)
            gs_device_kernels(table->device)
                ->cast_many(gs_device_stream(table->device), table->out + at, next - at,
                            tensors[table->params[at]].dtype, main_dtype, 1);
        else
            next++;
    }
}
