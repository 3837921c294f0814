#include "worker/pass/pass_device.h"

static gs_status make_stage(gs_batch_stage **out, gs_device *device, const gs_data_loader *loader) {
    gs_batch largest = gs_data_loader_largest(loader);
    return gs_batch_stage_create(out, device, &largest);
}

static gs_status make_parts(gs_pass_device *gpu, const gs_trainer_state *state,
                            const gs_data_loader *train, const gs_data_loader *evaluation) {
    void *memory;
    GS_TRY(make_stage(&gpu->train, state->device, train));
    if (evaluation) GS_TRY(make_stage(&gpu->evaluation, state->device, evaluation));
    const gs_pass_graphs_options graphs = {.device = state->device,
                                           .num_params = state->num_params,
                                           .num_buffers = state->num_buffers};
    GS_TRY(gs_pass_graphs_create(&gpu->graphs, &graphs));
    GS_TRY(gs_device_times_create(&gpu->times, state->device));
    GS_TRY(gs_device_alloc_pinned(state->device, &memory, sizeof *gpu->loss_sum));
    gpu->loss_sum = memory;
    return gs_ok();
}

gs_status gs_pass_device_init(gs_pass_device *out, const gs_trainer_state *state,
                              const gs_data_loader *train, const gs_data_loader *evaluation) {
    *out = (gs_pass_device){0};
    if (gs_device_is_host(state->device)) return gs_ok();
    gs_status status = make_parts(out, state, train, evaluation);
    if (status.code) gs_pass_device_release(out, state->device);
    return status;
}

void gs_pass_device_release(gs_pass_device *gpu, gs_device *device) {
    gs_pass_graphs_destroy(gpu->graphs);
    gs_device_times_destroy(gpu->times);
    gs_batch_stage_destroy(gpu->train);
    gs_batch_stage_destroy(gpu->evaluation);
    gs_device_free_pinned(device, gpu->loss_sum);
    *gpu = (gs_pass_device){0};
}
