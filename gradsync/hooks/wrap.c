// "wrap_fp16" and "wrap_bf16" around any other hook: it gets gradients, and leaves results, that are numbers
// of 16 bits, and sends its own floats as such (gs_hook_setup.wire_dtype). They stay in the bucket's dtype,
// where the inner hook finds them as ever.
//
//   data, rounded ─▶ inner hook: its floats in 16 bits on their way ─▶ data, rounded
//
// Gradients are rounded before they are divided: what does not fit is infinite there, and by the rule of
// hooks not finite on any rank afterwards. The reserved elements stay as they are. All else is the inner
// hook's: phases, memory, state and what becomes of it.
#include <stdlib.h>

#include "gradsync/comm/work_stream.h"
#include "gradsync/hooks/hook_calls.h"

typedef struct wrapper {
    gs_hook_choice inner_choice;
    void *inner;
    gs_dtype dtype;
} wrapper;

static const gs_comm_hook *inner_of(const wrapper *self) {
    return self->inner_choice.hook;
}

static gs_hook_setup inner_setup(const gs_hook_setup *setup, gs_dtype dtype) {
    gs_hook_setup inner = *setup;
    inner.choice = setup->choice->inner;
    inner.wire_dtype = dtype;
    return inner;
}

static gs_status name_inner(const gs_hook_choice *inner, gs_status status) {
    return gs_status_prefix(status, "around hook \"%.47s\"", inner->hook->name);
}

static gs_status measure_as(gs_hook_needs *needs, const gs_hook_setup *setup, gs_dtype dtype) {
    const gs_hook_setup inner = inner_setup(setup, dtype);
    if (setup->exact)
        return gs_error(GS_FAILED_PRECONDITION, "rounds to %s, which exact mode does not",
                        gs_dtype_name(dtype));
    if (setup->wire_dtype && setup->wire_dtype != dtype)
        return gs_error(GS_INVALID_ARGUMENT, "rounds to %s, and the wire dtype is %s",
                        gs_dtype_name(dtype), gs_dtype_name(setup->wire_dtype));
    GS_TRY(name_inner(inner.choice, inner.choice->hook->measure(needs, &inner)));
    needs->narrows = true;
    return gs_ok();
}

static gs_status create_as(void **state, const gs_hook_setup *setup, gs_dtype dtype) {
    const gs_hook_setup inner = inner_setup(setup, dtype);
    wrapper *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->inner_choice = *inner.choice;
    self->dtype = dtype;
    gs_status status = name_inner(inner.choice, inner.choice->hook->create(&self->inner, &inner));
    if (status.code) free(self);
    else *state = self;
    return status;
}

static gs_status measure_fp16(gs_hook_needs *needs, const gs_hook_setup *setup) {
    return measure_as(needs, setup, GS_FP16);
}

static gs_status measure_bf16(gs_hook_needs *needs, const gs_hook_setup *setup) {
    return measure_as(needs, setup, GS_BF16);
}

static gs_status create_fp16(void **state, const gs_hook_setup *setup) {
    return create_as(state, setup, GS_FP16);
}

static gs_status create_bf16(void **state, const gs_hook_setup *setup) {
    return create_as(state, setup, GS_BF16);
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    const wrapper *self = state;
    return name_inner(&self->inner_choice, inner_of(self)->on_plan(self->inner, plan));
}

// In place, on `stream`.
static void round_gradients(const wrapper *self, const gs_hook_bucket *bucket, gs_stream *stream) {
    void *data = bucket->data;
    const void *input = data;
    if (!bucket->count) return;
    gs_device_kernels(bucket->device)
        ->reduce(stream, &(gs_reduction){.outputs = &data,
                                                                   .inputs = &input,
                                                                   .num_outputs = 1,
                                                                   .num_inputs = 1,
                                                                   .dtype = bucket->dtype,
                                                                   .op = GS_OP_SUM,
                                                                   .scale = 1,
                                                                   .count = bucket->count,
                                                                   .wire_dtype = self->dtype,
                                                                   .wire_scale = 1});
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    const wrapper *self = state;
    // Where gradients that were copied into the bucket are final, too.
    if (!work->phase)
        round_gradients(self, bucket, gs_work_stream_before_post(bucket->comm).stream);
    return name_inner(&self->inner_choice, inner_of(self)->run(self->inner, bucket, work));
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    const wrapper *self = state;
    GS_TRY(name_inner(&self->inner_choice,
                      inner_of(self)->finish(self->inner, bucket, result, deadline)));
    round_gradients(self, bucket, gs_device_stream(bucket->device));
    return gs_ok();
}

static void commit(void *state) {
    const wrapper *self = state;
    inner_of(self)->commit(self->inner);
}

static void roll_back(void *state) {
    const wrapper *self = state;
    inner_of(self)->rollback(self->inner);
}

static bool find_tensor(void *state, size_t index, gs_hook_tensor *tensor) {
    const wrapper *self = state;
    return inner_of(self)->tensor(self->inner, index, tensor);
}

static gs_status take_loaded(void *state) {
    const wrapper *self = state;
    return name_inner(&self->inner_choice, inner_of(self)->loaded(self->inner));
}

static void report(void *state, gs_hook_report *out) {
    const wrapper *self = state;
    if (inner_of(self)->report) inner_of(self)->report(self->inner, out);
}

static void destroy(void *state) {
    wrapper *self = state;
    inner_of(self)->destroy(self->inner);
    free(self);
}

#define WRAPPER(hook_name, own_measure, own_create)                                                \
    {.name = (hook_name),                                                                          \
     .wraps = true,                                                                                \
     .measure = (own_measure),                                                                     \
     .create = (own_create),                                                                       \
     .on_plan = on_plan,                                                                           \
     .run = run,                                                                                   \
     .finish = finish,                                                                             \
     .commit = commit,                                                                             \
     .rollback = roll_back,                                                                        \
     .tensor = find_tensor,                                                                        \
     .loaded = take_loaded,                                                                        \
     .destroy = destroy,                                                                           \
     .report = report}

const gs_comm_hook gs_hook_wrap_fp16 = WRAPPER("wrap_fp16", measure_fp16, create_fp16);
const gs_comm_hook gs_hook_wrap_bf16 = WRAPPER("wrap_bf16", measure_bf16, create_bf16);
