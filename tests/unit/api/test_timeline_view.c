#include "api/render/timeline_view.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/render/trace_events.h"
#include "tests/support/asserts.h"

#define MS INT64_C(1000000)

static gs_json *parse(const char *text) {
    gs_json *value = NULL;
    gs_status status = gs_json_parse(&value, text, strlen(text));
    assert_string_equal(status.message, "");
    return value;
}

// A step of 10 ms: data, forward, backward with three buckets that overlap on their way, finish, commit,
// optimizer. The commit ends at 9 ms.
static gs_json *make_step(int64_t step, int64_t begin_ns) {
    char text[1500];
    snprintf(text, sizeof text,
             "{\"step\":%lld,\"generation\":4,\"plan_digest\":\"77\",\"begin_ns\":%lld,"
             "\"duration_ns\":10000000,\"backward_begin_ns\":3000000,\"backward_end_ns\":6000000,"
             "\"samples\":32,\"applied\":true,\"unused_parameters\":1,\"unused_bytes\":64,"
             "\"spans\":[[\"data\",0,1000000],[\"forward\",1000000,3000000],"
             "[\"backward\",3000000,6000001],[\"reduction\",6000001,8000000],"
             "[\"commit\",8000000,9000000],[\"optimizer\",9000000,9900000],"
             "[\"checkpoint\",9900000,9950000]],"
             "\"buckets\":[[0,1000,1100,3500000,3600000,3700000,3700000,6500000,0,0,\"direct\"],"
             "[1,2000,2100,4000000,4000000,4500000,4500000,7000123,5000,6000,\"direct\","
             "[4000000,4500000,5000000,5100000,5200000,7000123]],"
             "[2,500,600,6000000,6000000,6100000,-1,7900000,0,0,\"flat\"]]}",
             (long long)step, (long long)begin_ns);
    return parse(text);
}

// The steps from..to of a rank, 20 ms apart, on a clock that is `clock_ns` ahead.
static gs_json *make_page(int rank, int64_t from, int64_t to, int64_t clock_ns) {
    gs_json *page = gs_json_new_object(), *steps = gs_json_new_array();
    gs_json_set_int(page, "rank", rank);
    for (int64_t step = from; step <= to; step++)
        gs_json_push(steps, make_step(step, 1000 * MS + step * 20 * MS + clock_ns));
    gs_json_set(page, "steps", steps);
    return page;
}

static gs_json *make_about(const char *boot_of_rank_1) {
    char text[700];
    snprintf(text, sizeof text,
             "{\"end\":true,\"job\":\"j-1\",\"state\":\"running\",\"generation\":4,\"step\":12,"
             "\"plan\":{\"revision\":2,\"hash\":\"xxh3:ab\",\"digest\":\"77\",\"num_buckets\":3,"
             "\"hook\":\"powersgd+fp16\"},"
             "\"ranks\":[{\"rank\":0,\"worker\":\"w0\",\"host\":\"h0\",\"boot_id\":\"b0\",\"answered\":true},"
             "{\"rank\":1,\"worker\":\"w1\",\"host\":\"h1\",\"boot_id\":\"%s\",\"answered\":true},"
             "{\"rank\":2,\"worker\":\"w2\",\"host\":\"h1\",\"boot_id\":\"b0\",\"answered\":false,"
             "\"reason\":\"not connected\"}]}",
             boot_of_rank_1);
    return parse(text);
}

// Rank 0 has told steps 8 to 11, rank 1 steps 8 to 12.
static gs_json *make_view(const char *boot_of_rank_1, int64_t clock_ns, gs_timeline_pick pick) {
    gs_json *pages[] = {make_page(0, 8, 9, 0), make_page(1, 8, 12, clock_ns), make_page(0, 10, 11, 0)};
    gs_json *about = make_about(boot_of_rank_1);
    gs_json *view = gs_timeline_view((const gs_json *const *)pages, 3, about, &pick);
    for (int i = 0; i < 3; i++) gs_json_release(pages[i]);
    gs_json_release(about);
    assert_non_null(view);
    return view;
}

static const gs_json *step_at(const gs_json *view, size_t rank, size_t index) {
    return gs_json_at(gs_json_get(gs_json_at(gs_json_get(view, "ranks"), rank), "steps"), index);
}

static size_t num_steps(const gs_json *view, size_t rank) {
    return gs_json_count(gs_json_get(gs_json_at(gs_json_get(view, "ranks"), rank), "steps"));
}

