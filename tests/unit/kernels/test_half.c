// Kernels of 16 bits on the CPU: each against plain arithmetic on the wide values of its inputs.
#include "kernels/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "tests/unit/kernels/kernel_test.h"

static const gs_dtype types[] = {GS_BF16, GS_FP16};
#define NUM_TYPES (sizeof types / sizeof *types)
#define POISON ((gs_half)0x7fff)  // a NaN of either type

typedef struct setting {
    gs_device *device;
    const gs_half_kernels *half;
    gs_stream *stream;
    gs_dtype dtype;
} setting;

static setting open_setting(gs_dtype dtype) {
    gs_device_options options = {.num_threads = 2};
    setting s = {.dtype = dtype};
    gs_status status = gs_device_open(&s.device, "cpu", &options);
    if (status.code) fail_msg("%s", status.message);
    s.half = gs_device_half_kernels(s.device, dtype);
    s.stream = gs_device_stream(s.device);
    assert_non_null(s.half);
    return s;
}

static void close_setting(setting *s) {
    assert_stream_ok(s->device);
    gs_device_close(s->device);
}

static float wide(const setting *s, gs_half value) {
    return s->dtype == GS_BF16 ? gs_bf16_to_fp32(value) : gs_fp16_to_fp32(value);
}

static gs_half narrow(const setting *s, double value) {
    return s->dtype == GS_BF16 ? gs_fp32_to_bf16((float)value) : gs_fp32_to_fp16((float)value);
}

static gs_half *make_half(const setting *s, size_t count, uint64_t seed) {
    float *values = make_uniform(count, seed, -2.0f, 2.0f);
    gs_half *half = calloc(count + 1, sizeof *half);
    assert_non_null(half);
    for (size_t i = 0; i < count; i++) half[i] = narrow(s, (double)values[i]);
    free(values);
    return half;
}

static gs_half *make_poison(size_t count) {
    gs_half *half = calloc(count + 1, sizeof *half);
    assert_non_null(half);
    for (size_t i = 0; i < count; i++) half[i] = POISON;
    return half;
}

// Within half a unit of the type's last place, and fp32's own rounding in the sum before.
static void assert_rounds_to(const setting *s, gs_half got, double wanted) {
    double digits = s->dtype == GS_BF16 ? 256.0 : 2048.0;
    double apart = fabs((double)wide(s, got) - wanted);
    if (!(apart <= fabs(wanted) * 0.502 * 2 / digits + 2e-5))
        fail_msg("%s: got %g, wanted %g", s->half->name, (double)wide(s, got), wanted);
}

