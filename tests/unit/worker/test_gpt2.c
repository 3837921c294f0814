#include <stdio.h>

#include "tests/unit/worker/model_fixture.h"

// Odd everywhere: no size divides a vector, heads of 5 channels.
static const gs_gpt2_options odd = {
    .layers = 2, .heads = 3, .channels = 15, .context = 9, .vocab = 37, .micro_batch = 4};

static int32_t tokens[512], targets[512];

static gs_batch batch_of(size_t rows, size_t positions, int64_t vocab) {
    gs_random_key key = {11, 1};
    for (size_t i = 0; i < rows * positions; i++) {
        tokens[i] = (int32_t)(gs_random_u64(key, 2 * i) % (uint64_t)vocab);
        targets[i] = (int32_t)(gs_random_u64(key, 2 * i + 1) % (uint64_t)vocab);
    }
    return (gs_batch){.rows = rows, .positions = positions, .tokens = tokens, .targets = targets};
}

static void make(fixture *f, const gs_gpt2_options *options, int num_threads) {
    gs_device *device = open_device(num_threads);
    gs_model model;
    gs_status status = gs_gpt2_create(&model, options, device);
    if (status.code) fail_msg("%s", status.message);
    fixture_init(f, device, model, 42);
}

static void parameters_are_named_and_ordered_as_documented(void **state) {
    (void)state;
    fixture f;
    make(&f, &odd, 1);
    const char *wanted[] = {"wte.weight",
                            "wpe.weight",
                            "h.0.ln_1.weight",
                            "h.0.ln_1.bias",
                            "h.0.attn.c_attn.weight",
                            "h.0.attn.c_attn.bias",
                            "h.0.attn.c_proj.weight",
                            "h.0.attn.c_proj.bias",
                            "h.0.ln_2.weight",
                            "h.0.ln_2.bias",
                            "h.0.mlp.c_fc.weight",
                            "h.0.mlp.c_fc.bias",
                            "h.0.mlp.c_proj.weight",
                            "h.0.mlp.c_proj.bias",
                            "h.1.ln_1.weight"};
    assert_int_equal(f.num_params, 2 + 12 * 2 + 2);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_string_equal(f.list[i].spec.name, wanted[i]);
    assert_string_equal(f.list[27].spec.name, "ln_f.bias");
    for (size_t i = 0; i < f.num_params; i++)
        assert_int_equal(f.list[i].decays, f.list[i].spec.num_dims == 2);
    int64_t L = 2, C = 15;
    assert_int_equal(f.count, 37 * C + 9 * C + L * (12 * C * C + 13 * C) + 2 * C);
    assert_true(f.model.ops->activation_bytes(f.model.state) > 0);
    fixture_release(&f);
}

static double deviation_of(const fixture *f, const char *name) {
    for (size_t p = 0; p < f->num_params; p++) {
        if (strcmp(f->list[p].spec.name, name) != 0) continue;
        const float *values = f->params[p];
        size_t count = gs_param_spec_count(&f->list[p].spec);
        double sum = 0.0;
        for (size_t i = 0; i < count; i++) sum += (double)values[i] * (double)values[i];
        return sqrt(sum / (double)count);
    }
    fail_msg("%s", name);
    return 0.0;
}

static void first_values_have_the_documented_spread(void **state) {
    (void)state;
    gs_gpt2_options options = {
        .layers = 2, .heads = 4, .channels = 64, .context = 32, .vocab = 256, .micro_batch = 1};
    fixture f;
    make(&f, &options, 1);
    assert_true(fabs(deviation_of(&f, "wte.weight") - 0.02) < 0.001);
    assert_true(fabs(deviation_of(&f, "h.1.mlp.c_fc.weight") - 0.02) < 0.001);
    assert_true(fabs(deviation_of(&f, "h.1.mlp.c_proj.weight") - 0.01) < 0.0005);
    assert_true(deviation_of(&f, "h.0.ln_1.weight") == 1.0);
    assert_true(deviation_of(&f, "h.0.mlp.c_fc.bias") == 0.0);
    fixture g;
    make(&g, &options, 2);
    assert_memory_equal(f.values, g.values, f.count * sizeof(float));
    // Nothing learned yet: every token is about equally likely.
    gs_batch batch = batch_of(1, 32, 256);
    assert_true(fabs(fixture_loss(&f, &batch) - log(256.0)) < 0.1);
    fixture_release(&f);
    fixture_release(&g);
}