static void the_last_steps_are_those_that_all_ranks_have(void **state) {
    (void)state;
    gs_json *view = make_view("b0", 0, (gs_timeline_pick){.last = 3});
    for (size_t rank = 0; rank < 2; rank++) {
        assert_int_equal(num_steps(view, rank), 3);
        assert_int_equal(gs_json_int_or(step_at(view, rank, 0), "step", -1), 9);
        assert_int_equal(gs_json_int_or(step_at(view, rank, 2), "step", -1), 11);
    }
    gs_json_release(view);
    view = make_view("b0", 0, (gs_timeline_pick){.from_step = 8, .to_step = 8});
    assert_int_equal(num_steps(view, 0), 1);
    assert_int_equal(num_steps(view, 1), 1);
    gs_json_release(view);
}

static void ranks_that_are_missing_are_named_with_the_reason(void **state) {
    (void)state;
    gs_json *view = make_view("b0", 0, (gs_timeline_pick){.last = 3});
    const gs_json *missing = gs_json_get(view, "missing");
    assert_int_equal(gs_json_count(missing), 1);
    assert_int_equal(gs_json_int_or(gs_json_at(missing, 0), "rank", -1), 2);
    assert_string_equal(gs_json_string_or(gs_json_at(missing, 0), "reason", ""), "not connected");
    gs_json_release(view);
}

static void a_step_tells_phases_buckets_and_plan(void **state) {
    (void)state;
    gs_json *view = make_view("b0", 0, (gs_timeline_pick){.last = 1});
    const gs_json *step = step_at(view, 0, 0);
    assert_string_equal(gs_json_string_or(view, "clock", ""), "shared");
    assert_string_equal(gs_json_string_or(gs_json_get(view, "plan"), "hook", ""), "powersgd+fp16");
    assert_near(gs_json_double_or(step, "begin_seconds", -1), 0, 0);
    assert_near(gs_json_double_or(step, "duration_seconds", -1), 0.01, 0);
    assert_string_equal(gs_json_string_or(step, "plan_hash", ""), "xxh3:ab");
    assert_int_equal(gs_json_int_or(step, "unused_parameters", -1), 1);
    const gs_json *phase = gs_json_at(gs_json_get(step, "phases"), 1);
    assert_string_equal(gs_json_string_or(phase, "phase", ""), "forward");
    assert_near(gs_json_double_or(phase, "end_seconds", -1), 0.003, 0);
    const gs_json *bucket = gs_json_at(gs_json_get(step, "buckets"), 1);
    assert_int_equal(gs_json_int_or(bucket, "wire_bytes", -1), 2100);
    assert_near(gs_json_double_or(bucket, "finished_seconds", -1), 0.007000123, 1e-15);
    assert_near(gs_json_double_or(bucket, "copy_out_seconds", -1), 6e-6, 1e-15);
    const gs_json *phases = gs_json_get(bucket, "phases");
    assert_int_equal(gs_json_count(phases), 2);
    assert_near(gs_json_double_or(gs_json_at(phases, 1), "started_seconds", -1), 0.0052, 1e-15);
    assert_null(gs_json_get(gs_json_at(gs_json_get(step, "buckets"), 0), "phases"));
    // A moment that was not reached is not there.
    assert_null(gs_json_get(gs_json_at(gs_json_get(step, "buckets"), 2), "started_seconds"));
    gs_json_release(view);
}

static void clocks_of_other_hosts_are_moved_to_common_commits(void **state) {
    (void)state;
    const int64_t ahead_ns = 7234567 * MS;
    gs_json *view = make_view("b1", ahead_ns, (gs_timeline_pick){.last = 2});
    assert_string_equal(gs_json_string_or(view, "clock", ""), "estimated");
    const gs_json *rank = gs_json_at(gs_json_get(view, "ranks"), 1);
    assert_near(gs_json_double_or(rank, "clock_offset_seconds", 0), -7234.567, 1e-9);
    for (size_t i = 0; i < 2; i++) {
        double begin = gs_json_double_or(step_at(view, 0, i), "begin_seconds", -1);
        assert_near(begin, 0.02 * (double)i, 1e-9);
        assert_near(gs_json_double_or(step_at(view, 1, i), "begin_seconds", -1), begin, 1e-9);
    }
    gs_json_release(view);
}

static void nothing_told_is_a_document_too(void **state) {
    (void)state;
    gs_json *about = parse("{\"end\":true,\"job\":\"j-1\",\"state\":\"queued\",\"ranks\":[]}");
    gs_json *view = gs_timeline_view(NULL, 0, about, &(gs_timeline_pick){.last = 3});
    assert_int_equal(gs_json_count(gs_json_get(view, "ranks")), 0);
    gs_strbuf text = {0};
    gs_trace_events_write(&text, view);
    gs_json_release(parse(gs_strbuf_text(&text)));
    gs_strbuf_release(&text);
    gs_json_release(view);
    gs_json_release(about);
}

