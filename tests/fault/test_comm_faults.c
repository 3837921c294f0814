// Ranks that die or freeze in the middle of a collective: survivors return, with a name, and soon.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"

#define RUN_SECONDS 40.0
#define COUNT 200000
#define WORLD 3

typedef struct setting {
    bool helper, outside, frozen;
    size_t count;
} setting;

static setting parse_setting(const char *arg) {
    return (setting){.helper = strstr(arg, "helper") != NULL,
                     .outside = strstr(arg, "outside") != NULL,
                     .frozen = strstr(arg, "frozen") != NULL,
                     .count = strstr(arg, "small") ? 500 : COUNT};
}

// All-reduces until something happens; the test's deadline is far away.
static gs_status run_for_ever(comm_rank *self, const setting *how) {
    float *outside = malloc(COUNT * sizeof *outside);
    if (!outside) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    float *data = how->outside ? outside : gs_arena_data(self->arena);
    gs_status status = gs_ok();
    for (int64_t step = 0; !status.code && step < 10000; step++) {
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = data,
                             .recv = data,
                             .count = how->count,
                             .dtype = GS_FP32,
                             .scale = 1.0 / WORLD,
                             .step = step,
                             .bucket = 3};
        for (size_t i = 0; i < how->count; i += 1000) data[i] = (float)self->rank;
        // Far above what a step takes under a sanitizer beside other tests.
        gs_deadline deadline =
            how->frozen ? gs_deadline_in_ms(900) : gs_deadline_in_seconds(RUN_SECONDS);
        status = gs_comm_run(self->comm, &sum, deadline);
    }
    free(outside);
    return status;
}

static gs_status reduce_for_ever(const gs_rank_env *env) {
    setting how = parse_setting(env->arg);
    comm_rank self;
    gs_comm_options options = {.helper = how.helper ? GS_HELPER_ON : GS_HELPER_OFF};
    gs_status status = comm_rank_open(&self, env, COUNT * sizeof(float), &options);
    gs_rank_note(env, "ready");
    if (!status.code) status = run_for_ever(&self, &how);
    gs_rank_note(env, status.message);
    comm_rank_close(&self);
    return status;
}

// As many collectives as may be in flight, or one of many chunks: something moves until the end.
typedef struct trickle {
    int num_works;
    size_t count;
    float *data;
} trickle;

static gs_status post_trickle(comm_rank *self, const trickle *how, gs_work *work,
                              int64_t pause_ns) {
    for (int i = 0; i < how->num_works; i++) {
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = how->data,
                             .recv = how->data,
                             .count = how->count,
                             .dtype = GS_FP32,
                             .bucket = -1};
        GS_TRY(gs_comm_post(self->comm, work, &sum));
        int64_t until_ns = gs_now_ns() + pause_ns;
        while (pause_ns && gs_now_ns() < until_ns) {
        }
    }
    return gs_ok();
}

// Waits for all of it, then for an eighth of that time. UNAVAILABLE: it came to the end instead.
static gs_status wait_for_trickle(comm_rank *self, const gs_rank_env *env, const trickle *how) {
    gs_work work;
    char note = 0, all[2];
    gs_deadline far = gs_deadline_in_seconds(RUN_SECONDS);
    int64_t pause_ns = env->rank == 1 && how->num_works > 1 ? 30000 : 0, took_ns[2];
    gs_status status = gs_ok();
    for (int round = 0; round < 2; round++) {
        bool is_short = round == 1 && env->rank == 0;
        GS_TRY(gs_rank_exchange(env->exchange, "round", NULL, 0, &note, 1, all, far));
        status = post_trickle(self, how, &work, pause_ns);
        int64_t began_ns = gs_now_ns();
        if (!status.code)
            status =
                gs_comm_wait(self->comm, work, is_short ? gs_deadline_in_ns(took_ns[0] / 8) : far);
        took_ns[round] = gs_now_ns() - began_ns;
        if (round == 0) GS_TRY(status);
    }
    if (env->rank == 1) return gs_ok();
    gs_comm_let_go(self->comm, "rank 0 has its answer");
    if (status.code == GS_DEADLINE_EXCEEDED) return gs_ok();
    return gs_error(GS_UNAVAILABLE, "a wait for %.1f ms took %.1f ms", (double)took_ns[0] / 8e6,
                    (double)took_ns[1] / 1e6);
}

