// The interface for other languages (gradsync/ffi/ffi.h), as one that knows nothing else uses it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/comm/collective.h"
#include "gradsync/comm/comm_failure.h"
#include "gradsync/ffi/ffi.h"
#include "tests/support/asserts.h"
#include "tests/support/ranks.h"
#include "tests/support/soon.h"

#define SECOND INT64_C(1000000000)

enum { NUM_PARAMS = 3, COUNT = 5, FP32 = 1, FP64 = 2 };

typedef struct caller {
    const gs_rank_env *env;
    gs_ffi_device *device;
    gs_ffi_arena *arena;
    gs_ffi_params *params;
    gs_ffi_plan *plan;
    gs_ffi_comm *comm;
    gs_ffi_reducer *reducer;
    // Of the hook of its own: buckets that were run and not finished.
    struct {
        void *data;
        size_t count;
        double scale;
        int bucket;
    } started[NUM_PARAMS];
    int num_started, num_run, num_finished, num_cancelled;
    int num_exchanges, num_lanes;
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

static int run_hook(void *ctx, int bucket, int is_last, int64_t step, void *data, size_t count,
                    int dtype, double scale) {
    caller *self = ctx;
    (void)is_last;
    (void)step;
    if (dtype != FP32 || self->num_started == NUM_PARAMS) return 13;
    self->started[self->num_started].data = data;
    self->started[self->num_started].count = count;
    self->started[self->num_started].scale = scale;
    self->started[self->num_started++].bucket = bucket;
    self->num_run++;
    return 0;
}

// The sum over both ranks, by the exchange.
static int finish_hook(void *ctx, int bucket, int64_t left_ns) {
    caller *self = ctx;
    char tag[32];
    float all[2 * 64];
    if (!self->num_started || self->started[0].bucket != bucket || self->started[0].count > 64)
        return 13;
    float *data = self->started[0].data;
    size_t count = self->started[0].count;
    snprintf(tag, sizeof tag, "sum/%d", self->num_exchanges++);
    int code = exchange(ctx, tag, NULL, 0, data, count * sizeof(float), all, left_ns);
    if (code) return code;
    for (size_t i = 0; i < count; i++)
        data[i] = (all[i] + all[count + i]) * (float)self->started[0].scale;
    memmove(self->started, self->started + 1, sizeof self->started[0] * (NUM_PARAMS - 1));
    self->num_started--;
    self->num_finished++;
    return 0;
}

static void cancel_hook(void *ctx) {
    caller *self = ctx;
    self->num_started = 0;
    self->num_cancelled++;
}

static gs_status open_memory(caller *self) {
    size_t bytes;
    const int64_t shape[] = {COUNT};
    GS_TRY(say(gs_ffi_device_open(self->device, "cpu"), self->device));
    for (int p = 0; p < NUM_PARAMS; p++) {
        char name[8];
        snprintf(name, sizeof name, "p%d", p);
        GS_TRY(say(gs_ffi_params_add(self->params, name, FP32, 1, shape), self->params));
    }
    // One bucket for each.
    GS_TRY(say(gs_ffi_plan_open(self->plan, self->params, 4, 4, NULL), self->plan));
    GS_TRY(say(gs_ffi_reducer_set_plan(self->reducer, self->params, self->plan), self->reducer));
    GS_TRY(
        say(gs_ffi_reducer_arena_bytes(self->reducer, self->device, self->env->world_size, &bytes),
            self->reducer));
    GS_TRY(say(gs_ffi_reducer_lanes(self->reducer, self->device, self->env->world_size,
                                    &self->num_lanes),
               self->reducer));
    return say(gs_ffi_arena_open(self->arena, self->device, bytes), self->arena);
}

// What a test wants of the reducer, before it is measured.
typedef int (*set_reducer)(caller *self);

static gs_status open_caller(caller *self, const gs_rank_env *env, set_reducer set) {
    *self = (caller){.env = env,
                     .device = gs_ffi_device_new(),
                     .arena = gs_ffi_arena_new(),
                     .params = gs_ffi_params_new(),
                     .plan = gs_ffi_plan_new(),
                     .comm = gs_ffi_comm_new(),
                     .reducer = gs_ffi_reducer_new()};
    if (set) GS_TRY(say(set(self), self->reducer));
    GS_TRY(open_memory(self));
    GS_TRY(say(gs_ffi_comm_set_rank(self->comm, env->rank, env->world_size), self->comm));
    GS_TRY(say(gs_ffi_comm_set_lanes(self->comm, self->num_lanes), self->comm));
    GS_TRY(say(gs_ffi_comm_set_exchange(self->comm, exchange, self), self->comm));
    GS_TRY(say(gs_ffi_comm_open(self->comm, self->device, self->arena, 20 * SECOND), self->comm));
    return say(
        gs_ffi_reducer_open(self->reducer, self->comm, self->arena, self->device, 20 * SECOND),
        self->reducer);
}

static void close_caller(caller *self) {
    gs_ffi_reducer_free(self->reducer);
    gs_ffi_comm_free(self->comm);
    gs_ffi_arena_free(self->arena);
    gs_ffi_plan_free(self->plan);
    gs_ffi_params_free(self->params);
    gs_ffi_device_free(self->device);
}

static float *grad_of(const caller *self, size_t param) {
    return (float *)(void *)((char *)gs_ffi_arena_data(self->arena) +
                             gs_ffi_reducer_grad_offset(self->reducer, param));
}

// Parameter 0 in its place, 1 from doubles elsewhere, 2 is used by rank 0 alone.
static gs_status reduce_step(caller *self, int64_t step) {
    gs_ffi_reducer *reducer = self->reducer;
    const double elsewhere[COUNT] = {1, 2, 3, 4, 5};
    GS_TRY(say(gs_ffi_reducer_begin(reducer, step), reducer));
    GS_TRY(say(gs_ffi_reducer_begin_pass(reducer, 3), reducer));
    if (self->env->rank == 0) {
        for (int i = 0; i < COUNT; i++) grad_of(self, 2)[i] = 8;
        GS_TRY(say(gs_ffi_reducer_mark(reducer, 2), reducer));
    } else {
        GS_TRY(say(gs_ffi_reducer_mark_unused(reducer, 2), reducer));
    }
    GS_TRY(say(gs_ffi_reducer_mark_from(reducer, 1, elsewhere, FP64), reducer));
    for (int i = 0; i < COUNT; i++) grad_of(self, 0)[i] = (float)(self->env->rank + 1);
    GS_TRY(say(gs_ffi_reducer_mark(reducer, 0), reducer));
    GS_TRY(say(gs_ffi_reducer_end_pass(reducer), reducer));
    return say(gs_ffi_reducer_finish(reducer, 20 * SECOND), reducer);
}

static gs_status take_step(caller *self, int64_t step) {
    const gs_ffi_reducer *reducer = self->reducer;
    GS_TRY(reduce_step(self, step));
    if (grad_of(self, 0)[4] != 1.5f || grad_of(self, 1)[4] != 5 || grad_of(self, 2)[0] != 4)
        return gs_error(GS_INTERNAL, "means are %g, %g and %g", (double)grad_of(self, 0)[4],
                        (double)grad_of(self, 1)[4], (double)grad_of(self, 2)[0]);
    if (gs_ffi_reducer_samples(reducer) != 6 || !gs_ffi_reducer_is_finite(reducer) ||
        !gs_ffi_reducer_was_used(reducer, 2) || gs_ffi_reducer_was_used(reducer, NUM_PARAMS))
        return gs_error(GS_INTERNAL, "the result is wrong");
    return gs_ok();
}

static gs_status check_optimizer(caller *self) {
    float memory[NUM_PARAMS][COUNT] = {{0}};
    void *values[] = {memory[0], memory[1], memory[2]};
    gs_ffi_optimizer *optimizer = gs_ffi_optimizer_new();
    if (gs_ffi_optimizer_set(optimizer, "beta3", 1) != GS_INVALID_ARGUMENT)
        return gs_error(GS_INTERNAL, "beta3 was taken");
    GS_TRY(say(gs_ffi_optimizer_open(optimizer, "sgd", self->params, self->device), optimizer));
    GS_TRY(say(gs_ffi_optimizer_step(optimizer, values, self->reducer, 0.5, 1), optimizer));
    gs_ffi_optimizer_free(optimizer);
    if (memory[0][0] != -0.75f || memory[2][4] != -2)
        return gs_error(GS_INTERNAL, "updated to %g", (double)memory[0][0]);
    return gs_ok();
}

static gs_status check_blame(caller *self) {
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
    caller self;
    gs_ffi_plan *other = gs_ffi_plan_new();
    GS_TRY(open_caller(&self, env, NULL));
    for (int64_t step = 0; step < 3; step++) GS_TRY(take_step(&self, step));
    GS_TRY(check_optimizer(&self));
    // All ranks follow the order of rank 0.
    size_t order[NUM_PARAMS];
    GS_TRY(say(gs_ffi_comm_run(self.comm, GS_BROADCAST, gs_ffi_reducer_ready_order(self.reducer),
                               order, NUM_PARAMS, GS_I64, 0, 0, 20 * SECOND),
               self.comm));
    GS_TRY(say(gs_ffi_plan_open(other, self.params, 0, 0, order), other));
    size_t members[NUM_PARAMS], num_buckets = gs_ffi_plan_num_buckets(other);
    if (num_buckets < 1 || !gs_ffi_plan_bucket(other, 0, members, NUM_PARAMS) ||
        members[0] != order[0])
        return gs_error(GS_INTERNAL, "a plan of %zu buckets", num_buckets);
    GS_TRY(say(gs_ffi_reducer_replan(self.reducer, other, 20 * SECOND), self.reducer));
    GS_TRY(take_step(&self, 3));
    // Where both have finished: an error ends the step on all ranks.
    char mine = 0, all[2];
    if (exchange(&self, "finished", NULL, 0, &mine, 1, all, 20 * SECOND))
        return gs_error(GS_INTERNAL, "the exchange failed");
    if (env->rank == 0) GS_TRY(check_blame(&self));
    gs_ffi_plan_free(other);
    close_caller(&self);
    return gs_ok();
}

static void other_languages_train(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("train", 2, "", soon()));
}

