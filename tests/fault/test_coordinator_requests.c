// What the real coordinator process answers to who asks: refusals by name, previews, logs, streams and metrics.
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/bucket_plan.h"
#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/coordinator_stage.h"
#include "tests/support/soon.h"

typedef gs_stage life;

static void start_workers(life *it, int count, int slots) {
    gs_fake_worker_options options = {.slots = slots, .step_ms = 5};
    for (int i = 0; i < count; i++) gs_stage_start_worker(it, i, &options);
}

static void submit(life *it, char *id, size_t id_bytes, int ranks, int target, const char *more) {
    char text[600];
    snprintf(text, sizeof text,
             "{\"name\":\"life\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":%d,\"max\":%d,"
             "\"join_window_seconds\":0},\"steps\":{\"target\":%d}%s}",
             ranks, ranks, target, more);
    gs_stage_submit(it, text);
    snprintf(id, id_bytes, "%s", it->job);
}

static void expect_refusal(life *it, gs_method method, const char *id, const char *name,
                           const char *value) {
    char text[400];
    gs_json *reply = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"%s\":%s}", id, name, value);
    gs_status status = gs_stage_ask(it, &reply, method, text);
    gs_json_release(reply);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, name));
}

static void wrong_cursors_and_long_texts_are_refused_by_name(void **state) {
    life *it = *state;
    char id[32], grep[300];
    submit(it, id, sizeof id, 1, 20, "");
    snprintf(grep, sizeof grep, "\"%0256d\"", 0);
    expect_refusal(it, GS_READ_LOGS, id, "grep", grep);
    expect_refusal(it, GS_READ_LOGS, id, "since", "\"12x\"");
    expect_refusal(it, GS_READ_LOGS, id, "since", "-3");
    expect_refusal(it, GS_LIST_EVENTS, id, "cursor", "\"yesterday\"");
    expect_refusal(it, GS_LIST_EVENTS, id, "cursor", "\"99999999999999999999\"");
}

static void no_search_of_a_log_ends_the_coordinator(void **state) {
    life *it = *state;
    char id[32], text[200];
    submit(it, id, sizeof id, 1, 20, "");
    static const char *const attacks[] = {".*{10,}{10,}{10,}{10,}{10,}", "(a{1,255}){1,255}"};
    for (size_t i = 0; i < sizeof attacks / sizeof attacks[0]; i++) {
        gs_json *reply = NULL;
        snprintf(text, sizeof text, "{\"job\":\"%s\",\"grep\":\"%s\"}", id, attacks[i]);
        assert_ok(gs_stage_ask(it, &reply, GS_READ_LOGS, text));
        assert_int_equal(gs_json_count(gs_json_get(reply, "records")), 0);
        gs_json_release(reply);
    }
}

static void expect_foreseen(life *it, const char *reducer, const gs_bucket_plan *plan) {
    char text[300], hash[GS_DIGEST_TEXT_LEN];
    snprintf(text, sizeof text,
             "{\"spec\":{\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[784,100,10]}},\"reducer\":{%s},"
             "\"steps\":{\"target\":5}},\"dry_run\":true}", reducer);
    gs_digest_format(hash, gs_bucket_plan_digest(plan));
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(it, &reply, GS_CREATE_JOB, text));
    assert_non_null(gs_json_get(reply, "spec"));
    const gs_json *foreseen = gs_json_get(reply, "plan");
    assert_string_equal(gs_json_string_or(foreseen, "hash", ""), hash);
    assert_int_equal(gs_json_int_or(foreseen, "num_buckets", 0), plan->num_buckets);
    assert_int_equal(gs_json_int_or(foreseen, "total_bytes", 0), (78400 + 100 + 100 + 1000 + 10) * 4);
    const gs_json *rank = gs_json_at(gs_json_get(gs_json_get(reply, "memory"), "ranks"), 0);
    assert_int_equal(gs_json_int_or(rank, "last_rank", -1), 0);
    assert_true(gs_json_int_or(rank, "total_bytes", 0) > (78400 + 100 + 100 + 1000 + 10) * 4 * 4);
    gs_json_release(reply);
}

