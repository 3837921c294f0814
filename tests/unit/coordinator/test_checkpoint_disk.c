// A start whose checkpoints cannot be asked for: it waits, visibly, until the disk answers or somebody decides, and never
// takes an older one for the newest.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/store/file_work.h"
#include "coordinator/store/files/files.h"
#include "core/clock.h"
#include "rpc/checkpoint/fence.h"
#include "rpc/checkpoint/life_sign.h"
#include "tests/support/asserts.h"
#include "tests/unit/coordinator/disk_play.h"

#define LONG_NS (120 * GS_NS_PER_SEC)

static const char other_spec[] =
    "{\"name\":\"other\",\"world\":{\"min\":2,\"max\":2},\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[4,3,2]}},"
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2},\"optimizer\":{\"kind\":\"sgd\"},\"steps\":{\"target\":1000}}";

static void a_start_waits_until_the_disk_answers(void **state) {
    gs_play *play = *state;
    play->list_says = GS_UNAVAILABLE;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    disk_play_expect_wait(play);
    assert_non_null(strstr(disk_play_job(play)->message, "it is away"));
    play->list_says = GS_OK;
    gs_play_wait(play, 15 * GS_NS_PER_SEC);
    assert_non_null(disk_play_job(play)->run);
    assert_string_equal(disk_play_job(play)->reason, "RestoringCheckpoint");
}

static void who_waits_for_a_disk_keeps_no_slots(void **state) {
    gs_play *play = *state;
    play->list_says = GS_PERMISSION_DENIED;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 10 * GS_NS_PER_SEC);
    const gs_job *other = gs_play_submit(play, other_spec);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_non_null(other->run);
    assert_null(disk_play_job(play)->run);
}

static void a_disk_that_says_nothing_is_away(void **state) {
    gs_play *play = *state;
    play->disk_waits = true;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    disk_play_expect_wait(play);
    play->disk_waits = false;
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_non_null(disk_play_job(play)->run);
}

// Its list has come, late, and what it names is looked at: that is asked anew, and may take as long.
static void a_disk_that_answers_late_is_there(void **state) {
    gs_play *play = *state;
    play->disk_waits = true;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 15 * GS_NS_PER_SEC);
    disk_play_expect_wait(play);
    const char *names[] = {"step-9"};
    gs_engine_event found = {.kind = GS_ON_DIRECTORIES_FOUND, .from = {.generation = -1}};
    found.done = (gs_completion){.job = play->job, .names = names, .num_names = 1};
    gs_play_hear(play, &found);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    assert_int_equal(play->num_watched, 1);
}