static int set_foreign_hook(caller *self) {
    return gs_ffi_reducer_set_hook(self->reducer, "by exchange", run_hook, finish_hook, cancel_hook,
                                   self);
}

static gs_status body_hook(const gs_rank_env *env) {
    caller self;
    GS_TRY(open_caller(&self, env, set_foreign_hook));
    for (int64_t step = 0; step < 3; step++) GS_TRY(take_step(&self, step));
    if (self.num_run != 9 || self.num_finished != 9 || self.num_cancelled)
        return gs_error(GS_INTERNAL, "%d run, %d finished, %d cancelled", self.num_run,
                        self.num_finished, self.num_cancelled);
    // A step that is left half-way: what was run is cancelled.
    GS_TRY(say(gs_ffi_reducer_begin(self.reducer, 3), self.reducer));
    GS_TRY(say(gs_ffi_reducer_begin_pass(self.reducer, 1), self.reducer));
    GS_TRY(say(gs_ffi_reducer_mark(self.reducer, 2), self.reducer));
    close_caller(&self);
    if (self.num_run != 10 || !self.num_cancelled || self.num_started)
        return gs_error(GS_INTERNAL, "%d run, %d cancelled", self.num_run, self.num_cancelled);
    return gs_ok();
}

static void hook_of_the_hosts_own_moves_the_buckets(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("hook", 2, "", soon()));
}

