#include "gradsync/grad_layout.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

gs_status gs_grad_layout_bytes(size_t *bytes, const gs_param_spec *params, size_t num_params,
                               int num_slots) {
    size_t slot_bytes;
    GS_TRY(gs_bucket_max_layout_bytes(&slot_bytes, params, num_params));
    if (!gs_bytes_of(bytes, slot_bytes, (size_t)num_slots))
        return gs_error(GS_RESOURCE_EXHAUSTED, "%d slots of %zu bytes do not fit into memory",
                        num_slots, slot_bytes);
    return gs_ok();
}

gs_status gs_grad_layout_init(gs_grad_layout *layout, const gs_param_spec *params,
                              size_t num_params, int num_slots, void *memory) {
    *layout = (gs_grad_layout){.num_params = num_params, .num_slots = num_slots, .memory = memory};
    GS_TRY(gs_bucket_max_layout_bytes(&layout->slot_bytes, params, num_params));
    layout->params = calloc(num_params, sizeof *layout->params);
    layout->buckets = calloc(num_params, sizeof *layout->buckets);
    layout->bucket_of = calloc(num_params, sizeof *layout->bucket_of);
    layout->offset_bytes = calloc(num_params, sizeof *layout->offset_bytes);
    layout->counts = calloc(num_params, sizeof *layout->counts);
    layout->grads = calloc(num_params * (size_t)num_slots, sizeof *layout->grads);
    if (!layout->params || !layout->buckets || !layout->bucket_of || !layout->offset_bytes ||
        !layout->counts || !layout->grads) {
        gs_grad_layout_release(layout);
        return gs_error(GS_RESOURCE_EXHAUSTED, "gradient layout: out of memory");
    }
    memcpy(layout->params, params, num_params * sizeof *params);
    for (size_t i = 0; i < num_params; i++) layout->counts[i] = gs_param_spec_count(&params[i]);
    return gs_ok();
}

void gs_grad_layout_release(gs_grad_layout *layout) {
    if (!layout) return;
    gs_bucket_plan_release(&layout->plan);
    free(layout->params);
    free(layout->buckets);
    free(layout->bucket_of);
    free(layout->offset_bytes);
    free(layout->counts);
    free(layout->grads);
    *layout = (gs_grad_layout){0};
}

gs_status gs_grad_layout_set_plan(gs_grad_layout *layout, const gs_bucket_plan *plan) {
    gs_bucket_plan copy;
    GS_TRY(gs_bucket_plan_copy(&copy, plan));
    gs_bucket_plan_release(&layout->plan);
    layout->plan = copy;

    gs_bucket_layout(layout->buckets, layout->offset_bytes, &layout->plan, layout->params);
    for (size_t b = 0; b < layout->plan.num_buckets; b++) {
        const gs_bucket *bucket = &layout->buckets[b];
        for (size_t i = 0; i < bucket->num_params; i++) layout->bucket_of[bucket->params[i]] = b;
        for (int slot = 0; slot < layout->num_slots; slot++)
            gs_bucket_clear_padding(bucket, gs_grad_layout_slot(layout, slot), layout->params);
    }
    for (int slot = 0; slot < layout->num_slots; slot++) {
        for (size_t i = 0; i < layout->num_params; i++)
            layout->grads[(size_t)slot * layout->num_params + i] =
                (float *)(gs_grad_layout_slot(layout, slot) + layout->offset_bytes[i]);
    }
    return gs_ok();
}
