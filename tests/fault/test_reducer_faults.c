// A rank dies, or fails, at each named place of a step: the others leave the step with its number,
// and what they hold allows them to go on without losing it.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/step/commit.h"
#include "tests/support/asserts.h"
#include "tests/support/grad_case.h"

#define WORLD 3
#define CULPRIT 1
#define NUM_STEPS 8

static gs_status run_step(grad_rank *rank, int64_t step) {
    gs_reduce_result reduced;
    gs_commit_result committed;
    GS_TRY(grad_rank_run_step(rank, step, &reduced, gs_deadline_in_seconds(60)));
    return gs_commit_run(&committed, rank->comm, &(gs_commit_vote){.step = step, .generation = 1},
                         gs_deadline_in_seconds(60));
}

// Notes how many steps it has applied and whether it holds the one in flight: "3 1".
static gs_status body_steps(const gs_rank_env *env) {
    grad_case model;
    grad_case_init(&model, 5, WORLD);
    model.passes_per_shard = 1;
    model.unused_percent = 0;
    if (strcmp(env->arg, "apart") == 0) model.tally = GS_TALLY_APART;
    grad_rank rank;
    gs_status status = grad_rank_open(&rank, &model, env, NULL, gs_deadline_in_seconds(60));
    int64_t applied = 0;
    char note[32];
    while (!status.code && applied < NUM_STEPS) {
        status = run_step(&rank, applied);
        applied += !status.code;
        bool complete = gs_reducer_complete(rank.reducer);
        snprintf(note, sizeof note, "%d %d", (int)applied, complete);
        gs_rank_note(env, note);
    }
    grad_rank_close(&rank);
    grad_case_release(&model);
    return status;
}

typedef struct outcome {
    gs_status statuses[WORLD];
    int applied[WORLD], complete[WORLD];
} outcome;

static void run_with(outcome *out, const char *place, const char *action, int count) {
    char failpoints[128];
    snprintf(failpoints, sizeof failpoints, "GRADSYNC_FAILPOINTS=%s#%d=%s@%d", place, CULPRIT,
             action, count);
    const char *environment[] = {failpoints, NULL};
    gs_ranks *ranks;
    const char *arg = strcmp(place, "reducer.tally") == 0 ? "apart" : "";
    assert_ok(gs_ranks_start(&ranks, "steps", WORLD, arg, environment));
    assert_ok(gs_ranks_wait(ranks, out->statuses, gs_deadline_in_seconds(60)));
    for (int r = 0; r < WORLD; r++) {
        out->applied[r] = out->complete[r] = 0;
        sscanf(gs_ranks_note(ranks, r), "%d %d", &out->applied[r], &out->complete[r]);
    }
    gs_ranks_destroy(ranks);
}

// Survivors differ by one step at most, and who is behind holds the complete gradients of it.
static void expect_nothing_lost(const outcome *out, const char *place, int least_applied) {
    int most = least_applied;
    for (int r = 0; r < WORLD; r++) {
        if (r != CULPRIT && out->applied[r] > most) most = out->applied[r];
    }
    for (int r = 0; r < WORLD; r++) {
        if (r == CULPRIT || out->applied[r] == most) continue;
        if (out->applied[r] != most - 1 || !out->complete[r])
            fail_msg("%s: rank %d applied %d of %d, complete %d", place, r, out->applied[r], most,
                     out->complete[r]);
    }
}

static const char *const places[] = {"reducer.begin",  "reducer.mark_ready", "reducer.launch",
                                     "reducer.finish", "reducer.tally",      "reducer.complete",
                                     "commit.enter",   "commit.leave"};

static void survivors_of_a_killed_rank_lose_no_step(void **state) {
    (void)state;
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        for (int count = 3; count <= 4; count++) {
            outcome out;
            run_with(&out, places[p], "kill", count);
            for (int r = 0; r < WORLD; r++) {
                assert_int_equal(out.statuses[r].code, GS_ABORTED);
                if (r != CULPRIT && !strstr(out.statuses[r].message, "rank 1"))
                    fail_msg("%s: rank %d: %s", places[p], r, out.statuses[r].message);
            }
            // Who dies behind the commit of a step may have applied it.
            bool after_commit = strcmp(places[p], "commit.leave") == 0;
            expect_nothing_lost(&out, places[p], after_commit ? count : 0);
        }
    }
}

static void error_on_one_rank_ends_the_step_on_all(void **state) {
    (void)state;
    for (size_t p = 0; p < 5; p++) {
        outcome out;
        run_with(&out, places[p], "error", 3);
        for (int r = 0; r < WORLD; r++) {
            assert_int_not_equal(out.statuses[r].code, GS_OK);
            if (!strstr(out.statuses[r].message, places[p]))
                fail_msg("%s: rank %d: %s", places[p], r, out.statuses[r].message);
        }
    }
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"steps", body_steps}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
#ifndef GRADSYNC_FAILPOINTS
    printf("skipped: this build has no failpoints\n");
    return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_of_a_killed_rank_lose_no_step),
        cmocka_unit_test(error_on_one_rank_ends_the_step_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
