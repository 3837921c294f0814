// GPT-2 in 16 bits on the CPU's kernels of those types, against the same model in fp32 on the same (rounded)
// parameters: differences are roundings of activations.
#include <stdio.h>

#include "core/dtype.h"
#include "tests/support/near.h"
#include "tests/unit/worker/model_fixture.h"

static const gs_gpt2_options odd = {
    .layers = 2, .heads = 3, .channels = 15, .context = 9, .vocab = 37, .micro_batch = 4};
static const gs_gpt2_options wide = {
    .layers = 3, .heads = 4, .channels = 64, .context = 32, .vocab = 256, .micro_batch = 16};

static const gs_dtype types[] = {GS_BF16, GS_FP16};
#define NUM_TYPES (sizeof types / sizeof *types)

static int32_t tokens[512], targets[512];

static gs_batch batch_of(size_t rows, size_t positions, int64_t vocab) {
    gs_random_key key = {11, 1};
    for (size_t i = 0; i < rows * positions; i++) {
        tokens[i] = (int32_t)(gs_random_u64(key, 2 * i) % (uint64_t)vocab);
        targets[i] = (int32_t)(gs_random_u64(key, 2 * i + 1) % (uint64_t)vocab);
    }
    return (gs_batch){.rows = rows, .positions = positions, .tokens = tokens, .targets = targets};
}

// A model of a type and one of fp32 with the same values, which 16 bits can hold.
typedef struct pair {
    fixture half, full;
    gs_dtype dtype;
    uint16_t *values;  // owned; what half's passes get
    void *params[FIXTURE_MAX_PARAMS];
} pair;

static uint16_t narrow(gs_dtype dtype, float value) {
    return dtype == GS_BF16 ? gs_fp32_to_bf16(value) : gs_fp32_to_fp16(value);
}

static float widen(gs_dtype dtype, uint16_t value) {
    return dtype == GS_BF16 ? gs_bf16_to_fp32(value) : gs_fp16_to_fp32(value);
}

static void make_one(fixture *f, gs_gpt2_options options, gs_dtype dtype) {
    gs_device *device = open_device(1);
    gs_model model;
    options.dtype = dtype;
    gs_status status = gs_gpt2_create(&model, &options, device);
    if (status.code) fail_msg("%s", status.message);
    assert_int_equal(model.dtype, dtype);
    fixture_init(f, device, model, 42);
}

static void make(pair *p, const gs_gpt2_options *options, gs_dtype dtype) {
    make_one(&p->half, *options, dtype);
    make_one(&p->full, *options, GS_FP32);
    p->dtype = dtype;
    fixture_spread(&p->full, 3, 0.1f);
    p->values = calloc(p->full.count, sizeof *p->values);
    for (size_t i = 0; i < p->full.count; i++) {
        p->values[i] = narrow(dtype, p->full.values[i]);
        p->full.values[i] = widen(dtype, p->values[i]);
    }
    for (size_t i = 0; i < p->full.num_params; i++)
        p->params[i] = p->values + ((float *)p->full.grads[i] - p->full.gradient);
}

static void release(pair *p) {
    fixture_release(&p->half);
    fixture_release(&p->full);
    free(p->values);
}

static gs_model_pass half_pass(pair *p, const gs_batch *batch) {
    gs_model_pass pass = fixture_pass(&p->half, batch);
    pass.params = p->params;
    return pass;
}

static double run_half(pair *p, gs_model_pass *pass) {
    const gs_model *model = &p->half.model;
    p->half.num_ready = 0;
    gs_status status = model->ops->forward(model->state, pass);
    if (!status.code) status = model->ops->backward(model->state, pass);
    if (status.code) fail_msg("%s", status.message);
    return pass->loss;
}

// bf16 keeps 8 digits, fp16 11; a gradient passes through some ten roundings.
static double bound_of(gs_dtype dtype) {
    return dtype == GS_BF16 ? 3e-2 : 4e-3;
}

static void assert_gradients_near(const pair *p, double bound) {
    for (size_t i = 0; i < p->full.num_params; i++) {
        const gs_param_spec *spec = &p->full.list[i].spec;
        double distance =
            norm_distance(p->half.grads[i], p->full.grads[i], gs_param_spec_count(spec));
        if (!(distance <= bound))
            fail_msg("%s, %s: the gradient is off by %g of its norm", gs_dtype_name(p->dtype),
                     spec->name, distance);
    }
}

