// Stochastic gradient descent with momentum, dampening, Nesterov, decay added to the gradient.
#include "gradsync/optim/optimizer.h"

static const char *const *state_names(const gs_optimizer_options *options) {
    static const char *const none[] = {NULL};
    static const char *const momentum[] = {"momentum_buffer", NULL};
    return options->momentum != 0 ? momentum : none;
}

static gs_status check(const gs_optimizer_options *options) {
    if (!(options->momentum >= 0))
        return gs_error(GS_INVALID_ARGUMENT, "momentum: %g, must be at least 0",
                        (double)options->momentum);
    if (!(options->weight_decay >= 0))
        return gs_error(GS_INVALID_ARGUMENT, "weight_decay: %g, must be at least 0",
                        (double)options->weight_decay);
    if (options->nesterov && (options->momentum == 0 || options->dampening != 0))
        return gs_error(GS_INVALID_ARGUMENT, "nesterov: needs momentum and no dampening");
    return gs_ok();
}

static void update(gs_device *device, const gs_optimizer_options *options,
                   const gs_optimizer_run *run) {
    const gs_sgd step = {.lr = run->lr,
                         .momentum = options->momentum,
                         .dampening = options->dampening,
                         .weight_decay = run->weight_decay,
                         .grad_scale = run->grad_scale,
                         .nesterov = options->nesterov,
                         .first_step = run->num_updates == 0};
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *stream = gs_device_stream(device);
    if (run->was)
        kernels->sgd_beside(stream, run->param, run->was, run->next_state[0], run->state[0],
                            run->grad, &step, run->count);
    else
        kernels->sgd(stream, run->param, run->state[0], run->grad, &step, run->count);
}

static bool describe(gs_adamw_item *item, gs_adamw *step, const gs_optimizer_options *options,
                     const gs_optimizer_run *run) {
    (void)item, (void)step, (void)options, (void)run;
    return false;
}

const gs_optimizer_method gs_optimizer_sgd = {.kind = "sgd",
                                              .state_names = state_names,
                                              .check = check,
                                              .update = update,
                                              .describe = describe};
