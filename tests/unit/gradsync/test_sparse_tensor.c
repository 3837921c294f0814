#include "gradsync/local/sparse_tensor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static int open_devices(void **state) {
    static gs_device *devices[3];
    for (int i = 0; i < 3; i++) {
        if (gs_device_open(&devices[i], "cpu", NULL).code) return -1;
    }
    *state = devices;
    return 0;
}

static int close_devices(void **state) {
    gs_device **devices = *state;
    for (int i = 0; i < 3; i++) gs_device_close(devices[i]);
    return 0;
}

static gs_sparse_tensor make(gs_device *device, int32_t *indices, float *values, int64_t count,
                             int64_t columns, int64_t num_rows) {
    return (gs_sparse_tensor){.indices = {.data = indices,
                                          .dtype = GS_I32,
                                          .num_dims = 1,
                                          .shape = {count},
                                          .device = device},
                              .values = {.data = values,
                                         .dtype = GS_FP32,
                                         .num_dims = 2,
                                         .shape = {count, columns},
                                         .device = device},
                              .num_rows = num_rows};
}

static void sum_has_sorted_distinct_rows_and_adds_duplicates(void **state) {
    gs_device **devices = *state;
    int32_t a[] = {7, 2, 7}, b[] = {2, 0}, none[1] = {0};
    float x[] = {1, 2, 3, 4, 5, 6}, y[] = {10, 20, 30, 40}, empty[1] = {0};
    gs_sparse_tensor tensors[] = {make(devices[0], a, x, 3, 2, 9), make(devices[1], b, y, 2, 2, 9),
                                  make(devices[2], none, empty, 0, 2, 9)};
    gs_sparse_sum sum;
    gs_status status = gs_reduce_add_sparse(&sum, tensors, 3, devices[1]);
    assert_string_equal(status.message, "");
    const int32_t rows[] = {0, 2, 7};
    const float values[] = {30, 40, 13, 24, 6, 8};
    assert_int_equal(sum.values.tensor.shape[0], 3);
    assert_ptr_equal(sum.values.tensor.device, devices[1]);
    assert_memory_equal(sum.indices.tensor.data, rows, sizeof rows);
    assert_memory_equal(sum.values.tensor.data, values, sizeof values);
    gs_sparse_sum_release(&sum);
}

static void sum_refuses_what_does_not_fit_and_names_the_position(void **state) {
    gs_device **devices = *state;
    int32_t a[] = {1}, b[] = {9};
    float x[] = {1, 2, 3};
    gs_sparse_sum sum;
    gs_sparse_tensor tensors[] = {make(devices[0], a, x, 1, 2, 9), make(devices[1], b, x, 1, 2, 9)};
    gs_status status = gs_reduce_add_sparse(&sum, tensors, 2, NULL);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_string_equal(status.message, "sparse tensor 1: index 0 is 9, not in [0, 9)");
    tensors[1] = make(devices[1], a, x, 1, 3, 9);
    status = gs_reduce_add_sparse(&sum, tensors, 2, NULL);
    assert_string_equal(status.message, "sparse tensor 1: 9 rows of 3 against 9 of 2");
    tensors[1] = make(devices[1], a, x, 1, 2, 9);
    tensors[1].values.dtype = GS_BF16;
    assert_int_equal(gs_reduce_add_sparse(&sum, tensors, 2, NULL).code, GS_INVALID_ARGUMENT);
    assert_int_equal(gs_reduce_add_sparse(&sum, tensors, 0, NULL).code, GS_INVALID_ARGUMENT);
}

static void broadcast_hands_indices_and_values_to_every_device(void **state) {
    gs_device **devices = *state;
    int32_t a[] = {7, 2, 7}, b[] = {4};
    float x[] = {1, 2, 3, 4, 5, 6}, y[] = {8, 9, 10};
    gs_sparse_tensor tensors[] = {make(devices[0], a, x, 3, 2, 9), make(devices[0], b, y, 1, 3, 5)};
    gs_tensor_lists *lists;
    gs_status status = gs_broadcast_sparse(&lists, tensors, 2, devices, 3, 0);
    assert_string_equal(status.message, "");
    assert_int_equal(gs_tensor_lists_num_tensors(lists), 4);
    for (size_t d = 0; d < 3; d++) {
        const gs_device_tensor *list = gs_tensor_lists_of(lists, d);
        assert_true(gs_stream_wait(gs_device_stream(devices[d]), gs_deadline_in_seconds(60)).code ==
                    GS_OK);
        assert_memory_equal(list[0].data, a, sizeof a);
        assert_memory_equal(list[1].data, x, sizeof x);
        assert_memory_equal(list[2].data, b, sizeof b);
        assert_memory_equal(list[3].data, y, sizeof y);
        assert_int_equal(list[2].dtype, GS_I32);
        assert_ptr_equal(list[3].device, devices[d]);
    }
    gs_tensor_lists_destroy(lists);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum_has_sorted_distinct_rows_and_adds_duplicates),
        cmocka_unit_test(sum_refuses_what_does_not_fit_and_names_the_position),
        cmocka_unit_test(broadcast_hands_indices_and_values_to_every_device),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
