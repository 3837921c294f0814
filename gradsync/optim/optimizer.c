#include "gradsync/optim/optimizer.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/options.h"
#include "gradsync/optim/host_update.h"
#include "gradsync/optim/launch_table.h"
#include "gradsync/optim/param_segments.h"

#define MOVE_SECONDS 120.0
#define LINE_COUNT ((size_t)16)  // state starts on 64 bytes, for wide accesses

static const gs_optimizer_method *const methods[] = {
    &gs_optimizer_sgd,
    &gs_optimizer_adam,
    &gs_optimizer_adamw,
};

typedef struct segment_place {
    bool is_beside;
    bool is_new;  // since the last update that can be taken back
} segment_place;

struct gs_optimizer {
    const gs_optimizer_method *method;
    gs_optimizer_options options;
    gs_device *device;
    size_t num_params, num_segments, total_count;
    gs_segment *segments;   // num_segments
    size_t *offsets;        // of their state, elements
    size_t *first_segment;  // of each parameter; behind the last one: num_segments
    bool *decays;           // num_params
    bool *frozen;           // the same
    int64_t *num_updates;
    int num_states;
    const char *const *state_names;
    float *state[GS_OPTIMIZER_MAX_STATES];   // total_count each, in order of segments
    float *beside[GS_OPTIMIZER_MAX_STATES];  // a second place for each; NULL: there is none
    segment_place *places;  // num_segments: in which of the two they are; NULL: in the first
    bool launches_once;     // on a GPU, where the method has such a launch
    gs_launch_table table;
    gs_host_update *host;  // NULL: the state is the device's memory
};

// What one step works on: masters in fp32, or in halves.
typedef struct step_tensors {
    void *const *params;
    uint16_t *const *values, *const *remainders;
    void *const *grads;
    const uint8_t *used;
    float lr, grad_scale;
    const gs_optimizer_kept *kept;  // NULL: nothing is
} step_tensors;

static const gs_optimizer_method *find_method(const char *kind) {
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (kind && strcmp(methods[i]->kind, kind) == 0) return methods[i];
    }
    return NULL;
}

static gs_status alloc_params(gs_optimizer *optimizer, const gs_param_spec *params,
                              const bool *decays, size_t num_params) {
    optimizer->num_params = num_params;
    optimizer->decays = calloc(num_params + 1, sizeof *optimizer->decays);
    optimizer->frozen = calloc(num_params + 1, sizeof *optimizer->frozen);
    optimizer->num_updates = calloc(num_params + 1, sizeof *optimizer->num_updates);
    if (!optimizer->decays || !optimizer->frozen || !optimizer->num_updates)
        return gs_error(GS_RESOURCE_EXHAUSTED, "optimizer: out of memory");
    for (size_t i = 0; i < num_params; i++) {
        if (params[i].dtype != GS_FP32)
            return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%s\": is %s, must be fp32", i,
                            params[i].name, gs_dtype_name(params[i].dtype));
        optimizer->decays[i] = decays && decays[i];
    }
    return gs_ok();
}

static gs_status place_segments(gs_optimizer *optimizer) {
    optimizer->offsets = calloc(optimizer->num_segments + 1, sizeof *optimizer->offsets);
    optimizer->first_segment = calloc(optimizer->num_params + 1, sizeof *optimizer->first_segment);
    if (!optimizer->offsets || !optimizer->first_segment)
        return gs_error(GS_RESOURCE_EXHAUSTED, "optimizer: out of memory");
    gs_param_segments_index(optimizer->first_segment, optimizer->num_params, optimizer->segments,
                            optimizer->num_segments);
    for (size_t i = 0; i < optimizer->num_segments; i++) {
        size_t count = gs_round_up(optimizer->segments[i].count, LINE_COUNT);
        optimizer->offsets[i] = optimizer->total_count;
        if (__builtin_add_overflow(optimizer->total_count, count, &optimizer->total_count))
            return gs_error(GS_RESOURCE_EXHAUSTED, "optimizer: state does not fit into memory");
    }
    return gs_ok();
}