// One of five elements, the largest; what is left out is added in the next step.
static int set_topk(caller *self) {
    int code = gs_ffi_reducer_choose_hook(self->reducer, "topk");
    if (!code) code = gs_ffi_reducer_set_hook_option(self->reducer, "ratio", 1);
    if (!code) code = gs_ffi_reducer_set_hook_option(self->reducer, "ratio", 0.2);
    return code ? code : gs_ffi_reducer_wrap_hook(self->reducer, "wrap_fp16");
}

static int set_powersgd(caller *self) {
    int code = gs_ffi_reducer_choose_hook(self->reducer, "powersgd");
    if (!code) code = gs_ffi_reducer_set_hook_option(self->reducer, "rank", 2);
    return code ? code : gs_ffi_reducer_set_hook_option(self->reducer, "start_step", 2);
}

// Two phases, each in a lane. Vectors travel as they are.
static gs_status body_powersgd(const gs_rank_env *env) {
    caller self;
    GS_TRY(open_caller(&self, env, set_powersgd));
    if (self.num_lanes != 2) return gs_error(GS_INTERNAL, "%d lanes", self.num_lanes);
    for (int step = 0; step < 4; step++) GS_TRY(take_step(&self, step));
    close_caller(&self);
    return gs_ok();
}

static gs_status body_topk(const gs_rank_env *env) {
    caller self;
    GS_TRY(open_caller(&self, env, set_topk));
    // 1 2 3 4 5, then with what is owed 2 4 6 8 5.
    static const float sent[][COUNT] = {{0, 0, 0, 0, 5}, {0, 0, 0, 8, 0}};
    for (int step = 0; step < 2; step++) {
        GS_TRY(reduce_step(&self, step));
        for (int i = 0; i < COUNT; i++)
            if (grad_of(&self, 1)[i] != sent[step][i])
                return gs_error(GS_INTERNAL, "step %d, element %d: %g, not %g", step, i,
                                (double)grad_of(&self, 1)[i], (double)sent[step][i]);
    }
    close_caller(&self);
    return gs_ok();
}

static void hooks_of_the_library_are_chosen_by_name(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("topk", 2, "", soon()));
    assert_ok(gs_ranks_run("powersgd", 2, "", soon()));
}

