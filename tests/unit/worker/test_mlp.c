#include "tests/unit/worker/model_fixture.h"

static const int64_t dims[] = {11, 13, 7, 5};
static float features[16 * 11];
static int32_t targets[16];

static gs_batch batch_of(size_t rows) {
    gs_random_fill_normal(features, rows * 11, (gs_random_key){5, 1}, 0, 0.0f, 1.0f);
    for (size_t i = 0; i < rows; i++)
        targets[i] = (int32_t)(gs_random_u64((gs_random_key){5, 2}, i) % 5);
    return (gs_batch){
        .rows = rows, .positions = 1, .row_features = 11, .features = features, .targets = targets};
}

static void make(fixture *f, bool batch_norm, bool hidden_bias) {
    gs_device *device = open_device(1);
    gs_mlp_options options = {.dims = dims,
                              .num_dims = 4,
                              .batch_norm = batch_norm,
                              .hidden_bias = hidden_bias,
                              .micro_batch = 16};
    gs_model model;
    gs_status status = gs_mlp_create(&model, &options, device);
    if (status.code) fail_msg("%s", status.message);
    fixture_init(f, device, model, 42);
}

static void expect_names(const fixture *f, const char *const *names, size_t count) {
    assert_int_equal(f->num_params, count);
    for (size_t i = 0; i < count; i++) assert_string_equal(f->list[i].spec.name, names[i]);
}

static void names_are_those_of_the_vectors(void **state) {
    (void)state;
    fixture f;
    make(&f, true, false);
    const char *normed[] = {"fc1.weight", "bn1.weight", "bn1.bias",   "fc2.weight",
                            "bn2.weight", "bn2.bias",   "fc3.weight", "fc3.bias"};
    expect_names(&f, normed, 8);
    assert_int_equal(f.num_buffers, 6);
    size_t count;
    const gs_param_spec *buffers = f.model.ops->buffers(f.model.state, &count);
    assert_string_equal(buffers[0].name, "bn1.running_mean");
    assert_string_equal(buffers[4].name, "bn2.running_var");
    assert_string_equal(buffers[5].name, "bn2.num_batches_tracked");
    assert_int_equal(buffers[5].dtype, GS_I64);
    assert_int_equal(buffers[5].num_dims, 0);
    fixture_release(&f);

    make(&f, false, false);
    const char *plain[] = {"fc1.weight", "fc1.bias",   "fc2.weight",
                           "fc2.bias",   "fc3.weight", "fc3.bias"};
    expect_names(&f, plain, 6);
    assert_int_equal(f.num_buffers, 0);
    fixture_release(&f);
}

static void first_values_stay_within_their_bound(void **state) {
    (void)state;
    fixture f;
    make(&f, true, false);
    const float *weight = f.params[0];
    float largest = 0.0f;
    for (int i = 0; i < 11 * 13; i++) largest = fmaxf(largest, fabsf(weight[i]));
    assert_true(largest <= 1.0f / sqrtf(11.0f));
    assert_true(largest > 0.9f / sqrtf(11.0f));
    assert_true(((const float *)f.params[1])[3] == 1.0f);
    assert_true(((const float *)f.params[2])[3] == 0.0f);
    assert_true(((const float *)f.buffers[1])[3] == 1.0f);
    fixture_release(&f);
}

static void gradients_match_finite_differences(void **state) {
    (void)state;
    const bool kinds[][2] = {{true, false}, {true, true}, {false, false}};
    for (int k = 0; k < 3; k++) {
        fixture f;
        make(&f, kinds[k][0], kinds[k][1]);
        fixture_spread(&f, 3, 0.1f);
        gs_batch batch = batch_of(9);
        // A bias before a norm has no effect at all: its gradient is rounding noise around zero.
        check_gradients(&f, &batch, 1e-3, 3e-2);
        fixture_release(&f);
    }
}

static void every_parameter_is_said_before_its_first_reading(void **state) {
    (void)state;
    fixture f;
    make(&f, true, false);
    gs_batch batch = batch_of(8);
    check_readings(&f, &batch);
    fixture_release(&f);
}

static void every_parameter_is_released_behind_its_last_reading(void **state) {
    (void)state;
    fixture f;
    make(&f, true, false);
    gs_batch batch = batch_of(8);
    check_releases(&f, &batch);
    fixture_release(&f);
}

