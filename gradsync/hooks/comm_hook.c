#include "gradsync/hooks/comm_hook.h"

#include <string.h>

static const gs_comm_hook *const hooks[] = {
    &gs_hook_allreduce,
    &gs_hook_fp16,
    &gs_hook_bf16,
    &gs_hook_wrap_fp16,
    &gs_hook_wrap_bf16,
    &gs_hook_local_sgd,
    &gs_hook_noop,
    &gs_hook_powersgd,
    &gs_hook_batched_powersgd,
    &gs_hook_topk,
    &gs_hook_onebit,
    &gs_hook_int8,
    &gs_hook_int8_channel,
    &gs_hook_uint8_gather,
    &gs_hook_auto,
};

const gs_comm_hook *gs_comm_hook_find(const char *name) {
    for (size_t i = 0; i < sizeof hooks / sizeof hooks[0]; i++) {
        if (strcmp(hooks[i]->name, name) == 0) return hooks[i];
    }
    return NULL;
}
