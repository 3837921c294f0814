// The interface for other languages (gradsync/ffi/ffi.h), as one that knows nothing else uses it:
// training, what trains, and on behind an error.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/comm/collective.h"
#include "gradsync/comm/comm_failure.h"
#include "tests/multiprocess/ffi_caller.h"
#include "tests/support/asserts.h"
#include "tests/support/soon.h"

static gs_status check_optimizer(ffi_caller *self) {
    float memory[FFI_PARAMS][FFI_COUNT] = {{0}};
    void *values[] = {memory[0], memory[1], memory[2]};
    gs_ffi_optimizer *optimizer = gs_ffi_optimizer_new();
    if (gs_ffi_optimizer_set(optimizer, "beta3", 1) != GS_INVALID_ARGUMENT)
        return gs_error(GS_INTERNAL, "beta3 was taken");
    GS_TRY(ffi_say(gs_ffi_optimizer_open(optimizer, "sgd", self->params, self->device), optimizer));
    GS_TRY(ffi_say(gs_ffi_optimizer_step(optimizer, values, self->reducer, 0.5, 1), optimizer));
    gs_ffi_optimizer_free(optimizer);
    if (memory[0][0] != -0.75f || memory[2][4] != -2)
        return gs_error(GS_INTERNAL, "updated to %g", (double)memory[0][0]);
    return gs_ok();
}

static gs_status check_blame(ffi_caller *self) {
    int kind, bucket, accused[2];
    int64_t step;
    char text[256];
    int code = gs_ffi_reducer_mark(self->reducer, 1);
    if (code != GS_FAILED_PRECONDITION || gs_ffi_error(self->reducer, text, sizeof text) != code ||
        !strstr(text, "\"p1\" marked ready outside a pass"))
        return gs_error(GS_INTERNAL, "code %d: %s", code, text);
    if (gs_ffi_comm_failure(self->comm, &kind, &step, &bucket, accused, 2) != 0 ||
        kind != GS_COMM_FAILURE_ABORTED)
        return gs_error(GS_INTERNAL, "a failure of kind %d", kind);
    return gs_ok();
}

static gs_status body_train(const gs_rank_env *env) {
    ffi_caller self;
    gs_ffi_plan *other = gs_ffi_plan_new();
    GS_TRY(ffi_caller_open(&self, env, NULL));
    for (int64_t step = 0; step < 3; step++) GS_TRY(ffi_caller_step(&self, step));
    GS_TRY(check_optimizer(&self));
    // All ranks follow the order of rank 0.
    size_t order[FFI_PARAMS];
    GS_TRY(
        ffi_say(gs_ffi_comm_run(self.comm, GS_BROADCAST, gs_ffi_reducer_ready_order(self.reducer),
                                order, FFI_PARAMS, GS_I64, 0, 0, 20 * SECOND),
                self.comm));
    GS_TRY(ffi_say(gs_ffi_plan_open(other, self.params, 0, 0, order), other));
    size_t members[FFI_PARAMS], num_buckets = gs_ffi_plan_num_buckets(other);
    if (num_buckets < 1 || !gs_ffi_plan_bucket(other, 0, members, FFI_PARAMS) ||
        members[0] != order[0])
        return gs_error(GS_INTERNAL, "a plan of %zu buckets", num_buckets);
    GS_TRY(ffi_say(gs_ffi_reducer_replan(self.reducer, other, 20 * SECOND), self.reducer));
    GS_TRY(ffi_caller_step(&self, 3));
    // Where both have finished: an error ends the step on all ranks.
    char mine = 0, all[2];
    if (ffi_exchange(&self, "finished", NULL, 0, &mine, 1, all, 20 * SECOND))
        return gs_error(GS_INTERNAL, "the exchange failed");
    if (env->rank == 0) GS_TRY(check_blame(&self));
    gs_ffi_plan_free(other);
    ffi_caller_close(&self);
    return gs_ok();
}

static void other_languages_train(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("train", 2, "", soon()));
}