static bool has_launch(const gs_optimizer_method *method, const gs_optimizer_options *options) {
    gs_adamw_item item;
    gs_adamw step;
    return method->describe(&item, &step, options, &(gs_optimizer_run){0});
}

bool gs_optimizer_takes_halves(const gs_optimizer_options *options) {
    const gs_optimizer_method *method = find_method(options->kind);
    return method && !options->state_on_host && has_launch(method, options);
}

// Zeroed. Pinned memory of a CPU is its memory.
static gs_status alloc_state(const gs_optimizer *optimizer, float **state, bool on_host) {
    void *memory;
    size_t bytes = optimizer->total_count * sizeof(float) + 1;
    GS_TRY(on_host ? gs_device_alloc_pinned(optimizer->device, &memory, bytes)
                   : gs_device_alloc(optimizer->device, &memory, bytes));
    *state = memory;
    return gs_ok();
}

static void free_state(const gs_optimizer *optimizer, float *state, bool on_host) {
    if (!state) return;
    if (on_host)
        gs_device_free_pinned(optimizer->device, state);
    else
        gs_device_free(optimizer->device, state);
}

static gs_status alloc_states(gs_optimizer *optimizer) {
    size_t bytes;
    bool on_host = optimizer->options.state_on_host && !gs_device_is_host(optimizer->device);
    if (!gs_bytes_of(&bytes, optimizer->total_count, sizeof(float)) || bytes == SIZE_MAX)
        return gs_error(GS_RESOURCE_EXHAUSTED, "optimizer: state does not fit into memory");
    if (on_host)
        GS_TRY(gs_host_update_create(&optimizer->host, optimizer->device,
                                     optimizer->options.host_threads));
    optimizer->state_names = optimizer->method->state_names(&optimizer->options);
    for (; optimizer->state_names[optimizer->num_states]; optimizer->num_states++)
        GS_TRY(alloc_state(optimizer, &optimizer->state[optimizer->num_states], on_host));
    return gs_ok();
}

static gs_status create_optimizer(gs_optimizer **out, const gs_optimizer_options *options,
                                  const gs_param_spec *params, const bool *decays,
                                  size_t num_params, gs_device *device) {
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
    optimizer->options.segments = NULL;  // the caller's
    optimizer->device = device;

    gs_status status = alloc_params(optimizer, params, decays, num_params);
    if (!status.code)
        status = gs_status_prefix(
            gs_param_segments_copy(&optimizer->segments, &optimizer->num_segments, params,
                                   num_params, options->segments, options->num_segments),
            "optimizer");
    if (!status.code) status = place_segments(optimizer);
    if (!status.code) status = alloc_states(optimizer);
    if (!status.code && has_launch(method, options)) {
        status = gs_launch_table_init(&optimizer->table, optimizer->num_segments, device);
        optimizer->launches_once = !gs_device_is_host(device);
    }
    if (status.code) {
        gs_optimizer_destroy(optimizer);
        return status;
    }
    *out = optimizer;
    return gs_ok();
}

gs_status gs_optimizer_create_sized(gs_optimizer **out, const gs_optimizer_options *options,
                                    size_t options_bytes, const gs_param_spec *params,
                                    const bool *decays, size_t num_params, gs_device *device) {
    gs_optimizer_options known;
    GS_TRY(gs_options_take(&known, sizeof known, options, options_bytes, "gs_optimizer_options"));
    return create_optimizer(out, &known, params, decays, num_params, device);
}

void gs_optimizer_destroy(gs_optimizer *optimizer) {
    if (!optimizer) return;
    for (int s = 0; s < optimizer->num_states; s++) {
        free_state(optimizer, optimizer->state[s], optimizer->host != NULL);
        free_state(optimizer, optimizer->beside[s], false);
    }
    gs_host_update_destroy(optimizer->host);
    gs_launch_table_release(&optimizer->table);
    free(optimizer->segments);
    free(optimizer->offsets);
    free(optimizer->places);
    free(optimizer->first_segment);
    free(optimizer->decays);
    free(optimizer->frozen);
    free(optimizer->num_updates);
    free(optimizer);
}