// Parameter 2 is frozen, then all train again.
static gs_status body_freeze(const gs_rank_env *env) {
    caller self;
    float memory[NUM_PARAMS][COUNT] = {{0}};
    void *values[] = {memory[0], memory[1], memory[2]};
    const unsigned char flags[NUM_PARAMS] = {1, 1, 0}, none[NUM_PARAMS] = {0};
    gs_ffi_optimizer *optimizer = gs_ffi_optimizer_new();
    int changed = 0, again = 1;
    GS_TRY(open_caller(&self, env, NULL));
    if (gs_ffi_optimizer_set_trainable(optimizer, flags) != GS_FAILED_PRECONDITION)
        return gs_error(GS_INTERNAL, "an optimizer that is not open took flags");
    GS_TRY(say(gs_ffi_optimizer_open(optimizer, "sgd", self.params, self.device), optimizer));
    GS_TRY(say(gs_ffi_reducer_set_trainable(self.reducer, flags, &changed, 20 * SECOND), self.reducer));
    GS_TRY(say(gs_ffi_reducer_set_trainable(self.reducer, flags, &again, 20 * SECOND), self.reducer));
    if (!changed || again) return gs_error(GS_INTERNAL, "changed %d, then %d", changed, again);
    GS_TRY(say(gs_ffi_optimizer_set_trainable(optimizer, flags), optimizer));
    GS_TRY(say(gs_ffi_reducer_begin(self.reducer, 0), self.reducer));
    GS_TRY(say(gs_ffi_reducer_begin_pass(self.reducer, 1), self.reducer));
    for (size_t p = 2; p-- > 0;) {
        for (int i = 0; i < COUNT; i++) grad_of(&self, p)[i] = (float)(self.env->rank + 1);
        GS_TRY(say(gs_ffi_reducer_mark(self.reducer, p), self.reducer));
    }
    GS_TRY(say(gs_ffi_reducer_end_pass(self.reducer), self.reducer));
    GS_TRY(say(gs_ffi_reducer_finish(self.reducer, 20 * SECOND), self.reducer));
    GS_TRY(say(gs_ffi_optimizer_step(optimizer, values, self.reducer, 0.5, 1), optimizer));
    if (memory[0][0] != -0.75f || memory[2][0] != 0 || gs_ffi_reducer_was_used(self.reducer, 2))
        return gs_error(GS_INTERNAL, "updated to %g and %g", (double)memory[0][0], (double)memory[2][0]);
    GS_TRY(say(gs_ffi_reducer_set_trainable(self.reducer, NULL, NULL, 20 * SECOND), self.reducer));
    GS_TRY(say(gs_ffi_optimizer_set_trainable(optimizer, NULL), optimizer));
    GS_TRY(take_step(&self, 1));
    GS_TRY(say(gs_ffi_optimizer_step(optimizer, values, self.reducer, 0.5, 1), optimizer));
    if (memory[2][0] != -2) return gs_error(GS_INTERNAL, "updated to %g", (double)memory[2][0]);
    // What one refuses ends the communicator for all: no rank may still be in its step.
    char mine = 1, all[2];
    GS_TRY(gs_rank_exchange(env->exchange, "trained", NULL, 0, &mine, sizeof mine, all, soon()));
    if (gs_ffi_reducer_set_trainable(self.reducer, none, NULL, 20 * SECOND) != GS_INVALID_ARGUMENT)
        return gs_error(GS_INTERNAL, "all were frozen");
    gs_ffi_optimizer_free(optimizer);
    close_caller(&self);
    return gs_ok();
}

static void what_trains_is_told_between_steps(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("freeze", 2, "", soon()));
}

static int set_apart(caller *self) {
    int code = gs_ffi_reducer_choose_hook(self->reducer, "local_sgd");
    if (!code) code = gs_ffi_reducer_set_hook_option(self->reducer, "start_step", 0);
    return code ? code : gs_ffi_reducer_set_hook_option(self->reducer, "local_ranks", 1);
}

static gs_status check_value(const float *value, float wanted) {
    if (value[0] == wanted && value[COUNT - 1] == wanted) return gs_ok();
    return gs_error(GS_INTERNAL, "a parameter is %g, not %g", (double)value[0], (double)wanted);
}

// Gradients of parameter 0 are 1 and 2, of the others the same or none; every second step all is averaged.
static gs_status train_apart(caller *self, gs_ffi_averager *averager, gs_ffi_optimizer *optimizer,
                             void *const *values) {
    const unsigned char used[NUM_PARAMS] = {1, 0, 0};
    const float own = (float)(self->env->rank + 1);
    int num_ranks;
    for (int step = 0; step < 2; step++) {
        GS_TRY(reduce_step(self, step));
        GS_TRY(say(gs_ffi_optimizer_step(optimizer, values, self->reducer, 0.5, 1), optimizer));
        GS_TRY(say(gs_ffi_averager_run(averager, step, used, &num_ranks, 20 * SECOND), averager));
        if (num_ranks != (step ? 0 : 2)) return gs_error(GS_INTERNAL, "of %d ranks", num_ranks);
        GS_TRY(check_value(values[0], step ? -0.75f - 0.5f * own : -0.75f));
    }
    GS_TRY(say(gs_ffi_averager_run_all(averager, 1, NULL, 20 * SECOND), averager));
    return check_value(values[0], -1.5f);
}

