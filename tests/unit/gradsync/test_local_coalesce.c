#include "gradsync/local/local_coalesce.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/bucket_plan.h"
#include "gradsync/local/model_copies.h"
#include "gradsync/local/scatter.h"
#include "gradsync/tensor/flatten.h"
#include "tests/support/asserts.h"

#define NUM_DEVICES 3

typedef struct fixture {
    gs_device *devices[NUM_DEVICES];
} fixture;

static void assert_refused(gs_status status, const char *words) {
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    if (!strstr(status.message, words))
        fail_msg("\"%s\" does not say \"%s\"", status.message, words);
}

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    for (int d = 0; d < NUM_DEVICES; d++)
        assert_ok(
            gs_device_open(&f->devices[d], "cpu", &(gs_device_options){.num_threads = 1 + d % 2}));
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    for (int d = 0; d < NUM_DEVICES; d++) gs_device_close(f->devices[d]);
    free(f);
    return 0;
}

static gs_device_tensor tensor_at(void *data, gs_dtype dtype, int64_t rows, int64_t cols,
                                  gs_device *device) {
    gs_param_spec spec = gs_param_spec_make(dtype, rows, cols, "t");
    return gs_device_tensor_make(&spec, data, device);
}

// flatten and unflatten

static void one_tensor_is_flattened_without_a_copy(void **state) {
    fixture *f = *state;
    float values[6] = {1, 2, 3, 4, 5, 6};
    gs_device_tensor tensor = tensor_at(values, GS_FP32, 2, 3, f->devices[0]);
    gs_held_tensor flat;
    assert_ok(gs_flatten(&flat, &tensor, 1));
    assert_ptr_equal(flat.tensor.data, values);
    assert_false(flat.owned);
    assert_int_equal(flat.tensor.num_dims, 1);
    assert_int_equal(flat.tensor.shape[0], 6);
    gs_held_tensor_release(&flat);
}

static void several_tensors_are_flattened_in_order_and_windows_give_them_back(void **state) {
    fixture *f = *state;
    float a[2] = {1, 2}, b[4] = {3, 4, 5, 6}, none[1] = {0}, c[1] = {7};
    gs_device_tensor tensors[] = {
        tensor_at(a, GS_FP32, 2, 0, f->devices[0]), tensor_at(b, GS_FP32, 2, 2, f->devices[0]),
        tensor_at(none, GS_FP32, 2, 0, f->devices[0]), tensor_at(c, GS_FP32, 0, 0, f->devices[0])};
    tensors[2].shape[0] = 0;
    gs_held_tensor flat;
    gs_device_tensor windows[4];
    assert_ok(gs_flatten(&flat, tensors, 4));
    assert_true(flat.owned);
    const float *values = flat.tensor.data;
    for (int i = 0; i < 7; i++) assert_true(values[i] == (float)(i + 1));
    assert_ok(gs_unflatten(windows, &flat.tensor, tensors, 4));
    assert_ptr_equal(windows[1].data, values + 2);
    assert_ptr_equal(windows[3].data, values + 6);
    assert_int_equal(windows[1].num_dims, 2);
    assert_int_equal(windows[3].num_dims, 0);
    gs_held_tensor_release(&flat);
}

static void windows_must_add_up_to_the_flat_buffer(void **state) {
    fixture *f = *state;
    float values[6] = {0};
    gs_device_tensor flat = tensor_at(values, GS_FP32, 6, 0, f->devices[0]), window;
    gs_device_tensor five = tensor_at(values, GS_FP32, 5, 0, f->devices[0]);
    assert_refused(gs_unflatten(&window, &flat, &five, 1),
                   "templates have 5 elements, the buffer 6");
    gs_device_tensor other = tensor_at(values, GS_FP64, 6, 0, f->devices[0]);
    assert_refused(gs_unflatten(&window, &flat, &other, 1), "template 0 is fp64");
}

