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
#include "tests/unit/coordinator/engine_play.h"

#define LONG_NS (120 * GS_NS_PER_SEC)

static const char other_spec[] =
    "{\"name\":\"other\",\"world\":{\"min\":2,\"max\":2},\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[4,3,2]}},"
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2},\"optimizer\":{\"kind\":\"sgd\"},\"steps\":{\"target\":1000}}";

static const gs_job *job_of(const gs_play *play) {
    return gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
}

// It has trained, has a checkpoint of step 3, and its ranks are gone.
static int set_up(void **state) {
    gs_play_set_up_training(state);
    gs_play *play = *state;
    gs_play_say(play, 0, GS_ON_CHECKPOINTED);
    assert_int_equal(gs_checkpoints_newest_step(&job_of(play)->checkpoints), 3);
    play->watched_reason = "CheckpointsUnavailable";
    return 0;
}

static void expect_wait(const gs_play *play) {
    assert_null(job_of(play)->run);
    assert_string_equal(job_of(play)->reason, "CheckpointsUnavailable");
    assert_int_equal(play->num_watched, 1);
}

static void a_start_waits_until_the_disk_answers(void **state) {
    gs_play *play = *state;
    play->list_says = GS_UNAVAILABLE;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    expect_wait(play);
    assert_non_null(strstr(job_of(play)->message, "it is away"));
    play->list_says = GS_OK;
    gs_play_wait(play, 15 * GS_NS_PER_SEC);
    assert_non_null(job_of(play)->run);
    assert_string_equal(job_of(play)->reason, "RestoringCheckpoint");
}

static void who_waits_for_a_disk_keeps_no_slots(void **state) {
    gs_play *play = *state;
    play->list_says = GS_PERMISSION_DENIED;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 10 * GS_NS_PER_SEC);
    const gs_job *other = gs_play_submit(play, other_spec);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_non_null(other->run);
    assert_null(job_of(play)->run);
}

static void a_disk_that_says_nothing_is_away(void **state) {
    gs_play *play = *state;
    play->disk_waits = true;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    expect_wait(play);
    play->disk_waits = false;
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_non_null(job_of(play)->run);
}

// Its list has come, late, and what it names is looked at: that is asked anew, and may take as long.
static void a_disk_that_answers_late_is_there(void **state) {
    gs_play *play = *state;
    play->disk_waits = true;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 15 * GS_NS_PER_SEC);
    expect_wait(play);
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
    expect_wait(play);
    gs_engine_event release = {.kind = GS_ON_RELEASE_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    release.release.job = play->job_text;
    play->watched_reason = "Released";
    play->num_watched = 0;
    gs_play_hear(play, &release);
    assert_true(play->answered);
    assert_int_equal(play->answer.code, GS_OK);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(play->num_watched, 1);
    assert_non_null(job_of(play)->run);
    assert_string_equal(job_of(play)->reason, "RestoringCheckpoint");
    assert_int_equal(job_of(play)->left_generation, job_of(play)->generation);
}

// Nobody is asked twice: the coordinator ends between the answer and the launch.
static void what_an_operator_gave_up_is_given_up_in_the_next_life(void **state) {
    gs_play *play = *state;
    gs_status answer;
    play->list_says = GS_UNAVAILABLE;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    expect_wait(play);
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
    assert_non_null(job_of(play)->run);
    // The start that it was for has begun: the next one asks the disk again.
    assert_false(job_of(play)->checkpoints.is_given_up);
}

static void an_operator_may_stop_it(void **state) {
    gs_play *play = *state;
    play->list_says = GS_UNAVAILABLE;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    stop.stop = (gs_stop_request){.job = play->job_text, .outcome = GS_JOB_CANCELLED, .grace_seconds = -1};
    gs_play_hear(play, &stop);
    assert_int_equal(job_of(play)->state, GS_JOB_CANCELLED);
}