static gs_status body_apart(const gs_rank_env *env) {
    caller self;
    float memory[NUM_PARAMS][COUNT] = {{0}};
    void *values[] = {memory[0], memory[1], memory[2]};
    gs_ffi_averager *averager = gs_ffi_averager_new();
    gs_ffi_optimizer *optimizer = gs_ffi_optimizer_new();
    GS_TRY(open_caller(&self, env, set_apart));
    GS_TRY(say(gs_ffi_optimizer_open(optimizer, "sgd", self.params, self.device), optimizer));
    GS_TRY(say(gs_ffi_averager_add(averager, 2, 0), averager));
    GS_TRY(say(gs_ffi_averager_open(averager, self.params, values, self.comm, 20 * SECOND), averager));
    if (gs_ffi_averager_add(averager, 4, 0) != GS_FAILED_PRECONDITION ||
        gs_ffi_averager_set_start(averager, 4) != GS_FAILED_PRECONDITION ||
        gs_ffi_reducer_choose_hook(self.reducer, "noop") != GS_FAILED_PRECONDITION ||
        gs_ffi_reducer_set_hook_option(self.reducer, "local_ranks", 2) != GS_FAILED_PRECONDITION ||
        gs_ffi_reducer_wrap_hook(self.reducer, "wrap_fp16") != GS_FAILED_PRECONDITION)
        return gs_error(GS_INTERNAL, "an open handle was changed");
    GS_TRY(train_apart(&self, averager, optimizer, values));
    gs_ffi_averager_free(averager);
    gs_ffi_optimizer_free(optimizer);
    close_caller(&self);
    return gs_ok();
}

static void ranks_that_train_apart_are_averaged(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("apart", 2, "", soon()));
}