// The first version of take_tensors did not look at dtypes, so that flattening turned everything
// into the first tensor's.
static void flatten_refuses_mixed_dtypes_and_devices_and_nothing(void **state) {
    fixture *f = *state;
    float a[2] = {1, 2};
    int64_t b[2] = {3, 4};
    gs_device_tensor mixed[] = {tensor_at(a, GS_FP32, 2, 0, f->devices[0]),
                                tensor_at(b, GS_I64, 2, 0, f->devices[0])};
    gs_held_tensor flat;
    assert_refused(gs_flatten(&flat, mixed, 2), "tensor 1 is i64, tensor 0 is fp32");
    mixed[1] = tensor_at(a, GS_FP32, 2, 0, f->devices[1]);
    assert_refused(gs_flatten(&flat, mixed, 2), "tensor 1 is on another device");
    assert_refused(gs_flatten(&flat, mixed, 0), "no tensors");
    mixed[0].data = NULL;
    assert_refused(gs_flatten(&flat, mixed, 1), "tensor 0: no memory");
}

// One compiled variant of take_tensors counted the tensor just added twice, and closed chunks
// early.
static void chunk_counts_each_tensor_once(void **state) {
    (void)state;
    gs_plan_tensor tensors[5] = {{.count = 40, .dtype = GS_U8},
                                 {.count = 40, .dtype = GS_U8},
                                 {.count = 20, .dtype = GS_U8},
                                 {.count = 60, .dtype = GS_U8},
                                 {.count = 60, .dtype = GS_U8}};
    size_t chunk_of[5], num_chunks;
    assert_ok(gs_take_tensors(chunk_of, &num_chunks, tensors, 5, 100, true));
    const size_t expected[5] = {0, 0, 0, 1, 2};
    assert_int_equal(num_chunks, 3);
    for (int i = 0; i < 5; i++) assert_int_equal(chunk_of[i], expected[i]);
}

// broadcast

static void broadcast_gives_each_device_a_copy_of_its_own(void **state) {
    fixture *f = *state;
    float values[3] = {1, 2, 3};
    gs_device_tensor tensor = tensor_at(values, GS_FP32, 3, 0, f->devices[0]);
    gs_tensor_lists *lists;
    assert_ok(gs_broadcast_tensor(&lists, &tensor, f->devices, NUM_DEVICES));
    assert_int_equal(gs_tensor_lists_count(lists), NUM_DEVICES);
    assert_ptr_equal(gs_tensor_lists_of(lists, 0)[0].data, values);
    for (size_t d = 1; d < NUM_DEVICES; d++) {
        const gs_device_tensor *copy = gs_tensor_lists_of(lists, d);
        assert_ptr_equal(copy->device, f->devices[d]);
        assert_memory_equal(copy->data, values, sizeof values);
    }
    ((float *)gs_tensor_lists_of(lists, 1)->data)[0] = 9;
    assert_true(values[0] == 1 && ((float *)gs_tensor_lists_of(lists, 2)->data)[0] == 1);
    gs_tensor_lists_destroy(lists);
}

// Values that a conversion to the neighbour's type would change.
static void mixed_dtypes_go_in_one_call_and_come_back_in_order_unconverted(void **state) {
    fixture *f = *state;
    float a[2] = {0.1f, -1}, e[1] = {3};
    int64_t b[2] = {(INT64_C(1) << 53) + 1, -7};
    double c[3] = {0.1, 1e300, -1e-300};
    uint8_t d[5] = {1, 2, 3, 255, 0};
    gs_device_tensor tensors[] = {
        tensor_at(a, GS_FP32, 2, 0, f->devices[0]), tensor_at(b, GS_I64, 2, 0, f->devices[0]),
        tensor_at(c, GS_FP64, 3, 0, f->devices[0]), tensor_at(d, GS_U8, 5, 0, f->devices[0]),
        tensor_at(e, GS_FP32, 1, 0, f->devices[0])};
    for (size_t limit_bytes = 1; limit_bytes <= 64; limit_bytes *= 4) {
        gs_tensor_lists *lists;
        assert_ok(gs_broadcast_coalesced(&lists, tensors, 5, f->devices, NUM_DEVICES, limit_bytes));
        for (size_t list = 0; list < NUM_DEVICES; list++) {
            for (size_t i = 0; i < 5; i++) {
                const gs_device_tensor *copy = &gs_tensor_lists_of(lists, list)[i];
                assert_int_equal(copy->dtype, tensors[i].dtype);
                assert_memory_equal(copy->data, tensors[i].data,
                                    gs_device_tensor_bytes(&tensors[i]));
            }
        }
        gs_tensor_lists_destroy(lists);
    }
}