void gs_optimizer_set_trainable(gs_optimizer *optimizer, const bool *trainable) {
    for (size_t i = 0; i < optimizer->num_params; i++)
        optimizer->frozen[i] = trainable && !trainable[i];
}

// Where state `s` of a segment is, or was before it was last written beside.
static float *state_in(const gs_optimizer *optimizer, int s, size_t i, bool is_beside) {
    return (is_beside ? optimizer->beside[s] : optimizer->state[s]) + optimizer->offsets[i];
}

static bool is_beside(const gs_optimizer *optimizer, size_t i) {
    return optimizer->places && optimizer->places[i].is_beside;
}

bool gs_optimizer_moves(const gs_optimizer *optimizer, size_t param, const uint8_t *used) {
    if (optimizer->frozen[param]) return false;
    if (!used || used[param]) return true;
    return optimizer->options.unused_is_zero && optimizer->num_updates[param] > 0;
}

static bool has_adjacent_masters(const gs_optimizer *optimizer, size_t i,
                                 const step_tensors *tensors) {
    size_t next = i + 1, count = optimizer->segments[i].count;
    if (!tensors->params)
        return tensors->values[i] + count == tensors->values[next] &&
               tensors->remainders[i] + count == tensors->remainders[next];
    return (float *)tensors->params[i] + count == tensors->params[next];
}

static bool has_adjacent_state(const gs_optimizer *optimizer, size_t i) {
    for (int s = 0; s < optimizer->num_states; s++) {
        if (gs_optimizer_state(optimizer, s, i) + optimizer->segments[i].count !=
            gs_optimizer_state(optimizer, s, i + 1))
            return false;
    }
    return true;
}

// Whether segment i + 1 lies behind i in masters, gradients and state, and takes the same update.
static bool continues_run(const gs_optimizer *optimizer, size_t i, size_t end,
                          const step_tensors *tensors) {
    size_t next = i + 1;
    if (next >= end) return false;
    size_t count = optimizer->segments[i].count;
    size_t param = optimizer->segments[i].tensor, next_param = optimizer->segments[next].tensor;
    return gs_optimizer_moves(optimizer, next_param, tensors->used) &&
           has_adjacent_masters(optimizer, i, tensors) &&
           (float *)tensors->grads[i] + count == tensors->grads[next] &&
           has_adjacent_state(optimizer, i) &&
           optimizer->decays[param] == optimizer->decays[next_param] &&
           optimizer->num_updates[param] == optimizer->num_updates[next_param];
}

// The run that starts at segment `first`, before `end`; *last becomes its last segment.
static gs_optimizer_run run_from(const gs_optimizer *optimizer, size_t first, size_t end,
                                 size_t *last, const step_tensors *tensors) {
    size_t param = optimizer->segments[first].tensor;
    gs_optimizer_run run = {.grad = tensors->grads[first],
                            .count = optimizer->segments[first].count,
                            .num_updates = optimizer->num_updates[param],
                            .weight_decay =
                                optimizer->decays[param] ? optimizer->options.weight_decay : 0};
    if (tensors->params) {
        run.param = tensors->params[first];
    } else {
        run.value = tensors->values[first];
        run.remainder = tensors->remainders[first];
    }
    for (; continues_run(optimizer, *last, end, tensors); ++*last)
        run.count += optimizer->segments[*last + 1].count;
    for (int s = 0; s < optimizer->num_states; s++)
        run.state[s] = gs_optimizer_state(optimizer, s, first);
    return run;
}

// Once for a parameter that has a gradient, however many segments of it lie here.
static void count_update(gs_optimizer *optimizer, size_t param, const step_tensors *tensors) {
    bool is_elsewhere = false;
    for (size_t i = optimizer->first_segment[param]; i < optimizer->first_segment[param + 1]; i++)
        is_elsewhere = is_elsewhere || !tensors->grads[i];
    if (!is_elsewhere && gs_optimizer_moves(optimizer, param, tensors->used))
        optimizer->num_updates[param]++;
}

