// A sharded run, of which no rank has the whole state: one of three ranks is killed at each named
// place of a step. Survivors save nothing and claim nothing, and ranks go back to what all of them
// had saved, with the bits of a run that nothing happened to. And what all save together is skipped
// together when one of them cannot keep up.
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "rpc/json/sealed_json.h"
#include "tests/support/asserts.h"
#include "tests/support/rank_death.h"
#include "tests/support/ranks.h"
#include "tests/support/sample.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_device.h"
#include "tests/support/trainer_rank.h"

enum { WORLD = 3, STEPS = 8, EVERY = 2 };

static const char spec_format[] =
    "{\"name\":\"sharded\",\"exact\":true,\"logical_shards\":%d,\"world\":{\"min\":%d,\"max\":%d},"
    "\"model\":{\"kind\":\"mlp\",\"precision\":\"%s\"%s,\"mlp\":{\"dims\":[40,%d,16,5],\"batch_"
    "norm\":\"local\"}},"
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":4},"
    "\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.003%s},"
    "\"reducer\":{\"first_bucket_bytes\":64,\"bucket_cap_bytes\":256,\"timeout_seconds\":20,"
    "\"sharding\":%s},"
    "\"checkpoint\":{\"every_steps\":%d},\"debug\":{\"step_delay_ms\":%d},\"steps\":{\"target\":%d}"
    "}";

typedef struct sharded_job {
    int logical_shards, least_ranks, most_ranks;
    int ranks_after;  // of who goes on
    int width;
    const char *precision, *optimizer, *sharding;
    const char *freeze;      // "": all parameters train
    bool has_common_params;  // of all ranks in one memory; else they are gathered
} sharded_job;

#define CLIPPED ",\"grad_clip_norm\":1"

static const sharded_job of_optimizer = {4,  1,   4, 2, 24, "fp32", CLIPPED, "\"optimizer\"",
                                         "", true};
// Each pass is reduced: a rank's shards are one.
static const sharded_job of_gradients = {
    3, 3, 3, 3, 24, "fp16", CLIPPED ",\"loss_scale\":{\"init\":1024}", "\"gradients\"", "", false};
static const sharded_job overlapped = {
    4, 1, 4, 2, 24, "bf16", "", "\"optimizer\",\"zero_overlap\":\"interleaved\"", "", false};
// Masters in halves, of which the upper ones are everybody's.
static const sharded_job of_halves = {4, 1, 4, 2, 24, "bf16", CLIPPED, "\"optimizer\"", "", true};
// With a parameter that travels in slices.
static const sharded_job wide = {3, 3, 3, 3, 400, "fp32", CLIPPED, "\"gradients\"", "", false};
// Other parameters train from the fourth step on.
static const char other_params[] =
    ",\"freeze\":[{\"params\":\"fc1.*\",\"until_step\":3},{\"params\":\"*.bias\",\"from_step\":3}]";
static const sharded_job frozen = {
    4, 1, 4, 2, 24, "fp32", CLIPPED, "\"optimizer\"", other_params, false};
static const sharded_job frozen_in_one_memory = {
    4, 1, 4, 2, 24, "fp32", CLIPPED, "\"optimizer\"", other_params, true};

static char *make_spec(const sharded_job *job, int step_delay_ms) {
    char *spec = NULL;
    if (asprintf(&spec, spec_format, job->logical_shards, job->least_ranks, job->most_ranks,
                 job->precision, job->freeze, job->width, job->optimizer, job->sharding, EVERY,
                 step_delay_ms, STEPS) < 0)
        abort();
    return spec;
}

// Between steps, so that most saves are written before the next is due; all of them where a rank dies in one: the last
// of a run finds no survivors that train.
static int pause_ms(const rank_death *death) {
    bool is_of_save = strncmp(death->place, "checkpoint.", 11) == 0 ||
                      strncmp(death->place, "safetensors.", 12) == 0;
    return is_of_save ? 200 : 40;
}

static void train_undisturbed(gs_digest held[TRAINER_RANK_MAX_STEPS], const char *spec) {
    char *dir = gs_temp_dir_make();
    assert_ok(trainer_rank_train(held, dir, spec, WORLD, NULL));
    assert_int_equal(trainer_rank_last_step(held), STEPS);
    gs_temp_dir_remove(dir);
}

// Of the checkpoint in `path`; "" when there is none.
static const char *read_reason(const char *path) {
    static char reason[40];
    char manifest_path[800];
    gs_json *manifest = NULL;
    snprintf(manifest_path, sizeof manifest_path, "%s/MANIFEST.json", path);
    if (gs_sealed_json_read(&manifest, manifest_path).code) return "";
    snprintf(reason, sizeof reason, "%s", gs_json_string_or(manifest, "reason", ""));
    gs_json_release(manifest);
    return reason;
}

