// Optimizers, of ffi.h.
#include "gradsync/optim/optimizer.h"

#include <stdlib.h>
#include <string.h>

#include "gradsync/ffi/object.h"

struct gs_ffi_optimizer {
    gs_ffi_object object;
    gs_optimizer_options options;
    gs_param_spec *params;  // owned; what it was opened for
    size_t num_params;
    gs_optimizer *optimizer;
};

gs_ffi_optimizer *gs_ffi_optimizer_new(void) {
    gs_ffi_optimizer *optimizer = calloc(1, sizeof *optimizer);
    if (optimizer)
        optimizer->options = (gs_optimizer_options){.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
    return optimizer;
}

static gs_status set_number(gs_ffi_optimizer *optimizer, const char *name, double number) {
    GS_TRY(gs_ffi_given(optimizer, "optimizer"));
    GS_TRY(gs_ffi_given(name, "number's name"));
    GS_TRY(gs_ffi_expect(!optimizer->optimizer, "the optimizer is open"));
    gs_optimizer_options *options = &optimizer->options;
    const struct {
        const char *name;
        float *value;
    } numbers[] = {{"beta1", &options->beta1},       {"beta2", &options->beta2},
                   {"eps", &options->eps},           {"weight_decay", &options->weight_decay},
                   {"momentum", &options->momentum}, {"dampening", &options->dampening}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (strcmp(name, numbers[i].name) != 0) continue;
        *numbers[i].value = (float)number;
        return gs_ok();
    }
    if (strcmp(name, "nesterov") != 0)
        return gs_error(GS_INVALID_ARGUMENT, "an optimizer has no \"%.100s\"", name);
    options->nesterov = number != 0;
    return gs_ok();
}

int gs_ffi_optimizer_set(gs_ffi_optimizer *optimizer, const char *name, double number) {
    return gs_ffi_keep(optimizer, set_number(optimizer, name, number));
}

// Weight decay applies to all of them.
static gs_status open_optimizer(gs_ffi_optimizer *optimizer, const char *kind,
                                const gs_ffi_params *params, const gs_ffi_device *device) {
    GS_TRY(gs_ffi_given(optimizer, "optimizer"));
    GS_TRY(gs_ffi_given(params, "parameters"));
    GS_TRY(gs_ffi_given(device, "device"));
    GS_TRY(gs_ffi_expect(!optimizer->optimizer, "the optimizer is open"));
    GS_TRY(gs_ffi_expect(device->device, "the optimizer's device is not open"));
    gs_optimizer_options options = optimizer->options;
    options.kind = kind;
    size_t count = params->count;
    bool *decays = calloc(count + 1, sizeof *decays);
    free(optimizer->params);
    optimizer->params = calloc(count + 1, sizeof *optimizer->params);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "optimizer: out of memory");
    if (decays && optimizer->params) {
        for (size_t i = 0; i < count; i++)
            decays[i] = true, optimizer->params[i] = params->specs[i];
        optimizer->num_params = count;
        status = gs_optimizer_create(&optimizer->optimizer, &options, params->specs, decays, count,
                                     device->device);
    }
    free(decays);
    return status;
}

int gs_ffi_optimizer_open(gs_ffi_optimizer *optimizer, const char *kind,
                          const gs_ffi_params *params, gs_ffi_device *device) {
    return gs_ffi_keep(optimizer, open_optimizer(optimizer, kind, params, device));
}

// The reducer's gradients are those of the optimizer's parameters, and there are values for them.
static gs_status check_tensors(const gs_ffi_optimizer *optimizer, void *const *values,
                               const gs_ffi_reducer *reducer) {
    const gs_param_spec *specs = reducer->specs;
    if (reducer->options.num_params != optimizer->num_params)
        return gs_error(GS_INVALID_ARGUMENT, "the reducer has %zu parameters, the optimizer %zu",
                        reducer->options.num_params, optimizer->num_params);
    for (size_t i = 0; i < optimizer->num_params; i++) {
        size_t count = gs_param_spec_count(&specs[i]);
        if (specs[i].dtype != optimizer->params[i].dtype ||
            count != gs_param_spec_count(&optimizer->params[i]))
            return gs_error(GS_INVALID_ARGUMENT,
                            "parameter %zu \"%.100s\" is another in the reducer", i,
                            optimizer->params[i].name);
        if (!values[i] && count)
            return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%.100s\" has no values", i,
                            optimizer->params[i].name);
    }
    return gs_ok();
}

static gs_status step_optimizer(gs_ffi_optimizer *optimizer, void *const *values,
                                const gs_ffi_reducer *reducer, float lr, float grad_scale) {
    GS_TRY(gs_ffi_given(optimizer, "optimizer"));
    GS_TRY(gs_ffi_given(values, "values"));
    GS_TRY(gs_ffi_given(reducer, "reducer"));
    GS_TRY(gs_ffi_expect(optimizer->optimizer, "the optimizer is not open"));
    GS_TRY(gs_ffi_expect(reducer->reducer, "the reducer is not open"));
    GS_TRY(gs_ffi_expect(gs_reducer_complete(reducer->reducer), "the reducer has no result"));
    GS_TRY(check_tensors(optimizer, values, reducer));
    return gs_optimizer_step(optimizer->optimizer, values, gs_reducer_grads(reducer->reducer),
                             reducer->result.used, lr, grad_scale);
}

int gs_ffi_optimizer_step(gs_ffi_optimizer *optimizer, void *const *values,
                          const gs_ffi_reducer *reducer, double lr, double grad_scale) {
    return gs_ffi_keep(optimizer,
                       step_optimizer(optimizer, values, reducer, (float)lr, (float)grad_scale));
}

void gs_ffi_optimizer_free(gs_ffi_optimizer *optimizer) {
    if (!optimizer) return;
    gs_optimizer_destroy(optimizer->optimizer);
    free(optimizer->params);
    free(optimizer);
}
