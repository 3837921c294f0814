#include "tests/unit/worker/model_fixture.h"

#include "worker/trainer/generate.h"

#define CONTEXT 8

static const gs_gpt2_options tiny = {
    .layers = 1, .heads = 2, .channels = 32, .context = CONTEXT, .vocab = 128, .micro_batch = 3};

static void make(fixture *f) {
    gs_device *device = open_device(1);
    gs_model model;
    gs_status status = gs_gpt2_create(&model, &tiny, device);
    if (status.code) fail_msg("%s", status.message);
    fixture_init(f, device, model, 9);
}

static gs_status generate(gs_strbuf *text, fixture *f, const gs_generate_options *options) {
    return gs_generate(text, &f->model, f->params, (const void *const *)f->buffers, f->device,
                       options);
}

static void a_learned_pattern_goes_on_past_the_context(void **state) {
    (void)state;
    fixture f;
    make(&f);
    int32_t tokens[3 * CONTEXT], targets[3 * CONTEXT];
    for (int row = 0; row < 3; row++)
        for (int t = 0; t < CONTEXT; t++) {
            tokens[row * CONTEXT + t] = "abc"[(row + t) % 3];
            targets[row * CONTEXT + t] = "abc"[(row + t + 1) % 3];
        }
    gs_batch batch = {.rows = 3, .positions = CONTEXT, .tokens = tokens, .targets = targets};
    assert_true(overfit(&f, &batch, 200, 1e-2f) < 0.1);

    gs_strbuf text = {0};
    gs_generate_options options = {
        .prompt = "ab", .tokens = 3 * CONTEXT, .context = CONTEXT, .vocab = 128};
    gs_status status = generate(&text, &f, &options);
    if (status.code) fail_msg("%s", status.message);
    assert_string_equal(gs_strbuf_text(&text), "cabcabcabcabcabcabcabcab");
    gs_strbuf_release(&text);

    // A prompt longer than the context: its end counts.
    options.prompt = "aaaaaaaaaaaaaaaaaaaaaabcabcab";
    options.tokens = 4;
    assert_int_equal(generate(&text, &f, &options).code, GS_OK);
    assert_string_equal(gs_strbuf_text(&text), "cabc");
    gs_strbuf_release(&text);
    fixture_release(&f);
}

static void draws_depend_on_the_seed_alone(void **state) {
    (void)state;
    fixture f;
    make(&f);
    gs_strbuf text[3] = {{0}};
    const uint64_t seeds[] = {5, 5, 6};
    for (int i = 0; i < 3; i++) {
        gs_generate_options options = {.prompt = "",
                                       .tokens = 20,
                                       .temperature = 1.0,
                                       .seed = seeds[i],
                                       .context = CONTEXT,
                                       .vocab = 128};
        assert_int_equal(generate(&text[i], &f, &options).code, GS_OK);
        assert_int_equal(text[i].len, 20);
    }
    assert_memory_equal(text[0].text, text[1].text, 20);
    assert_memory_not_equal(text[0].text, text[2].text, 20);
    for (int i = 0; i < 3; i++) gs_strbuf_release(&text[i]);
    fixture_release(&f);
}

// An untrained model is nearly uniform: hot draws must reach all over the vocabulary.
static void temperature_spreads_the_draws(void **state) {
    (void)state;
    fixture f;
    make(&f);
    gs_strbuf text = {0};
    gs_generate_options options = {.prompt = "x",
                                   .tokens = 400,
                                   .temperature = 1.0,
                                   .seed = 1,
                                   .context = CONTEXT,
                                   .vocab = 128};
    assert_int_equal(generate(&text, &f, &options).code, GS_OK);
    bool seen[256] = {false};
    int distinct = 0;
    for (size_t i = 0; i < text.len; i++) {
        uint8_t byte = (uint8_t)text.text[i];
        assert_in_range(byte, 0, 127);
        distinct += !seen[byte];
        seen[byte] = true;
    }
    assert_in_range(distinct, 100, 128);
    gs_strbuf_release(&text);
    fixture_release(&f);
}