static gs_status trickle_on(const gs_rank_env *env) {
    bool is_small = strcmp(env->arg, "small") == 0;
    trickle how = {.num_works = is_small ? 1000 : 1, .count = is_small ? 64 : (size_t)32 << 20};
    comm_rank self;
    how.data = calloc(how.count, sizeof *how.data);
    if (!how.data) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_comm_options options = {.helper = GS_HELPER_OFF};
    gs_status status = comm_rank_open(&self, env, 0, &options);
    if (!status.code) status = wait_for_trickle(&self, env, &how);
    comm_rank_close(&self);
    free(how.data);
    return status;
}

static const gs_rank_body bodies[] = {{"reduce", reduce_for_ever}, {"trickle", trickle_on}, {0}};

static gs_ranks *start_with(const char *failpoint, const char *arg) {
    char variable[96];
    snprintf(variable, sizeof variable, "GRADSYNC_FAILPOINTS=%s", failpoint);
    const char *environment[] = {variable, NULL};
    gs_ranks *ranks;
    assert_int_equal(gs_ranks_start(&ranks, "reduce", WORLD, arg, environment).code, GS_OK);
    return ranks;
}

static void expect_status(const gs_status *status, gs_code code, const char *text) {
    if (status->code != code || !strstr(status->message, text))
        print_error("%s: %s\n", gs_code_name(status->code), status->message);
    assert_int_equal(status->code, code);
    assert_non_null(strstr(status->message, text));
}

static void skip_without_failpoints(void) {
#ifndef GRADSYNC_FAILPOINTS
    skip();
#endif
}

static void expect_death(const char *failpoint, const char *arg) {
    gs_ranks *ranks = start_with(failpoint, arg);
    gs_status statuses[WORLD];
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)).code, GS_OK);
    gs_ranks_destroy(ranks);
    expect_status(&statuses[0], GS_ABORTED, "bucket 3, step ");
    expect_status(&statuses[0], GS_ABORTED, "rank 1 died");
    expect_status(&statuses[1], GS_ABORTED, "killed by signal 9");
    expect_status(&statuses[2], GS_ABORTED, "rank 1 died");
}

static const char *const deaths[] = {"comm.publish#1=kill@7", "comm.slice#1=kill@9",
                                     "comm.done#1=kill@8"};

static void a_rank_killed_at_any_point_is_named_by_all_survivors(void **state) {
    (void)state;
    skip_without_failpoints();
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) expect_death(deaths[i], "arena");
}

static void so_it_is_outside_the_arena_and_with_a_helper_thread(void **state) {
    (void)state;
    skip_without_failpoints();
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) {
        expect_death(deaths[i], "outside");
        expect_death(deaths[i], "helper");
    }
    expect_death(deaths[0], "small");
    expect_death(deaths[2], "small");
}

// From outside, in whatever the victim is doing, asleep included.
static void a_kill_at_any_moment_is_named(void **state) {
    (void)state;
    for (int round = 0; round < 10; round++) {
        gs_ranks *ranks = start_with("", round % 2 ? "small" : "arena");
        gs_status statuses[WORLD];
        gs_deadline deadline = gs_deadline_in_seconds(60);
        for (int rank = 0; rank < WORLD; rank++)
            assert_int_equal(gs_ranks_wait_note(ranks, rank, "ready", deadline).code, GS_OK);
        gs_ranks_signal(ranks, 1, SIGKILL);
        assert_int_equal(gs_ranks_wait(ranks, statuses, deadline).code, GS_OK);
        gs_ranks_destroy(ranks);
        expect_status(&statuses[0], GS_ABORTED, "rank 1 died");
        expect_status(&statuses[2], GS_ABORTED, "rank 1 died");
    }
}

