// A disk that fails, and one that takes its time: what trains goes on, and who asks for something durable is told.
// Rows C9, C10 of docs/faults.md.
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

#include "tests/support/asserts.h"
#include "tests/support/coordinator_stage.h"
#include "tests/support/soon.h"

#define TARGET 60
#define LONG_TARGET 200
#define SLOW_MS 500
#define COMMIT_MS 3000  // as in the failpoint
#define QUICK_RESTART ",\"restart\":{\"backoff_initial_seconds\":0.05,\"backoff_max_seconds\":0.1}"

#ifdef GRADSYNC_FAILPOINTS
static const bool has_failpoints = true;
#else
static const bool has_failpoints = false;
#endif

// `failpoint`: "store.commit=ACTION@FIRST-LAST", of commits.
static void arm(gs_stage *stage, const char *failpoint) {
    gs_coordinator_process_kill(&stage->process);
    setenv("GRADSYNC_FAILPOINTS", failpoint, 1);
    gs_status status = gs_coordinator_process_start(&stage->process);
    unsetenv("GRADSYNC_FAILPOINTS");
    assert_ok(status);
}

static void start_armed(gs_stage *stage, const char *failpoint) {
    arm(stage, failpoint);
    gs_fake_worker_options options = {.slots = 1, .step_ms = 10};
    for (int i = 0; i < 2; i++) gs_stage_start_worker(stage, i, &options);
}

static void submit(gs_stage *stage, int target, const char *more) {
    char text[400];
    snprintf(text, sizeof text,
             "{\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":2,\"max\":2,\"join_window_seconds\":0},"
             "\"steps\":{\"target\":%d}%s}", target, more);
    gs_stage_submit(stage, text);
}

static bool is_ready(gs_stage *stage) {
    gs_json *health = NULL;
    assert_ok(gs_stage_ask(stage, &health, GS_GET_HEALTH, "{}"));
    bool ready = gs_json_bool_or(health, "ready", false);
    gs_json_release(health);
    return ready;
}

static void wait_until_ready(gs_stage *stage, bool wanted) {
    gs_deadline deadline = soon();
    while (is_ready(stage) != wanted) {
        assert_false(gs_deadline_passed(deadline));
        gs_sleep_ns(2 * GS_NS_PER_MS);
    }
}

// As a list of their sequences.
static gs_json *list_events(gs_stage *stage) {
    gs_json *reply = NULL, *sequences = gs_json_new_array();
    assert_ok(gs_stage_ask(stage, &reply, GS_LIST_EVENTS, "{\"limit\":500}"));
    const gs_json *items = gs_json_get(reply, "items");
    for (size_t i = 0; i < gs_json_count(items); i++)
        gs_json_push(sequences, gs_json_new_int(gs_json_int_or(gs_json_at(items, i), "sequence", 0)));
    gs_json_release(reply);
    return sequences;
}

static int64_t number_at(const gs_json *numbers, size_t index) {
    int64_t number = 0;
    assert_true(gs_json_int(&number, gs_json_at(numbers, index)));
    return number;
}

static void expect_events(gs_stage *stage, const gs_json *wanted) {
    gs_json *found = list_events(stage);
    size_t at = 0;
    for (size_t i = 0; i < gs_json_count(wanted); i++) {
        while (at < gs_json_count(found) && number_at(found, at) < number_at(wanted, i)) at++;
        assert_true(at < gs_json_count(found));
        assert_int_equal(number_at(found, at), number_at(wanted, i));
    }
    gs_json_release(found);
}

// Commits fail while a job trains: readiness says so, the job gets to its end, and its record is written when one can
// be, and what happened, at the latest when the coordinator stops.
static void a_disk_that_fails_stops_no_training(void **state) {
    gs_stage *stage = *state;
    if (!has_failpoints) skip();
    start_armed(stage, "store.commit=error@10-22");
    submit(stage, LONG_TARGET, "");
    wait_until_ready(stage, false);
    gs_json *job = gs_stage_wait_for_state(stage, stage->job, "succeeded");
    assert_int_equal(gs_json_int_or(job, "restarts", -1), 0);
    gs_json_release(job);
    wait_until_ready(stage, true);
    gs_json *events = list_events(stage);
    assert_int_equal(gs_coordinator_process_stop(&stage->process), 0);
    assert_ok(gs_coordinator_process_start(&stage->process));
    expect_events(stage, events);
    gs_json_release(events);
    job = gs_stage_get(stage, GS_GET_JOB, stage->job);
    assert_string_equal(gs_json_string_or(job, "state", ""), "succeeded");
    assert_int_equal(gs_json_int_or(gs_json_get(job, "progress"), "step", -1), LONG_TARGET);
    gs_json_release(job);
}

