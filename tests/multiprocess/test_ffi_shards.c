// The interface for other languages, where each rank has a part of the optimizers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/ffi/ffi.h"
#include "tests/support/asserts.h"
#include "tests/support/ranks.h"
#include "tests/support/soon.h"

#define SECOND INT64_C(1000000000)

enum { NUM_PARAMS = 5, COUNT = 40, WORLD = 3, NUM_OPTIMIZERS = 2, FP32 = 1, GATHER_LANE = 1 };

static const int optimizers[NUM_PARAMS] = {0, 1, 0, 0, 1};

typedef struct caller {
    const gs_rank_env *env;
    gs_ffi_device *device;
    gs_ffi_arena *arena;
    gs_ffi_params *params;
    gs_ffi_plan *plan;
    gs_ffi_shards *shards;
    gs_ffi_comm *comm;
    gs_ffi_reducer *reducer;
    gs_ffi_gather *gather;
    gs_ffi_optimizer *optimizers[NUM_OPTIMIZERS];
    size_t params_from;
    void *values[NUM_PARAMS];
} caller;

static gs_status say(int code, const void *handle) {
    char text[256];
    if (!code) return gs_ok();
    gs_ffi_error(handle, text, sizeof text);
    return gs_error((gs_code)code, "%s", text);
}

static int exchange(void *ctx, const char *tag, const int *ranks, int num_ranks, const void *mine,
                    size_t bytes, void *all, int64_t left_ns) {
    const caller *self = ctx;
    return (int)gs_rank_exchange(self->env->exchange, tag, ranks, num_ranks, mine, bytes, all,
                                 gs_deadline_in_ns(left_ns))
        .code;
}

// `rule` "flat": parts of buckets; else whole parameters, each bucket of one owner.
static gs_status cut(caller *self, const char *rule) {
    const int64_t shape[] = {COUNT};
    int owners[NUM_PARAMS];
    for (int p = 0; p < NUM_PARAMS; p++) {
        char name[8];
        snprintf(name, sizeof name, "p%d", p);
        GS_TRY(say(gs_ffi_params_add(self->params, name, FP32, 1, shape), self->params));
    }
    if (strcmp(rule, "flat") != 0) {
        GS_TRY(say(gs_ffi_params_deal(self->params, rule, WORLD, owners), self->params));
        GS_TRY(say(gs_ffi_plan_set_owners(self->plan, owners, NUM_PARAMS), self->plan));
        GS_TRY(say(gs_ffi_shards_set_owners(self->shards, owners, NUM_PARAMS), self->shards));
    }
    GS_TRY(say(gs_ffi_shards_set_optimizers(self->shards, optimizers, NUM_PARAMS), self->shards));
    GS_TRY(say(gs_ffi_plan_open(self->plan, self->params, 0, 0, NULL), self->plan));
    return say(gs_ffi_shards_open(self->shards, self->params, self->plan, WORLD), self->shards);
}

static gs_status open_memory(caller *self) {
    size_t bytes;
    int num_lanes;
    GS_TRY(say(gs_ffi_reducer_set_plan(self->reducer, self->params, self->plan), self->reducer));
    GS_TRY(say(gs_ffi_reducer_set_shards(self->reducer, self->shards), self->reducer));
    GS_TRY(
        say(gs_ffi_reducer_arena_bytes(self->reducer, self->device, WORLD, &bytes), self->reducer));
    GS_TRY(
        say(gs_ffi_reducer_lanes(self->reducer, self->device, WORLD, &num_lanes), self->reducer));
    if (num_lanes != GATHER_LANE) return gs_error(GS_INTERNAL, "%d lanes", num_lanes);
    self->params_from = (bytes + 255) / 256 * 256;
    bytes = self->params_from + gs_ffi_shards_param_bytes(self->shards);
    return say(gs_ffi_arena_open(self->arena, self->device, bytes), self->arena);
}

static gs_status open_optimizers(caller *self) {
    for (int k = 0; k < NUM_OPTIMIZERS; k++) {
        gs_ffi_optimizer *optimizer = self->optimizers[k] = gs_ffi_optimizer_new();
        if (k == 0) GS_TRY(say(gs_ffi_optimizer_set(optimizer, "momentum", 0.5), optimizer));
        GS_TRY(say(gs_ffi_optimizer_set_shards(optimizer, self->shards, self->env->rank, k),
                   optimizer));
        GS_TRY(say(gs_ffi_optimizer_open(optimizer, "sgd", self->params, self->device), optimizer));
    }
    return gs_ok();
}

