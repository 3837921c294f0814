#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT ((size_t)16411)

// PyTorch's order: decay, moments, denominator √v/√c2 + eps, p -= lr/c1 · m/denominator.
static void adamw_fp64(double *p, double *m, double *v, const float *grad, const gs_adamw *step) {
    const double beta1 = (double)step->beta1, beta2 = (double)step->beta2, lr = (double)step->lr;
    const double decay = (double)step->weight_decay;
    for (size_t i = 0; i < COUNT; i++) {
        double g = (double)grad[i] * (double)step->grad_scale;
        if (step->decoupled) {
            p[i] *= 1 - lr * decay;
        } else {
            g += decay * p[i];
        }
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        double denominator = sqrt(v[i]) / sqrt(step->correction2) + (double)step->eps;
        p[i] -= lr / step->correction1 * m[i] / denominator;
    }
}

static void adamw_follows_fp64_for_ten_steps(void **state) {
    for (int decoupled = 0; decoupled < 2; decoupled++) {
        float *param = make_uniform(COUNT, 1, -1, 1), *m = make_zeros(COUNT),
              *v = make_zeros(COUNT);
        double *p64 = widen(param, COUNT), *m64 = widen(m, COUNT), *v64 = widen(v, COUNT);
        gs_adamw step = {.lr = 1e-2f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .weight_decay = 0.1f,
                         .grad_scale = 0.5f,
                         .decoupled = decoupled};
        for (int t = 1; t <= 10; t++) {
            float *grad = make_uniform(COUNT, 100 + (uint64_t)t, -1, 1);
            step.correction1 = 1 - pow((double)step.beta1, t);
            step.correction2 = 1 - pow((double)step.beta2, t);
            gs_device_kernels(*state)->adamw(gs_device_stream(*state), param, m, v, grad, &step,
                                             COUNT);
            adamw_fp64(p64, m64, v64, grad, &step);
            free(grad);
        }
        assert_close(param, p64, COUNT, 5e-6, 0);
        assert_close(m, m64, COUNT, 1e-6, 0);
        assert_close(v, v64, COUNT, 1e-6, 0);
        free(param);
        free(m);
        free(v);
        free(p64);
        free(m64);
        free(v64);
    }
}

static void sgd_fp64(double *p, double *buffer, const float *grad, const gs_sgd *step) {
    const double momentum = (double)step->momentum;
    for (size_t i = 0; i < COUNT; i++) {
        double g = (double)grad[i] * (double)step->grad_scale + (double)step->weight_decay * p[i];
        if (step->momentum != 0.0f) {
            buffer[i] =
                step->first_step ? g : momentum * buffer[i] + (1 - (double)step->dampening) * g;
            g = step->nesterov ? g + momentum * buffer[i] : buffer[i];
        }
        p[i] -= (double)step->lr * g;
    }
}

static void assert_sgd(gs_device *device, gs_sgd step) {
    float *param = make_uniform(COUNT, 1, -1, 1), *buffer = make_uniform(COUNT, 2, 5, 6);
    double *p64 = widen(param, COUNT), *buffer64 = widen(buffer, COUNT);
    for (int t = 1; t <= 5; t++) {
        float *grad = make_uniform(COUNT, 200 + (uint64_t)t, -1, 1);
        step.first_step = t == 1;
        gs_device_kernels(device)->sgd(gs_device_stream(device), param,
                                       step.momentum == 0.0f ? NULL : buffer, grad, &step, COUNT);
        sgd_fp64(p64, buffer64, grad, &step);
        free(grad);
    }
    assert_close(param, p64, COUNT, 2e-6, 0);
    assert_close(buffer, buffer64, COUNT, 5e-6, 0);
    free(param);
    free(buffer);
    free(p64);
    free(buffer64);
}

