// Whoever is suspended between its look at the fence and the moment from which on its checkpoint counts, and wakes up when others
// have taken over, has saved nothing; nor has it lowered the fence.
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/device.h"
#include "rpc/checkpoint/checkpoint_commit.h"
#include "rpc/checkpoint/fence.h"
#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/rank_death.h"
#include "tests/support/ranks.h"
#include "tests/support/soon.h"
#include "tests/support/temp_dir.h"
#include "worker/checkpoint/checkpoint.h"

static const gs_fence second = {"c-home", 2}, third = {"c-home", 3}, fourth = {"c-home", 4}, stranger = {"c-away", 1};

static const char spec_text[] =
    "{\"name\":\"c\",\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[6,5,4]}},\"optimizer\":{\"lr\":0.01},\"steps\":{\"target\":9}}";

typedef struct state_of_rank {
    gs_job_spec spec;
    gs_device *device;
    gs_trainer_state state;
    gs_state_snapshot snapshot;
} state_of_rank;

static gs_status decode(gs_job_spec *spec) {
    gs_json *json;
    gs_field_errors errors = {0};
    GS_TRY(gs_json_parse(&json, spec_text, strlen(spec_text)));
    gs_status status = gs_job_spec_decode(spec, json, &errors);
    gs_json_release(json);
    return status;
}

static gs_status make_state(state_of_rank *it) {
    GS_TRY(decode(&it->spec));
    GS_TRY(gs_device_open(&it->device, "cpu", &(gs_device_options){.num_threads = 1}));
    GS_TRY(gs_trainer_state_init(&it->state, &it->spec, it->device));
    it->state.position.step = 5;
    GS_TRY(gs_state_snapshot_init(&it->snapshot, &it->state, (gs_share_range){0}));
    return gs_state_snapshot_take(&it->snapshot, &it->state);
}

static void release_state(state_of_rank *it) {
    gs_state_snapshot_release(&it->snapshot);
    gs_trainer_state_release(&it->state);
    gs_device_close(it->device);
}

static gs_status save_part(gs_checkpoint_result *result, const state_of_rank *it, const char *directory, int part, int num_parts) {
    return gs_checkpoint_save(result, &it->snapshot,
                              &(gs_checkpoint_options){.directory = directory,
                                                       .job = "j-000000000001",
                                                       .cluster = second.cluster,
                                                       .spec = &it->spec,
                                                       .request = {.reason = "periodic",
                                                                   .world_size = num_parts,
                                                                   .part = part,
                                                                   .num_parts = num_parts,
                                                                   .generation = second.generation}});
}

static gs_status save_whole(const gs_rank_env *env) {
    state_of_rank it = {0};
    gs_checkpoint_result result = {0};
    gs_status status = make_state(&it);
    if (!status.code) status = save_part(&result, &it, env->arg, 0, 1);
    release_state(&it);
    if (result.is_fenced != (status.code == GS_FAILED_PRECONDITION)) return gs_error(GS_INTERNAL, "is fenced: %d", result.is_fenced);
    return status;
}

static gs_status join_parts(const gs_rank_env *env) {
    state_of_rank it = {0};
    gs_checkpoint_result result;
    char path[PATH_MAX];
    gs_json *manifest = NULL;
    uint64_t bytes;
    gs_status status = make_state(&it);
    for (int part = 0; part < 2 && !status.code; part++) status = save_part(&result, &it, env->arg, part, 2);
    release_state(&it);
    GS_TRY(status);
    snprintf(path, sizeof path, "%s/%s", env->arg, result.name);
    status = gs_checkpoint_commit(&manifest, &bytes, path);
    gs_json_release(manifest);
    return status;
}

static gs_status raise_third(const gs_rank_env *env) { return gs_fence_raise(env->arg, &third); }
static gs_status raise_stranger(const gs_rank_env *env) { return gs_fence_raise(env->arg, &stranger); }
static gs_status close_second(const gs_rank_env *env) { return gs_fence_close(env->arg, &second); }

static const gs_rank_body bodies[] = {{"save", save_whole},
                                      {"join", join_parts},
                                      {"raise third", raise_third},
                                      {"raise stranger", raise_stranger},
                                      {"close second", close_second},
                                      {NULL, NULL}};