static void gradients_match_finite_differences(void **state) {
    (void)state;
    const struct { size_t rows, positions; } shapes[] = {{2, 9}, {3, 5}, {1, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        fixture f;
        make(&f, &odd, 1);
        fixture_spread(&f, 3, 0.2f);
        gs_batch batch = batch_of(shapes[i].rows, shapes[i].positions, odd.vocab);
        check_gradients(&f, &batch, 2e-2, 2e-2);
        fixture_release(&f);
    }
}

static void each_gradient_becomes_ready_once_in_the_order_of_backward(void **state) {
    (void)state;
    fixture f;
    make(&f, &odd, 1);
    gs_batch batch = batch_of(2, 9, odd.vocab);
    fixture_run(&f, &batch, 1.0f, false);
    assert_int_equal(f.num_ready, f.num_params);
    size_t wanted[28], n = 0;
    wanted[n++] = 26;  // ln_f
    wanted[n++] = 27;
    const size_t in_layer[] = {10, 11, 8, 9, 6, 7, 4, 5, 2, 3, 0, 1};
    for (size_t layer = 2; layer-- > 0;)
        for (size_t i = 0; i < 12; i++) wanted[n++] = 2 + 12 * layer + in_layer[i];
    wanted[n++] = 1;  // wpe, and the tied embedding last
    wanted[n++] = 0;
    for (size_t i = 0; i < n; i++) assert_int_equal(f.ready[i], wanted[i]);
    fixture_release(&f);
}

static void every_parameter_is_said_before_its_first_reading(void **state) {
    (void)state;
    fixture f;
    make(&f, &odd, 1);
    gs_batch batch = batch_of(2, 9, odd.vocab);
    check_readings(&f, &batch);
    fixture_release(&f);
}

static void every_gradient_is_opened_before_it_is_written(void **state) {
    (void)state;
    fixture f;
    make(&f, &odd, 1);
    gs_batch batch = batch_of(2, 5, odd.vocab);
    check_opens(&f, &batch);
    for (size_t i = 0; i < f.num_params; i++)
        assert_int_equal(f.list[i].opens_early, i == 0);  // the tied embedding
    fixture_release(&f);
}

static void every_parameter_is_released_behind_its_last_reading(void **state) {
    (void)state;
    fixture f;
    make(&f, &odd, 1);
    gs_batch batch = batch_of(2, 9, odd.vocab);
    check_releases(&f, &batch);
    fixture_release(&f);
}

// Rows that a pass hands over, put where they belong; what was touched, and what was ready before rows came.
typedef struct row_catch {
    fixture *f;
    float *dense;  // (vocab, channels)
    size_t num_touched, ready_when_touched, ready_when_added, wrong;
} row_catch;

static void catch_touch(void *ctx, size_t param, const int32_t *rows, size_t num_rows) {
    row_catch *at = ctx;
    at->wrong += param != 0 || rows != tokens;
    at->num_touched += num_rows;
    at->ready_when_touched = at->f->num_ready;
}

static void catch_rows(void *ctx, size_t param, const int32_t *rows, const float *values,
                       size_t num_rows) {
    row_catch *at = ctx;
    at->wrong += param != 0 || num_rows != at->num_touched;
    at->ready_when_added = at->f->num_ready;
    gs_device_kernels(at->f->device)
        ->add_rows(gs_device_stream(at->f->device), at->dense, rows, values, num_rows, 15);
}

static void run_with_sink(fixture *f, row_catch *at, const gs_batch *batch) {
    gs_row_sink sink = {.touch = catch_touch, .add = catch_rows, .ctx = at};
    gs_model_pass pass = fixture_pass(f, batch);
    pass.grad_factor = 0.5f;
    pass.sparse = &sink;
    f->num_ready = 0;
    assert_int_equal(f->model.ops->forward(f->model.state, &pass).code, GS_OK);
    assert_int_equal(f->model.ops->backward(f->model.state, &pass).code, GS_OK);
}

static void embedding_rows_and_the_classifier_half_add_up_to_the_dense_gradient(void **state) {
    (void)state;
    fixture dense, parts;
    make(&dense, &odd, 1);
    make(&parts, &odd, 1);
    fixture_spread(&dense, 3, 0.1f);
    fixture_spread(&parts, 3, 0.1f);
    gs_batch batch = batch_of(3, 7, odd.vocab);
    fixture_run(&dense, &batch, 0.5f, false);
    row_catch at = {.f = &parts, .dense = calloc(37 * 15, sizeof(float))};
    run_with_sink(&parts, &at, &batch);
    assert_int_equal(at.wrong, 0);
    assert_int_equal(at.num_touched, 21);
    for (size_t i = 0; i < 37 * 15; i++) ((float *)parts.grads[0])[i] += at.dense[i];
    assert_same_gradients(&parts, &dense, 0, 1e-6);
    for (size_t p = 1; p < dense.num_params; p++)
        assert_memory_equal(parts.grads[p], dense.grads[p], gs_param_spec_bytes(&dense.list[p].spec));
    free(at.dense);
    fixture_release(&dense);
    fixture_release(&parts);
}

static void with_a_sink_the_tied_embedding_is_ready_first_and_its_rows_are_known_before(
    void **state) {
    (void)state;
    fixture f;
    make(&f, &odd, 1);
    gs_batch batch = batch_of(2, 9, odd.vocab);
    row_catch at = {.f = &f, .dense = calloc(37 * 15, sizeof(float))};
    run_with_sink(&f, &at, &batch);
    assert_int_equal(f.num_ready, f.num_params);
    assert_int_equal(f.ready[0], 0);
    assert_int_equal(f.ready[1], 26);
    assert_int_equal(f.ready[27], 1);
    assert_int_equal(at.ready_when_touched, 0);
    assert_int_equal(at.ready_when_added, f.num_params);
    free(at.dense);
    fixture_release(&f);
}

static void accumulated_micro_batches_equal_one_batch(void **state) {
    (void)state;
    fixture whole, parts;
    make(&whole, &odd, 1);
    make(&parts, &odd, 1);
    fixture_spread(&whole, 3, 0.1f);
    fixture_spread(&parts, 3, 0.1f);
    gs_batch batch = batch_of(4, 9, odd.vocab);
    double loss = fixture_run(&whole, &batch, 1.0f, false), sum = 0.0;
    for (size_t i = 0; i < 4; i++) {
        gs_batch part = batch;
        part.rows = 1;
        part.tokens += i * 9;
        part.targets += i * 9;
        sum += fixture_run(&parts, &part, 0.25f, i > 0);
    }
    assert_true(fabs(sum / 4 - loss) < 1e-6);
    assert_same_gradients(&parts, &whole, 1e-6, 1e-5);
    fixture_release(&whole);
    fixture_release(&parts);
}

// What an earlier pass left must not show in positions that this one does not have.
static void overwriting_clears_positions_beyond_a_short_pass(void **state) {
    (void)state;
    fixture f;
    make(&f, &odd, 1);
    memset(f.gradient, 0xff, f.count * sizeof(float));
    gs_batch batch = batch_of(2, 4, odd.vocab);
    fixture_run(&f, &batch, 1.0f, false);
    const float *dwpe = f.grads[1];
    for (size_t i = 4 * 15; i < 9 * 15; i++) assert_true(dwpe[i] == 0.0f);
    for (size_t i = 0; i < f.count; i++) assert_true(isfinite(f.gradient[i]));
    fixture_release(&f);
}

static void any_number_of_threads_gives_the_same_bits(void **state) {
    (void)state;
    gs_gpt2_options options = {
        .layers = 2, .heads = 4, .channels = 128, .context = 32, .vocab = 500, .micro_batch = 4};
    fixture one;
    make(&one, &options, 1);
    gs_batch batch = batch_of(4, 32, options.vocab);
    const double loss = fixture_run(&one, &batch, 1.0f, false);
    const int threads[] = {2, 3, 7};
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        fixture more;
        make(&more, &options, threads[i]);
        assert_true(fixture_run(&more, &batch, 1.0f, false) == loss);
        assert_memory_equal(one.gradient, more.gradient, one.count * sizeof(float));
        fixture_release(&more);
    }
    fixture_release(&one);
}