static void sgd_follows_fp64(void **state) {
    assert_sgd(*state, (gs_sgd){.lr = 0.1f, .grad_scale = 1});
    assert_sgd(*state, (gs_sgd){.lr = 0.1f, .grad_scale = 0.25f, .weight_decay = 0.01f});
    assert_sgd(*state, (gs_sgd){.lr = 0.1f, .grad_scale = 1, .momentum = 0.9f});
    assert_sgd(*state, (gs_sgd){.lr = 0.1f,
                                .grad_scale = 1,
                                .momentum = 0.9f,
                                .dampening = 0.3f,
                                .weight_decay = 0.1f});
    assert_sgd(*state, (gs_sgd){.lr = 0.1f, .grad_scale = 1, .momentum = 0.9f, .nesterov = true});
}

// Of steps beside: arrays begin `shift` elements behind a line's boundary, so that whole lines lie
// in them, or none.
typedef struct beside {
    float *param, *was, *next_m, *next_v, *m, *v, *grad;
    float *want, *want_m, *want_v;
} beside;

#define NUM_ARRAYS (sizeof(beside) / sizeof(float *))

static void open_beside(beside *b, float **memory, size_t shift) {
    float **arrays = (float **)(void *)b;
    for (size_t i = 0; i < NUM_ARRAYS; i++) {
        memory[i] = make_uniform(COUNT + 64, 300 + i, 0, 1);
        uintptr_t past = (uintptr_t)memory[i] % 64 / sizeof(float);
        arrays[i] = memory[i] + (past ? 16 - past : 0) + shift * (i + 1);
    }
    memcpy(b->want, b->param, COUNT * sizeof(float));
    memcpy(b->want_m, b->m, COUNT * sizeof(float));
    memcpy(b->want_v, b->v, COUNT * sizeof(float));
}

static float *copy_of(const float *array) {
    return memcpy(make_zeros(COUNT), array, COUNT * sizeof *array);
}

static void assert_floats(const float *a, const float *b) {
    assert_memory_equal(a, b, COUNT * sizeof *a);
}

static void close_beside(float **memory) {
    for (size_t i = 0; i < NUM_ARRAYS; i++) free(memory[i]);
}

static void adamw_beside_is_adamw_and_leaves_what_was(void **state) {
    const gs_kernels *kernels = gs_device_kernels(*state);
    for (size_t variant = 0; variant < 4; variant++) {
        beside b;
        float *memory[NUM_ARRAYS];
        gs_adamw step = {.lr = 1e-2f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .weight_decay = 0.1f,
                         .grad_scale = 0.5f,
                         .correction1 = 0.1,
                         .correction2 = 0.05,
                         .decoupled = variant / 2};
        open_beside(&b, memory, variant % 2);
        float *before = copy_of(b.want), *m = copy_of(b.want_m), *v = copy_of(b.want_v);
        kernels->adamw(gs_device_stream(*state), b.want, b.want_m, b.want_v, b.grad, &step, COUNT);
        kernels->adamw_beside(gs_device_stream(*state), b.param, b.was, b.next_m, b.next_v, b.m,
                              b.v, b.grad, &step, COUNT);
        assert_floats(b.param, b.want);
        assert_floats(b.next_m, b.want_m);
        assert_floats(b.next_v, b.want_v);
        assert_floats(b.was, before);
        assert_floats(b.m, m);
        assert_floats(b.v, v);
        free(before);
        free(m);
        free(v);
        close_beside(memory);
    }
}

static void sgd_beside_is_sgd_and_leaves_what_was(void **state) {
    const gs_kernels *kernels = gs_device_kernels(*state);
    for (size_t variant = 0; variant < 8; variant++) {
        beside b;
        float *memory[NUM_ARRAYS];
        bool has_momentum = variant / 2;
        gs_sgd step = {.lr = 0.1f,
                       .momentum = has_momentum ? 0.9f : 0,
                       .weight_decay = 0.1f,
                       .grad_scale = 0.5f,
                       .nesterov = variant / 2 == 2,
                       .first_step = variant / 2 == 3};
        open_beside(&b, memory, variant % 2);
        float *before = copy_of(b.want), *m = copy_of(b.want_m);
        kernels->sgd(gs_device_stream(*state), b.want, has_momentum ? b.want_m : NULL, b.grad,
                     &step, COUNT);
        kernels->sgd_beside(gs_device_stream(*state), b.param, b.was,
                            has_momentum ? b.next_m : NULL, has_momentum ? b.m : NULL, b.grad,
                            &step, COUNT);
        assert_floats(b.param, b.want);
        assert_floats(b.was, before);
        if (has_momentum) assert_floats(b.next_m, b.want_m);
        assert_floats(b.m, m);
        free(before);
        free(m);
        close_beside(memory);
    }
}

