#include "worker/pass/update_ahead.h"

#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "core/log.h"
#include "kernels/choice.h"
#include "kernels/event_wait.h"

struct gs_update_ahead {
    gs_update_ahead_options options;
    gs_device *device;
    gs_grad_factor *factor;  // of the device's memory
    gs_grad_factor *told;    // pinned: the same for the host, once `decided` has come
    gs_event *decided;
    int64_t *num_updates;  // of each parameter, before the launch
    bool is_launched;
};

static const char *find_obstacle(const gs_update_ahead_options *options) {
    const gs_job_spec *spec = options->spec;
    if (gs_comm_world_size(options->comm) > 1) return "several ranks commit before they update";
    if (options->state->is_sharded) return "parameters of a sharded state are sent behind the update";
    if (spec->optimizer.offload) return "the host updates (optimizer.offload)";
    if (options->updates_in_backward) return "updates come in the backward pass";
    return NULL;
}

static gs_status alloc_parts(gs_update_ahead *update) {
    const gs_trainer_state *state = update->options.state;
    void *memory;
    update->num_updates = calloc(state->num_params + 1, sizeof *update->num_updates);
    if (!update->num_updates) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    GS_TRY(gs_device_alloc(update->device, &memory, sizeof *update->factor));
    update->factor = memory;
    GS_TRY(gs_device_alloc_pinned(update->device, &memory, sizeof *update->told));
    update->told = memory;
    return gs_event_create(&update->decided, update->device, false);
}

gs_status gs_update_ahead_create(gs_update_ahead **out, const gs_update_ahead_options *options) {
    gs_device *device = options->state->device;
    *out = NULL;
    if (!gs_device_chooses(device, GS_CHOICE_FACTOR_ON_DEVICE)) return gs_ok();
    const char *obstacle = find_obstacle(options);
    if (obstacle) {
        gs_log_info("updates wait for the host", "rank=%d reason=\"%s\"", gs_comm_rank(options->comm), obstacle);
        return gs_ok();
    }
    gs_update_ahead *update = calloc(1, sizeof *update);
    if (!update) return gs_error(GS_RESOURCE_EXHAUSTED, "update ahead: out of memory");
    update->options = *options;
    update->device = device;
    gs_status status = alloc_parts(update);
    if (status.code) {
        gs_update_ahead_destroy(update);
        return gs_status_prefix(status, "update ahead");
    }
    gs_log_info("updates do not wait for the host", "rank=%d", gs_comm_rank(options->comm));
    *out = update;
    return gs_ok();
}

void gs_update_ahead_destroy(gs_update_ahead *update) {
    if (!update) return;
    gs_event_destroy(update->decided);
    gs_device_free_pinned(update->device, update->told);
    gs_device_free(update->device, update->factor);
    free(update->num_updates);
    free(update);
}

// Of one rank what it used itself is what all used.
bool gs_update_ahead_may(const gs_update_ahead *update) {
    if (!update) return false;
    const gs_update_ahead_options *options = &update->options;
    const uint8_t *used = gs_reducer_used(options->reducer);
    if (!used) return false;
    if (options->spec->reducer.unused_parameters != GS_UNUSED_ERROR) return true;
    for (size_t i = 0; i < options->state->num_params; i++)
        if (!used[i]) return false;
    return true;
}

static void launch_factor(gs_update_ahead *update, const double *squares) {
    const gs_kernels *kernels = gs_device_kernels(update->device);
    gs_stream *stream = gs_device_stream(update->device);
    const gs_trainer_state *state = update->options.state;
    const gs_grad_scaler *loss_scale = &state->position.loss_scale;
    const gs_grad_clip clip = {.max_norm = update->options.spec->optimizer.grad_clip_norm,
                               .loss_scale = (double)gs_grad_scaler_scale(loss_scale),
                               .unscaling = gs_grad_scaler_inverse(loss_scale)};
    kernels->grad_factor(stream, update->factor, squares, state->num_params, &clip);
    kernels->copy(stream, update->told, update->factor, sizeof *update->told);
    gs_event_record(update->decided, stream);
}

gs_status gs_update_ahead_launch(gs_update_ahead *update, const double *squares, float lr) {
    if (!update) return gs_ok();
    const gs_update_ahead_options *options = &update->options;
    gs_trainer_state *state = options->state;
    gs_stream *stream = gs_device_stream(update->device);
    GS_TRY(gs_stream_take_error(stream));
    GS_FAILPOINT("step.ahead");
    memcpy(update->num_updates, gs_optimizer_num_updates(state->optimizer),
           state->num_params * sizeof *update->num_updates);
    launch_factor(update, squares);
    update->is_launched = true;
    gs_device_times_mark(options->times, GS_SPAN_UNSET);
    gs_stream_set_factor(stream, update->factor);
    gs_status status = gs_trainer_state_step(state, gs_reducer_grads(options->reducer),
                                             gs_reducer_used(options->reducer), lr, 1);
    gs_stream_set_factor(stream, NULL);
    gs_device_times_mark(options->times, GS_SPAN_OPTIMIZER);
    return status;
}

gs_status gs_update_ahead_resolve(gs_update_ahead *update, bool *updated, gs_deadline deadline) {
    *updated = false;
    if (!update || !update->is_launched) return gs_ok();
    update->is_launched = false;
    GS_TRY(gs_event_wait(update->decided, "the factor of the update", deadline));
    *updated = update->told->applies != 0;
    if (*updated) return gs_ok();
    memcpy(gs_optimizer_num_updates(update->options.state->optimizer), update->num_updates,
           update->options.state->num_params * sizeof *update->num_updates);
    return gs_ok();
}