static void end_without_disk(gs_play *play) {
    gs_play_reopen(play);
    gs_play_say_all(play, GS_ON_HELLO);
    assert_non_null(job_of(play)->run);
    gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    stop.stop = (gs_stop_request){.job = play->job_text, .now = true, .outcome = GS_JOB_CANCELLED, .grace_seconds = -1};
    gs_play_hear(play, &stop);
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_null(job_of(play)->run);
    assert_int_equal(job_of(play)->state, GS_JOB_CANCELLED);
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
    assert_int_equal(run_work(gs_file_work_find_directories(&files, job_of(play), "c-home")).code, GS_UNAVAILABLE);
    assert_int_equal(run_work(gs_file_work_check(&files, job_of(play))).code, GS_UNAVAILABLE);
    // Somebody says that there are none.
    snprintf(path, sizeof path, "%s/%s", root, play->job_text);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(run_work(gs_file_work_find_directories(&files, job_of(play), "c-home")).code, GS_OK);
    assert_int_equal(run_work(gs_file_work_check(&files, job_of(play))).code, GS_NOT_FOUND);
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
    assert_int_equal(run_work(gs_file_work_look_for_life(&files, job_of(play), "c-home", &(gs_life_look){.generation = 3})).code,
                     GS_NOT_FOUND);
    assert_int_equal(mkdir(path, 0700), 0);
    gs_life_look life = look(&files, job_of(play), (gs_life_look){.generation = 3, .raises = true});
    assert_false(life.stands || life.is_raised);
    assert_ok(gs_fence_raise(path, &others));
    life = look(&files, job_of(play), (gs_life_look){.generation = 3, .raises = true});
    assert_false(life.stands || life.is_raised);
    assert_ok(gs_fence_raise(path, &theirs));
    assert_ok(gs_life_sign_leave(path, &theirs, 77));
    life = look(&files, job_of(play), (gs_life_look){.generation = 3, .raises = true});
    assert_true(life.stands && life.number == 77);
    assert_false(life.is_raised);  // it was another sign than the one that was known
    assert_ok(gs_fence_check(path, &theirs));
    life = look(&files, job_of(play), (gs_life_look){.generation = 3, .number = 77, .raises = true});
    assert_true(life.is_raised);
    assert_int_equal(gs_fence_check(path, &theirs).code, GS_FAILED_PRECONDITION);
    // Whoever has not heard of it asks again.
    life = look(&files, job_of(play), (gs_life_look){.generation = 3, .number = 77, .raises = true});
    assert_true(life.is_raised);
    // As after a restart: it asks only.
    life = look(&files, job_of(play), (gs_life_look){.generation = 3});
    assert_true(life.is_raised);
    gs_work *list = gs_file_work_find_directories(&files, job_of(play), "c-home");
    assert_ok(list->base.run(&list->base, NULL));
    assert_int_equal(list->left_by, 3);
    gs_work_destroy(list);
    // No rank of the next one has been there.
    life = look(&files, job_of(play), (gs_life_look){.generation = 4});
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

static void save(gs_play *play, const char *directory, int64_t step) {
    gs_engine_event event = gs_play_message(play, 0, GS_ON_CHECKPOINTED);
    event.checkpointed.directory = directory;
    event.checkpointed.found.step = step;
    gs_play_hear(play, &event);
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

static gs_checkpoint_state state_of_checkpoint(gs_play *play, const char *directory) {
    const gs_checkpoint *item = gs_checkpoints_find(&job_of(play)->checkpoints, directory);
    assert_non_null(item);
    return item->state;
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
    assert_int_equal(state_of_checkpoint(play, "step-64-0"), GS_CHECKPOINT_GOOD);
}

static void release(gs_play *play, int64_t step) {
    gs_engine_event event = {.kind = GS_ON_RELEASE_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    event.release.job = play->job_text;
    event.release.step = step;
    gs_play_hear(play, &event);
}

static void expect_nothing_lost(gs_play *play) {
    assert_int_equal(job_of(play)->go_on_step, 0);
    assert_int_equal(state_of_checkpoint(play, "step-9"), GS_CHECKPOINT_GOOD);
    assert_int_equal(play->num_removals, 0);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
}

// Later checkpoints are removed for one that the disk has, and for no other.
static void later_checkpoints_stay_until_the_named_one_is_seen(void **state) {
    gs_play *play = *state;
    gs_status answer;
    save(play, "step-5", 5);
    save(play, "step-9", 9);
    gs_play_close_lines(play);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    play->list_says = GS_UNAVAILABLE;
    release(play, 5);
    assert_int_equal(play->answer.code, GS_UNAVAILABLE);
    expect_nothing_lost(play);
    play->list_says = GS_OK;
    play->disk_waits = true;  // it says nothing
    release(play, 5);
    gs_call call = play->last_call;
    assert_false(gs_play_is_answered(play, call, &answer));
    gs_play_wait(play, 11 * GS_NS_PER_SEC);
    assert_true(gs_play_is_answered(play, call, &answer));
    assert_int_equal(answer.code, GS_UNAVAILABLE);
    play->disk_waits = false;  // and then something: nobody waits for it any more
    gs_play_wait(play, GS_NS_PER_SEC);
    expect_nothing_lost(play);
    play->missing = "step-5";
    release(play, 5);
    assert_int_equal(play->answer.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(play->answer.message, "there are: 3, 9"));
    assert_int_equal(state_of_checkpoint(play, "step-9"), GS_CHECKPOINT_GOOD);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    play->missing = NULL;
    release(play, 3);
    assert_int_equal(play->answer.code, GS_OK);
    assert_int_equal(gs_checkpoints_newest_step(&job_of(play)->checkpoints), 3);
    assert_int_equal(state_of_checkpoint(play, "step-9"), GS_CHECKPOINT_GOOD);
}

// Who has said Bye is missed by nobody: the others train on, and what they save is of the run that there is.
static void a_run_that_a_release_does_not_end_keeps_its_checkpoints(void **state) {
    gs_play *play = *state;
    save(play, "step-9", 9);
    gs_engine_event bye = gs_play_message(play, 0, GS_ON_BYE);
    bye.bye.reason = GS_BYE_TARGET_REACHED;
    gs_play_hear(play, &bye);
    gs_engine_event gone = {.kind = GS_ON_CALL_GONE, .from = {.generation = -1}};
    gone.gone.call = gs_play_run(play)->members[0].stream.call;
    gs_play_hear(play, &gone);
    gs_play_lose_worker(play);
    release(play, 3);
    assert_int_equal(play->answer.code, GS_FAILED_PRECONDITION);
    expect_nothing_lost(play);
    assert_int_equal(gs_play_run(play)->members[0].stage, GS_MEMBER_LEAVING);
}

static void hear_of_checkpoint(gs_play *play, gs_engine_event_kind kind, const char *directory) {
    gs_engine_event event = {.kind = kind, .from = {.generation = -1}};
    event.done = (gs_completion){.stored = GS_STORED_CHECKPOINT, .job = play->job, .directory = directory};
    if (kind == GS_ON_CHECKPOINTS_CHECKED) {
        event.done.names = &directory;
        event.done.num_names = 1;
    }
    gs_play_hear(play, &event);
}

// Else the end of one write would pass for that of the other, and files would go whose row says that they are good.
static void a_row_on_its_way_is_waited_for_before_it_is_marked(void **state) {
    gs_play *play = *state;
    play->verify_waits = play->disk_waits = true;
    save(play, "step-9", 9);
    int rows = play->num_checkpoint_rows;
    hear_of_checkpoint(play, GS_ON_VERIFIED, "step-9");
    assert_int_equal(play->num_checkpoint_rows, rows + 1);
    hear_of_checkpoint(play, GS_ON_CHECKPOINTS_CHECKED, "step-9");
    assert_int_equal(state_of_checkpoint(play, "step-9"), GS_CHECKPOINT_DELETING);
    assert_int_equal(play->num_checkpoint_rows, rows + 1);
    hear_of_checkpoint(play, GS_ON_STORED, "step-9");
    assert_int_equal(play->num_checkpoint_rows, rows + 2);
    assert_int_equal(play->num_removals, 0);
    hear_of_checkpoint(play, GS_ON_STORED, "step-9");
    assert_int_equal(play->num_removals, 1);
}

// All ranks hold that step, and train.
static void begin_from(gs_play *play, int64_t step) {
    gs_play_say_all(play, GS_ON_HELLO);
    gs_play_say(play, 0, GS_ON_PARAMS);
    for (int i = 0; i < GS_PLAY_RANKS; i++) {
        gs_engine_event ready = gs_play_message(play, i, GS_ON_READY);
        ready.ready.applied_step = step;
        gs_play_hear(play, &ready);
    }
    gs_play_say_all(play, GS_ON_COMM_UP);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
}

// Its manifest was there, and its bytes are not what they were: a rank finds out, and what is later is still there.
static void a_named_checkpoint_that_is_damaged_loses_nothing(void **state) {
    gs_play *play = *state;
    save(play, "step-9", 9);
    gs_play_close_lines(play);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    play->watched_reason = "NamedCheckpointLost";
    gs_job *job = gs_play_run(play)->job;
    release(play, 3);
    assert_int_equal(play->answer.code, GS_OK);
    job->spec.checkpoint.keep_last = 1;  // it is the oldest
    gs_play_find_worker(play);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_non_null(job_of(play)->run);
    hear_of_checkpoint(play, GS_ON_CHECKPOINTS_CHECKED, "another");
    assert_int_equal(state_of_checkpoint(play, "step-3"), GS_CHECKPOINT_GOOD);
    play->missing = "step-3";  // it is bad-step-3 now
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_int_equal(play->num_watched, 1);
    assert_int_equal(job_of(play)->go_on_step, 0);
    assert_int_equal(gs_checkpoints_newest_step(&job_of(play)->checkpoints), 9);
    assert_int_equal(state_of_checkpoint(play, "step-9"), GS_CHECKPOINT_GOOD);
}

static void an_operator_names_the_step_to_go_on_from(void **state) {
    gs_play *play = *state;
    save(play, "step-5", 5);
    save(play, "step-9", 9);
    release(play, 5);
    assert_int_equal(play->answer.code, GS_FAILED_PRECONDITION);  // its ranks are heard
    gs_play_close_lines(play);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    uint64_t former = gs_play_run(play)->members[0].incarnation;
    release(play, 7);
    assert_int_equal(play->answer.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(play->answer.message, "there are: 3, 5, 9"));
    assert_int_equal(gs_play_run(play)->members[0].incarnation, former);
    assert_int_equal(gs_checkpoints_newest_step(&job_of(play)->checkpoints), 9);
    release(play, 5);
    assert_int_equal(play->answer.code, GS_OK);
    assert_int_equal(job_of(play)->go_on_step, 5);
    play->list_says = GS_UNAVAILABLE;
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_null(job_of(play)->run);  // the disk is asked for it, as ever
    play->list_says = GS_OK;
    gs_play_find_worker(play);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_non_null(job_of(play)->run);
    assert_int_equal(gs_checkpoints_newest_step(&job_of(play)->checkpoints), 5);
    assert_int_equal(state_of_checkpoint(play, "step-9"), GS_CHECKPOINT_GOOD);  // until the ranks have begun
    // A later one of the set before it is none; one of the set that goes on from there is.
    assert_int_equal(job_of(play)->go_on_step, 5);
    save(play, "step-9b", 9);
    assert_int_equal(gs_checkpoints_newest_step(&job_of(play)->checkpoints), 5);
    begin_from(play, 5);
    assert_int_equal(job_of(play)->go_on_step, 0);
    assert_int_equal(state_of_checkpoint(play, "step-9"), GS_CHECKPOINT_DELETING);
    save(play, "step-9c", 9);
    assert_int_equal(gs_checkpoints_newest_step(&job_of(play)->checkpoints), 9);
}

// A look at the disk, which was under way, has come upon it.
static void find_whole_of(gs_play *play, uint32_t generation, const char *directory, int64_t step) {
    gs_engine_event event = {.kind = GS_ON_PARTS_LOOKED, .from = {.generation = -1}};
    event.done = (gs_completion){.job = play->job, .directory = directory, .found = {.step = step, .generation = generation}};
    gs_play_hear(play, &event);
}

static void find_whole(gs_play *play, const char *directory, int64_t step) {
    gs_play_run(play)->job->checkpoints.looking++;
    find_whole_of(play, 0, directory, step);
}

static void expect_unknown(gs_play *play, const char *directory) {
    assert_null(gs_checkpoints_find(&job_of(play)->checkpoints, directory));
    assert_int_equal(gs_checkpoints_newest_step(&job_of(play)->checkpoints), 3);
}

// Its ranks are gone, and these are on the disk, which takes long to look at each.
static void end_and_find(gs_play *play, const char *const *names, size_t num_names) {
    play->disk_waits = true;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_engine_event list = {.kind = GS_ON_DIRECTORIES_FOUND, .from = {.generation = -1}};
    list.done = (gs_completion){.job = play->job, .names = names, .num_names = num_names};
    gs_play_hear(play, &list);
}

// An operator had the job start without it: what was asked before that is told behind it, and is of ranks that were given up.
static void what_a_slow_disk_tells_behind_a_start_without_it_is_left_behind(void **state) {
    gs_play *play = *state;
    const char *names[] = {"step-7", "step-8", "step-9"};
    uint32_t former = job_of(play)->generation;
    end_and_find(play, names, 3);
    play->verify_waits = true;
    find_whole_of(play, former, "step-7", 7);
    assert_int_equal(state_of_checkpoint(play, "step-7"), GS_CHECKPOINT_VERIFYING);
    gs_play_wait(play, 15 * GS_NS_PER_SEC);
    expect_wait(play);
    release(play, 0);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(gs_play_run(play)->generation, 0);
    expect_unknown(play, "step-7");
    hear_of_checkpoint(play, GS_ON_VERIFIED, "step-7");
    find_whole_of(play, former, "step-8", 8);
    expect_unknown(play, "step-8");
    begin_from(play, 3);
    find_whole_of(play, former, "step-9", 9);
    expect_unknown(play, "step-9");
    find_whole(play, "step-5", 5);  // it does not say whose it is
    assert_int_equal(state_of_checkpoint(play, "step-5"), GS_CHECKPOINT_VERIFYING);
}

static void start_without_disk(gs_play *play) {
    play->list_says = GS_UNAVAILABLE;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    expect_wait(play);
    release(play, 0);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(job_of(play)->left_generation, job_of(play)->generation);
    play->list_says = GS_OK;
}

static void form_generation(gs_play *play) {
    gs_play_say_all(play, GS_ON_HELLO);
    gs_play_say(play, 0, GS_ON_PARAMS);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_PREPARING);
}

// Its ranks have taken no step, also where they had a generation already: what lies there is lost for nothing.
static void a_start_without_a_disk_that_comes_to_nothing_loses_nothing(void **state) {
    for (int is_formed = 0; is_formed < 2; is_formed++) {
        gs_play *play = *state;
        if (is_formed) set_up(state), play = *state;
        play->found_generation = job_of(play)->generation;
        start_without_disk(play);
        if (is_formed) form_generation(play);
        assert_int_equal(job_of(play)->generation > play->found_generation, is_formed);
        gs_play_run(play)->job->checkpoints.looking++;
        find_whole_of(play, play->found_generation, "step-9", 9);
        expect_unknown(play, "step-9");
        play->found = "step-9";
        play->found_step = 9;
        gs_play_say_all(play, GS_ON_EXITED);
        gs_play_wait(play, 30 * GS_NS_PER_SEC);
        assert_non_null(job_of(play)->run);
        assert_int_equal(job_of(play)->left_generation, 0);
        assert_int_equal(job_of(play)->begun_step, 9);
        assert_string_equal(job_of(play)->begun_directory, "step-9");
        if (!is_formed) gs_play_tear_down(state);
    }
}

static void start_anew(gs_play *play) {
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_int_equal(gs_play_run(play)->generation, 0);
    assert_int_equal(job_of(play)->begun_step, 3);
}

// Ranks that were given up save late, while others begin from an earlier step: it would be the newest for as long as those have not come
// as far, what they save would go for it, and the next start would go on from it.
static void what_is_saved_late_is_left_behind_by_ranks_that_begin(void **state) {
    gs_play *play = *state;
    uint32_t former = job_of(play)->generation;
    start_anew(play);
    gs_play_run(play)->job->checkpoints.looking++;
    find_whole_of(play, former, "step-40", 40);
    expect_unknown(play, "step-40");
    begin_from(play, 3);
    gs_play_run(play)->job->checkpoints.looking++;
    find_whole_of(play, former, "step-41", 41);
    expect_unknown(play, "step-41");
    gs_play_run(play)->job->checkpoints.looking++;
    find_whole_of(play, job_of(play)->generation, "step-6", 6);
    assert_int_equal(state_of_checkpoint(play, "step-6"), GS_CHECKPOINT_GOOD);
}

// Where they do not come to begin it is the job's, whether it starts again or ends.
static void what_is_saved_late_is_the_jobs_where_no_rank_has_begun(void **state) {
    for (int ends = 0; ends < 2; ends++) {
        gs_play *play = *state;
        if (ends) set_up(state), play = *state;
        uint32_t former = job_of(play)->generation;
        start_anew(play);
        gs_play_run(play)->job->checkpoints.looking++;
        find_whole_of(play, former, "step-40", 40);
        expect_unknown(play, "step-40");
        play->found = "step-40";
        play->found_step = 40;
        play->found_generation = former;
        gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
        stop.stop = (gs_stop_request){.job = play->job_text, .now = true, .outcome = GS_JOB_CANCELLED, .grace_seconds = 0};
        if (ends) gs_play_hear(play, &stop);
        gs_play_say_all(play, GS_ON_EXITED);
        gs_play_wait(play, 30 * GS_NS_PER_SEC);
        assert_int_equal(gs_job_state_terminal(job_of(play)->state), ends);
        assert_int_equal(state_of_checkpoint(play, "step-40"), GS_CHECKPOINT_GOOD);
        if (!ends) assert_int_equal(job_of(play)->begun_step, 40);
        if (!ends) gs_play_tear_down(state);
    }
}

// What is being read when a step is named, and what is found behind that, is neither waited for nor left on the disk.
static void what_is_later_goes_also_when_it_is_still_being_read(void **state) {
    gs_play *play = *state;
    save(play, "step-5", 5);
    play->verify_waits = true;
    save(play, "step-9", 9);
    gs_play_close_lines(play);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    release(play, 5);
    assert_int_equal(play->answer.code, GS_OK);
    gs_play_find_worker(play);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_non_null(job_of(play)->run);
    find_whole(play, "step-9b", 9);
    assert_int_equal(state_of_checkpoint(play, "step-9"), GS_CHECKPOINT_VERIFYING);
    int removals = play->num_removals;
    begin_from(play, 5);
    assert_int_equal(play->num_removals, removals + 2);
    hear_of_checkpoint(play, GS_ON_VERIFIED, "step-9");
    assert_int_equal(gs_checkpoints_newest_step(&job_of(play)->checkpoints), 5);
}

static void a_step_that_was_named_outlives_the_coordinator(void **state) {
    gs_play *play = *state;
    save(play, "step-9", 9);
    play->list_says = GS_UNAVAILABLE;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    expect_wait(play);
    gs_play_lose_worker(play);
    play->list_says = GS_OK;
    release(play, 3);
    assert_int_equal(play->answer.code, GS_OK);
    gs_play_reopen_without_worker(play);
    assert_int_equal(job_of(play)->go_on_step, 3);
    assert_int_equal(job_of(play)->checkpoints.most_step, 3);
    // Its row was not durable, and its files are gone: no start from the beginning beside later ones.
    play->watched_reason = "NamedCheckpointLost";
    play->num_watched = 0;
    int num_finds = play->num_finds;
    gs_play_find_worker(play);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_int_equal(play->num_watched, 1);
    assert_int_equal(job_of(play)->go_on_step, 0);
    assert_int_equal(play->num_finds, num_finds + 2);  // also those that were not taken
    assert_non_null(job_of(play)->run);
}

// Behind the long work on files: neither a start nor a commit waits for it.
static void a_job_is_swept_until_its_last_save_must_be_over(void **state) {
    gs_play *play = *state;
    gs_play_wait(play, 1300 * GS_NS_PER_SEC);
    assert_int_equal(play->num_sweeps, 2);
    gs_work *work = gs_file_work_sweep(&(gs_file_root){.checkpoints_dir = "/nowhere"}, job_of(play));
    assert_int_equal(work->base.lane, GS_LANE_BULK);
    gs_work_destroy(work);
    gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    stop.stop = (gs_stop_request){.job = play->job_text, .now = true, .outcome = GS_JOB_CANCELLED, .grace_seconds = 0};
    gs_play_hear(play, &stop);
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 700 * GS_NS_PER_SEC);
    assert_int_equal(play->num_sweeps, 3);
    gs_play_wait(play, 4200 * GS_NS_PER_SEC);
    assert_in_range(play->num_sweeps, 10, 11);
    const int last = play->num_sweeps;
    gs_play_wait(play, 7200 * GS_NS_PER_SEC);
    assert_int_equal(play->num_sweeps, last);
}

static void ended_earlier(gs_play *play, int seconds) {
    gs_job *job = gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
    job->ended_ns -= seconds * GS_NS_PER_SEC;
}

// What a life has seen of it goes with the life: the next one looks as long, at jobs that ended shortly before it.
static void a_job_that_ended_before_this_life_is_swept_if_it_was_lately(void **state) {
    gs_play *play = *state;
    gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    stop.stop = (gs_stop_request){.job = play->job_text, .now = true, .outcome = GS_JOB_CANCELLED, .grace_seconds = 0};
    gs_play_hear(play, &stop);
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_reopen_without_worker(play);
    assert_int_equal(job_of(play)->state, GS_JOB_CANCELLED);
    ended_earlier(play, 3000);
    gs_play_wait(play, 9000 * GS_NS_PER_SEC);
    assert_in_range(play->num_sweeps, 7, 8);
    const int last = play->num_sweeps;
    gs_play_reopen_without_worker(play);
    ended_earlier(play, 9000);
    gs_play_wait(play, 9000 * GS_NS_PER_SEC);
    assert_int_equal(play->num_sweeps, last);
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
    assert_int_equal(state_of_checkpoint(play, "step-3"), GS_CHECKPOINT_GOOD);
    assert_int_equal(play->num_watched, 0);  // nobody waits for that disk
    play->list_says = GS_OK;
    gs_engine_event saved = gs_play_message(play, 0, GS_ON_CHECKPOINTED);
    saved.checkpointed.directory = "step-4";
    saved.checkpointed.found.step = 4;
    int num_checks = play->num_checks;
    gs_play_hear(play, &saved);
    assert_int_equal(play->num_checks, num_checks + 1);
    assert_int_equal(state_of_checkpoint(play, "step-4"), GS_CHECKPOINT_GOOD);
    assert_int_equal(state_of_checkpoint(play, "step-3"), GS_CHECKPOINT_DELETING);
    assert_int_equal(state_of_checkpoint(play, "step-9"), GS_CHECKPOINT_DELETING);
    // Once: what this life records it knows.
    play->missing = NULL;
    saved = gs_play_message(play, 0, GS_ON_CHECKPOINTED);
    saved.checkpointed.directory = "step-5";
    saved.checkpointed.found.step = 5;
    gs_play_hear(play, &saved);
    assert_int_equal(play->num_checks, num_checks + 1);
    assert_int_equal(state_of_checkpoint(play, "step-4"), GS_CHECKPOINT_DELETING);
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
    assert_int_equal(job_of(play)->checkpoints.looking, 1);
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
        if (is_slow) set_up(state), play = *state;
        play->found = "step-9";
        play->verify_waits = true;
        gs_play_say_all(play, GS_ON_EXITED);
        gs_play_wait(play, is_slow ? 10 * GS_NS_PER_SEC : GS_NS_PER_SEC);
        assert_null(job_of(play)->run);
        play->verify_waits = false;
        hear_of_checkpoint(play, GS_ON_VERIFIED, "step-9");
        gs_play_wait(play, 5 * GS_NS_PER_SEC);
        assert_non_null(job_of(play)->run);
        assert_int_equal(play->num_finds, is_slow ? 2 : 1);
        if (!is_slow) gs_play_tear_down(state);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, gs_play_tear_down)

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
        TEST(a_job_is_swept_until_its_last_save_must_be_over),
        TEST(a_job_that_ended_before_this_life_is_swept_if_it_was_lately),
        TEST(a_disk_is_not_away_while_the_coordinator_stands_still),
        TEST(a_named_checkpoint_that_is_damaged_loses_nothing),
        TEST(an_operator_names_the_step_to_go_on_from),
        TEST(what_is_later_goes_also_when_it_is_still_being_read),
        TEST(what_a_slow_disk_tells_behind_a_start_without_it_is_left_behind),
        TEST(a_start_without_a_disk_that_comes_to_nothing_loses_nothing),
        TEST(what_is_saved_late_is_left_behind_by_ranks_that_begin),
        TEST(what_is_saved_late_is_the_jobs_where_no_rank_has_begun),
        TEST(later_checkpoints_stay_until_the_named_one_is_seen),
        TEST(a_run_that_a_release_does_not_end_keeps_its_checkpoints),
        TEST(a_row_on_its_way_is_waited_for_before_it_is_marked),
        TEST(a_step_that_was_named_outlives_the_coordinator),
        TEST(a_directory_is_closed_to_ranks_that_leave_no_new_sign),
        TEST(what_another_life_recorded_is_looked_at_before_any_is_removed),
        TEST(a_start_looks_at_live_jobs_first_and_then_at_a_few_ended_ones_at_a_time),
        TEST(a_directory_that_had_checkpoints_is_not_gone_when_nobody_sees_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
