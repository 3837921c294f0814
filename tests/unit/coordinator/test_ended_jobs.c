// Jobs that have ended: which of them are forgotten and when, what deleting one means, and what it leaves behind.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/unit/coordinator/engine_play.h"

static gs_state *state_of(gs_play *play) { return (gs_state *)(uintptr_t)gs_engine_state(play->engine); }

static gs_job *submit_with(gs_play *play, int number, int seconds) {
    char spec[240];
    snprintf(spec, sizeof spec,
             "{\"name\":\"short-%d\",\"world\":{\"min\":1,\"max\":1,\"device\":\"cuda\",\"wait_seconds\":%d},"
             "\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5}}", number, seconds);
    return gs_play_submit(play, spec);
}

static gs_job *submit_short(gs_play *play, int number) { return submit_with(play, number, 1); }

// While the first job trains.
static void pass(gs_play *play, int seconds) {
    for (int i = 0; i < seconds; i++) {
        gs_play_say_all(play, GS_ON_STEP);
        gs_play_wait(play, GS_NS_PER_SEC);
    }
}

static bool is_known(gs_play *play, uint64_t id) { return gs_job_table_get(&state_of(play)->jobs, id) != NULL; }

// While one trains.
static void ended_jobs_are_kept_so_many_and_so_long(void **state) {
    gs_play *play = *state;
    uint64_t ids[5];
    state_of(play)->timing.series_keep_ns = GS_NS_PER_SEC;
    gs_job_table *jobs = &state_of(play)->jobs;
    for (int i = 0; i < 5; i++) {
        ids[i] = submit_short(play, i)->id;
        gs_play_say_all(play, GS_ON_STEP);
        gs_play_wait(play, 2 * GS_NS_PER_SEC);
    }
    assert_int_equal(jobs->count, 6);
    state_of(play)->retention = (gs_retention){.ended_jobs = 3};
    // A disk that takes no deletion is asked again, and forgets nothing meanwhile.
    play->disk_says = GS_RESOURCE_EXHAUSTED;
    gs_play_say_all(play, GS_ON_STEP);
    gs_play_wait(play, 2 * GS_NS_PER_SEC);
    assert_int_equal(jobs->count, 6);
    play->disk_says = GS_OK;
    for (int i = 0; i < 10; i++) {
        gs_play_say_all(play, GS_ON_STEP);
        gs_play_wait(play, 3 * GS_NS_PER_SEC);
    }
    for (int i = 0; i < 5; i++) {
        assert_int_equal(gs_job_table_get(jobs, ids[i]) != NULL, i >= 2);
        assert_int_equal(gs_job_table_tombstone(jobs, ids[i]) != NULL, i < 2);
    }
    // An hour that somebody sets is none.
    state_of(play)->retention = (gs_retention){.ended_ns = 3600 * GS_NS_PER_SEC};
    play->wall_ms += 7200 * 1000;
    gs_play_say_all(play, GS_ON_STEP);
    gs_play_wait(play, 3 * GS_NS_PER_SEC);
    assert_int_equal(jobs->count, 4);
    for (size_t i = 0; i < jobs->count; i++) jobs->items[i]->ended_ns -= 3600 * GS_NS_PER_SEC;
    gs_play_say_all(play, GS_ON_STEP);
    gs_play_wait(play, 3 * GS_NS_PER_SEC);
    assert_int_equal(jobs->count, 1);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
}

// The one that was created first may be the last that ends.
static void who_ended_first_is_forgotten_first(void **state) {
    gs_play *play = *state;
    state_of(play)->timing.series_keep_ns = GS_NS_PER_SEC;
    uint64_t long_one = submit_with(play, 0, 10)->id, first = submit_short(play, 1)->id;
    pass(play, 3);
    uint64_t second = submit_short(play, 2)->id;
    pass(play, 12);
    state_of(play)->retention = (gs_retention){.ended_jobs = 1};
    pass(play, 4);
    assert_false(is_known(play, first));
    assert_false(is_known(play, second));
    assert_true(is_known(play, long_one));
}

