// Timelines and diagnosis through the real coordinator process, with fake workers: ranks that answer, one
// that does not, a job that has ended, a rank that is late in every step.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/coordinator_stage.h"

typedef gs_stage world;

static int set_up(void **state) {
    int result = gs_stage_set_up(state);
    world *w = *state;
    atomic_store(&w->faults.slot, 1);
    return result;
}

static gs_json *parse(const char *text) {
    gs_json *value = NULL;
    assert_ok(gs_json_parse(&value, text, strlen(text)));
    return value;
}

static gs_json *ask(world *w, gs_method method, const char *text) {
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(w, &reply, method, text));
    return reply;
}

static gs_json *get(world *w, gs_method method) {
    return gs_stage_get(w, method, w->job);
}

static void start_worker(world *w) {
    gs_stage_start_worker(w, 0, &(gs_fake_worker_options){.slots = 2, .step_ms = 2});
}

static void submit(world *w, int target) {
    char text[400];
    snprintf(text, sizeof text,
             "{\"name\":\"traced\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":2,\"max\":2,"
             "\"join_window_seconds\":0},\"steps\":{\"target\":%d}}",
             target);
    gs_stage_submit(w, text);
}

static int64_t step_of(const gs_json *job) {
    return gs_json_int_or(gs_json_get(job, "progress"), "step", 0);
}

static void wait_until(world *w, const char *state_wanted, int64_t step) {
    gs_deadline deadline = gs_deadline_in_seconds(60);
    for (bool done = false; !done;) {
        gs_json *job = get(w, GS_GET_JOB);
        done = !strcmp(gs_json_string_or(job, "state", ""), state_wanted) && step_of(job) >= step;
        if (!done && gs_deadline_passed(deadline)) fail_msg("%s", gs_json_string_or(job, "message", ""));
        gs_json_release(job);
        if (!done) gs_sleep_ns(5 * GS_NS_PER_MS);
    }
}

// What a stream of GetJobTimeline came to.
typedef struct answer {
    gs_status status;
    int pages[2], steps[2];
    int64_t newest[2];
    gs_json *about;  // owned
} answer;

static void read_timeline(world *w, answer *out, const char *more) {
    char text[200];
    *out = (answer){.newest = {-1, -1}};
    snprintf(text, sizeof text, "{\"job\":\"%s\"%s}", w->job, more);
    gs_json *request = parse(text), *item = NULL;
    gs_rpc_stream *stream = NULL;
    assert_ok(gs_rpc_stream_open(&stream, w->client, GS_GET_JOB_TIMELINE, request));
    gs_json_release(request);
    for (;;) {
        out->status = gs_rpc_stream_next(stream, &item, gs_deadline_in_seconds(60));
        if (out->status.code || !item) break;
        assert_null(out->about);  // it is the last item
        if (gs_json_bool_or(item, "end", false)) {
            out->about = item;
            continue;
        }
        int64_t rank = gs_json_int_or(item, "rank", -1);
        assert_true(rank == 0 || rank == 1);
        const gs_json *steps = gs_json_get(item, "steps");
        out->pages[rank]++;
        out->steps[rank] += (int)gs_json_count(steps);
        out->newest[rank] = gs_json_int_or(gs_json_at(steps, 0), "step", -1);
        gs_json_release(item);
    }
    gs_rpc_stream_close(stream);
}

// Whoever is asked answers in two seconds or is left out; on a busy machine one may be late.
static void read_timeline_of(world *w, answer *out, const char *more, bool first, bool second) {
    for (gs_deadline deadline = gs_deadline_in_seconds(60);; gs_json_release(out->about)) {
        read_timeline(w, out, more);
        assert_ok(out->status);
        if (out->pages[0] >= first && out->pages[1] >= second) return;
        if (gs_deadline_passed(deadline)) fail_msg("%d and %d pages", out->pages[0], out->pages[1]);
    }
}

static const gs_json *rank_of(const answer *told, size_t rank) {
    return gs_json_at(gs_json_get(told->about, "ranks"), rank);
}