// 60, 60, 60 bytes with limit 100 are three buffers; with limit 120 two, and neighbours lie in one.
static void chunks_keep_below_the_limit(void **state) {
    fixture *f = *state;
    float values[3][15] = {{0}};
    gs_device_tensor tensors[3];
    for (int i = 0; i < 3; i++) tensors[i] = tensor_at(values[i], GS_FP32, 15, 0, f->devices[0]);
    gs_tensor_lists *lists;
    assert_ok(gs_broadcast_coalesced(&lists, tensors, 3, f->devices, 2, 100));
    assert_int_equal(gs_tensor_lists_num_buffers(lists), 3);
    gs_tensor_lists_destroy(lists);
    assert_ok(gs_broadcast_coalesced(&lists, tensors, 3, f->devices, 2, 120));
    assert_int_equal(gs_tensor_lists_num_buffers(lists), 2);
    const gs_device_tensor *list = gs_tensor_lists_of(lists, 1);
    assert_ptr_equal(list[1].data, (char *)list[0].data + 60);
    gs_tensor_lists_destroy(lists);
    assert_ok(gs_broadcast_coalesced(&lists, tensors, 3, f->devices, 2, 0));
    assert_int_equal(gs_tensor_lists_num_buffers(lists), 1);
    gs_tensor_lists_destroy(lists);
}

// Two tensors of 5 MiB are one buffer, with four bytes more they are two; sums are cut alike.
static void the_default_limit_is_10_mib(void **state) {
    fixture *f = *state;
    const size_t half = GS_LOCAL_COALESCE_BYTES / 2 / sizeof(float);
    assert_int_equal(half * 2 * sizeof(float), 10 << 20);
    float *values = calloc(half + 1, sizeof *values);
    assert_non_null(values);
    for (size_t more = 0; more < 2; more++) {
        gs_device_tensor here[2], there[2];
        for (int i = 0; i < 2; i++) {
            here[i] = tensor_at(values, GS_FP32, (int64_t)(half + more), 0, f->devices[0]);
            there[i] = tensor_at(values, GS_FP32, (int64_t)(half + more), 0, f->devices[1]);
        }
        gs_tensor_lists *lists;
        assert_ok(gs_broadcast_coalesced(&lists, here, 2, f->devices, 2, 0));
        assert_int_equal(gs_tensor_lists_num_buffers(lists), 1 + more);
        gs_tensor_lists_destroy(lists);
        const gs_tensor_list both[] = {{here, 2}, {there, 2}};
        assert_ok(gs_reduce_add_coalesced(&lists, both, 2, NULL, 0));
        assert_int_equal(gs_tensor_lists_num_buffers(lists), 1 + more);
        gs_tensor_lists_destroy(lists);
    }
    free(values);
}

static void refresh_broadcasts_again_into_the_same_memory(void **state) {
    fixture *f = *state;
    float a[4] = {1, 2, 3, 4}, b[2] = {5, 6};
    gs_device_tensor tensors[] = {tensor_at(a, GS_FP32, 4, 0, f->devices[0]),
                                  tensor_at(b, GS_FP32, 2, 0, f->devices[0])};
    gs_tensor_lists *lists;
    assert_ok(gs_broadcast_coalesced(&lists, tensors, 2, f->devices, NUM_DEVICES, 0));
    a[3] = 40;
    b[0] = 50;
    const gs_device_tensor *last = gs_tensor_lists_of(lists, 2);
    const void *before = last[1].data;
    gs_tensor_lists_refresh(lists, 2);
    assert_ptr_equal(last[1].data, before);
    assert_memory_equal(last[0].data, a, sizeof a);
    assert_memory_equal(last[1].data, b, sizeof b);
    assert_true(((float *)gs_tensor_lists_of(lists, 1)->data)[3] == 4);
    gs_tensor_lists_destroy(lists);
}

