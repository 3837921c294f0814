#include "tests/multiprocess/ffi_caller.h"

#include <stdio.h>

#include "core/clock.h"

gs_status ffi_say(int code, const void *handle) {
    char text[256];
    if (!code) return gs_ok();
    gs_ffi_error(handle, text, sizeof text);
    return gs_error((gs_code)code, "%s", text);
}

int ffi_exchange(void *ctx, const char *tag, const int *ranks, int num_ranks, const void *mine,
                 size_t bytes, void *all, int64_t left_ns) {
    const ffi_caller *self = ctx;
    return (int)gs_rank_exchange(self->env->exchange, tag, ranks, num_ranks, mine, bytes, all,
                                 gs_deadline_in_ns(left_ns))
        .code;
}

gs_status ffi_caller_begin(ffi_caller *self, const gs_rank_env *env) {
    *self = (ffi_caller){.env = env,
                         .device = gs_ffi_device_new(),
                         .arena = gs_ffi_arena_new(),
                         .params = gs_ffi_params_new(),
                         .plan = gs_ffi_plan_new(),
                         .comm = gs_ffi_comm_new(),
                         .reducer = gs_ffi_reducer_new()};
    return ffi_say(gs_ffi_device_open(self->device, "cpu"), self->device);
}

gs_status ffi_caller_add_params(ffi_caller *self, int num_params, int64_t count) {
    for (int p = 0; p < num_params; p++) {
        char name[8];
        snprintf(name, sizeof name, "p%d", p);
        GS_TRY(ffi_say(gs_ffi_params_add(self->params, name, FFI_FP32, 1, &count), self->params));
    }
    return gs_ok();
}

gs_status ffi_caller_open_comm(ffi_caller *self, int num_lanes) {
    gs_ffi_comm *comm = self->comm;
    GS_TRY(ffi_say(gs_ffi_comm_set_rank(comm, self->env->rank, self->env->world_size), comm));
    GS_TRY(ffi_say(gs_ffi_comm_set_lanes(comm, num_lanes), comm));
    GS_TRY(ffi_say(gs_ffi_comm_set_exchange(comm, ffi_exchange, self), comm));
    return ffi_say(gs_ffi_comm_open(comm, self->device, self->arena, 20 * SECOND), comm);
}

gs_status ffi_caller_open_reducer(ffi_caller *self) {
    return ffi_say(
        gs_ffi_reducer_open(self->reducer, self->comm, self->arena, self->device, 20 * SECOND),
        self->reducer);
}

void ffi_caller_close(ffi_caller *self) {
    gs_ffi_reducer_free(self->reducer);
    gs_ffi_comm_free(self->comm);
    gs_ffi_arena_free(self->arena);
    gs_ffi_plan_free(self->plan);
    gs_ffi_params_free(self->params);
    gs_ffi_device_free(self->device);
}

static gs_status open_memory(ffi_caller *self) {
    size_t bytes;
    int world_size = self->env->world_size;
    gs_ffi_reducer *reducer = self->reducer;
    GS_TRY(ffi_caller_add_params(self, FFI_PARAMS, FFI_COUNT));
    GS_TRY(ffi_say(gs_ffi_plan_open(self->plan, self->params, 4, 4, NULL), self->plan));
    GS_TRY(ffi_say(gs_ffi_reducer_set_plan(reducer, self->params, self->plan), reducer));
    GS_TRY(ffi_say(gs_ffi_reducer_arena_bytes(reducer, self->device, world_size, &bytes), reducer));
    GS_TRY(ffi_say(gs_ffi_reducer_lanes(reducer, self->device, world_size, &self->num_lanes),
                   reducer));
    return ffi_say(gs_ffi_arena_open(self->arena, self->device, bytes), self->arena);
}

gs_status ffi_caller_open_all(ffi_caller *self, int (*set)(ffi_caller *self)) {
    if (set) GS_TRY(ffi_say(set(self), self->reducer));
    GS_TRY(open_memory(self));
    GS_TRY(ffi_caller_open_comm(self, self->num_lanes));
    return ffi_caller_open_reducer(self);
}

gs_status ffi_caller_open(ffi_caller *self, const gs_rank_env *env, int (*set)(ffi_caller *self)) {
    GS_TRY(ffi_caller_begin(self, env));
    return ffi_caller_open_all(self, set);
}

float *ffi_caller_grad(const ffi_caller *self, size_t param) {
    return (float *)(void *)((char *)gs_ffi_arena_data(self->arena) +
                             gs_ffi_reducer_grad_offset(self->reducer, param));
}

gs_status ffi_caller_reduce(ffi_caller *self, int64_t step) {
    gs_ffi_reducer *reducer = self->reducer;
    const double elsewhere[FFI_COUNT] = {1, 2, 3, 4, 5};
    GS_TRY(ffi_say(gs_ffi_reducer_begin(reducer, step), reducer));
    GS_TRY(ffi_say(gs_ffi_reducer_begin_pass(reducer, 3), reducer));
    if (self->env->rank == 0) {
        for (int i = 0; i < FFI_COUNT; i++) ffi_caller_grad(self, 2)[i] = 8;
        GS_TRY(ffi_say(gs_ffi_reducer_mark(reducer, 2), reducer));
    } else {
        GS_TRY(ffi_say(gs_ffi_reducer_mark_unused(reducer, 2), reducer));
    }
    GS_TRY(ffi_say(gs_ffi_reducer_mark_from(reducer, 1, elsewhere, FFI_FP64), reducer));
    for (int i = 0; i < FFI_COUNT; i++) ffi_caller_grad(self, 0)[i] = (float)(self->env->rank + 1);
    GS_TRY(ffi_say(gs_ffi_reducer_mark(reducer, 0), reducer));
    GS_TRY(ffi_say(gs_ffi_reducer_end_pass(reducer), reducer));
    return ffi_say(gs_ffi_reducer_finish(reducer, 20 * SECOND), reducer);
}

gs_status ffi_caller_step(ffi_caller *self, int64_t step) {
    const gs_ffi_reducer *reducer = self->reducer;
    GS_TRY(ffi_caller_reduce(self, step));
    const float *first = ffi_caller_grad(self, 0), *second = ffi_caller_grad(self, 1),
                *third = ffi_caller_grad(self, 2);
    if (first[4] != 1.5f || second[4] != 5 || third[0] != 4)
        return gs_error(GS_INTERNAL, "means are %g, %g and %g", (double)first[4], (double)second[4],
                        (double)third[0]);
    if (gs_ffi_reducer_samples(reducer) != 6 || !gs_ffi_reducer_is_finite(reducer) ||
        !gs_ffi_reducer_was_used(reducer, 2) || gs_ffi_reducer_was_used(reducer, FFI_PARAMS))
        return gs_error(GS_INTERNAL, "the result is wrong");
    return gs_ok();
}
