#include "gradsync/step/trainability.h"

#include <stdlib.h>
#include <string.h>

static void list_frozen(gs_trainability *trainability) {
    trainability->num_frozen = 0;
    for (size_t i = 0; i < trainability->num_params; i++) {
        if (!trainability->trainable[i]) trainability->frozen[trainability->num_frozen++] = i;
    }
}

gs_status gs_trainability_init(gs_trainability *out, const bool *trainable, size_t num_params) {
    *out = (gs_trainability){.num_params = num_params};
    out->trainable = calloc(num_params + 1, sizeof *out->trainable);
    out->frozen = calloc(num_params + 1, sizeof *out->frozen);
    if (!out->trainable || !out->frozen)
        return gs_error(GS_RESOURCE_EXHAUSTED, "trainable parameters: out of memory");
    for (size_t i = 0; i < num_params; i++) out->trainable[i] = !trainable || trainable[i];
    list_frozen(out);
    return gs_ok();
}

void gs_trainability_release(gs_trainability *trainability) {
    free(trainability->trainable);
    free(trainability->frozen);
    *trainability = (gs_trainability){0};
}

gs_status gs_trainability_check(const bool *trainable, size_t num_params) {
    if (!trainable) return gs_ok();
    for (size_t i = 0; i < num_params; i++) {
        if (trainable[i]) return gs_ok();
    }
    return gs_error(GS_INVALID_ARGUMENT, "trainable: all %zu parameters are frozen", num_params);
}

bool gs_trainability_take(gs_trainability *trainability, const bool *trainable) {
    bool changes = false;
    for (size_t i = 0; i < trainability->num_params; i++) {
        bool now = !trainable || trainable[i];
        changes = changes || now != trainability->trainable[i];
        trainability->trainable[i] = now;
    }
    list_frozen(trainability);
    return changes;
}

bool gs_trainability_all_frozen(const gs_trainability *trainability, const size_t *params,
                                size_t num_params) {
    for (size_t i = 0; i < num_params; i++) {
        if (trainability->trainable[params[i]]) return false;
    }
    return true;
}