static void every_gradient_is_opened_before_it_is_written(void **state) {
    (void)state;
    fixture f;
    make(&f, true, false);
    gs_batch batch = batch_of(8);
    check_opens(&f, &batch);
    fixture_release(&f);
}

static void gradients_become_ready_from_the_last_layer_on(void **state) {
    (void)state;
    fixture f;
    make(&f, true, false);
    gs_batch batch = batch_of(8);
    fixture_run(&f, &batch, 1.0f, false);
    const size_t wanted[] = {6, 7, 4, 5, 3, 1, 2, 0};
    assert_int_equal(f.num_ready, 8);
    for (int i = 0; i < 8; i++) assert_int_equal(f.ready[i], wanted[i]);
    fixture_release(&f);
}

static void accumulated_micro_batches_equal_one_batch(void **state) {
    (void)state;
    fixture whole, parts;
    make(&whole, false, false);
    make(&parts, false, false);
    gs_batch batch = batch_of(16);
    double loss = fixture_run(&whole, &batch, 1.0f, false), sum = 0.0;
    memset(parts.gradient, 0xff, parts.count * sizeof(float));  // NaN: to be overwritten
    for (size_t i = 0; i < 4; i++) {
        gs_batch part = batch;
        part.rows = 4;
        part.features += i * 4 * 11;
        part.targets += i * 4;
        sum += fixture_run(&parts, &part, 0.25f, i > 0);
    }
    assert_true(fabs(sum / 4 - loss) < 1e-6);
    assert_same_gradients(&parts, &whole, 1e-6, 1e-5);
    fixture_release(&whole);
    fixture_release(&parts);
}

// With batch norm a batch's statistics are its own, so the same batch comes twice.
static void accumulation_adds_to_every_gradient(void **state) {
    (void)state;
    fixture once, twice;
    make(&once, true, true);
    make(&twice, true, true);
    gs_batch batch = batch_of(16);
    fixture_run(&once, &batch, 1.0f, false);
    fixture_run(&twice, &batch, 0.25f, false);
    fixture_run(&twice, &batch, 0.75f, true);
    assert_same_gradients(&twice, &once, 1e-6, 1e-5);
    fixture_release(&once);
    fixture_release(&twice);
}

static void a_training_pass_writes_statistics_beside_the_old_ones(void **state) {
    (void)state;
    fixture f;
    make(&f, true, false);
    gs_batch batch = batch_of(8);
    fixture_loss(&f, &batch);
    assert_int_equal(*(int64_t *)f.buffers[2], 0);
    assert_int_equal(*(int64_t *)f.next_buffers[2], 1);
    // running' = 0.9 · running + 0.1 · batch, the batch's variance divided by rows - 1.
    const float *weight = f.params[0];
    double sum = 0.0, squares = 0.0;
    for (int row = 0; row < 8; row++) {
        double x = 0.0;
        for (int i = 0; i < 11; i++) x += (double)features[row * 11 + i] * (double)weight[i];
        sum += x;
        squares += x * x;
    }
    double mean = sum / 8, var = (squares - 8 * mean * mean) / 7;
    assert_true(fabs((double)((float *)f.next_buffers[0])[0] - 0.1 * mean) < 1e-6);
    assert_true(fabs((double)((float *)f.next_buffers[1])[0] - (0.9 + 0.1 * var)) < 1e-6);
    assert_true(((float *)f.buffers[0])[0] == 0.0f);
    assert_true(((float *)f.buffers[1])[0] == 1.0f);
    fixture_release(&f);
}

static void evaluation_uses_running_statistics_and_moves_nothing(void **state) {
    (void)state;
    fixture f;
    make(&f, true, false);
    gs_batch batch = batch_of(8);
    gs_model_pass pass = fixture_pass(&f, &batch);
    pass.training = false;
    pass.next_buffers = NULL;
    assert_int_equal(f.model.ops->forward(f.model.state, &pass).code, GS_OK);
    double loss = pass.loss;
    assert_true(fabs(loss - fixture_loss(&f, &batch)) > 1e-4);
    // One row alone is fine here, and the mean of all rows' losses is the loss.
    double sum = 0.0;
    int64_t correct = 0, all_correct = pass.num_correct;
    for (size_t i = 0; i < 8; i++) {
        gs_batch one = batch;
        one.rows = 1;
        one.features += 11 * i;
        one.targets += i;
        pass.batch = &one;
        assert_int_equal(f.model.ops->forward(f.model.state, &pass).code, GS_OK);
        sum += pass.loss;
        correct += pass.num_correct;
    }
    assert_true(fabs(sum / 8 - loss) < 1e-6);
    assert_int_equal(correct, all_correct);
    fixture_release(&f);
}

