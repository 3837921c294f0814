// A reset leads out of every failure that one rank can cause, whatever the others were doing: with
// a new communicator over the same memory all of them step on as if nothing had been.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/device_memory.h"
#include "tests/support/small_reducer.h"
#include "tests/support/soon.h"

#define MAX_WORLD 8

static const double ones[] = {1, 1, 1, 1};

// Of a step that fails: NCCL does not tell the others of one rank's end, their own time ends
// theirs.
static gs_deadline deadline_of_failure(void) {
    return test_device_is_host() ? soon() : gs_deadline_in_seconds(0.5);
}

// The hook of all ranks; on rank 1 it fails while this is set.
static const char *hook_failure;

static gs_status run_failing(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    bool last = bucket->is_last;
    if (hook_failure && strcmp(hook_failure, "run") == 0 && last)
        return gs_error(GS_INTERNAL, "cannot run");
    GS_TRY(gs_hook_allreduce.run(state, bucket, work));
    if (hook_failure && strcmp(hook_failure, "run late") == 0)
        return gs_error(GS_INTERNAL, "cannot run to the end");
    return gs_ok();
}

static gs_status finish_failing(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                                gs_deadline deadline) {
    if (hook_failure && strcmp(hook_failure, "finish") == 0)
        return gs_error(GS_INTERNAL, "cannot finish");
    return gs_hook_allreduce.finish(state, bucket, result, deadline);
}

static const gs_hook_choice *failing_choice(void) {
    static gs_comm_hook failing_hook;
    static gs_hook_choice choice = {.hook = &failing_hook};
    failing_hook = gs_hook_allreduce;
    failing_hook.name = "failing";
    failing_hook.run = run_failing;
    failing_hook.finish = finish_failing;
    return &choice;
}

static gs_status take_step(small_reducer *small, int64_t step, const double *values,
                           gs_deadline deadline) {
    gs_reduce_result result;
    GS_TRY(gs_reducer_begin(small->reducer, step));
    GS_TRY(small_reducer_run_pass(small, values, 2));
    return gs_reducer_finish(small->reducer, &result, deadline);
}

// What rank 1 does wrong instead of taking a step.
static gs_status fail_in_hook(small_reducer *small, int64_t step, const char *where) {
    hook_failure = where;
    gs_status status = take_step(small, step, ones, deadline_of_failure());
    hook_failure = NULL;
    return status;
}
static gs_status run_hook_badly(small_reducer *small, int64_t step) {
    return fail_in_hook(small, step, "run");
}
static gs_status fail_behind_the_post(small_reducer *small, int64_t step) {
    return fail_in_hook(small, step, "run late");
}
static gs_status finish_hook_badly(small_reducer *small, int64_t step) {
    return fail_in_hook(small, step, "finish");
}
static gs_status fail_tail(void *ctx, void *const *grads, gs_deadline deadline) {
    (void)ctx;
    (void)grads;
    (void)deadline;
    return gs_error(GS_INTERNAL, "cannot add rows");
}
// The others have the whole step by then, and are told in the next one.
static gs_status add_failing_tail(small_reducer *small, int64_t step) {
    gs_reduce_result result;
    GS_TRY(gs_reducer_begin(small->reducer, step));
    GS_TRY(gs_reducer_add_tail(small->reducer, &(gs_reducer_tail){.finish = fail_tail}));
    GS_TRY(small_reducer_run_pass(small, ones, 2));
    return gs_reducer_finish(small->reducer, &result, deadline_of_failure());
}
static gs_status mark_twice(small_reducer *small, int64_t step) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin(small->reducer, step));
    GS_TRY(gs_reducer_begin_pass(small->reducer, &pass, 2));
    GS_TRY(gs_reducer_mark_ready(small->reducer, 3));
    return gs_reducer_mark_ready(small->reducer, 3);
}
static gs_status end_no_pass(small_reducer *small, int64_t step) {
    gs_reducer_pass pass;
    gs_reduce_result result;
    GS_TRY(gs_reducer_begin(small->reducer, step));
    GS_TRY(gs_reducer_begin_pass(small->reducer, &pass, 2));
    return gs_reducer_finish(small->reducer, &result, deadline_of_failure());
}
static gs_status use_less(small_reducer *small, int64_t step) {
    return take_step(small, step, (const double[]){1, 1, NAN, 1}, deadline_of_failure());
}
static gs_status take_another_step(small_reducer *small, int64_t step) {
    return take_step(small, step + 1, ones, deadline_of_failure());
}
static gs_status take_a_plan(small_reducer *small, int64_t step) {
    GS_TRY(gs_reducer_begin(small->reducer, step));
    return gs_reducer_set_plan(small->reducer, &small->plan, soon());
}
static gs_status stay_away(small_reducer *small, int64_t step) {
    (void)small;
    return gs_error(GS_UNAVAILABLE, "no step %d for this rank", (int)step);
}
static gs_status give_up_between_steps(small_reducer *small, int64_t step) {
    (void)step;
    gs_comm_abort(small->comm, "rank 1 gave up");
    return gs_error(GS_ABORTED, "gave up");
}

