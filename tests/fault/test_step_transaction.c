// A step is a transaction. One of three ranks is killed at each named place of a step, another frozen in
// the middle of a collective: what survivors hold afterwards is a step boundary of the undisturbed run, bit
// for bit; no step that anybody committed is lost; and two ranks go on from there to the same end.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rpc/json/sealed_json.h"
#include "tests/support/asserts.h"
#include "tests/support/rank_death.h"
#include "tests/support/ranks.h"
#include "tests/support/sample.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"

#define WORLD 3
#define STEPS 14

static const char spec_format[] =
    "{\"name\":\"transaction\",\"exact\":true,\"logical_shards\":4,"
    "\"world\":{\"min\":1,\"max\":4},"
    "\"model\":{\"kind\":\"mlp\",%s\"mlp\":{\"dims\":[160,192,64,5],\"batch_norm\":\"local\"}},"
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":6,\"global_batch\":48},"
    "\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.003%s},"
    "\"reducer\":{\"first_bucket_bytes\":1024,\"bucket_cap_bytes\":4096,\"timeout_seconds\":%d},"
    "\"checkpoint\":{\"every_steps\":0},\"debug\":{\"step_delay_ms\":%d},\"steps\":{\"target\":%d}}";

// Places where a rank may die, and the pass that triggers: somewhere behind the first steps.
typedef struct named_place {
    const char *name;
    int pass;
    bool committed;  // the victim has seen the commit there: the step must not be lost
} named_place;

static const named_place places[] = {
    {"step.begin", 6, false},         {"reducer.begin", 6, false},
    {"step.forward", 9, false},       {"step.backward", 9, false},
    {"reducer.mark_ready", 61, false}, {"reducer.launch", 14, false},
    {"comm.publish", 33, false},      {"comm.slice", 10, false},
    {"comm.done", 33, false},         {"reducer.finish", 6, false},
    {"reducer.complete", 6, false},   {"step.reduced", 6, false},
    {"commit.enter", 6, false},       {"commit.leave", 6, true},
    {"step.committed", 6, true},      {"step.applied", 6, true},
};

// fp16: steps 0 and 1 overflow, every third good one lets the scale grow. What a step changes is then the
// loss scale, too, and also where it is skipped.
static const char fp16_model[] = "\"precision\":\"fp16\",";
static const char fp16_optimizer[] =
    ",\"grad_clip_norm\":1,\"loss_scale\":{\"init\":16777216,\"growth_interval\":3,\"backoff_factor\":0.0625}";

static const char clipped[] = ",\"grad_clip_norm\":1";
static const char *model_members = "", *optimizer_members = clipped;
static int step_delay_ms;
static gs_digest undisturbed[TRAINER_RANK_MAX_STEPS];
static int64_t undisturbed_skipped;

static char *make_spec(int timeout_seconds) {
    char *spec = NULL;
    if (asprintf(&spec, spec_format, model_members, optimizer_members, timeout_seconds,
                 step_delay_ms, STEPS) < 0)
        abort();
    return spec;
}

// Of the run's last checkpoint; NULL: there is none.
static gs_json *read_manifest(const char *dir) {
    char path[700], *checkpoint = trainer_rank_checkpoint(dir);
    gs_json *manifest = NULL;
    if (!checkpoint) return NULL;
    snprintf(path, sizeof path, "%s/MANIFEST.json", checkpoint);
    free(checkpoint);
    return gs_sealed_json_read(&manifest, path).code ? NULL : manifest;
}

// Steps without an update, as the run's last checkpoint says.
static int64_t read_skipped(const char *dir) {
    gs_json *manifest = read_manifest(dir);
    if (!manifest) return -1;
    int64_t skipped = gs_json_int_or(gs_json_get(manifest, "position"), "skipped_steps", -1);
    gs_json_release(manifest);
    return skipped;
}

static int train_undisturbed(void **state) {
    (void)state;
    char *spec = make_spec(60), *dir = gs_temp_dir_make(), problem[160];
    char *arg = trainer_rank_arg(spec, dir, NULL);
    gs_status status = gs_ranks_run("train", WORLD, arg, gs_deadline_in_seconds(120));
    if (status.code) fprintf(stderr, "undisturbed run: %s\n", status.message);
    bool same = trainer_rank_read_record(undisturbed, dir, 0, problem);
    undisturbed_skipped = read_skipped(dir);
    gs_temp_dir_remove(dir);
    free(arg);
    free(spec);
    return status.code || !same || trainer_rank_last_step(undisturbed) != STEPS;
}

