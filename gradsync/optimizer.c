#include "gradsync/optimizer.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

static const gs_optimizer_method *const methods[] = {
    &gs_optimizer_sgd,
    &gs_optimizer_adam,
    &gs_optimizer_adamw,
};

struct gs_optimizer {
    const gs_optimizer_method *method;
    gs_optimizer_options options;
    gs_device *device;
    size_t num_params, total_count;
    size_t *offsets, *counts;  // elements
    bool *decays;
    int64_t *num_updates;
    int num_states;
    const char *const *state_names;
    float *state[GS_OPTIMIZER_MAX_STATES];  // total_count each, in order of parameters
};

static const gs_optimizer_method *find_method(const char *kind) {
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (kind && strcmp(methods[i]->kind, kind) == 0) return methods[i];
    }
    return NULL;
}

static gs_status alloc_params(gs_optimizer *optimizer, const gs_param_spec *params,
                              const bool *decays, size_t num_params) {
    optimizer->num_params = num_params;
    optimizer->offsets = calloc(num_params + 1, sizeof *optimizer->offsets);
    optimizer->counts = calloc(num_params + 1, sizeof *optimizer->counts);
    optimizer->decays = calloc(num_params + 1, sizeof *optimizer->decays);
    optimizer->num_updates = calloc(num_params + 1, sizeof *optimizer->num_updates);
    if (!optimizer->offsets || !optimizer->counts || !optimizer->decays || !optimizer->num_updates)
        return gs_error(GS_RESOURCE_EXHAUSTED, "optimizer: out of memory");
    for (size_t i = 0; i < num_params; i++) {
        if (params[i].dtype != GS_FP32)
            return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%s\": is %s, must be fp32", i,
                            params[i].name, gs_dtype_name(params[i].dtype));
        optimizer->offsets[i] = optimizer->total_count;
        optimizer->counts[i] = gs_param_spec_count(&params[i]);
        optimizer->decays[i] = decays && decays[i];
        if (__builtin_add_overflow(optimizer->total_count, optimizer->counts[i],
                                   &optimizer->total_count))
            return gs_error(GS_RESOURCE_EXHAUSTED, "optimizer: state does not fit into memory");
    }
    return gs_ok();
}

static gs_status alloc_states(gs_optimizer *optimizer) {
    size_t bytes;
    if (!gs_bytes_of(&bytes, optimizer->total_count, sizeof(float)) || bytes == SIZE_MAX)
        return gs_error(GS_RESOURCE_EXHAUSTED, "optimizer: state does not fit into memory");
    optimizer->state_names = optimizer->method->state_names(&optimizer->options);
    while (optimizer->state_names[optimizer->num_states]) {
        void *memory;
        GS_TRY(gs_device_alloc(optimizer->device, &memory, bytes + 1));
        optimizer->state[optimizer->num_states++] = memory;
    }
    return gs_ok();
}

gs_status gs_optimizer_create(gs_optimizer **out, const gs_optimizer_options *options,
                              const gs_param_spec *params, const bool *decays, size_t num_params,
                              gs_device *device) {
    *out = NULL;
    const gs_optimizer_method *method = find_method(options->kind);
    if (!method)
        return gs_error(GS_INVALID_ARGUMENT, "optimizer: there is no kind \"%s\"",
                        options->kind ? options->kind : "");
    GS_TRY(gs_status_prefix(method->check(options), "optimizer"));
    GS_TRY(gs_param_specs_check(params, num_params));
    gs_optimizer *optimizer = calloc(1, sizeof *optimizer);
    if (!optimizer) return gs_error(GS_RESOURCE_EXHAUSTED, "optimizer: out of memory");
    optimizer->method = method;
    optimizer->options = *options;
    optimizer->options.kind = method->kind;
    optimizer->device = device;

    gs_status status = alloc_params(optimizer, params, decays, num_params);
    if (!status.code) status = alloc_states(optimizer);
    if (status.code) {
        gs_optimizer_destroy(optimizer);
        return status;
    }
    *out = optimizer;
    return gs_ok();
}

void gs_optimizer_destroy(gs_optimizer *optimizer) {
    if (!optimizer) return;
    for (int s = 0; s < optimizer->num_states; s++)
        gs_device_free(optimizer->device, optimizer->state[s]);
    free(optimizer->offsets);
    free(optimizer->counts);
    free(optimizer->decays);
    free(optimizer->num_updates);
    free(optimizer);
}

static bool has_grad(const gs_optimizer *optimizer, size_t param, const uint8_t *used) {
    if (!used || used[param]) return true;
    return optimizer->options.unused_is_zero && optimizer->num_updates[param] > 0;
}

// Whether parameter i + 1 lies behind i in values and gradients (in state it always does) and takes
// the same update.
static bool continues_run(const gs_optimizer *optimizer, size_t i, void *const *params,
                          float *const *grads, const uint8_t *used) {
    size_t next = i + 1;
    return next < optimizer->num_params && has_grad(optimizer, next, used) &&
           (float *)params[i] + optimizer->counts[i] == params[next] &&
           grads[i] + optimizer->counts[i] == grads[next] &&
           optimizer->decays[i] == optimizer->decays[next] &&
           optimizer->num_updates[i] == optimizer->num_updates[next];
}

gs_status gs_optimizer_step(gs_optimizer *optimizer, void *const *params, float *const *grads,
                            const uint8_t *used, float lr, float grad_scale) {
    for (size_t first = 0, last; first < optimizer->num_params; first = last + 1) {
        last = first;
        // NULL: a sparse parameter; whoever has its rows updates it.
        if (!grads[first] || !has_grad(optimizer, first, used)) continue;
        gs_optimizer_run run = {.param = params[first],
                                .grad = grads[first],
                                .count = optimizer->counts[first],
                                .num_updates = optimizer->num_updates[first],
                                .weight_decay =
                                    optimizer->decays[first] ? optimizer->options.weight_decay : 0,
                                .lr = lr,
                                .grad_scale = grad_scale};
        for (; continues_run(optimizer, last, params, grads, used); last++)
            run.count += optimizer->counts[last + 1];
        for (int s = 0; s < optimizer->num_states; s++)
            run.state[s] = optimizer->state[s] + optimizer->offsets[first];
        if (run.count) optimizer->method->update(optimizer->device, &optimizer->options, &run);
        for (size_t i = first; i <= last; i++) optimizer->num_updates[i]++;
    }
    return gs_ok();
}

int gs_optimizer_state_count(const gs_optimizer *optimizer) {
    return optimizer->num_states;
}

const char *gs_optimizer_state_name(const gs_optimizer *optimizer, int which) {
    return optimizer->state_names[which];
}

float *gs_optimizer_state(const gs_optimizer *optimizer, int which, size_t param) {
    return optimizer->state[which] + optimizer->offsets[param];
}

int64_t *gs_optimizer_num_updates(const gs_optimizer *optimizer) {
    return optimizer->num_updates;
}

gs_digest gs_optimizer_digest(const gs_optimizer *optimizer) {
    gs_digest pieces[GS_OPTIMIZER_MAX_STATES + 1] = {{0}};
    for (int s = 0; s < optimizer->num_states; s++)
        pieces[s] = gs_digest_of(optimizer->state[s], optimizer->total_count * sizeof(float));
    pieces[GS_OPTIMIZER_MAX_STATES] = gs_digest_of(
        optimizer->num_updates, optimizer->num_params * sizeof *optimizer->num_updates);
    return gs_digest_of(pieces, sizeof pieces);
}
