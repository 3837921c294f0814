// The contract of graphs (kernels/device.h) on "cuda:0": launched again and again, the events inside, captures that fail.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/device.h"
#include "tests/gpu/device_case.h"
#include "tests/gpu/stuck.h"
#include "tests/support/asserts.h"

static gs_graph *capture_scale(gs_device *device, float *to, const float *from, gs_event *event) {
    gs_stream *stream = gs_device_stream(device);
    gs_graph *graph = NULL;
    assert_true(gs_device_has_graphs(device));
    assert_ok(gs_graph_begin(stream));
    gs_device_kernels(device)->scale(stream, to, from, 2.0f, COUNT);
    if (event) gs_event_record(event, stream);
    gs_device_kernels(device)->scale(stream, to, to, 0.5f, COUNT);
    gs_device_kernels(device)->scale(stream, to, to, 3.0f, COUNT);
    assert_ok(gs_graph_end(&graph, stream));
    return graph;
}

static void a_graph_runs_each_time_it_is_launched(void **state) {
    (void)state;
    gs_device *device = take_device();
    gs_stream *stream = gs_device_stream(device);
    float *from = take_memory(COUNT * sizeof *from), *to = take_memory(COUNT * sizeof *to);
    gs_graph *graph = capture_scale(device, to, from, NULL);
    assert_true(read_float(to) == 0.0f);
    for (int i = 1; i <= 5; i++) {
        gs_device_kernels(device)->fill(stream, from, (float)i, COUNT);
        assert_ok(gs_graph_launch(graph, stream));
        assert_true(read_float(to + COUNT - 1) == 3.0f * (float)i);
    }
    gs_graph_destroy(graph);
    gs_graph_destroy(NULL);
    gs_device_free(device, from);
    gs_device_free(device, to);
}

// What a step does: one launch, and others take up its parts by the events inside.
static void each_launch_records_the_events_inside(void **state) {
    (void)state;
    gs_device *device = take_device();
    gs_stream *stream = gs_device_stream(device), *side;
    gs_event *event;
    assert_ok(gs_stream_create(&side, device, GS_STREAM_HIGH));
    assert_ok(gs_event_create(&event, device, true));
    float *from = take_memory(COUNT * sizeof *from), *to = take_memory(COUNT * sizeof *to);
    float *seen = take_memory(COUNT * sizeof *seen);
    gs_graph *graph = capture_scale(device, to, from, event);
    gs_stream_set_point(stream, event);
    for (int i = 1; i <= 5; i++) {
        gs_device_kernels(device)->fill(stream, from, (float)i, COUNT);
        assert_ok(gs_graph_launch(graph, stream));
        gs_stream_follow(side, stream);
        gs_device_kernels(device)->copy(side, seen, from, COUNT * sizeof *seen);
        assert_ok(gs_stream_wait(side, PATIENCE));
        assert_ok(gs_stream_wait(stream, PATIENCE));
        assert_true(read_float(seen + COUNT - 1) == (float)i);
        assert_true(read_float(to) == 3.0f * (float)i);
        bool done = false;
        assert_ok(gs_event_query(event, &done));
        assert_true(done);
    }
    gs_stream_set_point(stream, NULL);
    gs_graph_destroy(graph);
    gs_event_destroy(event);
    gs_stream_destroy(side);
    gs_device_free(device, from);
    gs_device_free(device, to);
    gs_device_free(device, seen);
}

// The event counts from the launch on, not from when the graph comes to it: with the launch still behind other
// work, a follower waits and does not take the launch before for this one.
static void a_follower_waits_for_the_launch_that_was_last(void **state) {
    (void)state;
    gs_device *device = take_device();
    gs_stream *stream = gs_device_stream(device), *side;
    gs_event *event;
    assert_ok(gs_stream_create(&side, device, GS_STREAM_HIGH));
    assert_ok(gs_event_create(&event, device, false));
    float *from = take_memory(COUNT * sizeof *from), *to = take_memory(COUNT * sizeof *to);
    gs_graph *graph = capture_scale(device, to, from, event);
    assert_ok(gs_graph_launch(graph, stream));
    assert_ok(gs_stream_wait(stream, PATIENCE));
    atomic_bool released = false;
    assert_ok(stuck_begin(stream, &released));
    assert_ok(gs_graph_launch(graph, stream));
    gs_stream_set_point(stream, event);
    gs_stream_follow(side, stream);
    gs_status early = gs_stream_wait(side, gs_deadline_in_ms(50));
    atomic_store(&released, true);
    assert_ok(gs_stream_wait(side, PATIENCE));
    assert_ok(gs_stream_wait(stream, PATIENCE));
    assert_status(early, GS_DEADLINE_EXCEEDED, "not done");
    gs_stream_set_point(stream, NULL);
    gs_graph_destroy(graph);
    gs_event_destroy(event);
    gs_stream_destroy(side);
    gs_device_free(device, from);
    gs_device_free(device, to);
}

static void a_capture_outlives_what_does_not_belong_in_it(void **state) {
    (void)state;
    gs_device *device = take_device();
    gs_stream *stream = gs_device_stream(device);
    float *to = take_memory(COUNT * sizeof *to);
    void *memory = NULL;
    float value = 0.0f;
    gs_graph *graph = NULL;
    assert_ok(gs_graph_begin(stream));
    assert_status(gs_stream_wait(stream, PATIENCE), GS_FAILED_PRECONDITION, "graph_begin");
    assert_status(gs_device_alloc(device, &memory, 100), GS_FAILED_PRECONDITION, "memory is allocated");
    assert_status(gs_device_download(device, &value, to, 4), GS_FAILED_PRECONDITION, "memory is copied");
    assert_status(gs_graph_begin(stream), GS_FAILED_PRECONDITION, "a graph is begun");
    gs_device_kernels(device)->fill(stream, to, 7.0f, COUNT);
    assert_ok(gs_graph_end(&graph, stream));
    assert_ok(gs_graph_launch(graph, stream));
    assert_true(read_float(to) == 7.0f);
    gs_graph_destroy(graph);
    gs_device_free(device, to);
}

static void a_launcher_that_fails_ends_the_capture_with_its_words(void **state) {
    (void)state;
    gs_device *device = take_device();
    gs_stream *stream = gs_device_stream(device);
    float *to = take_memory(COUNT * sizeof *to);
    gs_graph *graph = NULL;
    assert_ok(gs_graph_begin(stream));
    gs_device_kernels(device)->cast(stream, to, GS_BF16, to, GS_FP32, 1.0f, 10);
    assert_status(gs_graph_end(&graph, stream), GS_INVALID_ARGUMENT, "cannot be done in place");
    assert_null(graph);
    // The stream is as before.
    gs_device_kernels(device)->fill(stream, to, 1.0f, COUNT);
    assert_ok(gs_stream_wait(stream, PATIENCE));
    assert_true(read_float(to) == 1.0f);
    gs_device_free(device, to);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_graph_runs_each_time_it_is_launched),
        cmocka_unit_test(each_launch_records_the_events_inside),
        cmocka_unit_test(a_follower_waits_for_the_launch_that_was_last),
        cmocka_unit_test(a_capture_outlives_what_does_not_belong_in_it),
        cmocka_unit_test(a_launcher_that_fails_ends_the_capture_with_its_words),
    };
    return cmocka_run_group_tests(tests, open_first, close_first);
}