// Parameter 2 is frozen, then all train again.
static gs_status body_freeze(const gs_rank_env *env) {
    ffi_caller self;
    float memory[FFI_PARAMS][FFI_COUNT] = {{0}};
    void *values[] = {memory[0], memory[1], memory[2]};
    const unsigned char flags[FFI_PARAMS] = {1, 1, 0}, none[FFI_PARAMS] = {0};
    gs_ffi_optimizer *optimizer = gs_ffi_optimizer_new();
    int changed = 0, again = 1;
    GS_TRY(ffi_caller_open(&self, env, NULL));
    if (gs_ffi_optimizer_set_trainable(optimizer, flags) != GS_FAILED_PRECONDITION)
        return gs_error(GS_INTERNAL, "an optimizer that is not open took flags");
    GS_TRY(ffi_say(gs_ffi_optimizer_open(optimizer, "sgd", self.params, self.device), optimizer));
    GS_TRY(ffi_say(gs_ffi_reducer_set_trainable(self.reducer, flags, &changed, 20 * SECOND),
                   self.reducer));
    GS_TRY(ffi_say(gs_ffi_reducer_set_trainable(self.reducer, flags, &again, 20 * SECOND),
                   self.reducer));
    if (!changed || again) return gs_error(GS_INTERNAL, "changed %d, then %d", changed, again);
    GS_TRY(ffi_say(gs_ffi_optimizer_set_trainable(optimizer, flags), optimizer));
    GS_TRY(ffi_say(gs_ffi_reducer_begin(self.reducer, 0), self.reducer));
    GS_TRY(ffi_say(gs_ffi_reducer_begin_pass(self.reducer, 1), self.reducer));
    for (size_t p = 2; p-- > 0;) {
        for (int i = 0; i < FFI_COUNT; i++)
            ffi_caller_grad(&self, p)[i] = (float)(self.env->rank + 1);
        GS_TRY(ffi_say(gs_ffi_reducer_mark(self.reducer, p), self.reducer));
    }
    GS_TRY(ffi_say(gs_ffi_reducer_end_pass(self.reducer), self.reducer));
    GS_TRY(ffi_say(gs_ffi_reducer_finish(self.reducer, 20 * SECOND), self.reducer));
    GS_TRY(ffi_say(gs_ffi_optimizer_step(optimizer, values, self.reducer, 0.5, 1), optimizer));
    if (memory[0][0] != -0.75f || memory[2][0] != 0 || gs_ffi_reducer_was_used(self.reducer, 2))
        return gs_error(GS_INTERNAL, "updated to %g and %g", (double)memory[0][0],
                        (double)memory[2][0]);
    GS_TRY(
        ffi_say(gs_ffi_reducer_set_trainable(self.reducer, NULL, NULL, 20 * SECOND), self.reducer));
    GS_TRY(ffi_say(gs_ffi_optimizer_set_trainable(optimizer, NULL), optimizer));
    GS_TRY(ffi_caller_step(&self, 1));
    GS_TRY(ffi_say(gs_ffi_optimizer_step(optimizer, values, self.reducer, 0.5, 1), optimizer));
    if (memory[2][0] != -2) return gs_error(GS_INTERNAL, "updated to %g", (double)memory[2][0]);
    // What one refuses ends the communicator for all: no rank may still be in its step.
    char mine = 1, all[2];
    GS_TRY(gs_rank_exchange(env->exchange, "trained", NULL, 0, &mine, sizeof mine, all, soon()));
    if (gs_ffi_reducer_set_trainable(self.reducer, none, NULL, 20 * SECOND) != GS_INVALID_ARGUMENT)
        return gs_error(GS_INTERNAL, "all were frozen");
    gs_ffi_optimizer_free(optimizer);
    ffi_caller_close(&self);
    return gs_ok();
}

static void what_trains_is_told_between_steps(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("freeze", 2, "", soon()));
}

// What is refused has no effect: the handle is in use.
static gs_status check_settings_refused(ffi_caller *self) {
    const int codes[] = {
        gs_ffi_device_set_threads(self->device, 3),
        gs_ffi_comm_set_rank(self->comm, 1, 1 << 30),
        gs_ffi_comm_set_exchange(self->comm, NULL, NULL),
        gs_ffi_comm_set_interrupt(self->comm, NULL, NULL),
        gs_ffi_reducer_set_plan(self->reducer, self->params, self->plan),
        gs_ffi_reducer_set_passes(self->reducer, 7),
        gs_ffi_reducer_choose_hook(self->reducer, "noop"),
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i] != GS_FAILED_PRECONDITION)
            return gs_error(GS_INTERNAL, "setting %zu returned %d", i, codes[i]);
    return gs_ok();
}

