#include "gradsync/step/logical_shards.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"

#define MAX_SHARDS 64

static void every_shard_has_one_owner_and_owners_are_contiguous(void **state) {
    (void)state;
    for (int num_shards = 1; num_shards <= 40; num_shards++) {
        for (int world = 1; world <= num_shards; world++) {
            gs_logical_shards shards = {.num_shards = num_shards, .world_size = world};
            assert_int_equal(gs_logical_shards_first(&shards, 0), 0);
            assert_int_equal(gs_logical_shards_first(&shards, world), num_shards);
            for (int rank = 0; rank < world; rank++) {
                int first = gs_logical_shards_first(&shards, rank);
                int next = gs_logical_shards_first(&shards, rank + 1);
                shards.rank = rank;
                assert_int_equal(gs_logical_shards_count(&shards), next - first);
                assert_true(next > first);
                for (int s = first; s < next; s++)
                    assert_int_equal(gs_logical_shards_owner(&shards, s), rank);
            }
        }
    }
}

// The definition, straight: left child is the largest power of two below the size.
static float sum_along_tree(const float *values, int num_shards) {
    if (num_shards == 1) return values[0];
    int left = 1;
    while (left * 2 < num_shards) left *= 2;
    return sum_along_tree(values, left) + sum_along_tree(values + left, num_shards - left);
}

static float sum_by_world(const float *values, int num_shards, int world, int *num_inputs) {
    gs_logical_shards shards = {.num_shards = num_shards, .world_size = world, .exact = true};
    int num_slots = gs_logical_shards_num_slots(&shards);
    float slots[MAX_SHARDS][MAX_SHARDS];
    for (int r = 0; r < world; r++) {
        shards.rank = r;
        int first = gs_logical_shards_first(&shards, r);
        for (int i = 0; i < gs_logical_shards_count(&shards); i++) {
            int slot, merges;
            gs_logical_shards_step(&shards, i, &slot, &merges);
            assert_true(slot < num_slots);
            slots[r][slot] = values[first + i];
            for (; merges; merges--, slot--) slots[r][slot - 1] += slots[r][slot];
        }
    }
    gs_shard_tree tree;
    gs_status status = gs_shard_tree_init(&tree, &shards);
    assert_string_equal(status.message, "");
    float stack[GS_REDUCE_MAX_INPUTS];
    int depth = 0;
    for (int i = 0; i < tree.tree.num_inputs; i++) {
        assert_true(tree.tree.part[i] < num_slots);
        stack[depth++] = slots[tree.tree.rank[i]][tree.tree.part[i]];
        for (int m = tree.tree.merges[i]; m; m--, depth--) stack[depth - 2] += stack[depth - 1];
    }
    assert_int_equal(depth, 1);
    *num_inputs = tree.tree.num_inputs;
    gs_shard_tree_release(&tree);
    return stack[0];
}

static void sums_have_the_same_bits_for_every_world_size(void **state) {
    (void)state;
    for (int num_shards = 1; num_shards <= MAX_SHARDS; num_shards++) {
        float values[MAX_SHARDS];
        gs_random_fill_normal(values, (size_t)num_shards,
                              (gs_random_key){.seed = 3, .stream = (uint64_t)num_shards}, 0, 0, 1);
        float expected = sum_along_tree(values, num_shards);
        for (int world = 1; world <= num_shards; world++) {
            int num_inputs;
            float sum = sum_by_world(values, num_shards, world, &num_inputs);
            assert_memory_equal(&sum, &expected, sizeof sum);
        }
    }
}

static void powers_of_two_need_one_partial_sum_for_each_rank(void **state) {
    (void)state;
    float values[MAX_SHARDS] = {0};
    for (int world = 1; world <= 16; world *= 2) {
        int num_inputs;
        sum_by_world(values, MAX_SHARDS, world, &num_inputs);
        assert_int_equal(num_inputs, world);
    }
}

static void slots_stay_few(void **state) {
    (void)state;
    gs_logical_shards shards = {
        .num_shards = GS_MAX_LOGICAL_SHARDS, .world_size = 1, .exact = true};
    assert_int_equal(gs_logical_shards_num_slots(&shards), 13);
    shards.exact = false;
    assert_int_equal(gs_logical_shards_num_slots(&shards), 1);
    shards = (gs_logical_shards){.num_shards = 4, .world_size = 4, .exact = true};
    assert_int_equal(gs_logical_shards_num_slots(&shards), 1);
}

static void tree_that_needs_too_many_partial_sums_is_refused(void **state) {
    (void)state;
    const struct {
        int num_shards, world_size;
        const char *words;
    } cases[] = {{4095, 63, "4095 logical shards on 63 ranks"},  // a world that divides them
                 {4095, 63, "at most 64"},
                 {4095, 63, "4032 would do"},
                 {1000, 48, "768 would do"},
                 {100, 65, "a world of more than 64 ranks"},
                 {3, 4, "logical shards: 3, must be 4 to 4096"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gs_logical_shards shards = {
            .num_shards = cases[i].num_shards, .world_size = cases[i].world_size, .exact = true};
        gs_status status = gs_logical_shards_check(&shards);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        if (!strstr(status.message, cases[i].words)) fail_msg("%s", status.message);
    }
}

static void shards_named_in_a_refusal_fit(void **state) {
    (void)state;
    for (int world = 1; world <= GS_REDUCE_MAX_INPUTS; world++) {
        for (int num_shards = world; num_shards <= GS_MAX_LOGICAL_SHARDS; num_shards *= 2) {
            gs_logical_shards shards = {
                .num_shards = num_shards, .world_size = world, .exact = true};
            gs_status status = gs_logical_shards_check(&shards);
            assert_string_equal(status.message, "");
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shard_has_one_owner_and_owners_are_contiguous),
        cmocka_unit_test(sums_have_the_same_bits_for_every_world_size),
        cmocka_unit_test(powers_of_two_need_one_partial_sum_for_each_rank),
        cmocka_unit_test(slots_stay_few),
        cmocka_unit_test(shards_named_in_a_refusal_fit),
        cmocka_unit_test(tree_that_needs_too_many_partial_sums_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
