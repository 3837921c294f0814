// The interface for other languages, where each rank has a part of the optimizers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/multiprocess/ffi_caller.h"
#include "tests/support/asserts.h"
#include "tests/support/soon.h"

enum { NUM_PARAMS = 5, COUNT = 40, WORLD = 3, NUM_OPTIMIZERS = 2, GATHER_LANE = 1 };

static const int optimizers[NUM_PARAMS] = {0, 1, 0, 0, 1};

typedef struct sharded_caller {
    ffi_caller base;
    gs_ffi_shards *shards;
    gs_ffi_gather *gather;
    gs_ffi_optimizer *optimizers[NUM_OPTIMIZERS];
    size_t params_from;
    int errs;  // -1: nobody
    void *values[NUM_PARAMS];
} sharded_caller;

// `rule` "flat": parts of buckets; else whole parameters, each bucket of one owner.
static gs_status cut(sharded_caller *self, const char *rule) {
    int owners[NUM_PARAMS];
    GS_TRY(ffi_caller_add_params(&self->base, NUM_PARAMS, COUNT));
    if (strcmp(rule, "flat") != 0) {
        GS_TRY(
            ffi_say(gs_ffi_params_deal(self->base.params, rule, WORLD, owners), self->base.params));
        GS_TRY(
            ffi_say(gs_ffi_plan_set_owners(self->base.plan, owners, NUM_PARAMS), self->base.plan));
        GS_TRY(ffi_say(gs_ffi_shards_set_owners(self->shards, owners, NUM_PARAMS), self->shards));
    }
    GS_TRY(
        ffi_say(gs_ffi_shards_set_optimizers(self->shards, optimizers, NUM_PARAMS), self->shards));
    GS_TRY(
        ffi_say(gs_ffi_plan_open(self->base.plan, self->base.params, 0, 0, NULL), self->base.plan));
    return ffi_say(gs_ffi_shards_open(self->shards, self->base.params, self->base.plan, WORLD),
                   self->shards);
}

static gs_status open_memory(sharded_caller *self) {
    size_t bytes;
    int num_lanes;
    GS_TRY(ffi_say(gs_ffi_reducer_set_plan(self->base.reducer, self->base.params, self->base.plan),
                   self->base.reducer));
    GS_TRY(
        ffi_say(gs_ffi_reducer_set_shards(self->base.reducer, self->shards), self->base.reducer));
    GS_TRY(ffi_say(gs_ffi_reducer_arena_bytes(self->base.reducer, self->base.device, WORLD, &bytes),
                   self->base.reducer));
    GS_TRY(ffi_say(gs_ffi_reducer_lanes(self->base.reducer, self->base.device, WORLD, &num_lanes),
                   self->base.reducer));
    if (num_lanes != GATHER_LANE) return gs_error(GS_INTERNAL, "%d lanes", num_lanes);
    self->params_from = (bytes + 255) / 256 * 256;
    bytes = self->params_from + gs_ffi_shards_param_bytes(self->shards);
    return ffi_say(gs_ffi_arena_open(self->base.arena, self->base.device, bytes), self->base.arena);
}

static gs_status open_optimizers(sharded_caller *self) {
    for (int k = 0; k < NUM_OPTIMIZERS; k++) {
        gs_ffi_optimizer *optimizer = self->optimizers[k] = gs_ffi_optimizer_new();
        if (k == 0) GS_TRY(ffi_say(gs_ffi_optimizer_set(optimizer, "momentum", 0.5), optimizer));
        GS_TRY(
            ffi_say(gs_ffi_optimizer_set_shards(optimizer, self->shards, self->base.env->rank, k),
                    optimizer));
        GS_TRY(
            ffi_say(gs_ffi_optimizer_open(optimizer, "sgd", self->base.params, self->base.device),
                    optimizer));
    }
    return gs_ok();
}

static gs_status open_ranks(sharded_caller *self) {
    GS_TRY(ffi_caller_open_comm(&self->base, GATHER_LANE + 1));
    GS_TRY(ffi_caller_open_reducer(&self->base));
    // Rank `errs` a few bytes further on than parameters may lie.
    size_t from = self->params_from + (self->base.env->rank == self->errs ? 4 : 0);
    GS_TRY(ffi_say(gs_ffi_gather_open(self->gather, self->shards, self->base.comm, self->base.arena,
                                      from, GATHER_LANE, 20 * SECOND),
                   self->gather));
    char *params = (char *)gs_ffi_arena_data(self->base.arena) + self->params_from;
    for (size_t p = 0; p < NUM_PARAMS; p++)
        self->values[p] = params + gs_ffi_shards_param_offset(self->shards, p);
    return gs_ok();
}

static gs_status open_caller(sharded_caller *self, const gs_rank_env *env, int errs) {
    *self = (sharded_caller){
        .shards = gs_ffi_shards_new(), .gather = gs_ffi_gather_new(), .errs = errs};
    GS_TRY(ffi_caller_begin(&self->base, env));
    GS_TRY(cut(self, env->arg));
    GS_TRY(open_memory(self));
    GS_TRY(open_optimizers(self));
    return open_ranks(self);
}

static void close_caller(sharded_caller *self) {
    for (int k = 0; k < NUM_OPTIMIZERS; k++) gs_ffi_optimizer_free(self->optimizers[k]);
    gs_ffi_gather_free(self->gather);
    ffi_caller_close(&self->base);
    gs_ffi_shards_free(self->shards);
}