static void loss_and_gradients_are_those_of_fp32_to_the_digits_of_the_type(void **state) {
    (void)state;
    const struct { const gs_gpt2_options *options; size_t rows, positions; } cases[] = {
        {&odd, 2, 9}, {&odd, 3, 5}, {&wide, 16, 32}};
    for (size_t t = 0; t < NUM_TYPES; t++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            pair p;
            make(&p, cases[i].options, types[t]);
            gs_batch batch = batch_of(cases[i].rows, cases[i].positions, cases[i].options->vocab);
            gs_model_pass pass = half_pass(&p, &batch);
            pass.grad_factor = 0.5f;
            const double wanted = fixture_run(&p.full, &batch, 0.5f, false);
            const double loss = run_half(&p, &pass);
            assert_true(fabs(loss - wanted) < bound_of(types[t]) * 0.1 * wanted);
            assert_gradients_near(&p, bound_of(types[t]));
            release(&p);
        }
}

static void gradients_become_ready_in_the_order_of_fp32(void **state) {
    (void)state;
    pair p;
    make(&p, &odd, GS_BF16);
    gs_batch batch = batch_of(2, 9, odd.vocab);
    fixture_run(&p.full, &batch, 1.0f, false);
    gs_model_pass pass = half_pass(&p, &batch);
    run_half(&p, &pass);
    assert_int_equal(p.half.num_ready, p.full.num_ready);
    assert_memory_equal(p.half.ready, p.full.ready, p.full.num_ready * sizeof *p.full.ready);
    release(&p);
}

static void accumulated_micro_batches_equal_one_batch(void **state) {
    (void)state;
    pair p;
    make(&p, &odd, GS_FP16);
    gs_batch batch = batch_of(4, 9, odd.vocab);
    fixture_run(&p.full, &batch, 1.0f, false);
    memset(p.half.gradient, 0xff, p.half.count * sizeof(float));
    for (size_t i = 0; i < 4; i++) {
        gs_batch part = batch;
        part.rows = 1;
        part.tokens += i * 9;
        part.targets += i * 9;
        gs_model_pass pass = half_pass(&p, &part);
        pass.grad_factor = 0.25f;
        pass.accumulate = i > 0;
        run_half(&p, &pass);
    }
    assert_gradients_near(&p, bound_of(GS_FP16));
    release(&p);
}

static void what_an_earlier_pass_left_does_not_show(void **state) {
    (void)state;
    pair p;
    make(&p, &odd, GS_BF16);
    gs_batch batch = batch_of(2, 4, odd.vocab);
    memset(p.half.gradient, 0xff, p.half.count * sizeof(float));
    gs_model_pass pass = half_pass(&p, &batch);
    run_half(&p, &pass);
    fixture_run(&p.full, &batch, 1.0f, false);
    assert_gradients_near(&p, bound_of(GS_BF16));
    release(&p);
}

typedef struct row_catch {
    pair *p;
    float *dense;  // (vocab, channels)
} row_catch;

static void ignore_touch(void *ctx, size_t param, const int32_t *rows, size_t num_rows) {
    (void)ctx;
    (void)param;
    (void)rows;
    (void)num_rows;
}

static void catch_rows(void *ctx, size_t param, const int32_t *rows, const float *values,
                       size_t num_rows) {
    row_catch *at = ctx;
    assert_int_equal(param, 0);
    const gs_device *device = at->p->half.device;
    gs_device_kernels(device)->add_rows(gs_device_stream(at->p->half.device), at->dense, rows,
                                        values, num_rows, (size_t)odd.channels);
}

static void rows_for_the_sink_come_in_fp32_and_complete_the_classifier_half(void **state) {
    (void)state;
    for (size_t t = 0; t < NUM_TYPES; t++) {
        pair p;
        make(&p, &odd, types[t]);
        gs_batch batch = batch_of(3, 7, odd.vocab);
        row_catch at = {.p = &p, .dense = calloc(37 * 15, sizeof(float))};
        gs_row_sink sink = {.touch = ignore_touch, .add = catch_rows, .ctx = &at};
        gs_model_pass pass = half_pass(&p, &batch);
        pass.sparse = &sink;
        run_half(&p, &pass);
        for (size_t i = 0; i < 37 * 15; i++) ((float *)p.half.grads[0])[i] += at.dense[i];
        fixture_run(&p.full, &batch, 1.0f, false);
        assert_gradients_near(&p, bound_of(types[t]));
        free(at.dense);
        release(&p);
    }
}

