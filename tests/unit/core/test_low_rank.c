#include "core/low_rank.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static gs_param_spec spec_of(int num_dims, int64_t a, int64_t b, int64_t c, int64_t d) {
    return (gs_param_spec){
        .name = "w", .dtype = GS_FP32, .num_dims = num_dims, .shape = {a, b, c, d}};
}

static void the_first_dimension_is_the_rows(void **state) {
    (void)state;
    gs_param_spec conv = spec_of(4, 16, 3, 5, 5);
    gs_low_rank shape = gs_low_rank_of(&conv, 2, 2);
    assert_int_equal(shape.rows, 16);
    assert_int_equal(shape.cols, 75);
    assert_int_equal(shape.rank, 2);
    assert_int_equal(gs_low_rank_elements(shape), 1200);
    assert_int_equal(gs_low_rank_sent(shape), 182);
}

static void the_rate_must_be_passed_not_met(void **state) {
    (void)state;
    gs_param_spec met = spec_of(2, 4, 4, 0, 0),
                  passed = spec_of(2, 4, 5, 0, 0);  // (4 + 4)·1·2 = 4·4
    assert_int_equal(gs_low_rank_of(&met, 1, 2).rank, 0);
    assert_int_equal(gs_low_rank_sent(gs_low_rank_of(&met, 1, 2)), 16);
    assert_int_equal(gs_low_rank_of(&passed, 1, 2).rank, 1);
    assert_int_equal(gs_low_rank_of(&met, 1, 1.999).rank, 1);
}

static void a_rank_is_never_above_a_side(void **state) {
    (void)state;
    gs_param_spec flat = spec_of(2, 2, 100, 0, 0), tall = spec_of(2, 100, 3, 0, 0);
    assert_int_equal(gs_low_rank_of(&flat, 64, 0.5).rank, 2);
    assert_int_equal(gs_low_rank_of(&tall, 64, 0.5).rank, 3);
}

static void vectors_pay_below_a_rate_of_one_alone(void **state) {
    (void)state;
    gs_param_spec vector = spec_of(1, 8, 0, 0, 0), scalar = spec_of(0, 0, 0, 0, 0);
    gs_low_rank shape = gs_low_rank_of(&vector, 4, 0.5);
    assert_int_equal(shape.rows, 8);
    assert_int_equal(shape.cols, 1);
    assert_int_equal(shape.rank, 1);
    assert_int_equal(gs_low_rank_of(&vector, 4, 1).rank, 0);
    assert_int_equal(gs_low_rank_of(&scalar, 1, 0.5).rank, 0);  // 2 · 0.5 = 1
    assert_int_equal(gs_low_rank_sent(gs_low_rank_of(&scalar, 1, 1)), 1);
}

static void what_has_no_dense_gradient_has_no_elements(void **state) {
    (void)state;
    gs_param_spec empty = spec_of(2, 0, 7, 0, 0), sparse = spec_of(2, 100, 100, 0, 0);
    sparse.sparse = true;
    assert_int_equal(gs_low_rank_of(&empty, 1, 0.001).rank, 0);
    assert_int_equal(gs_low_rank_elements(gs_low_rank_of(&empty, 1, 0.001)), 0);
    assert_int_equal(gs_low_rank_of(&sparse, 1, 1).rank, 0);
    assert_int_equal(gs_low_rank_sent(gs_low_rank_of(&sparse, 1, 1)), 0);
}

static void a_side_is_the_least_that_has_room(void **state) {
    (void)state;
    static const size_t counts[] = {0, 1, 2, 4, 5, 9, 10, 15, 16, 17, 1000000, 1000001};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        size_t side = gs_low_rank_side(counts[i]);
        assert_true(side * side >= counts[i]);
        assert_true(!side || (side - 1) * (side - 1) < counts[i]);
    }
    assert_int_equal(gs_low_rank_side(((size_t)1 << 60) + 1), ((size_t)1 << 30) + 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_dimension_is_the_rows),
        cmocka_unit_test(the_rate_must_be_passed_not_met),
        cmocka_unit_test(a_rank_is_never_above_a_side),
        cmocka_unit_test(vectors_pay_below_a_rate_of_one_alone),
        cmocka_unit_test(what_has_no_dense_gradient_has_no_elements),
        cmocka_unit_test(a_side_is_the_least_that_has_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
