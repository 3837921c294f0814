// What callers from other languages need of reducer and communicator: gradients that lie elsewhere,
// a backward pass that failed, waits that can be interrupted, threads that take turns, processes
// that fork.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/thread.h"
#include "gradsync/comm/comm.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/small_reducer.h"
#include "tests/support/soon.h"

static const double ones[] = {1, 1, 1, 1};

static gs_status open_small(small_reducer *small, const gs_reducer_options *options,
                            const gs_rank_env *env) {
    small_reducer_prepare(small);
    return small_reducer_open(small, options, env);
}

static gs_status expect_grad(const small_reducer *small, size_t param, double expected) {
    double got = small_reducer_grad(small, param, SMALL_COUNT - 1);
    if (got == expected) return gs_ok();
    return gs_error(GS_INTERNAL, "parameter %zu is %g, expected %g", param, got, expected);
}

static gs_status expect_code(gs_status status, gs_code code, const char *words) {
    if (status.code == code && strstr(status.message, words)) return gs_ok();
    return gs_error(GS_INTERNAL, "expected %s with \"%s\", got %s: %.150s", gs_code_name(code),
                    words, gs_code_name(status.code), status.message);
}

// Until the other rank is here as well, beside the communicator.
static gs_status meet(const gs_rank_env *env, const char *tag) {
    char mine = 0, all[8];
    return gs_rank_exchange(env->exchange, tag, NULL, 0, &mine, 1, all, soon());
}

typedef struct interrupts {
    int num_asked, ends_at;  // 0: never
    int64_t last_ns;
} interrupts;

static int ask(void *ctx) {
    interrupts *asked = ctx;
    asked->last_ns = gs_now_ns();
    asked->num_asked++;
    return asked->ends_at && asked->num_asked >= asked->ends_at;
}

// Rank 1 comes when rank 0's wait has been interrupted.
static gs_status body_interrupt(const gs_rank_env *env) {
    comm_rank self;
    interrupts asked = {.ends_at = env->rank == 0 ? 3 : 0};
    const gs_comm_options options = {.helper = strcmp(env->arg, "thread") == 0 ? GS_HELPER_ON
                                                                               : GS_HELPER_OFF,
                                     .interrupt = ask,
                                     .interrupt_ctx = &asked};
    GS_TRY(comm_rank_open(&self, env, 0, &options));
    gs_work work;
    const gs_collective barrier = {.kind = GS_BARRIER, .bucket = -1};
    if (env->rank == 1) GS_TRY(meet(env, "interrupted"));
    asked.num_asked = 0;
    GS_TRY(gs_comm_post(self.comm, &work, &barrier));
    if (env->rank == 0) {
        // Each time may find this thread late by itself, but not early: two intervals lie before the third.
        int64_t began_ns = gs_now_ns();
        GS_TRY(expect_code(gs_comm_wait(self.comm, work, soon()), GS_CANCELLED,
                           "the wait was interrupted"));
        if (asked.num_asked != 3 || asked.last_ns - began_ns < 200 * GS_NS_PER_MS)
            return gs_error(GS_INTERNAL, "asked %d times within %lld us", asked.num_asked,
                            (long long)(asked.last_ns - began_ns) / 1000);
        GS_TRY(expect_code(gs_comm_wait_moved(&self.comm, 1, soon()), GS_CANCELLED, "was interrupted"));
        asked.ends_at = 0;
        GS_TRY(meet(env, "interrupted"));
    }
    GS_TRY(gs_comm_wait(self.comm, work, soon()));
    if (env->rank == 0) {
        asked.ends_at = 1;
        GS_TRY(expect_code(gs_comm_wait_ended(self.comm, soon()), GS_CANCELLED, "was interrupted"));
        asked.ends_at = 0;
    }
    GS_TRY(meet(env, "leaving"));
    GS_TRY(gs_comm_wait_ended(self.comm, soon()));
    comm_rank_close(&self);
    return gs_ok();
}

// Rank 0 goes on from each stage later than its peer.
static gs_status exchange_slowly(void *ctx, const char *tag, const int *ranks, int num_ranks,
                                 const void *mine, size_t bytes, void *all, gs_deadline deadline) {
    const gs_rank_env *env = ctx;
    GS_TRY(gs_rank_exchange(env->exchange, tag, ranks, num_ranks, mine, bytes, all, deadline));
    if (env->rank == 0) gs_sleep_ns(400 * GS_NS_PER_MS);
    return gs_ok();
}