static int64_t check_record(const char *dir, int rank) {
    int64_t last;
    assert_ok(rank_death_check_record(&last, dir, rank, undisturbed));
    return last;
}

static void resume_with_two(const char *dir, const char *spec) {
    char *checkpoint = trainer_rank_checkpoint(dir), *other = gs_temp_dir_make();
    assert_non_null(checkpoint);
    char *arg = trainer_rank_arg(spec, other, checkpoint);
    assert_ok(gs_ranks_run("train", 2, arg, gs_deadline_in_seconds(120)));
    assert_int_equal(check_record(other, 0), STEPS);
    assert_int_equal(check_record(other, 1), STEPS);
    gs_temp_dir_remove(other);
    free(checkpoint);
    free(arg);
}

static void check_survivors(const char *dir, int victim, bool committed) {
    int64_t of_victim = check_record(dir, victim), reached = -1;
    for (int rank = 0; rank < WORLD; rank++) {
        if (rank == victim) continue;
        int64_t last = check_record(dir, rank);
        if (reached < 0) reached = last;
        assert_int_equal(last, reached);
    }
    assert_true(reached >= of_victim + (committed ? 1 : 0));
}

static void run_until_killed(const char *dir, const char *spec, const named_place *place,
                             int victim) {
    const rank_death death = {place->name, place->pass, victim};
    assert_ok(rank_death_run(dir, spec, WORLD, &death));
}

static void kill_at(const named_place *place, int victim) {
    char *spec = make_spec(20), *dir = gs_temp_dir_make();
    run_until_killed(dir, spec, place, victim);
    check_survivors(dir, victim, place->committed);
    resume_with_two(dir, spec);
    gs_temp_dir_remove(dir);
    free(spec);
}

// With a seed each place has one victim: one rank under ASan, the other under TSan, and with the next seed the
// other way round.
static void kill_at_all_places(int victim) {
#ifdef __SANITIZE_THREAD__
    uint64_t turn = 1;
#else
    uint64_t turn = 0;
#endif
    bool all = !getenv("GRADSYNC_SEED");
    uint64_t seed = sample_number("GRADSYNC_SEED", 0);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (all || (seed + i + turn) % 2 == (uint64_t)victim) kill_at(&places[i], victim);
    }
}

static void survivors_of_a_killed_rank_hold_a_step_boundary(void **state) {
    (void)state;
    kill_at_all_places(1);
}

static void survivors_of_a_killed_rank_0_hold_a_step_boundary(void **state) {
    (void)state;
    kill_at_all_places(0);
}

// Killed in the second step, which is skipped, and in the sixth, in which the scale grows or not.
static void survivors_of_an_fp16_run_hold_the_loss_scale_of_the_step(void **state) {
    static const named_place fp16_places[] = {
        {"step.backward", 3, false},   {"reducer.complete", 2, false}, {"commit.enter", 2, false},
        {"step.committed", 2, true},   {"step.applied", 2, true},      {"reducer.complete", 6, false},
        {"commit.leave", 6, true},     {"step.applied", 6, true}};
    model_members = fp16_model;
    optimizer_members = fp16_optimizer;
    assert_int_equal(train_undisturbed(state), 0);
    print_message("  %d steps of %d are skipped\n", (int)undisturbed_skipped, STEPS);
    assert_true(undisturbed_skipped >= 2 && undisturbed_skipped <= STEPS / 2);
    for (size_t i = 0; i < sizeof fp16_places / sizeof fp16_places[0]; i++)
        kill_at(&fp16_places[i], (int)(i % 2));
    model_members = "";
    optimizer_members = clipped;
    assert_int_equal(train_undisturbed(state), 0);
}

// The order is known after the first step; with pauses between steps the new plan comes long before the last.
// Killed while it waits (the vote is cast in commit), where it begins and where it has begun.
static void survivors_of_a_rank_killed_while_plans_change_lose_nothing(void **state) {
    (void)state;
    static const named_place change_places[] = {{"commit.enter", 2, false}, {"step.applied", 2, true},
                                                {"plan.switch", 1, false},  {"plan.switched", 1, false}};
    step_delay_ms = 10;
    for (size_t i = 0; i < sizeof change_places / sizeof change_places[0]; i++) {
        kill_at(&change_places[i], 1);
        kill_at(&change_places[i], 0);
    }
    step_delay_ms = 0;
}

