#include "worker/pass/frozen_params.h"

#include <stdlib.h>

#include "rpc/schema/job_freeze.h"

struct gs_frozen_params {
    const gs_job_spec *spec;      // borrowed
    const gs_param_spec *params;  // borrowed
    size_t num_params;
    bool *trainable;      // owned
    void **grads;         // owned
    int64_t next_change;  // the step of the next turn
};

gs_status gs_frozen_params_create(gs_frozen_params **out, const gs_job_spec *spec,
                                  const gs_param_spec *params, size_t num_params) {
    *out = NULL;
    if (!spec->model.num_freezes) return gs_ok();
    gs_frozen_params *frozen = calloc(1, sizeof *frozen);
    if (!frozen) return gs_error(GS_RESOURCE_EXHAUSTED, "frozen parameters: out of memory");
    *frozen = (gs_frozen_params){.spec = spec, .params = params, .num_params = num_params};
    frozen->trainable = calloc(num_params + 1, sizeof *frozen->trainable);
    frozen->grads = calloc(num_params + 1, sizeof *frozen->grads);
    if (!frozen->trainable || !frozen->grads) {
        gs_frozen_params_destroy(frozen);
        return gs_error(GS_RESOURCE_EXHAUSTED, "frozen parameters: out of memory");
    }
    *out = frozen;
    return gs_ok();
}

void gs_frozen_params_destroy(gs_frozen_params *frozen) {
    if (!frozen) return;
    free(frozen->trainable);
    free(frozen->grads);
    free(frozen);
}

bool gs_frozen_params_is_due(const gs_frozen_params *frozen, int64_t step) {
    return frozen && step >= frozen->next_change;
}

const bool *gs_frozen_params_turn(gs_frozen_params *frozen, int64_t step, size_t *num_frozen) {
    *num_frozen = 0;
    for (size_t i = 0; i < frozen->num_params; i++) {
        frozen->trainable[i] = gs_job_freeze_trains(frozen->spec, &frozen->params[i], step);
        *num_frozen += !frozen->trainable[i];
    }
    frozen->next_change = gs_job_freeze_next_change(frozen->spec, step);
    return frozen->trainable;
}

void *const *gs_frozen_params_grads(gs_frozen_params *frozen, void *const *grads) {
    if (!frozen) return grads;
    for (size_t i = 0; i < frozen->num_params; i++)
        frozen->grads[i] = frozen->trainable[i] ? grads[i] : NULL;
    return frozen->grads;
}