static gs_status body_interrupt_create(const gs_rank_env *env) {
    comm_rank self;
    interrupts asked = {.ends_at = env->rank};
    const gs_comm_options options = {.exchange = exchange_slowly,
                                     .exchange_ctx = (void *)(uintptr_t)env,
                                     .interrupt = ask,
                                     .interrupt_ctx = &asked};
    gs_status status = comm_rank_open(&self, env, 0, &options);
    comm_rank_close(&self);
    return expect_code(status, GS_CANCELLED, "rank 1: ");
}

static void creation_asks_while_it_waits_for_memory(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("interrupt create", 2, NULL, soon()));
}

static void interrupted_wait_is_cancelled_and_can_be_repeated(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("interrupt", 2, "owner", soon()));
    assert_ok(gs_ranks_run("interrupt", 2, "thread", soon()));
}

// Gradient of parameter p in pass k: p + 1 of the first rank, twice that of the second; 16 bits
// hold it.
static void fill_gradient(void *data, gs_dtype dtype, double value) {
    for (size_t i = 0; i < SMALL_COUNT; i++) {
        if (dtype == GS_FP64) ((double *)data)[i] = value;
        if (dtype == GS_FP32) ((float *)data)[i] = (float)value;
        if (dtype == GS_FP16) ((uint16_t *)data)[i] = gs_fp32_to_fp16((float)value);
        if (dtype == GS_BF16) ((uint16_t *)data)[i] = gs_fp32_to_bf16((float)value);
    }
}

typedef struct from_case {
    gs_reducer_op op;
    int num_passes;
    bool leaves_one_out;  // parameter 2, in the first pass
} from_case;

static gs_status run_from(small_reducer *small, const from_case *kind, int64_t step) {
    static const gs_dtype dtypes[] = {GS_FP32, GS_FP64, GS_FP16, GS_BF16};
    gs_reduce_result result;
    GS_TRY(gs_reducer_begin(small->reducer, step));
    for (int k = 0; k < kind->num_passes; k++) {
        gs_reducer_pass pass;
        GS_TRY(gs_reducer_begin_pass(small->reducer, &pass, 2));
        for (size_t p = SMALL_PARAMS; p-- > 0;) {
            double memory[SMALL_COUNT];
            gs_dtype dtype = dtypes[(p + (size_t)step) % 4];
            fill_gradient(memory, dtype, (double)(p + 1) * (small->rank + 1));
            bool leaves = kind->leaves_one_out && p == 2 && k == 0;
            GS_TRY(gs_reducer_mark_from(small->reducer, p, leaves ? NULL : memory, dtype));
        }
        GS_TRY(gs_reducer_end_pass(small->reducer));
    }
    GS_TRY(gs_reducer_finish(small->reducer, &result, soon()));
    for (size_t p = 0; p < SMALL_PARAMS; p++) {
        double passes = kind->leaves_one_out && p == 2 ? kind->num_passes - 1 : kind->num_passes;
        double expected = (double)(p + 1) * 1.5 * passes / kind->num_passes;
        GS_TRY(expect_grad(small, p, expected));
        if (result.used[p] != (passes > 0)) return gs_error(GS_INTERNAL, "used of %zu", p);
    }
    return gs_ok();
}

static gs_status body_from(const gs_rank_env *env) {
    static const from_case kinds[] = {
        {GS_MEAN, 1, false}, {GS_MEAN, 1, true}, {GS_MEAN, 2, true}, {GS_SAMPLE_MEAN, 2, false}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        small_reducer small;
        small_reducer_prepare(&small);
        small.params[0].dtype = GS_FP64;
        GS_TRY(small_reducer_open(
            &small,
            &(gs_reducer_options){.op = kinds[i].op, .passes_per_shard = kinds[i].num_passes},
            env));
        for (int64_t step = 0; step < 4; step++) GS_TRY(run_from(&small, &kinds[i], step));
        small_reducer_close(&small);
    }
    return gs_ok();
}

static void gradients_are_marked_from_memory_of_any_type(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("from", 2, "", soon()));
}

