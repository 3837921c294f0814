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

static void cuda_is_unimplemented_in_this_build(void **state) {
    (void)state;
    assert_refused("cuda:0", (gs_device_options){0}, GS_UNIMPLEMENTED, "this build has no CUDA");
}

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
        cmocka_unit_test(cuda_is_unimplemented_in_this_build),
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
