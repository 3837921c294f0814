// What a specification foretells of a model's parameters is what the model registers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rpc/schema/model_params.h"
#include "tests/unit/worker/model_fixture.h"
#include "worker/state/trainer_state.h"

static void expect_same(const gs_job_spec *spec) {
    gs_device *device = open_device(1);
    gs_model model;
    gs_status status = gs_model_create(&model, spec, 1, device);
    if (status.code) fail_msg("%s", status.message);
    size_t num_made = 0, num_foretold = 0;
    const gs_model_param *made = model.ops->params(model.state, &num_made);
    gs_param_spec *specs = calloc(num_made, sizeof *specs), *foretold = NULL;
    for (size_t i = 0; i < num_made; i++) specs[i] = made[i].spec;
    status = gs_model_params_of_spec(&foretold, &num_foretold, spec);
    if (!status.code) status = gs_param_specs_compare(foretold, num_foretold, specs, num_made);
    if (status.code) fail_msg("%s", status.message);
    assert_int_equal(num_foretold, num_made);
    for (size_t i = 0; i < num_made; i++) {
        assert_string_equal(foretold[i].name, specs[i].name);
        assert_int_equal(foretold[i].dtype, specs[i].dtype);
        assert_int_equal(foretold[i].num_dims, specs[i].num_dims);
        for (int k = 0; k < specs[i].num_dims; k++)
            assert_int_equal(foretold[i].shape[k], specs[i].shape[k]);
    }
    free(foretold);
    free(specs);
    gs_model_destroy(&model);
    gs_device_close(device);
}

static void gpt2_of_any_size_is_foretold(void **state) {
    (void)state;
    static const struct {
        int64_t layers, heads, channels, context, vocab;
    } sizes[] = {{1, 1, 1, 1, 1}, {1, 2, 8, 4, 11}, {2, 4, 32, 16, 256}, {12, 2, 16, 8, 50}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        gs_job_spec *spec = calloc(1, sizeof *spec);
        spec->model.kind = GS_MODEL_GPT2;
        spec->model.gpt2.layers = sizes[i].layers;
        spec->model.gpt2.heads = sizes[i].heads;
        spec->model.gpt2.channels = sizes[i].channels;
        spec->model.gpt2.context = sizes[i].context;
        spec->model.gpt2.vocab = sizes[i].vocab;
        expect_same(spec);
        free(spec);
    }
}

static void mlp_is_foretold_with_and_without_batch_norm(void **state) {
    (void)state;
    static const struct {
        int num_dims;
        int64_t dims[GS_SPEC_MAX_DIMS];
    } shapes[] = {{2, {3, 2}}, {3, {784, 16, 10}}, {5, {7, 6, 5, 4, 3}},
                  {GS_SPEC_MAX_DIMS, {2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2, 1}}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int norm = GS_BATCH_NORM_LOCAL; norm <= GS_BATCH_NORM_NONE; norm++) {
            gs_job_spec *spec = calloc(1, sizeof *spec);
            spec->model.kind = GS_MODEL_MLP;
            spec->model.mlp.num_dims = shapes[i].num_dims;
            spec->model.mlp.batch_norm = norm;
            memcpy(spec->model.mlp.dims, shapes[i].dims, sizeof shapes[i].dims);
            expect_same(spec);
            free(spec);
        }
}

// A plan is made of the dtypes that a trainer will say, before there is a trainer.
static void precision_is_the_dtype_on_both_sides(void **state) {
    (void)state;
    static const gs_dtype dtypes[] = {GS_FP32, GS_BF16, GS_FP16};
    for (int precision = GS_PRECISION_FP32; precision <= GS_PRECISION_FP16; precision++) {
        gs_job_spec *spec = calloc(1, sizeof *spec);
        spec->model.kind = GS_MODEL_MLP;
        spec->model.mlp.num_dims = 3;
        memcpy(spec->model.mlp.dims, (int64_t[]){5, 4, 3}, 3 * sizeof(int64_t));
        spec->model.precision = precision;
        spec->data.micro_batch = spec->data.global_batch = spec->logical_shards = 2;
        spec->optimizer.loss_scale.init = 8;
        spec->optimizer.loss_scale.growth_factor = 2;
        spec->optimizer.loss_scale.backoff_factor = 0.5;
        spec->optimizer.loss_scale.growth_interval = 1;
        gs_device *device = open_device(1);
        gs_trainer_state trainer;
        gs_status status = gs_trainer_state_init(&trainer, spec, device);
        if (status.code) fail_msg("%s", status.message);
        gs_param_spec *foretold;
        size_t num_foretold;
        status = gs_model_params_of_spec(&foretold, &num_foretold, spec);
        if (status.code) fail_msg("%s", status.message);
        assert_true(gs_digest_equal(gs_param_specs_digest(foretold, num_foretold),
                                    gs_param_specs_digest(trainer.param_specs, trainer.num_params)));
        assert_int_equal(foretold[0].dtype, dtypes[precision]);
        free(foretold);
        gs_trainer_state_release(&trainer);
        gs_device_close(device);
        free(spec);
    }
}

// The token embedding is the classifier, too: registered, reduced and planned once.
static void shared_parameters_are_listed_once(void **state) {
    (void)state;
    gs_job_spec *spec = calloc(1, sizeof *spec);
    gs_param_spec *params = NULL;
    size_t num_params = 0, of_vocab = 0;
    spec->model.kind = GS_MODEL_GPT2;
    spec->model.gpt2.layers = 2;
    spec->model.gpt2.heads = 2;
    spec->model.gpt2.channels = 8;
    spec->model.gpt2.context = 4;
    spec->model.gpt2.vocab = 31;
    assert_int_equal(gs_model_params_of_spec(&params, &num_params, spec).code, GS_OK);
    for (size_t i = 0; i < num_params; i++) of_vocab += params[i].shape[0] == 31;
    assert_int_equal(of_vocab, 1);
    free(params);
    free(spec);
}

static void what_is_no_model_has_no_list(void **state) {
    (void)state;
    gs_job_spec *spec = calloc(1, sizeof *spec);
    gs_param_spec *params = NULL;
    size_t num_params = 0;
    spec->model.kind = GS_MODEL_MLP + 1;
    assert_int_equal(gs_model_params_of_spec(&params, &num_params, spec).code, GS_INVALID_ARGUMENT);
    spec->model.kind = GS_MODEL_GPT2;
    assert_int_equal(gs_model_params_of_spec(&params, &num_params, spec).code, GS_INVALID_ARGUMENT);
    spec->model.kind = GS_MODEL_MLP;
    assert_int_equal(gs_model_params_of_spec(&params, &num_params, spec).code, GS_INVALID_ARGUMENT);
    assert_null(params);
    free(spec);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_of_any_size_is_foretold),
        cmocka_unit_test(mlp_is_foretold_with_and_without_batch_norm),
        cmocka_unit_test(precision_is_the_dtype_on_both_sides),
        cmocka_unit_test(shared_parameters_are_listed_once),
        cmocka_unit_test(what_is_no_model_has_no_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
