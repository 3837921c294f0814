// What each rank carries of its own from step to step, when one of three is killed: survivors save
// it with the rest, that of the dead one too, and the job goes on with the bits of a run that
// nothing happened to. In another world the sum over ranks is what it was; every rank's part lies
// in the checkpoint.
//
// Jobs here have the hook of tests/support/carrier_hook.h unless their specification names one.
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/reducer/reducer.h"
#include "tests/support/asserts.h"
#include "tests/support/carrier_hook.h"
#include "tests/support/rank_death.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"
#include "rpc/checkpoint/safetensors.h"
#include "worker/state/hook_choice.h"

enum { WORLD = 3, STEPS = 10, FEW_PLACES = 5 };

static const char spec_format[] =
    "{\"name\":\"residuals\",\"logical_shards\":12,\"world\":{\"min\":1,\"max\":4},"
    "\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[40,24,5]}},"
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":4,\"global_batch\":48},"
    "\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.003,\"grad_clip_norm\":1},"
    "\"reducer\":{\"hook\":{%s},\"first_bucket_bytes\":256,\"bucket_cap_bytes\":2048,"
    "\"timeout_seconds\":20},"
    "\"checkpoint\":{\"parts\":\"%s\",\"every_steps\":%d},\"steps\":{\"target\":%d}}";

gs_status __real_gs_job_hook_choose(gs_job_hook_choice *out, const gs_job_hook *hook);
gs_status __wrap_gs_job_hook_choose(gs_job_hook_choice *out, const gs_job_hook *hook);
gs_status __wrap_gs_job_hook_choose(gs_job_hook_choice *out, const gs_job_hook *hook) {
    if (hook->kind != GS_JOB_HOOK_ALLREDUCE) return __real_gs_job_hook_choose(out, hook);
    *out = (gs_job_hook_choice){.choice = {.hook = &carrier_hook}};
    return gs_ok();
}

// Ranks that do not share memory, as those of several hosts or on GPUs.
const void *__real_gs_reducer_peer_hook_data(gs_reducer *reducer, size_t index, int rank,
                                             int64_t step);
const void *__wrap_gs_reducer_peer_hook_data(gs_reducer *reducer, size_t index, int rank,
                                             int64_t step);
const void *__wrap_gs_reducer_peer_hook_data(gs_reducer *reducer, size_t index, int rank,
                                             int64_t step) {
    if (getenv("RANKS_APART")) return NULL;
    return __real_gs_reducer_peer_hook_data(reducer, index, rank, step);
}

static gs_digest undisturbed[TRAINER_RANK_MAX_STEPS];

static char *make_hooked_spec(const char *hook, const char *parts, int every_steps, int target) {
    char *spec = NULL;
    if (asprintf(&spec, spec_format, hook, parts, every_steps, target) < 0) abort();
    return spec;
}

static char *make_spec(const char *parts, int every_steps, int target) {
    return make_hooked_spec("", parts, every_steps, target);
}

static int train_undisturbed(void **state) {
    (void)state;
    char *spec = make_spec("one", 0, STEPS), *dir = gs_temp_dir_make();
    gs_status status = trainer_rank_train(undisturbed, dir, spec, WORLD, NULL);
    if (status.code) fprintf(stderr, "undisturbed run: %s\n", status.message);
    gs_temp_dir_remove(dir);
    free(spec);
    return status.code || trainer_rank_last_step(undisturbed) != STEPS;
}

// Runs to `target` from the last checkpoint of `from` (NULL: from the beginning).
static void train(gs_digest held[TRAINER_RANK_MAX_STEPS], const char *dir, const char *from,
                  int world_size, const char *spec) {
    char *checkpoint = from ? trainer_rank_checkpoint(from) : NULL;
    assert_true(!from || checkpoint);
    assert_ok(trainer_rank_train(held, dir, spec, world_size, checkpoint));
    free(checkpoint);
}

static void check_same_end(const gs_digest held[TRAINER_RANK_MAX_STEPS],
                           const gs_digest wanted[TRAINER_RANK_MAX_STEPS]) {
    for (int step = 1; step <= STEPS; step++) {
        if (gs_digest_fold(held[step]) && !gs_digest_equal(held[step], wanted[step]))
            fail_msg("step %d is not that of the undisturbed run", step);
    }
    assert_int_equal(trainer_rank_last_step(held), STEPS);
}

static void check_end(const gs_digest held[TRAINER_RANK_MAX_STEPS]) {
    check_same_end(held, undisturbed);
}