// Who claims a state has it whole: while parameters are on their way that is none, but who had not
// yet left the commit still has the one before.
static void check_claims(const char *dir, const rank_death *death,
                         const gs_digest undisturbed[TRAINER_RANK_MAX_STEPS]) {
    for (int rank = 0; rank < WORLD; rank++) {
        gs_digest claimed;
        int64_t step;
        if (rank == death->rank) continue;
        assert_true(trainer_rank_read_outcome(&claimed, &step, dir, rank));
        if (gs_digest_fold(claimed) == 0) continue;
        if (!gs_digest_equal(claimed, undisturbed[step]))
            fail_msg("rank %d claims a state that is none, of step %lld", rank, (long long)step);
    }
}

static void kill_at(const sharded_job *job, const rank_death *death,
                    const gs_digest undisturbed[TRAINER_RANK_MAX_STEPS]) {
    char *spec = make_spec(job, pause_ms(death)), *dir = gs_temp_dir_make(), *next = gs_temp_dir_make(),
         *left;
    int64_t last;
    assert_ok(rank_death_run(dir, spec, WORLD, death));
    for (int rank = 0; rank < WORLD; rank++)
        assert_ok(rank_death_check_record(&last, dir, rank, undisturbed));
    check_claims(dir, death, undisturbed);
    left = trainer_rank_checkpoint(dir);
    if (left) assert_string_equal(read_reason(left), "periodic");
    char *arg = trainer_rank_arg(spec, next, left);
    assert_ok(gs_ranks_run("train", job->ranks_after, arg, gs_deadline_in_seconds(120)));
    for (int rank = 0; rank < job->ranks_after; rank++) {
        assert_ok(rank_death_check_record(&last, next, rank, undisturbed));
        assert_int_equal(last, STEPS);
    }
    gs_temp_dir_remove(dir);
    gs_temp_dir_remove(next);
    free(left);
    free(arg);
    free(spec);
}

// With a seed every fourth place, other ones under the other sanitizer; GRADSYNC_RUNS=all for each.
static bool is_drawn(size_t place) {
#ifdef __SANITIZE_THREAD__
    uint64_t turn = 1;
#else
    uint64_t turn = 0;
#endif
    const char *runs = getenv("GRADSYNC_RUNS");
    if (!getenv("GRADSYNC_SEED") || (runs && strcmp(runs, "all") == 0)) return true;
    return (sample_number("GRADSYNC_SEED", 0) + place + turn) % 4 == 0;
}

static void kill_at_each(const sharded_job *job, const rank_death *deaths, size_t num_deaths) {
    gs_digest undisturbed[TRAINER_RANK_MAX_STEPS];
    char *spec = make_spec(job, 0);
    setenv("GRADSYNC_COMMON_PARAMS", job->has_common_params ? "1" : "0", 1);
    train_undisturbed(undisturbed, spec);
    for (size_t i = 0; i < num_deaths; i++)
        if (is_drawn(i)) kill_at(job, &deaths[i], undisturbed);
    free(spec);
}

// A step has four buckets, of which each is reduced. Its plan stays.
static const rank_death deaths_in_a_step[] = {
    {"step.begin", 4, 1},       {"reducer.launch", 18, 0},     {"comm.done", 40, 1},
    {"reducer.finish", 5, 0},   {"commit.enter", 5, 1},        {"commit.leave", 5, 0},
    {"step.committed", 5, 1},   {"safetensors.rename", 2, 1},  {"step.applied", 5, 0},
    {"step.backward", 5, 1},    {"checkpoint.write", 1, 1},    {"reducer.tally", 5, 1},
    {"step.reduced", 5, 0},     {"checkpoint.rename", 2, 0},   {"reducer.begin", 5, 1},
    {"step.forward", 5, 0},     {"reducer.mark_ready", 30, 1}, {"comm.publish", 40, 0},
    {"reducer.complete", 5, 1}, {"safetensors.write", 3, 0}};
#define NUM_DEATHS (sizeof deaths_in_a_step / sizeof deaths_in_a_step[0])

// An owner says once a step that what it has updated is whole.
static const rank_death deaths_in_one_memory[] = {
    {"sharded.gather", 5, 0}, {"sharded.gather", 6, 1}, {"step.committed", 6, 0}};
#define NUM_DEATHS_IN_ONE (sizeof deaths_in_one_memory / sizeof deaths_in_one_memory[0])

static void a_sharded_optimizer_goes_back_to_its_checkpoint(void **state) {
    (void)state;
    kill_at_each(&of_optimizer, deaths_in_a_step, NUM_DEATHS);
    kill_at_each(&of_optimizer, deaths_in_one_memory, NUM_DEATHS_IN_ONE);
}

static void halves_in_one_memory_go_back_to_their_checkpoint(void **state) {
    (void)state;
    kill_at_each(&of_halves, deaths_in_one_memory, NUM_DEATHS_IN_ONE);
}

