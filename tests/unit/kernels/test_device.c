#include "tests/unit/kernels/kernel_test.h"

#include <stdlib.h>
#include <string.h>

static void assert_refused(const char *name, gs_device_options options, gs_code code,
                           const char *text) {
    gs_device *device = NULL;
    gs_status status = gs_device_open(&device, name, &options);
    assert_int_equal(status.code, code);
    if (!strstr(status.message, text)) fail_msg("'%s' is not in '%s'", text, status.message);
    assert_null(device);
}

#ifndef GRADSYNC_CUDA
static void cuda_is_unimplemented_in_this_build(void **state) {
    (void)state;
    assert_refused("cuda:0", (gs_device_options){0}, GS_UNIMPLEMENTED, "this build has no CUDA");
    char why[100];
    gs_device_facts facts;
    assert_int_equal(gs_cuda_device_count(why, sizeof why), 0);
    assert_string_equal(why, "this build has no CUDA");
    assert_int_equal(gs_cuda_device_facts(&facts, 0).code, GS_UNIMPLEMENTED);
}
#endif

static void unknown_names_are_refused(void **state) {
    (void)state;
    assert_refused("tpu", (gs_device_options){0}, GS_INVALID_ARGUMENT, "tpu");
    assert_refused("cuda:", (gs_device_options){0}, GS_INVALID_ARGUMENT, "cuda:");
    assert_refused("cuda:0x", (gs_device_options){0}, GS_INVALID_ARGUMENT, "cuda:0x");
    assert_refused("", (gs_device_options){0}, GS_INVALID_ARGUMENT, "device ''");
}

static void unknown_isa_is_named(void **state) {
    (void)state;
    assert_refused("cpu", (gs_device_options){.isa = "neon"}, GS_INVALID_ARGUMENT, "isa 'neon'");
}

static void thread_counts_out_of_range_are_refused(void **state) {
    (void)state;
    assert_refused("cpu", (gs_device_options){.num_threads = -1}, GS_INVALID_ARGUMENT,
                   "num_threads -1");
    assert_refused("cpu", (gs_device_options){.num_threads = 100000}, GS_INVALID_ARGUMENT,
                   "num_threads 100000");
}

static void options_may_be_null(void **state) {
    (void)state;
    gs_device *device;
    assert_int_equal(gs_device_open(&device, "cpu", NULL).code, GS_OK);
    assert_int_equal(gs_device_num_threads(device), 1);
    assert_string_equal(gs_device_name(device), "cpu");
    gs_device_close(device);
    gs_device_close(NULL);
}

static void isa_option_chooses_the_table(void **state) {
    (void)state;
    gs_device *device = open_cpu_device("baseline", 1);
    assert_string_equal(gs_device_kernels(device)->name, "cpu/baseline");
    gs_device_close(device);
}

static void memory_is_zeroed_and_aligned(void **state) {
    void *memory;
    assert_int_equal(gs_device_alloc(*state, &memory, 1000).code, GS_OK);
    assert_int_equal((uintptr_t)memory % 64, 0);
    for (size_t i = 0; i < 1000; i++) assert_int_equal(((char *)memory)[i], 0);
    gs_device_free(*state, memory);
    gs_device_free(*state, NULL);
}

static void impossible_allocation_is_exhausted(void **state) {
    void *memory;
    gs_status status = gs_device_alloc(*state, &memory, SIZE_MAX - 10);
    assert_int_equal(status.code, GS_RESOURCE_EXHAUSTED);
}

static void upload_and_download_return_the_bytes(void **state) {
    const char text[] = "bytes";
    char back[sizeof text];
    void *memory;
    assert_int_equal(gs_device_alloc(*state, &memory, sizeof text).code, GS_OK);
    assert_int_equal(gs_device_upload(*state, memory, text, sizeof text).code, GS_OK);
    assert_int_equal(gs_device_download(*state, back, memory, sizeof text).code, GS_OK);
    assert_string_equal(back, text);
    assert_int_equal(gs_device_upload(*state, NULL, NULL, 0).code, GS_OK);
    gs_device_free(*state, memory);
}

static void first_error_sticks_until_the_wait(void **state) {
    gs_stream *stream = gs_device_stream(*state);
    gs_stream_fail(stream, gs_error(GS_INTERNAL, "first"));
    gs_stream_fail(stream, gs_error(GS_INTERNAL, "second"));
    gs_stream_fail(stream, gs_ok());
    gs_status status = gs_stream_wait(stream, gs_deadline_in_seconds(1));
    assert_string_equal(status.message, "first");
    assert_stream_ok(*state);
}

static void error_taken_off_a_stream_is_gone(void **state) {
    gs_stream *stream = gs_device_stream(*state);
    assert_int_equal(gs_stream_take_error(stream).code, GS_OK);
    gs_stream_fail(stream, gs_error(GS_INTERNAL, "launch"));
    assert_string_equal(gs_stream_take_error(stream).message, "launch");
    assert_stream_ok(*state);
}