// Where runs go: one by one to their update, or with a table all of them into one launch.
typedef struct run_list {
    gs_launch_table *table;  // NULL: one by one
    gs_adamw_item *items;
    size_t num_items;
    gs_adamw step;
    gs_status status;  // the first error of the host's updates
} run_list;

// A run of one segment. What it reads and what it writes change places.
static void update_beside(gs_optimizer *optimizer, size_t segment, gs_optimizer_run *run,
                          const gs_optimizer_kept *kept) {
    segment_place *place = &optimizer->places[segment];
    run->was = kept->memory + kept->offsets[segment];
    for (int s = 0; s < optimizer->num_states; s++)
        run->next_state[s] = state_in(optimizer, s, segment, !place->is_beside);
    optimizer->method->update(optimizer->device, &optimizer->options, run);
    *place = (segment_place){.is_beside = !place->is_beside, .is_new = true};
}

static gs_optimizer_run part_of_run(const gs_optimizer_run *run, size_t first, size_t count) {
    gs_optimizer_run part = *run;
    part.param += first;
    part.grad += first;
    part.count = count;
    for (int s = 0; s < GS_OPTIMIZER_MAX_STATES; s++)
        if (run->state[s]) part.state[s] += first;
    return part;
}

typedef struct host_part {
    const gs_optimizer *optimizer;
    const gs_optimizer_run *run;
} host_part;

static void update_part(void *ctx, gs_device *host, size_t first, size_t count, float *param,
                        const float *grad) {
    const host_part *of = ctx;
    gs_optimizer_run part = part_of_run(of->run, first, count);
    part.param = param;
    part.grad = grad;
    of->optimizer->method->update(host, &of->optimizer->options, &part);
}

static gs_status update_on_host(const gs_optimizer *optimizer, const gs_optimizer_run *run) {
    host_part of = {optimizer, run};
    return gs_host_update_all(optimizer->host, &(gs_host_update_run){.param = run->param,
                                                                     .grad = run->grad,
                                                                     .count = run->count,
                                                                     .update = update_part,
                                                                     .ctx = &of});
}

// The segments that begin with `first`, before `end`, run by run.
static void update_segments(gs_optimizer *optimizer, size_t first, size_t end,
                            const step_tensors *tensors, run_list *list) {
    const gs_optimizer_method *method = optimizer->method;
    for (size_t last; first < end; first = last + 1) {
        last = first;
        size_t param = optimizer->segments[first].tensor;
        if (tensors->kept) optimizer->places[first].is_new = false;
        // NULL: a sparse parameter; whoever has its rows updates it.
        if (!tensors->grads[first] || !gs_optimizer_moves(optimizer, param, tensors->used))
            continue;
        gs_optimizer_run run =
            run_from(optimizer, first, tensors->kept ? first + 1 : end, &last, tensors);
        run.lr = tensors->lr;
        run.grad_scale = tensors->grad_scale;
        if (run.count && list->table)
            method->describe(&list->items[list->num_items++], &list->step, &optimizer->options,
                             &run);
        else if (run.count && optimizer->host && !list->status.code)
            list->status = update_on_host(optimizer, &run);
        else if (run.count && tensors->kept)
            update_beside(optimizer, first, &run, tensors->kept);
        else if (run.count)
            method->update(optimizer->device, &optimizer->options, &run);
    }
}

static gs_status update_all(gs_optimizer *optimizer, const step_tensors *tensors,
                            gs_launch_table *table) {
    run_list list = {.table = table};
    if (table) GS_TRY(gs_launch_table_open(table, optimizer->num_segments, &list.items));
    update_segments(optimizer, 0, optimizer->num_segments, tensors, &list);
    GS_TRY(list.status);
    if (table) gs_launch_table_run(table, list.num_items, &list.step);
    for (size_t param = 0; param < optimizer->num_params; param++)
        count_update(optimizer, param, tensors);
    return gs_ok();
}

