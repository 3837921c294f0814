#include "worker/telemetry/timeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/thread.h"
#include "tests/support/asserts.h"
#include "worker/telemetry/timeline_message.h"

static gs_timeline *open_timeline(int64_t ring_steps, size_t num_buckets) {
    gs_timeline *timeline;
    assert_ok(gs_timeline_create(&timeline, ring_steps));
    assert_ok(gs_timeline_prepare(
        timeline,
        &(gs_timeline_plan){.generation = 3, .revision = 2, .digest = 77, .num_buckets = num_buckets}));
    return timeline;
}

// A step whose buckets carry its number.
static void file_step(gs_timeline *timeline, int64_t step, size_t num_buckets) {
    static gs_bucket_times buckets[4096];
    gs_timeline_begin(timeline, step);
    int64_t begin_ns = gs_now_ns();
    gs_timeline_add(timeline, GS_SPAN_FORWARD, begin_ns);
    gs_timeline_add(timeline, GS_SPAN_BACKWARD, gs_now_ns());
    for (size_t i = 0; i < num_buckets; i++) {
        buckets[i] = (gs_bucket_times){.ready_ns = begin_ns + 10,
                                       .posted_ns = begin_ns + 20,
                                       .all_arrived_ns = begin_ns + 30,
                                       .started_ns = begin_ns + 30,
                                       .finished_ns = begin_ns + 40,
                                       .bytes = (uint64_t)step,
                                       .wire_bytes = i};
    }
    gs_reduce_stats stats = {.step = step,
                             .num_buckets = num_buckets,
                             .buckets = buckets,
                             .num_unused = 2,
                             .unused_bytes = 24,
                             .backward_begin_ns = begin_ns};
    gs_timeline_reduced(timeline, &stats);
    gs_timeline_finish(timeline, 32, true);
}

static void the_ring_keeps_the_last_steps(void **state) {
    (void)state;
    gs_timeline *timeline = open_timeline(4, 2);
    int64_t oldest, newest;
    assert_false(gs_timeline_range(timeline, &oldest, &newest));
    for (int64_t step = 0; step < 10; step++) file_step(timeline, step, 2);
    assert_true(gs_timeline_range(timeline, &oldest, &newest));
    assert_int_equal(oldest, 6);
    assert_int_equal(newest, 9);
    gs_timeline_step step;
    for (int64_t i = oldest; i <= newest; i++) {
        assert_ok(gs_timeline_copy(&step, timeline, i));
        assert_int_equal(step.step, i);
        assert_int_equal(step.generation, 3);
        assert_int_equal(step.plan_revision, 2);
        assert_int_equal(step.num_buckets, 2);
        assert_int_equal(step.buckets[1].bytes, i);
        assert_int_equal(step.num_unused, 2);
        assert_int_equal(step.unused_bytes, 24);
        assert_int_equal(step.num_spans, 2);
        assert_true(step.spans[0].begin_ns >= step.begin_ns);
        assert_true(step.spans[1].end_ns <= step.end_ns);
        gs_timeline_step_release(&step);
    }
    assert_int_equal(gs_timeline_copy(&step, timeline, 5).code, GS_NOT_FOUND);
    gs_timeline_destroy(timeline);
}

static void a_step_that_did_not_end_is_not_kept(void **state) {
    (void)state;
    gs_timeline *timeline = open_timeline(4, 1);
    file_step(timeline, 0, 1);
    gs_timeline_begin(timeline, 1);
    gs_timeline_add(timeline, GS_SPAN_FORWARD, gs_now_ns());
    int64_t oldest, newest;
    assert_true(gs_timeline_range(timeline, &oldest, &newest));
    assert_int_equal(newest, 0);
    gs_timeline_destroy(timeline);
}

static void a_step_that_was_redone_shows_its_last_run(void **state) {
    (void)state;
    gs_timeline *timeline = open_timeline(4, 1);
    file_step(timeline, 7, 1);
    gs_timeline_begin(timeline, 7);
    gs_timeline_finish(timeline, 99, false);
    gs_timeline_step step;
    assert_ok(gs_timeline_copy(&step, timeline, 7));
    assert_int_equal(step.samples, 99);
    assert_false(step.applied);
    gs_timeline_step_release(&step);
    gs_timeline_destroy(timeline);
}

