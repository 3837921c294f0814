#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>

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

static void nothing_to_do_is_fine(void **state) {
    gs_adamw adamw = {.grad_scale = 1, .correction1 = 1, .correction2 = 1};
    gs_sgd sgd = {.grad_scale = 1};
    gs_device_kernels(*state)->adamw(gs_device_stream(*state), NULL, NULL, NULL, NULL, &adamw, 0);
    gs_device_kernels(*state)->sgd(gs_device_stream(*state), NULL, NULL, NULL, &sgd, 0);
    assert_stream_ok(*state);
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
        cmocka_unit_test(nothing_to_do_is_fine),
        cmocka_unit_test(nan_gradients_are_not_hidden),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