static void all_ranks_are_asked_and_pages_passed_on(void **state) {
    world *w = *state;
    start_worker(w);
    submit(w, 1000000);
    wait_until(w, "running", 5);
    answer told;
    read_timeline_of(w, &told, ",\"steps\":\"last:2\"", true, true);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(told.pages[rank], 2);
        assert_int_equal(told.steps[rank], 2);
        assert_true(gs_json_bool_or(rank_of(&told, (size_t)rank), "answered", false));
        assert_string_equal(gs_json_string_or(rank_of(&told, (size_t)rank), "worker", ""), "w1");
    }
    // These trainers do not wait for each other: the one that is ahead has told its step.
    assert_true(told.newest[0] >= 4 || told.newest[1] >= 4);
    assert_string_equal(gs_json_string_or(told.about, "job", ""), w->job);
    assert_true(gs_json_int_or(gs_json_get(told.about, "plan"), "num_buckets", 0) > 0);
    gs_json_release(told.about);
}

static void only_the_ranks_wanted_are_asked(void **state) {
    world *w = *state;
    start_worker(w);
    submit(w, 1000000);
    wait_until(w, "running", 5);
    answer told;
    read_timeline_of(w, &told, ",\"ranks\":\"1\"", false, true);
    assert_int_equal(told.pages[0], 0);
    assert_int_equal(told.pages[1], 2);
    assert_int_equal(gs_json_count(gs_json_get(told.about, "ranks")), 1);
    gs_json_release(told.about);
}

static void a_rank_that_does_not_answer_is_named_in_time(void **state) {
    world *w = *state;
    atomic_store(&w->faults.silent, true);
    start_worker(w);
    submit(w, 1000000);
    wait_until(w, "running", 5);
    answer told;
    read_timeline_of(w, &told, "", true, false);
    assert_int_equal(told.pages[0], 2);
    assert_int_equal(told.pages[1], 0);
    assert_false(gs_json_bool_or(rank_of(&told, 1), "answered", true));
    assert_string_equal(gs_json_string_or(rank_of(&told, 1), "reason", ""), "did not answer in time");
    gs_json_release(told.about);
}

static void an_ended_job_shows_what_its_ranks_left_behind(void **state) {
    world *w = *state;
    start_worker(w);
    submit(w, 20);
    wait_until(w, "succeeded", 20);
    answer told;
    read_timeline(w, &told, "");
    assert_ok(told.status);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(told.pages[rank], 1);
        assert_int_equal(told.newest[rank], 19);
        assert_string_equal(gs_json_string_or(rank_of(&told, (size_t)rank), "host", ""), "testhost");
    }
    gs_json_release(told.about);
}

// They would look like the last steps of a job that went on long after.
static void steps_of_a_generation_before_are_not_shown_for_the_last(void **state) {
    world *w = *state;
    atomic_store(&w->faults.slot, 1);
    atomic_store(&w->faults.crash_at_step, 10);
    start_worker(w);
    submit(w, 1000000);
    wait_until(w, "running", 30);
    char text[100];
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"mode\":\"now\",\"outcome\":\"cancelled\"}", w->job);
    gs_json_release(ask(w, GS_STOP_JOB, text));  // nobody has time to leave anything
    wait_until(w, "cancelled", 30);
    answer told;
    read_timeline(w, &told, "");
    assert_ok(told.status);
    for (int rank = 0; rank < 2; rank++) {
        bool is_new = told.newest[rank] >= 20;
        assert_true(told.pages[rank] == 0 || is_new);
    }
    gs_json_release(told.about);
}

static void a_job_that_waits_has_nothing_to_show_and_says_so(void **state) {
    world *w = *state;
    submit(w, 20);
    answer told;
    read_timeline(w, &told, ",\"ranks\":\"0\"");
    assert_ok(told.status);
    assert_string_equal(gs_json_string_or(told.about, "state", ""), "queued");
    assert_int_equal(gs_json_count(gs_json_get(told.about, "ranks")), 0);
    gs_json_release(told.about);
    gs_json *diagnosis = get(w, GS_GET_JOB_DIAGNOSIS);
    assert_string_equal(gs_json_string_or(diagnosis, "verdict", ""), "waiting");
    const gs_json *finding = gs_json_at(gs_json_get(diagnosis, "findings"), 0);
    assert_string_equal(gs_json_string_or(finding, "kind", ""), "queue");
    assert_int_equal(gs_json_int_or(finding, "slots_needed", 0), 2);
    gs_json_release(diagnosis);
}