// Its metrics are still read, and who waits for its end has not been told yet.
static void who_has_just_ended_is_not_forgotten(void **state) {
    gs_play *play = *state;
    uint64_t id = submit_short(play, 0)->id;
    pass(play, 3);
    submit_short(play, 1);
    pass(play, 3);
    state_of(play)->retention = (gs_retention){.ended_jobs = 1};
    pass(play, 100);
    assert_true(is_known(play, id));
    pass(play, 250);
    assert_false(is_known(play, id));
}

static void what_the_disk_does_not_forget_is_not_said_to_be_forgotten(void **state) {
    gs_play *play = *state;
    state_of(play)->timing.series_keep_ns = GS_NS_PER_SEC;
    play->watched_reason = "JobsForgotten";
    submit_short(play, 0);
    submit_short(play, 1);
    pass(play, 4);
    state_of(play)->retention = (gs_retention){.ended_jobs = 1};
    play->disk_says = GS_RESOURCE_EXHAUSTED;
    pass(play, 10);
    assert_int_equal(play->num_watched, 0);
    play->disk_says = GS_OK;
    pass(play, 10);
    assert_int_equal(play->num_watched, 1);
}

// As many as several who submit without a pause can end; not so many at once that the loop stands.
static void hundreds_a_second_are_forgotten(void **state) {
    gs_play *play = *state;
    gs_job_table *jobs = &state_of(play)->jobs;
    state_of(play)->timing.series_keep_ns = GS_NS_PER_SEC;
    for (int i = 0; i < 400; i++) submit_short(play, i);
    pass(play, 4);
    assert_int_equal(jobs->count, 401);
    state_of(play)->retention = (gs_retention){.ended_jobs = 10};
    pass(play, 2);
    assert_int_equal(jobs->count, 11);
}

// It is not asked for more before it has done that, for as long as it takes.
static void a_slow_disk_is_asked_to_forget_a_hundred_at_a_time(void **state) {
    gs_play *play = *state;
    gs_job_table *jobs = &state_of(play)->jobs;
    state_of(play)->timing.series_keep_ns = GS_NS_PER_SEC;
    for (int i = 0; i < 400; i++) submit_short(play, i);
    pass(play, 4);
    play->disk_waits = true;
    state_of(play)->retention = (gs_retention){.ended_jobs = 10};
    pass(play, 5);
    int num_asked = 0;
    for (size_t i = 0; i < jobs->count; i++) num_asked += jobs->items[i]->held_back;
    assert_int_equal(num_asked, 100);
    play->disk_waits = false;
    pass(play, 4);
    assert_int_equal(jobs->count, 11);
}

static gs_engine_event request(gs_play *play, gs_engine_event_kind kind) {
    play->answered = false;
    return (gs_engine_event){.kind = kind, .from = {.call = ++play->last_call, .generation = -1}};
}

static void delete(gs_play *play, const char *job, bool purge) {
    gs_engine_event event = request(play, GS_ON_DELETE_JOB);
    event.remove = (gs_delete_request){.job = job, .purge = purge};
    gs_play_hear(play, &event);
}

static void a_second_deletion_may_ask_for_more(void **state) {
    gs_play *play = *state;
    char job[GS_JOB_ID_LEN];
    snprintf(job, sizeof job, "%s", submit_short(play, 0)->id_text);
    pass(play, 4);
    play->disk_waits = true;
    delete(play, job, false);
    delete(play, job, true);
    assert_false(play->answered);
    play->disk_waits = false;
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_true(play->answered);
    assert_int_equal(play->answer.code, GS_OK);
    assert_int_equal(play->num_purges, 1);
}

// The answer to the first request may be lost: the same words again must not mean another job.
static void a_name_that_several_had_deletes_none_of_them(void **state) {
    gs_play *play = *state;
    uint64_t ids[2];
    for (int i = 0; i < 2; i++) {
        ids[i] = submit_short(play, 7)->id;  // both are short-7
        pass(play, 4);
    }
    delete(play, "short-7", false);
    assert_true(play->answered);
    assert_int_equal(play->answer.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(play->answer.message, "ambiguous: 2 jobs"));
    assert_true(is_known(play, ids[0]) && is_known(play, ids[1]));
    // One that lives comes first, and is not deleted.
    submit_with(play, 7, 3600);
    delete(play, "short-7", false);
    assert_int_equal(play->answer.code, GS_FAILED_PRECONDITION);
    char text[GS_JOB_ID_LEN];
    gs_job_id_format(text, ids[1]);
    delete(play, text, false);
    assert_int_equal(play->answer.code, GS_OK);
    assert_true(is_known(play, ids[0]) && !is_known(play, ids[1]));
}