static void broadcast_names_what_is_wrong(void **state) {
    fixture *f = *state;
    float values[2] = {0};
    gs_device_tensor tensors[] = {tensor_at(values, GS_FP32, 2, 0, f->devices[0]),
                                  tensor_at(values, GS_FP32, 2, 0, f->devices[1])};
    gs_tensor_lists *lists;
    assert_refused(gs_broadcast_coalesced(&lists, tensors, 2, f->devices, 2, 0),
                   "tensor 1 is not on the first device");
    assert_refused(gs_broadcast_coalesced(&lists, tensors, 0, f->devices, 2, 0), "no tensors");
    assert_refused(gs_broadcast_coalesced(&lists, tensors, 1, f->devices, 0, 0), "no devices");
    tensors[0].dtype = GS_DTYPE_UNSET;
    assert_refused(gs_broadcast_tensor(&lists, tensors, f->devices, 2), "tensor 0: dtype unset");
}

// reduce_add

static void sums_are_in_device_order_whatever_the_destination(void **state) {
    fixture *f = *state;
    // (1e8 + -1e8) + 1 is 1; any other order loses the 1.
    float values[NUM_DEVICES] = {1e8f, -1e8f, 1};
    gs_device_tensor tensors[NUM_DEVICES];
    for (int d = 0; d < NUM_DEVICES; d++)
        tensors[d] = tensor_at(&values[d], GS_FP32, 1, 0, f->devices[d]);
    for (int d = -1; d < NUM_DEVICES; d++) {
        gs_device *destination = d < 0 ? NULL : f->devices[d];
        gs_held_tensor sum;
        assert_ok(gs_reduce_add(&sum, tensors, NUM_DEVICES, destination));
        assert_true(*(float *)sum.tensor.data == 1);
        assert_ptr_equal(sum.tensor.device, f->devices[d < 0 ? 0 : d]);
        gs_held_tensor_release(&sum);
    }
    assert_true(values[0] == 1e8f);
}

static void one_input_comes_back_as_it_is(void **state) {
    fixture *f = *state;
    float values[2] = {1, 2};
    gs_device_tensor tensor = tensor_at(values, GS_FP32, 2, 0, f->devices[1]);
    gs_held_tensor sum;
    assert_ok(gs_reduce_add(&sum, &tensor, 1, NULL));
    assert_ptr_equal(sum.tensor.data, values);
    assert_false(sum.owned);
    gs_tensor_list list = {&tensor, 1};
    gs_tensor_lists *sums;
    assert_ok(gs_reduce_add_coalesced(&sums, &list, 1, NULL, 0));
    assert_ptr_equal(gs_tensor_lists_of(sums, 0)[0].data, values);
    gs_tensor_lists_destroy(sums);
}

static void lists_of_mixed_dtypes_are_added_tensor_by_tensor(void **state) {
    fixture *f = *state;
    float a[NUM_DEVICES][5];
    double b[NUM_DEVICES][3];
    int64_t c[NUM_DEVICES][2];
    gs_device_tensor tensors[NUM_DEVICES][3];
    gs_tensor_list lists[NUM_DEVICES];
    for (int d = 0; d < NUM_DEVICES; d++) {
        for (int i = 0; i < 5; i++) a[d][i] = (float)(d + i);
        for (int i = 0; i < 3; i++) b[d][i] = 1e-9 * (d + 1);
        for (int i = 0; i < 2; i++) c[d][i] = (INT64_C(1) << 53) + d;
        tensors[d][0] = tensor_at(a[d], GS_FP32, 5, 0, f->devices[d]);
        tensors[d][1] = tensor_at(b[d], GS_FP64, 3, 0, f->devices[d]);
        tensors[d][2] = tensor_at(c[d], GS_I64, 2, 0, f->devices[d]);
        lists[d] = (gs_tensor_list){tensors[d], 3};
    }
    for (size_t limit_bytes = 1; limit_bytes <= 100; limit_bytes += 33) {
        gs_tensor_lists *sums;
        assert_ok(gs_reduce_add_coalesced(&sums, lists, NUM_DEVICES, f->devices[2], limit_bytes));
        assert_int_equal(gs_tensor_lists_count(sums), 1);
        for (int i = 0; i < 5; i++)
            assert_true(((float *)gs_tensor_lists_of(sums, 0)[0].data)[i] == (float)(3 + 3 * i));
        assert_true(((double *)gs_tensor_lists_of(sums, 0)[1].data)[2] == 1e-9 + 2e-9 + 3e-9);
        assert_true(((int64_t *)gs_tensor_lists_of(sums, 0)[2].data)[1] ==
                    3 * (INT64_C(1) << 53) + 3);
        assert_ptr_equal(gs_tensor_lists_of(sums, 0)[0].device, f->devices[2]);
        gs_tensor_lists_destroy(sums);
    }
}

