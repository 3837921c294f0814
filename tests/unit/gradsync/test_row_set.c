#include "gradsync/sparse/row_set.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/random.h"

static void members_have_the_places_of_their_first_occurrence(void **state) {
    (void)state;
    gs_row_set set;
    assert_int_equal(gs_row_set_init(&set, 100, 3).code, GS_OK);
    assert_int_equal(gs_row_set_add(&set, 42), 0);
    assert_int_equal(gs_row_set_add(&set, 7), 1);
    assert_int_equal(gs_row_set_add(&set, 42), 0);
    assert_int_equal(gs_row_set_add(&set, 99), 2);
    assert_int_equal(gs_row_set_add(&set, 0), -1);
    assert_int_equal(gs_row_set_add(&set, 7), 1);
    assert_int_equal(set.count, 3);
    gs_row_set_clear(&set);
    assert_int_equal(set.count, 0);
    assert_int_equal(gs_row_set_add(&set, 0), 0);
    gs_row_set_release(&set);
}

static void sorted_members_ascend_and_are_found(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        gs_random_key key = {seed, 5};
        size_t num_rows = 1 + gs_random_u64(key, 0) % 400, num = gs_random_u64(key, 1) % 300;
        gs_row_set set;
        assert_int_equal(gs_row_set_init(&set, num_rows, num_rows).code, GS_OK);
        uint8_t wanted[400] = {0};
        for (size_t i = 0; i < num; i++) {
            int32_t row = (int32_t)(gs_random_u64(key, 2 + i) % num_rows);
            wanted[row] = 1;
            assert_true(gs_row_set_add(&set, row) >= 0);
        }
        gs_row_set_sort(&set);
        size_t place = 0;
        for (size_t row = 0; row < num_rows; row++) {
            assert_int_equal(gs_row_set_lower_bound(&set, (int64_t)row), place);
            if (!wanted[row]) continue;
            assert_int_equal(set.rows[place], row);
            assert_int_equal(set.place_of[row], place++);
        }
        assert_int_equal(set.count, place);
        gs_row_set_release(&set);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_have_the_places_of_their_first_occurrence),
        cmocka_unit_test(sorted_members_ascend_and_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
