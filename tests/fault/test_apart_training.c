// Jobs whose ranks train apart (reducer.hook local_sgd, noop): ranks hold the same where they are
// averaged whole and before they part, what is saved is one state and goes on with the bits of a
// run that nothing happened to, and where a rank is killed, nothing else is saved.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/near.h"
#include "tests/support/rank_death.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"

enum { WORLD = 3, STEPS = 12, EVERY = 5, START = 2 };

#define LOCAL_SGD "\"kind\":\"local_sgd\",\"start_step\":2,\"period\":4,\"local_ranks\":1"
#define ADAMW "\"kind\":\"adamw\",\"lr\":0.003,\"grad_clip_norm\":1"
#define SGD "\"kind\":\"sgd\",\"lr\":0.05"

static const char spec_format[] =
    "{\"name\":\"apart\",\"logical_shards\":3,\"world\":{\"min\":1,\"max\":3},"
    "\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[40,24,5]}%s},"
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":4,\"global_batch\":12},"
    "\"optimizer\":{%s},"
    "\"reducer\":{\"first_bucket_bytes\":256,\"bucket_cap_bytes\":2048,\"timeout_seconds\":20,"
    "\"check_replicas_every_steps\":1,\"hook\":{%s}},"
    "\"checkpoint\":{\"every_steps\":5},\"steps\":{\"target\":%d}}";

typedef struct records {
    gs_digest held[WORLD][TRAINER_RANK_MAX_STEPS];
} records;

static char *make_spec_freezing(const char *freeze, const char *hook, const char *optimizer,
                                int target) {
    char *spec = NULL;
    if (asprintf(&spec, spec_format, freeze, optimizer, hook, target) < 0) abort();
    return spec;
}

static char *make_spec(const char *hook, const char *optimizer, int target) {
    return make_spec_freezing("", hook, optimizer, target);
}

static void read_records(records *out, const char *dir) {
    char problem[160] = "";
    for (int rank = 0; rank < WORLD; rank++)
        if (!trainer_rank_read_record(out->held[rank], dir, rank, problem)) fail_msg("%s", problem);
}

// To `target` in `dir`, from the last checkpoint of `from` (NULL: from the beginning).
static void train_ranks(records *out, int num_ranks, const char *dir, const char *from,
                        const char *hook, const char *optimizer, int target) {
    char *checkpoint = from ? trainer_rank_checkpoint(from) : NULL;
    assert_true(!from || checkpoint);
    char *spec = make_spec(hook, optimizer, target), *arg = trainer_rank_arg(spec, dir, checkpoint);
    assert_ok(gs_ranks_run("train", num_ranks, arg, gs_deadline_in_seconds(120)));
    read_records(out, dir);
    for (int rank = 0; rank < num_ranks; rank++)
        assert_int_equal(trainer_rank_last_step(out->held[rank]), target);
    free(arg);
    free(spec);
    free(checkpoint);
}

static void train(records *out, const char *dir, const char *from, const char *hook,
                  const char *optimizer, int target) {
    train_ranks(out, WORLD, dir, from, hook, optimizer, target);
}

static bool ranks_agree(const records *of, int step) {
    const gs_digest *first = &of->held[0][step];
    return gs_digest_equal(*first, of->held[1][step]) && gs_digest_equal(*first, of->held[2][step]);
}

static records undisturbed;

static int train_undisturbed(void **state) {
    (void)state;
    char *dir = gs_temp_dir_make();
    train(&undisturbed, dir, NULL, LOCAL_SGD, ADAMW, STEPS);
    gs_temp_dir_remove(dir);
    return 0;
}

static void ranks_hold_one_state_where_it_is_saved(void **state) {
    (void)state;
    for (int step = 1; step <= STEPS; step++) {
        bool is_one = step <= START || step % EVERY == 0 || step == STEPS;
        if (ranks_agree(&undisturbed, step) != is_one)
            fail_msg("after %d steps ranks hold %s", step,
                     is_one ? "different states" : "the same");
    }
}

static void check_resumed(const records *of, const records *wanted) {
    for (int rank = 0; rank < WORLD; rank++) {
        for (int step = 1; step <= STEPS; step++) {
            gs_digest held = of->held[rank][step];
            if (gs_digest_fold(held) && !gs_digest_equal(held, wanted->held[rank][step]))
                fail_msg("rank %d, step %d: not that of the undisturbed run", rank, step);
        }
    }
}

static void check_resume(const char *hook, const records *wanted) {
    records held;
    char *dir = gs_temp_dir_make(), *next = gs_temp_dir_make();
    train(&held, dir, NULL, hook, ADAMW, EVERY);
    train(&held, next, dir, hook, ADAMW, STEPS);
    check_resumed(&held, wanted);
    gs_temp_dir_remove(dir);
    gs_temp_dir_remove(next);
}

