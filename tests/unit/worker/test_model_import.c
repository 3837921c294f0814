#include <stdio.h>

#include "tests/support/temp_dir.h"
#include "tests/unit/worker/model_fixture.h"

#include "worker/checkpoint/model_import.h"
#include "rpc/checkpoint/safetensors.h"

static const gs_gpt2_options tiny = {
    .layers = 2, .heads = 2, .channels = 8, .context = 6, .vocab = 11, .micro_batch = 1};

static char *dir;
static char path[512];

static int make_all(void **state) {
    fixture *f = malloc(sizeof *f);
    gs_device *device = open_device(1);
    gs_model model;
    if (gs_gpt2_create(&model, &tiny, device).code) return -1;
    fixture_init(f, device, model, 1);
    fixture_spread(f, 2, 0.1f);
    dir = gs_temp_dir_make();
    snprintf(path, sizeof path, "%s/m.safetensors", dir);
    *state = f;
    return 0;
}

static int remove_all(void **state) {
    gs_temp_dir_remove(dir);
    fixture_release(*state);
    free(*state);
    return 0;
}

// The fixture's parameters as a file: with a prefix before each name, as Conv1D, in another dtype.
typedef struct style {
    const char *prefix;
    bool transposed;
    gs_dtype dtype;
    const char *left_out, *reshaped, *extra;
} style;

static bool is_matrix_of_a_layer(const char *name) {
    return strstr(name, "c_attn.weight") || strstr(name, "c_proj.weight") ||
           strstr(name, "c_fc.weight");
}

static void *convert(const float *values, const gs_param_spec *spec, const style *as) {
    size_t count = gs_param_spec_count(spec);
    float *out = malloc(count * sizeof *out);
    memcpy(out, values, count * sizeof *out);
    if (as->transposed && is_matrix_of_a_layer(spec->name)) {
        size_t rows = (size_t)spec->shape[0], cols = (size_t)spec->shape[1];
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < cols; c++) out[c * rows + r] = values[r * cols + c];
    }
    if (as->dtype != GS_BF16) return out;
    uint16_t *narrow = malloc(count * sizeof *narrow);
    for (size_t i = 0; i < count; i++) narrow[i] = gs_fp32_to_bf16(out[i]);
    free(out);
    return narrow;
}

static void write_model(const fixture *f, const style *as) {
    gs_safetensors_entry entries[FIXTURE_MAX_PARAMS];
    static char names[FIXTURE_MAX_PARAMS][160];
    void *data[FIXTURE_MAX_PARAMS];
    size_t count = 0;
    for (size_t i = 0; i < f->num_params; i++) {
        const gs_param_spec *spec = &f->list[i].spec;
        if (as->left_out && strcmp(spec->name, as->left_out) == 0) continue;
        snprintf(names[count], sizeof names[count], "%s%s", as->prefix ? as->prefix : "",
                 spec->name);
        data[count] = convert(f->params[i], spec, as);
        gs_safetensors_entry *entry = &entries[count];
        *entry = (gs_safetensors_entry){.name = names[count],
                                        .num_dims = spec->num_dims,
                                        .dtype = as->dtype ? as->dtype : GS_FP32,
                                        .data = data[count]};
        memcpy(entry->shape, spec->shape, sizeof entry->shape);
        if (as->transposed && is_matrix_of_a_layer(spec->name)) {
            entry->shape[0] = spec->shape[1];
            entry->shape[1] = spec->shape[0];
        }
        if (as->reshaped && strcmp(spec->name, as->reshaped) == 0) entry->shape[0]--;
        count++;
    }
    size_t own = count;
    const float mask[4] = {1, 0, 1, 1};
    if (as->extra)
        entries[count++] = (gs_safetensors_entry){
            .name = as->extra, .dtype = GS_FP32, .num_dims = 2, .shape = {2, 2}, .data = mask};
    gs_status status = gs_safetensors_write(path, entries, count, NULL, 0, NULL, NULL);
    for (size_t i = 0; i < own; i++) free(data[i]);
    if (status.code) fail_msg("%s", status.message);
}

static gs_status put_tensor(void *ctx, size_t tensor, const void *data) {
    const fixture *f = ctx;
    bool is_param = tensor < f->num_params;
    size_t buffer = tensor - f->num_params, num;
    const gs_param_spec *spec = is_param ? &f->model.ops->params(f->model.state, &num)[tensor].spec
                                         : &f->model.ops->buffers(f->model.state, &num)[buffer];
    memcpy(is_param ? f->params[tensor] : f->buffers[buffer], data, gs_param_spec_bytes(spec));
    return gs_ok();
}

// Imports into zeroed memory and compares with what was written.
static void expect_equal_after_import(fixture *f, const style *as, double distance) {
    float *wanted = malloc(f->count * sizeof *wanted);
    write_model(f, as);
    memcpy(wanted, f->values, f->count * sizeof *wanted);
    memset(f->values, 0, f->count * sizeof *f->values);
    gs_status status = gs_model_import(&f->model, path, put_tensor, f);
    if (status.code) fail_msg("%s", status.message);
    for (size_t i = 0; i < f->count; i++)
        assert_true(fabs((double)f->values[i] - (double)wanted[i]) <=
                    distance * fabs((double)wanted[i]));
    memcpy(f->values, wanted, f->count * sizeof *wanted);
    free(wanted);
}