// Each bucket's parameters are gathered.
static void sharded_gradients_go_back_to_their_checkpoint(void **state) {
    (void)state;
    static const rank_death deaths[] = {{"sharded.gather", 21, 0}, {"sharded.gather", 23, 1}};
    kill_at_each(&of_gradients, deaths_in_a_step, NUM_DEATHS);
    kill_at_each(&of_gradients, deaths, sizeof deaths / sizeof deaths[0]);
}

// Between updates of its buckets, while others are reduced; between the last of them and the
// commit.
static void an_overlapped_update_goes_back_to_its_checkpoint(void **state) {
    (void)state;
    static const rank_death deaths[] = {{"optimizer.early", 21, 1},
                                        {"sharded.gather", 22, 0},
                                        {"reducer.squares", 5, 0},
                                        {"step.reduced", 5, 1}};
    kill_at_each(&overlapped, deaths, sizeof deaths / sizeof deaths[0]);
}

// Where others than before train from then on: what was sent by the plan of before has arrived, or
// what is sent by the new one has not. Of the second change; the first is the session's beginning.
static void a_change_of_what_trains_goes_back_to_its_checkpoint(void **state) {
    (void)state;
    static const rank_death deaths[] = {
        {"freeze.turn", 2, 0}, {"freeze.turned", 2, 1}, {"sharded.gather", 14, 0}};
    kill_at_each(&frozen, deaths, sizeof deaths / sizeof deaths[0]);
    kill_at_each(&frozen_in_one_memory, deaths, 2);
}

static void large_parameters_go_back_to_their_checkpoint(void **state) {
    (void)state;
    static const rank_death deaths[] = {
        {"comm.slice", 12, 0}, {"comm.slice", 13, 1}, {"comm.slice", 17, 0}};
    kill_at_each(&wide, deaths, sizeof deaths / sizeof deaths[0]);
}

// Ends a rank by hand where a library moves the bytes, and tells nobody who is missing.
static void a_device_goes_back_to_its_checkpoint(void **state) {
    (void)state;
    static const rank_death deaths[] = {{"sharded.gather", 14, 1}, {"reducer.launch", 17, 0}};
    gs_digest undisturbed[TRAINER_RANK_MAX_STEPS];
    if (strcmp(gs_test_device_name(), "cpu") == 0) skip();
    char *spec = make_spec(&of_gradients, 0);
    train_undisturbed(undisturbed, spec);
    kill_at(&of_gradients, &deaths[sample_number("GRADSYNC_SEED", 0) % 2], undisturbed);
    free(spec);
}

// ---- a slow disk

// Whether the checkpoint of that step is there: all of it, or nothing of it.
static bool is_saved(const char *dir, int step) {
    char pattern[700];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/checkpoints/step-%010d-*", dir, step);
    bool is_there = glob(pattern, 0, NULL, &found) == 0;
    if (is_there && !*read_reason(found.gl_pathv[0]))
        fail_msg("step %d: parts of a checkpoint that is none", step);
    globfree(&found);
    return is_there;
}

// Rank 1 takes longer for its first part than the others for the steps up to the next save, and the
// one behind it.
static void what_one_rank_cannot_save_nobody_does(void **state) {
    (void)state;
    char *spec = make_spec(&of_optimizer, 25), *dir = gs_temp_dir_make();
    int num_skipped = 0;
    setenv("GRADSYNC_FAILPOINTS", "checkpoint.write#1=sleep:1500", 1);
    gs_digest held[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(held, dir, spec, WORLD, NULL));
    unsetenv("GRADSYNC_FAILPOINTS");
    for (int step = EVERY; step <= STEPS; step += EVERY) {
        int num_told = trainer_rank_count_unsaved(dir, 0, step);
        assert_int_equal(num_told, !is_saved(dir, step));
        num_skipped += num_told;
        for (int rank = 1; rank < WORLD; rank++)
            assert_int_equal(trainer_rank_count_unsaved(dir, rank, step), 0);
    }
    assert_true(is_saved(dir, EVERY) && is_saved(dir, STEPS));
    assert_true(num_skipped > 0);
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
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sharded_optimizer_goes_back_to_its_checkpoint),
        cmocka_unit_test(halves_in_one_memory_go_back_to_their_checkpoint),
        cmocka_unit_test(sharded_gradients_go_back_to_their_checkpoint),
        cmocka_unit_test(an_overlapped_update_goes_back_to_its_checkpoint),
        cmocka_unit_test(a_change_of_what_trains_goes_back_to_its_checkpoint),
        cmocka_unit_test(large_parameters_go_back_to_their_checkpoint),
        cmocka_unit_test(a_device_goes_back_to_its_checkpoint),
        cmocka_unit_test(what_one_rank_cannot_save_nobody_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