static gs_status open_ranks(caller *self) {
    GS_TRY(say(gs_ffi_comm_set_rank(self->comm, self->env->rank, WORLD), self->comm));
    GS_TRY(say(gs_ffi_comm_set_lanes(self->comm, GATHER_LANE + 1), self->comm));
    GS_TRY(say(gs_ffi_comm_set_exchange(self->comm, exchange, self), self->comm));
    GS_TRY(say(gs_ffi_comm_open(self->comm, self->device, self->arena, 20 * SECOND), self->comm));
    GS_TRY(
        say(gs_ffi_reducer_open(self->reducer, self->comm, self->arena, self->device, 20 * SECOND),
            self->reducer));
    GS_TRY(say(gs_ffi_gather_open(self->gather, self->shards, self->comm, self->arena,
                                  self->params_from, GATHER_LANE, 20 * SECOND),
               self->gather));
    char *params = (char *)gs_ffi_arena_data(self->arena) + self->params_from;
    for (size_t p = 0; p < NUM_PARAMS; p++)
        self->values[p] = params + gs_ffi_shards_param_offset(self->shards, p);
    return gs_ok();
}

static gs_status open_caller(caller *self, const gs_rank_env *env) {
    *self = (caller){.env = env,
                     .device = gs_ffi_device_new(),
                     .arena = gs_ffi_arena_new(),
                     .params = gs_ffi_params_new(),
                     .plan = gs_ffi_plan_new(),
                     .shards = gs_ffi_shards_new(),
                     .comm = gs_ffi_comm_new(),
                     .reducer = gs_ffi_reducer_new(),
                     .gather = gs_ffi_gather_new()};
    GS_TRY(say(gs_ffi_device_open(self->device, "cpu"), self->device));
    GS_TRY(cut(self, env->arg));
    GS_TRY(open_memory(self));
    GS_TRY(open_optimizers(self));
    return open_ranks(self);
}

static void close_caller(caller *self) {
    for (int k = 0; k < NUM_OPTIMIZERS; k++) gs_ffi_optimizer_free(self->optimizers[k]);
    gs_ffi_gather_free(self->gather);
    gs_ffi_reducer_free(self->reducer);
    gs_ffi_comm_free(self->comm);
    gs_ffi_arena_free(self->arena);
    gs_ffi_shards_free(self->shards);
    gs_ffi_plan_free(self->plan);
    gs_ffi_params_free(self->params);
    gs_ffi_device_free(self->device);
}

// Of parameter p (p + 1) times 1, 2 and 3: the mean is 2 · (p + 1).
static gs_status take_step(caller *self, int64_t step) {
    gs_ffi_reducer *reducer = self->reducer;
    GS_TRY(say(gs_ffi_reducer_begin(reducer, step), reducer));
    GS_TRY(say(gs_ffi_reducer_begin_pass(reducer, 1), reducer));
    for (size_t p = NUM_PARAMS; p-- > 0;) {
        float grad[COUNT];
        for (int i = 0; i < COUNT; i++) grad[i] = (float)((self->env->rank + 1) * (int)(p + 1));
        GS_TRY(say(gs_ffi_reducer_mark_from(reducer, p, grad, FP32), reducer));
    }
    GS_TRY(say(gs_ffi_reducer_end_pass(reducer), reducer));
    GS_TRY(say(gs_ffi_reducer_finish(reducer, 20 * SECOND), reducer));
    for (int k = 0; k < NUM_OPTIMIZERS; k++)
        GS_TRY(say(
            gs_ffi_optimizer_step(self->optimizers[k], self->values, reducer, k == 0 ? 0.5 : 1, 1),
            self->optimizers[k]));
    GS_TRY(say(gs_ffi_gather_start(self->gather, step), self->gather));
    for (size_t p = 0; p < NUM_PARAMS; p++)
        GS_TRY(say(gs_ffi_gather_wait(self->gather, p, 20 * SECOND), self->gather));
    return say(gs_ffi_gather_finish(self->gather, 20 * SECOND), self->gather);
}

// Of 1: momentum 2, then 0.5 · 2 + 2: −1 and −2.5 at a rate of a half. Without −2 and −4.
static gs_status check_values(const caller *self) {
    for (size_t p = 0; p < NUM_PARAMS; p++)
        for (int i = 0; i < COUNT; i++) {
            float value = ((const float *)self->values[p])[i];
            if (value != (optimizers[p] == 0 ? -2.5f : -4) * (float)(p + 1))
                return gs_error(GS_INTERNAL, "parameter %zu[%d] is %g", p, i, (double)value);
        }
    return gs_ok();
}

