// A model with memory of its own: parameters, gradients and buffers in flat blocks, and plain
// training.
#ifndef TESTS_UNIT_WORKER_MODEL_FIXTURE_H
#define TESTS_UNIT_WORKER_MODEL_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "worker/models/registry.h"

#define FIXTURE_MAX_PARAMS 80

typedef struct fixture {
    gs_device *device;
    gs_model model;
    const gs_model_param *list;
    size_t num_params, num_buffers, count;  // count: elements of all parameters
    float *values, *gradient;               // flat
    void *params[FIXTURE_MAX_PARAMS];
    void *grads[FIXTURE_MAX_PARAMS];
    void *buffers[FIXTURE_MAX_PARAMS], *next_buffers[FIXTURE_MAX_PARAMS];
    size_t ready[2 * FIXTURE_MAX_PARAMS], num_ready;
} fixture;

static inline gs_device *open_device(int num_threads) {
    gs_device_options options = {.num_threads = num_threads};
    gs_device *device;
    gs_status status = gs_device_open(&device, "cpu", &options);
    if (status.code) fail_msg("%s", status.message);
    return device;
}

// Takes device and model.
static inline void fixture_init(fixture *f, gs_device *device, gs_model model, uint64_t seed) {
    *f = (fixture){.device = device, .model = model};
    f->list = model.ops->params(model.state, &f->num_params);
    const gs_param_spec *specs = model.ops->buffers(model.state, &f->num_buffers);
    assert_in_range(f->num_params, 1, FIXTURE_MAX_PARAMS);
    for (size_t i = 0; i < f->num_params; i++) f->count += gs_param_spec_count(&f->list[i].spec);
    f->values = calloc(f->count, sizeof(float));
    f->gradient = calloc(f->count, sizeof(float));
    size_t at = 0;
    for (size_t i = 0; i < f->num_params; i++) {
        f->params[i] = f->values + at;
        f->grads[i] = f->gradient + at;
        at += gs_param_spec_count(&f->list[i].spec);
    }
    for (size_t i = 0; i < f->num_buffers; i++) {
        f->buffers[i] = calloc(1, gs_param_spec_bytes(&specs[i]));
        f->next_buffers[i] = calloc(1, gs_param_spec_bytes(&specs[i]));
    }
    gs_status status = model.ops->init(model.state, f->params, f->buffers, seed);
    if (status.code) fail_msg("%s", status.message);
}

static inline void fixture_release(fixture *f) {
    for (size_t i = 0; i < f->num_buffers; i++) {
        free(f->buffers[i]);
        free(f->next_buffers[i]);
    }
    free(f->values);
    free(f->gradient);
    gs_model_destroy(&f->model);
    gs_device_close(f->device);
}

static inline void note_ready(void *ctx, size_t param) {
    fixture *f = ctx;
    if (f->num_ready < 2 * FIXTURE_MAX_PARAMS) f->ready[f->num_ready++] = param;
}

static inline gs_model_pass fixture_pass(fixture *f, const gs_batch *batch) {
    return (gs_model_pass){.batch = batch,
                           .training = true,
                           .params = f->params,
                           .buffers = (const void *const *)f->buffers,
                           .next_buffers = f->next_buffers,
                           .grads = f->grads,
                           .grad_factor = 1.0f,
                           .ready = note_ready,
                           .ready_ctx = f};
}

// What a gradient holds that backward has not touched.
#define UNTOUCHED 12345.0f

typedef struct open_grads {
    fixture *f;
    bool is_open[FIXTURE_MAX_PARAMS];
} open_grads;

static inline gs_status note_writes(void *ctx, size_t param) {
    open_grads *open = ctx;
    const float *grad = open->f->grads[param];
    for (size_t i = 0; i < gs_param_spec_count(&open->f->list[param].spec); i++)
        if (grad[i] != UNTOUCHED) fail_msg("parameter %zu is written before it is opened", param);
    assert_false(open->is_open[param]);
    open->is_open[param] = true;
    return gs_ok();
}

static inline gs_status refuse_param(void *ctx, size_t param) {
    return param == *(const size_t *)ctx ? gs_error(GS_ABORTED, "no more") : gs_ok();
}

// The place of a gradient that cannot be opened stays others'.
static inline void check_refused(fixture *f, const gs_batch *batch, size_t refused) {
    gs_model_pass pass = fixture_pass(f, batch);
    pass.writes = refuse_param;
    pass.writes_ctx = &refused;
    for (size_t i = 0; i < f->count; i++) f->gradient[i] = UNTOUCHED;
    gs_status status = f->model.ops->forward(f->model.state, &pass);
    if (status.code) fail_msg("%s", status.message);
    assert_int_equal(f->model.ops->backward(f->model.state, &pass).code, GS_ABORTED);
    const float *grad = f->grads[refused];
    for (size_t i = 0; i < gs_param_spec_count(&f->list[refused].spec); i++)
        if (grad[i] != UNTOUCHED) fail_msg("parameter %zu is written all the same", refused);
}

