// The contract of streams and events (kernels/device.h) on "cuda:0": errors that stick, waits, who follows whom.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/device.h"
#include "kernels/event_wait.h"
#include "tests/gpu/device_case.h"
#include "tests/gpu/stuck.h"
#include "tests/support/asserts.h"

static void first_error_sticks_until_the_wait(void **state) {
    (void)state;
    gs_device *device = take_device();
    gs_stream *stream = gs_device_stream(device);
    gs_stream_fail(stream, gs_error(GS_INVALID_ARGUMENT, "first"));
    gs_stream_fail(stream, gs_error(GS_INTERNAL, "second"));
    assert_status(gs_stream_wait(stream, (gs_deadline){0}), GS_INVALID_ARGUMENT, "first");
    assert_ok(gs_stream_wait(stream, PATIENCE));
}

static void for_each_item(void *ctx, size_t item) {
    ((int *)ctx)[item]++;
}

static void a_gpu_runs_no_code_of_the_host(void **state) {
    (void)state;
    gs_device *device = take_device();
    gs_stream *stream = gs_device_stream(device);
    int touched[2] = {0};
    gs_stream_for_each(stream, 2, for_each_item, touched);
    assert_status(gs_stream_wait(stream, PATIENCE), GS_FAILED_PRECONDITION, "runs no code of the host");
    assert_int_equal(touched[0] + touched[1], 0);
}

static void a_bad_token_is_named_by_the_wait(void **state) {
    (void)state;
    gs_device *device = take_device();
    gs_stream *stream = gs_device_stream(device);
    const int32_t tokens[] = {1, 2, 70000, 3};
    int32_t *on_device = take_memory(sizeof tokens);
    float *wte = take_memory(100 * 8 * 4), *wpe = take_memory(4 * 8 * 4), *out = take_memory(4 * 8 * 4);
    assert_ok(gs_device_upload(device, on_device, tokens, sizeof tokens));
    gs_device_kernels(device)->embedding(stream, out, on_device, wte, wpe, 1, 4, 8, 100);
    assert_status(gs_stream_wait(stream, PATIENCE), GS_INVALID_ARGUMENT,
                  "embedding: row 2: token 70000 is not in [0, 100)");
    assert_ok(gs_stream_wait(stream, PATIENCE));
    gs_device_free(device, on_device);
    gs_device_free(device, wte);
    gs_device_free(device, wpe);
    gs_device_free(device, out);
}

// A factor that comes behind it does not apply, though the host has heard of nothing, and neither does one behind a launch
// that failed. The wait for a point says it, while later work runs.
static void bad_data_keeps_updates_back(void **state) {
    (void)state;
    gs_device *device = take_device();
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *stream = gs_device_stream(device);
    const gs_grad_clip clip = {.loss_scale = 1, .unscaling = 1};
    const int32_t tokens[] = {1, 100};
    int32_t *on_device = take_memory(sizeof tokens);
    float *memory = take_memory(COUNT * sizeof *memory);
    double *squares = take_memory(sizeof *squares);
    gs_grad_factor *factor = take_memory(sizeof *factor), got[3];
    gs_event *point;
    assert_ok(gs_event_create(&point, device, false));
    assert_ok(gs_device_upload(device, on_device, tokens, sizeof tokens));
    for (int turn = 0; turn < 3; turn++) {
        if (turn == 0) kernels->embedding(stream, memory, on_device, memory, memory, 1, 2, 4, 100);
        if (turn == 1) gs_stream_fail(stream, gs_error(GS_INTERNAL, "a launch"));
        kernels->grad_factor(stream, factor, squares, 1, &clip);
        gs_event_record(point, stream);
        kernels->fill(stream, memory, 1, COUNT);
        gs_status status = gs_stream_wait_until(stream, point, "the factor", PATIENCE);
        if (turn == 0) assert_status(status, GS_INVALID_ARGUMENT, "embedding: row 1: token 100");
        if (turn == 1) assert_status(status, GS_INTERNAL, "a launch");
        if (turn == 2) assert_ok(status);
        assert_ok(gs_device_download(device, &got[turn], factor, sizeof *got));
    }
    assert_int_equal(got[0].applies, 0);
    assert_int_equal(got[1].applies, 0);
    assert_int_equal(got[2].applies, 1);
    assert_true(got[2].value == 1);
    gs_event_destroy(point);
    gs_device_free(device, on_device);
    gs_device_free(device, memory);
    gs_device_free(device, squares);
    gs_device_free(device, factor);
}