static void replaced_rank_goes_on_with_the_same_bits(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int pass;
    } places[] = {{"reducer.phase", 15}, {"step.reduced", 6},     {"commit.leave", 6},
                  {"step.applied", 6},   {"reducer.phase", 16},   {"step.begin", 6},
                  {"reducer.begin", 6},  {"reducer.launch", 14},  {"comm.publish", 33},
                  {"reducer.finish", 6}, {"reducer.complete", 6}, {"commit.enter", 6},
                  {"step.committed", 6}};
    const char *runs = getenv("GRADSYNC_RUNS");
    bool runs_all = runs && !strcmp(runs, "all");
    for (size_t i = 0; i < (runs_all ? sizeof places / sizeof places[0] : FEW_PLACES); i++) {
        gs_digest held[TRAINER_RANK_MAX_STEPS];
        char *spec = make_spec(i % 2 ? "one" : "ranks", 0, STEPS);
        char *dir = gs_temp_dir_make(), *next = gs_temp_dir_make();
        const rank_death death = {places[i].name, places[i].pass, (int)(i / 2 % 2)};
        assert_ok(rank_death_run(dir, spec, WORLD, &death));
        train(held, next, dir, WORLD, spec);
        check_end(held);
        gs_temp_dir_remove(dir);
        gs_temp_dir_remove(next);
        free(spec);
    }
}

// Errors and the factors that the next step begins with: killed before P of a bucket is sent,
// before Q, and when all is.
static void replaced_rank_of_powersgd_goes_on_with_the_same_bits(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int pass;
    } places[] = {{"reducer.launch", 15}, {"reducer.phase", 16}, {"step.committed", 7}};
    char *spec =
        make_hooked_spec("\"kind\":\"powersgd\",\"rank\":2,\"start_step\":2", "ranks", 0, STEPS);
    char *whole = gs_temp_dir_make();
    gs_digest wanted[TRAINER_RANK_MAX_STEPS], held[TRAINER_RANK_MAX_STEPS];
    train(wanted, whole, NULL, WORLD, spec);
    for (int i = 0; i < 3; i++) {
        char *dir = gs_temp_dir_make(), *next = gs_temp_dir_make();
        const rank_death death = {places[i].name, places[i].pass, i};
        assert_ok(rank_death_run(dir, spec, WORLD, &death));
        train(held, next, dir, WORLD, spec);
        check_same_end(held, wanted);
        gs_temp_dir_remove(dir);
        gs_temp_dir_remove(next);
    }
    gs_temp_dir_remove(whole);
    free(spec);
}

// The shares in a checkpoint: of each rank all elements of all tensors.
typedef struct shares {
    int world_size;
    size_t count;
    float *values;  // (world_size, count)
} shares;

// Whole tensors of part 0; the parts' rows are joined by what reads checkpoints.
static void read_rows(shares *out, const char *dir) {
    static const char *const names[] = {"fc1.weight", "bn1.weight", "bn1.bias", "fc2.weight",
                                        "fc2.bias"};
    char path[700], name[100], *checkpoint = trainer_rank_checkpoint(dir);
    gs_safetensors *file;
    if (!checkpoint) fail_msg("%s has no checkpoint", dir);
    snprintf(path, sizeof path, "%s/part-0.safetensors", checkpoint);
    assert_ok(gs_safetensors_load(&file, path));
    *out = (shares){0};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(name, sizeof name, "hook/carrier/residual/%s", names[i]);
        const gs_safetensor *tensor = gs_safetensors_find(file, name);
        if (!tensor) fail_msg("no %s", name);
        assert_int_equal(tensor->num_dims, 2);
        size_t count = (size_t)tensor->shape[1], old = out->count;
        float *values = calloc((size_t)tensor->shape[0], (old + count) * sizeof *values);
        out->world_size = (int)tensor->shape[0];
        for (size_t r = 0; r < (size_t)out->world_size; r++) {
            if (old)
                memcpy(values + r * (old + count), out->values + r * old, old * sizeof *values);
            memcpy(values + r * (old + count) + old,
                   (const char *)tensor->data + r * count * sizeof *values, count * sizeof *values);
        }
        free(out->values);
        out->values = values;
        out->count = old + count;
    }
    gs_safetensors_close(file);
    free(checkpoint);
}