static void a_plan_of_more_buckets_keeps_the_steps_before(void **state) {
    (void)state;
    gs_timeline *timeline = open_timeline(4, 1);
    for (int64_t step = 0; step < 6; step++) file_step(timeline, step, 1);
    assert_ok(gs_timeline_prepare(timeline, &(gs_timeline_plan){.revision = 3, .num_buckets = 9}));
    file_step(timeline, 6, 9);
    int64_t oldest, newest;
    assert_true(gs_timeline_range(timeline, &oldest, &newest));
    assert_int_equal(oldest, 3);
    gs_timeline_step step;
    assert_ok(gs_timeline_copy(&step, timeline, 6));
    assert_int_equal(step.num_buckets, 9);
    assert_int_equal(step.num_buckets_dropped, 0);
    gs_timeline_step_release(&step);
    assert_ok(gs_timeline_copy(&step, timeline, 5));
    assert_int_equal(step.num_buckets, 1);
    assert_int_equal(step.buckets[0].bytes, 5);
    gs_timeline_step_release(&step);
    gs_timeline_destroy(timeline);
}

static void memory_is_bounded_whatever_is_asked(void **state) {
    (void)state;
    gs_timeline *timeline = open_timeline(1024, 100000);
    for (int64_t step = 0; step < 400; step++) file_step(timeline, step, 4000);
    int64_t oldest, newest;
    assert_true(gs_timeline_range(timeline, &oldest, &newest));
    assert_true(newest - oldest + 1 < 400);
    gs_timeline_step step;
    assert_ok(gs_timeline_copy(&step, timeline, newest));
    assert_int_equal(step.num_buckets, GS_TIMELINE_BUCKETS);
    assert_int_equal(step.num_buckets_dropped, 4000 - GS_TIMELINE_BUCKETS);
    assert_true((size_t)(newest - oldest + 1) * GS_TIMELINE_BUCKETS * sizeof(gs_bucket_times) <=
                GS_TIMELINE_BYTES);
    gs_timeline_step_release(&step);
    gs_timeline_destroy(timeline);
}

static void spans_beyond_the_limit_are_counted(void **state) {
    (void)state;
    gs_timeline *timeline = open_timeline(2, 1);
    gs_timeline_begin(timeline, 0);
    for (int i = 0; i < 2 * GS_TIMELINE_SPANS; i++) {
        gs_timeline_add(timeline, i % 2 ? GS_SPAN_FORWARD : GS_SPAN_BACKWARD, gs_now_ns());
    }
    gs_timeline_finish(timeline, 1, true);
    gs_timeline_step step;
    assert_ok(gs_timeline_copy(&step, timeline, 0));
    assert_int_equal(step.num_spans, GS_TIMELINE_SPANS);
    assert_int_equal(step.num_spans_dropped, GS_TIMELINE_SPANS);
    gs_timeline_step_release(&step);
    gs_timeline_destroy(timeline);
}

static void recording_can_be_switched_off_and_on(void **state) {
    (void)state;
    gs_timeline *timeline = open_timeline(8, 1);
    file_step(timeline, 0, 1);
    gs_timeline_switch(timeline, false);
    file_step(timeline, 1, 1);
    gs_timeline_switch(timeline, true);
    file_step(timeline, 2, 1);
    gs_timeline_step step;
    assert_int_equal(gs_timeline_copy(&step, timeline, 1).code, GS_NOT_FOUND);
    assert_ok(gs_timeline_copy(&step, timeline, 2));
    gs_timeline_step_release(&step);
    gs_timeline_destroy(timeline);
}

static void no_timeline_is_a_timeline_that_keeps_nothing(void **state) {
    (void)state;
    assert_ok(gs_timeline_prepare(NULL, &(gs_timeline_plan){.num_buckets = 1}));
    file_step(NULL, 0, 1);
    gs_timeline_pages pages = gs_timeline_pages_begin(NULL, &(gs_timeline_range_asked){.last = 3});
    gs_json *page = gs_timeline_pages_next(&pages);
    assert_int_equal(gs_json_count(gs_json_get(page, "steps")), 0);
    assert_false(gs_json_bool_or(page, "more", true));
    gs_json_release(page);
    gs_timeline_destroy(NULL);
}

typedef struct reader {
    gs_timeline *timeline;
    atomic_long copied;
    atomic_bool damaged;
} reader;