// An optimizer of other parameters would read past the gradients.
static gs_status check_other_optimizers(ffi_caller *self) {
    const int64_t shape[] = {1000};
    float memory[1000] = {0};
    void *values[] = {memory, memory, memory};
    void *missing[] = {memory, NULL, memory};
    gs_ffi_params *others = gs_ffi_params_new();
    for (int p = 0; p < FFI_PARAMS; p++) {
        char name[8];
        snprintf(name, sizeof name, "o%d", p);
        GS_TRY(ffi_say(gs_ffi_params_add(others, name, FFI_FP32, 1, shape), others));
    }
    gs_ffi_optimizer *optimizer = gs_ffi_optimizer_new(), *own = gs_ffi_optimizer_new();
    GS_TRY(ffi_say(gs_ffi_optimizer_open(optimizer, "sgd", others, self->device), optimizer));
    GS_TRY(ffi_say(gs_ffi_optimizer_open(own, "sgd", self->params, self->device), own));
    int other = gs_ffi_optimizer_step(optimizer, values, self->reducer, 1, 1);
    int without = gs_ffi_optimizer_step(own, missing, self->reducer, 1, 1);
    int set = gs_ffi_optimizer_set(own, "eps", 1);
    gs_ffi_optimizer_free(own);
    gs_ffi_optimizer_free(optimizer);
    gs_ffi_params_free(others);
    if (other != GS_INVALID_ARGUMENT || without != GS_INVALID_ARGUMENT ||
        set != GS_FAILED_PRECONDITION || memory[0] != 0)
        return gs_error(GS_INTERNAL, "codes %d, %d, %d", other, without, set);
    return gs_ok();
}

// An error, and on with another communicator over the same memory.
static gs_status body_reset(const gs_rank_env *env) {
    ffi_caller self;
    float value = 0;
    void *values[] = {&value, &value, &value};
    GS_TRY(ffi_caller_open(&self, env, NULL));
    gs_ffi_optimizer *early = gs_ffi_optimizer_new();
    GS_TRY(ffi_say(gs_ffi_optimizer_open(early, "sgd", self.params, self.device), early));
    if (gs_ffi_optimizer_step(early, values, self.reducer, 1, 1) != GS_FAILED_PRECONDITION)
        return gs_error(GS_INTERNAL, "an update by no result");
    gs_ffi_optimizer_free(early);
    GS_TRY(check_settings_refused(&self));
    GS_TRY(ffi_caller_step(&self, 0));
    GS_TRY(check_other_optimizers(&self));
    char mine = 0, all[2];
    if (ffi_exchange(&self, "finished", NULL, 0, &mine, 1, all, 20 * SECOND))
        return gs_error(GS_INTERNAL, "the exchange failed");
    gs_ffi_comm_abort(self.comm, NULL);
    if (ffi_caller_step(&self, 1).code != GS_ABORTED) return gs_error(GS_INTERNAL, "no abort");

    gs_ffi_comm *next = gs_ffi_comm_new();
    GS_TRY(ffi_say(gs_ffi_comm_set_rank(next, env->rank, env->world_size), next));
    GS_TRY(ffi_say(gs_ffi_comm_set_generation(next, 1), next));
    GS_TRY(ffi_say(gs_ffi_comm_set_exchange(next, ffi_exchange, &self), next));
    GS_TRY(ffi_say(gs_ffi_comm_wait_ended(self.comm, 20 * SECOND), self.comm));
    GS_TRY(ffi_say(gs_ffi_comm_open(next, self.device, self.arena, 20 * SECOND), next));
    GS_TRY(ffi_say(gs_ffi_reducer_reset(self.reducer, next, 20 * SECOND), self.reducer));
    gs_ffi_comm_free(self.comm);
    self.comm = next;
    GS_TRY(ffi_caller_step(&self, 1));
    // Nobody leaves while the other may still be at its step.
    GS_TRY(ffi_say(gs_ffi_comm_run(next, GS_BARRIER, NULL, NULL, 0, 0, 0, 0, 20 * SECOND), next));
    ffi_caller_close(&self);
    return gs_ok();
}

static void error_is_left_with_another_communicator(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("reset", 2, "", soon()));
}

// ---- what rank 1 alone gets wrong in a call that both make

