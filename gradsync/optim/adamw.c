// Adam and AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019): they differ in where decay goes.
#include "gradsync/optim/optimizer.h"

#include <math.h>

static const char *const *state_names(const gs_optimizer_options *options) {
    (void)options;
    static const char *const names[] = {"exp_avg", "exp_avg_sq", NULL};
    return names;
}

static gs_status check_beta(const char *name, float beta) {
    if (beta >= 0 && beta < 1) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "%s: %g, must be in [0, 1)", name, (double)beta);
}

static gs_status check(const gs_optimizer_options *options) {
    GS_TRY(check_beta("beta1", options->beta1));
    GS_TRY(check_beta("beta2", options->beta2));
    if (!(options->eps >= 0))
        return gs_error(GS_INVALID_ARGUMENT, "eps: %g, must be at least 0", (double)options->eps);
    if (!(options->weight_decay >= 0))
        return gs_error(GS_INVALID_ARGUMENT, "weight_decay: %g, must be at least 0",
                        (double)options->weight_decay);
    return gs_ok();
}

static gs_adamw step_of(const gs_optimizer_options *options, const gs_optimizer_run *run,
                        bool decoupled) {
    double t = (double)(run->num_updates + 1);
    return (gs_adamw){.lr = run->lr,
                      .beta1 = options->beta1,
                      .beta2 = options->beta2,
                      .eps = options->eps,
                      .weight_decay = run->weight_decay,
                      .grad_scale = run->grad_scale,
                      .correction1 = 1 - pow((double)options->beta1, t),
                      .correction2 = 1 - pow((double)options->beta2, t),
                      .decoupled = decoupled};
}

static void update_by(gs_device *device, const gs_optimizer_options *options,
                      const gs_optimizer_run *run, bool decoupled) {
    const gs_adamw step = step_of(options, run, decoupled);
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *stream = gs_device_stream(device);
    if (run->was)
        kernels->adamw_beside(stream, run->param, run->was, run->next_state[0], run->next_state[1],
                              run->state[0], run->state[1], run->grad, &step, run->count);
    else
        kernels->adamw(stream, run->param, run->state[0], run->state[1], run->grad, &step,
                       run->count);
}

static void describe_by(gs_adamw_item *item, gs_adamw *step, const gs_optimizer_options *options,
                        const gs_optimizer_run *run, bool decoupled) {
    *step = step_of(options, run, decoupled);
    *item = (gs_adamw_item){.param = run->param,
                            .value = run->value,
                            .remainder = run->remainder,
                            .m = run->state[0],
                            .v = run->state[1],
                            .grad = run->grad,
                            .count = run->count,
                            .weight_decay = step->weight_decay,
                            .correction1 = step->correction1,
                            .correction2 = step->correction2};
}

static void update_adam(gs_device *device, const gs_optimizer_options *options,
                        const gs_optimizer_run *run) {
    update_by(device, options, run, false);
}

static void update_adamw(gs_device *device, const gs_optimizer_options *options,
                         const gs_optimizer_run *run) {
    update_by(device, options, run, true);
}

static bool describe_adam(gs_adamw_item *item, gs_adamw *step, const gs_optimizer_options *options,
                          const gs_optimizer_run *run) {
    describe_by(item, step, options, run, false);
    return true;
}

static bool describe_adamw(gs_adamw_item *item, gs_adamw *step, const gs_optimizer_options *options,
                           const gs_optimizer_run *run) {
    describe_by(item, step, options, run, true);
    return true;
}

const gs_optimizer_method gs_optimizer_adam = {.kind = "adam",
                                               .state_names = state_names,
                                               .check = check,
                                               .update = update_adam,
                                               .describe = describe_adam};
const gs_optimizer_method gs_optimizer_adamw = {.kind = "adamw",
                                                .state_names = state_names,
                                                .check = check,
                                                .update = update_adamw,
                                                .describe = describe_adamw};
