// The harness itself: a test that believes a broken harness believes anything.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/ranks.h"

static gs_status exchange_numbers(const gs_rank_env *env) {
    gs_deadline deadline = gs_deadline_in_seconds(60);
    for (int64_t round = 0; round < 50; round++) {
        int64_t mine[1000] = {env->rank, round}, all[8 * 1000];
        GS_TRY(gs_rank_exchange(env->exchange, "numbers", NULL, 0, mine, sizeof mine, all, deadline));
        for (int i = 0; i < env->world_size; i++) {
            if (all[i * 1000] != i || all[i * 1000 + 1] != round)
                return gs_error(GS_DATA_LOSS, "round %d: wrong bytes of rank %d", (int)round, i);
        }
    }
    return gs_ok();
}

// Two groups and all of them together, at different paces.
static gs_status exchange_in_groups(const gs_rank_env *env) {
    gs_deadline deadline = gs_deadline_in_seconds(60);
    bool odd = env->rank % 2;
    int ranks[8], num_ranks = 0, all[8];
    for (int i = odd; i < env->world_size; i += 2) ranks[num_ranks++] = i;
    for (int round = 0; round < (odd ? 30 : 7); round++) {
        int mine = env->rank * 100 + round;
        GS_TRY(gs_rank_exchange(env->exchange, odd ? "odd" : "even", ranks, num_ranks, &mine,
                                sizeof mine, all, deadline));
        for (int i = 0; i < num_ranks; i++) {
            if (all[i] != ranks[i] * 100 + round)
                return gs_error(GS_DATA_LOSS, "round %d: wrong bytes of rank %d", round, ranks[i]);
        }
    }
    return gs_rank_exchange(env->exchange, "end", NULL, 0, &env->rank, sizeof env->rank, all, deadline);
}

static gs_status disagree_on_tag(const gs_rank_env *env) {
    char all[64];
    return gs_rank_exchange(env->exchange, env->rank == 1 ? "left" : "right", NULL, 0, "x", 1, all,
                            gs_deadline_in_seconds(60));
}

static gs_status leave_before_exchange(const gs_rank_env *env) {
    char all[64];
    if (env->rank == 1) return gs_ok();
    return gs_rank_exchange(env->exchange, "late", NULL, 0, "x", 1, all, gs_deadline_in_seconds(60));
}

static gs_status note_and_wait(const gs_rank_env *env) {
    gs_rank_note(env, "first");
    gs_rank_note(env, env->arg);
    if (env->rank == 0) pause();
    return gs_error(GS_NOT_FOUND, "rank %d of %d", env->rank, env->world_size);
}

static const gs_rank_body bodies[] = {{"exchange", exchange_numbers},
                                      {"groups", exchange_in_groups},
                                      {"disagree", disagree_on_tag},
                                      {"leave", leave_before_exchange},
                                      {"note", note_and_wait},
                                      {0}};

static void exchange_gives_every_rank_all_bytes(void **state) {
    (void)state;
    gs_status status = gs_ranks_run("exchange", 5, NULL, gs_deadline_in_seconds(60));
    assert_string_equal(status.message, "");
}

static void groups_exchange_beside_each_other(void **state) {
    (void)state;
    gs_status status = gs_ranks_run("groups", 5, NULL, gs_deadline_in_seconds(60));
    assert_string_equal(status.message, "");
}

static void different_tags_fail_on_every_rank(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[3];
    assert_int_equal(gs_ranks_start(&ranks, "disagree", 3, NULL, NULL).code, GS_OK);
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)).code, GS_OK);
    // A rank that came later finds that another one has ended.
    for (int i = 0; i < 3; i++) assert_int_not_equal(statuses[i].code, GS_OK);
    gs_ranks_destroy(ranks);
}

static void exchange_with_an_ended_rank_is_aborted(void **state) {
    (void)state;
    gs_status status = gs_ranks_run("leave", 2, NULL, gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_ABORTED);
    assert_non_null(strstr(status.message, "rank 1 has ended"));
}

static void notes_statuses_and_signals_arrive(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[2];
    assert_int_equal(gs_ranks_start(&ranks, "note", 2, "hello", NULL).code, GS_OK);
    gs_deadline deadline = gs_deadline_in_seconds(60);
    assert_int_equal(gs_ranks_wait_note(ranks, 0, "hel", deadline).code, GS_OK);
    assert_string_equal(gs_ranks_note(ranks, 0), "hello");
    gs_ranks_signal(ranks, 0, SIGKILL);
    assert_int_equal(gs_ranks_wait(ranks, statuses, deadline).code, GS_OK);
    assert_int_equal(statuses[0].code, GS_ABORTED);
    assert_string_equal(statuses[0].message, "killed by signal 9");
    assert_int_equal(statuses[1].code, GS_NOT_FOUND);
    assert_string_equal(statuses[1].message, "rank 1 of 2");
    gs_ranks_destroy(ranks);
}

static void a_rank_that_never_ends_is_killed_and_reported(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[2];
    assert_int_equal(gs_ranks_start(&ranks, "note", 2, "", NULL).code, GS_OK);
    gs_status status = gs_ranks_wait(ranks, statuses, gs_deadline_in_ms(300));
    assert_int_equal(status.code, GS_DEADLINE_EXCEEDED);
    assert_int_equal(statuses[0].code, GS_DEADLINE_EXCEEDED);
    gs_ranks_destroy(ranks);
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchange_gives_every_rank_all_bytes),
        cmocka_unit_test(groups_exchange_beside_each_other),
        cmocka_unit_test(different_tags_fail_on_every_rank),
        cmocka_unit_test(exchange_with_an_ended_rank_is_aborted),
        cmocka_unit_test(notes_statuses_and_signals_arrive),
        cmocka_unit_test(a_rank_that_never_ends_is_killed_and_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
