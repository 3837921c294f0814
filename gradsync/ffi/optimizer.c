// Optimizers, of ffi.h.
#include "gradsync/optim/optimizer.h"

#include <stdlib.h>
#include <string.h>

#include "gradsync/ffi/object.h"

struct gs_ffi_optimizer {
    gs_ffi_object object;
    gs_optimizer_options options;
    gs_optimizer *optimizer;
};

gs_ffi_optimizer *gs_ffi_optimizer_new(void) {
    gs_ffi_optimizer *optimizer = calloc(1, sizeof *optimizer);
    if (optimizer)
        optimizer->options = (gs_optimizer_options){.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
    return optimizer;
}

static gs_status set_number(gs_optimizer_options *options, const char *name, double number) {
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
    return gs_ffi_keep(&optimizer->object, set_number(&optimizer->options, name, number));
}

// Weight decay applies to all of them.
static gs_status open_optimizer(gs_ffi_optimizer *optimizer, const gs_ffi_params *params,
                                gs_ffi_device *device) {
    GS_TRY(gs_ffi_expect(!optimizer->optimizer, "the optimizer is open"));
    GS_TRY(gs_ffi_expect(device->device, "the optimizer's device is not open"));
    bool *decays = calloc(params->count + 1, sizeof *decays);
    if (!decays) return gs_error(GS_RESOURCE_EXHAUSTED, "optimizer: out of memory");
    for (size_t i = 0; i < params->count; i++) decays[i] = true;
    gs_status status = gs_optimizer_create(&optimizer->optimizer, &optimizer->options,
                                           params->specs, decays, params->count, device->device);
    free(decays);
    return status;
}

int gs_ffi_optimizer_open(gs_ffi_optimizer *optimizer, const char *kind,
                          const gs_ffi_params *params, gs_ffi_device *device) {
    optimizer->options.kind = kind;
    int code = gs_ffi_keep(&optimizer->object, open_optimizer(optimizer, params, device));
    optimizer->options.kind = NULL;
    return code;
}

int gs_ffi_optimizer_step(gs_ffi_optimizer *optimizer, void *const *values,
                          const gs_ffi_reducer *reducer, double lr, double grad_scale) {
    gs_status status =
        gs_ffi_expect(optimizer->optimizer && reducer->reducer, "optimizer or reducer is not open");
    if (!status.code)
        status = gs_optimizer_step(optimizer->optimizer, values, gs_reducer_grads(reducer->reducer),
                                   reducer->result.used, (float)lr, (float)grad_scale);
    return gs_ffi_keep(&optimizer->object, status);
}

void gs_ffi_optimizer_free(gs_ffi_optimizer *optimizer) {
    if (!optimizer) return;
    gs_optimizer_destroy(optimizer->optimizer);
    free(optimizer);
}
