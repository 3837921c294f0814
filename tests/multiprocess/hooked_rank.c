#include "tests/multiprocess/hooked_rank.h"

#include <stdio.h>

#include "core/random.h"
#include "tests/support/soon.h"

size_t hooked_rank_count(size_t param) {
    return 1 + param * 37 % 300;
}

static uint64_t draw(uint64_t what, uint64_t a, uint64_t b, uint64_t index) {
    return gs_random_u64((gs_random_key){.seed = 77, .stream = gs_random_stream(what, a, b)},
                         index);
}

float hooked_rank_value(int64_t step, int rank, size_t param, size_t index) {
    uint64_t number = draw(1, (uint64_t)step * 16 + (uint64_t)rank, param, index);
    return (float)((int)(number % 2001) - 1000) / 8;
}

void hooked_rank_dawdle(uint64_t a, uint64_t b) {
    uint64_t number = draw(2, a, b, 0);
    if (number % 6 == 0) gs_sleep_ns((int64_t)(number >> 8) % 300000);
}

gs_status hooked_rank_open_comm(gs_comm **comm, const hooked_rank *self, uint32_t generation,
                                bool takes_arena) {
    gs_comm_options options = {.rank = self->env->rank,
                               .world_size = self->env->world_size,
                               .generation = generation,
                               .exchange = gs_rank_exchange,
                               .exchange_ctx = self->env->exchange,
                               .arena = takes_arena ? self->rank.arena : NULL,
                               .device = self->rank.device};
    GS_TRY(gs_reducer_lanes(&options.num_lanes, &self->options));
    return gs_comm_create(comm, &options, soon());
}

gs_status hooked_rank_open(hooked_rank *self, const gs_rank_env *env, const gs_comm_hook *hook,
                           gs_helper_thread helper) {
    *self = (hooked_rank){.env = env, .choice = {.hook = hook, .user = self}};
    for (size_t p = 0; p < HOOKED_PARAMS; p++)
        self->params[p] =
            gs_param_spec_make(GS_FP32, (int64_t)hooked_rank_count(p), 0, "layer.%zu", p);
    GS_TRY(gs_bucket_plan_parity(&self->plans[0], self->params, HOOKED_PARAMS, 1, 1, NULL));
    GS_TRY(gs_bucket_plan_parity(&self->plans[1], self->params, HOOKED_PARAMS, 4000, 9000, NULL));
    self->options = (gs_reducer_options){
        .params = self->params,
        .num_params = HOOKED_PARAMS,
        .plan = &self->plans[0],
        .shards = {.num_shards = env->world_size, .world_size = env->world_size, .rank = env->rank},
        .op = GS_SUM,
        .hooks = &self->choice,
        .num_hooks = 1};
    size_t bytes;
    int num_lanes;
    GS_TRY(gs_reducer_arena_bytes(&bytes, &self->options));
    GS_TRY(gs_reducer_lanes(&num_lanes, &self->options));
    GS_TRY(comm_rank_open(&self->rank, env, bytes,
                          &(gs_comm_options){.helper = helper, .num_lanes = num_lanes}));
    self->options.arena = self->rank.arena;
    self->options.device = self->rank.device;
    return gs_reducer_create(&self->reducer, &self->options, self->rank.comm, soon());
}

void hooked_rank_close(hooked_rank *self) {
    gs_reducer_destroy(self->reducer);
    comm_rank_close(&self->rank);
    gs_bucket_plan_release(&self->plans[0]);
    gs_bucket_plan_release(&self->plans[1]);
}

gs_status hooked_rank_run_pass(hooked_rank *self, int64_t step,
                               float (*value)(int64_t step, int rank, size_t param, size_t index)) {
    gs_reducer_pass pass;
    gs_random_key key = {.seed = 78,
                         .stream = gs_random_stream(3, (uint64_t)step, (uint64_t)self->env->rank)};
    GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, 1));
    for (size_t i = 0; i < HOOKED_PARAMS; i++) {
        size_t param = gs_random_permute(key, HOOKED_PARAMS, i);
        float *grad = pass.grads[param];
        for (size_t k = 0; k < hooked_rank_count(param); k++)
            grad[k] = value(step, self->env->rank, param, k);
        hooked_rank_dawdle((uint64_t)step * 100 + (uint64_t)self->env->rank, param);
        GS_TRY(gs_reducer_mark_ready(self->reducer, param));
    }
    return gs_reducer_end_pass(self->reducer);
}

gs_status hooked_rank_meet(const hooked_rank *self, const char *what, int64_t step) {
    char tag[32], here = 1, all[HOOKED_MAX_WORLD];
    snprintf(tag, sizeof tag, "%.16s %d", what, (int)step);
    return gs_rank_exchange(self->env->exchange, tag, NULL, 0, &here, 1, all, soon());
}

gs_status hooked_rank_check_sums(const hooked_rank *self, int64_t step) {
    for (size_t p = 0; p < HOOKED_PARAMS; p++) {
        const float *grad = gs_reducer_grads(self->reducer)[p];
        for (size_t k = 0; k < hooked_rank_count(p); k++) {
            float sum = 0;
            for (int r = 0; r < self->env->world_size; r++) sum += hooked_rank_value(step, r, p, k);
            if (grad[k] != sum)
                return gs_error(GS_INTERNAL, "step %d: element %zu of parameter %zu is %g, not %g",
                                (int)step, k, p, (double)grad[k], (double)sum);
        }
    }
    return gs_ok();
}