static gs_status update_params(gs_optimizer *optimizer, const size_t *which, size_t num_which,
                               const step_tensors *tensors, gs_launch_table *table) {
    const size_t *first = optimizer->first_segment;
    run_list list = {.table = table};
    size_t num_segments = 0;
    for (size_t i = 0; i < num_which; i++) num_segments += first[which[i] + 1] - first[which[i]];
    if (table) GS_TRY(gs_launch_table_open(table, num_segments, &list.items));
    for (size_t i = 0; i < num_which; i++)
        update_segments(optimizer, first[which[i]], first[which[i] + 1], tensors, &list);
    GS_TRY(list.status);
    if (table) gs_launch_table_run(table, list.num_items, &list.step);
    for (size_t i = 0; i < num_which; i++) count_update(optimizer, which[i], tensors);
    return gs_ok();
}

static gs_launch_table *table_of(gs_optimizer *optimizer) {
    return optimizer->launches_once && !optimizer->host ? &optimizer->table : NULL;
}

gs_status gs_optimizer_step(gs_optimizer *optimizer, void *const *params, void *const *grads,
                            const uint8_t *used, float lr, float grad_scale) {
    const step_tensors tensors = {
        .params = params, .grads = grads, .used = used, .lr = lr, .grad_scale = grad_scale};
    return update_all(optimizer, &tensors, table_of(optimizer));
}

gs_status gs_optimizer_step_params(gs_optimizer *optimizer, const size_t *which, size_t num_which,
                                   void *const *params, void *const *grads, const uint8_t *used,
                                   float lr, float grad_scale) {
    const step_tensors tensors = {
        .params = params, .grads = grads, .used = used, .lr = lr, .grad_scale = grad_scale};
    return update_params(optimizer, which, num_which, &tensors, table_of(optimizer));
}

gs_status gs_optimizer_make_beside(gs_optimizer *optimizer) {
    if (optimizer->host)
        return gs_error(GS_FAILED_PRECONDITION,
                        "optimizer: the host's updates cannot be taken back, the state is its own");
    for (int s = 0; s < optimizer->num_states; s++)
        if (!optimizer->beside[s]) GS_TRY(alloc_state(optimizer, &optimizer->beside[s], false));
    if (!optimizer->places)
        optimizer->places = calloc(optimizer->num_segments + 1, sizeof *optimizer->places);
    return optimizer->places ? gs_ok()
                             : gs_error(GS_RESOURCE_EXHAUSTED, "optimizer: out of memory");
}

gs_status gs_optimizer_step_params_beside(gs_optimizer *optimizer, const size_t *which,
                                          size_t num_which, void *const *params, void *const *grads,
                                          const uint8_t *used, float lr, float grad_scale,
                                          const gs_optimizer_kept *kept) {
    const step_tensors tensors = {.params = params,
                                  .grads = grads,
                                  .used = used,
                                  .lr = lr,
                                  .grad_scale = grad_scale,
                                  .kept = kept};
    return update_params(optimizer, which, num_which, &tensors, NULL);
}

void gs_optimizer_take_back(gs_optimizer *optimizer, const size_t *which, size_t num_which,
                            void *const *params, const gs_optimizer_kept *kept) {
    gs_device *device = optimizer->device;
    const size_t *first = optimizer->first_segment;
    for (size_t w = 0; w < num_which; w++) {
        for (size_t i = first[which[w]]; i < first[which[w] + 1]; i++) {
            segment_place *place = &optimizer->places[i];
            if (!place->is_new) continue;
            *place = (segment_place){.is_beside = !place->is_beside};
            gs_device_kernels(device)->copy(gs_device_stream(device), params[i],
                                            kept->memory + kept->offsets[i],
                                            optimizer->segments[i].count * sizeof(float));
        }
    }
}

static gs_status check_halves(const gs_optimizer *optimizer) {
    if (optimizer->host)
        return gs_error(
            GS_FAILED_PRECONDITION,
            "optimizer: masters in halves are updated where they lie, the state is the host's");
    if (has_launch(optimizer->method, &optimizer->options)) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "optimizer: \"%s\" does not update masters in halves",
                    optimizer->options.kind);
}

