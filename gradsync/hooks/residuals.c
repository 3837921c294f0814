#include "gradsync/hooks/residuals.h"

#include <stdlib.h>

#include "core/memory.h"
#include "gradsync/bucket/main_grad.h"
#include "gradsync/hooks/hook_calls.h"

static const gs_hook_choice plain_choice = {.hook = &gs_hook_allreduce};

static gs_hook_setup plain_setup(const gs_hook_setup *setup) {
    gs_hook_setup plain = *setup;
    plain.choice = &plain_choice;
    return plain;
}

static gs_param_state_options describe_errors(const gs_hook_setup *setup) {
    return (gs_param_state_options){.name = "error",
                                    .is_own = true,
                                    .params = setup->params,
                                    .num_params = setup->num_params};
}

static bool feeds_back(const gs_hook_setup *setup) {
    return gs_hook_option_value(setup->choice, "error_feedback") != 0;
}

// Whichever buckets a plan makes, each of them is one of its parameters at least.
static size_t measure_payloads(const gs_hook_setup *setup, gs_residual_size size) {
    size_t total = 0;
    for (size_t i = 0; i < setup->num_params; i++) {
        const gs_hook_param *param = &setup->params[i];
        const gs_residual_sizes sizes =
            size(setup->choice, param->dtype, setup->wire_dtype, param->count, 1);
        size_t bytes;
        if (__builtin_mul_overflow(sizes.payload_bytes, (size_t)setup->world_size, &bytes) ||
            __builtin_add_overflow(bytes, sizes.scratch_bytes + 2 * GS_HOOK_PLACE_BYTES, &bytes) ||
            __builtin_add_overflow(total, bytes, &total))
            return SIZE_MAX;
    }
    return total;
}

gs_status gs_residuals_measure(gs_hook_needs *needs, const gs_hook_setup *setup,
                               gs_residual_size size) {
    const gs_param_state_options errors = describe_errors(setup);
    const gs_hook_setup plain = plain_setup(setup);
    gs_hook_needs of_plain = {0};
    GS_TRY(gs_hook_refuse_exact(setup));
    GS_TRY(gs_hook_check_feedback(setup));
    GS_TRY(gs_hook_allreduce.measure(&of_plain, &plain));
    *needs = (gs_hook_needs){.num_phases = 1, .most_posts = 2, .narrows = of_plain.narrows};
    if (feeds_back(setup)) needs->state_bytes = gs_param_state_bytes(&errors);
    if (__builtin_add_overflow(measure_payloads(setup, size), of_plain.bucket_bytes,
                               &needs->bucket_bytes))
        return gs_error(GS_RESOURCE_EXHAUSTED, "its buckets do not fit into memory");
    return gs_ok();
}

static gs_status init(gs_residuals *self, const gs_hook_setup *setup) {
    const gs_param_state_options errors = describe_errors(setup);
    const gs_hook_setup plain = plain_setup(setup);
    void *items;
    *self = (gs_residuals){.choice = setup->choice,
                           .error_feedback = feeds_back(setup),
                           .start_step = (int64_t)gs_hook_option_value(setup->choice, "start_step"),
                           .wire_dtype = setup->wire_dtype,
                           .device = setup->device};
    GS_TRY(gs_hook_allreduce.create(&self->plain, &plain));
    if (self->error_feedback)
        GS_TRY(gs_param_state_init(&self->errors, &errors, setup->device, setup->state));
    GS_TRY(gs_device_alloc_pinned(setup->device, &items,
                                  (setup->num_params + 1) * sizeof *self->items));
    self->items = items;
    return gs_ok();
}

gs_status gs_residuals_create(void **state, const gs_hook_setup *setup) {
    gs_residuals *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status = init(self, setup);
    if (status.code) gs_residuals_destroy(self);
    else *state = self;
    return status;
}

void gs_residuals_destroy(void *state) {
    gs_residuals *self = state;
    if (self->plain) gs_hook_allreduce.destroy(self->plain);
    gs_param_state_release(&self->errors);
    gs_device_free_pinned(self->device, self->items);
    free(self->buckets);
    free(self);
}

static gs_status place_bucket(gs_residuals *self, gs_residual_bucket *bucket,
                              const gs_hook_plan *plan, const gs_hook_layout *layout,
                              gs_residual_sizes sizes) {
    void *payloads = NULL;
    if (layout->count > UINT32_MAX)
        return gs_error(GS_INVALID_ARGUMENT, "a bucket of %zu elements, at most %u", layout->count,
                        UINT32_MAX);
    bucket->payload_bytes = sizes.payload_bytes;
    GS_TRY(gs_hook_place(&payloads, plan, sizes.payload_bytes * (size_t)self->world_size));
    bucket->payloads = payloads;
    return sizes.scratch_bytes ? gs_hook_place(&bucket->scratch, plan, sizes.scratch_bytes) : gs_ok();
}