static void create(gs_play *play, const char *key) {
    gs_job_spec *spec = calloc(1, sizeof *spec);
    *spec = gs_job_table_get(&state_of(play)->jobs, play->job)->spec;
    snprintf(spec->name, sizeof spec->name, "keyed");
    spec->world.device = GS_SPEC_DEVICE_CUDA;
    spec->world.wait_seconds = 1;
    gs_engine_event event = request(play, GS_ON_CREATE_JOB);
    event.create = (gs_create_request){.spec = spec, .key = key, .fingerprint = "print"};
    gs_play_hear(play, &event);
}

static uint64_t newest(gs_play *play) {
    const gs_job_table *jobs = &state_of(play)->jobs;
    return jobs->items[jobs->count - 1]->id;
}

// A request that is sent again after a day without a network.
static void the_key_of_a_forgotten_job_makes_no_second_one(void **state) {
    gs_play *play = *state;
    state_of(play)->timing.series_keep_ns = GS_NS_PER_SEC;
    create(play, "k");
    uint64_t id = newest(play);
    assert_int_not_equal(id, play->job);
    pass(play, 4);
    submit_short(play, 1);
    pass(play, 4);
    state_of(play)->retention = (gs_retention){.ended_jobs = 1};
    pass(play, 4);
    assert_false(is_known(play, id));
    size_t count = state_of(play)->jobs.count;
    create(play, "k");
    assert_true(play->answered);
    assert_int_equal(play->answer.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(play->answer.message, "forgotten"));
    assert_int_equal(state_of(play)->jobs.count, count);
}

// A day that somebody sets is none.
static void a_key_lives_a_day_in_which_a_coordinator_is_there(void **state) {
    gs_play *play = *state;
    create(play, "k");
    size_t count = state_of(play)->jobs.count;
    play->wall_ms += 48 * 3600 * 1000;
    gs_play_wait(play, 700 * GS_NS_PER_SEC);  // expired ones are looked for
    create(play, "k");
    assert_int_equal(state_of(play)->jobs.count, count);
    play->now_ns += GS_KEY_LIFE_NS;
    assert_null(gs_request_keys_find(&state_of(play)->keys, "k", play->now_ns));
    gs_play_say_all(play, GS_ON_STEP);
    assert_int_equal(state_of(play)->keys.count, 1);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(state_of(play)->keys.count, 0);
}

// What is remembered has a bound; one more is refused, named, and leaves nothing. What is known is still answered.
static void no_more_jobs_and_keys_are_taken_than_are_kept(void **state) {
    gs_play *play = *state;
    state_of(play)->retention = (gs_retention){.keys = 1};
    create(play, "k");
    assert_int_equal(play->answer.code, GS_OK);
    pass(play, 4);  // its name is free
    size_t count = state_of(play)->jobs.count;
    create(play, "another");
    assert_int_equal(play->answer.code, GS_RESOURCE_EXHAUSTED);
    create(play, "k");
    assert_int_equal(play->answer.code, GS_OK);
    state_of(play)->retention = (gs_retention){.live_jobs = 1};  // the one that trains
    create(play, "a third");
    assert_int_equal(play->answer.code, GS_RESOURCE_EXHAUSTED);
    assert_int_equal(state_of(play)->jobs.count, count);
    assert_int_equal(state_of(play)->keys.count, 1);
}

// Who ended a moment ago is not forgotten yet, so what ends faster than that is refused when it is submitted.
static void jobs_that_end_faster_than_they_may_be_forgotten_are_refused(void **state) {
    gs_play *play = *state;
    play->watched_limit = "ended_jobs";
    for (int i = 0; i < 4; i++) submit_short(play, i);
    pass(play, 4);
    state_of(play)->retention = (gs_retention){.ended_jobs = 2, .ended_above = 3};
    create(play, "a fifth");
    assert_int_equal(play->answer.code, GS_OK);
    pass(play, 4);
    create(play, "a sixth");
    assert_int_equal(play->answer.code, GS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(play->answer.message, "5 ended jobs are here already, and 2 are kept"));
    assert_int_equal(play->num_limits, 1);
    state_of(play)->timing.series_keep_ns = GS_NS_PER_SEC;
    pass(play, 2);
    create(play, "a sixth");
    assert_int_equal(play->answer.code, GS_OK);
    assert_int_equal(play->num_limits, 1);
}

