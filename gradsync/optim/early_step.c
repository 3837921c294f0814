#include "gradsync/optim/early_step.h"

#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "core/memory.h"
#include "core/options.h"
#include "gradsync/optim/param_segments.h"

#define LINE_COUNT ((size_t)16)  // what was begins on 64 bytes, as it is written

// What is known of a parameter in the open step.
enum { REDUCED = 1, RELEASED = 2, UPDATED = 4 };

struct gs_early_step {
    gs_early_step_options options;
    size_t num_params, num_segments;
    const gs_segment *segments;  // the optimizer's
    size_t *first_segment;       // of each parameter
    uint8_t *early;              // num_params
    // What was before the step: masters, total_count of them. States are written beside those that
    // were; with 16 bits beside the masters they are not, and follow here, each of total_count.
    // Memory of the device.
    float *before;
    size_t *offsets;  // of segments, elements
    size_t total_count;
    int64_t *num_updates;  // num_params
    // of the step
    bool is_open;
    float lr, grad_scale;
    void *const *grads;
    const uint8_t *used;
    uint8_t *known;   // num_params
    size_t *updated;  // in the order of their updates
    size_t num_updated;
    gs_status failed;
};

static gs_status out_of_memory(void) {
    return gs_error(GS_RESOURCE_EXHAUSTED, "early step: out of memory");
}

static gs_status alloc_lists(gs_early_step *step) {
    size_t num_params = step->num_params;
    step->first_segment = calloc(num_params + 1, sizeof *step->first_segment);
    step->early = calloc(num_params + 1, sizeof *step->early);
    step->offsets = calloc(step->num_segments + 1, sizeof *step->offsets);
    step->num_updates = calloc(num_params + 1, sizeof *step->num_updates);
    step->known = calloc(num_params + 1, sizeof *step->known);
    step->updated = calloc(num_params + 1, sizeof *step->updated);
    if (!step->first_segment || !step->early || !step->offsets || !step->num_updates ||
        !step->known || !step->updated)
        return out_of_memory();
    gs_param_segments_index(step->first_segment, num_params, step->segments, step->num_segments);
    for (size_t i = 0; i < num_params; i++)
        step->early[i] = !step->options.early || step->options.early[i];
    step->options.early = NULL;  // the caller's
    return gs_ok();
}

static bool writes_beside(const gs_early_step *step) {
    return !step->options.mixed;
}

// That are copied before they are updated, or with them.
static size_t num_tensors(const gs_early_step *step) {
    return writes_beside(step) ? 1 : 1 + (size_t)gs_optimizer_state_count(step->options.optimizer);
}

static gs_status alloc_before(gs_early_step *step) {
    size_t bytes;
    for (size_t i = 0; i < step->num_segments; i++) {
        step->offsets[i] = step->total_count;
        if (step->early[step->segments[i].tensor])
            step->total_count += gs_round_up(step->segments[i].count, LINE_COUNT);
    }
    if (!gs_bytes_of(&bytes, step->total_count, num_tensors(step) * sizeof(float)))
        return out_of_memory();
    void *memory;
    GS_TRY(
        gs_status_prefix(gs_device_alloc(step->options.device, &memory, bytes + 1), "early step"));
    step->before = memory;
    return writes_beside(step) ? gs_optimizer_make_beside(step->options.optimizer) : gs_ok();
}

static gs_status check_options(const gs_early_step_options *options) {
    bool has_masters =
        options->params || (options->mixed && gs_mixed_precision_uppers(options->mixed));
    if (options->optimizer && has_masters && options->device) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "early step: optimizer, params and device are needed");
}

