// Compression with residuals: what is chosen, and what is left, is the CPU's to the bit; means of signs add up in another
// order.
#include "tests/gpu/kernel_case.h"

#include <string.h>

#define ROUNDS 16
#define MOST_ITEMS 9
#define MOST ((size_t)1 << 20)

// Sums of fp64 in two orders, then one rounding: of means that are near zero beside what was added.
static const kernel_bound mean_bound = {1e-6, 1e-6, "fp64 sums in another order"};

// A bucket: tensor 0 is the table, 1 the gradients, 2 what is held, 3 the errors.
typedef struct bucket_shape {
    gs_dtype dtype, wire_dtype;
    size_t num_items, counts[MOST_ITEMS], firsts[MOST_ITEMS];
    size_t places, num_elements, num_chosen;
    bool has_held;
    double grad_scale, held_scale;
    int num_ranks;
    size_t stride_bytes;
} bucket_shape;

static bucket_shape draw_bucket(kernel_test *test, int round, size_t most) {
    bucket_shape shape = {.dtype = round % 4 == 3 ? GS_FP64 : GS_FP32,
                          .num_items = 1 + (size_t)kernel_random(test, MOST_ITEMS),
                          .has_held = kernel_random(test, 2)};
    for (size_t i = 0; i < shape.num_items; i++) {
        shape.counts[i] = kernel_count(test, most / MOST_ITEMS);
        shape.firsts[i] = shape.places;
        shape.places += (shape.counts[i] + 15) / 16 * 16;
        shape.num_elements += shape.counts[i];
    }
    shape.grad_scale = (double)kernel_real(test, -2.0f, 2.0f);
    shape.held_scale = (double)kernel_real(test, -2.0f, 2.0f);
    return shape;
}

static const gs_residual_item *list_items(const kernel_run *run, const bucket_shape *shape, int grad,
                                          int held, int error) {
    gs_residual_item *items = run->at[0];
    for (size_t i = 0; i < shape->num_items; i++) {
        size_t at = shape->firsts[i] * gs_dtype_bytes(shape->dtype);
        items[i] = (gs_residual_item){
            .grad = grad < 0 ? NULL : (char *)run->at[grad] + at,
            .held = held < 0 || !shape->has_held ? NULL : (const char *)run->at[held] + at,
            .error = error < 0 ? NULL : (char *)run->at[error] + at,
            .count = shape->counts[i],
            .first = shape->firsts[i]};
    }
    return items;
}

static void launch_add_residuals(const kernel_run *run) {
    const bucket_shape *shape = run->shape;
    run->kernels->add_residuals(run->stream, list_items(run, shape, 1, 2, 3), shape->num_items,
                                shape->dtype, shape->grad_scale, shape->held_scale);
}

static void test_add_residuals(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        bucket_shape shape = draw_bucket(test, round, MOST);
        kernel_begin(test, "%zu items, %zu elements, held %d", shape.num_items, shape.num_elements,
                     shape.has_held);
        kernel_table(test, MOST_ITEMS * sizeof(gs_residual_item));
        kernel_input(test, "grad", shape.dtype, shape.places, KERNEL_SPECIAL);
        kernel_input(test, "held", shape.dtype, shape.places, KERNEL_WIDE);
        kernel_inout(test, "error", shape.dtype, shape.places, KERNEL_ZEROS, KERNEL_SAME_BITS);
        kernel_check(test, launch_add_residuals, &shape);
    }
}

static void launch_select_largest(const kernel_run *run) {
    const bucket_shape *shape = run->shape;
    const gs_selection selection = {.items = list_items(run, shape, -1, -1, 1),
                                    .num_items = shape->num_items,
                                    .num_places = shape->places,
                                    .dtype = shape->dtype,
                                    .wire_dtype = shape->wire_dtype,
                                    .num_chosen = shape->num_chosen,
                                    .values = run->at[2],
                                    .places = run->at[3]};
    run->kernels->select_largest(run->stream, &selection);
}

// Few different values, so that many are equal.
static void make_equal_ones(kernel_test *test, int tensor, const bucket_shape *shape) {
    float *values = kernel_data(test, tensor);
    if (shape->dtype != GS_FP32) return;
    for (size_t i = 0; i < shape->places; i++)
        values[i] = (float)kernel_random(test, 5) - 2.0f;
}

static void test_select_largest(kernel_test *test) {
    static const gs_dtype wire_dtypes[] = {GS_DTYPE_UNSET, GS_BF16, GS_FP16};
    static const kernel_fill fills[] = {KERNEL_WIDE, KERNEL_SPECIAL, KERNEL_UNIT};
    for (int round = 0; round < ROUNDS; round++) {
        bucket_shape shape = draw_bucket(test, round, MOST / 8);
        shape.wire_dtype = wire_dtypes[round % 3];
        shape.num_chosen = (size_t)kernel_random(test, shape.num_elements + 1);
        if (round % 2) shape.num_chosen = shape.num_chosen / 100;
        kernel_begin(test, "%zu of %zu elements of %zu items, wire dtype %d", shape.num_chosen,
                     shape.num_elements, shape.num_items, shape.wire_dtype);
        kernel_table(test, MOST_ITEMS * sizeof(gs_residual_item));
        int error = kernel_inout(test, "error", shape.dtype, shape.places,
                                 fills[kernel_random(test, 3)], KERNEL_SAME_BITS);
        if (round % 5 == 2) make_equal_ones(test, error, &shape);
        kernel_output(test, "values", shape.dtype, shape.num_chosen, KERNEL_SAME_BITS);
        kernel_output(test, "places", GS_I32, shape.num_chosen, KERNEL_SAME_BITS);
        kernel_check(test, launch_select_largest, &shape);
    }
}

