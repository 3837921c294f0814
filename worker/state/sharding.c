#include "worker/state/sharding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "gradsync/sharded/common_params.h"
#include "gradsync/sharded/shard_reduce.h"

// One is filled, one on its way; in the rest wait buckets whose last gradient comes behind others'.
#define NUM_WINDOWS 4

static gs_status plan_windows(gs_sharding *sharding, const gs_job_spec *spec) {
    const gs_model *model = &sharding->state->model;
    size_t num_params;
    const gs_model_param *params = model->ops->params(model->state, &num_params);
    sharding->opens_early = calloc(num_params + 1, sizeof *sharding->opens_early);
    if (!sharding->opens_early) return gs_error(GS_RESOURCE_EXHAUSTED, "shards: out of memory");
    for (size_t i = 0; i < num_params; i++) sharding->opens_early[i] = params[i].opens_early;
    sharding->windows = (gs_window_options){.num_windows = NUM_WINDOWS,
                                            .wait_seconds = spec->reducer.timeout_seconds,
                                            .opens_early = sharding->opens_early};
    return gs_ok();
}

gs_status gs_sharding_init(gs_sharding *sharding, gs_trainer_state *state,
                           const gs_state_shards_options *options) {
    *sharding =
        (gs_sharding){.state = state, .timeout_seconds = options->spec->reducer.timeout_seconds};
    if (!state->is_sharded) return gs_ok();
    gs_trainer_state_take_down(state);  // its parameters lie in memory that is given anew
    GS_TRY(gs_state_shards_create(&sharding->waiting, options));
    sharding->partition = sharding->waiting->partition;
    sharding->overlaps = options->spec->reducer.zero_overlap != GS_ZERO_OVERLAP_OFF;
    bool in_windows = options->spec->reducer.sharding == GS_SHARDING_GRADIENTS;
    return in_windows ? plan_windows(sharding, options->spec) : gs_ok();
}

void gs_sharding_release(gs_sharding *sharding) {
    gs_param_gather_destroy(sharding->gather);
    // They go with the communicator.
    if (sharding->has_common_params) gs_trainer_state_take_down(sharding->state);
    gs_state_shards_destroy(sharding->waiting);
    free(sharding->grads);
    free(sharding->is_taken);
    free(sharding->opens_early);
    *sharding = (gs_sharding){0};
}

bool gs_sharding_reduces_to_owners(const gs_sharding *sharding) {
    return sharding->partition && !sharding->overlaps;
}

void gs_sharding_reduce(const gs_sharding *sharding, gs_hook_choice *choice, gs_dtype *wire_dtype) {
    if (!gs_sharding_reduces_to_owners(sharding)) return;
    if (choice->hook == &gs_hook_fp16) *wire_dtype = GS_FP16;
    if (choice->hook == &gs_hook_bf16) *wire_dtype = GS_BF16;
    *choice = (gs_hook_choice){.hook = &gs_hook_shard_reduce,
                               .user = (void *)(uintptr_t)sharding->partition};
}

const int *gs_sharding_measured_by(const gs_sharding *sharding) {
    return sharding->overlaps ? gs_shards_owners(sharding->partition) : NULL;
}

size_t gs_sharding_bytes(const gs_sharding *sharding) {
    return sharding->partition ? gs_shards_param_bytes(sharding->partition) : 0;
}

gs_status gs_sharding_lay_out(gs_sharding *sharding, const gs_job_spec *spec, void *memory) {
    if (!sharding->partition) return gs_ok();
    gs_state_shards *shards = sharding->waiting;
    sharding->waiting = NULL;
    return gs_trainer_state_lay_out(sharding->state, spec, shards, memory);
}

static gs_status list_grads(gs_sharding *sharding, const gs_reducer *reducer) {
    const gs_state_shards *shards = sharding->state->shards;
    void *const *grads = gs_reducer_grads(reducer);
    sharding->grads = calloc(shards->num_own + 1, sizeof *sharding->grads);
    if (!sharding->grads) return gs_error(GS_RESOURCE_EXHAUSTED, "shards: out of memory");
    for (size_t i = 0; i < shards->num_own; i++)
        sharding->grads[i] = (float *)grads[shards->own[i].tensor] + shards->own[i].first;
    return gs_ok();
}

// "0", "0-1": the nodes that have memory.
static bool has_one_node(void) {
    char nodes[64] = "";
    FILE *file = fopen("/sys/devices/system/node/has_memory", "re");
    if (!file) return true;
    bool is_read = fgets(nodes, sizeof nodes, file);
    fclose(file);
    return !is_read || !strpbrk(nodes, "-,");
}