// Of what is owned, and nothing else, its optimizer has a state.
static gs_status check_states(const caller *self) {
    size_t owned = 0;
    for (int k = 0; k < NUM_OPTIMIZERS; k++) {
        gs_ffi_optimizer *optimizer = self->optimizers[k];
        const char *name = gs_ffi_optimizer_state_name(optimizer, 0);
        if ((name != NULL) != (k == 0)) return gs_error(GS_INTERNAL, "optimizer %d: %s", k, name);
        for (size_t s = 0; s < gs_ffi_optimizer_num_segments(optimizer); s++) {
            size_t param, first, count;
            GS_TRY(say(gs_ffi_optimizer_segment(optimizer, s, &param, &first, &count), optimizer));
            owned += count;
            const float *state = gs_ffi_optimizer_state(optimizer, 0, s);
            float wanted = 3 * (float)(param + 1);
            if (optimizers[param] != k || first + count > COUNT ||
                (state && (state[0] != wanted || state[count - 1] != wanted)) ||
                (k == 0) != (state != NULL))
                return gs_error(GS_INTERNAL, "optimizer %d: segment %zu of parameter %zu", k, s,
                                param);
        }
        for (size_t p = 0; p < NUM_PARAMS; p++)
            if (gs_ffi_optimizer_num_updates(optimizer)[p] != 2)
                return gs_error(GS_INTERNAL, "parameter %zu has other counts", p);
    }
    if (owned != gs_ffi_shards_elements(self->shards, self->env->rank))
        return gs_error(GS_INTERNAL, "%zu elements owned", owned);
    return gs_ok();
}

// The shards of two, in place: whoever was made for three keeps what it has.
static gs_status check_redo(caller *self) {
    int owners[NUM_PARAMS] = {0};
    bool is_flat = strcmp(self->env->arg, "flat") == 0;
    int code = gs_ffi_shards_redo(self->shards, 2, NULL, is_flat ? NULL : owners);
    GS_TRY(say(code, self->shards));
    if (gs_ffi_shards_elements(self->shards, 2))
        return gs_error(GS_INTERNAL, "a rank that is not there owns something");
    return gs_ok();
}

static gs_status body_train(const gs_rank_env *env) {
    caller self;
    gs_status status = open_caller(&self, env);
    for (int64_t step = 0; step < 2 && !status.code; step++) status = take_step(&self, step);
    if (!status.code) status = check_values(&self);
    if (!status.code) status = check_states(&self);
    if (!status.code) status = check_redo(&self);
    close_caller(&self);
    return status;
}

static void other_languages_train_with_a_part_on_each_rank(void **state) {
    (void)state;
    static const char *const rules[] = {"flat", "greedy", "sorted"};
    for (size_t i = 0; i < 3; i++) {
        gs_status status = gs_ranks_run("train", WORLD, rules[i], soon());
        if (status.code) fail_msg("%s: %s", rules[i], status.message);
    }
}

static void nothing_given_is_an_error(void **state) {
    (void)state;
    int numbers[2] = {0};
    size_t size;
    gs_ffi_params *params = gs_ffi_params_new();
    gs_ffi_plan *plan = gs_ffi_plan_new();
    gs_ffi_shards *shards = gs_ffi_shards_new();
    gs_ffi_comm *comm = gs_ffi_comm_new();
    gs_ffi_arena *arena = gs_ffi_arena_new();
    gs_ffi_reducer *reducer = gs_ffi_reducer_new();
    gs_ffi_gather *gather = gs_ffi_gather_new();
    gs_ffi_optimizer *optimizer = gs_ffi_optimizer_new();
    const int missing[] = {
        gs_ffi_params_deal(NULL, "greedy", 1, numbers),
        gs_ffi_params_deal(params, NULL, 1, numbers),
        gs_ffi_params_deal(params, "fair", 1, numbers),
        gs_ffi_params_deal(params, "greedy", 1, NULL),
        gs_ffi_plan_set_owners(NULL, numbers, 1),
        gs_ffi_plan_set_owners(plan, NULL, 1),
        gs_ffi_shards_set_owners(NULL, numbers, 1),
        gs_ffi_shards_set_owners(shards, NULL, 1),
        gs_ffi_shards_set_optimizers(NULL, numbers, 1),
        gs_ffi_shards_set_optimizers(shards, NULL, 1),
        gs_ffi_shards_open(NULL, params, plan, 1),
        gs_ffi_shards_open(shards, NULL, plan, 1),
        gs_ffi_shards_open(shards, params, NULL, 1),
        gs_ffi_shards_redo(NULL, 1, NULL, NULL),
        gs_ffi_reducer_set_shards(NULL, shards),
        gs_ffi_reducer_set_shards(reducer, NULL),
        gs_ffi_optimizer_set_shards(NULL, shards, 0, 0),
        gs_ffi_optimizer_set_shards(optimizer, NULL, 0, 0),
        gs_ffi_optimizer_segment(NULL, 0, &size, &size, &size),
        gs_ffi_gather_open(NULL, shards, comm, arena, 0, 0, SECOND),
        gs_ffi_gather_open(gather, NULL, comm, arena, 0, 0, SECOND),
        gs_ffi_gather_open(gather, shards, NULL, arena, 0, 0, SECOND),
        gs_ffi_gather_open(gather, shards, comm, NULL, 0, 0, SECOND),
        gs_ffi_gather_start(NULL, 0),
        gs_ffi_gather_wait(NULL, 0, SECOND),
        gs_ffi_gather_finish(NULL, SECOND),
    };
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        if (missing[i] != GS_INVALID_ARGUMENT) fail_msg("call %zu returned %d", i, missing[i]);
    const int closed[] = {
        gs_ffi_shards_open(shards, params, plan, 1),
        gs_ffi_shards_redo(shards, 1, NULL, NULL),
        gs_ffi_reducer_set_shards(reducer, shards),
        gs_ffi_optimizer_set_shards(optimizer, shards, 0, 0),
        gs_ffi_optimizer_segment(optimizer, 0, &size, &size, &size),
        gs_ffi_gather_open(gather, shards, comm, arena, 0, 0, SECOND),
        gs_ffi_gather_start(gather, 0),
        gs_ffi_gather_wait(gather, 0, SECOND),
        gs_ffi_gather_finish(gather, SECOND),
    };
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++)
        if (closed[i] != GS_FAILED_PRECONDITION) fail_msg("call %zu returned %d", i, closed[i]);
    assert_int_equal(gs_ffi_shards_elements(shards, 0), 0);
    assert_true(gs_ffi_shards_param_bytes(NULL) == SIZE_MAX);
    assert_true(gs_ffi_shards_param_offset(shards, 0) == SIZE_MAX);
    assert_int_equal(gs_ffi_optimizer_num_segments(optimizer), 0);
    assert_null(gs_ffi_optimizer_state_name(optimizer, 0));
    assert_null(gs_ffi_optimizer_state(NULL, 0, 0));
    assert_null(gs_ffi_optimizer_num_updates(optimizer));
    gs_ffi_optimizer_free(optimizer);
    gs_ffi_gather_free(gather);
    gs_ffi_gather_free(NULL);
    gs_ffi_reducer_free(reducer);
    gs_ffi_arena_free(arena);
    gs_ffi_comm_free(comm);
    gs_ffi_shards_free(shards);
    gs_ffi_shards_free(NULL);
    gs_ffi_plan_free(plan);
    gs_ffi_params_free(params);
}

