#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct logits_fp64 {
    double *logits, *losses;
    const int32_t *targets;
    size_t rows, classes, stride;
    double dloss;
} logits_fp64;

// Σ over rows of dloss · (-log softmax[target])
static double total_loss(void *ctx) {
    const logits_fp64 *l = ctx;
    double total = 0;
    for (size_t row = 0; row < l->rows; row++) {
        const double *logits = l->logits + row * l->stride;
        double sum = 0;
        for (size_t i = 0; i < l->classes; i++) sum += exp(logits[i]);
        l->losses[row] = log(sum) - logits[l->targets[row]];
        total += l->dloss * l->losses[row];
    }
    return total;
}

static void loss_and_gradient_match_fp64(void **state) {
    // One class, fewer than a vector, V not a multiple of 8, padded.
    static const size_t shapes[][3] = {
        {1, 1, 1}, {2, 3, 3}, {3, 13, 16}, {5, 50, 64}, {2, 131, 131}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        size_t rows = shapes[s][0], classes = shapes[s][1], stride = shapes[s][2];
        float *logits = make_uniform(rows * stride, s, -4, 4), *losses = make_zeros(rows);
        int32_t targets[5];
        for (size_t i = 0; i < rows; i++) targets[i] = (int32_t)(i * 7 % classes);
        // Poison in the padding must neither count nor stay.
        for (size_t i = 0; i < rows * stride; i++)
            logits[i] = i % stride < classes ? logits[i] : NAN;
        logits_fp64 wide = {widen(logits, rows * stride),
                            widen(losses, rows),
                            targets,
                            rows,
                            classes,
                            stride,
                            0.25};
        total_loss(&wide);
        const gs_kernels *k = gs_device_kernels(*state);
        float *kept = make_zeros(rows * stride);
        memcpy(kept, logits, rows * stride * sizeof *kept);
        k->softmax_loss(gs_device_stream(*state), losses, logits, NULL, targets, rows, classes,
                        stride, 0.25f, false);
        assert_close(losses, wide.losses, rows, 1e-6, 1e-6);
        assert_same_bits(logits, kept, rows * stride * sizeof *kept);
        k->softmax_loss(gs_device_stream(*state), losses, logits, NULL, targets, rows, classes,
                        stride, 0.25f, true);
        assert_close(losses, wide.losses, rows, 1e-6, 1e-6);
        for (size_t row = 0; row < rows; row++) {
            assert_gradient(logits + row * stride, wide.logits + row * stride, classes, total_loss,
                            &wide, 2e-7);
            for (size_t i = classes; i < stride; i++) {
                assert_true(logits[row * stride + i] == 0.0f && !signbit(logits[row * stride + i]));
            }
        }
        free(logits);
        free(losses);
        free(kept);
        free(wide.logits);
        free(wide.losses);
    }
}

static void large_logits_do_not_overflow(void **state) {
    float logits[] = {1000, 999, -1000}, loss;
    const int32_t target = 1;
    gs_device_kernels(*state)->softmax_loss(gs_device_stream(*state), &loss, logits, NULL, &target,
                                            1, 3, 3, 1.0f, true);
    assert_true(fabsf(loss - 1.3132617f) < 1e-6f);
    assert_true(fabsf(logits[1] - (0.26894142f - 1)) < 1e-6f && logits[2] == 0.0f);
}

static void correct_counts_the_first_largest(void **state) {
    float logits[] = {1, 2, 2, 5, 0, 1, 7, 7, 7}, losses[3];
    const int32_t targets[] = {2, 0, 0};
    int64_t num_correct = 77;
    gs_device_kernels(*state)->softmax_loss(gs_device_stream(*state), losses, logits, &num_correct,
                                            targets, 3, 3, 3, 1.0f, false);
    assert_int_equal(num_correct, 2);
}

static void target_outside_the_classes_names_its_row(void **state) {
    float logits[] = {1, 2, 3, 4}, losses[2] = {9, 9};
    const int32_t large[] = {1, 2}, negative[] = {-1, 0};
    const gs_kernels *k = gs_device_kernels(*state);
    k->softmax_loss(gs_device_stream(*state), losses, logits, NULL, large, 2, 2, 2, 1.0f, true);
    assert_stream_failed(*state, "row 1: target 2 is not in [0, 2)");
    k->softmax_loss(gs_device_stream(*state), losses, logits, NULL, negative, 2, 2, 2, 1.0f, true);
    assert_stream_failed(*state, "row 0: target -1");
    assert_true(logits[0] == 1 && losses[0] == 9);
}

static void nan_and_infinity_reach_the_loss(void **state) {
    float logits[] = {1, NAN, 3, INFINITY, 1, 2}, losses[2];
    const int32_t targets[] = {0, 1};
    gs_device_kernels(*state)->softmax_loss(gs_device_stream(*state), losses, logits, NULL, targets,
                                            2, 3, 3, 1.0f, true);
    assert_true(isnan(losses[0]) && isnan(losses[1]) && isnan(logits[0]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradient_match_fp64),
        cmocka_unit_test(large_logits_do_not_overflow),
        cmocka_unit_test(correct_counts_the_first_largest),
        cmocka_unit_test(target_outside_the_classes_names_its_row),
        cmocka_unit_test(nan_and_infinity_reach_the_loss),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
