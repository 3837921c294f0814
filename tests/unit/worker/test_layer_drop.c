#include "worker/models/layer_drop.h"

#include "tests/unit/worker/model_fixture.h"

static const gs_gpt2_options deep = {.layers = 6,
                                     .heads = 2,
                                     .channels = 8,
                                     .context = 5,
                                     .vocab = 11,
                                     .micro_batch = 2,
                                     .layer_drop = 0.5,
                                     .seed = 77};

static int32_t tokens[10], targets[10];

static gs_batch some_batch(void) {
    gs_random_key key = {11, 1};
    for (size_t i = 0; i < 10; i++) {
        tokens[i] = (int32_t)(gs_random_u64(key, 2 * i) % 11);
        targets[i] = (int32_t)(gs_random_u64(key, 2 * i + 1) % 11);
    }
    return (gs_batch){.rows = 2, .positions = 5, .tokens = tokens, .targets = targets};
}

static void make(fixture *f, const gs_gpt2_options *options) {
    gs_device *device = open_device(1);
    gs_model model;
    gs_status status = gs_gpt2_create(&model, options, device);
    if (status.code) fail_msg("%s", status.message);
    fixture_init(f, device, model, 42);
}

typedef struct skip_notes {
    uint8_t skipped[2 + 12 * 6 + 2];
    size_t num_skipped, ready_before;
    fixture *f;
} skip_notes;

static void note_skipped(void *ctx, size_t param) {
    skip_notes *notes = ctx;
    notes->skipped[param]++;
    notes->num_skipped++;
    if (notes->f->num_ready > notes->ready_before) notes->ready_before = notes->f->num_ready;
}

// One pass of the deep model over gradients that all hold `value`.
static void run_deep(fixture *f, const gs_batch *batch, int64_t step, skip_notes *notes,
                     float value) {
    gs_model_pass pass = fixture_pass(f, batch);
    pass.step = step;
    pass.shard = 3;
    if (notes) {
        *notes = (skip_notes){.f = f};
        pass.skipped = note_skipped;
        pass.skipped_ctx = notes;
    }
    for (size_t i = 0; i < f->count; i++) f->gradient[i] = value;
    f->num_ready = 0;
    assert_int_equal(f->model.ops->forward(f->model.state, &pass).code, GS_OK);
    assert_int_equal(f->model.ops->backward(f->model.state, &pass).code, GS_OK);
}

// Where parameter `p` of the model that has only the kept layers is in the whole one.
static size_t param_of_whole(size_t p, const int64_t *kept, int64_t num_kept) {
    if (p < 2) return p;
    size_t layer = (p - 2) / 12;
    if (layer >= (size_t)num_kept) return p + 12 * (size_t)(6 - num_kept);
    return 2 + 12 * (size_t)kept[layer] + (p - 2) % 12;
}

// A dropped layer is the identity: what is left is the gradient of the model without it.
static void a_step_without_layers_is_the_step_of_a_model_that_lacks_them(void **state) {
    (void)state;
    gs_layer_drop drop = {.probability = deep.layer_drop, .seed = deep.seed};
    int most = 0, least = 6;
    for (int64_t step = 0; step < 12; step++) {
        fixture whole, part;
        make(&whole, &deep);
        fixture_spread(&whole, 5, 0.1f);
        int64_t kept[6], num_kept = 0;
        for (int64_t i = 0; i < 6; i++)
            if (!gs_layer_drop_skips(&drop, step, 3, i)) kept[num_kept++] = i;
        if (num_kept > most) most = (int)num_kept;
        if (num_kept < least) least = (int)num_kept;
        gs_batch batch = some_batch();
        skip_notes notes;
        run_deep(&whole, &batch, step, &notes, 3.25f);
        assert_int_equal(notes.num_skipped, (size_t)(12 * (6 - num_kept)));
        assert_int_equal(notes.ready_before, 0);
        assert_int_equal(whole.num_ready + notes.num_skipped, whole.num_params);
        if (!num_kept) {
            fixture_release(&whole);
            continue;
        }
        gs_gpt2_options shallow = deep;
        shallow.layers = num_kept;
        shallow.layer_drop = 0;
        make(&part, &shallow);
        for (size_t p = 0; p < part.num_params; p++) {
            size_t from = param_of_whole(p, kept, num_kept);
            memcpy(part.params[p], whole.params[from], gs_param_spec_bytes(&part.list[p].spec));
        }
        fixture_run(&part, &batch, 1.0f, false);
        for (size_t p = 0; p < part.num_params; p++) {
            size_t from = param_of_whole(p, kept, num_kept);
            assert_int_equal(notes.skipped[from], 0);
            assert_memory_equal(part.grads[p], whole.grads[from],
                                gs_param_spec_bytes(&part.list[p].spec));
        }
        for (size_t p = 0; p < whole.num_params; p++) {
            if (notes.skipped[p]) assert_true(*(float *)whole.grads[p] == 3.25f);
        }
        fixture_release(&part);
        fixture_release(&whole);
    }
    assert_true(most > least);
}