// Old rank r goes on in rank r; without one, in r modulo the world, added in order.
static void check_dealt(const shares *before, const shares *after) {
    size_t num_nonzero = 0;
    assert_int_equal(before->count, after->count);
    for (int to = 0; to < after->world_size; to++) {
        for (size_t i = 0; i < after->count; i++) {
            float sum = 0;
            for (int from = to; from < before->world_size; from += after->world_size) {
                float share = before->values[(size_t)from * before->count + i];
                sum = from == to ? share : sum + share;
            }
            num_nonzero += sum != 0;
            if (after->values[(size_t)to * after->count + i] != sum)
                fail_msg("rank %d, element %zu: %a is not %a", to, i,
                         (double)after->values[(size_t)to * after->count + i], (double)sum);
        }
    }
    assert_true(num_nonzero > after->count / 2);
}

// Nothing is left to train: what is read is saved again, by the ranks of another world.
static void save_again(const char *dir, const char *from, int world_size, const char *spec) {
    char *checkpoint = trainer_rank_checkpoint(from);
    char *arg = trainer_rank_arg(spec, dir, checkpoint);
    assert_non_null(checkpoint);
    assert_ok(gs_ranks_run("train", world_size, arg, gs_deadline_in_seconds(60)));
    free(arg);
    free(checkpoint);
}

static void every_world_gets_the_same_sum(void **state) {
    (void)state;
    enum { RUNS = 4 };
    static const int worlds[RUNS - 1] = {3, 2, 4};
    char *dirs[RUNS], *parted = make_spec("ranks", 0, 4), *whole = make_spec("one", 0, 4);
    shares rows[RUNS];
    gs_digest held[TRAINER_RANK_MAX_STEPS];
    dirs[0] = gs_temp_dir_make();
    train(held, dirs[0], NULL, WORLD, whole);
    read_rows(&rows[0], dirs[0]);
    assert_int_equal(rows[0].world_size, WORLD);
    for (int i = 1; i < RUNS; i++) {
        char *between = gs_temp_dir_make();
        dirs[i] = gs_temp_dir_make();
        // In parts first, and by the same ranks in one file, which is read here.
        save_again(between, dirs[i - 1], worlds[i - 1], parted);
        save_again(dirs[i], between, worlds[i - 1], whole);
        read_rows(&rows[i], dirs[i]);
        assert_int_equal(rows[i].world_size, worlds[i - 1]);
        check_dealt(&rows[i - 1], &rows[i]);
        gs_temp_dir_remove(between);
    }
    for (int i = 0; i < RUNS; i++) {
        gs_temp_dir_remove(dirs[i]);
        free(rows[i].values);
    }
    free(parted);
    free(whole);
}

// Saved behind the training, while the next steps write beside what holds.
static void periodic_saves_are_of_one_step(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        gs_digest held[TRAINER_RANK_MAX_STEPS];
        char *spec = make_spec(i ? "one" : "ranks", 3, STEPS), pattern[700];
        char *dir = gs_temp_dir_make(), *next = gs_temp_dir_make();
        glob_t found;
        train(held, dir, NULL, WORLD, spec);
        snprintf(pattern, sizeof pattern, "%s/checkpoints/step-0000000003-*", dir);
        assert_int_equal(glob(pattern, 0, NULL, &found), 0);
        assert_int_equal(found.gl_pathc, 1);
        assert_ok(trainer_rank_train(held, next, spec, WORLD, found.gl_pathv[0]));
        check_end(held);
        globfree(&found);
        gs_temp_dir_remove(dir);
        gs_temp_dir_remove(next);
        free(spec);
    }
}

// Nothing is saved that lacks a rank's residuals: the job goes back to a checkpoint that has them.
static void what_is_not_reached_is_not_saved(void **state) {
    (void)state;
    char *spec = make_spec("ranks", 0, STEPS), *dir = gs_temp_dir_make();
    setenv("RANKS_APART", "1", 1);
    assert_ok(rank_death_run(dir, spec, WORLD, &(rank_death){"step.begin", 6, 1}));
    unsetenv("RANKS_APART");
    assert_null(trainer_rank_checkpoint(dir));
    gs_temp_dir_remove(dir);
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
        cmocka_unit_test(replaced_rank_goes_on_with_the_same_bits),
        cmocka_unit_test(replaced_rank_of_powersgd_goes_on_with_the_same_bits),
        cmocka_unit_test(every_world_gets_the_same_sum),
        cmocka_unit_test(periodic_saves_are_of_one_step),
        cmocka_unit_test(what_is_not_reached_is_not_saved),
    };
    return cmocka_run_group_tests(tests, train_undisturbed, NULL);
}