// A rank dies where others than before train from then on, and where that has been told: the run goes on with what
// trains at its step. Of the second change; the first is the session's beginning.
static void survivors_of_a_rank_killed_while_trainability_changes_lose_nothing(void **state) {
    static const named_place change_places[] = {{"freeze.turn", 2, false}, {"freeze.turned", 2, false}};
    model_members = "\"freeze\":[{\"params\":\"fc1.*\",\"until_step\":5},{\"params\":\"*.bias\",\"from_step\":5}],";
    assert_int_equal(train_undisturbed(state), 0);
    for (size_t i = 0; i < sizeof change_places / sizeof change_places[0]; i++)
        kill_at(&change_places[i], (int)(i % 2));
    model_members = "";
    assert_int_equal(train_undisturbed(state), 0);
}

static void a_frozen_rank_is_named_and_left_behind(void **state) {
    (void)state;
    char *spec = make_spec(2), *dir = gs_temp_dir_make();
    gs_ranks *ranks;
    char *arg = trainer_rank_arg(spec, dir, NULL);
    assert_ok(gs_ranks_start(&ranks, "train", WORLD, arg,
                             (const char *const[]){"GRADSYNC_FAILPOINTS=comm.slice#1=stop@10", NULL}));
    assert_ok(gs_ranks_wait_note(ranks, 0, "settling", gs_deadline_in_seconds(60)));
    assert_ok(gs_ranks_wait_note(ranks, 2, "settling", gs_deadline_in_seconds(60)));
    assert_int_equal(rank_process_state(gs_ranks_pid(ranks, 1)), 'T');
    // One of the two sees the deadline pass first; it names the frozen one.
    gs_status by_0 = gs_ranks_wait_note(ranks, 0, "fault timeout suspect 1", (gs_deadline){0});
    gs_status by_2 = gs_ranks_wait_note(ranks, 2, "fault timeout suspect 1", (gs_deadline){0});
    assert_true(by_0.code == GS_OK || by_2.code == GS_OK);
    gs_ranks_signal(ranks, 1, SIGKILL);
    assert_ok(rank_death_await(ranks, 1, dir));
    assert_ok(rank_death_finish(ranks, WORLD, 1));
    gs_ranks_destroy(ranks);
    free(arg);
    check_survivors(dir, 1, false);
    resume_with_two(dir, spec);
    gs_temp_dir_remove(dir);
    free(spec);
}

// Parameters are updated bucket by bucket, each behind a place of its own; the undisturbed run updates them at the
// end. A rank dies between two updates, or behind the last one: what was updated is taken back, unless the step holds.
static void survivors_of_a_rank_killed_between_updates_take_them_back(void **state) {
    static const named_place update_places[] = {{"optimizer.early", 20, false}, {"optimizer.early", 21, false},
                                                {"optimizer.early", 22, false}, {"step.reduced", 6, false},
                                                {"commit.leave", 6, true}};
    optimizer_members = "";
    assert_int_equal(train_undisturbed(state), 0);
    optimizer_members = ",\"in_backward\":true";
    for (size_t i = 0; i < sizeof update_places / sizeof update_places[0]; i++)
        kill_at(&update_places[i], (int)(i % 2));
    optimizer_members = clipped;
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
        cmocka_unit_test(survivors_of_a_killed_rank_hold_a_step_boundary),
        cmocka_unit_test(survivors_of_a_killed_rank_0_hold_a_step_boundary),
        cmocka_unit_test(survivors_of_an_fp16_run_hold_the_loss_scale_of_the_step),
        cmocka_unit_test(survivors_of_a_rank_killed_while_plans_change_lose_nothing),
        cmocka_unit_test(survivors_of_a_rank_killed_while_trainability_changes_lose_nothing),
        cmocka_unit_test(a_frozen_rank_is_named_and_left_behind),
        cmocka_unit_test(survivors_of_a_rank_killed_between_updates_take_them_back),
    };
    return cmocka_run_group_tests(tests, train_undisturbed, NULL);
}