static void read_steps(void *ctx, const atomic_bool *stopping) {
    reader *self = ctx;
    while (!atomic_load(stopping)) {
        int64_t oldest, newest;
        if (!gs_timeline_range(self->timeline, &oldest, &newest)) continue;
        for (int64_t i = oldest; i <= newest; i++) {
            gs_timeline_step step;
            gs_status status = gs_timeline_copy(&step, self->timeline, i);
            if (status.code) continue;  // overwritten meanwhile
            for (size_t b = 0; b < step.num_buckets; b++) {
                if (step.step != i || step.buckets[b].bytes != (uint64_t)i ||
                    step.buckets[b].wire_bytes != b)
                    atomic_store(&self->damaged, true);
            }
            gs_timeline_step_release(&step);
            atomic_fetch_add(&self->copied, 1);
        }
    }
}

static void a_reader_beside_the_steps_sees_whole_steps(void **state) {
    (void)state;
    reader self = {.timeline = open_timeline(8, 40)};
    gs_thread *thread;
    assert_ok(gs_thread_start(&thread, "reader", read_steps, &self));
    gs_deadline deadline = gs_deadline_in_seconds(60);
    int64_t step = 0;
    // Until the reader has seen enough of what goes on beside it.
    while (atomic_load(&self.copied) < 500 && !gs_deadline_passed(deadline)) {
        file_step(self.timeline, step, (size_t)(step % 40));
        step++;
    }
    gs_thread_stop(thread);
    assert_false(atomic_load(&self.damaged));
    assert_true(atomic_load(&self.copied) >= 500);
    gs_timeline_destroy(self.timeline);
}

// A hook of two phases: they are kept beside the buckets, and go out with them.
static void phases_of_hooks_are_kept_and_told(void **state) {
    (void)state;
    enum { NUM_BUCKETS = 3 };
    gs_timeline *timeline = open_timeline(4, 2);
    file_step(timeline, 0, 2);
    assert_ok(gs_timeline_prepare(
        timeline, &(gs_timeline_plan){.generation = 3, .num_buckets = NUM_BUCKETS, .num_phases = 2}));
    gs_timeline_begin(timeline, 1);
    int64_t begin_ns = gs_now_ns();
    gs_bucket_times buckets[NUM_BUCKETS] = {0};
    gs_phase_times phases[2 * NUM_BUCKETS] = {0};
    for (int i = 0; i < NUM_BUCKETS; i++) {
        phases[2 * i] = (gs_phase_times){begin_ns + 1, begin_ns + 2, begin_ns + 3 + i};
        if (i) phases[2 * i + 1] = (gs_phase_times){begin_ns + 10, begin_ns + 20, begin_ns + 30 + i};
    }
    gs_timeline_reduced(timeline, &(gs_reduce_stats){.num_buckets = NUM_BUCKETS,
                                                     .buckets = buckets,
                                                     .max_phases = 2,
                                                     .phases = phases});
    gs_timeline_finish(timeline, 1, true);
    gs_timeline_step step;
    assert_ok(gs_timeline_copy(&step, timeline, 1));
    assert_int_equal(step.max_phases, 2);
    assert_memory_equal(step.phases, phases, sizeof phases);
    int64_t step_begin_ns = step.begin_ns;
    gs_timeline_step_release(&step);
    assert_ok(gs_timeline_copy(&step, timeline, 0));
    assert_int_equal(step.max_phases, 0);
    gs_timeline_step_release(&step);

    gs_timeline_pages pages = gs_timeline_pages_begin(
        timeline, &(gs_timeline_range_asked){.last = 2, .max_rows = 1000});
    gs_json *page = gs_timeline_pages_next(&pages);
    const gs_json *steps = gs_json_get(page, "steps");
    const gs_json *rows = gs_json_get(gs_json_at(steps, 1), "buckets");
    const gs_json *told = gs_json_at(gs_json_at(rows, 2), 11);
    int64_t finished_ns;
    assert_int_equal(gs_json_count(told), 6);
    assert_true(gs_json_int(&finished_ns, gs_json_at(told, 5)));
    assert_int_equal(finished_ns, begin_ns + 32 - step_begin_ns);
    assert_int_equal(gs_json_count(gs_json_at(gs_json_at(rows, 0), 11)), 3);
    rows = gs_json_get(gs_json_at(steps, 0), "buckets");
    assert_null(gs_json_at(gs_json_at(rows, 0), 11));
    gs_json_release(page);
    gs_timeline_destroy(timeline);
}