static void predictions_are_the_logits_of_evaluation(void **state) {
    (void)state;
    fixture f;
    make(&f, true, false);
    gs_batch batch = batch_of(8);
    gs_model_pass pass = fixture_pass(&f, &batch);
    pass.training = false;
    assert_int_equal(f.model.ops->forward(f.model.state, &pass).code, GS_OK);
    const float *logits;
    size_t classes;
    assert_int_equal(f.model.ops->predict(f.model.state, &pass, &logits, &classes).code, GS_OK);
    assert_int_equal(classes, 5);
    double sum = 0.0;
    for (size_t row = 0; row < 8; row++) {
        double total = 0.0;
        for (size_t i = 0; i < 5; i++) total += exp((double)logits[row * 5 + i]);
        sum += log(total) - (double)logits[row * 5 + (size_t)targets[row]];
    }
    assert_true(fabs(sum / 8 - pass.loss) < 1e-6);
    fixture_release(&f);
}

static void one_batch_is_learned_by_heart(void **state) {
    (void)state;
    for (int norm = 0; norm < 2; norm++) {
        fixture f;
        make(&f, norm == 1, false);
        gs_batch batch = batch_of(16);
        double loss = overfit(&f, &batch, 200, 2e-2f);
        if (!(loss < 0.1)) fail_msg("batch norm %d: loss %g", norm, loss);
        fixture_release(&f);
    }
}

// Another rank with the same rows, or nobody else.
typedef struct fake_ranks {
    int count, num_calls;
} fake_ranks;

static gs_status combine_fakes(void *ctx, double *rows, double *mean, double *m2, size_t channels) {
    fake_ranks *ranks = ctx;
    (void)mean;
    ranks->num_calls++;
    *rows *= ranks->count;
    for (size_t c = 0; c < channels; c++) m2[c] *= ranks->count;
    return gs_ok();
}

static gs_status sum_fakes(void *ctx, double *values, size_t count) {
    fake_ranks *ranks = ctx;
    ranks->num_calls++;
    for (size_t i = 0; i < count; i++) values[i] *= ranks->count;
    return gs_ok();
}

static void run_synchronised(fixture *f, const gs_batch *batch, fake_ranks *ranks) {
    const gs_model_sync sync = {combine_fakes, sum_fakes, ranks};
    gs_model_pass pass = fixture_pass(f, batch);
    pass.sync = &sync;
    assert_int_equal(f->model.ops->forward(f->model.state, &pass).code, GS_OK);
    assert_int_equal(f->model.ops->backward(f->model.state, &pass).code, GS_OK);
}

static void synchronised_norm_of_one_rank_has_the_bits_of_local_norm(void **state) {
    (void)state;
    fixture local, alone;
    gs_batch batch = batch_of(16);
    fake_ranks ranks = {.count = 1};
    make(&local, true, false);
    make(&alone, true, false);
    fixture_run(&local, &batch, 1.0f, false);
    run_synchronised(&alone, &batch, &ranks);
    assert_int_equal(ranks.num_calls, 4);  // two layers, there and back
    assert_memory_equal(alone.gradient, local.gradient, local.count * sizeof(float));
    assert_memory_equal(alone.next_buffers[1], local.next_buffers[1], 13 * sizeof(float));
    fixture_release(&local);
    fixture_release(&alone);
}

// Two ranks with the same rows: the biased variance is the same, the running one divides by 2n - 1.
static void synchronised_norm_counts_the_rows_of_all_ranks(void **state) {
    (void)state;
    fixture local, two;
    gs_batch batch = batch_of(8);
    fake_ranks ranks = {.count = 2};
    make(&local, true, false);
    make(&two, true, false);
    fixture_run(&local, &batch, 1.0f, false);
    run_synchronised(&two, &batch, &ranks);
    for (size_t i = 0; i < local.count; i++)
        assert_true(fabsf(two.gradient[i] - local.gradient[i]) < 1e-6f);
    for (int c = 0; c < 13; c++) {
        double unbiased = ((double)((float *)local.next_buffers[1])[c] - 0.9) / 0.1;
        double wanted = 0.9 + 0.1 * unbiased * 7 / 8 * 16 / 15;
        assert_true(fabs((double)((float *)two.next_buffers[1])[c] - wanted) < 1e-5);
    }
    fixture_release(&local);
    fixture_release(&two);
}