static bool names_the_frozen(const char *failpoint, const char *text) {
    gs_ranks *ranks = start_with(failpoint, "frozen");
    gs_status statuses[WORLD];
    gs_deadline deadline = gs_deadline_in_seconds(60);
    // The survivors give up; the frozen rank is only ended afterwards.
    assert_int_equal(gs_ranks_wait_note(ranks, 0, "bucket", deadline).code, GS_OK);
    assert_int_equal(gs_ranks_wait_note(ranks, 2, "bucket", deadline).code, GS_OK);
    gs_ranks_signal(ranks, 1, SIGKILL);
    assert_int_equal(gs_ranks_wait(ranks, statuses, deadline).code, GS_OK);
    gs_ranks_destroy(ranks);
    // Whoever gives up second may find that the first has left already.
    bool first_is_0 = statuses[0].code == GS_DEADLINE_EXCEEDED;
    const gs_status *first = &statuses[first_is_0 ? 0 : 2], *second = &statuses[first_is_0 ? 2 : 0];
    bool are_right = first->code == GS_DEADLINE_EXCEEDED && strstr(first->message, text) &&
                     strstr(second->message, "bucket 3, step");
    if (!are_right) print_message("%s: %s; %s\n", failpoint, first->message, second->message);
    return are_right;
}

// On a machine that is busy with other things another rank may be late by as much, but not again and again.
static void expect_frozen(const char *failpoint, const char *text) {
    for (int attempt = 0; attempt < 5; attempt++)
        if (names_the_frozen(failpoint, text)) return;
    fail_msg("%s: %s", failpoint, text);
}

static void a_frozen_rank_is_named_at_the_deadline(void **state) {
    (void)state;
    skip_without_failpoints();
    expect_frozen("comm.slice#1=stop@9", "rank 1 did not finish within ");
    expect_frozen("comm.publish#1=stop@5", "rank 1 did not arrive within ");
    expect_frozen("comm.done#1=stop@5", "rank 1 did not finish within ");
}

static void an_error_inside_one_rank_ends_all_with_its_reason(void **state) {
    (void)state;
    skip_without_failpoints();
    gs_ranks *ranks = start_with("comm.slice#1=error@9", "arena");
    gs_status statuses[WORLD];
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)).code, GS_OK);
    gs_ranks_destroy(ranks);
    for (int rank = 0; rank < WORLD; rank++)
        expect_status(&statuses[rank], GS_INTERNAL, "failpoint comm.slice");
}

static void a_peer_that_trickles_extends_no_deadline(void **state) {
    (void)state;
    static const char *const args[] = {"small", "large"};
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        // On a machine that is busy with other things the first wait may be far too long, or the
        // second.
        int num_in_time = 0;
        for (int attempt = 0; attempt < 20 && num_in_time < 4; attempt++) {
            gs_status status = gs_ranks_run("trickle", 2, args[i], gs_deadline_in_seconds(60));
            if (status.code) print_message("%s: %s\n", args[i], status.message);
            num_in_time += !status.code;
        }
        assert_int_equal(num_in_time, 4);
    }
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_killed_at_any_point_is_named_by_all_survivors),
        cmocka_unit_test(so_it_is_outside_the_arena_and_with_a_helper_thread),
        cmocka_unit_test(a_kill_at_any_moment_is_named),
        cmocka_unit_test(a_frozen_rank_is_named_at_the_deadline),
        cmocka_unit_test(an_error_inside_one_rank_ends_all_with_its_reason),
        cmocka_unit_test(a_peer_that_trickles_extends_no_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