static void pages_hold_what_was_asked_for(void **state) {
    (void)state;
    gs_timeline *timeline = open_timeline(16, 2);
    for (int64_t step = 0; step < 20; step++) file_step(timeline, step, 2);
    gs_timeline_pages pages = gs_timeline_pages_begin(
        timeline, &(gs_timeline_range_asked){.last = 3, .max_rows = 1000});
    gs_json *page = gs_timeline_pages_next(&pages);
    const gs_json *steps = gs_json_get(page, "steps");
    assert_int_equal(gs_json_count(steps), 3);
    const gs_json *last = gs_json_at(steps, 2);
    assert_int_equal(gs_json_int_or(last, "step", -1), 19);
    assert_int_equal(gs_json_int_or(last, "unused_parameters", -1), 2);
    assert_string_equal(gs_json_string_or(last, "plan_digest", ""), "77");
    assert_int_equal(gs_json_count(gs_json_get(last, "buckets")), 2);
    const gs_json *bucket = gs_json_at(gs_json_get(last, "buckets"), 1);
    int64_t ready_ns, finished_ns;
    assert_true(gs_json_int(&ready_ns, gs_json_at(bucket, 3)));
    assert_true(gs_json_int(&finished_ns, gs_json_at(bucket, 7)));
    assert_int_equal(finished_ns - ready_ns, 30);
    assert_null(gs_timeline_pages_next(&pages));
    gs_json_release(page);

    pages = gs_timeline_pages_begin(
        timeline, &(gs_timeline_range_asked){.from_step = 0, .to_step = 5, .max_rows = 1000});
    page = gs_timeline_pages_next(&pages);
    assert_int_equal(gs_json_count(gs_json_get(page, "steps")), 2);  // 4 and 5 are left of them
    assert_int_equal(gs_json_int_or(gs_json_at(gs_json_get(page, "steps"), 0), "step", -1), 4);
    gs_json_release(page);
    gs_timeline_destroy(timeline);
}

static void pages_are_bounded_and_the_newest_steps_win(void **state) {
    (void)state;
    gs_timeline *timeline = open_timeline(16, 1000);
    for (int64_t step = 0; step < 16; step++) file_step(timeline, step, 1000);
    gs_timeline_pages pages = gs_timeline_pages_begin(
        timeline, &(gs_timeline_range_asked){.last = 16, .max_rows = 7100});
    int64_t expected = 9;  // seven steps of 1,002 rows fit
    int num_pages = 0;
    gs_json *page;
    while ((page = gs_timeline_pages_next(&pages))) {
        char *text;
        size_t bytes;
        assert_ok(gs_json_encode(&text, &bytes, page, false));
        assert_true(bytes < (size_t)1 << 20);
        free(text);
        const gs_json *steps = gs_json_get(page, "steps");
        for (size_t i = 0; i < gs_json_count(steps); i++) {
            assert_int_equal(gs_json_int_or(gs_json_at(steps, i), "step", -1), expected++);
        }
        num_pages++;
        assert_int_equal(gs_json_bool_or(page, "more", false), expected < 16);
        gs_json_release(page);
    }
    assert_int_equal(expected, 16);
    assert_true(num_pages > 1);
    pages = gs_timeline_pages_begin(timeline,
                                    &(gs_timeline_range_asked){.last = 3, .max_rows = 10});
    page = gs_timeline_pages_next(&pages);
    assert_int_equal(gs_json_count(gs_json_get(page, "steps")), 1);  // one step whatever it takes
    gs_json_release(page);
    gs_timeline_destroy(timeline);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ring_keeps_the_last_steps),
        cmocka_unit_test(a_step_that_did_not_end_is_not_kept),
        cmocka_unit_test(a_step_that_was_redone_shows_its_last_run),
        cmocka_unit_test(a_plan_of_more_buckets_keeps_the_steps_before),
        cmocka_unit_test(memory_is_bounded_whatever_is_asked),
        cmocka_unit_test(spans_beyond_the_limit_are_counted),
        cmocka_unit_test(recording_can_be_switched_off_and_on),
        cmocka_unit_test(no_timeline_is_a_timeline_that_keeps_nothing),
        cmocka_unit_test(a_reader_beside_the_steps_sees_whole_steps),
        cmocka_unit_test(phases_of_hooks_are_kept_and_told),
        cmocka_unit_test(pages_hold_what_was_asked_for),
        cmocka_unit_test(pages_are_bounded_and_the_newest_steps_win),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
