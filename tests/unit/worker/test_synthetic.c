#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "worker/data/dataset.h"

static const gs_dataset_options token_options = {.positions = 64, .vocab = 97, .seed = 5};
static const gs_dataset_options feature_options = {
    .positions = 1, .row_features = 8, .classes = 4, .seed = 5, .synthetic_samples = 100};

static void *open_set(const gs_dataset_options *options, gs_dataset_shape *shape) {
    void *data;
    assert_int_equal(gs_dataset_synthetic.open(&data, options, shape).code, GS_OK);
    return data;
}

static void equal_seeds_give_equal_samples(void **state) {
    (void)state;
    gs_dataset_shape shape;
    void *a = open_set(&token_options, &shape), *b = open_set(&token_options, &shape);
    assert_int_equal(shape.num_samples, 65536);
    int32_t tokens[2][64], targets[2][64], other[64], other_targets[64];
    assert_int_equal(gs_dataset_synthetic.fill(a, 77, tokens[0], NULL, targets[0]).code, GS_OK);
    assert_int_equal(gs_dataset_synthetic.fill(a, 78, other, NULL, other_targets).code, GS_OK);
    assert_int_equal(gs_dataset_synthetic.fill(b, 77, tokens[1], NULL, targets[1]).code, GS_OK);
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    assert_memory_equal(targets[0], targets[1], sizeof targets[0]);
    assert_memory_not_equal(tokens[0], other, sizeof other);
    gs_dataset_synthetic.close(a);
    gs_dataset_synthetic.close(b);
}

static void most_next_tokens_follow_one_rule(void **state) {
    (void)state;
    gs_dataset_shape shape;
    void *data = open_set(&token_options, &shape);
    // The commonest successor of each token must explain most of what follows it.
    static int follows[97][97];
    int total = 0, explained = 0;
    for (int64_t i = 0; i < 400; i++) {
        int32_t tokens[64], targets[64];
        assert_int_equal(gs_dataset_synthetic.fill(data, i, tokens, NULL, targets).code, GS_OK);
        for (int t = 0; t < 64; t++) {
            assert_in_range(tokens[t], 0, 96);
            if (t) assert_int_equal(tokens[t], targets[t - 1]);
            follows[tokens[t]][targets[t]]++;
            total++;
        }
    }
    for (int a = 0; a < 97; a++) {
        int most = 0;
        for (int b = 0; b < 97; b++)
            if (follows[a][b] > most) most = follows[a][b];
        explained += most;
    }
    assert_true(explained > total * 85 / 100);
    gs_dataset_synthetic.close(data);
}

static void features_lie_near_the_centre_of_their_class(void **state) {
    (void)state;
    gs_dataset_shape shape;
    void *data = open_set(&feature_options, &shape);
    assert_int_equal(shape.num_samples, 100);
    assert_int_equal(shape.row_features, 8);
    float sums[4][8] = {{0}}, samples[300][8];
    int counts[4] = {0}, labels[300], right = 0;
    for (int i = 0; i < 300; i++) {
        int32_t label;
        assert_int_equal(gs_dataset_synthetic.fill(data, i, NULL, samples[i], &label).code, GS_OK);
        labels[i] = label;
        counts[label]++;
        for (int f = 0; f < 8; f++) sums[label][f] += samples[i][f];
    }
    for (int i = 0; i < 300; i++) {
        int best = 0;
        double least = INFINITY;
        for (int c = 0; c < 4; c++) {
            double distance = 0.0;
            for (int f = 0; f < 8; f++) {
                double d = (double)(samples[i][f] - sums[c][f] / (float)counts[c]);
                distance += d * d;
            }
            if (distance < least) {
                least = distance;
                best = c;
            }
        }
        right += best == labels[i];
    }
    assert_true(right > 270);
    gs_dataset_synthetic.close(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_seeds_give_equal_samples),
        cmocka_unit_test(most_next_tokens_follow_one_rule),
        cmocka_unit_test(features_lie_near_the_centre_of_their_class),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