gs_status gs_early_step_create_sized(gs_early_step **out, const gs_early_step_options *options,
                                     size_t options_bytes) {
    gs_early_step_options known;
    *out = NULL;
    GS_TRY(gs_options_take(&known, sizeof known, options, options_bytes, "gs_early_step_options"));
    GS_TRY(check_options(&known));
    gs_early_step *step = calloc(1, sizeof *step);
    if (!step) return out_of_memory();
    step->options = known;
    step->num_params = gs_optimizer_num_params(known.optimizer);
    step->segments = gs_optimizer_segments(known.optimizer, &step->num_segments);
    gs_status status = alloc_lists(step);
    if (!status.code) status = alloc_before(step);
    if (status.code) {
        gs_early_step_destroy(step);
        return status;
    }
    *out = step;
    return gs_ok();
}

void gs_early_step_destroy(gs_early_step *step) {
    if (!step) return;
    free(step->first_segment);
    free(step->early);
    free(step->offsets);
    free(step->num_updates);
    free(step->known);
    free(step->updated);
    if (step->before) gs_device_free(step->options.device, step->before);
    free(step);
}

void gs_early_step_begin(gs_early_step *step, float lr, float grad_scale) {
    gs_early_step_undo(step);
    step->is_open = true;
    step->lr = lr;
    step->grad_scale = grad_scale;
    step->failed = gs_ok();
    memset(step->known, step->options.waits_for_release ? 0 : RELEASED, step->num_params);
}

// Between where something is and where it is kept.
static void copy_between(const gs_early_step *step, void *holds, void *before, size_t bytes,
                         bool back) {
    gs_device *device = step->options.device;
    if (bytes)
        gs_device_kernels(device)->copy(gs_device_stream(device), back ? holds : before,
                                        back ? before : holds, bytes);
}

// A master in two halves is as long as one in fp32.
static void copy_master(const gs_early_step *step, size_t index, bool back) {
    const gs_mixed_precision *mixed = step->options.mixed;
    size_t count = step->segments[index].count;
    float *before = step->before + step->offsets[index];
    uint16_t *const *uppers = mixed ? gs_mixed_precision_uppers(mixed) : NULL;
    if (!uppers) {
        copy_between(step, step->options.params[index], before, count * sizeof(float), back);
        return;
    }
    uint16_t *halves = (uint16_t *)(void *)before;
    size_t bytes = count * sizeof *halves;
    copy_between(step, uppers[index], halves, bytes, back);
    copy_between(step, gs_mixed_precision_remainders(mixed)[index], halves + count, bytes, back);
}

// Master and state of a segment, and what was before beside each of them.
static void copy_segment(const gs_early_step *step, size_t index, bool back) {
    gs_optimizer *optimizer = step->options.optimizer;
    size_t bytes = step->segments[index].count * sizeof(float);
    copy_master(step, index, back);
    for (size_t t = 1; t < num_tensors(step); t++)
        copy_between(step, gs_optimizer_state(optimizer, (int)t - 1, index),
                     step->before + t * step->total_count + step->offsets[index], bytes, back);
}

static gs_optimizer_kept kept_in(const gs_early_step *step) {
    return (gs_optimizer_kept){step->before, step->offsets};
}

static void keep_before(gs_early_step *step, size_t param) {
    step->num_updates[param] = gs_optimizer_num_updates(step->options.optimizer)[param];
    if (writes_beside(step)) return;
    for (size_t i = step->first_segment[param]; i < step->first_segment[param + 1]; i++)
        copy_segment(step, i, false);
}

static gs_status update(gs_early_step *step, const size_t *params, size_t num_params, bool keeps) {
    const gs_early_step_options *options = &step->options;
    const gs_optimizer_kept kept = kept_in(step);
    if (options->mixed)
        return gs_mixed_precision_step_params(options->mixed, options->optimizer, params,
                                              num_params, step->grads, step->used, step->lr,
                                              step->grad_scale);
    if (keeps)
        return gs_optimizer_step_params_beside(options->optimizer, params, num_params,
                                               options->params, step->grads, step->used, step->lr,
                                               step->grad_scale, &kept);
    return gs_optimizer_step_params(options->optimizer, params, num_params, options->params,
                                    step->grads, step->used, step->lr, step->grad_scale);
}

// What is not known to be used may be: finish knows.
static bool may_update(const gs_early_step *step, size_t param) {
    return step->early[param] && step->known[param] == (REDUCED | RELEASED) && step->used[param];
}