// Groups, too: two of the ranks average behind steps 2, 4, 8 and 10, all behind step 6.
static void resumed_job_has_the_same_bits(void **state) {
    (void)state;
    static const char tree[] =
        "\"kind\":\"local_sgd\",\"start_step\":2,\"period\":6,\"local_ranks\":1,"
        "\"group_averages\":[{\"period\":2,\"group_size\":2}]";
    records wanted;
    char *dir = gs_temp_dir_make();
    check_resume(LOCAL_SGD, &undisturbed);
    train(&wanted, dir, NULL, tree, ADAMW, STEPS);
    check_resume(tree, &wanted);
    gs_temp_dir_remove(dir);
}

// Of two ranks that are left a group is all: what it averages is one state, with the bits of a job without groups.
static void a_world_of_one_group_is_one_state_where_it_averages(void **state) {
    (void)state;
    static const char grouped[] =
        "\"kind\":\"local_sgd\",\"start_step\":2,\"period\":6,\"local_ranks\":1,"
        "\"group_averages\":[{\"period\":2,\"group_size\":2}]";
    static const char plain[] = "\"kind\":\"local_sgd\",\"start_step\":2,\"period\":2,\"local_ranks\":1";
    records of_three, of_two, without;
    char *dirs[4];
    for (int i = 0; i < 4; i++) dirs[i] = gs_temp_dir_make();
    train(&of_three, dirs[0], NULL, grouped, SGD, EVERY);
    train_ranks(&of_two, 2, dirs[1], dirs[0], grouped, SGD, STEPS);
    for (int step = EVERY + 1; step <= STEPS; step++) {
        bool is_one = step % 2 == 1 || step % EVERY == 0 || step == STEPS;
        assert_int_equal(gs_digest_equal(of_two.held[0][step], of_two.held[1][step]), is_one);
    }
    train_ranks(&of_two, 2, dirs[2], NULL, grouped, ADAMW, STEPS);
    train_ranks(&without, 2, dirs[3], NULL, plain, ADAMW, STEPS);
    for (int rank = 0; rank < 2; rank++)
        assert_memory_equal(of_two.held[rank], without.held[rank], sizeof without.held[rank]);
    for (int i = 0; i < 4; i++) gs_temp_dir_remove(dirs[i]);
}

static void before_the_start_it_is_a_plain_job(void **state) {
    (void)state;
    records late, plain;
    char *dir = gs_temp_dir_make(), *plain_dir = gs_temp_dir_make();
    train(&late, dir, NULL, "\"kind\":\"local_sgd\",\"start_step\":6,\"local_ranks\":1", ADAMW, 6);
    train(&plain, plain_dir, NULL, "\"kind\":\"allreduce\"", ADAMW, 6);
    for (int rank = 0; rank < WORLD; rank++)
        assert_memory_equal(late.held[rank], plain.held[rank], sizeof plain.held[rank]);
    gs_temp_dir_remove(dir);
    gs_temp_dir_remove(plain_dir);
}

// An update of plain SGD is linear in the gradient: the mean of updates is the update of the mean.
static void averages_of_every_step_are_a_plain_job(void **state) {
    (void)state;
    static const struct {
        const char *hook;
        int steps;
    } jobs[] = {{"\"kind\":\"local_sgd\",\"start_step\":0,\"period\":1,\"local_ranks\":1", 6},
                {"\"kind\":\"local_sgd\",\"start_step\":0,\"period\":1,\"local_ranks\":2", 3},
                {"\"kind\":\"local_sgd\",\"start_step\":0,\"period\":3", 3},  // all of a host
                {"\"kind\":\"noop\"", 1}};
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        records held;
        char *dir = gs_temp_dir_make(), *plain_dir = gs_temp_dir_make();
        train(&held, dir, NULL, jobs[i].hook, SGD, jobs[i].steps);
        train(&held, plain_dir, NULL, "\"kind\":\"allreduce\"", SGD, jobs[i].steps);
        assert_ok(
            trainer_rank_check_near(dir, plain_dir, (gs_near){.absolute = 1e-6, .relative = 1e-5}));
        gs_temp_dir_remove(dir);
        gs_temp_dir_remove(plain_dir);
    }
}

// Averages over two of three ranks behind each step stand for gradients of two ranks; where the ranks agree follows
// from the table.
static void groups_average_between_averages_of_all(void **state) {
    (void)state;
    records held, plain;
    enum { GROUP_STEPS = 5 };
    char *dir = gs_temp_dir_make(), *plain_dir = gs_temp_dir_make();
    train(&held, dir, NULL,
          "\"kind\":\"local_sgd\",\"start_step\":0,\"period\":4,\"local_ranks\":1,"
          "\"group_averages\":[{\"period\":1,\"group_size\":2}]",
          SGD, GROUP_STEPS);
    train(&plain, plain_dir, NULL,
          "\"kind\":\"local_sgd\",\"start_step\":0,\"period\":4,\"local_ranks\":2", SGD, GROUP_STEPS);
    assert_ok(trainer_rank_check_near(dir, plain_dir, (gs_near){.absolute = 1e-6, .relative = 1e-5}));
    gs_temp_dir_remove(plain_dir);
    gs_temp_dir_remove(dir);
    dir = gs_temp_dir_make();
    train(&held, dir, NULL,
          "\"kind\":\"local_sgd\",\"start_step\":0,\"period\":6,\"local_ranks\":1,"
          "\"group_averages\":[{\"period\":2,\"group_size\":2}]",
          SGD, 9);
    // Steps count from 0, so behind steps 0 and 6 all; 2, 4 and 8 two of them; 5 and 9 steps are saved.
    static const char agree[] = {[1] = 3, [3] = 2, [5] = 3, [7] = 3, [9] = 3};
    for (int step = 1; step <= 9; step++) {
        const gs_digest first = held.held[0][step];
        int count = 1 + gs_digest_equal(first, held.held[1][step]) + gs_digest_equal(first, held.held[2][step]);
        assert_int_equal(count, agree[step] ? agree[step] : 1);
    }
    gs_temp_dir_remove(dir);
}