// A request that is to be durable and cannot be made so is refused, and has left nothing behind.
static void what_cannot_be_written_is_not_accepted(void **state) {
    gs_stage *stage = *state;
    if (!has_failpoints) skip();
    start_armed(stage, "store.commit=error@6-12");
    gs_json *reply = NULL, *list = NULL;
    gs_status status = gs_ok();
    int accepted = 0;
    for (int i = 0; i < 30 && !status.code; i++) {
        status = gs_stage_ask(stage, &reply, GS_CREATE_JOB,
                              "{\"spec\":{\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":9,\"max\":9},"
                              "\"steps\":{\"target\":5}},\"dry_run\":false}");
        accepted += !status.code;
        gs_json_release(reply);
        reply = NULL;
    }
    assert_int_not_equal(status.code, GS_OK);
    assert_ok(gs_stage_ask(stage, &list, GS_LIST_JOBS, "{}"));
    assert_int_equal(gs_json_count(gs_json_get(list, "items")), accepted);
    gs_json_release(list);
    // The store is well again at last, and so is what it is asked for.
    gs_deadline deadline = soon();
    while (status.code && !gs_deadline_passed(deadline)) {
        status = gs_stage_ask(stage, &reply, GS_CREATE_JOB,
                              "{\"spec\":{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5}},\"dry_run\":false}");
        gs_json_release(reply);
        reply = NULL;
    }
    assert_ok(status);
}