// Nor does one that the host enqueued before it heard of the bad data, and that runs only after. One that comes later does.
static void bad_data_keeps_updates_back_that_run_after_it_was_told(void **state) {
    (void)state;
    gs_device *device = take_device();
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *stream = gs_device_stream(device);
    const gs_grad_clip clip = {.loss_scale = 1, .unscaling = 1};
    const int32_t tokens[] = {1, 100};
    int32_t *on_device = take_memory(sizeof tokens);
    float *memory = take_memory(COUNT * sizeof *memory);
    double *squares = take_memory(sizeof *squares);
    gs_grad_factor *factor = take_memory(2 * sizeof *factor), got[2];
    gs_event *point;
    atomic_bool released = false;
    assert_ok(gs_event_create(&point, device, false));
    assert_ok(gs_device_upload(device, on_device, tokens, sizeof tokens));
    kernels->embedding(stream, memory, on_device, memory, memory, 1, 2, 4, 100);
    gs_event_record(point, stream);
    assert_ok(stuck_begin(stream, &released));
    kernels->grad_factor(stream, &factor[0], squares, 1, &clip);
    gs_status told = gs_stream_wait_until(stream, point, "the batch", PATIENCE);
    kernels->grad_factor(stream, &factor[1], squares, 1, &clip);
    atomic_store(&released, true);
    assert_ok(gs_stream_wait(stream, PATIENCE));
    assert_status(told, GS_INVALID_ARGUMENT, "embedding: row 1: token 100");
    assert_ok(gs_device_download(device, got, factor, sizeof got));
    assert_int_equal(got[0].applies, 0);
    assert_int_equal(got[1].applies, 1);
    gs_event_destroy(point);
    gs_device_free(device, on_device);
    gs_device_free(device, memory);
    gs_device_free(device, squares);
    gs_device_free(device, factor);
}

static void a_wait_ends_at_its_deadline(void **state) {
    (void)state;
    gs_device *device = take_device();
    gs_stream *stream;
    assert_ok(gs_stream_create(&stream, device, GS_STREAM_HIGH));
    assert_non_null(gs_stream_native(stream));
    atomic_bool released = false;
    assert_ok(stuck_begin(stream, &released));
    assert_status(gs_stream_wait(stream, gs_deadline_in_ms(50)), GS_DEADLINE_EXCEEDED,
                  "device cuda:0: the side stream's work was not done in time");
    // Others are not held up by it.
    float *memory = take_memory(COUNT * sizeof *memory);
    gs_device_kernels(device)->fill(gs_device_stream(device), memory, 3.0f, COUNT);
    assert_ok(gs_stream_wait(gs_device_stream(device), PATIENCE));
    atomic_store(&released, true);
    assert_ok(gs_stream_wait(stream, PATIENCE));
    gs_stream_destroy(stream);
    gs_device_free(device, memory);
}