static inline void note_ready_open(void *ctx, size_t param) {
    const open_grads *open = ctx;
    if (!open->is_open[param]) fail_msg("parameter %zu was never opened", param);
}

// Backward says so before it writes a gradient, and does not write what it may not; long before it
// is ready where the parameter opens early.
static inline void check_opens(fixture *f, const gs_batch *batch) {
    open_grads open = {.f = f};
    gs_model_pass pass = fixture_pass(f, batch);
    pass.writes = note_writes;
    pass.ready = note_ready_open;
    pass.writes_ctx = pass.ready_ctx = &open;
    for (size_t i = 0; i < f->count; i++) f->gradient[i] = UNTOUCHED;
    gs_status status = f->model.ops->forward(f->model.state, &pass);
    if (!status.code) status = f->model.ops->backward(f->model.state, &pass);
    if (status.code) fail_msg("%s", status.message);
    for (size_t i = 0; i < f->num_params; i++) assert_true(open.is_open[i]);
    for (size_t i = 0; i < f->num_params; i++) check_refused(f, batch, i);
}

static inline double fixture_loss(fixture *f, const gs_batch *batch) {
    gs_model_pass pass = fixture_pass(f, batch);
    gs_status status = f->model.ops->forward(f->model.state, &pass);
    if (status.code) fail_msg("%s", status.message);
    return pass.loss;
}

// Forward and backward; the gradient of the mean loss times `factor` lies in f->gradient.
static inline double fixture_run(fixture *f, const gs_batch *batch, float factor, bool accumulate) {
    gs_model_pass pass = fixture_pass(f, batch);
    pass.grad_factor = factor;
    pass.accumulate = accumulate;
    f->num_ready = 0;
    gs_status status = f->model.ops->forward(f->model.state, &pass);
    if (!status.code) status = f->model.ops->backward(f->model.state, &pass);
    if (status.code) fail_msg("%s", status.message);
    return pass.loss;
}

// Wider values than a model starts with, so that no gradient drowns in rounding.
static inline void fixture_spread(fixture *f, uint64_t seed, float deviation) {
    float *noise = calloc(f->count, sizeof *noise);
    gs_random_fill_normal(noise, f->count, (gs_random_key){seed, 99}, 0, 0.0f, deviation);
    for (size_t i = 0; i < f->count; i++) f->values[i] += noise[i];
    free(noise);
}

// The slope of the loss along `direction` in one parameter, by central differences.
static inline double slope_along(fixture *f, const gs_batch *batch, size_t param,
                                 const float *direction, double step) {
    size_t count = gs_param_spec_count(&f->list[param].spec);
    float *values = f->params[param], *kept = malloc(count * sizeof *kept);
    memcpy(kept, values, count * sizeof *kept);
    double losses[2];
    for (int side = 0; side < 2; side++) {
        double way = side ? step : -step;
        for (size_t i = 0; i < count; i++)
            values[i] = (float)((double)kept[i] + way * (double)direction[i]);
        losses[side] = fixture_loss(f, batch);
    }
    memcpy(values, kept, count * sizeof *kept);
    free(kept);
    return (losses[1] - losses[0]) / (2.0 * step);
}

// Along the gradient itself the slope must be its norm: a part that is wrong shows in either of the
// two. Then along a random direction.
static inline void check_gradients(fixture *f, const gs_batch *batch, double step,
                                   double tolerance) {
    fixture_run(f, batch, 1.0f, false);
    float *gradient = malloc(f->count * sizeof *gradient);
    memcpy(gradient, f->gradient, f->count * sizeof *gradient);
    for (size_t p = 0; p < f->num_params; p++) {
        size_t count = gs_param_spec_count(&f->list[p].spec),
               at = (size_t)((float *)f->grads[p] - f->gradient);
        const float *g = gradient + at;
        float *direction = malloc(count * sizeof *direction);
        for (int kind = 0; kind < 2; kind++) {
            gs_random_fill_normal(direction, count, (gs_random_key){p, 7}, 0, 0.0f, 1.0f);
            if (kind == 0) memcpy(direction, g, count * sizeof *direction);
            double norm = 0.0, wanted = 0.0;
            for (size_t i = 0; i < count; i++) norm += (double)direction[i] * (double)direction[i];
            if (norm == 0.0) continue;
            for (size_t i = 0; i < count; i++) {
                direction[i] = (float)((double)direction[i] / sqrt(norm));
                wanted += (double)g[i] * (double)direction[i];
            }
            double found = slope_along(f, batch, p, direction, step);
            // A NaN is no match.
            if (!(fabs(found - wanted) <= tolerance * fmax(0.05, fabs(wanted))))
                fail_msg("%s, direction %d: slope %.6g, gradient says %.6g", f->list[p].spec.name,
                         kind, found, wanted);
        }
        free(direction);
    }
    free(gradient);
}

static inline void spoil_released(void *ctx, size_t param) {
    fixture *f = ctx;
    float *values = f->params[param];
    for (size_t i = gs_param_spec_count(&f->list[param].spec); i-- > 0;) values[i] = NAN;
}