static void nothing_to_do_is_fine(void **state) {
    gs_adamw adamw = {.grad_scale = 1, .correction1 = 1, .correction2 = 1};
    gs_sgd sgd = {.grad_scale = 1};
    gs_device_kernels(*state)->adamw(gs_device_stream(*state), NULL, NULL, NULL, NULL, &adamw, 0);
    gs_device_kernels(*state)->sgd(gs_device_stream(*state), NULL, NULL, NULL, &sgd, 0);
    gs_device_kernels(*state)->adamw_beside(gs_device_stream(*state), NULL, NULL, NULL, NULL, NULL,
                                            NULL, NULL, &adamw, 0);
    gs_device_kernels(*state)->sgd_beside(gs_device_stream(*state), NULL, NULL, NULL, NULL, NULL,
                                          &sgd, 0);
    assert_stream_ok(*state);
}

// The bits of the host's own way: the sum in order, the root, the loss scale, the coefficient, the unscaling.
static void the_factor_is_that_of_the_norm(void **state) {
    static const double squares[] = {0.1, 7, 1e-9, 3.3};
    static const struct {
        gs_grad_clip clip;
        double norm_is_below;  // max_norm: nothing is clipped
    } cases[] = {{{.max_norm = 1, .loss_scale = 1, .unscaling = 1}, 0},
                 {{.max_norm = 100, .loss_scale = 1, .unscaling = 1}, 100},
                 {{.max_norm = 0, .loss_scale = 8, .unscaling = 0.125f}, 0},
                 {{.max_norm = 0.3, .loss_scale = 3, .unscaling = 1.0f / 3}, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const gs_grad_clip *clip = &cases[i].clip;
        gs_grad_factor got;
        double sum = ((0.1 + 7) + 1e-9) + 3.3, norm = sqrt(sum) / clip->loss_scale;
        float want = (float)(clip->max_norm / (norm + 1e-6));
        if (clip->max_norm == 0 || norm < cases[i].norm_is_below) want = 1;
        gs_device_kernels(*state)->grad_factor(gs_device_stream(*state), &got, squares, 4, clip);
        assert_true(got.value == want * clip->unscaling);
        assert_int_equal(got.applies, 1);
    }
    assert_stream_ok(*state);
}

static void assert_does_not_apply(void **state, double a, double b) {
    const double squares[] = {1, a, b};
    gs_grad_factor got;
    gs_device_kernels(*state)->grad_factor(gs_device_stream(*state), &got, squares, 3,
                                           &(gs_grad_clip){.max_norm = 1, .loss_scale = 1, .unscaling = 1});
    assert_true(got.value == 0 && got.applies == 0);
}

// A sum that is infinite may be one of finite gradients: who asks decides otherwise.
static void a_factor_applies_to_finite_sums_of_a_good_stream_alone(void **state) {
    assert_does_not_apply(state, (double)NAN, 1);
    assert_does_not_apply(state, (double)INFINITY, 1);
    assert_does_not_apply(state, 1.7e308, 1.7e308);
    gs_stream_fail(gs_device_stream(*state), gs_error(GS_INVALID_ARGUMENT, "a bad token"));
    assert_does_not_apply(state, 1, 1);
    assert_stream_failed(*state, "a bad token");
}

// Scaled by the factor as by the number, or not at all.
static void updates_take_the_factor(void **state) {
    const gs_kernels *kernels = gs_device_kernels(*state);
    gs_stream *stream = gs_device_stream(*state);
    float *grad = make_uniform(COUNT, 7, -1.0f, 1.0f), *start = make_uniform(COUNT, 8, -1.0f, 1.0f);
    float *by[3][3];  // a number, a factor, one that does not apply: parameter and two states
    for (int how = 0; how < 3; how++) {
        const gs_grad_factor factor = {.value = 0.3f, .applies = how == 1};
        gs_adamw adamw = {.lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f,
                          .grad_scale = how ? 7 : 0.3f, .correction1 = 0.1, .correction2 = 0.05,
                          .decoupled = true};
        gs_sgd sgd = {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.1f, .grad_scale = how ? 7 : 0.3f};
        gs_stream_set_factor(stream, how ? &factor : NULL);
        for (int t = 0; t < 3; t++) memcpy(by[how][t] = make_zeros(COUNT), start, COUNT * sizeof **by[how]);
        for (size_t i = 0; i < COUNT; i++) by[how][2][i] = fabsf(start[i]);
        kernels->adamw(stream, by[how][0], by[how][1], by[how][2], grad, &adamw, COUNT);
        const gs_adamw_item item = {.param = by[how][0], .m = by[how][1], .v = by[how][2], .grad = grad,
                                    .count = COUNT, .correction1 = 0.1, .correction2 = 0.05};
        kernels->adamw_many(stream, &item, 1, &adamw);
        kernels->sgd(stream, by[how][0], by[how][1], grad, &sgd, COUNT);
        sgd.momentum = 0;
        kernels->sgd(stream, by[how][0], NULL, grad, &sgd, COUNT);
        gs_stream_set_factor(stream, NULL);
    }
    for (int t = 0; t < 3; t++) assert_same_bits(by[1][t], by[0][t], COUNT * sizeof(float));
    assert_same_bits(by[2][0], start, COUNT * sizeof(float));
    assert_same_bits(by[2][1], start, COUNT * sizeof(float));
    for (int how = 0; how < 3; how++)
        for (int t = 0; t < 3; t++) free(by[how][t]);
    free(grad);
    free(start);
    assert_stream_ok(*state);
}

// What they would have written beside is not there.
static void updates_beside_refuse_a_factor(void **state) {
    const gs_grad_factor factor = {.value = 1, .applies = 1};
    const gs_adamw adamw = {.grad_scale = 1, .correction1 = 1, .correction2 = 1};
    const gs_sgd sgd = {.grad_scale = 1};
    gs_stream *stream = gs_device_stream(*state);
    gs_stream_set_factor(stream, &factor);
    gs_device_kernels(*state)->adamw_beside(stream, NULL, NULL, NULL, NULL, NULL, NULL, NULL, &adamw, 1);
    assert_stream_failed(*state, "adamw_beside: takes no factor");
    gs_device_kernels(*state)->sgd_beside(stream, NULL, NULL, NULL, NULL, NULL, &sgd, 1);
    assert_stream_failed(*state, "sgd_beside: takes no factor");
    gs_stream_set_factor(stream, NULL);
}

static void nan_gradients_are_not_hidden(void **state) {
    gs_adamw step = {.lr = 0.1f, .grad_scale = 1, .correction1 = 1, .correction2 = 1};
    float param = 1, m = 0, v = 0, grad = NAN;
    gs_device_kernels(*state)->adamw(gs_device_stream(*state), &param, &m, &v, &grad, &step, 1);
    assert_true(isnan(param) && isnan(m) && isnan(v));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_follows_fp64_for_ten_steps),
        cmocka_unit_test(sgd_follows_fp64),
        cmocka_unit_test(adamw_beside_is_adamw_and_leaves_what_was),
        cmocka_unit_test(sgd_beside_is_sgd_and_leaves_what_was),
        cmocka_unit_test(nothing_to_do_is_fine),
        cmocka_unit_test(the_factor_is_that_of_the_norm),
        cmocka_unit_test(a_factor_applies_to_finite_sums_of_a_good_stream_alone),
        cmocka_unit_test(updates_take_the_factor),
        cmocka_unit_test(updates_beside_refuse_a_factor),
        cmocka_unit_test(nan_gradients_are_not_hidden),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