static void a_dry_run_foresees_the_plan(void **state) {
    life *it = *state;
    const gs_param_spec params[] = {gs_param_spec_make(GS_FP32, 100, 784, "fc1.weight"),
                                    gs_param_spec_make(GS_FP32, 100, 0, "bn1.weight"),
                                    gs_param_spec_make(GS_FP32, 100, 0, "bn1.bias"),
                                    gs_param_spec_make(GS_FP32, 10, 100, "fc2.weight"),
                                    gs_param_spec_make(GS_FP32, 10, 0, "fc2.bias")};
    const size_t num_params = sizeof params / sizeof *params;
    gs_bucket_plan plan = {0};
    assert_ok(gs_bucket_plan_parity(&plan, params, num_params, 1000, 200000, NULL));
    expect_foreseen(it, "\"plan\":\"parity\",\"first_bucket_bytes\":1000,\"bucket_cap_bytes\":200000", &plan);
    gs_bucket_plan_release(&plan);
    assert_ok(gs_bucket_plan_one_host(&plan, params, num_params, NULL));
    expect_foreseen(it, "\"plan\":\"auto\"", &plan);
    gs_bucket_plan_release(&plan);
}

static void a_watcher_sees_a_snapshot_then_steps_then_the_end(void **state) {
    life *it = *state;
    char id[32], text[100];
    start_workers(it, 1, 1);
    submit(it, id, sizeof id, 1, 60, "");
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"interval_ms\":100}", id);
    gs_json *request = NULL, *item = NULL;
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    gs_rpc_stream *stream = NULL;
    assert_ok(gs_rpc_stream_open(&stream, it->client, GS_WATCH, request));
    gs_json_release(request);
    int64_t last = -1;
    int steps = 0, items = 0;
    char event[32] = "";
    for (;;) {
        assert_ok(gs_rpc_stream_next(stream, &item, gs_deadline_in_seconds(60)));
        if (!item) break;  // the clean end
        snprintf(event, sizeof event, "%s", gs_json_string_or(item, "event", ""));
        if (items++ == 0) assert_string_equal(event, "snapshot");
        assert_true(gs_json_int_or(item, "sequence", -1) >= last);
        last = gs_json_int_or(item, "sequence", -1);
        steps += !strcmp(event, "step");
        gs_json_release(item);
    }
    gs_rpc_stream_close(stream);
    assert_string_equal(event, "end");
    assert_true(steps >= 1);
}

static void a_preview_names_every_wrong_field(void **state) {
    life *it = *state;
    gs_json *reply = NULL;
    gs_status status = gs_stage_ask(it, &reply, GS_PREVIEW_PLAN,
                           "{\"tensors\":[{\"name\":\"a\",\"elements\":-1,\"dtype\":\"fp32\",\"device\":\"cpu\"},"
                           "{\"name\":\"b\",\"elements\":1.5,\"dtype\":\"fp33\",\"device\":\"cpu\"}],"
                           "\"limits_bytes\":[]}");
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    static const char *const pointers[] = {"/limits_bytes", "/tensors/0/elements", "/tensors/1/elements",
                                           "/tensors/1/dtype"};
    const gs_json *errors = gs_json_get(reply, "errors");
    assert_int_equal(gs_json_count(errors), 4);
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(gs_json_string_or(gs_json_at(errors, i), "pointer", ""), pointers[i]);
    }
    gs_json_release(reply);
    reply = NULL;
    assert_ok(gs_stage_ask(
        it, &reply, GS_PREVIEW_PLAN,
        "{\"tensors\":[{\"name\":\"a\",\"elements\":9007199254740992,\"dtype\":\"fp32\","
        "\"device\":\"cpu\"}],\"limits_bytes\":[1048576]}"));
    assert_int_equal(gs_json_count(gs_json_get(reply, "buckets")), 1);
    gs_json_release(reply);
}