// A trainer may send anything: what comes of it is a document all the same, and a trace that is JSON.
static void nonsense_of_a_rank_does_no_harm(void **state) {
    (void)state;
    static const char *const values[] = {"-9223372036854775808", "9223372036854775807", "-1", "null", "1e300",
                                         "\"\\u0007 \\\" \\\\\"", "[]", "{}", "true"};
    static const char *const forms[] = {
        "{\"rank\":0,\"steps\":%s}", "{\"rank\":0,\"steps\":[%s,%s]}",
        "{\"rank\":0,\"steps\":[{\"step\":%s,\"begin_ns\":%s},{\"step\":3,\"begin_ns\":4,\"duration_ns\":%s}]}",
        "{\"rank\":0,\"steps\":[{\"step\":3,\"begin_ns\":%s,\"duration_ns\":%s,\"spans\":[[%s,%s,%s],%s,"
        "[\"commit\",%s,%s]]}]}",
        "{\"rank\":0,\"steps\":[{\"step\":3,\"begin_ns\":7,\"buckets\":[%s,[0,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s],"
        "[1,%s,%s,0,0,0,0,%s,0,0,\"direct\"]]}]}"};
    gs_json *about = make_about("b1");
    for (size_t i = 0; i < sizeof forms / sizeof *forms * (sizeof values / sizeof *values); i++) {
        const char *value = values[i % (sizeof values / sizeof *values)];
        gs_strbuf text = {0};
        for (const char *c = forms[i / (sizeof values / sizeof *values)]; *c; c++) {
            if (*c == '%' && *++c == 's') gs_strbuf_puts(&text, value);
            else gs_strbuf_putc(&text, *c);
        }
        gs_json *pages[] = {make_page(1, 3, 4, 0), parse(gs_strbuf_text(&text))};
        gs_json *view = gs_timeline_view((const gs_json *const *)pages, 2, about, &(gs_timeline_pick){.last = 3});
        gs_strbuf_clear(&text);
        gs_trace_events_write(&text, view);
        gs_json_release(parse(gs_strbuf_text(&text)));
        gs_strbuf_release(&text);
        gs_json_release(view);
        gs_json_release(pages[0]);
        gs_json_release(pages[1]);
    }
    gs_json_release(about);
}

// What lies on one lane of one rank, for the checker.
typedef struct lane_span {
    int64_t pid, tid;
    double begin, end;
} lane_span;

enum { MAX_SPANS = 4000 };

typedef struct trace_check {
    lane_span spans[MAX_SPANS];
    size_t num_spans;
    double last_ts;
    int buckets[3][16][4];  // rank, step, bucket: complete events
    int instants, flows_out, flows_in, names;
} trace_check;

static void check_event(trace_check *check, const gs_json *event) {
    const char *phase = gs_json_string_or(event, "ph", "");
    int64_t pid = gs_json_int_or(event, "pid", -1), tid = gs_json_int_or(event, "tid", -1);
    const gs_json *args = gs_json_get(event, "args");
    assert_true(pid >= 0 && tid >= 0);
    assert_true(strlen(gs_json_string_or(event, "name", "")) > 0);
    if (phase[0] == 'M') {
        check->names++;
        return;
    }
    double ts = gs_json_double_or(event, "ts", -1);
    assert_true(ts >= 0);
    assert_true(ts >= check->last_ts);
    check->last_ts = ts;
    if (phase[0] == 'C') assert_true(gs_json_int_or(args, "bytes", -1) >= 0);
    check->instants += phase[0] == 'i';
    check->flows_out += phase[0] == 's';
    check->flows_in += phase[0] == 'f';
    if (phase[0] != 'X') return;
    double duration = gs_json_double_or(event, "dur", -1);
    assert_true(duration >= 0);
    assert_true(check->num_spans < MAX_SPANS);
    check->spans[check->num_spans++] = (lane_span){pid, tid, ts, ts + duration};
    if (gs_json_get(args, "bucket"))
        check->buckets[pid][gs_json_int_or(args, "step", 15)][gs_json_int_or(args, "bucket", 3)]++;
}

static void check_lanes(const trace_check *check) {
    for (size_t i = 0; i < check->num_spans; i++) {
        for (size_t k = i + 1; k < check->num_spans; k++) {
            const lane_span *a = &check->spans[i], *b = &check->spans[k];
            if (a->pid != b->pid || a->tid != b->tid) continue;
            const double same = 1e-6;  // of a microsecond
            bool disjoint = b->begin >= a->end - same || a->begin >= b->end - same;
            bool nested = (b->begin >= a->begin - same && b->end <= a->end + same) ||
                          (a->begin >= b->begin - same && a->end <= b->end + same);
            assert_true(disjoint || nested);
        }
    }
}

