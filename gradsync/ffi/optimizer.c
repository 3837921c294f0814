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
    const gs_ffi_shards *shards;  // borrowed until open; NULL: all of every parameter
    int rank, which;
    void **own_params, **own_grads;  // owned; of each segment, if there are shards
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

static gs_status set_shards(gs_ffi_optimizer *optimizer, const gs_ffi_shards *shards, int rank,
                            int which) {
    GS_TRY(gs_ffi_given(optimizer, "optimizer"));
    GS_TRY(gs_ffi_given(shards, "shards"));
    GS_TRY(gs_ffi_expect(!optimizer->optimizer, "the optimizer is open"));
    GS_TRY(gs_ffi_expect(shards->shards, "the optimizer's shards are not open"));
    if (rank < 0 || rank >= gs_shards_world_size(shards->shards))
        return gs_error(GS_INVALID_ARGUMENT, "the shards have no rank %d of %d", rank,
                        gs_shards_world_size(shards->shards));
    if (which < 0 || which >= gs_shards_num_optimizers(shards->shards))
        return gs_error(GS_INVALID_ARGUMENT, "the shards have no optimizer %d of %d", which,
                        gs_shards_num_optimizers(shards->shards));
    optimizer->shards = shards;
    optimizer->rank = rank;
    optimizer->which = which;
    return gs_ok();
}

int gs_ffi_optimizer_set_shards(gs_ffi_optimizer *optimizer, const gs_ffi_shards *shards, int rank,
                                int which) {
    return gs_ffi_keep(optimizer, set_shards(optimizer, shards, rank, which));
}

// What is owned here, and room for where it lies.
static gs_status take_segments(gs_ffi_optimizer *optimizer, gs_optimizer_options *options,
                               size_t num_params) {
    if (!optimizer->shards) return gs_ok();
    const gs_shards *shards = optimizer->shards->shards;
    if (gs_shards_num_params(shards) != num_params)
        return gs_error(GS_INVALID_ARGUMENT, "the shards have %zu parameters, the optimizer %zu",
                        gs_shards_num_params(shards), num_params);
    options->segments =
        gs_shards_of_optimizer(shards, optimizer->rank, optimizer->which, &options->num_segments);
    free(optimizer->own_params);
    free(optimizer->own_grads);
    optimizer->own_params = calloc(options->num_segments + 1, sizeof *optimizer->own_params);
    optimizer->own_grads = calloc(options->num_segments + 1, sizeof *optimizer->own_grads);
    if (optimizer->own_params && optimizer->own_grads) return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "optimizer: out of memory");
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
    GS_TRY(take_segments(optimizer, &options, count));
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

// As it was opened, whatever has become of the shards since.
static void point_own(gs_ffi_optimizer *optimizer, void *const *values, void *const *grads) {
    size_t num_segments;
    const gs_segment *own = gs_optimizer_segments(optimizer->optimizer, &num_segments);
    for (size_t i = 0; i < num_segments; i++) {
        optimizer->own_params[i] = (float *)values[own[i].tensor] + own[i].first;
        optimizer->own_grads[i] = (float *)grads[own[i].tensor] + own[i].first;
    }
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
    void *const *grads = gs_reducer_grads(reducer->reducer);
    if (optimizer->own_params) {
        point_own(optimizer, values, grads);
        values = optimizer->own_params;
        grads = optimizer->own_grads;
    }
    return gs_optimizer_step(optimizer->optimizer, values, grads, reducer->result.used, lr,
                             grad_scale);
}

int gs_ffi_optimizer_step(gs_ffi_optimizer *optimizer, void *const *values,
                          const gs_ffi_reducer *reducer, double lr, double grad_scale) {
    return gs_ffi_keep(optimizer,
                       step_optimizer(optimizer, values, reducer, (float)lr, (float)grad_scale));
}

static gs_status set_trainable(gs_ffi_optimizer *optimizer, const unsigned char *flags) {
    bool *trainable;
    GS_TRY(gs_ffi_given(optimizer, "optimizer"));
    GS_TRY(gs_ffi_expect(optimizer->optimizer, "the optimizer is not open"));
    GS_TRY(gs_ffi_flags_copy(&trainable, flags, optimizer->num_params));
    gs_optimizer_set_trainable(optimizer->optimizer, trainable);
    free(trainable);
    return gs_ok();
}

int gs_ffi_optimizer_set_trainable(gs_ffi_optimizer *optimizer, const unsigned char *trainable) {
    return gs_ffi_keep(optimizer, set_trainable(optimizer, trainable));
}

size_t gs_ffi_optimizer_num_segments(const gs_ffi_optimizer *optimizer) {
    size_t num_segments = 0;
    if (optimizer && optimizer->optimizer)
        gs_optimizer_segments(optimizer->optimizer, &num_segments);
    return num_segments;
}

static gs_status find_segment(const gs_ffi_optimizer *optimizer, size_t segment, size_t *param,
                              size_t *first, size_t *count) {
    GS_TRY(gs_ffi_given(optimizer, "optimizer"));
    GS_TRY(gs_ffi_expect(optimizer->optimizer, "the optimizer is not open"));
    GS_TRY(gs_ffi_given(param && first && count ? param : NULL, "room for a segment"));
    size_t num_segments;
    const gs_segment *segments = gs_optimizer_segments(optimizer->optimizer, &num_segments);
    if (segment >= num_segments)
        return gs_error(GS_INVALID_ARGUMENT, "the optimizer has no segment %zu of %zu", segment,
                        num_segments);
    *param = segments[segment].tensor;
    *first = segments[segment].first;
    *count = segments[segment].count;
    return gs_ok();
}

int gs_ffi_optimizer_segment(gs_ffi_optimizer *optimizer, size_t segment, size_t *param,
                             size_t *first, size_t *count) {
    return gs_ffi_keep(optimizer, find_segment(optimizer, segment, param, first, count));
}

static bool has_state(const gs_ffi_optimizer *optimizer, int which) {
    return optimizer && optimizer->optimizer && which >= 0 &&
           which < gs_optimizer_state_count(optimizer->optimizer);
}

const char *gs_ffi_optimizer_state_name(const gs_ffi_optimizer *optimizer, int which) {
    return has_state(optimizer, which) ? gs_optimizer_state_name(optimizer->optimizer, which)
                                       : NULL;
}

float *gs_ffi_optimizer_state(const gs_ffi_optimizer *optimizer, int which, size_t segment) {
    bool has = has_state(optimizer, which) && segment < gs_ffi_optimizer_num_segments(optimizer);
    return has ? gs_optimizer_state(optimizer->optimizer, which, segment) : NULL;
}

int64_t *gs_ffi_optimizer_num_updates(const gs_ffi_optimizer *optimizer) {
    return optimizer && optimizer->optimizer ? gs_optimizer_num_updates(optimizer->optimizer)
                                             : NULL;
}

void gs_ffi_optimizer_free(gs_ffi_optimizer *optimizer) {
    if (!optimizer) return;
    gs_optimizer_destroy(optimizer->optimizer);
    free(optimizer->own_params);
    free(optimizer->own_grads);
    free(optimizer->params);
    free(optimizer);
}