// The point of a stream: who follows waits for the event and not for what came later.
static void a_follower_starts_behind_the_point(void **state) {
    (void)state;
    gs_device *device = take_device();
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *leader, *follower;
    gs_event *event;
    assert_ok(gs_stream_create(&leader, device, GS_STREAM_NORMAL));
    assert_ok(gs_stream_create(&follower, device, GS_STREAM_HIGH));
    assert_ok(gs_event_create(&event, device, false));
    float *a = take_memory(COUNT * sizeof *a), *b = take_memory(COUNT * sizeof *b);
    atomic_bool released = false;
    kernels->fill(leader, a, 5.0f, COUNT);
    gs_event_record(event, leader);
    assert_ok(stuck_begin(leader, &released));
    gs_stream_set_point(leader, event);
    gs_stream_follow(follower, leader);
    kernels->copy(follower, b, a, COUNT * sizeof *a);
    assert_ok(gs_stream_wait(follower, PATIENCE));
    gs_stream_set_point(leader, NULL);
    gs_stream_follow(follower, leader);
    assert_status(gs_stream_wait(follower, gs_deadline_in_ms(50)), GS_DEADLINE_EXCEEDED, "not done");
    atomic_store(&released, true);
    assert_ok(gs_stream_wait(follower, PATIENCE));
    assert_ok(gs_stream_wait(leader, PATIENCE));
    assert_true(read_float(b + COUNT - 1) == 5.0f);
    gs_event_destroy(event);
    gs_stream_destroy(follower);
    gs_stream_destroy(leader);
    gs_device_free(device, a);
    gs_device_free(device, b);
}

// Two streams in turns, each behind the other: no value is seen early or late.
static void streams_that_follow_each_other_take_turns(void **state) {
    (void)state;
    gs_device *device = take_device();
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *one = gs_device_stream(device), *other;
    assert_ok(gs_stream_create(&other, device, GS_STREAM_HIGH));
    float *x = take_memory(COUNT * sizeof *x), *y = take_memory(COUNT * sizeof *y);
    kernels->fill(one, x, 1.0f, COUNT);
    for (int i = 0; i < 20; i++) {
        gs_stream_follow(other, one);
        kernels->scale(other, y, x, 2.0f, COUNT);
        gs_stream_follow(one, other);
        kernels->scale(one, x, y, 0.75f, COUNT);
    }
    assert_ok(gs_stream_wait(one, PATIENCE));
    float want = 1.0f;
    for (int i = 0; i < 20; i++) want = want * 2.0f * 0.75f;
    assert_true(read_float(x) == want);
    assert_true(read_float(x + COUNT - 1) == want);
    gs_stream_destroy(other);
    gs_device_free(device, x);
    gs_device_free(device, y);
}

// ---- events

static void events_say_when_they_are_done(void **state) {
    (void)state;
    gs_device *device = take_device();
    gs_stream *stream;
    gs_event *begin, *end;
    bool done = false;
    int64_t ns = -1;
    assert_ok(gs_stream_create(&stream, device, GS_STREAM_NORMAL));
    assert_ok(gs_event_create(&begin, device, true));
    assert_ok(gs_event_create(&end, device, true));
    assert_ok(gs_event_query(end, &done));
    assert_true(done);
    assert_status(gs_event_elapsed(begin, end, &ns), GS_FAILED_PRECONDITION, "never recorded");
    atomic_bool released = false;
    gs_event_record(begin, stream);
    assert_ok(stuck_begin(stream, &released));
    gs_event_record(end, stream);
    assert_ok(gs_event_query(end, &done));
    assert_false(done);
    assert_status(gs_event_elapsed(begin, end, &ns), GS_FAILED_PRECONDITION, "not done yet");
    atomic_store(&released, true);
    assert_ok(gs_stream_wait(stream, PATIENCE));
    assert_ok(gs_event_query(end, &done));
    assert_true(done);
    assert_ok(gs_event_elapsed(begin, end, &ns));
    assert_true(ns >= 0);
    gs_event_destroy(begin);
    gs_event_destroy(end);
    gs_event_destroy(NULL);
    gs_stream_destroy(stream);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_error_sticks_until_the_wait),
        cmocka_unit_test(a_gpu_runs_no_code_of_the_host),
        cmocka_unit_test(a_bad_token_is_named_by_the_wait),
        cmocka_unit_test(bad_data_keeps_updates_back),
        cmocka_unit_test(bad_data_keeps_updates_back_that_run_after_it_was_told),
        cmocka_unit_test(a_wait_ends_at_its_deadline),
        cmocka_unit_test(a_follower_starts_behind_the_point),
        cmocka_unit_test(streams_that_follow_each_other_take_turns),
        cmocka_unit_test(events_say_when_they_are_done),
    };
    return cmocka_run_group_tests(tests, open_first, close_first);
}