// Each commit takes a second: ranks start, train and are seen to, and only who waits for the disk waits.
static void a_disk_that_takes_its_time_holds_nobody(void **state) {
    gs_stage *stage = *state;
    if (!has_failpoints) skip();
    start_armed(stage, "store.commit=sleep:1000@3-1000");
    submit(stage, TARGET, "");
    int asked = 0, slow = 0;
    int64_t step = 0;
    gs_deadline deadline = soon();
    while (step < TARGET) {
        assert_false(gs_deadline_passed(deadline));
        int64_t begin_ns = gs_now_ns();
        gs_json *job = gs_stage_get(stage, GS_GET_JOB, stage->job);
        slow += gs_now_ns() - begin_ns > SLOW_MS * GS_NS_PER_MS;
        asked++;
        step = gs_json_int_or(gs_json_get(job, "progress"), "step", 0);
        gs_json_release(job);
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
    int64_t begin_ns = gs_now_ns();
    submit(stage, TARGET, "");  // waits for its commit: the disk is as slow as it was
    assert_true(gs_now_ns() - begin_ns > SLOW_MS * GS_NS_PER_MS);
    if (slow * 2 > asked) fail_msg("%d of %d questions took more than %d ms", slow, asked, SLOW_MS);
}

// A rank is killed; until all of them have taken new steps in the generation that follows.
static int64_t regroup_ns(gs_stage *stage) {
    gs_json *job = gs_stage_get(stage, GS_GET_JOB, stage->job);
    int64_t generation = gs_json_int_or(job, "generation", 0), step = 0, new_step = -1, begin_ns = gs_now_ns();
    gs_json_release(job);
    gs_deadline deadline = soon();
    atomic_store(&stage->faults.slot, 0);
    atomic_store(&stage->faults.crash_at_step, 1);
    do {
        assert_false(gs_deadline_passed(deadline));
        gs_sleep_ns(2 * GS_NS_PER_MS);
        job = gs_stage_get(stage, GS_GET_JOB, stage->job);
        bool is_next = gs_json_int_or(job, "generation", 0) > generation;
        int64_t now = gs_json_int_or(gs_json_get(job, "progress"), "step", 0);
        if (!is_next) step = now;
        else if (!strcmp(gs_json_string_or(job, "state", ""), "running")) new_step = now;
        gs_json_release(job);
    } while (new_step <= step);
    return gs_now_ns() - begin_ns;
}

// Nothing on the way from a death to the next step waits for a commit: neither the save of those who survive, nor the
// look at what the next ones start from.
static void a_disk_that_takes_its_time_delays_no_regroup(void **state) {
    gs_stage *stage = *state;
    if (!has_failpoints) skip();
    start_armed(stage, "");
    submit(stage, 1000000, QUICK_RESTART);
    gs_stage_wait_for_step(stage, stage->job, 20);
    int64_t undisturbed_ns = regroup_ns(stage);
    arm(stage, "store.commit=sleep:3000@1-1000");
    gs_json_release(gs_stage_wait_for_state(stage, stage->job, "running"));
    // What waits for commits does so each time; a machine that is busy with other tests is slow at times.
    bool in_time = false;
    for (int attempt = 0; attempt < 4 && !in_time; attempt++) {
        int64_t slow_ns = regroup_ns(stage);
        print_message("%lld ms, with commits of %d ms %lld ms\n", (long long)(undisturbed_ns / GS_NS_PER_MS), COMMIT_MS,
                      (long long)(slow_ns / GS_NS_PER_MS));
        in_time = slow_ns < 2 * undisturbed_ns + COMMIT_MS / 3 * GS_NS_PER_MS;
    }
    assert_true(in_time);
}

// Nor for somebody who reads what survivors have saved: those who go on from it read it themselves.
static void reading_a_checkpoint_delays_no_regroup(void **state) {
    gs_stage *stage = *state;
    if (!has_failpoints) skip();
    start_armed(stage, "store.verify=sleep:60000@1-1000");
    submit(stage, 1000000, QUICK_RESTART);
    gs_stage_wait_for_step(stage, stage->job, 20);
    for (int i = 0; i < 2; i++) assert_true(regroup_ns(stage) < 30 * GS_NS_PER_SEC);
    gs_json *job = gs_stage_get(stage, GS_GET_JOB, stage->job);
    assert_true(gs_json_int_or(job, "restarts", 0) >= 2);
    gs_json_release(job);
}

// A search in a log that takes long is nobody's trouble but its caller's.
static void a_search_that_takes_its_time_holds_nobody(void **state) {
    gs_stage *stage = *state;
    if (!has_failpoints) skip();
    arm(stage, "log.read=sleep:60000@1-1000");
    submit(stage, TARGET, "");
    char text[64];
    gs_json *request = NULL, *reply = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", stage->job);
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    gs_status status = gs_rpc_call(stage->client, GS_READ_LOGS, request, NULL, gs_deadline_in_ms(100));
    assert_int_equal(status.code, GS_DEADLINE_EXCEEDED);
    gs_json_release(request);
    assert_ok(gs_json_parse(&request, "{}", 2));
    assert_ok(gs_rpc_call(stage->client, GS_GET_SYSTEM, request, &reply, gs_deadline_in_seconds(30)));
    gs_json_release(request);
    assert_true(gs_json_int_or(reply, "data_dir_free_bytes", 0) > 0);
    gs_json_release(reply);
}

// What an ended job has on the disk is read back by a thread of its own: a commit waits for no read.
static void a_record_that_is_recalled_for_long_holds_no_commit(void **state) {
    gs_stage *stage = *state;
    if (!has_failpoints) skip();
    start_armed(stage, "");
    submit(stage, TARGET, "");
    gs_json_release(gs_stage_wait_for_state(stage, stage->job, "succeeded"));
    arm(stage, "store.recall=sleep:60000@1-1000");
    char text[64];
    gs_json *request = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", stage->job);
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    gs_status status = gs_rpc_call(stage->client, GS_GET_JOB, request, NULL, gs_deadline_in_ms(500));
    gs_json_release(request);
    assert_int_equal(status.code, GS_DEADLINE_EXCEEDED);
    int64_t begin_ns = gs_now_ns();
    submit(stage, TARGET, "");  // answered once it is durable
    assert_true(gs_now_ns() - begin_ns < 30 * GS_NS_PER_SEC);
}

static bool is_end(const char *state) { return !strcmp(state, "succeeded"); }

// What has come by now. True: it says that the job has ended.
static bool stream_tells_end(gs_rpc_stream *stream) {
    bool tells = false;
    for (gs_json *item = NULL; !gs_rpc_stream_next(stream, &item, gs_deadline_in_ms(2)).code && item; item = NULL) {
        const gs_json *data = gs_json_get(item, "data");
        tells |= !strcmp(gs_json_string_or(item, "event", ""), "end") || is_end(gs_json_string_or(data, "state", ""));
        gs_json_release(item);
    }
    return tells;
}

static bool list_tells_end(gs_stage *stage) {
    gs_json *list = NULL;
    assert_ok(gs_stage_ask(stage, &list, GS_LIST_JOBS, "{\"state\":\"succeeded\"}"));
    bool tells = gs_json_count(gs_json_get(list, "items")) > 0;
    gs_json_release(list);
    return tells;
}

static bool job_tells_end(gs_stage *stage, bool *is_waiting) {
    gs_json *job = gs_stage_get(stage, GS_GET_JOB, stage->job);
    bool tells = is_end(gs_json_string_or(job, "state", "")) || gs_json_get(job, "ended_at");
    *is_waiting |= !strcmp(gs_json_string_or(job, "reason", ""), "EndNotRecorded");
    gs_json_release(job);
    return tells;
}

// Commits take their time, and the coordinator is killed in the moment in which anybody is told that the job has ended:
// then it has.
static void an_end_that_is_told_is_one(void **state) {
    gs_stage *stage = *state;
    if (!has_failpoints) skip();
    start_armed(stage, "store.commit=sleep:700@6-1000");
    submit(stage, TARGET, "");
    char text[64];
    gs_json *request = NULL;
    gs_rpc_stream *stream = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", stage->job);
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    assert_ok(gs_rpc_stream_open(&stream, stage->client, GS_WATCH, request));
    gs_json_release(request);
    gs_deadline deadline = soon();
    bool is_waiting = false;
    while (!stream_tells_end(stream) && !list_tells_end(stage) && !job_tells_end(stage, &is_waiting))  // it may be seen to wait
        assert_false(gs_deadline_passed(deadline));
    gs_coordinator_process_kill(&stage->process);
    gs_rpc_stream_close(stream);
    assert_ok(gs_coordinator_process_start(&stage->process));
    gs_json *job = gs_stage_get(stage, GS_GET_JOB, stage->job);
    assert_string_equal(gs_json_string_or(job, "state", ""), "succeeded");
    gs_json_release(job);
}

// A disk that takes nothing keeps a job from its end, and people see what it waits for; when it takes rows again it has ended.
static void an_end_waits_for_its_row(void **state) {
    gs_stage *stage = *state;
    if (!has_failpoints) skip();
    start_armed(stage, "");
    submit(stage, TARGET, "");
    gs_stage_wait_for_step(stage, stage->job, 20);
    arm(stage, "store.commit=error@1-1000000");
    gs_deadline deadline = soon();
    for (bool is_waiting = false; !is_waiting; gs_sleep_ns(5 * GS_NS_PER_MS)) {
        assert_false(job_tells_end(stage, &is_waiting));
        assert_false(gs_deadline_passed(deadline));
    }
    assert_false(list_tells_end(stage));
    arm(stage, "");
    gs_json_release(gs_stage_wait_for_state(stage, stage->job, "succeeded"));
}

// Nor is there a job that nobody may ever see again.
static void a_job_is_shown_when_it_is_recorded(void **state) {
    gs_stage *stage = *state;
    if (!has_failpoints) skip();
    arm(stage, "store.commit=sleep:1000@1-1000");
    gs_json *request = NULL, *list = NULL;
    const char *text = "{\"spec\":{\"name\":\"early\",\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5}},\"dry_run\":false}";
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    wait_until_ready(stage, true);  // the client has a line
    gs_deadline deadline = soon();
    for (size_t count = 0; count == 0;) {
        assert_false(gs_deadline_passed(deadline));
        gs_status status = gs_rpc_call(stage->client, GS_CREATE_JOB, request, NULL, gs_deadline_in_ms(50));
        if (status.code && status.code != GS_ALREADY_EXISTS) assert_int_equal(status.code, GS_DEADLINE_EXCEEDED);
        assert_ok(gs_stage_ask(stage, &list, GS_LIST_JOBS, "{}"));
        count = gs_json_count(gs_json_get(list, "items"));
        gs_json_release(list);
    }
    gs_json_release(request);
    gs_coordinator_process_kill(&stage->process);
    assert_ok(gs_coordinator_process_start(&stage->process));
    gs_json *job = gs_stage_get(stage, GS_GET_JOB, "early");
    assert_string_equal(gs_json_string_or(job, "state", ""), "queued");
    gs_json_release(job);
}

static void path_of_checkpoint(char path[700], const gs_stage *stage, const char *below) {
    snprintf(path, 700, "%s/data/checkpoints/%s%s", stage->process.directory, stage->job, below);
}

static void wait_until_gone(const char *path) {
    for (gs_deadline deadline = soon(); access(path, F_OK) == 0; gs_sleep_ns(5 * GS_NS_PER_MS)) assert_false(gs_deadline_passed(deadline));
}

// A deletion that is to take checkpoints along has been promised, or at least recorded, and then comes a kill.
static void a_purge_that_was_begun_is_brought_to_its_end(void **state) {
    gs_stage *stage = *state;
    if (!has_failpoints) skip();
    arm(stage, "store.purge=kill");
    submit(stage, TARGET, "");
    char path[700], text[64];
    path_of_checkpoint(path, stage, "/..");
    (void)!mkdir(path, 0700);
    path_of_checkpoint(path, stage, "");
    assert_int_equal(mkdir(path, 0700), 0);
    path_of_checkpoint(path, stage, "/step-1");
    assert_int_equal(mkdir(path, 0700), 0);
    gs_json *reply = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", stage->job);
    assert_ok(gs_stage_ask(stage, &reply, GS_STOP_JOB, text));
    gs_json_release(reply);
    reply = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"purge\":true}", stage->job);
    gs_json *request = NULL;
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    // The answer may be on its way or not, and nobody is there to ask again.
    gs_status status = gs_rpc_call(stage->client, GS_DELETE_JOB, request, NULL, gs_deadline_in_seconds(3));
    gs_json_release(request);
    if (status.code != GS_DEADLINE_EXCEEDED && status.code != GS_UNAVAILABLE) assert_ok(status);
    assert_int_equal(gs_coordinator_process_wait(&stage->process), -1);  // killed
    path_of_checkpoint(path, stage, "");
    assert_int_equal(access(path, F_OK), 0);
    assert_ok(gs_coordinator_process_start(&stage->process));
    wait_until_gone(path);
}