static void an_operator_may_go_on_without_it(void **state) {
    gs_play *play = *state;
    play->list_says = GS_UNAVAILABLE;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    disk_play_expect_wait(play);
    gs_engine_event release = {.kind = GS_ON_RELEASE_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    release.release.job = play->job_text;
    play->watched_reason = "Released";
    play->num_watched = 0;
    gs_play_hear(play, &release);
    assert_true(play->answered);
    assert_int_equal(play->answer.code, GS_OK);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(play->num_watched, 1);
    assert_non_null(disk_play_job(play)->run);
    assert_string_equal(disk_play_job(play)->reason, "RestoringCheckpoint");
    assert_int_equal(disk_play_job(play)->left_generation, disk_play_job(play)->generation);
}

// Nobody is asked twice: the coordinator ends between the answer and the launch.
static void what_an_operator_gave_up_is_given_up_in_the_next_life(void **state) {
    gs_play *play = *state;
    gs_status answer;
    play->list_says = GS_UNAVAILABLE;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    disk_play_expect_wait(play);
    gs_play_lose_worker(play);
    int rows = play->num_job_rows;
    play->disk_waits = true;
    gs_engine_event release = {.kind = GS_ON_RELEASE_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    gs_call call = play->last_call;
    release.release.job = play->job_text;
    gs_play_hear(play, &release);
    assert_int_equal(play->num_job_rows, rows + 1);
    assert_false(gs_play_is_answered(play, call, &answer));  // before it is durable
    play->disk_waits = false;
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_true(gs_play_is_answered(play, call, &answer));
    assert_int_equal(answer.code, GS_OK);
    gs_play_reopen(play);
    gs_play_wait(play, LONG_NS);
    assert_non_null(disk_play_job(play)->run);
    // The start that it was for has begun: the next one asks the disk again.
    assert_false(disk_play_job(play)->checkpoints.is_given_up);
}

static void an_operator_may_stop_it(void **state) {
    gs_play *play = *state;
    play->list_says = GS_UNAVAILABLE;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    stop.stop = (gs_stop_request){.job = play->job_text, .outcome = GS_JOB_CANCELLED, .grace_seconds = -1};
    gs_play_hear(play, &stop);
    assert_int_equal(disk_play_job(play)->state, GS_JOB_CANCELLED);
}

static void end_without_disk(gs_play *play) {
    gs_play_reopen(play);
    gs_play_say_all(play, GS_ON_HELLO);
    assert_non_null(disk_play_job(play)->run);
    gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    stop.stop = (gs_stop_request){.job = play->job_text, .now = true, .outcome = GS_JOB_CANCELLED, .grace_seconds = -1};
    gs_play_hear(play, &stop);
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_null(disk_play_job(play)->run);
    assert_int_equal(disk_play_job(play)->state, GS_JOB_CANCELLED);
}

// Nor does it keep a run from its end, whether it says so or says nothing.
static void a_job_ends_without_it(void **state) {
    gs_play *play = *state;
    play->list_says = GS_UNAVAILABLE;
    end_without_disk(play);
}

static void a_job_ends_without_its_answer(void **state) {
    gs_play *play = *state;
    play->disk_waits = true;
    end_without_disk(play);
}

static gs_status run_work(gs_work *work) {
    gs_status status = work->base.run(&work->base, NULL);
    size_t num_names = work->num_names;
    gs_work_destroy(work);
    if (!status.code && num_names) return gs_error(GS_NOT_FOUND, "%zu are gone", num_names);
    return status;
}

// A mount point without its file system.
static void a_directory_that_had_checkpoints_is_not_gone_when_nobody_sees_it(void **state) {
    gs_play *play = *state;
    char root[] = "/tmp/test-checkpoint-disk-XXXXXX", path[200];
    assert_non_null(mkdtemp(root));
    const gs_file_root files = {.checkpoints_dir = root};
    assert_int_equal(run_work(gs_file_work_find_directories(&files, disk_play_job(play), "c-home")).code, GS_UNAVAILABLE);
    assert_int_equal(run_work(gs_file_work_check(&files, disk_play_job(play))).code, GS_UNAVAILABLE);
    // Somebody says that there are none.
    snprintf(path, sizeof path, "%s/%s", root, play->job_text);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(run_work(gs_file_work_find_directories(&files, disk_play_job(play), "c-home")).code, GS_OK);
    assert_int_equal(run_work(gs_file_work_check(&files, disk_play_job(play))).code, GS_NOT_FOUND);
    rmdir(path);
    rmdir(root);
}

static gs_life_look look(const gs_file_root *files, const gs_job *job, gs_life_look life) {
    gs_work *work = gs_file_work_look_for_life(files, job, "c-home", &life);
    gs_status status = work->base.run(&work->base, NULL);
    life = work->life;
    gs_work_destroy(work);
    if (status.code) fail_msg("%s", status.message);
    return life;
}

static void a_directory_is_closed_to_ranks_that_leave_no_new_sign(void **state) {
    gs_play *play = *state;
    const gs_fence theirs = {"c-home", 3}, others = {"c-away", 3};
    char root[] = "/tmp/test-checkpoint-disk-XXXXXX", path[200];
    assert_non_null(mkdtemp(root));
    const gs_file_root files = {.checkpoints_dir = root};
    snprintf(path, sizeof path, "%s/%s", root, play->job_text);
    assert_int_equal(run_work(gs_file_work_look_for_life(&files, disk_play_job(play), "c-home", &(gs_life_look){.generation = 3})).code,
                     GS_NOT_FOUND);
    assert_int_equal(mkdir(path, 0700), 0);
    gs_life_look life = look(&files, disk_play_job(play), (gs_life_look){.generation = 3, .raises = true});
    assert_false(life.stands || life.is_raised);
    assert_ok(gs_fence_raise(path, &others));
    life = look(&files, disk_play_job(play), (gs_life_look){.generation = 3, .raises = true});
    assert_false(life.stands || life.is_raised);
    assert_ok(gs_fence_raise(path, &theirs));
    assert_ok(gs_life_sign_leave(path, &theirs, 77));
    life = look(&files, disk_play_job(play), (gs_life_look){.generation = 3, .raises = true});
    assert_true(life.stands && life.number == 77);
    assert_false(life.is_raised);  // it was another sign than the one that was known
    assert_ok(gs_fence_check(path, &theirs));
    life = look(&files, disk_play_job(play), (gs_life_look){.generation = 3, .number = 77, .raises = true});
    assert_true(life.is_raised);
    assert_int_equal(gs_fence_check(path, &theirs).code, GS_FAILED_PRECONDITION);
    // Whoever has not heard of it asks again.
    life = look(&files, disk_play_job(play), (gs_life_look){.generation = 3, .number = 77, .raises = true});
    assert_true(life.is_raised);
    // As after a restart: it asks only.
    life = look(&files, disk_play_job(play), (gs_life_look){.generation = 3});
    assert_true(life.is_raised);
    gs_work *list = gs_file_work_find_directories(&files, disk_play_job(play), "c-home");
    assert_ok(list->base.run(&list->base, NULL));
    assert_int_equal(list->left_by, 3);
    gs_work_destroy(list);
    // No rank of the next one has been there.
    life = look(&files, disk_play_job(play), (gs_life_look){.generation = 4});
    assert_false(life.stands || life.is_raised);
    assert_ok(gs_file_remove_tree(path, 1));
    rmdir(root);
}

// Its answer may be there, and has not been read.
static void a_disk_is_not_away_while_the_coordinator_stands_still(void **state) {
    gs_play *play = *state;
    play->disk_waits = true;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, GS_NS_PER_SEC);
    play->now_ns += 60 * GS_NS_PER_SEC;
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(play->num_watched, 0);
    gs_play_wait(play, 20 * GS_NS_PER_SEC);
    assert_int_equal(play->num_watched, 1);
}

static gs_status say_saved(gs_play *play, const char *directory, bool is_part) {
    gs_status answer = gs_error(GS_INTERNAL, "not answered");
    gs_engine_event event = gs_play_message(play, 0, GS_ON_CHECKPOINTED);
    event.checkpointed.directory = directory;
    event.checkpointed.is_part = is_part;
    event.checkpointed.num_parts = is_part ? 2 : 0;
    event.from.call = ++play->last_call;
    gs_call call = play->last_call;
    gs_play_hear(play, &event);
    assert_true(gs_play_is_answered(play, call, &answer));
    return answer;
}

// A rank that makes up names: what is remembered of them has an end, and what is known is still heard. One that is not made up is
// found on the disk.
static void saves_that_a_rank_makes_up_are_refused_in_the_end(void **state) {
    gs_play *play = *state;
    play->disk_waits = play->verify_waits = true;
    play->watched_reason = "CheckpointPutOff";
    for (int is_part = 0; is_part < 2; is_part++) {
        gs_status answer = gs_ok();
        int accepted = 0;
        for (int i = 0; i < 1000 && !answer.code; i++, accepted += !answer.code) {
            char directory[40];
            snprintf(directory, sizeof directory, "step-%d-%d", i, is_part);
            answer = say_saved(play, directory, is_part);
        }
        assert_int_equal(accepted, 64);
        assert_int_equal(answer.code, GS_RESOURCE_EXHAUSTED);
        assert_non_null(strstr(answer.message, "directory: \"step-64-"));
        assert_ok(say_saved(play, is_part ? "step-0-1" : "step-0-0", is_part));
    }
    assert_int_equal(play->num_watched, 1);  // of many refusals
    play->disk_waits = play->verify_waits = false;
    play->found = "step-64-0";
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    assert_int_equal(disk_play_state_of(play, "step-64-0"), GS_CHECKPOINT_GOOD);
}

// Else the end of one write would pass for that of the other, and files would go whose row says that they are good.
static void a_row_on_its_way_is_waited_for_before_it_is_marked(void **state) {
    gs_play *play = *state;
    play->verify_waits = play->disk_waits = true;
    disk_play_save(play, "step-9", 9);
    int rows = play->num_checkpoint_rows;
    disk_play_hear_of(play, GS_ON_VERIFIED, "step-9");
    assert_int_equal(play->num_checkpoint_rows, rows + 1);
    disk_play_hear_of(play, GS_ON_CHECKPOINTS_CHECKED, "step-9");
    assert_int_equal(disk_play_state_of(play, "step-9"), GS_CHECKPOINT_DELETING);
    assert_int_equal(play->num_checkpoint_rows, rows + 1);
    disk_play_hear_of(play, GS_ON_STORED, "step-9");
    assert_int_equal(play->num_checkpoint_rows, rows + 2);
    assert_int_equal(play->num_removals, 0);
    disk_play_hear_of(play, GS_ON_STORED, "step-9");
    assert_int_equal(play->num_removals, 1);
}

static void hear_refused(gs_play *play, gs_engine_event_kind kind, gs_stored_kind stored, const char *directory) {
    gs_engine_event event = {.kind = kind, .from = {.generation = -1}};
    event.done = (gs_completion){.stored = stored, .job = play->job, .directory = directory, .status = gs_error(GS_INTERNAL, "not now")};
    gs_play_hear(play, &event);
}

// A disk that refuses to remove files is asked again; some of them may be gone, so that none of it is good any more.
static void files_that_could_not_be_removed_are_removed_later(void **state) {
    gs_play *play = *state;
    play->verify_waits = play->disk_waits = true;
    disk_play_save(play, "step-9", 9);
    disk_play_hear_of(play, GS_ON_VERIFIED, "step-9");
    disk_play_hear_of(play, GS_ON_CHECKPOINTS_CHECKED, "step-9");
    disk_play_hear_of(play, GS_ON_STORED, "step-9");
    disk_play_hear_of(play, GS_ON_STORED, "step-9");
    assert_int_equal(play->num_removals, 1);
    hear_refused(play, GS_ON_FILES_REMOVED, GS_STORED_CHECKPOINT, "step-9");
    gs_play_wait(play, GS_NS_PER_SEC);
    int rows = play->num_checkpoint_rows;
    gs_play_wait(play, 4 * GS_NS_PER_SEC);
    assert_int_equal(play->num_checkpoint_rows, rows + 1);
    hear_refused(play, GS_ON_STORED, GS_STORED_CHECKPOINT, "step-9");  // the row that is written again
    assert_int_equal(disk_play_state_of(play, "step-9"), GS_CHECKPOINT_DELETING);
    gs_play_wait(play, 4 * GS_NS_PER_SEC);
    disk_play_hear_of(play, GS_ON_STORED, "step-9");
    assert_int_equal(play->num_removals, 2);
    // Nor does one that refuses to forget the row keep it for ever.
    hear_refused(play, GS_ON_STORED, GS_STORED_CHECKPOINT_DELETED, "step-9");
    rows = play->num_checkpoint_rows;
    gs_play_wait(play, 60 * GS_NS_PER_SEC);
    assert_int_equal(play->num_checkpoint_rows, rows + 1);
}

// Its files were found gone, nobody could write that down, and then the coordinator ended: of another life its row looks as
// if it were the newest, though its ranks save below it.
static void what_another_life_recorded_is_looked_at_before_any_is_removed(void **state) {
    gs_play *play = *state;
    gs_play_reopen(play);
    gs_job *job = gs_play_run(play)->job;
    job->spec.checkpoint.keep_last = 1;
    gs_checkpoint *gone = gs_checkpoints_add(&job->checkpoints, "step-9");
    gone->step = 9;
    gone->state = GS_CHECKPOINT_GOOD;
    play->missing = "step-9";
    gs_play_say_all(play, GS_ON_HELLO);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    play->list_says = GS_UNAVAILABLE;
    gs_play_say(play, 0, GS_ON_CHECKPOINTED);
    assert_int_equal(disk_play_state_of(play, "step-3"), GS_CHECKPOINT_GOOD);
    assert_int_equal(play->num_watched, 0);  // nobody waits for that disk
    play->list_says = GS_OK;
    gs_engine_event saved = gs_play_message(play, 0, GS_ON_CHECKPOINTED);
    saved.checkpointed.directory = "step-4";
    saved.checkpointed.found.step = 4;
    int num_checks = play->num_checks;
    gs_play_hear(play, &saved);
    assert_int_equal(play->num_checks, num_checks + 1);
    assert_int_equal(disk_play_state_of(play, "step-4"), GS_CHECKPOINT_GOOD);
    assert_int_equal(disk_play_state_of(play, "step-3"), GS_CHECKPOINT_DELETING);
    assert_int_equal(disk_play_state_of(play, "step-9"), GS_CHECKPOINT_DELETING);
    // Once: what this life records it knows.
    play->missing = NULL;
    saved = gs_play_message(play, 0, GS_ON_CHECKPOINTED);
    saved.checkpointed.directory = "step-5";
    saved.checkpointed.found.step = 5;
    gs_play_hear(play, &saved);
    assert_int_equal(play->num_checks, num_checks + 1);
    assert_int_equal(disk_play_state_of(play, "step-4"), GS_CHECKPOINT_DELETING);
}

static int count_looked_at(gs_play *play) {
    int count = 0;
    const gs_job_table *jobs = &gs_engine_state(play->engine)->jobs;
    for (size_t i = 0; i < jobs->count; i++)
        count += gs_job_state_terminal(jobs->items[i]->state) && !gs_checkpoints_pending(&jobs->items[i]->checkpoints);
    return count;
}

// Thousands that have ended, on a slow disk: who trains waits for none of them.
static void a_start_looks_at_live_jobs_first_and_then_at_a_few_ended_ones_at_a_time(void **state) {
    gs_play *play = *state;
    play->num_ended = 30;
    play->num_finds = 0;
    play->disk_waits = true;
    gs_play_reopen(play);
    assert_int_equal(play->num_finds, 1);
    assert_int_equal(disk_play_job(play)->checkpoints.looking, 1);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(play->num_finds, 4);  // the live one's is under way
    play->disk_waits = false;
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(play->num_finds, 31);
    assert_int_equal(count_looked_at(play), 30);
}

// What was found took long to read: a rank that nobody hears may have saved meanwhile. Once that is asked again.
static void a_start_asks_again_what_there_is_when_that_was_long_ago(void **state) {
    for (int is_slow = 0; is_slow < 2; is_slow++) {
        gs_play *play = *state;
        if (is_slow) disk_play_set_up(state), play = *state;
        play->found = "step-9";
        play->verify_waits = true;
        gs_play_say_all(play, GS_ON_EXITED);
        gs_play_wait(play, is_slow ? 9 * GS_NS_PER_SEC : GS_NS_PER_SEC);
        assert_null(disk_play_job(play)->run);
        play->verify_waits = false;
        disk_play_hear_of(play, GS_ON_VERIFIED, "step-9");
        gs_play_wait(play, 5 * GS_NS_PER_SEC);
        assert_non_null(disk_play_job(play)->run);
        assert_int_equal(play->num_finds, is_slow ? 2 : 1);
        if (!is_slow) gs_play_tear_down(state);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, disk_play_set_up, gs_play_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_start_waits_until_the_disk_answers),
        TEST(a_start_asks_again_what_there_is_when_that_was_long_ago),
        TEST(who_waits_for_a_disk_keeps_no_slots),
        TEST(a_disk_that_says_nothing_is_away),
        TEST(a_disk_that_answers_late_is_there),
        TEST(an_operator_may_go_on_without_it),
        TEST(what_an_operator_gave_up_is_given_up_in_the_next_life),
        TEST(an_operator_may_stop_it),
        TEST(a_job_ends_without_it),
        TEST(a_job_ends_without_its_answer),
        TEST(saves_that_a_rank_makes_up_are_refused_in_the_end),
        TEST(a_disk_is_not_away_while_the_coordinator_stands_still),
        TEST(a_row_on_its_way_is_waited_for_before_it_is_marked),
        TEST(files_that_could_not_be_removed_are_removed_later),
        TEST(a_directory_is_closed_to_ranks_that_leave_no_new_sign),
        TEST(what_another_life_recorded_is_looked_at_before_any_is_removed),
        TEST(a_start_looks_at_live_jobs_first_and_then_at_a_few_ended_ones_at_a_time),
        TEST(a_directory_that_had_checkpoints_is_not_gone_when_nobody_sees_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