static void layers_are_left_out_as_in_fp32(void **state) {
    (void)state;
    gs_gpt2_options deep = odd;
    deep.layers = 5;
    deep.layer_drop = 0.5;
    deep.seed = 7;
    pair p;
    make(&p, &deep, GS_FP16);
    gs_batch batch = batch_of(2, 9, deep.vocab);
    for (int64_t step = 0; step < 4; step++) {
        gs_model_pass pass = half_pass(&p, &batch), full = fixture_pass(&p.full, &batch);
        pass.step = full.step = step;
        run_half(&p, &pass);
        const gs_model *model = &p.full.model;
        assert_int_equal(model->ops->forward(model->state, &full).code, GS_OK);
        assert_int_equal(model->ops->backward(model->state, &full).code, GS_OK);
        assert_gradients_near(&p, bound_of(GS_FP16));
    }
    assert_false(p.half.model.ops->repeats(p.half.model.state, NULL));
    release(&p);
}

static void predictions_are_those_of_fp32_to_the_digits_of_the_type(void **state) {
    (void)state;
    for (size_t t = 0; t < NUM_TYPES; t++) {
        pair p;
        make(&p, &odd, types[t]);
        gs_batch batch = batch_of(3, 7, odd.vocab);
        gs_model_pass pass = half_pass(&p, &batch), full = fixture_pass(&p.full, &batch);
        const float *got, *wanted;
        size_t classes;
        const gs_model *half = &p.half.model, *model = &p.full.model;
        assert_int_equal(half->ops->predict(half->state, &pass, &got, &classes).code, GS_OK);
        assert_int_equal(classes, 37);
        assert_int_equal(model->ops->predict(model->state, &full, &wanted, &classes).code, GS_OK);
        assert_true(norm_distance(got, wanted, 3 * 37) < bound_of(types[t]));
        release(&p);
    }
}

static void a_loss_sum_gets_the_loss_of_each_pass_added(void **state) {
    (void)state;
    const gs_dtype all[] = {GS_FP32, GS_BF16, GS_FP16};
    for (size_t t = 0; t < sizeof all / sizeof *all; t++) {
        pair p;
        make(&p, &odd, all[t] == GS_FP32 ? GS_BF16 : all[t]);
        gs_batch batch = batch_of(3, 7, odd.vocab);
        fixture *f = all[t] == GS_FP32 ? &p.full : &p.half;
        gs_model_pass pass = all[t] == GS_FP32 ? fixture_pass(f, &batch) : half_pass(&p, &batch);
        assert_int_equal(f->model.ops->forward(f->model.state, &pass).code, GS_OK);
        const double loss = pass.loss;
        double sum = 0.5;
        pass.loss_sum = &sum;
        for (int i = 0; i < 2; i++)
            assert_int_equal(f->model.ops->forward(f->model.state, &pass).code, GS_OK);
        assert_true(sum == 0.5 + loss + loss);
        assert_true(pass.loss == 0.0);
        assert_int_equal(f->model.ops->backward(f->model.state, &pass).code, GS_OK);
        assert_true(f->model.ops->repeats(f->model.state, &pass));
        release(&p);
    }
}

static void a_type_without_kernels_is_refused(void **state) {
    (void)state;
    gs_device *device = open_device(1);
    gs_gpt2_options options = odd;
    options.dtype = GS_FP64;
    gs_model model;
    assert_int_equal(gs_gpt2_create(&model, &options, device).code, GS_INVALID_ARGUMENT);
    gs_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradients_are_those_of_fp32_to_the_digits_of_the_type),
        cmocka_unit_test(gradients_become_ready_in_the_order_of_fp32),
        cmocka_unit_test(accumulated_micro_batches_equal_one_batch),
        cmocka_unit_test(what_an_earlier_pass_left_does_not_show),
        cmocka_unit_test(rows_for_the_sink_come_in_fp32_and_complete_the_classifier_half),
        cmocka_unit_test(layers_are_left_out_as_in_fp32),
        cmocka_unit_test(predictions_are_those_of_fp32_to_the_digits_of_the_type),
        cmocka_unit_test(a_loss_sum_gets_the_loss_of_each_pass_added),
        cmocka_unit_test(a_type_without_kernels_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