static void wait_for_reason(gs_stage *stage, const char *reason) {
    gs_deadline deadline = soon();
    for (bool is_so = false; !is_so; gs_sleep_ns(5 * GS_NS_PER_MS)) {
        gs_json *job = gs_stage_get(stage, GS_GET_JOB, stage->job);
        is_so = !strcmp(gs_json_string_or(job, "reason", ""), reason);
        gs_json_release(job);
        assert_true(is_so || !gs_deadline_passed(deadline));
    }
}

// Below a mount point without its disk: nothing is made there, what is owed stays owed, and who starts waits. Also where an empty
// directory lies in its place.
static void a_start_without_the_disk_of_checkpoints_takes_nothing_for_gone(void **state) {
    gs_stage *stage = *state;
    if (!has_failpoints) skip();
    char owed[700], root[700], away[700], text[64];
    arm(stage, "store.purge=error@1-1000");
    submit(stage, TARGET, "");
    path_of_checkpoint(owed, stage, "");
    assert_int_equal(mkdir(owed, 0700), 0);
    snprintf(root, sizeof root, "%s/data/marked-checkpoints.json", stage->process.directory);
    for (gs_deadline deadline = soon(); access(root, F_OK) != 0; gs_sleep_ns(5 * GS_NS_PER_MS)) assert_false(gs_deadline_passed(deadline));
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", stage->job);
    assert_ok(gs_stage_ask(stage, NULL, GS_STOP_JOB, text));
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"purge\":true}", stage->job);
    assert_ok(gs_stage_ask(stage, NULL, GS_DELETE_JOB, text));
    submit(stage, TARGET, "");  // nobody is there for it yet
    gs_coordinator_process_kill(&stage->process);
    snprintf(root, sizeof root, "%s/data/checkpoints", stage->process.directory);
    snprintf(away, sizeof away, "%s/data/away", stage->process.directory);
    assert_int_equal(rename(root, away), 0);
    arm(stage, "");
    gs_fake_worker_options options = {.slots = 1, .step_ms = 10};
    for (int i = 0; i < 2; i++) gs_stage_start_worker(stage, i, &options);
    wait_for_reason(stage, "CheckpointsUnavailable");
    assert_int_equal(access(root, F_OK), -1);
    assert_int_equal(mkdir(root, 0700), 0);
    arm(stage, "");
    wait_for_reason(stage, "CheckpointsUnavailable");
    assert_int_equal(rmdir(root), 0);  // nothing was left there
    assert_int_equal(rename(away, root), 0);
    gs_json_release(gs_stage_wait_for_state(stage, stage->job, "succeeded"));
    arm(stage, "");
    wait_until_gone(owed);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gs_stage_set_up, gs_stage_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_disk_that_fails_stops_no_training),
        TEST(an_end_that_is_told_is_one),
        TEST(an_end_waits_for_its_row),
        TEST(a_job_is_shown_when_it_is_recorded),
        TEST(a_purge_that_was_begun_is_brought_to_its_end),
        TEST(a_start_without_the_disk_of_checkpoints_takes_nothing_for_gone),
        TEST(what_cannot_be_written_is_not_accepted),
        TEST(a_disk_that_takes_its_time_holds_nobody),
        TEST(a_disk_that_takes_its_time_delays_no_regroup),
        TEST(reading_a_checkpoint_delays_no_regroup),
        TEST(a_record_that_is_recalled_for_long_holds_no_commit),
        TEST(a_search_that_takes_its_time_holds_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