static void a_trace_is_sorted_disjoint_and_whole(void **state) {
    (void)state;
    gs_json *view = make_view("b1", 5 * MS, (gs_timeline_pick){.last = 3});
    gs_strbuf text = {0};
    gs_trace_events_write(&text, view);
    gs_json *trace = parse(gs_strbuf_text(&text));
    const gs_json *events = gs_json_get(trace, "traceEvents");
    static trace_check check;
    memset(&check, 0, sizeof check);
    for (size_t i = 0; i < gs_json_count(events); i++) check_event(&check, gs_json_at(events, i));
    check_lanes(&check);
    for (int rank = 0; rank < 2; rank++)
        for (int step = 9; step <= 11; step++)
            for (int bucket = 0; bucket < 3; bucket++)
                assert_int_equal(check.buckets[rank][step][bucket], 1);
    assert_int_equal(check.instants, 2 * 3 * 3);
    assert_int_equal(check.flows_out, check.instants);
    assert_int_equal(check.flows_in, check.instants);
    assert_true(check.names >= 2 * 9);
    const gs_json *other = gs_json_get(trace, "otherData");
    assert_string_equal(gs_json_string_or(other, "job", ""), "j-1");
    assert_string_equal(gs_json_string_or(other, "plan_hash", ""), "xxh3:ab");
    assert_string_equal(gs_json_string_or(other, "hook", ""), "powersgd+fp16");
    assert_near(gs_json_double_or(gs_json_get(other, "clock_offsets"), "1", 0), -0.005, 1e-9);
    assert_string_equal(gs_json_string_or(trace, "displayTimeUnit", ""), "ms");
    gs_json_release(trace);
    gs_strbuf_release(&text);
    gs_json_release(view);
}

static void times_of_a_trace_are_decimal_microseconds(void **state) {
    (void)state;
    gs_json *view = make_view("b0", 0, (gs_timeline_pick){.from_step = 8, .to_step = 8});
    gs_strbuf text = {0};
    gs_trace_events_write(&text, view);
    // Bucket 1: from 4.5 ms to 7.000123 ms.
    assert_non_null(strstr(gs_strbuf_text(&text),
                           "\"name\":\"bucket 1\",\"ts\":4500.000,\"dur\":2500.123"));
    assert_non_null(
        strstr(gs_strbuf_text(&text), "\"name\":\"phase 1\",\"ts\":5200.000,\"dur\":1800.123"));
    assert_non_null(strstr(gs_strbuf_text(&text), "\"name\":\"process_name\",\"args\":{\"name\":\"rank 1 on h1\"}"));
    gs_strbuf_release(&text);
    gs_json_release(view);
}

static void bytes_in_flight_go_up_and_come_down_to_zero(void **state) {
    (void)state;
    gs_json *view = make_view("b0", 0, (gs_timeline_pick){.from_step = 8, .to_step = 8});
    gs_strbuf text = {0};
    gs_trace_events_write(&text, view);
    gs_json *trace = parse(gs_strbuf_text(&text));
    const gs_json *events = gs_json_get(trace, "traceEvents");
    int64_t most = 0, last = -1;
    for (size_t i = 0; i < gs_json_count(events); i++) {
        const gs_json *event = gs_json_at(events, i);
        if (gs_json_string_or(event, "ph", "")[0] != 'C' || gs_json_int_or(event, "pid", 0) != 0) continue;
        last = gs_json_int_or(gs_json_get(event, "args"), "bytes", -1);
        if (last > most) most = last;
    }
    assert_int_equal(most, 3500);
    assert_int_equal(last, 0);
    gs_json_release(trace);
    gs_strbuf_release(&text);
    gs_json_release(view);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_steps_are_those_that_all_ranks_have),
        cmocka_unit_test(ranks_that_are_missing_are_named_with_the_reason),
        cmocka_unit_test(a_step_tells_phases_buckets_and_plan),
        cmocka_unit_test(clocks_of_other_hosts_are_moved_to_common_commits),
        cmocka_unit_test(nothing_told_is_a_document_too),
        cmocka_unit_test(nonsense_of_a_rank_does_no_harm),
        cmocka_unit_test(a_trace_is_sorted_disjoint_and_whole),
        cmocka_unit_test(times_of_a_trace_are_decimal_microseconds),
        cmocka_unit_test(bytes_in_flight_go_up_and_come_down_to_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