// Rank 1 forgets the values of a parameter; rank 0, which needs no other to open, comes as far as the average.
static gs_status body_forgetful(const gs_rank_env *env) {
    caller self;
    float memory[NUM_PARAMS][COUNT] = {{0}};
    void *values[] = {memory[0], env->rank == 1 ? NULL : memory[1], memory[2]};
    int num_ranks;
    gs_ffi_averager *averager = gs_ffi_averager_new();
    gs_status status = open_caller(&self, env, set_apart);
    if (!status.code) status = say(gs_ffi_averager_add(averager, 2, 0), averager);
    if (!status.code)
        status = say(gs_ffi_averager_open(averager, self.params, values, self.comm, 20 * SECOND),
                     averager);
    if (!status.code)
        status = say(gs_ffi_averager_run(averager, 0, NULL, &num_ranks, 20 * SECOND), averager);
    gs_ffi_averager_free(averager);
    close_caller(&self);
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
        if (!strstr(statuses[rank].message, "\" has no values")) fail_msg("%s", statuses[rank].message);
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

static int refuse(void *ctx, const char *tag, const int *ranks, int num_ranks, const void *mine,
                  size_t bytes, void *all, int64_t left_ns) {
    (void)ctx, (void)tag, (void)ranks, (void)num_ranks, (void)mine, (void)bytes, (void)all;
    return left_ns > 0 ? GS_UNAVAILABLE : GS_INTERNAL;
}

static void handles_say_what_is_wrong(void **state) {
    (void)state;
    char text[200];
    gs_ffi_device *device = gs_ffi_device_new();
    gs_ffi_comm *comm = gs_ffi_comm_new();
    gs_ffi_reducer *reducer = gs_ffi_reducer_new();
    assert_int_equal(gs_ffi_device_open(device, "tpu"), GS_INVALID_ARGUMENT);
    assert_int_equal(gs_ffi_error(device, text, sizeof text), GS_INVALID_ARGUMENT);
    assert_non_null(strstr(text, "'tpu'"));
    assert_int_equal(gs_ffi_device_open(device, "cpu"), 0);
    assert_int_equal(gs_ffi_error(device, text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(gs_ffi_device_open(device, "cpu"), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_comm_set_rank(comm, 1, 2), 0);
    assert_int_equal(gs_ffi_comm_set_exchange(comm, refuse, NULL), 0);
    assert_int_equal(gs_ffi_comm_open(comm, device, NULL, SECOND), GS_UNAVAILABLE);
    assert_int_equal(gs_ffi_error(comm, text, sizeof text), GS_UNAVAILABLE);
    assert_non_null(strstr(text, "the exchange of \""));
    assert_non_null(strstr(text, "returned 14"));
    assert_string_equal(gs_ffi_comm_backend(comm), "");
    assert_int_equal(gs_ffi_reducer_begin(reducer, 0), GS_FAILED_PRECONDITION);
    assert_string_equal(gs_ffi_code_name(9), "FAILED_PRECONDITION");
    gs_ffi_reducer_free(reducer);
    gs_ffi_comm_free(comm);
    gs_ffi_device_free(device);
    gs_ffi_reducer_free(NULL);
    gs_ffi_comm_free(NULL);
}

static void nothing_given_is_an_error(void **state) {
    (void)state;
    char text[64];
    size_t bytes;
    int num_lanes;
    gs_ffi_device *device = gs_ffi_device_new();
    gs_ffi_arena *arena = gs_ffi_arena_new();
    gs_ffi_params *params = gs_ffi_params_new();
    gs_ffi_plan *plan = gs_ffi_plan_new();
    gs_ffi_comm *comm = gs_ffi_comm_new();
    gs_ffi_reducer *reducer = gs_ffi_reducer_new();
    gs_ffi_optimizer *optimizer = gs_ffi_optimizer_new();
    gs_ffi_averager *averager = gs_ffi_averager_new();
    const int codes[] = {
        gs_ffi_device_set_threads(NULL, 1),
        gs_ffi_device_open(NULL, "cpu"),
        gs_ffi_device_open(device, NULL),
        gs_ffi_arena_open(NULL, device, 1),
        gs_ffi_arena_open(arena, NULL, 1),
        gs_ffi_params_add(NULL, "w", FP32, 0, NULL),
        gs_ffi_params_add(params, NULL, FP32, 0, NULL),
        gs_ffi_params_add(params, "w", FP32, 1, NULL),
        gs_ffi_params_add(params, "w", 99, 0, NULL),
        gs_ffi_plan_open(NULL, params, 0, 0, NULL),
        gs_ffi_plan_open(plan, NULL, 0, 0, NULL),
        gs_ffi_comm_set_rank(NULL, 0, 1),
        gs_ffi_comm_set_generation(NULL, 1),
        gs_ffi_comm_set_backend(NULL, "self"),
        gs_ffi_comm_set_backend(comm, NULL),
        gs_ffi_comm_set_backend(comm, "a name that no backend will ever have"),
        gs_ffi_comm_set_exchange(NULL, refuse, NULL),
        gs_ffi_comm_set_interrupt(NULL, NULL, NULL),
        gs_ffi_comm_open(NULL, device, NULL, SECOND),
        gs_ffi_comm_open(comm, NULL, NULL, SECOND),
        gs_ffi_comm_run(NULL, GS_BARRIER, NULL, NULL, 0, 0, 0, 0, SECOND),
        gs_ffi_comm_wait_ended(NULL, SECOND),
        gs_ffi_reducer_set_plan(NULL, params, plan),
        gs_ffi_reducer_set_plan(reducer, NULL, plan),
        gs_ffi_reducer_set_plan(reducer, params, NULL),
        gs_ffi_reducer_set_op(NULL, 0),
        gs_ffi_reducer_set_passes(NULL, 1),
        gs_ffi_reducer_set_wire_dtype(NULL, 0),
        gs_ffi_reducer_set_static_graph(NULL, 0),
        gs_ffi_reducer_set_notices(NULL, NULL, NULL, NULL),
        gs_ffi_reducer_set_hook(NULL, "h", run_hook, finish_hook, NULL, NULL),
        gs_ffi_reducer_set_hook(reducer, NULL, run_hook, finish_hook, NULL, NULL),
        gs_ffi_reducer_set_hook(reducer, "h", NULL, finish_hook, NULL, NULL),
        gs_ffi_reducer_choose_hook(NULL, "noop"),
        gs_ffi_reducer_choose_hook(reducer, NULL),
        gs_ffi_reducer_set_hook_option(NULL, "rank", 1),
        gs_ffi_reducer_set_hook_option(reducer, NULL, 1),
        gs_ffi_reducer_wrap_hook(NULL, "wrap_fp16"),
        gs_ffi_averager_add(NULL, 1, 0),
        gs_ffi_averager_set_start(NULL, 1),
        gs_ffi_averager_open(NULL, params, NULL, comm, SECOND),
        gs_ffi_averager_open(averager, NULL, NULL, comm, SECOND),
        gs_ffi_averager_open(averager, params, NULL, comm, SECOND),
        gs_ffi_averager_run(NULL, 0, NULL, NULL, SECOND),
        gs_ffi_averager_run_all(NULL, 0, NULL, SECOND),
        gs_ffi_averager_reset(NULL, comm, NULL, SECOND),
        gs_ffi_reducer_arena_bytes(NULL, device, 1, &bytes),
        gs_ffi_reducer_arena_bytes(reducer, NULL, 1, &bytes),
        gs_ffi_reducer_arena_bytes(reducer, device, 1, NULL),
        gs_ffi_reducer_lanes(NULL, device, 1, &num_lanes),
        gs_ffi_reducer_lanes(reducer, NULL, 1, &num_lanes),
        gs_ffi_reducer_lanes(reducer, device, 1, NULL),
        gs_ffi_comm_set_lanes(NULL, 1),
        gs_ffi_reducer_open(NULL, comm, arena, device, SECOND),
        gs_ffi_reducer_open(reducer, NULL, arena, device, SECOND),
        gs_ffi_reducer_open(reducer, comm, NULL, device, SECOND),
        gs_ffi_reducer_open(reducer, comm, arena, NULL, SECOND),
        gs_ffi_reducer_begin(NULL, 0),
        gs_ffi_reducer_begin_pass(NULL, 1),
        gs_ffi_reducer_mark(NULL, 0),
        gs_ffi_reducer_mark_from(NULL, 0, NULL, FP32),
        gs_ffi_reducer_mark_unused(NULL, 0),
        gs_ffi_reducer_end_pass(NULL),
        gs_ffi_reducer_finish(NULL, SECOND),
        gs_ffi_reducer_abandon(NULL),
        gs_ffi_reducer_replan(NULL, plan, SECOND),
        gs_ffi_reducer_reset(NULL, comm, SECOND),
        gs_ffi_optimizer_set(NULL, "eps", 1),
        gs_ffi_optimizer_set(optimizer, NULL, 1),
        gs_ffi_optimizer_open(NULL, "sgd", params, device),
        gs_ffi_optimizer_open(optimizer, "sgd", NULL, device),
        gs_ffi_optimizer_open(optimizer, "sgd", params, NULL),
        gs_ffi_optimizer_step(NULL, NULL, reducer, 1, 1),
        gs_ffi_error(NULL, text, sizeof text),
        gs_ffi_error(NULL, NULL, sizeof text),
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i] != GS_INVALID_ARGUMENT) fail_msg("call %zu returned %d", i, codes[i]);
    assert_string_equal(text, "handle: none given");
    assert_int_equal(gs_ffi_error(device, text, sizeof text), GS_INVALID_ARGUMENT);
    assert_string_equal(text, "device's name: none given");
    gs_ffi_comm_abort(NULL, NULL);
    assert_int_equal(gs_ffi_comm_failure(NULL, NULL, NULL, NULL, NULL, 8), 0);
    assert_string_equal(gs_ffi_comm_backend(NULL), "");
    assert_null(gs_ffi_arena_data(NULL));
    assert_int_equal(gs_ffi_arena_bytes(NULL), 0);
    assert_int_equal(gs_ffi_plan_num_buckets(NULL), 0);
    assert_int_equal(gs_ffi_plan_bucket(NULL, 0, NULL, 1), 0);
    assert_true(gs_ffi_reducer_grad_offset(NULL, 0) == SIZE_MAX);
    assert_null(gs_ffi_reducer_ready_order(NULL));
    assert_false(gs_ffi_reducer_was_used(NULL, 0));
    gs_ffi_averager_free(NULL);
    gs_ffi_averager_free(averager);
    gs_ffi_optimizer_free(optimizer);
    gs_ffi_reducer_free(reducer);
    gs_ffi_comm_free(comm);
    gs_ffi_plan_free(plan);
    gs_ffi_params_free(params);
    gs_ffi_arena_free(arena);
    gs_ffi_device_free(device);
}

static void handles_that_are_not_open_are_refused(void **state) {
    (void)state;
    size_t bytes;
    float value = 0;
    void *values[] = {&value};
    gs_ffi_device *device = gs_ffi_device_new();
    gs_ffi_arena *arena = gs_ffi_arena_new();
    gs_ffi_params *params = gs_ffi_params_new();
    gs_ffi_comm *comm = gs_ffi_comm_new();
    gs_ffi_reducer *reducer = gs_ffi_reducer_new();
    gs_ffi_optimizer *optimizer = gs_ffi_optimizer_new();
    assert_int_equal(gs_ffi_reducer_arena_bytes(reducer, device, 1, &bytes),
                     GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_arena_open(arena, device, 1), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_comm_open(comm, device, NULL, SECOND), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_optimizer_open(optimizer, "sgd", params, device),
                     GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_device_open(device, "cpu"), 0);
    assert_int_equal(gs_ffi_comm_open(comm, device, arena, SECOND), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_comm_wait_ended(comm, SECOND), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_reducer_open(reducer, comm, arena, device, SECOND),
                     GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_reducer_reset(reducer, comm, SECOND), GS_FAILED_PRECONDITION);
    assert_int_equal(gs_ffi_optimizer_step(optimizer, values, reducer, 1, 1),
                     GS_FAILED_PRECONDITION);
    gs_ffi_optimizer_free(optimizer);
    gs_ffi_reducer_free(reducer);
    gs_ffi_comm_free(comm);
    gs_ffi_params_free(params);
    gs_ffi_arena_free(arena);
    gs_ffi_device_free(device);
}

// What is refused has no effect: the handle is in use.
static gs_status check_settings_refused(caller *self) {
    const int codes[] = {
        gs_ffi_device_set_threads(self->device, 3),
        gs_ffi_comm_set_rank(self->comm, 1, 1 << 30),
        gs_ffi_comm_set_exchange(self->comm, NULL, NULL),
        gs_ffi_comm_set_interrupt(self->comm, NULL, NULL),
        gs_ffi_reducer_set_plan(self->reducer, self->params, self->plan),
        gs_ffi_reducer_set_passes(self->reducer, 7),
        gs_ffi_reducer_set_hook(self->reducer, "other", run_hook, finish_hook, NULL, NULL),
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i] != GS_FAILED_PRECONDITION)
            return gs_error(GS_INTERNAL, "setting %zu returned %d", i, codes[i]);
    return gs_ok();
}

// An optimizer of other parameters would read past the gradients.
static gs_status check_other_optimizers(caller *self) {
    const int64_t shape[] = {1000};
    float memory[1000] = {0};
    void *values[] = {memory, memory, memory};
    void *missing[] = {memory, NULL, memory};
    gs_ffi_params *others = gs_ffi_params_new();
    for (int p = 0; p < NUM_PARAMS; p++) {
        char name[8];
        snprintf(name, sizeof name, "o%d", p);
        GS_TRY(say(gs_ffi_params_add(others, name, FP32, 1, shape), others));
    }
    gs_ffi_optimizer *optimizer = gs_ffi_optimizer_new(), *own = gs_ffi_optimizer_new();
    GS_TRY(say(gs_ffi_optimizer_open(optimizer, "sgd", others, self->device), optimizer));
    GS_TRY(say(gs_ffi_optimizer_open(own, "sgd", self->params, self->device), own));
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
    caller self;
    float value = 0;
    void *values[] = {&value, &value, &value};
    GS_TRY(open_caller(&self, env, NULL));
    gs_ffi_optimizer *early = gs_ffi_optimizer_new();
    GS_TRY(say(gs_ffi_optimizer_open(early, "sgd", self.params, self.device), early));
    if (gs_ffi_optimizer_step(early, values, self.reducer, 1, 1) != GS_FAILED_PRECONDITION)
        return gs_error(GS_INTERNAL, "an update by no result");
    gs_ffi_optimizer_free(early);
    GS_TRY(check_settings_refused(&self));
    GS_TRY(take_step(&self, 0));
    GS_TRY(check_other_optimizers(&self));
    char mine = 0, all[2];
    if (exchange(&self, "finished", NULL, 0, &mine, 1, all, 20 * SECOND))
        return gs_error(GS_INTERNAL, "the exchange failed");
    gs_ffi_comm_abort(self.comm, NULL);
    if (take_step(&self, 1).code != GS_ABORTED) return gs_error(GS_INTERNAL, "no abort");

    gs_ffi_comm *next = gs_ffi_comm_new();
    GS_TRY(say(gs_ffi_comm_set_rank(next, env->rank, env->world_size), next));
    GS_TRY(say(gs_ffi_comm_set_generation(next, 1), next));
    GS_TRY(say(gs_ffi_comm_set_exchange(next, exchange, &self), next));
    GS_TRY(say(gs_ffi_comm_wait_ended(self.comm, 20 * SECOND), self.comm));
    GS_TRY(say(gs_ffi_comm_open(next, self.device, self.arena, 20 * SECOND), next));
    GS_TRY(say(gs_ffi_reducer_reset(self.reducer, next, 20 * SECOND), self.reducer));
    gs_ffi_comm_free(self.comm);
    self.comm = next;
    GS_TRY(take_step(&self, 1));
    // Nobody leaves while the other may still be at its step.
    GS_TRY(say(gs_ffi_comm_run(next, GS_BARRIER, NULL, NULL, 0, 0, 0, 0, 20 * SECOND), next));
    close_caller(&self);
    return gs_ok();
}

static void error_is_left_with_another_communicator(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("reset", 2, "", soon()));
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {
        {"train", body_train}, {"hook", body_hook}, {"topk", body_topk}, {"freeze", body_freeze}, {"powersgd", body_powersgd}, {"apart", body_apart}, {"forgetful", body_forgetful}, {"reset", body_reset}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_languages_train),
        cmocka_unit_test(hook_of_the_hosts_own_moves_the_buckets),
        cmocka_unit_test(hooks_of_the_library_are_chosen_by_name),
        cmocka_unit_test(what_trains_is_told_between_steps),
        cmocka_unit_test(ranks_that_train_apart_are_averaged),
        cmocka_unit_test(values_that_one_rank_lacks_are_told_to_all),
        cmocka_unit_test(hooks_that_are_not_there_are_refused),
        cmocka_unit_test(handles_say_what_is_wrong),
        cmocka_unit_test(nothing_given_is_an_error),
        cmocka_unit_test(handles_that_are_not_open_are_refused),
        cmocka_unit_test(error_is_left_with_another_communicator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
