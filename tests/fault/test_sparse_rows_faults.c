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
#include "tests/support/rank_death.h"
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

static int64_t check_record(const char *dir, int rank) {
    int64_t last;
    assert_ok(rank_death_check_record(&last, dir, rank, undisturbed));
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

static void kill_at(const char *place, bool posted) {
    char *dir = gs_temp_dir_make(), *other = gs_temp_dir_make();
    assert_ok(rank_death_run(dir, spec, WORLD, &(rank_death){place, 5, VICTIM}));
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
    kill_at("sparse_rows.finish", true);
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