// Not only behind the next look for such keys.
static void a_key_whose_life_is_over_keeps_no_other_away(void **state) {
    gs_play *play = *state;
    state_of(play)->retention = (gs_retention){.keys = 1};
    create(play, "k");
    pass(play, 4);
    create(play, "another");
    assert_int_equal(play->answer.code, GS_RESOURCE_EXHAUSTED);
    play->now_ns += GS_KEY_LIFE_NS;
    create(play, "another");
    assert_int_equal(play->answer.code, GS_OK);
    assert_int_equal(state_of(play)->keys.count, 1);
}

static void who_deletes_a_job_may_use_its_key_again(void **state) {
    gs_play *play = *state;
    create(play, "k");
    char job[GS_JOB_ID_LEN];
    snprintf(job, sizeof job, "%s", gs_job_table_get(&state_of(play)->jobs, newest(play))->id_text);
    pass(play, 4);
    delete(play, job, false);
    assert_null(gs_request_keys_find(&state_of(play)->keys, "k", 0));
    create(play, "k");
    assert_int_equal(play->answer.code, GS_OK);
    assert_int_equal(state_of(play)->jobs.count, 2);
}

static void release(gs_play *play, const char *job) {
    gs_engine_event event = request(play, GS_ON_RELEASE_JOB);
    event.release.job = job;
    gs_play_hear(play, &event);
    assert_true(play->answered);
    assert_int_equal(play->answer.code, GS_FAILED_PRECONDITION);
}

static void nothing_is_written_of_an_ended_job_that_is_released(void **state) {
    gs_play *play = *state;
    gs_job *job = submit_short(play, 0);
    char text[GS_JOB_ID_LEN];
    snprintf(text, sizeof text, "%s", job->id_text);
    pass(play, 4);
    job->checkpoints.away_since_ns = 1;  // since before it ended
    play->watched_reason = "Released";
    release(play, text);
    play->disk_waits = true;
    delete(play, text, false);
    int rows = play->num_job_rows;
    release(play, text);
    assert_int_equal(play->num_job_rows, rows);
    assert_int_equal(play->num_watched, 0);
    play->disk_waits = false;
}

static void stop(gs_play *play) {
    gs_engine_event event = request(play, GS_ON_STOP_JOB);
    event.stop = (gs_stop_request){.job = play->job_text, .outcome = GS_JOB_CANCELLED, .grace_seconds = -1};
    gs_play_hear(play, &event);
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_true(gs_job_state_terminal(gs_job_table_get(&state_of(play)->jobs, play->job)->state));
}

// In the events of the job, of its deletion in those of all; once, however often it is asked.
static void who_asked_is_told_with_what_was_asked(void **state) {
    gs_play *play = *state;
    play->watched_reason = "Requested";
    for (int i = 0; i < 2; i++) {
        gs_engine_event event = request(play, GS_ON_STOP_JOB);
        event.stop = (gs_stop_request){.job = play->job_text, .outcome = GS_JOB_CANCELLED, .grace_seconds = -1};
        event.from.asked_by = i ? "other (t-2)" : "ci (t-1)";
        gs_play_hear(play, &event);
        assert_int_equal(play->num_watched, 1);
    }
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, GS_NS_PER_SEC);
    gs_engine_event event = request(play, GS_ON_DELETE_JOB);
    event.remove = (gs_delete_request){.job = play->job_text};
    event.from.who.principal = (gs_principal){.is_known = true, .name = "api"};
    gs_play_hear(play, &event);
    assert_int_equal(play->num_watched, 2);
    event = request(play, GS_ON_CREATE_JOB);
    event.create = (gs_create_request){.spec = malloc(sizeof(gs_job_spec)), .fingerprint = ""};
    assert_non_null(event.create.spec);
    *event.create.spec = gs_job_table_get(&state_of(play)->jobs, gs_play_submit(play, "{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":1}}")->id)->spec;
    snprintf(event.create.spec->name, sizeof event.create.spec->name, "another");
    assert_int_equal(play->num_watched, 2);  // of that one nobody is known
    event.from.who.principal = (gs_principal){.is_known = true, .name = "api"};
    gs_play_hear(play, &event);
    assert_int_equal(play->num_watched, 3);
}