// Rank 0's backward pass fails after the first gradient, of two of a bucket.
static gs_status body_abandon(const gs_rank_env *env) {
    small_reducer small;
    gs_reducer_pass pass;
    gs_reduce_result result;
    GS_TRY(open_small(&small, &(gs_reducer_options){.op = GS_SUM}, env));
    GS_TRY(gs_reducer_abandon(small.reducer));  // nothing is open
    for (int64_t step = 0; step < 3; step++) {
        if (env->rank == 0) {
            GS_TRY(gs_reducer_begin(small.reducer, step));
            GS_TRY(gs_reducer_begin_pass(small.reducer, &pass, 1));
            small_reducer_write(&small, &pass, 3, 77);
            GS_TRY(gs_reducer_mark_ready(small.reducer, 3));
            GS_TRY(gs_reducer_abandon(small.reducer));
            GS_TRY(gs_reducer_check_finished(small.reducer));
        }
        GS_TRY(small_reducer_run_step(&small, step, ones, &result));
        for (size_t p = 0; p < SMALL_PARAMS; p++) GS_TRY(expect_grad(&small, p, 2));
        if (result.samples != 2) return gs_error(GS_INTERNAL, "samples are wrong");
    }
    // A bucket is on its way: refused, and the step can still be finished.
    GS_TRY(gs_reducer_begin(small.reducer, 3));
    GS_TRY(gs_reducer_begin_pass(small.reducer, &pass, 1));
    for (size_t p = SMALL_PARAMS; p-- > 0;) {
        small_reducer_write(&small, &pass, p, 1);
        GS_TRY(gs_reducer_mark_ready(small.reducer, p));
        if (p <= 2)
            GS_TRY(expect_code(gs_reducer_abandon(small.reducer), GS_FAILED_PRECONDITION,
                               "gs_reducer_reset leads out"));
    }
    GS_TRY(gs_reducer_end_pass(small.reducer));
    GS_TRY(gs_reducer_finish(small.reducer, &result, soon()));
    GS_TRY(expect_grad(&small, 0, 2));
    small_reducer_close(&small);
    return gs_ok();
}

static void failed_backward_is_abandoned_while_nobody_knows(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("abandon", 2, "", soon()));
}

typedef struct turn {
    small_reducer *small;
    int64_t step;
    gs_status status;
} turn;

static void take_turn(void *ctx, const atomic_bool *stopping) {
    (void)stopping;
    turn *one = ctx;
    gs_reduce_result result;
    one->status = small_reducer_run_step(one->small, one->step, ones, &result);
}

// Each step in a thread of its own, passes in another than begin and finish of the last ones.
static gs_status body_handover(const gs_rank_env *env) {
    small_reducer small;
    small_reducer_prepare(&small);
    small.helper = strcmp(env->arg, "thread") == 0 ? GS_HELPER_ON : GS_HELPER_OFF;
    GS_TRY(small_reducer_open(&small, &(gs_reducer_options){.op = GS_SUM}, env));
    for (int64_t step = 0; step < 20; step++) {
        turn one = {.small = &small, .step = step};
        if (step % 3) {
            gs_thread *thread;
            GS_TRY(gs_thread_start(&thread, "turn", take_turn, &one));
            gs_thread_stop(thread);
        } else {
            take_turn(&one, NULL);
        }
        GS_TRY(one.status);
        GS_TRY(expect_grad(&small, 1, env->world_size));
    }
    small_reducer_close(&small);
    return gs_ok();
}

static void threads_take_turns(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("handover", 2, "owner", soon()));
    assert_ok(gs_ranks_run("handover", 2, "thread", soon()));
}

// A child that was forked in the middle of a step gives up and destroys all it has a handle of.
static gs_status fork_and_destroy(small_reducer *small) {
    pid_t child = fork();
    if (child < 0) return gs_error(GS_INTERNAL, "no fork");
    if (child == 0) {
        gs_comm_let_go(small->comm, "the child's host ended");
        gs_reducer_destroy(small->reducer);
        gs_comm_destroy(small->comm);
        gs_arena_destroy(small->arena);
        gs_device_close(small->device);
        _exit(7);
    }
    int ended;
    if (waitpid(child, &ended, 0) != child || !WIFEXITED(ended) || WEXITSTATUS(ended) != 7)
        return gs_error(GS_INTERNAL, "the child did not end well");
    return gs_ok();
}

static gs_status body_fork(const gs_rank_env *env) {
    small_reducer small;
    gs_reducer_pass pass;
    gs_reduce_result result;
    small_reducer_prepare(&small);
    small.helper = strcmp(env->arg, "thread") == 0 ? GS_HELPER_ON : GS_HELPER_OFF;
    GS_TRY(small_reducer_open(&small, &(gs_reducer_options){.op = GS_SUM}, env));
    for (int64_t step = 0; step < 2; step++) {
        GS_TRY(gs_reducer_begin(small.reducer, step));
        GS_TRY(gs_reducer_begin_pass(small.reducer, &pass, 1));
        for (size_t p = SMALL_PARAMS; p-- > 0;) {
            small_reducer_write(&small, &pass, p, 1);
            GS_TRY(gs_reducer_mark_ready(small.reducer, p));
            // Bucket 0 is in flight then.
            if (p == 1 && env->rank == 0) GS_TRY(fork_and_destroy(&small));
        }
        GS_TRY(gs_reducer_end_pass(small.reducer));
        GS_TRY(gs_reducer_finish(small.reducer, &result, soon()));
        GS_TRY(expect_grad(&small, 3, 2));
    }
    small_reducer_close(&small);
    return gs_ok();
}