gs_status gs_residuals_place(gs_residuals *self, const gs_hook_plan *plan,
                             gs_residual_size size) {
    gs_residual_item *items = self->items;
    self->rank = gs_comm_rank(plan->comm);
    self->world_size = gs_comm_world_size(plan->comm);
    GS_TRY(gs_hook_allreduce.on_plan(self->plain, plan));
    free(self->buckets);
    self->buckets = calloc(plan->num_buckets, sizeof *self->buckets);
    if (!self->buckets) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t b = 0; b < plan->num_buckets; b++) {
        const gs_hook_layout *layout = &plan->buckets[b];
        gs_residual_bucket *bucket = &self->buckets[b];
        if (layout->hook != plan->hook) continue;
        *bucket = (gs_residual_bucket){
            .items = items, .params = layout->params, .num_items = layout->num_params};
        for (size_t i = 0; i < layout->num_params; i++)
            bucket->num_elements += layout->params[i].count;
        items += layout->num_params;
        if (!bucket->num_elements) continue;
        GS_TRY(place_bucket(self, bucket, plan, layout,
                            size(self->choice, layout->dtype, self->wire_dtype, bucket->num_elements,
                                 bucket->num_items)));
    }
    return gs_ok();
}

bool gs_residuals_compress(const gs_residuals *self, const gs_hook_bucket *bucket) {
    return bucket->step >= self->start_step && self->buckets[bucket->index].num_elements;
}

gs_status gs_residuals_send_plain(const gs_residuals *self, const gs_hook_bucket *bucket,
                                  gs_hook_work *work) {
    return gs_hook_allreduce.run(self->plain, bucket, work);
}

static void *element_at(const gs_hook_bucket *bucket, size_t index) {
    return (char *)bucket->data + index * gs_dtype_bytes(bucket->dtype);
}

// The table of the step before has been read: a step ends behind a wait.
static void describe_items(gs_residuals *self, const gs_hook_bucket *bucket) {
    const gs_residual_bucket *own = &self->buckets[bucket->index];
    for (size_t i = 0; i < own->num_items; i++) {
        const gs_hook_param *param = &own->params[i];
        void *grad = element_at(bucket, param->first);
        gs_residual_item *item = &own->items[i];
        *item = (gs_residual_item){
            .grad = grad, .error = grad, .count = param->count, .first = param->first};
        if (!self->error_feedback || !param->count) continue;
        item->held = gs_param_state_held(&self->errors, param->index);
        item->error = gs_param_state_write(&self->errors, param->index);
    }
}

gs_status gs_residuals_open(gs_work_stream *on, gs_residuals *self, const gs_hook_bucket *bucket,
                            gs_hook_work *work) {
    const gs_residual_bucket *own = &self->buckets[bucket->index];
    if (bucket->reserved_count) GS_TRY(gs_hook_post_reserved(work, bucket));
    *on = gs_work_stream_before_post(bucket->comm);
    describe_items(self, bucket);
    gs_device_kernels(bucket->device)
        ->add_residuals(on->stream, own->items, own->num_items, bucket->dtype,
                        bucket->scale / bucket->grad_unit, 1);
    return gs_ok();
}

char *gs_residuals_own_payload(const gs_residuals *self, const gs_residual_bucket *bucket) {
    return bucket->payloads + (size_t)self->rank * bucket->payload_bytes;
}

gs_status gs_residuals_send(gs_residuals *self, const gs_hook_bucket *bucket, size_t elements_sent,
                            gs_hook_work *work) {
    const gs_residual_bucket *own = &self->buckets[bucket->index];
    self->elements += own->num_elements;
    self->elements_sent += elements_sent;
    return gs_hook_post(work, bucket,
                        &(gs_collective){.kind = GS_ALLGATHER,
                                         .send = gs_residuals_own_payload(self, own),
                                         .recv = own->payloads,
                                         .count = own->payload_bytes,
                                         .dtype = GS_U8});
}

void gs_residuals_close(const gs_hook_bucket *bucket) {
    if (bucket->grad_unit == 1) return;
    gs_main_grad_scale(bucket->data, bucket->grad_unit, bucket->dtype, bucket->count,
                       gs_work_stream_of(bucket->device));
}

static void decide(gs_residuals *self, bool counts) {
    if (self->error_feedback && counts) gs_param_state_commit(&self->errors);
    else if (self->error_feedback) gs_param_state_rollback(&self->errors);
    self->elements = self->elements_sent = 0;
}

void gs_residuals_commit(void *state) {
    decide(state, true);
}

void gs_residuals_rollback(void *state) {
    decide(state, false);
}

bool gs_residuals_tensor(void *state, size_t index, gs_hook_tensor *out) {
    const gs_residuals *self = state;
    return self->error_feedback && gs_param_state_tensor(&self->errors, index, out);
}

void gs_residuals_report(void *state, gs_hook_report *report) {
    const gs_residuals *self = state;
    report->elements = self->elements;
    report->elements_sent = self->elements_sent;
    report->carries = self->error_feedback;
}