typedef struct files {
    int manifests, drafts, steps;
} files;

static void count(files *found, const char *path) {
    DIR *list = opendir(path);
    assert_non_null(list);
    for (const struct dirent *entry; (entry = readdir(list));) {
        char below[PATH_MAX];
        snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
        found->manifests += !strcmp(entry->d_name, "MANIFEST.json");
        found->drafts += !strncmp(entry->d_name, ".draft-", 7) || strstr(entry->d_name, ".tmp.") != NULL;
        if (strncmp(entry->d_name, "step-", 5) != 0) continue;
        found->steps++;
        count(found, below);
    }
    closedir(list);
}

static files files_in(const char *path) {
    files found = {0};
    count(&found, path);
    return found;
}

// Comes to `place` and sleeps there.
static gs_ranks *suspend(const char *body, const char *directory, const char *place) {
    gs_ranks *ranks;
    char points[100];
    const char *environment[] = {points, NULL};
    snprintf(points, sizeof points, "GRADSYNC_FAILPOINTS=%s", place);
    assert_ok(gs_ranks_start(&ranks, body, 1, directory, environment));
    gs_deadline deadline = soon();
    while (rank_process_state(gs_ranks_pid(ranks, 0)) != 'T') {
        if (gs_deadline_passed(deadline)) fail_msg("%s does not come to %s", body, place);
        gs_sleep_ns(GS_NS_PER_MS);
    }
    return ranks;
}

static gs_status end_of(gs_ranks *ranks) {
    gs_status status;
    assert_ok(gs_ranks_wait(ranks, &status, soon()));
    gs_ranks_destroy(ranks);
    return status;
}

static gs_status wake(gs_ranks *ranks) {
    gs_ranks_signal(ranks, 0, SIGCONT);
    return end_of(ranks);
}

static void refused(gs_status status, gs_code code) {
    if (status.code != code) fail_msg("%s: %s", gs_code_name(status.code), status.message);
}

static int set_up(void **state) {
#ifndef GRADSYNC_FAILPOINTS
    skip();
#endif
    *state = gs_temp_dir_make();
    assert_ok(gs_fence_raise(*state, &second));
    return 0;
}

static int tear_down(void **state) {
    gs_temp_dir_remove(*state);
    return 0;
}

static void who_sleeps_and_is_not_replaced_has_saved(void **state) {
    assert_ok(wake(suspend("save", *state, "checkpoint.rename=stop")));
    assert_int_equal(files_in(*state).manifests, 1);
    assert_int_equal(files_in(*state).drafts, 0);
}

static void who_was_replaced_in_its_sleep_has_saved_nothing(void **state) {
    gs_ranks *sleeper = suspend("save", *state, "checkpoint.rename=stop");
    assert_ok(gs_fence_raise(*state, &third));
    refused(wake(sleeper), GS_FAILED_PRECONDITION);
    const files found = files_in(*state);
    assert_int_equal(found.manifests + found.drafts + found.steps, 0);
}

static void nor_where_a_coordinator_has_closed_the_directory(void **state) {
    gs_ranks *sleeper = suspend("save", *state, "checkpoint.rename=stop");
    assert_ok(gs_fence_close(*state, &second));
    refused(wake(sleeper), GS_FAILED_PRECONDITION);
    assert_int_equal(files_in(*state).manifests, 0);
}

static void nor_where_another_cluster_has_come(void **state) {
    gs_ranks *sleeper = suspend("save", *state, "checkpoint.rename=stop");
    assert_ok(gs_fence_raise(*state, &stranger));
    refused(wake(sleeper), GS_FAILED_PRECONDITION);
    assert_int_equal(files_in(*state).manifests, 0);
}

// The first two renames are of the records.
static void parts_are_not_joined_behind_the_fence(void **state) {
    gs_ranks *sleeper = suspend("join", *state, "checkpoint.rename=stop@3");
    assert_ok(gs_fence_raise(*state, &third));
    refused(wake(sleeper), GS_DATA_LOSS);
    const files found = files_in(*state);
    assert_int_equal(found.manifests + found.drafts, 0);
    assert_int_equal(found.steps, 1);
}