static void equal_device_names_are_one_device(void **state) {
    life *it = *state;
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(
        it, &reply, GS_PREVIEW_PLAN,
        "{\"tensors\":[{\"name\":\"a\",\"elements\":1,\"dtype\":\"fp32\",\"device\":\"x\"},"
        "{\"name\":\"b\",\"elements\":1,\"dtype\":\"fp32\",\"device\":\"y\"},"
        "{\"name\":\"c\",\"elements\":1,\"dtype\":\"fp32\",\"device\":\"x\"}],\"limits_bytes\":["
        "1000]}"));
    const gs_json *buckets = gs_json_get(reply, "buckets");
    assert_int_equal(gs_json_count(buckets), 2);
    assert_string_equal(gs_json_string_or(gs_json_at(buckets, 0), "device", ""), "x");
    assert_int_equal(gs_json_count(gs_json_get(gs_json_at(buckets, 0), "tensors")), 2);
    gs_json_release(reply);
}

// The value of a sample line that begins with `line`, −1 when it is not on the page.
static double scrape(life *it, const char *family, const char *line) {
    gs_rpc_stream *stream = NULL;
    gs_json *item = NULL;
    double value = -1;
    assert_ok(gs_rpc_stream_open(&stream, it->client, GS_GET_METRICS, NULL));
    for (;;) {
        assert_ok(gs_rpc_stream_next(stream, &item, gs_deadline_in_seconds(60)));
        if (!item) break;
        const gs_json *families = gs_json_get(item, "families");
        for (size_t i = 0; i < gs_json_count(families); i++) {
            const gs_json *entry = gs_json_at(families, i);
            if (strcmp(gs_json_string_or(entry, "name", ""), family) != 0) continue;
            const char *found = strstr(gs_json_string_or(entry, "text", ""), line);
            if (found) value = strtod(found + strlen(line), NULL);
        }
        gs_json_release(item);
    }
    gs_rpc_stream_close(stream);
    return value;
}

static void the_metrics_page_shows_each_rank_and_forgets_deleted_jobs(void **state) {
    life *it = *state;
    char id[32], line[100], text[100];
    start_workers(it, 2, 1);
    submit(it, id, sizeof id, 2, 20, "");
    gs_json_release(gs_stage_wait_for_state(it, id, "succeeded"));
    assert_true(scrape(it, "gradsync_jobs", "gradsync_jobs{state=\"succeeded\"} ") == 1);
    snprintf(line, sizeof line, "gradsync_job_step{job_id=\"%s\"} ", id);
    assert_true(scrape(it, "gradsync_job_step", line) == 20);
    snprintf(line, sizeof line, "gradsync_rank_wait_seconds_total{job_id=\"%s\",rank=\"1\"} ", id);
    assert_true(scrape(it, "gradsync_rank_wait_seconds_total", line) >= 0);
    gs_json *reply = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"purge\":true}", id);
    assert_ok(gs_stage_ask(it, &reply, GS_DELETE_JOB, text));
    gs_json_release(reply);
    assert_true(scrape(it, "gradsync_rank_wait_seconds_total", line) == -1);
}

// `member` of an answer; NULL: all of it.
static char *answer_of(life *it, gs_method method, const char *id, const char *member) {
    char *text = NULL;
    gs_json *reply = gs_stage_get(it, method, id);
    assert_ok(gs_json_encode(&text, NULL, member ? gs_json_get(reply, member) : reply, false));
    gs_json_release(reply);
    return text;
}

static void wait_for_curves(const life *it, const char *id, const char *step) {
    char path[700], line[4000];
    snprintf(path, sizeof path, "%s/data/jobs/%s/metrics.jsonl", it->process.directory, id);
    bool found = false;
    for (gs_deadline deadline = soon(); !found;) {
        assert_false(gs_deadline_passed(deadline));
        FILE *file = fopen(path, "re");
        while (file && !found && fgets(line, sizeof line, file)) found = strstr(line, step) && strchr(line, '\n');
        if (file) fclose(file);
        if (!found) gs_sleep_ns(5 * GS_NS_PER_MS);
    }
}