static void reduce_add_names_the_list_and_the_position(void **state) {
    fixture *f = *state;
    float values[6] = {0};
    gs_device_tensor ours[2], theirs[2];
    for (int i = 0; i < 2; i++) {
        ours[i] = tensor_at(values, GS_FP32, 2, 3, f->devices[0]);
        theirs[i] = tensor_at(values, GS_FP32, 2, 3, f->devices[1]);
    }
    gs_tensor_list lists[] = {{ours, 2}, {theirs, 2}};
    gs_tensor_lists *sums;
    theirs[1] = tensor_at(values, GS_FP32, 3, 2, f->devices[1]);
    assert_refused(gs_reduce_add_coalesced(&sums, lists, 2, NULL, 0),
                   "list 1, tensor 1: shape [3,2] against [2,3]");
    theirs[1] = tensor_at(values, GS_I32, 2, 3, f->devices[1]);
    assert_refused(gs_reduce_add_coalesced(&sums, lists, 2, NULL, 0),
                   "list 1, tensor 1: dtype i32 against fp32");
    theirs[1] = tensor_at(values, GS_FP32, 2, 3, f->devices[2]);
    assert_refused(gs_reduce_add_coalesced(&sums, lists, 2, NULL, 0),
                   "list 1, tensor 1: on another device");
    theirs[1].device = f->devices[1];
    assert_refused(gs_reduce_add_coalesced(&sums, lists, 2, f->devices[2], 0),
                   "the destination is none of the lists' devices");
    lists[1].num_tensors = 1;
    assert_refused(gs_reduce_add_coalesced(&sums, lists, 2, NULL, 0),
                   "list 1 has 1 tensors, list 0 has 2");
    assert_refused(gs_reduce_add_coalesced(&sums, lists, 0, NULL, 0), "no lists");
    lists[0].num_tensors = 0;
    assert_refused(gs_reduce_add_coalesced(&sums, lists, 1, NULL, 0), "no tensors");
    gs_held_tensor sum;
    gs_device_tensor bytes = tensor_at(values, GS_U8, 4, 0, f->devices[0]);
    assert_refused(gs_reduce_add(&sum, &bytes, 1, NULL), "no sum of u8");
    gs_device_tensor shapes[] = {ours[0], tensor_at(values, GS_FP32, 6, 0, f->devices[1])};
    assert_refused(gs_reduce_add(&sum, shapes, 2, NULL),
                   "list 1, tensor 0: shape [6] against [2,3]");
}

// copies of a model

static void gradients_of_a_broadcast_are_summed_on_the_remembered_device(void **state) {
    fixture *f = *state;
    float a[2] = {1, 2}, b[1] = {3};
    gs_device_tensor tensors[] = {tensor_at(a, GS_FP32, 2, 0, f->devices[0]),
                                  tensor_at(b, GS_FP32, 1, 0, f->devices[0])};
    gs_tensor_lists *copies, *sums;
    gs_broadcast_record record;
    assert_ok(gs_broadcast_forward(&copies, &record, tensors, 2, f->devices, NUM_DEVICES));
    assert_ptr_equal(record.device, f->devices[0]);
    // The gradients come back as the copies left: list after list.
    for (size_t i = 0; i < 2 * NUM_DEVICES; i++) {
        float *grad = gs_tensor_lists_of(copies, 0)[i].data;
        for (size_t j = 0; j < gs_device_tensor_count(&gs_tensor_lists_of(copies, 0)[i]); j++)
            grad[j] = (float)(10 * i + j);
    }
    assert_ok(
        gs_broadcast_backward(&sums, &record, gs_tensor_lists_of(copies, 0), 2 * NUM_DEVICES));
    assert_int_equal(gs_tensor_lists_num_tensors(sums), 2);
    assert_ptr_equal(gs_tensor_lists_of(sums, 0)[0].device, f->devices[0]);
    assert_true(((float *)gs_tensor_lists_of(sums, 0)[0].data)[1] == 0 + 20 + 40 + 3);
    assert_true(((float *)gs_tensor_lists_of(sums, 0)[1].data)[0] == 10 + 30 + 50);
    gs_tensor_lists_destroy(sums);
    assert_refused(gs_broadcast_backward(&sums, &record, gs_tensor_lists_of(copies, 0), 5),
                   "5 gradients of 2 tensors on 3 devices");
    gs_tensor_lists_destroy(copies);
}

