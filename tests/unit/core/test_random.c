#include "core/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

static const gs_random_key key = {.seed = 1337, .stream = 42};

static void philox_gives_the_published_words(void **state) {
    (void)state;
    // Known answers of Philox 4x32-10 from the authors' test suite: counter and key all zero, all ones.
    uint32_t out[4];
    gs_random_block(out, (gs_random_key){0, 0}, 0);
    const uint32_t zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    assert_memory_equal(out, zero, sizeof out);
    gs_random_block(out, (gs_random_key){UINT64_MAX, UINT64_MAX}, UINT64_MAX);
    const uint32_t ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    assert_memory_equal(out, ones, sizeof out);
}

static void any_part_can_be_drawn_alone(void **state) {
    (void)state;
    float whole[100], part[37];
    gs_random_fill_normal(whole, 100, key, 0, 0, 1);
    gs_random_fill_normal(part, 37, key, 50, 0, 1);
    assert_memory_equal(whole + 50, part, sizeof part);
}

static void normal_numbers_have_mean_and_deviation(void **state) {
    (void)state;
    enum { COUNT = 20000 };
    float *x = malloc(COUNT * sizeof *x);
    gs_random_fill_normal(x, COUNT, key, 0, 3, 2);
    double sum = 0, squares = 0;
    for (int i = 0; i < COUNT; i++) sum += x[i];
    double mean = sum / COUNT;
    for (int i = 0; i < COUNT; i++) squares += (x[i] - mean) * (x[i] - mean);
    assert_true(fabs(mean - 3) < 0.06);
    assert_true(fabs(sqrt(squares / COUNT) - 2) < 0.05);
    free(x);
}

static void uniform_numbers_stay_inside(void **state) {
    (void)state;
    float x[5000];
    gs_random_fill_uniform(x, 5000, key, 0, -0.5f, 0.25f);
    for (int i = 0; i < 5000; i++) {
        assert_true(x[i] >= -0.5f && x[i] <= 0.25f);
        double u = gs_random_uniform(key, (uint64_t)i);
        assert_true(u >= 0 && u < 1);
    }
}

static void permutation_hits_each_index_once(void **state) {
    (void)state;
    const uint64_t counts[] = {1, 2, 3, 5, 16, 17, 100, 1023, 1024, 4097};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        unsigned char *seen = calloc(counts[c], 1);
        for (uint64_t i = 0; i < counts[c]; i++) {
            uint64_t image = gs_random_permute(key, counts[c], i);
            assert_true(image < counts[c]);
            assert_int_equal(seen[image]++, 0);
        }
        free(seen);
    }
}

static void permutation_depends_on_the_key(void **state) {
    (void)state;
    int same = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        gs_random_key other = {.seed = key.seed, .stream = key.stream + 1};
        same += gs_random_permute(key, 1000, i) == gs_random_permute(other, 1000, i);
    }
    assert_in_range(same, 0, 20);
}

static void huge_counts_are_permuted_too(void **state) {
    (void)state;
    uint64_t count = UINT64_C(1) << 61;
    assert_true(gs_random_permute(key, count, count - 1) < count);
    assert_true(gs_random_permute(key, count, 0) != gs_random_permute(key, count, 1));
}

static void a_bag_gives_each_number_once(void **state) {
    (void)state;
    gs_random_bag bag = {0};
    uint64_t drawn[3 * GS_RANDOM_BAG_NUMBERS];
    for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++) {
        drawn[i] = gs_random_bag_draw(&bag);
        assert_true(drawn[i] != 0);
        for (size_t k = 0; k < i; k++) assert_true(drawn[k] != drawn[i]);
        // Whoever reads the bag finds none that was given out.
        for (size_t k = 0; k < GS_RANDOM_BAG_NUMBERS; k++) assert_true(bag.numbers[k] != drawn[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_words),
        cmocka_unit_test(any_part_can_be_drawn_alone),
        cmocka_unit_test(normal_numbers_have_mean_and_deviation),
        cmocka_unit_test(uniform_numbers_stay_inside),
        cmocka_unit_test(permutation_hits_each_index_once),
        cmocka_unit_test(permutation_depends_on_the_key),
        cmocka_unit_test(huge_counts_are_permuted_too),
        cmocka_unit_test(a_bag_gives_each_number_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
