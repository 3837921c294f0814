// Hooks by the interface for other languages: the host's own, the library's, and averages of ranks
// that train apart.
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

// Of the hook of the host's own: buckets that were run and not finished.
typedef struct own_hook {
    struct {
        void *data;
        size_t count;
        double scale;
        int bucket;
    } started[FFI_PARAMS];
    int num_started, num_run, num_finished, num_cancelled;
    int num_exchanges;
    ffi_caller *caller;
} own_hook;

static own_hook foreign;  // of a rank

static int run_hook(void *ctx, int bucket, int is_last, int64_t step, void *data, size_t count,
                    int dtype, double scale) {
    own_hook *self = ctx;
    (void)is_last;
    (void)step;
    if (dtype != FFI_FP32 || self->num_started == FFI_PARAMS) return 13;
    self->started[self->num_started].data = data;
    self->started[self->num_started].count = count;
    self->started[self->num_started].scale = scale;
    self->started[self->num_started++].bucket = bucket;
    self->num_run++;
    return 0;
}

// The sum over both ranks, by the exchange.
static int finish_hook(void *ctx, int bucket, int64_t left_ns) {
    own_hook *self = ctx;
    char tag[32];
    float all[2 * 64];
    if (!self->num_started || self->started[0].bucket != bucket || self->started[0].count > 64)
        return 13;
    float *data = self->started[0].data;
    size_t count = self->started[0].count;
    snprintf(tag, sizeof tag, "sum/%d", self->num_exchanges++);
    int code = ffi_exchange(self->caller, tag, NULL, 0, data, count * sizeof(float), all, left_ns);
    if (code) return code;
    for (size_t i = 0; i < count; i++)
        data[i] = (all[i] + all[count + i]) * (float)self->started[0].scale;
    memmove(self->started, self->started + 1, sizeof self->started[0] * (FFI_PARAMS - 1));
    self->num_started--;
    self->num_finished++;
    return 0;
}

static void cancel_hook(void *ctx) {
    own_hook *self = ctx;
    self->num_started = 0;
    self->num_cancelled++;
}

static int set_foreign_hook(ffi_caller *self) {
    foreign.caller = self;
    return gs_ffi_reducer_set_hook(self->reducer, "by exchange", run_hook, finish_hook, cancel_hook,
                                   &foreign);
}

static gs_status body_hook(const gs_rank_env *env) {
    ffi_caller self;
    GS_TRY(ffi_caller_open(&self, env, set_foreign_hook));
    for (int64_t step = 0; step < 3; step++) GS_TRY(ffi_caller_step(&self, step));
    if (foreign.num_run != 9 || foreign.num_finished != 9 || foreign.num_cancelled)
        return gs_error(GS_INTERNAL, "%d run, %d finished, %d cancelled", foreign.num_run,
                        foreign.num_finished, foreign.num_cancelled);
    // A step that is left half-way: what was run is cancelled.
    GS_TRY(ffi_say(gs_ffi_reducer_begin(self.reducer, 3), self.reducer));
    GS_TRY(ffi_say(gs_ffi_reducer_begin_pass(self.reducer, 1), self.reducer));
    GS_TRY(ffi_say(gs_ffi_reducer_mark(self.reducer, 2), self.reducer));
    ffi_caller_close(&self);
    if (foreign.num_run != 10 || !foreign.num_cancelled || foreign.num_started)
        return gs_error(GS_INTERNAL, "%d run, %d cancelled", foreign.num_run,
                        foreign.num_cancelled);
    return gs_ok();
}

static void hook_of_the_hosts_own_moves_the_buckets(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("hook", 2, "", soon()));
}

// One of five elements, the largest; what is left out is added in the next step.
static int set_topk(ffi_caller *self) {
    int code = gs_ffi_reducer_choose_hook(self->reducer, "topk");
    if (!code) code = gs_ffi_reducer_set_hook_option(self->reducer, "ratio", 1);
    if (!code) code = gs_ffi_reducer_set_hook_option(self->reducer, "ratio", 0.2);
    return code ? code : gs_ffi_reducer_wrap_hook(self->reducer, "wrap_fp16");
}