static bool errs(const ffi_caller *self) {
    return self->env->rank == 1;
}

static gs_status open_in_an_arena_of_none(ffi_caller *self) {
    gs_ffi_reducer *reducer = gs_ffi_reducer_new();
    int code = gs_ffi_reducer_set_plan(reducer, self->params, self->plan);
    if (!code)
        code = gs_ffi_reducer_open(reducer, self->comm, errs(self) ? NULL : self->arena,
                                   self->device, 20 * SECOND);
    gs_status status = ffi_say(code, reducer);
    gs_ffi_reducer_free(reducer);
    return status;
}

static gs_status replan_by_nothing(ffi_caller *self) {
    return ffi_say(
        gs_ffi_reducer_replan(self->reducer, errs(self) ? NULL : self->plan, 20 * SECOND),
        self->reducer);
}

static gs_status reset_what_is_not_open(ffi_caller *self) {
    gs_ffi_reducer *reducer = errs(self) ? gs_ffi_reducer_new() : self->reducer;
    gs_status status = ffi_say(gs_ffi_reducer_reset(reducer, self->comm, 20 * SECOND), reducer);
    if (errs(self)) gs_ffi_reducer_free(reducer);
    return status;
}

static gs_status with_averager(ffi_caller *self,
                               int (*call)(const ffi_caller *self, gs_ffi_averager *averager)) {
    float memory[FFI_PARAMS][FFI_COUNT] = {{0}};
    void *values[] = {memory[0], memory[1], memory[2]};
    gs_ffi_averager *averager = gs_ffi_averager_new();
    int code = gs_ffi_averager_add(averager, 2, 0);
    if (!code) code = gs_ffi_averager_open(averager, self->params, values, self->comm, 20 * SECOND);
    if (!code) code = call(self, averager);
    gs_status status = ffi_say(code, averager);
    gs_ffi_averager_free(averager);
    return status;
}

static int run_for_nobody(const ffi_caller *self, gs_ffi_averager *averager) {
    int num_ranks;
    return gs_ffi_averager_run(averager, 0, NULL, errs(self) ? NULL : &num_ranks, 20 * SECOND);
}

static gs_status average_for_nobody(ffi_caller *self) {
    return with_averager(self, run_for_nobody);
}

static int reset_for_nobody(const ffi_caller *self, gs_ffi_averager *averager) {
    int64_t step;
    return gs_ffi_averager_reset(averager, self->comm, errs(self) ? NULL : &step, 20 * SECOND);
}

static gs_status ask_for_no_step(ffi_caller *self) {
    return with_averager(self, reset_for_nobody);
}

static const struct {
    gs_status (*call)(ffi_caller *self);
    const char *words;
} lone_errors[] = {{open_in_an_arena_of_none, "rank 1: arena: none given"},
                   {replan_by_nothing, "rank 1: plan: none given"},
                   {reset_what_is_not_open, "rank 1: the reducer is not open"},
                   {average_for_nobody, "rank 1: room for the number of ranks: none given"},
                   {ask_for_no_step, "rank 1: room for a step: none given"}};

static gs_status body_err(const gs_rank_env *env) {
    for (size_t i = 0; i < sizeof lone_errors / sizeof *lone_errors; i++) {
        ffi_caller self;
        gs_status status = ffi_caller_begin(&self, env);
        gs_ffi_comm_set_generation(self.comm, (unsigned)i + 1);
        if (!status.code) status = ffi_caller_open_all(&self, NULL);
        if (!status.code) status = lone_errors[i].call(&self);
        bool is_told = strstr(status.message, lone_errors[i].words);
        if (!is_told || errs(&self) == (status.code == GS_ABORTED))
            return gs_error(GS_INTERNAL, "call %zu: %s", i, status.message);
        ffi_caller_close(&self);
    }
    return gs_ok();
}

static void what_one_rank_gets_wrong_both_are_told(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("err", 2, "", gs_deadline_in_seconds(100)));
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", body_train},
                                          {"freeze", body_freeze},
                                          {"reset", body_reset},
                                          {"err", body_err},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_languages_train),
        cmocka_unit_test(what_trains_is_told_between_steps),
        cmocka_unit_test(error_is_left_with_another_communicator),
        cmocka_unit_test(what_one_rank_gets_wrong_both_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