static void broadcast_of_nothing_is_nothing_forward_and_backward(void **state) {
    fixture *f = *state;
    gs_tensor_lists *lists;
    gs_broadcast_record record;
    assert_ok(gs_broadcast_forward(&lists, &record, NULL, 0, f->devices, 2));
    assert_int_equal(gs_tensor_lists_num_tensors(lists), 0);
    gs_tensor_lists_destroy(lists);
    assert_ok(gs_broadcast_backward(&lists, &record, NULL, 0));
    assert_int_equal(gs_tensor_lists_num_tensors(lists), 0);
    gs_tensor_lists_destroy(lists);
}

static void lists_own_no_more_buffers_than_they_have_room_for(void **state) {
    fixture *f = *state;
    float values[2];
    gs_device_tensor like = tensor_at(values, GS_FP32, 2, 0, f->devices[0]), buffer;
    gs_tensor_lists *lists;
    assert_ok(gs_tensor_lists_create(&lists, 1, 1, 1));
    assert_null(gs_tensor_lists_of(lists, 0)->data);
    assert_ok(gs_tensor_lists_add_buffer(lists, &buffer, &like, f->devices[1]));
    assert_ptr_equal(buffer.device, f->devices[1]);
    assert_non_null(buffer.data);
    assert_int_equal(gs_tensor_lists_add_buffer(lists, &buffer, &like, f->devices[1]).code,
                     GS_FAILED_PRECONDITION);
    assert_int_equal(gs_tensor_lists_num_buffers(lists), 1);
    gs_tensor_lists_destroy(lists);
}

static void shared_parameters_stay_shared_and_absent_ones_absent(void **state) {
    fixture *f = *state;
    float a[4] = {1, 2, 3, 4}, b[2] = {5, 6}, mean[2] = {7, 8};
    int64_t count[1] = {9};
    gs_device *device = f->devices[0];
    // The classifier is the embedding again; the layer between has no bias.
    gs_device_tensor params[] = {
        tensor_at(a, GS_FP32, 2, 2, device), tensor_at(b, GS_FP32, 2, 0, device),
        tensor_at(NULL, GS_FP32, 2, 0, device), tensor_at(a, GS_FP32, 2, 2, device)};
    gs_device_tensor buffers[] = {
        tensor_at(NULL, GS_FP32, 2, 0, device), tensor_at(mean, GS_FP32, 2, 0, device),
        tensor_at(count, GS_I64, 1, 0, device), tensor_at(mean, GS_FP32, 2, 0, device)};
    gs_model_copies *all;
    assert_ok(gs_model_copies_create(&all, &(gs_model_tables){params, buffers, 4, 4}, f->devices,
                                     NUM_DEVICES));
    assert_int_equal(gs_model_copies_record(all)->num_inputs, 2);
    assert_int_equal(gs_model_copies_distinct(all)[0], 0);
    assert_int_equal(gs_model_copies_distinct(all)[1], 1);
    for (size_t d = 0; d < NUM_DEVICES; d++) {
        const gs_device_tensor *ours = gs_tensor_lists_of(gs_model_copies_params(all), d);
        const gs_device_tensor *stats = gs_tensor_lists_of(gs_model_copies_buffers(all), d);
        assert_memory_equal(ours[0].data, a, sizeof a);
        assert_memory_equal(ours[1].data, b, sizeof b);
        assert_null(ours[2].data);
        assert_ptr_equal(ours[3].data, ours[0].data);
        assert_null(stats[0].data);
        assert_memory_equal(stats[1].data, mean, sizeof mean);
        assert_memory_equal(stats[2].data, count, sizeof count);
        assert_ptr_equal(stats[3].data, stats[1].data);
        assert_ptr_equal(ours[0].device, f->devices[d]);
        if (d > 0)
            assert_ptr_not_equal(ours[0].data, a);
        else
            assert_ptr_equal(ours[0].data, a);
    }
    gs_model_copies_destroy(all);
}