static void without_communication_ranks_end_with_one_state(void **state) {
    (void)state;
    records held;
    char *dir = gs_temp_dir_make();
    train(&held, dir, NULL, "\"kind\":\"noop\"", ADAMW, 7);
    for (int step = 1; step <= 7; step++)
        assert_int_equal(ranks_agree(&held, step), step % EVERY == 0 || step == 7);
    gs_temp_dir_remove(dir);
}

// Of `name` in `dir`, what trainers leave of their parameters.
static void read_floats(float *out, size_t count, const char *dir, const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fread(out, sizeof *out, count, file), count);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

// The mean of three equal values has other last bits than they: what does not move is in no average.
static void what_is_frozen_keeps_its_bits(void **state) {
    (void)state;
    enum { FROZEN = 40 * 24, ALL = FROZEN + 2 * 24 + 24 * 5 + 5 };
    static const char momentum[] =
        "\"kind\":\"sgd\",\"lr\":0.05,\"momentum\":0.9,\"zero_grad\":\"zero\"";
    static float before[ALL], after[ALL];
    char *dir = gs_temp_dir_make(), *arg;
    char *spec = make_spec_freezing(",\"freeze\":[{\"params\":\"fc1.weight\"}]", LOCAL_SGD,
                                    momentum, STEPS);
    if (asprintf(&arg, "{\"spec\":%s,\"dir\":\"%s\",\"params\":true}", spec, dir) < 0) abort();
    assert_ok(gs_ranks_run("train", WORLD, arg, gs_deadline_in_seconds(120)));
    read_floats(before, ALL, dir, "initial-0");
    read_floats(after, ALL, dir, "params-0");
    assert_memory_equal(after, before, FROZEN * sizeof *after);
    assert_memory_not_equal(after + FROZEN, before + FROZEN, (ALL - FROZEN) * sizeof *after);
    free(arg);
    free(spec);
    gs_temp_dir_remove(dir);
}

// Averages are behind steps 2 and 6 of parameters, behind 4 and 9 whole. What survivors hold
// elsewhere is no state of the job.
static void killed_job_goes_on_from_its_last_checkpoint(void **state) {
    (void)state;
    static const rank_death deaths[] = {
        {"step.applied", 9, 1},     // ranks are apart
        {"averager.adopt", 3, 2},   // parameters are one, optimizer state is not
        {"step.average", 9, 1},     // of a step behind which none is due
        {"averager.adopt", 4, 1}};  // in the average before a save
    char *spec = make_spec(LOCAL_SGD, ADAMW, STEPS);
    for (size_t i = 0; i < sizeof deaths / sizeof deaths[0]; i++) {
        records held;
        char *dir = gs_temp_dir_make(), *next = gs_temp_dir_make();
        assert_ok(rank_death_run(dir, spec, WORLD, &deaths[i]));
        train(&held, next, dir, LOCAL_SGD, ADAMW, STEPS);
        assert_int_equal(gs_digest_fold(held.held[0][EVERY]), 0);  // it began there
        assert_int_not_equal(gs_digest_fold(held.held[0][EVERY + 1]), 0);
        check_resumed(&held, &undisturbed);
        gs_temp_dir_remove(dir);
        gs_temp_dir_remove(next);
    }
    free(spec);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
#ifndef GRADSYNC_FAILPOINTS
    puts("skipped: a build without failpoints");
    return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_hold_one_state_where_it_is_saved),
        cmocka_unit_test(resumed_job_has_the_same_bits),
        cmocka_unit_test(a_world_of_one_group_is_one_state_where_it_averages),
        cmocka_unit_test(before_the_start_it_is_a_plain_job),
        cmocka_unit_test(averages_of_every_step_are_a_plain_job),
        cmocka_unit_test(groups_average_between_averages_of_all),
        cmocka_unit_test(without_communication_ranks_end_with_one_state),
        cmocka_unit_test(what_is_frozen_keeps_its_bits),
        cmocka_unit_test(killed_job_goes_on_from_its_last_checkpoint),
    };
    return cmocka_run_group_tests(tests, train_undisturbed, NULL);
}