static void launch_add_at(const kernel_run *run) {
    const bucket_shape *shape = run->shape;
    run->kernels->add_at(run->stream, run->at[0], run->at[1], run->at[2], shape->num_chosen,
                         shape->places, shape->dtype);
}

static void test_add_at(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        bucket_shape shape = draw_bucket(test, round, MOST);
        size_t stride = 1 + (size_t)kernel_random(test, 40);
        shape.num_chosen = shape.places / stride;
        kernel_begin(test, "%zu of %zu places", shape.num_chosen, shape.places);
        kernel_inout(test, "out", shape.dtype, shape.places, KERNEL_WIDE, KERNEL_SAME_BITS);
        kernel_input(test, "values", shape.dtype, shape.num_chosen, KERNEL_SPECIAL);
        uint32_t *places = kernel_data(test, kernel_input(test, "places", GS_I32, shape.num_chosen, KERNEL_ZEROS));
        for (size_t i = 0; i < shape.num_chosen; i++)
            places[i] = (uint32_t)(i * stride + kernel_random(test, stride));
        // What a rank sent that is out of its mind: a place beyond the bucket, one twice.
        size_t last = shape.num_chosen - 1;
        if (round % 4 == 1 && shape.num_chosen > 0) places[last] = (uint32_t)shape.places;
        if (round % 4 == 2 && shape.num_chosen > 1) places[last] = places[last - 1];
        if (round % 8 == 5 && shape.num_chosen > 0) places[last] = UINT32_MAX;
        kernel_check(test, launch_add_at, &shape);
    }
}

static void launch_take_signs(const kernel_run *run) {
    const bucket_shape *shape = run->shape;
    const gs_signs signs = {list_items(run, shape, -1, -1, 1), shape->num_items, shape->dtype,
                            run->at[2], run->at[3]};
    run->kernels->take_signs(run->stream, &signs);
}

static void test_take_signs(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        bucket_shape shape = draw_bucket(test, round, MOST / 16);
        kernel_begin(test, "%zu items, %zu elements", shape.num_items, shape.num_elements);
        kernel_table(test, MOST_ITEMS * sizeof(gs_residual_item));
        kernel_inout(test, "error", shape.dtype, shape.places, KERNEL_UNIT, mean_bound);
        kernel_output(test, "means", shape.dtype, 2 * shape.num_items, mean_bound);
        kernel_inout(test, "bits", GS_U8, shape.places / 8, KERNEL_ZEROS, KERNEL_SAME_BITS);
        kernel_check(test, launch_take_signs, &shape);
    }
}

static void launch_add_signs(const kernel_run *run) {
    const bucket_shape *shape = run->shape;
    char *payload = run->at[2];
    size_t means_bytes = (2 * MOST_ITEMS * sizeof(double) + 63) / 64 * 64;
    const gs_signs signs = {list_items(run, shape, 1, -1, -1), shape->num_items, shape->dtype, payload,
                            (uint8_t *)payload + means_bytes};
    run->kernels->add_signs(run->stream, &signs, shape->num_ranks, shape->stride_bytes);
}

static void test_add_signs(kernel_test *test) {
    size_t means_bytes = (2 * MOST_ITEMS * sizeof(double) + 63) / 64 * 64;
    for (int round = 0; round < ROUNDS; round++) {
        bucket_shape shape = draw_bucket(test, round, MOST / 2);
        shape.num_ranks = 1 + (int)kernel_random(test, 8);
        shape.stride_bytes = means_bytes + (shape.places / 8 + 63) / 64 * 64;
        kernel_begin(test, "%zu items, %zu elements of %d ranks", shape.num_items,
                     shape.num_elements, shape.num_ranks);
        kernel_align(test);
        kernel_table(test, MOST_ITEMS * sizeof(gs_residual_item));
        kernel_inout(test, "grad", shape.dtype, shape.places, KERNEL_ZEROS, KERNEL_SAME_BITS);
        char *payload = kernel_data(test, kernel_input(test, "payload", GS_U8,
                                         (size_t)shape.num_ranks * shape.stride_bytes, KERNEL_UNIT));
        for (int r = 0; r < shape.num_ranks; r++) {
            for (size_t i = 0; i < 2 * shape.num_items; i++) {
                double mean = (double)kernel_real(test, -1.0f, 1.0f);
                float narrow = (float)mean;
                char *at = payload + (size_t)r * shape.stride_bytes + i * gs_dtype_bytes(shape.dtype);
                if (shape.dtype == GS_FP64) memcpy(at, &mean, sizeof mean);
                else memcpy(at, &narrow, sizeof narrow);
            }
        }
        kernel_check(test, launch_add_signs, &shape);
    }
}

static const kernel_case cases[] = {KERNEL_CASE(add_residuals), KERNEL_CASE(select_largest),
                                    KERNEL_CASE(add_at), KERNEL_CASE(take_signs),
                                    KERNEL_CASE(add_signs)};
const kernel_family kernel_family_residuals = {cases, sizeof cases / sizeof *cases};