static double gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x) {
    double u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = tanh(u);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

typedef struct operands {
    gs_half *a, *b, *bias, *aux, *c;
    gs_matmul shape;
} operands;

enum { M = 7, N = 13, K = 19, STRIDE_A = 23, STRIDE_B = 29, STRIDE_C = 17 };

static operands make_operands(const setting *s, bool transpose_a, bool transpose_b) {
    return (operands){.a = make_half(s, 19 * STRIDE_A, 1),
                      .b = make_half(s, 19 * STRIDE_B, 2),
                      .bias = make_half(s, N, 3),
                      .aux = make_half(s, M * STRIDE_C, 4),
                      .c = make_poison(M * STRIDE_C),
                      .shape = {.transpose_a = transpose_a,
                                .transpose_b = transpose_b,
                                .m = M,
                                .n = N,
                                .k = K,
                                .stride_a = STRIDE_A,
                                .stride_b = STRIDE_B,
                                .stride_c = STRIDE_C,
                                .alpha = 1.0f}};
}

static void free_operands(operands *of) {
    free(of->a);
    free(of->b);
    free(of->bias);
    free(of->aux);
    free(of->c);
}

static double dot(const setting *s, const operands *of, size_t row, size_t col) {
    double sum = 0;
    for (size_t k = 0; k < K; k++) {
        size_t a = of->shape.transpose_a ? k * STRIDE_A + row : row * STRIDE_A + k;
        size_t b = of->shape.transpose_b ? col * STRIDE_B + k : k * STRIDE_B + col;
        sum += (double)wide(s, of->a[a]) * (double)wide(s, of->b[b]);
    }
    return sum;
}

static double finish(const setting *s, const operands *of, gs_epilogue epilogue, const gs_half *aux,
                     double sum, size_t row, size_t col) {
    switch (epilogue) {
    case GS_EPILOGUE_BIAS:
        return sum + (double)wide(s, of->bias[col]);
    case GS_EPILOGUE_BIAS_GELU:
        return gelu(sum + (double)wide(s, of->bias[col]));
    case GS_EPILOGUE_DGELU:
        return sum * gelu_slope((double)wide(s, aux[row * STRIDE_C + col]));
    default:
        return sum;
    }
}

static void check_product(const setting *s, gs_epilogue epilogue, bool transpose_a,
                          bool transpose_b) {
    operands of = make_operands(s, transpose_a, transpose_b);
    gs_half *aux = make_half(s, M * STRIDE_C, 4);
    gs_half_matmul product = {
        .shape = of.shape, .epilogue = epilogue, .bias = of.bias, .aux = of.aux};
    s->half->matmul(s->stream, of.c, of.a, of.b, &product);
    for (size_t row = 0; row < M; row++)
        for (size_t col = 0; col < STRIDE_C; col++) {
            size_t at = row * STRIDE_C + col;
            if (col >= N) {
                assert_int_equal(of.c[at], POISON);
                assert_int_equal(of.aux[at], aux[at]);
                continue;
            }
            double sum = dot(s, &of, row, col);
            assert_rounds_to(s, of.c[at], finish(s, &of, epilogue, aux, sum, row, col));
            if (epilogue == GS_EPILOGUE_BIAS_GELU)
                assert_rounds_to(s, of.aux[at], sum + (double)wide(s, of.bias[col]));
            else
                assert_int_equal(of.aux[at], aux[at]);
        }
    free(aux);
    free_operands(&of);
}

static void products_and_epilogues_are_rounded_once(void **state) {
    (void)state;
    for (size_t t = 0; t < NUM_TYPES; t++) {
        setting s = open_setting(types[t]);
        for (int epilogue = GS_EPILOGUE_NONE; epilogue <= GS_EPILOGUE_DGELU; epilogue++)
            for (int transposes = 0; transposes < 4; transposes++)
                check_product(&s, (gs_epilogue)epilogue, transposes & 1, transposes & 2);
        close_setting(&s);
    }
}

static void alpha_and_beta_count(void **state) {
    (void)state;
    for (size_t t = 0; t < NUM_TYPES; t++) {
        setting s = open_setting(types[t]);
        operands of = make_operands(&s, true, false);
        gs_half *before = make_half(&s, M * STRIDE_C, 9);
        memcpy(of.c, before, M * STRIDE_C * sizeof *before);
        gs_half_matmul product = {.shape = of.shape};
        product.shape.alpha = 0.5f;
        product.shape.beta = 2.0f;
        s.half->matmul(s.stream, of.c, of.a, of.b, &product);
        for (size_t row = 0; row < M; row++)
            for (size_t col = 0; col < N; col++) {
                size_t at = row * STRIDE_C + col;
                assert_rounds_to(&s, of.c[at],
                                 0.5 * dot(&s, &of, row, col) + 2 * (double)wide(&s, before[at]));
            }
        free(before);
        free_operands(&of);
        close_setting(&s);
    }
}

static void gradients_of_weights_are_not_rounded(void **state) {
    (void)state;
    for (size_t t = 0; t < NUM_TYPES; t++) {
        setting s = open_setting(types[t]);
        operands of = make_operands(&s, true, false);
        float *c = make_uniform(M * STRIDE_C, 5, -1.0f, 1.0f), *before = make_zeros(M * STRIDE_C);
        memcpy(before, c, M * STRIDE_C * sizeof *c);
        gs_matmul shape = of.shape;
        shape.beta = 1.0f;
        s.half->matmul_grad(s.stream, c, of.a, of.b, &shape);
        for (size_t row = 0; row < M; row++)
            for (size_t col = 0; col < STRIDE_C; col++) {
                size_t at = row * STRIDE_C + col;
                double wanted = (double)before[at];
                if (col < N) wanted += dot(&s, &of, row, col);
                assert_true(fabs((double)c[at] - wanted) < 2e-5);
            }
        free(c);
        free(before);
        free_operands(&of);
        close_setting(&s);
    }
}

static void a_residual_is_added_before_the_rounding(void **state) {
    (void)state;
    for (size_t t = 0; t < NUM_TYPES; t++) {
        setting s = open_setting(types[t]);
        operands of = make_operands(&s, false, true);
        const gs_half_matmul product = {.shape = of.shape,
                                        .epilogue = GS_EPILOGUE_BIAS,
                                        .bias = of.bias,
                                        .residual = of.aux};
        s.half->matmul(s.stream, of.c, of.a, of.b, &product);
        for (size_t row = 0; row < M; row++)
            for (size_t col = 0; col < N; col++) {
                size_t at = row * STRIDE_C + col;
                assert_rounds_to(&s, of.c[at],
                                 dot(&s, &of, row, col) + (double)wide(&s, of.bias[col]) +
                                     (double)wide(&s, of.aux[at]));
            }
        free_operands(&of);
        close_setting(&s);
    }
}

static void gradients_of_a_layer_are_those_of_its_parts(void **state) {
    (void)state;
    for (size_t t = 0; t < NUM_TYPES; t++) {
        setting s = open_setting(types[t]);
        gs_half *dy = make_half(&s, K * M, 1), *x = make_half(&s, K * N, 2);
        gs_matmul shape = {.transpose_a = true, .m = M, .n = N, .k = K, .alpha = 1.0f};
        for (int adds = 0; adds < 2; adds++) {
            float *both[2], *apart[2];
            for (size_t i = 0; i < 2; i++) {
                both[i] = make_uniform(M * N, 7 + i, -1.0f, 1.0f);
                apart[i] = make_uniform(M * N, 7 + i, -1.0f, 1.0f);
            }
            shape.beta = (float)adds;
            s.half->linear_grads(s.stream, both[0], both[1], dy, x, &shape);
            s.half->matmul_grad(s.stream, apart[0], dy, x, &shape);
            s.half->bias_backward(s.stream, apart[1], dy, K, M, adds);
            for (size_t i = 0; i < 2; i++) {
                assert_memory_equal(both[i], apart[i], M * N * sizeof(float));
                free(both[i]);
                free(apart[i]);
            }
        }
        free(dy);
        free(x);
        close_setting(&s);
    }
}

enum { ROWS = 5, C = 37 };

static void a_norm_behind_a_residual_is_that_of_the_rounded_sum(void **state) {
    (void)state;
    for (size_t t = 0; t < NUM_TYPES; t++) {
        setting s = open_setting(types[t]);
        gs_half *a = make_half(&s, ROWS * C, 1), *b = make_half(&s, ROWS * C, 2);
        gs_half *weight = make_half(&s, C, 3), *bias = make_half(&s, C, 4);
        gs_half *sum = make_poison(ROWS * C), *out = make_poison(ROWS * C);
        gs_half *alone = make_poison(ROWS * C);
        float statistics[4][ROWS];
        s.half->residual_layernorm(s.stream, sum, out, statistics[0], statistics[1], a, b, weight,
                                   bias, ROWS, C);
        for (size_t i = 0; i < ROWS * C; i++)
            assert_rounds_to(&s, sum[i], (double)wide(&s, a[i]) + (double)wide(&s, b[i]));
        s.half->layernorm(s.stream, alone, statistics[2], statistics[3], sum, weight, bias, ROWS, C);
        assert_memory_equal(out, alone, ROWS * C * sizeof *out);
        assert_memory_equal(statistics[0], statistics[2], 2 * sizeof statistics[0]);
        free(a), free(b), free(weight), free(bias), free(sum), free(out), free(alone);
        close_setting(&s);
    }
}

static void the_first_norm_gradient_overwrites_and_the_next_adds(void **state) {
    (void)state;
    for (size_t t = 0; t < NUM_TYPES; t++) {
        setting s = open_setting(types[t]);
        gs_half *x = make_half(&s, ROWS * C, 1), *dy = make_half(&s, ROWS * C, 2);
        gs_half *weight = make_half(&s, C, 3), *out = make_poison(ROWS * C);
        gs_half *dx = make_poison(ROWS * C), *once = make_poison(ROWS * C);
        float mean[ROWS], rstd[ROWS], dweight[C], dbias[C], *scratch = make_zeros(2 * 64 * C);
        s.half->layernorm(s.stream, out, mean, rstd, x, weight, weight, ROWS, C);
        s.half->layernorm_backward(s.stream, dx, dweight, dbias, scratch, dy, x, weight, mean, rstd,
                                   ROWS, C, true, false);
        memcpy(once, dx, ROWS * C * sizeof *dx);
        const float first = dbias[3];
        s.half->layernorm_backward(s.stream, dx, dweight, dbias, scratch, dy, x, weight, mean, rstd,
                                   ROWS, C, false, true);
        for (size_t i = 0; i < ROWS * C; i++)
            assert_true(fabs((double)wide(&s, dx[i]) - 2 * (double)wide(&s, once[i])) <=
                        0.02 * fabs((double)wide(&s, dx[i])) + 1e-6);
        assert_true(dbias[3] == 2 * first);
        free(x), free(dy), free(weight), free(out), free(dx), free(once), free(scratch);
        close_setting(&s);
    }
}

static void bad_tokens_and_targets_leave_outputs_alone(void **state) {
    (void)state;
    for (size_t t = 0; t < NUM_TYPES; t++) {
        setting s = open_setting(types[t]);
        gs_half *wte = make_half(&s, 10 * C, 1), *wpe = make_half(&s, 2 * C, 2);
        gs_half *out = make_poison(2 * C), *logits = make_poison(2 * C);
        const int32_t ids[] = {3, 10};
        float losses[2] = {7.0f, 7.0f};
        s.half->embedding(s.stream, out, ids, wte, wpe, 1, 2, C, 10);
        assert_stream_failed(s.device, "row 1: token 10 ");
        s.half->softmax_loss(s.stream, losses, logits, NULL, ids, 2, 10, C, 1.0f, true);
        assert_stream_failed(s.device, "row 1: target 10 ");
        for (size_t i = 0; i < 2 * C; i++) {
            assert_int_equal(out[i], POISON);
            assert_int_equal(logits[i], POISON);
        }
        assert_true(losses[1] == 7.0f);
        free(wte), free(wpe), free(out), free(logits);
        close_setting(&s);
    }
}

static void logits_change_only_for_a_gradient(void **state) {
    (void)state;
    for (size_t t = 0; t < NUM_TYPES; t++) {
        setting s = open_setting(types[t]);
        enum { CLASSES = 30, STRIDE = 32 };
        gs_half *logits = make_half(&s, 2 * STRIDE, 1), *before = make_half(&s, 2 * STRIDE, 1);
        const int32_t ids[] = {3, 29};
        float losses[2], again[2];
        s.half->softmax_loss(s.stream, losses, logits, NULL, ids, 2, CLASSES, STRIDE, 1.0f, false);
        assert_memory_equal(logits, before, 2 * STRIDE * sizeof *logits);
        s.half->softmax_loss(s.stream, again, logits, NULL, ids, 2, CLASSES, STRIDE, 1.0f, true);
        assert_memory_equal(losses, again, sizeof losses);
        for (size_t row = 0; row < 2; row++) {
            double sum = 0;
            for (size_t i = 0; i < CLASSES; i++) sum += exp((double)wide(&s, before[row * STRIDE + i]));
            for (size_t i = 0; i < STRIDE; i++) {
                double p = i < CLASSES ? exp((double)wide(&s, before[row * STRIDE + i])) / sum : 0;
                if (i == (size_t)ids[row]) p -= 1;
                assert_rounds_to(&s, logits[row * STRIDE + i], p);
            }
        }
        free(logits), free(before);
        close_setting(&s);
    }
}

static void every_slot_is_there_on_every_instruction_set(void **state) {
    (void)state;
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        gs_device_options options = {.isa = isas[i]};
        gs_device *device;
        if (gs_device_open(&device, "cpu", &options).code) continue;  // not on this machine
        for (size_t t = 0; t < NUM_TYPES; t++) {
            const gs_half_kernels *half = gs_device_half_kernels(device, types[t]);
            assert_int_equal(half->dtype, types[t]);
            void *const *slots = (void *const *)(const void *)&half->matmul;
            size_t first = offsetof(gs_half_kernels, matmul);
            for (size_t slot = 0; slot < (sizeof *half - first) / sizeof *slots; slot++)
                assert_non_null(slots[slot]);
        }
        assert_null(gs_device_half_kernels(device, GS_FP32));
        gs_device_close(device);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_and_epilogues_are_rounded_once),
        cmocka_unit_test(alpha_and_beta_count),
        cmocka_unit_test(gradients_of_weights_are_not_rounded),
        cmocka_unit_test(a_residual_is_added_before_the_rounding),
        cmocka_unit_test(gradients_of_a_layer_are_those_of_its_parts),
        cmocka_unit_test(a_norm_behind_a_residual_is_that_of_the_rounded_sum),
        cmocka_unit_test(the_first_norm_gradient_overwrites_and_the_next_adds),
        cmocka_unit_test(bad_tokens_and_targets_leave_outputs_alone),
        cmocka_unit_test(logits_change_only_for_a_gradient),
        cmocka_unit_test(every_slot_is_there_on_every_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