// Backward that is told of each release spoils what was released: the gradients stay what they are. `values` are lost.
static inline void check_releases(fixture *f, const gs_batch *batch) {
    fixture_run(f, batch, 1.0f, false);
    float *wanted = malloc(f->count * sizeof *wanted);
    memcpy(wanted, f->gradient, f->count * sizeof *wanted);
    gs_model_pass pass = fixture_pass(f, batch);
    pass.released = spoil_released;
    pass.released_ctx = f;
    gs_status status = f->model.ops->forward(f->model.state, &pass);
    if (!status.code) status = f->model.ops->backward(f->model.state, &pass);
    if (status.code) fail_msg("%s", status.message);
    for (size_t i = 0; i < f->count; i++) assert_true(isnan(f->values[i]));
    assert_memory_equal(wanted, f->gradient, f->count * sizeof *wanted);
    free(wanted);
}

// What forward does not wait for is not there: values come when they are asked for.
typedef struct late_values {
    fixture *f;
    float *values;
} late_values;

static inline gs_status bring_values(void *ctx, size_t param) {
    const late_values *late = ctx;
    size_t first = (size_t)((float *)late->f->params[param] - late->f->values);
    memcpy(late->f->params[param], late->values + first,
           gs_param_spec_count(&late->f->list[param].spec) * sizeof *late->values);
    return gs_ok();
}

// Forward of values that are spoilt until it says that it reads them has the loss of values that are there; and an error
// of who brings them ends it.
static inline void check_readings(fixture *f, const gs_batch *batch) {
    size_t last = f->num_params - 1;
    gs_model_pass pass = fixture_pass(f, batch);
    gs_status status = f->model.ops->forward(f->model.state, &pass);
    if (status.code) fail_msg("%s", status.message);
    const double wanted = pass.loss;
    late_values late = {f, malloc(f->count * sizeof(float))};
    memcpy(late.values, f->values, f->count * sizeof(float));
    for (size_t i = 0; i < f->count; i++) f->values[i] = NAN;
    pass = fixture_pass(f, batch);
    pass.reads = bring_values;
    pass.reads_ctx = &late;
    status = f->model.ops->forward(f->model.state, &pass);
    if (status.code) fail_msg("%s", status.message);
    assert_memory_equal(&pass.loss, &wanted, sizeof wanted);
    free(late.values);
    pass = fixture_pass(f, batch);
    pass.reads = refuse_param;
    pass.reads_ctx = &last;
    assert_int_equal(f->model.ops->forward(f->model.state, &pass).code, GS_ABORTED);
}

// Largest difference of two flat blocks against the largest value of the first; infinite when one
// of them holds a NaN.
static inline double relative_distance(const float *a, const float *b, size_t count) {
    double largest = 0.0, distance = 0.0;
    for (size_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs((double)a[i]));
        double apart = fabs((double)a[i] - (double)b[i]);
        if (!(apart <= distance)) distance = isnan(apart) ? INFINITY : apart;
    }
    return distance / fmax(largest, 1e-20);
}

// Each parameter's gradient in `got` against the largest value of that in `wanted`.
static inline void assert_same_gradients(const fixture *got, const fixture *wanted, double absolute,
                                         double relative) {
    for (size_t p = 0; p < wanted->num_params; p++) {
        size_t count = gs_param_spec_count(&wanted->list[p].spec);
        const float *ours = got->grads[p], *theirs = wanted->grads[p];
        double largest = 0.0;
        for (size_t i = 0; i < count; i++) largest = fmax(largest, fabs((double)theirs[i]));
        for (size_t i = 0; i < count; i++) {
            double apart = fabs((double)ours[i] - (double)theirs[i]);
            if (!(apart <= absolute + relative * largest))
                fail_msg("%s: element %zu is off by %g of %g", wanted->list[p].spec.name, i, apart,
                         largest);
        }
    }
}

// `steps` of AdamW on one batch; the last loss.
static inline double overfit(fixture *f, const gs_batch *batch, int steps, float lr) {
    float *m = calloc(f->count, sizeof *m), *v = calloc(f->count, sizeof *v);
    double loss = 0.0;
    for (int step = 1; step <= steps; step++) {
        loss = fixture_run(f, batch, 1.0f, false);
        gs_adamw update = {.lr = lr,
                           .beta1 = 0.9f,
                           .beta2 = 0.99f,
                           .eps = 1e-8f,
                           .grad_scale = 1.0f,
                           .correction1 = 1.0 - pow(0.9, step),
                           .correction2 = 1.0 - pow(0.99, step),
                           .decoupled = true};
        gs_device_kernels(f->device)->adamw(gs_device_stream(f->device), f->values, m, v,
                                            f->gradient, &update, f->count);
        for (size_t i = 0; i < f->num_buffers; i++) {
            void *swap = f->buffers[i];
            f->buffers[i] = f->next_buffers[i];
            f->next_buffers[i] = swap;
        }
    }
    free(m);
    free(v);
    return loss;
}

#endif