static void what_does_not_fit_the_shards_is_refused(void **state) {
    (void)state;
    const int64_t shape[] = {COUNT};
    const int owners[] = {0, 7};
    gs_ffi_device *device = gs_ffi_device_new();
    gs_ffi_params *params = gs_ffi_params_new();
    gs_ffi_plan *plan = gs_ffi_plan_new();
    gs_ffi_shards *shards = gs_ffi_shards_new();
    gs_ffi_optimizer *optimizer = gs_ffi_optimizer_new();
    assert_int_equal(gs_ffi_device_open(device, "cpu"), 0);
    assert_int_equal(gs_ffi_params_add(params, "w", FP32, 1, shape), 0);
    assert_int_equal(gs_ffi_plan_open(plan, params, 0, 0, NULL), 0);
    assert_int_equal(gs_ffi_plan_set_owners(plan, owners, 1), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_shards_set_owners(shards, owners, 2), 0);
    assert_int_equal(gs_ffi_shards_open(shards, params, plan, 2), GS_INVALID_ARGUMENT);
    assert_int_equal(gs_ffi_shards_set_owners(shards, owners + 1, 1), 0);
    assert_int_equal(gs_ffi_shards_open(shards, params, plan, 2), GS_INVALID_ARGUMENT);
    assert_int_equal(gs_ffi_shards_set_owners(shards, owners, 1), 0);
    assert_int_equal(gs_ffi_shards_open(shards, params, plan, 2), 0);
    assert_int_equal(gs_ffi_shards_set_owners(shards, owners, 1), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_optimizer_set_shards(optimizer, shards, 2, 0), GS_INVALID_ARGUMENT);
    assert_int_equal(gs_ffi_optimizer_set_shards(optimizer, shards, 0, 1), GS_INVALID_ARGUMENT);
    assert_int_equal(gs_ffi_optimizer_set_shards(optimizer, shards, 1, 0), 0);
    assert_int_equal(gs_ffi_params_add(params, "v", FP32, 1, shape), 0);
    assert_int_equal(gs_ffi_optimizer_open(optimizer, "sgd", params, device), GS_INVALID_ARGUMENT);
    gs_ffi_optimizer_free(optimizer);
    gs_ffi_shards_free(shards);
    gs_ffi_plan_free(plan);
    gs_ffi_params_free(params);
    gs_ffi_device_free(device);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", body_train}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_languages_train_with_a_part_on_each_rank),
        cmocka_unit_test(nothing_given_is_an_error),
        cmocka_unit_test(what_does_not_fit_the_shards_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