static int set_powersgd(ffi_caller *self) {
    int code = gs_ffi_reducer_choose_hook(self->reducer, "powersgd");
    if (!code) code = gs_ffi_reducer_set_hook_option(self->reducer, "rank", 2);
    return code ? code : gs_ffi_reducer_set_hook_option(self->reducer, "start_step", 2);
}

// Two phases, each in a lane. Vectors travel as they are.
static gs_status body_powersgd(const gs_rank_env *env) {
    ffi_caller self;
    GS_TRY(ffi_caller_open(&self, env, set_powersgd));
    if (self.num_lanes != 2) return gs_error(GS_INTERNAL, "%d lanes", self.num_lanes);
    for (int step = 0; step < 4; step++) GS_TRY(ffi_caller_step(&self, step));
    ffi_caller_close(&self);
    return gs_ok();
}

static gs_status body_topk(const gs_rank_env *env) {
    ffi_caller self;
    GS_TRY(ffi_caller_open(&self, env, set_topk));
    // 1 2 3 4 5, then with what is owed 2 4 6 8 5.
    static const float sent[][FFI_COUNT] = {{0, 0, 0, 0, 5}, {0, 0, 0, 8, 0}};
    for (int step = 0; step < 2; step++) {
        GS_TRY(ffi_caller_reduce(&self, step));
        for (int i = 0; i < FFI_COUNT; i++)
            if (ffi_caller_grad(&self, 1)[i] != sent[step][i])
                return gs_error(GS_INTERNAL, "step %d, element %d: %g, not %g", step, i,
                                (double)ffi_caller_grad(&self, 1)[i], (double)sent[step][i]);
    }
    ffi_caller_close(&self);
    return gs_ok();
}

static void hooks_of_the_library_are_chosen_by_name(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("topk", 2, "", soon()));
    assert_ok(gs_ranks_run("powersgd", 2, "", soon()));
}

static int set_apart(ffi_caller *self) {
    int code = gs_ffi_reducer_choose_hook(self->reducer, "local_sgd");
    if (!code) code = gs_ffi_reducer_set_hook_option(self->reducer, "start_step", 0);
    return code ? code : gs_ffi_reducer_set_hook_option(self->reducer, "local_ranks", 1);
}

static gs_status check_value(const float *value, float wanted) {
    if (value[0] == wanted && value[FFI_COUNT - 1] == wanted) return gs_ok();
    return gs_error(GS_INTERNAL, "a parameter is %g, not %g", (double)value[0], (double)wanted);
}

// Gradients of parameter 0 are 1 and 2, of the others the same or none; every second step all is
// averaged.
static gs_status train_apart(ffi_caller *self, gs_ffi_averager *averager,
                             gs_ffi_optimizer *optimizer, void *const *values) {
    const unsigned char used[FFI_PARAMS] = {1, 0, 0};
    const float own = (float)(self->env->rank + 1);
    int num_ranks;
    for (int step = 0; step < 2; step++) {
        GS_TRY(ffi_caller_reduce(self, step));
        GS_TRY(ffi_say(gs_ffi_optimizer_step(optimizer, values, self->reducer, 0.5, 1), optimizer));
        GS_TRY(
            ffi_say(gs_ffi_averager_run(averager, step, used, &num_ranks, 20 * SECOND), averager));
        if (num_ranks != (step ? 0 : 2)) return gs_error(GS_INTERNAL, "of %d ranks", num_ranks);
        GS_TRY(check_value(values[0], step ? -0.75f - 0.5f * own : -0.75f));
    }
    GS_TRY(ffi_say(gs_ffi_averager_run_all(averager, 1, NULL, 20 * SECOND), averager));
    return check_value(values[0], -1.5f);
}