static void wrong_ranges_and_ranks_are_refused(void **state) {
    world *w = *state;
    static const char *const wrong[] = {",\"steps\":\"last\"", ",\"steps\":\"9-3\"", ",\"ranks\":\"2\"",
                                        ",\"ranks\":\"0,\"", ",\"ranks\":\"x\"", ",\"ranks\":\"\""};
    start_worker(w);
    submit(w, 1000000);
    wait_until(w, "running", 5);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        answer told;
        read_timeline(w, &told, wrong[i]);
        assert_int_equal(told.status.code, GS_INVALID_ARGUMENT);
        assert_null(told.about);
    }
}

static void a_rank_that_is_late_in_every_step_becomes_the_verdict(void **state) {
    world *w = *state;
    atomic_store(&w->faults.late, true);
    start_worker(w);
    submit(w, 1000000);
    gs_deadline deadline = gs_deadline_in_seconds(60);
    gs_json *metrics = NULL;
    bool flagged = false;
    while (!flagged && !gs_deadline_passed(deadline)) {
        gs_json_release(metrics);
        metrics = get(w, GS_GET_JOB_METRICS);
        flagged = gs_json_bool_or(gs_json_at(gs_json_get(metrics, "ranks"), 1), "straggler", false);
        if (!flagged) gs_sleep_ns(5 * GS_NS_PER_MS);
    }
    assert_true(flagged);
    const gs_json *late = gs_json_at(gs_json_get(metrics, "ranks"), 1);
    assert_string_equal(gs_json_string_or(late, "straggler_phase", ""), "data");
    assert_true(gs_json_double_or(late, "share_of_steps_last", 0) > 0.9);
    assert_false(gs_json_bool_or(gs_json_at(gs_json_get(metrics, "ranks"), 0), "straggler", true));
    gs_json_release(metrics);
    for (bool shown = false; !shown;) {
        gs_json *job = get(w, GS_GET_JOB);
        const gs_json *latest = gs_json_get(job, "latest");
        shown = gs_json_int_or(latest, "slowest_rank", -1) == 1 &&
                gs_json_bool_or(latest, "slowest_rank_is_straggler", false);
        gs_json_release(job);
        assert_true(shown || !gs_deadline_passed(deadline));
    }
}

static void a_failed_job_is_diagnosed_by_its_first_failure(void **state) {
    world *w = *state;
    atomic_store(&w->faults.exit_code_at_start, 66);
    start_worker(w);
    submit(w, 100);
    wait_until(w, "failed", 0);
    gs_json *diagnosis = get(w, GS_GET_JOB_DIAGNOSIS);
    assert_string_equal(gs_json_string_or(diagnosis, "verdict", ""), "failed");
    const gs_json *finding = gs_json_at(gs_json_get(diagnosis, "findings"), 0);
    assert_string_equal(gs_json_string_or(finding, "kind", ""), "first_failure");
    assert_int_equal(gs_json_int_or(finding, "rank", -1), 1);
    assert_non_null(strstr(gs_json_string_or(finding, "detail", ""), "could not open its data shard"));
    assert_string_equal(gs_json_string_or(finding, "suggest", ""), "mount the data directory");
    gs_json_release(diagnosis);
}

static void the_recording_is_switched_on_all_ranks(void **state) {
    world *w = *state;
    char text[100];
    start_worker(w);
    submit(w, 1000000);
    wait_until(w, "running", 5);
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"on\":false}", w->job);
    gs_json *reply = ask(w, GS_TRACE_JOB, text);
    assert_int_equal(gs_json_int_or(reply, "ranks_told", 0), 2);
    assert_false(gs_json_bool_or(reply, "on", true));
    gs_json_release(reply);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_ranks_are_asked_and_pages_passed_on, set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(only_the_ranks_wanted_are_asked, set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_rank_that_does_not_answer_is_named_in_time, set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(an_ended_job_shows_what_its_ranks_left_behind, set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(steps_of_a_generation_before_are_not_shown_for_the_last, set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_job_that_waits_has_nothing_to_show_and_says_so, set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(wrong_ranges_and_ranks_are_refused, set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_rank_that_is_late_in_every_step_becomes_the_verdict, set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_failed_job_is_diagnosed_by_its_first_failure, set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(the_recording_is_switched_on_all_ranks, set_up, gs_stage_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