static void hear_disk(gs_play *play, gs_engine_event_kind kind, const char *directory) {
    gs_engine_event event = {.kind = kind, .from = {.generation = -1}};
    event.done = (gs_completion){.stored = GS_STORED_CHECKPOINT, .job = play->job, .directory = directory};
    gs_play_hear(play, &event);
}

// Its last checkpoint is recorded when its ranks are gone.
static gs_checkpoint_state state_of_former(gs_play *play, int64_t keep_last) {
    gs_job *job = gs_job_table_get(&state_of(play)->jobs, play->job);
    job->spec.checkpoint.keep_last = keep_last;
    gs_play_say(play, 0, GS_ON_CHECKPOINTED);
    play->disk_waits = true;
    gs_engine_event event = gs_play_message(play, 0, GS_ON_CHECKPOINTED);
    event.checkpointed.directory = "step-9";
    event.checkpointed.found.step = 9;
    gs_play_hear(play, &event);
    hear_disk(play, GS_ON_VERIFIED, "step-9");
    stop(play);
    play->disk_waits = false;
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(gs_checkpoints_find(&job->checkpoints, "step-9")->state, GS_CHECKPOINT_GOOD);
    return gs_checkpoints_find(&job->checkpoints, "step-3")->state;
}

static void an_ended_job_keeps_no_more_checkpoints_than_it_says(void **state) {
    assert_int_equal(state_of_former(*state, 1), GS_CHECKPOINT_DELETING);
}

static void of_whom_nobody_says_how_many_all_stay(void **state) {
    assert_int_equal(state_of_former(*state, 0), GS_CHECKPOINT_GOOD);
}

// Whoever asks for it is told that it is there.
static void what_cannot_be_read_is_neither_stopped_nor_deleted(void **state) {
    gs_play *play = *state;
    char text[GS_JOB_ID_LEN];
    gs_job_id_format(text, 77);
    gs_engine_adopt_unreadable(play->engine, 77);
    delete(play, text, false);
    assert_int_equal(play->answer.code, GS_FAILED_PRECONDITION);
    assert_string_equal(play->refusal, "unreadable");
    gs_engine_event event = request(play, GS_ON_STOP_JOB);
    event.stop = (gs_stop_request){.job = text, .outcome = GS_JOB_CANCELLED, .grace_seconds = -1};
    gs_play_hear(play, &event);
    assert_int_equal(play->answer.code, GS_FAILED_PRECONDITION);
    assert_string_equal(play->refusal, "unreadable");
    gs_job_id_format(text, 78);
    delete(play, text, false);
    assert_int_equal(play->answer.code, GS_NOT_FOUND);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gs_play_set_up_training, gs_play_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(who_asked_is_told_with_what_was_asked),
        TEST(ended_jobs_are_kept_so_many_and_so_long),
        TEST(who_ended_first_is_forgotten_first),
        TEST(who_has_just_ended_is_not_forgotten),
        TEST(what_the_disk_does_not_forget_is_not_said_to_be_forgotten),
        TEST(a_second_deletion_may_ask_for_more),
        TEST(the_key_of_a_forgotten_job_makes_no_second_one),
        TEST(a_key_lives_a_day_in_which_a_coordinator_is_there),
        TEST(a_name_that_several_had_deletes_none_of_them),
        TEST(no_more_jobs_and_keys_are_taken_than_are_kept),
        TEST(what_cannot_be_read_is_neither_stopped_nor_deleted),
        TEST(hundreds_a_second_are_forgotten),
        TEST(a_slow_disk_is_asked_to_forget_a_hundred_at_a_time),
        TEST(jobs_that_end_faster_than_they_may_be_forgotten_are_refused),
        TEST(a_key_whose_life_is_over_keeps_no_other_away),
        TEST(who_deletes_a_job_may_use_its_key_again),
        TEST(an_ended_job_keeps_no_more_checkpoints_than_it_says),
        TEST(of_whom_nobody_says_how_many_all_stay),
        TEST(nothing_is_written_of_an_ended_job_that_is_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