static void forked_child_destroys_nothing_of_its_parents(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("fork", 2, "owner", soon()));
    assert_ok(gs_ranks_run("fork", 2, "thread", soon()));
}

typedef struct notices {
    small_reducer *small;
    size_t buckets[8];
    int num_buckets, num_moved;
    double seen;  // of the last bucket's first member, when it was told
} notices;

static void note_bucket(void *ctx, size_t bucket) {
    notices *told = ctx;
    const gs_bucket_plan *plan = gs_reducer_plan(told->small->reducer);
    size_t param = plan->params[plan->buckets[bucket].first];
    told->seen = small_reducer_grad(told->small, param, 0);
    told->buckets[told->num_buckets++ % 8] = bucket;
}

static void note_moved(void *ctx) {
    ((notices *)ctx)->num_moved++;
}

static gs_status check_offsets(const small_reducer *small) {
    for (size_t p = 0; p < SMALL_PARAMS; p++) {
        size_t offset = gs_reducer_grad_offset(small->reducer, p);
        if ((char *)gs_arena_data(small->arena) + offset != gs_reducer_grads(small->reducer)[p])
            return gs_error(GS_INTERNAL, "parameter %zu is not at offset %zu", p, offset);
    }
    if (gs_reducer_grad_offset(small->reducer, SMALL_PARAMS) != SIZE_MAX)
        return gs_error(GS_INTERNAL, "a parameter that is none has an offset");
    return gs_ok();
}

static gs_status body_notices(const gs_rank_env *env) {
    small_reducer small;
    notices told = {.small = &small};
    gs_reduce_result result;
    gs_bucket_plan each;
    GS_TRY(open_small(&small,
                      &(gs_reducer_options){.op = GS_SUM,
                                            .bucket_finished = note_bucket,
                                            .bucket_finished_ctx = &told,
                                            .grads_moved = note_moved,
                                            .grads_moved_ctx = &told},
                      env));
    for (int64_t step = 0; step < 3; step++) {
        told.num_buckets = 0;
        GS_TRY(small_reducer_run_step(&small, step, ones, &result));
        if (told.num_buckets != 2 || told.buckets[0] != 0 || told.buckets[1] != 1 || told.seen != 2)
            return gs_error(GS_INTERNAL, "%d buckets told, the last with %g", told.num_buckets,
                            told.seen);
        GS_TRY(check_offsets(&small));
    }
    size_t before = gs_reducer_grad_offset(small.reducer, 0);
    GS_TRY(gs_bucket_plan_parity(&each, small.params, SMALL_PARAMS, 4, 4, NULL));
    GS_TRY(gs_reducer_set_plan(small.reducer, &each, soon()));
    gs_bucket_plan_release(&each);
    if (told.num_moved != 1 || gs_reducer_grad_offset(small.reducer, 0) == before)
        return gs_error(GS_INTERNAL, "moved %d times", told.num_moved);
    told.num_buckets = 0;
    GS_TRY(small_reducer_run_step(&small, 3, ones, &result));
    GS_TRY(check_offsets(&small));
    if (told.num_buckets != 4) return gs_error(GS_INTERNAL, "%d buckets told", told.num_buckets);
    small_reducer_close(&small);
    return gs_ok();
}

static void finished_buckets_and_moved_gradients_are_told(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("notices", 2, "", soon()));
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"interrupt", body_interrupt},
                                          {"interrupt create", body_interrupt_create},
                                          {"from", body_from},
                                          {"abandon", body_abandon},
                                          {"handover", body_handover},
                                          {"fork", body_fork},
                                          {"notices", body_notices},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creation_asks_while_it_waits_for_memory),
        cmocka_unit_test(interrupted_wait_is_cancelled_and_can_be_repeated),
        cmocka_unit_test(gradients_are_marked_from_memory_of_any_type),
        cmocka_unit_test(failed_backward_is_abandoned_while_nobody_knows),
        cmocka_unit_test(threads_take_turns),
        cmocka_unit_test(forked_child_destroys_nothing_of_its_parents),
        cmocka_unit_test(finished_buckets_and_moved_gradients_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
