#include "worker/trainer/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"

#define BYTE_VOCAB 256

// "sample" in ASCII: keeps these draws apart from every other use of the seed.
#define SAMPLE_STREAM UINT64_C(0x73616d706c65)

// The last `context` tokens, on the host and on the device.
typedef struct window {
    int32_t *tokens;  // owned
    size_t count;
    void *device_tokens;  // owned by the device
} window;

static void push_token(window *tokens, int32_t token, size_t context) {
    if (tokens->count == context) {
        memmove(tokens->tokens, tokens->tokens + 1, (context - 1) * sizeof *tokens->tokens);
        tokens->count--;
    }
    tokens->tokens[tokens->count++] = token;
}

static bool are_finite(const float *logits, size_t num_classes) {
    for (size_t i = 0; i < num_classes; i++)
        if (!isfinite(logits[i])) return false;
    return true;
}

static int32_t take_likeliest(const float *logits, size_t num_classes) {
    size_t best = 0;
    for (size_t i = 1; i < num_classes; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

// Draws from softmax(logits / temperature); the largest logit is taken off first, so nothing
// overflows.
static int32_t draw_token(const float *logits, size_t num_classes, double temperature,
                          double uniform) {
    int32_t likeliest = take_likeliest(logits, num_classes);
    if (temperature <= 0.0) return likeliest;
    double largest = (double)logits[likeliest], sum = 0.0;
    for (size_t i = 0; i < num_classes; i++)
        sum += exp(((double)logits[i] - largest) / temperature);
    double left = uniform * sum;
    for (size_t i = 0; i < num_classes; i++) {
        left -= exp(((double)logits[i] - largest) / temperature);
        if (left < 0.0) return (int32_t)i;
    }
    return likeliest;  // rounding
}

static gs_status generate_tokens(gs_strbuf *text, window *tokens, const gs_model *model,
                                 void *const *params, const void *const *buffers, gs_device *device,
                                 const gs_generate_options *options) {
    gs_random_key key = {options->seed, SAMPLE_STREAM};
    for (int64_t i = 0; i < options->tokens; i++) {
        GS_TRY(gs_device_upload(device, tokens->device_tokens, tokens->tokens,
                                tokens->count * sizeof *tokens->tokens));
        gs_batch batch = {.rows = 1, .positions = tokens->count, .tokens = tokens->device_tokens};
        gs_model_pass pass = {.batch = &batch, .params = params, .buffers = buffers};
        const float *logits;
        size_t num_classes;
        GS_TRY(model->ops->predict(model->state, &pass, &logits, &num_classes));
        if (!are_finite(logits, num_classes))
            return gs_error(GS_FAILED_PRECONDITION,
                            "generate: token %lld: the model's logits are not finite",
                            (long long)i);
        int32_t token = draw_token(logits, num_classes, options->temperature,
                                   gs_random_uniform(key, (uint64_t)i));
        gs_strbuf_putc(text, (char)(uint8_t)token);
        push_token(tokens, token, (size_t)options->context);
    }
    if (gs_strbuf_failed(text)) return gs_error(GS_RESOURCE_EXHAUSTED, "generate: out of memory");
    return gs_ok();
}

gs_status gs_generate(gs_strbuf *text, const gs_model *model, void *const *params,
                      const void *const *buffers, gs_device *device,
                      const gs_generate_options *options) {
    if (options->vocab < 1 || options->vocab > BYTE_VOCAB)
        return gs_error(GS_INVALID_ARGUMENT,
                        "generate: vocab %lld, but text needs one of at most %d bytes",
                        (long long)options->vocab, BYTE_VOCAB);
    if (options->context < 1 || options->tokens < 0 || options->temperature < 0.0)
        return gs_error(GS_INVALID_ARGUMENT, "generate: context, tokens or temperature");
    const char *prompt = options->prompt && *options->prompt ? options->prompt : "\n";

    window tokens = {.tokens = calloc((size_t)options->context, sizeof *tokens.tokens)};
    if (!tokens.tokens) return gs_error(GS_RESOURCE_EXHAUSTED, "generate: out of memory");
    gs_status status = gs_ok();
    for (const char *at = prompt; *at && !status.code; at++) {
        uint8_t byte = (uint8_t)*at;
        if (byte >= options->vocab)
            status = gs_error(GS_INVALID_ARGUMENT, "generate: prompt byte %u is outside vocab %lld",
                              byte, (long long)options->vocab);
        push_token(&tokens, byte, (size_t)options->context);
    }
    if (!status.code)
        status = gs_device_alloc(device, &tokens.device_tokens,
                                 (size_t)options->context * sizeof *tokens.tokens);
    if (!status.code)
        status = generate_tokens(text, &tokens, model, params, buffers, device, options);
    if (tokens.device_tokens) gs_device_free(device, tokens.device_tokens);
    free(tokens.tokens);
    return status;
}

gs_status gs_generate_sample(char **out, const gs_job_spec *spec, const gs_trainer_state *state) {
    *out = NULL;
    bool writes_bytes = spec->model.kind == GS_MODEL_GPT2 && spec->model.gpt2.vocab <= BYTE_VOCAB;
    if (!writes_bytes || spec->sample.tokens == 0) return gs_ok();
    gs_generate_options options = {.prompt = spec->sample.prompt,
                                   .tokens = spec->sample.tokens,
                                   .temperature = spec->sample.temperature,
                                   .seed = (uint64_t)spec->model.seed,
                                   .context = spec->model.gpt2.context,
                                   .vocab = spec->model.gpt2.vocab};
    gs_strbuf text = {0};
    gs_status status = gs_generate(&text, &state->model, state->values,
                                   (const void *const *)gs_buffers_committed(state->buffers),
                                   state->device, &options);
    if (!status.code) *out = gs_strbuf_take(&text);
    gs_strbuf_release(&text);
    return status;
}