// Of parameter p (p + 1) times 1, 2 and 3: the mean is 2 · (p + 1).
static gs_status take_step(sharded_caller *self, int64_t step) {
    gs_ffi_reducer *reducer = self->base.reducer;
    GS_TRY(ffi_say(gs_ffi_reducer_begin(reducer, step), reducer));
    GS_TRY(ffi_say(gs_ffi_reducer_begin_pass(reducer, 1), reducer));
    for (size_t p = NUM_PARAMS; p-- > 0;) {
        float grad[COUNT];
        for (int i = 0; i < COUNT; i++)
            grad[i] = (float)((self->base.env->rank + 1) * (int)(p + 1));
        GS_TRY(ffi_say(gs_ffi_reducer_mark_from(reducer, p, grad, FFI_FP32), reducer));
    }
    GS_TRY(ffi_say(gs_ffi_reducer_end_pass(reducer), reducer));
    GS_TRY(ffi_say(gs_ffi_reducer_finish(reducer, 20 * SECOND), reducer));
    for (int k = 0; k < NUM_OPTIMIZERS; k++)
        GS_TRY(ffi_say(
            gs_ffi_optimizer_step(self->optimizers[k], self->values, reducer, k == 0 ? 0.5 : 1, 1),
            self->optimizers[k]));
    GS_TRY(ffi_say(gs_ffi_gather_start(self->gather, step), self->gather));
    for (size_t p = 0; p < NUM_PARAMS; p++)
        GS_TRY(ffi_say(gs_ffi_gather_wait(self->gather, p, 20 * SECOND), self->gather));
    return ffi_say(gs_ffi_gather_finish(self->gather, 20 * SECOND), self->gather);
}

// Of 1: momentum 2, then 0.5 · 2 + 2: −1 and −2.5 at a rate of a half. Without −2 and −4.
static gs_status check_values(const sharded_caller *self) {
    for (size_t p = 0; p < NUM_PARAMS; p++)
        for (int i = 0; i < COUNT; i++) {
            float value = ((const float *)self->values[p])[i];
            if (value != (optimizers[p] == 0 ? -2.5f : -4) * (float)(p + 1))
                return gs_error(GS_INTERNAL, "parameter %zu[%d] is %g", p, i, (double)value);
        }
    return gs_ok();
}

// Of what is owned, and nothing else, its optimizer has a state.
static gs_status check_states(const sharded_caller *self) {
    size_t owned = 0;
    for (int k = 0; k < NUM_OPTIMIZERS; k++) {
        gs_ffi_optimizer *optimizer = self->optimizers[k];
        const char *name = gs_ffi_optimizer_state_name(optimizer, 0);
        if ((name != NULL) != (k == 0)) return gs_error(GS_INTERNAL, "optimizer %d: %s", k, name);
        for (size_t s = 0; s < gs_ffi_optimizer_num_segments(optimizer); s++) {
            size_t param, first, count;
            GS_TRY(
                ffi_say(gs_ffi_optimizer_segment(optimizer, s, &param, &first, &count), optimizer));
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
    if (owned != gs_ffi_shards_elements(self->shards, self->base.env->rank))
        return gs_error(GS_INTERNAL, "%zu elements owned", owned);
    return gs_ok();
}

// The shards of two, in place: whoever was made for three keeps what it has.
static gs_status check_redo(sharded_caller *self) {
    int owners[NUM_PARAMS] = {0};
    bool is_flat = strcmp(self->base.env->arg, "flat") == 0;
    int code = gs_ffi_shards_redo(self->shards, 2, NULL, is_flat ? NULL : owners);
    GS_TRY(ffi_say(code, self->shards));
    if (gs_ffi_shards_elements(self->shards, 2))
        return gs_error(GS_INTERNAL, "a rank that is not there owns something");
    return gs_ok();
}

static gs_status body_train(const gs_rank_env *env) {
    sharded_caller self;
    gs_status status = open_caller(&self, env, -1);
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

static gs_status body_misplace(const gs_rank_env *env) {
    sharded_caller self;
    gs_status status = open_caller(&self, env, 1);
    close_caller(&self);
    return status;
}

static void a_gather_that_one_rank_misplaces_is_told_to_all(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[WORLD];
    assert_ok(gs_ranks_start(&ranks, "misplace", WORLD, "flat", NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, soon()));
    gs_ranks_destroy(ranks);
    for (int rank = 0; rank < WORLD; rank++) {
        assert_int_equal(statuses[rank].code, rank == 1 ? GS_INVALID_ARGUMENT : GS_ABORTED);
        if (!strstr(statuses[rank].message, "rank 1: gather: "))
            fail_msg("%s", statuses[rank].message);
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
    assert_int_equal(gs_ffi_params_add(params, "w", FFI_FP32, 1, shape), 0);
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
    assert_int_equal(gs_ffi_params_add(params, "v", FFI_FP32, 1, shape), 0);
    assert_int_equal(gs_ffi_optimizer_open(optimizer, "sgd", params, device), GS_INVALID_ARGUMENT);
    gs_ffi_optimizer_free(optimizer);
    gs_ffi_shards_free(shards);
    gs_ffi_plan_free(plan);
    gs_ffi_params_free(params);
    gs_ffi_device_free(device);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {
        {"train", body_train}, {"misplace", body_misplace}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_languages_train_with_a_part_on_each_rank),
        cmocka_unit_test(a_gather_that_one_rank_misplaces_is_told_to_all),
        cmocka_unit_test(nothing_given_is_an_error),
        cmocka_unit_test(what_does_not_fit_the_shards_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