static bool wants_common_params(const gs_sharding *sharding, bool updates_early) {
    const char *chosen = getenv("GRADSYNC_COMMON_PARAMS");
    if (updates_early || !gs_device_is_host(sharding->state->device)) return false;
    return chosen && *chosen ? strcmp(chosen, "0") != 0 : has_one_node();
}

static gs_status find_common_params(gs_sharding *sharding, const gs_sharding_options *options,
                                    gs_deadline deadline) {
    gs_trainer_state *state = sharding->state;
    bool wants = wants_common_params(sharding, options->updates_early);
    void *memory;
    GS_TRY(gs_common_params_find(&memory, options->comm, wants ? state->memory : NULL,
                                 state->memory_bytes, deadline));
    sharding->has_common_params = memory != NULL;
    if (!memory) return gs_ok();
    gs_log_info("ranks have parameters in one memory", "rank=%d bytes=%zu",
                gs_comm_rank(options->comm), state->memory_bytes);
    return memory == state->memory ? gs_ok() : gs_trainer_state_move_params(state, memory);
}

gs_status gs_sharding_connect(gs_sharding *sharding, const gs_sharding_options *options,
                              gs_deadline deadline) {
    if (!sharding->partition) return gs_ok();
    GS_TRY(find_common_params(sharding, options, deadline));
    GS_TRY(list_grads(sharding, options->reducer));
    sharding->is_taken = calloc(sharding->state->num_params + 1, sizeof *sharding->is_taken);
    if (!sharding->is_taken) return gs_error(GS_RESOURCE_EXHAUSTED, "shards: out of memory");
    return gs_param_gather_create(
        &sharding->gather,
        &(gs_param_gather_options){.shards = sharding->partition,
                                   .comm = options->comm,
                                   .params = sharding->state->memory,
                                   .lane = options->lane,
                                   .are_common = sharding->has_common_params},
        deadline);
}

gs_status gs_sharding_set_trainable(gs_sharding *sharding, const bool *trainable) {
    return sharding->gather ? gs_param_gather_set_trainable(sharding->gather, trainable) : gs_ok();
}

gs_status gs_sharding_step(gs_sharding *sharding, const uint8_t *used, float lr, float grad_scale) {
    const gs_trainer_state *state = sharding->state;
    sharding->is_on_way = true;
    return state->mixed ? gs_mixed_precision_step(state->mixed, state->optimizer, sharding->grads,
                                                  used, lr, grad_scale)
                        : gs_optimizer_step(state->optimizer, state->own_params, sharding->grads,
                                            used, lr, grad_scale);
}

gs_status gs_sharding_send(gs_sharding *sharding, int64_t step) {
    if (!sharding->gather) return gs_ok();
    sharding->is_on_way = true;
    memset(sharding->is_taken, 0, sharding->state->num_params * sizeof *sharding->is_taken);
    return gs_param_gather_start(sharding->gather, step);
}

// What came in 16 bits, for kernels of fp32.
static void take_param(gs_sharding *sharding, size_t param) {
    gs_mixed_precision *mixed = sharding->state->mixed;
    if (!mixed || sharding->is_taken[param]) return;
    gs_mixed_precision_take_param(mixed, param);
    sharding->is_taken[param] = true;
}

gs_status gs_sharding_reads(void *ctx, size_t param) {
    gs_sharding *sharding = ctx;
    if (!sharding->is_on_way) return gs_ok();
    int64_t begin_ns = gs_now_ns();
    gs_status status = gs_param_gather_wait(sharding->gather, param,
                                            gs_deadline_in_seconds(sharding->timeout_seconds));
    sharding->waited_ns += gs_now_ns() - begin_ns;
    if (!status.code) take_param(sharding, param);
    return status;
}

gs_status gs_sharding_await(gs_sharding *sharding) {
    if (!sharding->is_on_way) return gs_ok();
    int64_t begin_ns = gs_now_ns();
    GS_TRY(gs_param_gather_finish(sharding->gather,
                                  gs_deadline_in_seconds(sharding->timeout_seconds)));
    sharding->waited_ns += gs_now_ns() - begin_ns;
    for (size_t i = 0; i < sharding->state->num_params; i++) take_param(sharding, i);
    sharding->is_on_way = false;
    return gs_ok();
}

double gs_sharding_take_waited(gs_sharding *sharding) {
    double seconds = gs_seconds_of(sharding->waited_ns);
    sharding->waited_ns = 0;
    return seconds;
}
