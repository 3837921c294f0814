// A rank dies while rows of the embedding are under way: the others end at one step boundary, and a
// resume at the same world size has the bits of a run that nothing disturbed.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"

#define WORLD 3
#define STEPS 12
#define VICTIM 1

static const char spec[] =
    "{\"name\":\"rows\",\"model\":{\"kind\":\"gpt2\",\"gpt2\":{\"layers\":1,\"heads\":2,"
    "\"channels\":16,"
    "\"context\":12,\"vocab\":600,\"layer_drop\":0.2}},\"data\":{\"kind\":\"synthetic\","
    "\"micro_batch\":1},\"world\":{\"min\":1,\"max\":3},\"reducer\":{\"sparse_embedding\":"
    "\"owner\","
    "\"first_bucket_bytes\":1024,\"bucket_cap_bytes\":4096,\"timeout_seconds\":20},"
    "\"steps\":{\"target\":12}}";

static gs_digest undisturbed[TRAINER_RANK_MAX_STEPS];

// Every state that the rank had is one of the undisturbed run; returns where it ended.
static int64_t check_record(const char *dir, int rank) {
    gs_digest held[TRAINER_RANK_MAX_STEPS];
    char problem[160];
    if (!trainer_rank_read_record(held, dir, rank, problem)) fail_msg("%s", problem);
    int64_t last = trainer_rank_last_step(held);
    for (int64_t step = 1; step <= last; step++) {
        if (gs_digest_fold(held[step]) && !gs_digest_equal(held[step], undisturbed[step]))
            fail_msg("rank %d: step %lld is not that of the undisturbed run", rank,
                     (long long)step);
    }
    return last;
}

static void train(const char *dir, const char *resume) {
    char *arg = trainer_rank_arg(spec, dir, resume);
    assert_ok(gs_ranks_run("train", WORLD, arg, gs_deadline_in_seconds(120)));
    free(arg);
}

static int train_undisturbed(void **state) {
    (void)state;
    char *dir = gs_temp_dir_make(), problem[160];
    train(dir, NULL);
    bool same = trainer_rank_read_record(undisturbed, dir, 0, problem);
    gs_temp_dir_remove(dir);
    return !same || trainer_rank_last_step(undisturbed) != STEPS;
}

// The killed rank's status comes first; then the survivors may settle without it.
static void wait_for_the_end(gs_ranks *ranks, const char *dir) {
    gs_status statuses[WORLD];
    for (int rank = 0; rank < WORLD; rank++) {
        if (rank != VICTIM)
            assert_ok(gs_ranks_wait_note(ranks, rank, "settling", gs_deadline_in_seconds(60)));
    }
    trainer_rank_declare_dead(dir, VICTIM);
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(120)));
    assert_non_null(strstr(statuses[VICTIM].message, "killed by signal 9"));
    for (int rank = 0; rank < WORLD; rank++) {
        if (rank == VICTIM) continue;
        assert_ok(statuses[rank]);
        if (strncmp(gs_ranks_note(ranks, rank), "end aborted", 11) != 0)
            fail_msg("rank %d: %s", rank, gs_ranks_note(ranks, rank));
    }
}

static void kill_at(const char *place, bool posted) {
    gs_ranks *ranks;
    char armed[96], *dir = gs_temp_dir_make(), *other = gs_temp_dir_make();
    char *arg = trainer_rank_arg(spec, dir, NULL);
    snprintf(armed, sizeof armed, "GRADSYNC_FAILPOINTS=%s#%d=kill@5", place, VICTIM);
    assert_ok(gs_ranks_start(&ranks, "train", WORLD, arg, (const char *const[]){armed, NULL}));
    wait_for_the_end(ranks, dir);
    gs_ranks_destroy(ranks);
    // It died in its fifth step. With its rows posted the others may have all of the step: both or
    // none.
    int64_t reached = check_record(dir, 0);
    assert_int_equal(check_record(dir, 2), reached);
    assert_in_range(reached, 4, posted ? 5 : 4);
    char *checkpoint = trainer_rank_checkpoint(dir);
    assert_non_null(checkpoint);
    train(other, checkpoint);
    for (int rank = 0; rank < WORLD; rank++) assert_int_equal(check_record(other, rank), STEPS);
    gs_temp_dir_remove(dir);
    gs_temp_dir_remove(other);
    free(checkpoint);
    free(arg);
}

static void a_rank_that_dies_before_its_rows_leaves_the_others_at_a_step_boundary(void **state) {
    (void)state;
#ifndef GRADSYNC_FAILPOINTS
    skip();
#endif
    kill_at("sparse_rows.post", false);
}

static void
a_rank_that_dies_with_rows_in_flight_leaves_the_others_at_a_step_boundary(void **state) {
    (void)state;
#ifndef GRADSYNC_FAILPOINTS
    skip();
#endif
    kill_at("reducer.finish", true);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_dies_before_its_rows_leaves_the_others_at_a_step_boundary),
        cmocka_unit_test(a_rank_that_dies_with_rows_in_flight_leaves_the_others_at_a_step_boundary),
    };
    return cmocka_run_group_tests(tests, train_undisturbed, NULL);
}