static void model_copies_refuse_what_is_shared_in_two_shapes(void **state) {
    fixture *f = *state;
    float a[4] = {0};
    gs_device_tensor params[] = {tensor_at(a, GS_FP32, 2, 2, f->devices[0]),
                                 tensor_at(a, GS_FP32, 4, 0, f->devices[0])};
    gs_model_copies *all;
    assert_refused(
        gs_model_copies_create(&all, &(gs_model_tables){params, NULL, 2, 0}, f->devices, 2),
        "parameters: places 0 and 1 share memory in different shapes");
    assert_refused(
        gs_model_copies_create(&all, &(gs_model_tables){params, NULL, 1, 0}, f->devices, 0),
        "no devices");
    params[0].device = f->devices[1];
    assert_refused(
        gs_model_copies_create(&all, &(gs_model_tables){params, NULL, 1, 0}, f->devices, 2),
        "tensor 0 is not on the first device");
}

// In a flat memory it has the address of its neighbour.
static void tensor_without_elements_is_not_shared(void **state) {
    fixture *f = *state;
    float a[4] = {1, 2, 3, 4};
    gs_device_tensor params[] = {
        tensor_at(a, GS_FP32, 2, 2, f->devices[0]), tensor_at(a, GS_FP32, 2, 7, f->devices[0]),
        tensor_at(a, GS_FP32, 2, 2, f->devices[0]), tensor_at(a, GS_FP32, 2, 3, f->devices[0])};
    params[1].shape[0] = params[3].shape[0] = 0;
    gs_model_copies *all;
    assert_ok(gs_model_copies_create(&all, &(gs_model_tables){params, NULL, 4, 0}, f->devices, 2));
    assert_int_equal(gs_model_copies_record(all)->num_inputs,
                     3);  // the shared one, and each empty one
    const gs_device_tensor *copies = gs_tensor_lists_of(gs_model_copies_params(all), 1);
    assert_ptr_equal(copies[2].data, copies[0].data);
    assert_memory_equal(copies[0].data, a, sizeof a);
    assert_int_equal(copies[1].shape[1], 7);
    assert_int_equal(copies[3].shape[1], 3);
    gs_model_copies_destroy(all);
}

static void model_without_tensors_is_copied(void **state) {
    fixture *f = *state;
    gs_model_copies *all;
    assert_ok(gs_model_copies_create(&all, &(gs_model_tables){0}, f->devices, 2));
    assert_int_equal(gs_tensor_lists_num_tensors(gs_model_copies_params(all)), 0);
    gs_model_copies_destroy(all);
}

// scatter and gather

static void batch_is_scattered_by_rows_and_gathered_again(void **state) {
    fixture *f = *state;
    int32_t rows[7][2];
    for (int i = 0; i < 14; i++) rows[i / 2][i % 2] = i;
    gs_device_tensor batch = tensor_at(rows, GS_I32, 7, 2, f->devices[0]);
    gs_held_tensor parts[NUM_DEVICES], whole;
    assert_ok(gs_scatter(parts, &batch, f->devices, NUM_DEVICES));
    const int64_t expected[NUM_DEVICES] = {3, 3, 1};
    gs_device_tensor outputs[NUM_DEVICES];
    for (int d = 0; d < NUM_DEVICES; d++) {
        assert_int_equal(parts[d].tensor.shape[0], expected[d]);
        assert_ptr_equal(parts[d].tensor.device, f->devices[d]);
        outputs[d] = parts[d].tensor;
    }
    assert_ptr_equal(parts[0].tensor.data, rows);
    assert_false(parts[0].owned);
    assert_int_equal(((int32_t *)parts[1].tensor.data)[0], 6);
    assert_ok(gs_gather(&whole, outputs, NUM_DEVICES, f->devices[1]));
    assert_int_equal(whole.tensor.shape[0], 7);
    assert_memory_equal(whole.tensor.data, rows, sizeof rows);
    gs_held_tensor_release(&whole);
    for (int d = 0; d < NUM_DEVICES; d++) gs_held_tensor_release(&parts[d]);
}