static void one_batch_is_learned_by_heart(void **state) {
    (void)state;
    gs_gpt2_options options = {
        .layers = 2, .heads = 2, .channels = 32, .context = 16, .vocab = 50, .micro_batch = 4};
    fixture f;
    make(&f, &options, 1);
    gs_batch batch = batch_of(4, 16, options.vocab);
    double loss = overfit(&f, &batch, 150, 1e-2f);
    if (!(loss < 0.1)) fail_msg("loss %g", loss);
    fixture_release(&f);
}

// Prediction reads the last position of each row: the loss of that position must be -log softmax of
// it.
static void prediction_is_the_last_position_of_forward(void **state) {
    (void)state;
    fixture f;
    make(&f, &odd, 1);
    fixture_spread(&f, 3, 0.2f);
    gs_batch batch = batch_of(1, 1, odd.vocab);
    double loss = fixture_loss(&f, &batch);
    gs_model_pass pass = fixture_pass(&f, &batch);
    pass.training = false;
    const float *logits;
    size_t classes;
    assert_int_equal(f.model.ops->predict(f.model.state, &pass, &logits, &classes).code, GS_OK);
    assert_int_equal(classes, 37);
    double sum = 0.0;
    for (size_t i = 0; i < classes; i++) sum += exp((double)logits[i]);
    assert_true(fabs(log(sum) - (double)logits[targets[0]] - loss) < 1e-5);

    // Rows do not see one another, and a later row lies where it should.
    float alone[37];
    gs_batch three = batch_of(3, 7, odd.vocab), second = three;
    second.rows = 1;
    second.tokens += 7;
    pass.batch = &second;
    assert_int_equal(f.model.ops->predict(f.model.state, &pass, &logits, &classes).code, GS_OK);
    memcpy(alone, logits, sizeof alone);
    pass.batch = &three;
    assert_int_equal(f.model.ops->predict(f.model.state, &pass, &logits, &classes).code, GS_OK);
    assert_true(relative_distance(alone, logits + 37, 37) < 1e-5);
    fixture_release(&f);
}

