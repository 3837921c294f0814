// Data without files that a model can learn, drawn from counters: the same on every machine.
//
// Tokens: next = (multiplier · token + increment) mod vocab with probability 0.9, else anything.
// Features: a centre for each class, drawn once, plus noise of half the centres' spread.
// Any index ≥ 0 is a sample; num_samples only says where an epoch ends.
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/random.h"
#include "worker/data/dataset.h"

#define DEFAULT_SAMPLES 65536
#define NOISE_OF_TOKENS 0.1
#define NOISE_OF_FEATURES 0.5f

// Streams of random numbers; what they are for in ASCII.
#define RULE_STREAM UINT64_C(0x72756c65)
#define CENTRE_STREAM UINT64_C(0x63656e74)
#define SAMPLE_STREAM UINT64_C(0x73616d70)

typedef struct synthetic_set {
    uint64_t seed;
    int64_t positions, vocab;
    uint64_t multiplier, increment;
    int64_t row_features, classes;
    float *centres; // (classes, row_features); NULL for tokens
} synthetic_set;

static void close_set(void *dataset) {
    synthetic_set *set = dataset;
    if (!set) return;
    free(set->centres);
    free(set);
}

static gs_status draw_centres(synthetic_set *set) {
    size_t count, bytes;
    if (set->classes < 1 || !gs_bytes_of(&count, (size_t)set->classes, (size_t)set->row_features) ||
        !gs_bytes_of(&bytes, count, sizeof *set->centres))
        return gs_error(GS_INVALID_ARGUMENT, "synthetic data: %lld classes of %lld features",
                        (long long)set->classes, (long long)set->row_features);
    set->centres = malloc(bytes);
    if (!set->centres) return gs_error(GS_RESOURCE_EXHAUSTED, "synthetic data: out of memory");
    gs_random_fill_normal(set->centres, count, (gs_random_key){set->seed, CENTRE_STREAM}, 0, 0.0f,
                          1.0f);
    return gs_ok();
}

static gs_status draw_rule(synthetic_set *set) {
    if (set->positions < 1 || set->vocab < 2)
        return gs_error(GS_INVALID_ARGUMENT, "synthetic data: needs a position and a vocab of 2");
    gs_random_key key = {set->seed, RULE_STREAM};
    set->multiplier = 3 + 2 * (gs_random_u64(key, 0) % 16);
    set->increment = 1 + gs_random_u64(key, 1) % (uint64_t)(set->vocab - 1);
    return gs_ok();
}

static gs_status open_set(void **out, const gs_dataset_options *options, gs_dataset_shape *shape) {
    synthetic_set *set = calloc(1, sizeof *set);
    if (!set) return gs_error(GS_RESOURCE_EXHAUSTED, "synthetic data: out of memory");
    set->seed = options->seed;
    set->positions = options->positions;
    set->vocab = options->vocab;
    set->row_features = options->row_features;
    set->classes = options->classes;
    gs_status status = set->row_features > 0 ? draw_centres(set) : draw_rule(set);
    if (status.code) {
        close_set(set);
        return status;
    }
    int64_t samples = options->synthetic_samples ? options->synthetic_samples : DEFAULT_SAMPLES;
    uint64_t words[6] = {set->seed,
                         (uint64_t)samples,
                         (uint64_t)set->positions,
                         (uint64_t)set->vocab,
                         (uint64_t)set->row_features,
                         (uint64_t)set->classes};
    *shape = (gs_dataset_shape){.num_samples = samples,
                                .positions = set->row_features > 0 ? 1 : set->positions,
                                .row_features = set->row_features,
                                .digest = gs_digest_of(words, sizeof words)};
    *out = set;
    return gs_ok();
}

static void fill_tokens(const synthetic_set *set, gs_random_key key, int32_t *tokens,
                        int32_t *targets) {
    uint64_t vocab = (uint64_t)set->vocab;
    uint64_t token = gs_random_u64(key, 0) % vocab;
    for (int64_t t = 0; t < set->positions; t++) {
        tokens[t] = (int32_t)token;
        uint64_t draw = 1 + 2 * (uint64_t)t;
        if (gs_random_uniform(key, draw) < NOISE_OF_TOKENS)
            token = gs_random_u64(key, draw + 1) % vocab;
        else
            token = (set->multiplier * token + set->increment) % vocab;
        targets[t] = (int32_t)token;
    }
}

static gs_status fill_sample(void *dataset, int64_t index, int32_t *tokens, float *features,
                             int32_t *targets) {
    const synthetic_set *set = dataset;
    gs_random_key key = {set->seed, gs_random_stream(SAMPLE_STREAM, (uint64_t)index, 0)};
    if (!set->centres) {
        fill_tokens(set, key, tokens, targets);
        return gs_ok();
    }
    size_t count = (size_t)set->row_features;
    int64_t label = (int64_t)(gs_random_u64(key, 0) % (uint64_t)set->classes);
    const float *centre = set->centres + label * set->row_features;
    gs_random_fill_normal(features, count, key, 1, 0.0f, NOISE_OF_FEATURES);
    for (size_t i = 0; i < count; i++) features[i] += centre[i];
    targets[0] = (int32_t)label;
    return gs_ok();
}

const gs_dataset_ops gs_dataset_synthetic = {
    .name = "synthetic", .open = open_set, .fill = fill_sample, .close = close_set};
