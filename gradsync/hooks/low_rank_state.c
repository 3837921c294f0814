#include "gradsync/hooks/low_rank_state.h"

static gs_param_state_options describe_errors(const gs_hook_setup *setup,
                                              const gs_low_rank_options *chosen,
                                              const gs_low_rank_counts *counts) {
    return (gs_param_state_options){.name = "error",
                                    .is_own = true,
                                    .params = setup->params,
                                    .num_params = setup->num_params,
                                    .count = counts->error,
                                    .ctx = chosen};
}

static gs_param_state_options describe_factors(const gs_hook_setup *setup,
                                               const gs_low_rank_options *chosen,
                                               const gs_low_rank_counts *counts) {
    return (gs_param_state_options){.name = "q",
                                    .params = setup->params,
                                    .num_params = setup->num_params,
                                    .count = counts->factor,
                                    .ctx = chosen};
}

gs_status gs_low_rank_state_bytes(size_t *bytes, const gs_hook_setup *setup,
                                  const gs_low_rank_counts *counts) {
    const gs_low_rank_options chosen = gs_low_rank_options_of(setup->choice);
    const gs_param_state_options errors = describe_errors(setup, &chosen, counts),
                                 factors = describe_factors(setup, &chosen, counts);
    if (__builtin_add_overflow(gs_param_state_bytes(&errors), gs_param_state_bytes(&factors),
                               bytes))
        return gs_error(GS_RESOURCE_EXHAUSTED, "its state does not fit into memory");
    return gs_ok();
}

gs_status gs_low_rank_state_init(gs_low_rank_state *self, void **rest, const gs_hook_setup *setup,
                                 const gs_low_rank_counts *counts) {
    *self = (gs_low_rank_state){.options = gs_low_rank_options_of(setup->choice),
                                .wire = gs_low_rank_wire_of(setup),
                                .device = setup->device,
                                .params = setup->params,
                                .num_params = setup->num_params};
    const gs_param_state_options errors = describe_errors(setup, &self->options, counts),
                                 factors = describe_factors(setup, &self->options, counts);
    char *factors_at = (char *)setup->state + gs_param_state_bytes(&errors);
    *rest = factors_at + gs_param_state_bytes(&factors);
    GS_TRY(gs_param_state_init(&self->errors, &errors, setup->device, setup->state));
    return gs_param_state_init(&self->factors, &factors, setup->device, factors_at);
}

gs_status gs_low_rank_state_alloc(gs_low_rank_state *self, size_t drawn_bytes, size_t num_matrices,
                                  size_t num_rows) {
    GS_TRY(gs_device_alloc_pinned(self->device, &self->pinned, drawn_bytes + 1));
    return gs_low_rank_tables_init(&self->tables, num_matrices, num_rows, self->device);
}

void gs_low_rank_state_release(gs_low_rank_state *self) {
    gs_low_rank_tables_release(&self->tables);
    gs_param_state_release(&self->errors);
    gs_param_state_release(&self->factors);
    if (self->pinned) gs_device_free_pinned(self->device, self->pinned);
}

bool gs_low_rank_state_restarts(const gs_low_rank_state *self, gs_low_rank shape) {
    return self->options.warm_start && (self->options.epsilon == 0 || shape.rank > 2);
}

gs_hook_report gs_low_rank_state_report(const gs_low_rank_state *self) {
    gs_hook_report report = self->report;
    report.carries = self->options.error_feedback;
    return report;
}

void gs_low_rank_state_commit(void *state) {
    gs_low_rank_state *self = state;
    gs_param_state_commit(&self->errors);
    gs_param_state_commit(&self->factors);
    self->report = (gs_hook_report){0};
}

void gs_low_rank_state_rollback(void *state) {
    gs_low_rank_state *self = state;
    gs_param_state_rollback(&self->errors);
    gs_param_state_rollback(&self->factors);
    self->report = (gs_hook_report){0};
}

bool gs_low_rank_state_tensor(void *state, size_t index, gs_hook_tensor *out) {
    const gs_low_rank_state *self = state;
    const size_t num_errors = gs_param_state_num_tensors(&self->errors);
    if (index < num_errors) return gs_param_state_tensor(&self->errors, index, out);
    return gs_param_state_tensor(&self->factors, index - num_errors, out);
}