// Those of the parameters that may be; NULL: of all. Undo knows of what is updated from here on.
static gs_status update_early(gs_early_step *step, const size_t *params, size_t num_params) {
    size_t *early = step->updated + step->num_updated, num_early = 0;
    for (size_t i = 0; i < num_params; i++) {
        size_t param = params ? params[i] : i;
        if (!may_update(step, param)) continue;
        step->known[param] |= UPDATED;
        early[num_early++] = param;
    }
    if (num_early == 0) return gs_ok();
    GS_FAILPOINT("optimizer.early");
    for (size_t i = 0; i < num_early; i++) keep_before(step, early[i]);
    step->num_updated += num_early;
    return update(step, early, num_early, true);
}

static void note(gs_early_step *step, gs_status status) {
    if (!step->failed.code) step->failed = status;
}

void gs_early_step_bucket(gs_early_step *step, const size_t *params, size_t num_params,
                          void *const *grads, const uint8_t *used) {
    if (!step->is_open || step->failed.code) return;
    if (!used) {
        note(step, gs_error(GS_FAILED_PRECONDITION, "early step: which parameters were used is not "
                                                    "known when a bucket is reduced with "
                                                    "GS_TALLY_APART"));
        return;
    }
    step->grads = grads;
    step->used = used;
    for (size_t i = 0; i < num_params; i++) step->known[params[i]] |= REDUCED;
    note(step, update_early(step, params, num_params));
}

void gs_early_step_release(gs_early_step *step, size_t param) {
    if (!step->is_open || step->failed.code) return;
    step->known[param] |= RELEASED;
    if (step->known[param] & REDUCED) note(step, update_early(step, &param, 1));
}

void gs_early_step_release_all(gs_early_step *step) {
    if (!step->is_open || step->failed.code) return;
    for (size_t i = 0; i < step->num_params; i++) step->known[i] |= RELEASED;
    note(step, update_early(step, NULL, step->num_params));
}

static void close_step(gs_early_step *step) {
    step->is_open = false;
    step->num_updated = 0;
}

gs_status gs_early_step_check(const gs_early_step *step) {
    return step->is_open ? step->failed : gs_ok();
}

gs_status gs_early_step_finish(gs_early_step *step, void *const *grads, const uint8_t *used) {
    if (!step->is_open) return gs_error(GS_FAILED_PRECONDITION, "early step: finish without begin");
    if (step->failed.code) return step->failed;
    step->grads = grads;
    step->used = used;
    // Behind those that undo knows of; the list has room for all.
    size_t *rest = step->updated + step->num_updated, num_rest = 0;
    for (size_t i = 0; i < step->num_params; i++) {
        if (!(step->known[i] & UPDATED)) rest[num_rest++] = i;
    }
    GS_TRY(update(step, rest, num_rest, false));
    close_step(step);
    return gs_ok();
}

static void copy_back(gs_early_step *step) {
    for (size_t u = 0; u < step->num_updated; u++) {
        size_t param = step->updated[u];
        for (size_t i = step->first_segment[param]; i < step->first_segment[param + 1]; i++)
            copy_segment(step, i, true);
    }
    gs_mixed_precision_write_back_params(step->options.mixed, step->updated, step->num_updated);
}

void gs_early_step_undo(gs_early_step *step) {
    gs_optimizer *optimizer = step->options.optimizer;
    const gs_optimizer_kept kept = kept_in(step);
    if (!step->is_open) return;
    for (size_t u = 0; u < step->num_updated; u++)
        gs_optimizer_num_updates(optimizer)[step->updated[u]] = step->num_updates[step->updated[u]];
    if (writes_beside(step))
        gs_optimizer_take_back(optimizer, step->updated, step->num_updated, step->options.params,
                               &kept);
    else
        copy_back(step);
    close_step(step);
}

size_t gs_early_step_num_updated(const gs_early_step *step) {
    return step->num_updated;
}