gs_status gs_optimizer_step_halves(gs_optimizer *optimizer, uint16_t *const *values,
                                   uint16_t *const *remainders, void *const *grads,
                                   const uint8_t *used, float lr, float grad_scale) {
    const step_tensors tensors = {.values = values,
                                  .remainders = remainders,
                                  .grads = grads,
                                  .used = used,
                                  .lr = lr,
                                  .grad_scale = grad_scale};
    GS_TRY(check_halves(optimizer));
    return update_all(optimizer, &tensors, &optimizer->table);
}

gs_status gs_optimizer_step_halves_params(gs_optimizer *optimizer, const size_t *which,
                                          size_t num_which, uint16_t *const *values,
                                          uint16_t *const *remainders, void *const *grads,
                                          const uint8_t *used, float lr, float grad_scale) {
    const step_tensors tensors = {.values = values,
                                  .remainders = remainders,
                                  .grads = grads,
                                  .used = used,
                                  .lr = lr,
                                  .grad_scale = grad_scale};
    GS_TRY(check_halves(optimizer));
    return update_params(optimizer, which, num_which, &tensors, &optimizer->table);
}

// ---- where the state lies

static gs_status copy_states(const gs_optimizer *optimizer, float *const *to) {
    const gs_kernels *k = gs_device_kernels(optimizer->device);
    gs_stream *stream = gs_device_stream(optimizer->device);
    for (int s = 0; s < optimizer->num_states; s++)
        k->copy(stream, to[s], optimizer->state[s], optimizer->total_count * sizeof(float));
    return gs_stream_wait(stream, gs_deadline_in_seconds(MOVE_SECONDS));
}

gs_status gs_optimizer_move_state(gs_optimizer *optimizer, bool to_host) {
    float *moved[GS_OPTIMIZER_MAX_STATES] = {NULL};
    gs_host_update *host = NULL;
    if (gs_device_is_host(optimizer->device) || to_host == (optimizer->host != NULL))
        return gs_ok();
    if (optimizer->places)
        return gs_error(GS_FAILED_PRECONDITION,
                        "optimizer: state of updates that can be taken back stays on the device");
    gs_status status = gs_ok();
    if (to_host)
        status = gs_host_update_create(&host, optimizer->device, optimizer->options.host_threads);
    for (int s = 0; s < optimizer->num_states && !status.code; s++)
        status = alloc_state(optimizer, &moved[s], to_host);
    if (!status.code) status = copy_states(optimizer, moved);
    for (int s = 0; s < optimizer->num_states; s++) {
        float *left = status.code ? moved[s] : optimizer->state[s];
        free_state(optimizer, left, status.code ? to_host : !to_host);
        if (!status.code) optimizer->state[s] = moved[s];
    }
    gs_host_update_destroy(status.code ? host : optimizer->host);
    if (!status.code) optimizer->host = host;
    return gs_status_prefix(status, "optimizer: state to the %s", to_host ? "host" : "device");
}

bool gs_optimizer_state_is_on_host(const gs_optimizer *optimizer) {
    return optimizer->host || gs_device_is_host(optimizer->device);
}

const gs_segment *gs_optimizer_segments(const gs_optimizer *optimizer, size_t *num_segments) {
    *num_segments = optimizer->num_segments;
    return optimizer->segments;
}

size_t gs_optimizer_num_params(const gs_optimizer *optimizer) {
    return optimizer->num_params;
}

int gs_optimizer_state_count(const gs_optimizer *optimizer) {
    return optimizer->num_states;
}

const char *gs_optimizer_state_name(const gs_optimizer *optimizer, int which) {
    return optimizer->state_names[which];
}

float *gs_optimizer_state(const gs_optimizer *optimizer, int which, size_t segment) {
    return state_in(optimizer, which, segment, is_beside(optimizer, segment));
}

int64_t *gs_optimizer_num_updates(const gs_optimizer *optimizer) {
    return optimizer->num_updates;
}