static void fewer_rows_than_devices_leave_the_last_ones_empty(void **state) {
    fixture *f = *state;
    float rows[2] = {1, 2};
    gs_device_tensor batch = tensor_at(rows, GS_FP32, 2, 0, f->devices[0]);
    gs_held_tensor parts[NUM_DEVICES];
    assert_ok(gs_scatter(parts, &batch, f->devices, NUM_DEVICES));
    assert_int_equal(parts[1].tensor.shape[0], 1);
    assert_int_equal(parts[2].tensor.shape[0], 0);
    for (int d = 0; d < NUM_DEVICES; d++) gs_held_tensor_release(&parts[d]);
}

static void losses_of_all_devices_are_gathered_into_one_dimension(void **state) {
    fixture *f = *state;
    float losses[NUM_DEVICES] = {1, 2, 3};
    gs_device_tensor parts[NUM_DEVICES];
    for (int d = 0; d < NUM_DEVICES; d++)
        parts[d] = tensor_at(&losses[d], GS_FP32, 0, 0, f->devices[d]);
    gs_held_tensor all;
    assert_ok(gs_gather(&all, parts, NUM_DEVICES, NULL));
    assert_int_equal(all.tensor.num_dims, 1);
    assert_int_equal(all.tensor.shape[0], NUM_DEVICES);
    assert_memory_equal(all.tensor.data, losses, sizeof losses);
    gs_held_tensor_release(&all);
}

static void scatter_and_gather_name_what_is_wrong(void **state) {
    fixture *f = *state;
    float values[6] = {0};
    gs_device_tensor scalar = tensor_at(values, GS_FP32, 0, 0, f->devices[0]);
    gs_held_tensor parts[2], all;
    assert_refused(gs_scatter(parts, &scalar, f->devices, 2), "a scalar has no rows");
    assert_refused(gs_scatter(parts, &scalar, f->devices, 0), "no devices");
    gs_device_tensor rows[] = {tensor_at(values, GS_FP32, 1, 3, f->devices[0]),
                               tensor_at(values, GS_FP32, 1, 2, f->devices[1])};
    assert_refused(gs_gather(&all, rows, 2, NULL), "part 1 is fp32 [1,2], part 0 is fp32 [1,3]");
    assert_refused(gs_gather(&all, rows, 0, NULL), "no parts");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_tensor_is_flattened_without_a_copy),
        cmocka_unit_test(several_tensors_are_flattened_in_order_and_windows_give_them_back),
        cmocka_unit_test(windows_must_add_up_to_the_flat_buffer),
        cmocka_unit_test(flatten_refuses_mixed_dtypes_and_devices_and_nothing),
        cmocka_unit_test(chunk_counts_each_tensor_once),
        cmocka_unit_test(broadcast_gives_each_device_a_copy_of_its_own),
        cmocka_unit_test(mixed_dtypes_go_in_one_call_and_come_back_in_order_unconverted),
        cmocka_unit_test(chunks_keep_below_the_limit),
        cmocka_unit_test(the_default_limit_is_10_mib),
        cmocka_unit_test(refresh_broadcasts_again_into_the_same_memory),
        cmocka_unit_test(broadcast_names_what_is_wrong),
        cmocka_unit_test(sums_are_in_device_order_whatever_the_destination),
        cmocka_unit_test(one_input_comes_back_as_it_is),
        cmocka_unit_test(lists_of_mixed_dtypes_are_added_tensor_by_tensor),
        cmocka_unit_test(reduce_add_names_the_list_and_the_position),
        cmocka_unit_test(gradients_of_a_broadcast_are_summed_on_the_remembered_device),
        cmocka_unit_test(broadcast_of_nothing_is_nothing_forward_and_backward),
        cmocka_unit_test(shared_parameters_stay_shared_and_absent_ones_absent),
        cmocka_unit_test(lists_own_no_more_buffers_than_they_have_room_for),
        cmocka_unit_test(model_copies_refuse_what_is_shared_in_two_shapes),
        cmocka_unit_test(tensor_without_elements_is_not_shared),
        cmocka_unit_test(model_without_tensors_is_copied),
        cmocka_unit_test(batch_is_scattered_by_rows_and_gathered_again),
        cmocka_unit_test(fewer_rows_than_devices_leave_the_last_ones_empty),
        cmocka_unit_test(losses_of_all_devices_are_gathered_into_one_dimension),
        cmocka_unit_test(scatter_and_gather_name_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