static void positions_do_not_see_later_tokens(void **state) {
    (void)state;
    fixture f;
    make(&f, &odd, 1);
    fixture_spread(&f, 3, 0.2f);
    gs_batch batch = batch_of(1, 5, odd.vocab);
    gs_model_pass pass = fixture_pass(&f, &batch);
    const float *logits;
    size_t classes;
    float before[37];
    assert_int_equal(f.model.ops->predict(f.model.state, &pass, &logits, &classes).code, GS_OK);
    memcpy(before, logits, sizeof before);
    // The loss of five positions is the mean of five losses of growing prefixes.
    pass.training = false;
    assert_int_equal(f.model.ops->forward(f.model.state, &pass).code, GS_OK);
    double whole = pass.loss, sum = 0.0;
    for (size_t t = 1; t <= 5; t++) {
        batch.positions = t;
        assert_int_equal(f.model.ops->predict(f.model.state, &pass, &logits, &classes).code, GS_OK);
        double total = 0.0;
        for (size_t i = 0; i < classes; i++) total += exp((double)logits[i]);
        sum += log(total) - (double)logits[targets[t - 1]];
    }
    assert_true(fabs(sum / 5 - whole) < 1e-5);
    fixture_release(&f);
}

static void wrong_batches_are_refused(void **state) {
    (void)state;
    fixture f;
    make(&f, &odd, 1);
    gs_batch batch = batch_of(5, 9, odd.vocab);
    gs_model_pass pass = fixture_pass(&f, &batch);
    assert_int_equal(f.model.ops->forward(f.model.state, &pass).code, GS_INVALID_ARGUMENT);
    batch = batch_of(1, 10, odd.vocab);
    assert_int_equal(f.model.ops->forward(f.model.state, &pass).code, GS_INVALID_ARGUMENT);
    batch = batch_of(1, 9, odd.vocab);
    batch.tokens = NULL;
    assert_int_equal(f.model.ops->forward(f.model.state, &pass).code, GS_INVALID_ARGUMENT);
    batch = batch_of(1, 9, odd.vocab);
    targets[3] = 37;
    assert_int_equal(f.model.ops->forward(f.model.state, &pass).code, GS_INVALID_ARGUMENT);
    assert_int_equal(f.model.ops->backward(f.model.state, &pass).code, GS_FAILED_PRECONDITION);
    batch = batch_of(1, 9, odd.vocab);
    assert_int_equal(f.model.ops->forward(f.model.state, &pass).code, GS_OK);
    assert_int_equal(f.model.ops->backward(f.model.state, &pass).code, GS_OK);
    fixture_release(&f);
}