static void the_host_has_one_kind_of_memory(void **state) {
    char *pinned = NULL, *memory = NULL;
    assert_true(gs_device_is_host(*state));
    assert_int_equal(gs_device_alloc_pinned(*state, (void **)&pinned, 1000).code, GS_OK);
    assert_int_equal(gs_device_alloc(*state, (void **)&memory, 1000).code, GS_OK);
    assert_int_equal((uintptr_t)pinned % 64, 0);
    for (size_t i = 0; i < 1000; i++) assert_int_equal(pinned[i], 0);
    pinned[999] = 7;
    gs_device_kernels(*state)->copy(gs_device_stream(*state), memory, pinned, 1000);
    assert_int_equal(memory[999], 7);
    assert_false(gs_device_is_device_memory(*state, memory));
    gs_device_free_pinned(*state, pinned);
    gs_device_free_pinned(*state, NULL);
    gs_device_free(*state, memory);
}

static void another_stream_has_errors_of_its_own(void **state) {
    gs_stream *other;
    assert_int_equal(gs_stream_create(&other, *state, GS_STREAM_HIGH).code, GS_OK);
    assert_null(gs_stream_native(other));
    gs_stream_fail(other, gs_error(GS_INTERNAL, "other"));
    gs_stream_follow(gs_device_stream(*state), other);
    assert_stream_ok(*state);
    assert_int_equal(gs_stream_wait(other, gs_deadline_in_seconds(1)).code, GS_INTERNAL);
    float sum[3], a[3] = {1, 2, 3};
    gs_device_kernels(*state)->add(other, sum, a, a, 3);
    assert_int_equal(gs_stream_wait(other, gs_deadline_in_seconds(1)).code, GS_OK);
    assert_true(sum[2] == 6.0f);
    gs_stream_destroy(other);
    gs_stream_destroy(NULL);
}

static void events_are_done_and_keep_their_times(void **state) {
    gs_stream *stream = gs_device_stream(*state);
    gs_event *begin, *end;
    bool done = false;
    int64_t ns = -1;
    assert_int_equal(gs_event_create(&begin, *state, true).code, GS_OK);
    assert_int_equal(gs_event_create(&end, *state, true).code, GS_OK);
    assert_int_equal(gs_event_query(end, &done).code, GS_OK);
    assert_true(done);
    gs_event_record(begin, stream);
    int64_t before = gs_now_ns();
    while (gs_now_ns() == before) continue;
    gs_event_record(end, stream);
    assert_int_equal(gs_event_elapsed(begin, end, &ns).code, GS_OK);
    assert_true(ns > 0);
    gs_stream_set_point(stream, begin);
    gs_stream_follow(stream, stream);
    gs_stream_wait_event(stream, end);
    gs_stream_set_point(stream, NULL);
    assert_stream_ok(*state);
    gs_event_destroy(begin);
    gs_event_destroy(end);
    gs_event_destroy(NULL);
}

static void a_cpu_has_no_graphs(void **state) {
    gs_stream *stream = gs_device_stream(*state);
    gs_graph *graph = NULL;
    assert_false(gs_device_has_graphs(*state));
    assert_int_equal(gs_graph_begin(stream).code, GS_UNIMPLEMENTED);
    assert_int_equal(gs_graph_end(&graph, stream).code, GS_UNIMPLEMENTED);
    assert_null(graph);
    gs_graph_destroy(NULL);
}

static void arithmetic_does_not_depend_on_isa_or_threads(void **state) {
    char one[200], other[200];
    gs_device_arithmetic(*state, one, sizeof one);
    gs_device *device = open_cpu_device("baseline", 1);
    gs_device_arithmetic(device, other, sizeof other);
    gs_device_close(device);
    assert_string_equal(one, other);
    assert_non_null(strstr(one, "openblas="));
}

int main(void) {
    const struct CMUnitTest tests[] = {
#ifndef GRADSYNC_CUDA
        cmocka_unit_test(cuda_is_unimplemented_in_this_build),
#endif
        cmocka_unit_test(error_taken_off_a_stream_is_gone),
        cmocka_unit_test(the_host_has_one_kind_of_memory),
        cmocka_unit_test(another_stream_has_errors_of_its_own),
        cmocka_unit_test(events_are_done_and_keep_their_times),
        cmocka_unit_test(a_cpu_has_no_graphs),
        cmocka_unit_test(unknown_names_are_refused),
        cmocka_unit_test(unknown_isa_is_named),
        cmocka_unit_test(thread_counts_out_of_range_are_refused),
        cmocka_unit_test(options_may_be_null),
        cmocka_unit_test(isa_option_chooses_the_table),
        cmocka_unit_test(memory_is_zeroed_and_aligned),
        cmocka_unit_test(impossible_allocation_is_exhausted),
        cmocka_unit_test(upload_and_download_return_the_bytes),
        cmocka_unit_test(first_error_sticks_until_the_wait),
        cmocka_unit_test(arithmetic_does_not_depend_on_isa_or_threads),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