// Its draft is there no sooner than the others have looked for some.
static void who_falls_asleep_before_its_draft_sees_the_fence(void **state) {
    gs_ranks *sleeper = suspend("save", *state, "checkpoint.write=stop");
    assert_ok(gs_fence_raise(*state, &third));
    refused(wake(sleeper), GS_FAILED_PRECONDITION);
    assert_int_equal(files_in(*state).manifests, 0);
}

static void who_slept_does_not_lower_the_fence(void **state) {
    gs_ranks *sleeper = suspend("raise third", *state, "checkpoint.rename=stop");
    assert_ok(gs_fence_raise(*state, &fourth));
    refused(wake(sleeper), GS_FAILED_PRECONDITION);
    refused(gs_fence_check(*state, &third), GS_FAILED_PRECONDITION);
}

// Both were asked to by somebody: who comes last has it.
static void who_slept_and_comes_from_elsewhere_takes_over_all_the_same(void **state) {
    gs_ranks *sleeper = suspend("raise stranger", *state, "checkpoint.rename=stop");
    assert_ok(gs_fence_raise(*state, &third));
    assert_ok(wake(sleeper));
    assert_ok(gs_fence_check(*state, &stranger));
    refused(gs_fence_check(*state, &third), GS_FAILED_PRECONDITION);
    assert_int_equal(files_in(*state).drafts, 0);
}

// Who put up the fence has ended before it had removed what it refuses.
static gs_ranks *begin_to_close(const char *directory) {
    gs_ranks *sleeper = suspend("save", directory, "checkpoint.rename=stop"), *closer;
    const char *environment[] = {"GRADSYNC_FAILPOINTS=fence.raised=kill", NULL};
    assert_ok(gs_ranks_start(&closer, "close second", 1, directory, environment));
    refused(end_of(closer), GS_ABORTED);
    assert_int_equal(files_in(directory).drafts, 1);
    return sleeper;
}

static void what_was_begun_is_finished_by_who_finds_it(void **state) {
    gs_ranks *sleeper = begin_to_close(*state);
    assert_ok(gs_fence_finish(*state));
    refused(wake(sleeper), GS_FAILED_PRECONDITION);
    assert_int_equal(files_in(*state).manifests, 0);
}

static void what_was_begun_is_finished_by_who_comes_next(void **state) {
    gs_ranks *sleeper = begin_to_close(*state);
    assert_ok(gs_fence_raise(*state, &third));
    refused(wake(sleeper), GS_FAILED_PRECONDITION);
    assert_int_equal(files_in(*state).manifests, 0);
}

// Its disk was full at that moment: nothing else would keep those before it out.
static void who_could_not_take_over_does_so_with_its_first_save(void **state) {
    char fence[PATH_MAX];
    gs_ranks *saver;
    const gs_fence first = {"c-home", 1};
    bool stands = false;
    snprintf(fence, sizeof fence, "%s/FENCE.json", (char *)*state);
    assert_int_equal(unlink(fence), 0);
    assert_ok(gs_fence_raise(*state, &first));
    assert_ok(gs_ranks_start(&saver, "save", 1, *state, NULL));
    assert_ok(end_of(saver));
    assert_ok(gs_fence_stands(&stands, *state, &second));
    assert_true(stands);
    refused(gs_fence_check(*state, &first), GS_FAILED_PRECONDITION);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        TEST(who_sleeps_and_is_not_replaced_has_saved),
        TEST(who_was_replaced_in_its_sleep_has_saved_nothing),
        TEST(nor_where_a_coordinator_has_closed_the_directory),
        TEST(nor_where_another_cluster_has_come),
        TEST(parts_are_not_joined_behind_the_fence),
        TEST(who_falls_asleep_before_its_draft_sees_the_fence),
        TEST(who_slept_does_not_lower_the_fence),
        TEST(who_slept_and_comes_from_elsewhere_takes_over_all_the_same),
        TEST(who_could_not_take_over_does_so_with_its_first_save),
        TEST(what_was_begun_is_finished_by_who_finds_it),
        TEST(what_was_begun_is_finished_by_who_comes_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