// Its row and its curves are read when somebody asks, also by several at once.
static void an_ended_job_is_the_same_after_a_restart(void **state) {
    life *it = *state;
    static const struct {
        gs_method method;
        const char *member;
    } asked[] = {{GS_GET_JOB_PLAN, NULL}, {GS_GET_JOB_WORKERS, NULL}, {GS_GET_JOB_SERIES, NULL},
                 {GS_GET_JOB, "spec"},    {GS_GET_JOB, "progress"},   {GS_GET_JOB, "name"}};
    char id[32], *before[6];
    start_workers(it, 2, 1);
    submit(it, id, sizeof id, 2, 20, "");
    gs_json_release(gs_stage_wait_for_state(it, id, "succeeded"));
    // Answered when the disk knows of the end.
    char text[60];
    gs_json *stopped = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", id);
    assert_ok(gs_stage_ask(it, &stopped, GS_STOP_JOB, text));
    gs_json_release(stopped);
    wait_for_curves(it, id, "\"step\":20,");
    for (int i = 0; i < 6; i++) before[i] = answer_of(it, asked[i].method, id, asked[i].member);
    assert_non_null(strstr(before[2], "[20,"));  // the last step of a curve
    for (int round = 0; round < 2; round++) {
        gs_coordinator_process_kill(&it->process);
        assert_ok(gs_coordinator_process_start(&it->process));
        gs_json *list = NULL;
        assert_ok(gs_stage_ask(it, &list, GS_LIST_JOBS, "{}"));
        const gs_json *item = gs_json_at(gs_json_get(list, "items"), 0);
        assert_string_equal(gs_json_string_or(item, "state", ""), "succeeded");
        gs_json_release(list);
        for (int i = 0; i < 6; i++) {
            char *after = answer_of(it, asked[i].method, id, asked[i].member);
            assert_string_equal(after, before[i]);
            free(after);
        }
    }
    for (int i = 0; i < 6; i++) free(before[i]);
}

// Who asks again until there is one would never end.
static void a_job_that_ended_before_it_had_a_plan_says_so(void **state) {
    life *it = *state;
    char id[32], text[60];
    gs_json *reply = NULL;
    submit(it, id, sizeof id, 2, 20, "");
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", id);
    assert_int_equal(gs_stage_ask(it, &reply, GS_GET_JOB_PLAN, text).code, GS_FAILED_PRECONDITION);
    gs_json_release(reply);
    assert_ok(gs_stage_ask(it, &reply, GS_STOP_JOB, text));
    gs_json_release(reply);
    gs_json_release(gs_stage_wait_for_state(it, id, "cancelled"));
    assert_int_equal(gs_stage_ask(it, &reply, GS_GET_JOB_PLAN, text).code, GS_NOT_FOUND);
    gs_json_release(reply);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gs_stage_set_up, gs_stage_tear_down)

// Whoever should read what the coordinator logs has stopped: that is its trouble alone.
static void a_full_pipe_behind_its_log_stops_nobody(void **state) {
    life *it = *state;
    char id[32], text[4096] = {0};
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    while (write(ends[1], text, sizeof text) > 0) continue;
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(fcntl(ends[1], F_SETFL, 0), 0);
    gs_coordinator_process_kill(&it->process);
    it->process.log_file = ends[1];
    assert_ok(gs_coordinator_process_start(&it->process));
    start_workers(it, 2, 1);
    submit(it, id, sizeof id, 2, 20, "");
    gs_json_release(gs_stage_wait_for_state(it, id, "succeeded"));
    gs_json *system = NULL;
    assert_ok(gs_stage_ask(it, &system, GS_GET_SYSTEM, "{}"));
    assert_true(gs_json_int_or(system, "data_dir_free_bytes", 0) > 0);
    gs_json_release(system);
    assert_true(scrape(it, "gradsync_log_lines_dropped_total", "gradsync_log_lines_dropped_total ") >= 0);
    assert_int_equal(gs_coordinator_process_stop(&it->process), 0);
    it->process.log_file = 0;
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(wrong_cursors_and_long_texts_are_refused_by_name),
        TEST(no_search_of_a_log_ends_the_coordinator),
        TEST(a_dry_run_foresees_the_plan),
        TEST(a_watcher_sees_a_snapshot_then_steps_then_the_end),
        TEST(a_preview_names_every_wrong_field),
        TEST(equal_device_names_are_one_device),
        TEST(a_job_that_ended_before_it_had_a_plan_says_so), TEST(an_ended_job_is_the_same_after_a_restart),
        TEST(the_metrics_page_shows_each_rank_and_forgets_deleted_jobs),
        TEST(a_full_pipe_behind_its_log_stops_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
