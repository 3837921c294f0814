#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "gradsync/step/logical_shards.h"
#include "worker/data/sampler.h"

static const gs_sampler shuffled = {.seed = 7,
                                    .num_samples = 103,
                                    .global_batch = 12,
                                    .num_shards = 3,
                                    .passes_per_shard = 2,
                                    .shuffle = true};

static int64_t index_at(const gs_sampler *sampler, int64_t position) {
    int64_t pass_rows = sampler->global_batch / sampler->num_shards / sampler->passes_per_shard;
    int64_t step = position / sampler->global_batch, rest = position % sampler->global_batch;
    int64_t micro = rest / pass_rows;
    return gs_sampler_index(sampler, step * sampler->global_batch,
                            (int)(micro / sampler->passes_per_shard),
                            (int)(micro % sampler->passes_per_shard), rest % pass_rows);
}

static void every_sample_comes_once_in_each_epoch(void **state) {
    (void)state;
    for (int64_t epoch = 0; epoch < 5; epoch++) {
        int seen[103] = {0};
        for (int64_t i = 0; i < 103; i++) {
            int64_t index = index_at(&shuffled, epoch * 103 + i);
            assert_in_range(index, 0, 102);
            seen[index]++;
        }
        for (int i = 0; i < 103; i++) assert_int_equal(seen[i], 1);
    }
}

static void epochs_and_seeds_have_different_orders(void **state) {
    (void)state;
    gs_sampler other = shuffled;
    other.seed = 8;
    int same_epoch = 0, same_seed = 0;
    for (int64_t i = 0; i < 103; i++) {
        same_epoch += index_at(&shuffled, i) == index_at(&shuffled, 103 + i);
        same_seed += index_at(&shuffled, i) == index_at(&other, i);
    }
    assert_in_range(same_epoch, 0, 10);
    assert_in_range(same_seed, 0, 10);
}

static void without_shuffling_the_order_is_the_files(void **state) {
    (void)state;
    gs_sampler plain = shuffled;
    plain.shuffle = false;
    for (int64_t i = 0; i < 300; i++) assert_int_equal(index_at(&plain, i), i % 103);
}

// The union of what the ranks of any world take in a step is the same sequence of samples.
static void the_global_batch_does_not_depend_on_the_world(void **state) {
    (void)state;
    gs_sampler sampler = shuffled;
    sampler.num_shards = 6;
    sampler.passes_per_shard = 1;
    for (int world = 1; world <= 6; world++) {
        int64_t taken = 0;
        for (int rank = 0; rank < world; rank++) {
            gs_logical_shards shards = {.num_shards = 6, .world_size = world, .rank = rank};
            int first = gs_logical_shards_first(&shards, rank);
            for (int i = 0; i < gs_logical_shards_count(&shards); i++)
                for (int64_t row = 0; row < 2; row++)
                    assert_int_equal(gs_sampler_index(&sampler, 24, first + i, 0, row),
                                     index_at(&sampler, 24 + taken++));
        }
        assert_int_equal(taken, 12);
    }
}

static void a_batch_may_be_larger_than_the_data(void **state) {
    (void)state;
    gs_sampler sampler = {.seed = 1,
                          .num_samples = 5,
                          .global_batch = 20,
                          .num_shards = 1,
                          .passes_per_shard = 1,
                          .shuffle = true};
    int seen[5] = {0};
    for (int64_t row = 0; row < 20; row++) seen[gs_sampler_index(&sampler, 0, 0, 0, row)]++;
    for (int i = 0; i < 5; i++) assert_int_equal(seen[i], 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_comes_once_in_each_epoch),
        cmocka_unit_test(epochs_and_seeds_have_different_orders),
        cmocka_unit_test(without_shuffling_the_order_is_the_files),
        cmocka_unit_test(the_global_batch_does_not_depend_on_the_world),
        cmocka_unit_test(a_batch_may_be_larger_than_the_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