static gs_status body_apart(const gs_rank_env *env) {
    ffi_caller self;
    float memory[FFI_PARAMS][FFI_COUNT] = {{0}};
    void *values[] = {memory[0], memory[1], memory[2]};
    gs_ffi_averager *averager = gs_ffi_averager_new();
    gs_ffi_optimizer *optimizer = gs_ffi_optimizer_new();
    GS_TRY(ffi_caller_open(&self, env, set_apart));
    GS_TRY(ffi_say(gs_ffi_optimizer_open(optimizer, "sgd", self.params, self.device), optimizer));
    GS_TRY(ffi_say(gs_ffi_averager_add(averager, 2, 0), averager));
    GS_TRY(ffi_say(gs_ffi_averager_open(averager, self.params, values, self.comm, 20 * SECOND),
                   averager));
    if (gs_ffi_averager_add(averager, 4, 0) != GS_FAILED_PRECONDITION ||
        gs_ffi_averager_set_start(averager, 4) != GS_FAILED_PRECONDITION ||
        gs_ffi_reducer_choose_hook(self.reducer, "noop") != GS_FAILED_PRECONDITION ||
        gs_ffi_reducer_set_hook_option(self.reducer, "local_ranks", 2) != GS_FAILED_PRECONDITION ||
        gs_ffi_reducer_wrap_hook(self.reducer, "wrap_fp16") != GS_FAILED_PRECONDITION)
        return gs_error(GS_INTERNAL, "an open handle was changed");
    GS_TRY(train_apart(&self, averager, optimizer, values));
    gs_ffi_averager_free(averager);
    gs_ffi_optimizer_free(optimizer);
    ffi_caller_close(&self);
    return gs_ok();
}

static void ranks_that_train_apart_are_averaged(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("apart", 2, "", soon()));
}

// Rank 1 forgets the values of a parameter; rank 0, which needs no other to open, comes as far as
// the average.
static gs_status body_forgetful(const gs_rank_env *env) {
    ffi_caller self;
    float memory[FFI_PARAMS][FFI_COUNT] = {{0}};
    void *values[] = {memory[0], env->rank == 1 ? NULL : memory[1], memory[2]};
    int num_ranks;
    gs_ffi_averager *averager = gs_ffi_averager_new();
    gs_status status = ffi_caller_open(&self, env, set_apart);
    if (!status.code) status = ffi_say(gs_ffi_averager_add(averager, 2, 0), averager);
    if (!status.code)
        status = ffi_say(
            gs_ffi_averager_open(averager, self.params, values, self.comm, 20 * SECOND), averager);
    if (!status.code)
        status = ffi_say(gs_ffi_averager_run(averager, 0, NULL, &num_ranks, 20 * SECOND), averager);
    gs_ffi_averager_free(averager);
    ffi_caller_close(&self);
    return status;
}

static void values_that_one_rank_lacks_are_told_to_all(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[2];
    assert_ok(gs_ranks_start(&ranks, "forgetful", 2, "", NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, soon()));
    gs_ranks_destroy(ranks);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(statuses[rank].code, rank ? GS_INVALID_ARGUMENT : GS_ABORTED);
        if (!strstr(statuses[rank].message, "\" has no values"))
            fail_msg("%s", statuses[rank].message);
    }
}

static void hooks_that_are_not_there_are_refused(void **state) {
    (void)state;
    char text[200];
    gs_ffi_reducer *reducer = gs_ffi_reducer_new();
    assert_int_equal(gs_ffi_reducer_set_hook_option(reducer, "rank", 2), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_reducer_wrap_hook(reducer, "wrap_fp16"), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_reducer_choose_hook(reducer, "powersdg"), GS_INVALID_ARGUMENT);
    assert_int_equal(gs_ffi_reducer_choose_hook(reducer, "wrap_fp16"), GS_INVALID_ARGUMENT);
    assert_int_equal(gs_ffi_reducer_choose_hook(reducer, "powersgd"), 0);
    assert_int_equal(gs_ffi_reducer_wrap_hook(reducer, "fp16"), GS_INVALID_ARGUMENT);
    assert_int_equal(gs_ffi_reducer_set_hook_option(reducer, "ratio", 1), GS_INVALID_ARGUMENT);
    gs_ffi_error(reducer, text, sizeof text);
    assert_string_equal(text, "hook powersgd has no option \"ratio\"");
    gs_ffi_reducer_free(reducer);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"hook", body_hook},           {"topk", body_topk},
                                          {"powersgd", body_powersgd},   {"apart", body_apart},
                                          {"forgetful", body_forgetful}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hook_of_the_hosts_own_moves_the_buckets),
        cmocka_unit_test(hooks_of_the_library_are_chosen_by_name),
        cmocka_unit_test(ranks_that_train_apart_are_averaged),
        cmocka_unit_test(values_that_one_rank_lacks_are_told_to_all),
        cmocka_unit_test(hooks_that_are_not_there_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