typedef gs_status (*failing_step)(small_reducer *small, int64_t step);
static const failing_step failures[] = {run_hook_badly,   fail_behind_the_post, finish_hook_badly,
                                        add_failing_tail, mark_twice,           end_no_pass,
                                        use_less,         take_another_step,    take_a_plan,
                                        stay_away,        give_up_between_steps};
enum { NUM_FAILURES = sizeof failures / sizeof failures[0] };

// Until all ranks are here: a failure is to meet nobody in the step before it, and nobody is to be away
// already who is to be late.
static gs_status meet(const gs_rank_env *env, const char *when, int failure) {
    char tag[24], here = 1, all[MAX_WORLD];
    snprintf(tag, sizeof tag, "%s %d", when, failure);
    return gs_rank_exchange(env->exchange, tag, NULL, 0, &here, 1, all, soon());
}

// One whole step may pass before a rank hears of it.
static gs_status expect_failure(small_reducer *small, int failure) {
    gs_deadline deadline =
        failures[failure] == stay_away ? gs_deadline_in_seconds(0.3) : deadline_of_failure();
    gs_status status =
        small->rank == 1 ? failures[failure](small, 2) : take_step(small, 2, ones, deadline);
    if (!status.code) status = take_step(small, 3, ones, deadline);
    if (!status.code)
        return gs_error(GS_INTERNAL, "rank %d: failure %d went by", small->rank, failure);
    // Who else is late under load is named beside it.
    const char *words = failures[failure] == stay_away ? "did not arrive" : "rank 1";
    if (small->rank != 1 && test_device_is_host() && !strstr(status.message, words))
        return gs_error(GS_INTERNAL, "rank %d: failure %d: %.150s", small->rank, failure,
                        status.message);
    return gs_ok();
}

static gs_status check_steps(small_reducer *small) {
    double mean = (small->world_size + 1) / 2.0, own = small->rank + 1;
    for (int64_t step = 0; step < 2; step++) {
        GS_TRY(take_step(small, step, (const double[]){own, 1, 2, own}, soon()));
        if (small_reducer_grad(small, 0, 1) != mean || small_reducer_grad(small, 2, 0) != 2)
            return gs_error(GS_INTERNAL, "rank %d: gradient %g, expected %g", small->rank,
                            small_reducer_grad(small, 0, 1), mean);
    }
    return gs_ok();
}

static gs_status body_failures(const gs_rank_env *env) {
    bool is_static = strcmp(env->arg, "static") == 0;
    small_reducer small;
    small_reducer_prepare(&small);
    GS_TRY(small_reducer_open(
        &small, &(gs_reducer_options){.hooks = failing_choice(), .num_hooks = 1, .static_graph = is_static}, env));
    for (int i = 0; i < NUM_FAILURES; i++) {
        GS_TRY(gs_status_prefix(check_steps(&small), "before failure %d", i));
        if (failures[i] == use_less && !is_static) continue;  // anybody may
        // NCCL carries no step: ranks in different ones do not learn of it.
        if (failures[i] == take_another_step && !test_device_is_host()) continue;
        GS_TRY(meet(env, "before", i));
        GS_TRY(expect_failure(&small, i));
        GS_TRY(meet(env, "behind", i));
        gs_comm *next;
        GS_TRY(gs_comm_wait_ended(small.comm, soon()));
        GS_TRY(small_reducer_connect(&next, &small, env, (uint32_t)i + 2));
        GS_TRY(gs_reducer_reset(small.reducer, next, soon()));
        gs_comm_destroy(small.comm);
        small.comm = next;
    }
    GS_TRY(check_steps(&small));
    small_reducer_close(&small);
    return gs_ok();
}

static void run_worlds(const char *arg) {
    bool on_host = test_device_is_host();
    for (int world_size = on_host ? 2 : 3; world_size <= (on_host ? 4 : 3); world_size++) {
        gs_status status = gs_ranks_run("failures", world_size, arg, gs_deadline_in_seconds(60));
        if (status.code) fail_msg("%d ranks: %s", world_size, status.message);
    }
}

static void reset_leads_out_of_every_failure(void **state) {
    (void)state;
    run_worlds("");
}

static void static_graph_learns_anew_after_every_failure(void **state) {
    (void)state;
    run_worlds("static");
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"failures", body_failures}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    if (!test_device_is_there()) return TEST_SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reset_leads_out_of_every_failure),
        cmocka_unit_test(static_graph_learns_anew_after_every_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