// A model that always says the same: token i has weight i + 1.
static gs_status predict_weights(void *model, gs_model_pass *pass, const float **logits,
                                 size_t *num_classes) {
    (void)pass;
    *logits = model;
    *num_classes = 4;
    return gs_ok();
}

static void draws_follow_the_softmax_of_the_logits(void **state) {
    (void)state;
    // Large, so that an exponential without the largest taken off would overflow.
    float logits[4];
    for (int i = 0; i < 4; i++) logits[i] = 1000.0f + logf((float)(i + 1));
    const gs_model_ops ops = {.name = "weights", .predict = predict_weights};
    const gs_model model = {&ops, logits, GS_DTYPE_UNSET};
    gs_device *device = open_device(1);
    for (int power = 1; power <= 2; power++) {  // temperature 1 / power raises weights to it
        gs_strbuf text = {0};
        gs_generate_options options = {
            .tokens = 4000, .temperature = 1.0 / power, .seed = 3, .context = 1, .vocab = 128};
        gs_status status = gs_generate(&text, &model, NULL, NULL, device, &options);
        if (status.code) fail_msg("%s", status.message);
        double found[4] = {0}, total = 0.0;
        for (size_t i = 0; i < text.len; i++) found[(uint8_t)text.text[i] % 4] += 1.0;
        for (int i = 0; i < 4; i++) total += pow(i + 1, power);
        // Four standard deviations of 4000 draws are at most 0.032.
        for (int i = 0; i < 4; i++)
            assert_true(fabs(found[i] / 4000 - pow(i + 1, power) / total) < 0.032);
        gs_strbuf_release(&text);
    }
    gs_device_close(device);
}

static void a_diverged_model_says_so_instead_of_nonsense(void **state) {
    (void)state;
    float logits[4] = {1.0f, 2.0f, NAN, 3.0f};
    const gs_model_ops ops = {.name = "weights", .predict = predict_weights};
    const gs_model model = {&ops, logits, GS_DTYPE_UNSET};
    gs_device *device = open_device(1);
    gs_generate_options options = {.tokens = 4, .context = 1, .vocab = 128};
    gs_strbuf text = {0};
    gs_status status = gs_generate(&text, &model, NULL, NULL, device, &options);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "not finite"));
    logits[2] = 0.0f;
    assert_int_equal(gs_generate(&text, &model, NULL, NULL, device, &options).code, GS_OK);
    assert_int_equal(text.len, 4);
    gs_strbuf_release(&text);
    gs_device_close(device);
}

static void what_is_no_text_is_refused(void **state) {
    (void)state;
    fixture f;
    make(&f);
    gs_strbuf text = {0};
    gs_generate_options options = {.prompt = "x", .tokens = 1, .context = CONTEXT, .vocab = 50257};
    assert_int_equal(generate(&text, &f, &options).code, GS_INVALID_ARGUMENT);
    options.vocab = 128;
    options.prompt = "\xc3\xa4";
    assert_int_equal(generate(&text, &f, &options).code, GS_INVALID_ARGUMENT);
    options.prompt = "x";
    options.context = 0;
    assert_int_equal(generate(&text, &f, &options).code, GS_INVALID_ARGUMENT);
    // The model's own vocabulary counts, whatever the options say.
    options.context = CONTEXT;
    options.vocab = 256;
    options.prompt = "ab\xc3";
    gs_status status = generate(&text, &f, &options);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "row 2: token 195"));
    assert_int_equal(text.len, 0);
    fixture_release(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_learned_pattern_goes_on_past_the_context),
        cmocka_unit_test(draws_depend_on_the_seed_alone),
        cmocka_unit_test(temperature_spreads_the_draws),
        cmocka_unit_test(draws_follow_the_softmax_of_the_logits),
        cmocka_unit_test(a_diverged_model_says_so_instead_of_nonsense),
        cmocka_unit_test(what_is_no_text_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