static void one_row_trains_when_other_ranks_have_some(void **state) {
    (void)state;
    fixture f;
    make(&f, true, false);
    gs_batch batch = batch_of(1);
    fake_ranks ranks = {.count = 2};
    run_synchronised(&f, &batch, &ranks);
    ranks.count = 1;
    const gs_model_sync sync = {combine_fakes, sum_fakes, &ranks};
    gs_model_pass pass = fixture_pass(&f, &batch);
    pass.sync = &sync;
    gs_status status = f.model.ops->forward(f.model.state, &pass);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "one row in all"));
    fixture_release(&f);
}

static void a_loss_sum_gets_the_loss_of_each_pass_added(void **state) {
    (void)state;
    fixture f;
    make(&f, true, false);
    gs_batch batch = batch_of(16);
    gs_model_pass pass = fixture_pass(&f, &batch);
    assert_int_equal(f.model.ops->forward(f.model.state, &pass).code, GS_OK);
    const double loss = pass.loss;
    double sum = 0.5;
    pass.loss_sum = &sum;
    for (int i = 0; i < 2; i++)
        assert_int_equal(f.model.ops->forward(f.model.state, &pass).code, GS_OK);
    assert_true(sum == 0.5 + loss + loss);
    assert_true(pass.loss == 0.0);
    assert_int_equal(pass.num_correct, 0);
    assert_int_equal(f.model.ops->backward(f.model.state, &pass).code, GS_OK);
    assert_true(f.model.ops->repeats(f.model.state, &pass));
    fixture_release(&f);
}

static void wrong_batches_are_refused(void **state) {
    (void)state;
    fixture f;
    make(&f, true, false);
    gs_batch batch = batch_of(16);
    gs_model_pass pass = fixture_pass(&f, &batch);
    batch.rows = 17;
    assert_int_equal(f.model.ops->forward(f.model.state, &pass).code, GS_INVALID_ARGUMENT);
    batch.rows = 1;  // no variance
    assert_int_equal(f.model.ops->forward(f.model.state, &pass).code, GS_INVALID_ARGUMENT);
    batch.rows = 4;
    batch.row_features = 12;
    assert_int_equal(f.model.ops->forward(f.model.state, &pass).code, GS_INVALID_ARGUMENT);
    assert_int_equal(f.model.ops->backward(f.model.state, &pass).code, GS_INVALID_ARGUMENT);
    batch.row_features = 11;
    assert_int_equal(f.model.ops->backward(f.model.state, &pass).code, GS_FAILED_PRECONDITION);
    gs_mlp_options options = {.dims = dims, .num_dims = 1, .micro_batch = 4};
    gs_model model;
    assert_int_equal(gs_mlp_create(&model, &options, f.device).code, GS_INVALID_ARGUMENT);
    const int64_t wide[] = {INT64_C(1) << 31, INT64_C(1) << 31};
    options = (gs_mlp_options){.dims = wide, .num_dims = 2, .micro_batch = 1};
    assert_int_equal(gs_mlp_create(&model, &options, f.device).code, GS_INVALID_ARGUMENT);
    fixture_release(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_those_of_the_vectors),
        cmocka_unit_test(first_values_stay_within_their_bound),
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(every_parameter_is_said_before_its_first_reading),
        cmocka_unit_test(every_parameter_is_released_behind_its_last_reading),
        cmocka_unit_test(every_gradient_is_opened_before_it_is_written),
        cmocka_unit_test(gradients_become_ready_from_the_last_layer_on),
        cmocka_unit_test(accumulated_micro_batches_equal_one_batch),
        cmocka_unit_test(accumulation_adds_to_every_gradient),
        cmocka_unit_test(a_training_pass_writes_statistics_beside_the_old_ones),
        cmocka_unit_test(evaluation_uses_running_statistics_and_moves_nothing),
        cmocka_unit_test(predictions_are_the_logits_of_evaluation),
        cmocka_unit_test(one_batch_is_learned_by_heart),
        cmocka_unit_test(synchronised_norm_of_one_rank_has_the_bits_of_local_norm),
        cmocka_unit_test(synchronised_norm_counts_the_rows_of_all_ranks),
        cmocka_unit_test(one_row_trains_when_other_ranks_have_some),
        cmocka_unit_test(a_loss_sum_gets_the_loss_of_each_pass_added),
        cmocka_unit_test(wrong_batches_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
