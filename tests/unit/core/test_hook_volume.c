#include "core/hook_volume.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

// A matrix that pays, one that does not, a vector; lines of 16 floats.
static gs_param_spec params[4];
static const size_t members[] = {2, 0, 1};

static int make_params(void **state) {
    (void)state;
    params[0] = gs_param_spec_make(GS_FP32, 100, 60, "big");
    params[1] = gs_param_spec_make(GS_BF16, 3, 3, "small");  // its gradient is fp32
    params[2] = gs_param_spec_make(GS_FP32, 50, 0, "bias");
    params[3] = gs_param_spec_make(GS_FP32, 40, 8, "rows");
    params[3].sparse = true;
    return 0;
}

static gs_hook_volume volume_of(gs_hook_rule rule) {
    return gs_hook_volume_of(&rule, params, members, 3);
}

static void sums_travel_as_they_are_or_in_16_bits(void **state) {
    (void)state;
    gs_hook_volume plain = volume_of((gs_hook_rule){.kind = "allreduce"});
    assert_int_equal(plain.elements, 6000 + 9 + 50);
    assert_int_equal(plain.elements_sent, 6059);
    assert_int_equal(plain.wire_bytes, (6000 + 16 + 64) * 4);
    assert_int_equal(plain.num_compressed, 0);
    gs_hook_volume half = volume_of((gs_hook_rule){.kind = "bf16"});
    assert_int_equal(half.elements_sent, 6059);
    assert_int_equal(half.wire_bytes, (6000 + 16 + 64) * 2);
    gs_hook_volume wrapped = volume_of((gs_hook_rule){.kind = "allreduce", .wire_dtype = GS_FP16});
    assert_int_equal(wrapped.wire_bytes, half.wire_bytes);
}

static void factors_travel_in_place_of_a_matrix_that_pays(void **state) {
    (void)state;
    gs_hook_rule rule = {.kind = "powersgd", .rank = 2, .min_compression_rate = 2};
    gs_hook_volume volume = volume_of(rule);
    assert_int_equal(volume.num_compressed, 1);
    assert_int_equal(volume.elements, 6059);
    assert_int_equal(volume.elements_sent, 160 * 2 + 9 + 50);
    // The others with what rounds them up to a line.
    assert_int_equal(volume.wire_bytes, (160 * 2 + 16 + 64) * 4);
    rule.wire_dtype = GS_FP16;
    assert_int_equal(volume_of(rule).wire_bytes, (160 * 2 + 16 + 64) * 2);
    rule.min_compression_rate = 20;
    assert_int_equal(volume_of(rule).elements_sent, 6059);
}

static void a_whole_bucket_is_one_square(void **state) {
    (void)state;
    gs_hook_volume volume = volume_of((gs_hook_rule){.kind = "batched_powersgd", .rank = 3});
    assert_int_equal(volume.elements_sent, 2 * 78 * 3);  // 78 · 78 ≥ 6080
    assert_int_equal(volume.wire_bytes, 2 * 78 * 3 * 4);
    assert_int_equal(volume.num_compressed, 3);
}

static void bytes_come_with_scales(void **state) {
    (void)state;
    assert_int_equal(volume_of((gs_hook_rule){.kind = "int8", .world_size = 8}).wire_bytes,
                     (6080 + 16) * 8 / 2);
    assert_int_equal(volume_of((gs_hook_rule){.kind = "int8_channel", .world_size = 2}).wire_bytes,
                     6080 + 12 * 8);
    // 8 bits to everybody are more than 32 to one once there are many.
    assert_int_equal(volume_of((gs_hook_rule){.kind = "int8", .world_size = 9}).wire_bytes, 6080 * 4);
    assert_int_equal(volume_of((gs_hook_rule){.kind = "int8", .world_size = 9}).num_compressed, 0);
    assert_int_equal(volume_of((gs_hook_rule){.kind = "uint8_gather", .world_size = 2}).wire_bytes, 6080 * 4);
    gs_param_spec large = gs_param_spec_make(GS_FP32, 300, 100, "large");
    const size_t first = 0;
    gs_hook_rule rule = {.kind = "uint8_gather", .world_size = 3};
    // Parts of 9984, 48 elements left.
    assert_int_equal(gs_hook_volume_of(&rule, &large, &first, 1).wire_bytes,
                     (9984 * 4 + 9984 + 16) * 3 / 2 + 48 * 4);
    // (4 + 1) / 8 of plain sums and a little, in any world.
    for (rule.world_size = 2; rule.world_size <= 6; rule.world_size++) {
        double bytes = (double)gs_hook_volume_of(&rule, &large, &first, 1).wire_bytes / (4 * 30000);
        assert_true(bytes >= 5.0 / 8 && bytes < 5.0 / 8 * 1.01);
    }
}

static void what_is_owed_does_not_travel(void **state) {
    (void)state;
    gs_hook_volume largest = volume_of((gs_hook_rule){.kind = "topk", .world_size = 2, .ratio = 0.01});
    assert_int_equal(largest.elements_sent, 61);
    assert_int_equal(largest.wire_bytes, 512);  // 61 values and places
    gs_hook_volume signs = volume_of((gs_hook_rule){.kind = "onebit", .world_size = 2});
    assert_int_equal(signs.wire_bytes, 832);  // six means, 6059 bits and those of padding
    assert_int_equal(signs.num_compressed, 3);
    gs_hook_volume none = volume_of((gs_hook_rule){.kind = "noop"});
    assert_int_equal(none.elements_sent, 0);
    assert_int_equal(none.wire_bytes, 0);
}

static void ranks_without_neighbours_keep_their_gradients(void **state) {
    (void)state;
    gs_hook_rule rule = {.kind = "local_sgd", .world_size = 4, .local_ranks = 1};
    assert_int_equal(volume_of(rule).wire_bytes, 0);
    assert_int_equal(volume_of(rule).elements_sent, 0);
    rule.local_ranks = 2;
    assert_int_equal(volume_of(rule).wire_bytes, 6080 * 4);
    assert_int_equal(volume_of(rule).num_compressed, 0);
}

static void wide_types_and_sparse_gradients_count_as_they_lie(void **state) {
    (void)state;
    gs_param_spec wide = gs_param_spec_make(GS_FP64, 20, 0, "wide");
    const size_t first = 0, sparse = 3;
    gs_hook_rule rule = {.kind = "allreduce"};
    assert_int_equal(gs_hook_volume_of(&rule, &wide, &first, 1).wire_bytes, 24 * 8);
    gs_hook_volume rows = gs_hook_volume_of(&rule, params, &sparse, 1);
    assert_int_equal(rows.elements, 0);
    assert_int_equal(rows.wire_bytes, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_travel_as_they_are_or_in_16_bits),
        cmocka_unit_test(factors_travel_in_place_of_a_matrix_that_pays),
        cmocka_unit_test(a_whole_bucket_is_one_square),
        cmocka_unit_test(bytes_come_with_scales),
        cmocka_unit_test(what_is_owed_does_not_travel),
        cmocka_unit_test(ranks_without_neighbours_keep_their_gradients),
        cmocka_unit_test(wide_types_and_sparse_gradients_count_as_they_lie),
    };
    return cmocka_run_group_tests_name("core hook_volume", tests, make_params, NULL);
}