static void expect_refused_token(gs_status status, const char *text) {
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    if (!strstr(status.message, text)) fail_msg("'%s' is not in '%s'", text, status.message);
}

// Each road into the embedding, and the model is as good as before afterwards.
static void a_token_outside_the_vocabulary_is_named_and_never_read(void **state) {
    (void)state;
    fixture f;
    make(&f, &odd, 2);
    const int32_t bad[] = {37, 1 << 30, INT32_MAX, -1, INT32_MIN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gs_batch batch = batch_of(2, 9, odd.vocab);
        gs_model_pass pass = fixture_pass(&f, &batch);
        const double loss = fixture_loss(&f, &batch);
        const float *logits;
        size_t classes;
        char text[64];
        snprintf(text, sizeof text, "row 12: token %d ", bad[i]);
        tokens[12] = bad[i];
        expect_refused_token(f.model.ops->forward(f.model.state, &pass), text);
        assert_int_equal(f.model.ops->backward(f.model.state, &pass).code, GS_FAILED_PRECONDITION);
        pass.training = false;
        expect_refused_token(f.model.ops->forward(f.model.state, &pass), text);
        expect_refused_token(f.model.ops->predict(f.model.state, &pass, &logits, &classes), text);
        batch = batch_of(2, 9, odd.vocab);
        assert_true(fixture_loss(&f, &batch) == loss);
    }
    fixture_release(&f);
}

static void impossible_sizes_are_refused(void **state) {
    (void)state;
    gs_device *device = open_device(1);
    const gs_gpt2_options bad[] = {
        {.layers = 0, .heads = 1, .channels = 8, .context = 4, .vocab = 8, .micro_batch = 1},
        {.layers = 1, .heads = 3, .channels = 8, .context = 4, .vocab = 8, .micro_batch = 1},
        {.layers = 1, .heads = 1, .channels = 8, .context = 4, .vocab = 8, .micro_batch = 0},
        {.layers = 1,
         .heads = 1,
         .channels = 8,
         .context = 4,
         .vocab = 8,
         .micro_batch = 1,
         .positions = 5},
        {.layers = 1,
         .heads = 1,
         .channels = INT32_MAX / 3,
         .context = 1,
         .vocab = 8,
         .micro_batch = 1},
        {.layers = 1,
         .heads = 1,
         .channels = 8,
         .context = 1,
         .vocab = INT32_MAX,
         .micro_batch = 1},
        {.layers = 256,
         .heads = 1,
         .channels = INT64_C(1) << 31,
         .context = INT64_C(1) << 31,
         .vocab = INT64_C(1) << 31,
         .micro_batch = INT64_C(1) << 31},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gs_model model;
        assert_int_equal(gs_gpt2_create(&model, &bad[i], device).code, GS_INVALID_ARGUMENT);
    }
    gs_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_named_and_ordered_as_documented),
        cmocka_unit_test(first_values_have_the_documented_spread),
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(each_gradient_becomes_ready_once_in_the_order_of_backward),
        cmocka_unit_test(every_parameter_is_said_before_its_first_reading),
        cmocka_unit_test(every_gradient_is_opened_before_it_is_written),
        cmocka_unit_test(every_parameter_is_released_behind_its_last_reading),
        cmocka_unit_test(embedding_rows_and_the_classifier_half_add_up_to_the_dense_gradient),
        cmocka_unit_test(
            with_a_sink_the_tied_embedding_is_ready_first_and_its_rows_are_known_before),
        cmocka_unit_test(accumulated_micro_batches_equal_one_batch),
        cmocka_unit_test(overwriting_clears_positions_beyond_a_short_pass),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(one_batch_is_learned_by_heart),
        cmocka_unit_test(prediction_is_the_last_position_of_forward),
        cmocka_unit_test(positions_do_not_see_later_tokens),
        cmocka_unit_test(wrong_batches_are_refused),
        cmocka_unit_test(a_token_outside_the_vocabulary_is_named_and_never_read),
        cmocka_unit_test(impossible_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