static void without_a_callback_skipped_gradients_are_zero(void **state) {
    (void)state;
    fixture f;
    make(&f, &deep);
    gs_layer_drop drop = {.probability = deep.layer_drop, .seed = deep.seed};
    int64_t step = 0;
    while (!gs_layer_drop_skips(&drop, step, 3, 2)) step++;
    gs_batch batch = some_batch();
    run_deep(&f, &batch, step, NULL, NAN);
    for (size_t p = 2 + 12 * 2; p < 2 + 12 * 3; p++) assert_true(*(float *)f.grads[p] == 0.0f);
    for (size_t i = 0; i < f.count; i++) assert_true(!isnan(f.gradient[i]));
    fixture_release(&f);
}

static void evaluation_and_prediction_have_all_layers(void **state) {
    (void)state;
    gs_gpt2_options options = deep;
    options.layer_drop = 0.9;
    fixture dropping, whole;
    make(&dropping, &options);
    options.layer_drop = 0;
    make(&whole, &options);
    fixture_spread(&dropping, 5, 0.2f);
    fixture_spread(&whole, 5, 0.2f);
    gs_batch batch = some_batch();
    gs_model_pass a = fixture_pass(&dropping, &batch), b = fixture_pass(&whole, &batch);
    a.training = b.training = false;
    assert_int_equal(dropping.model.ops->forward(dropping.model.state, &a).code, GS_OK);
    assert_int_equal(whole.model.ops->forward(whole.model.state, &b).code, GS_OK);
    assert_true(a.loss == b.loss);
    const float *logits[2];
    size_t classes;
    assert_int_equal(
        dropping.model.ops->predict(dropping.model.state, &a, &logits[0], &classes).code, GS_OK);
    assert_int_equal(whole.model.ops->predict(whole.model.state, &b, &logits[1], &classes).code,
                     GS_OK);
    assert_memory_equal(logits[0], logits[1], 2 * classes * sizeof(float));
    fixture_release(&dropping);
    fixture_release(&whole);
}

static void layers_are_dropped_with_the_probability_asked_for(void **state) {
    (void)state;
    gs_layer_drop drop = {.probability = 0.3, .seed = 5}, other = {.probability = 0.3, .seed = 6};
    int dropped = 0, differ = 0, n = 20000;
    for (int i = 0; i < n; i++) {
        bool skips = gs_layer_drop_skips(&drop, i / 100, i / 10 % 10, i % 10);
        dropped += skips;
        differ += skips != gs_layer_drop_skips(&other, i / 100, i / 10 % 10, i % 10);
    }
    assert_true(fabs(dropped / (double)n - 0.3) < 0.02);
    assert_true(fabs(differ / (double)n - 0.42) < 0.03);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_without_layers_is_the_step_of_a_model_that_lacks_them),
        cmocka_unit_test(without_a_callback_skipped_gradients_are_zero),
        cmocka_unit_test(evaluation_and_prediction_have_all_layers),
        cmocka_unit_test(layers_are_dropped_with_the_probability_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