static void expect_refusal(fixture *f, const style *as, const char *text) {
    write_model(f, as);
    gs_status status = gs_model_import(&f->model, path, put_tensor, f);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    if (!strstr(status.message, text)) fail_msg("%s", status.message);
}

static void our_own_names_load_directly(void **state) {
    expect_equal_after_import(*state, &(style){0}, 0.0);
}

static void prefixes_of_wrappers_are_skipped(void **state) {
    expect_equal_after_import(*state, &(style){.prefix = "transformer."}, 0.0);
    expect_equal_after_import(*state, &(style){.prefix = "_orig_mod.transformer."}, 0.0);
    expect_equal_after_import(*state, &(style){.prefix = "module._orig_mod."}, 0.0);
}

static void conv1d_matrices_are_transposed_square_ones_too(void **state) {
    expect_equal_after_import(*state, &(style){.transposed = true}, 0.0);
    expect_equal_after_import(*state, &(style){.transposed = true, .prefix = "transformer."}, 0.0);
}

static void narrow_types_are_widened(void **state) {
    expect_equal_after_import(*state, &(style){.dtype = GS_BF16, .transposed = true}, 1.0 / 256);
}

static void masks_are_ignored(void **state) {
    expect_equal_after_import(*state, &(style){.extra = "h.0.attn.bias"}, 0.0);
    expect_equal_after_import(*state, &(style){.extra = "h.1.attn.masked_bias"}, 0.0);
    expect_equal_after_import(*state, &(style){.extra = "lm_head.weight"}, 0.0);
}

static void a_missing_tensor_is_named(void **state) {
    expect_refusal(*state, &(style){.left_out = "h.1.mlp.c_fc.bias"}, "h.1.mlp.c_fc.bias");
}

static void a_wrong_shape_is_told_with_the_right_one(void **state) {
    expect_refusal(*state, &(style){.reshaped = "wpe.weight"}, "shape [5,8], wanted [6,8]");
}

static void a_deeper_model_is_refused(void **state) {
    expect_refusal(*state, &(style){.extra = "h.2.ln_1.weight"}, "no such layer");
}

static gs_status drop_tensor(void *ctx, size_t tensor, const void *data) {
    (void)ctx, (void)tensor, (void)data;
    return gs_ok();
}

// All hidden layers alike: the shapes of the layers that both have do not tell the depth.
static void a_deeper_classifier_is_refused(void **state) {
    fixture *f = *state;
    const int64_t dims[] = {4, 4, 4};
    gs_mlp_options options = {.dims = dims, .num_dims = 3, .micro_batch = 2};
    gs_model model;
    assert_int_equal(gs_mlp_create(&model, &options, f->device).code, GS_OK);
    static const char *const names[] = {"fc1.weight", "fc1.bias",   "fc2.weight",
                                        "fc2.bias",   "fc3.weight", "fc3.bias"};
    float values[6][16] = {{0}};
    gs_safetensors_entry entries[6];
    for (int i = 0; i < 6; i++)
        entries[i] = (gs_safetensors_entry){.name = names[i],
                                            .dtype = GS_FP32,
                                            .num_dims = i % 2 ? 1 : 2,
                                            .shape = {4, i % 2 ? 0 : 4},
                                            .data = values[i]};
    assert_int_equal(gs_safetensors_write(path, entries, 4, NULL, 0, NULL, NULL).code, GS_OK);
    assert_int_equal(gs_model_import(&model, path, drop_tensor, NULL).code, GS_OK);
    assert_int_equal(gs_safetensors_write(path, entries, 6, NULL, 0, NULL, NULL).code, GS_OK);
    gs_status status = gs_model_import(&model, path, drop_tensor, NULL);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "\"fc3.weight\": the model has no such layer"));
    gs_model_destroy(&model);
}

static void a_wrong_type_is_refused(void **state) {
    fixture *f = *state;
    gs_safetensors_entry entry = {
        .name = "wte.weight", .dtype = GS_I32, .num_dims = 2, .shape = {11, 8}, .data = f->values};
    assert_int_equal(gs_safetensors_write(path, &entry, 1, NULL, 0, NULL, NULL).code, GS_OK);
    gs_status status = gs_model_import(&f->model, path, put_tensor, f);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "I32"));
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, make_all, remove_all)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(our_own_names_load_directly),
        CASE(prefixes_of_wrappers_are_skipped),
        CASE(conv1d_matrices_are_transposed_square_ones_too),
        CASE(narrow_types_are_widened),
        CASE(masks_are_ignored),
        CASE(a_missing_tensor_is_named),
        CASE(a_wrong_shape_is_told_with_the_right_one),
        CASE(a_deeper_model_is_refused),
        CASE(a_deeper_classifier_is_refused),
        CASE(a_wrong_type_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
