#include "core/u64_map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void keys_are_found_until_removed(void **state) {
    (void)state;
    gs_u64_map map = {0};
    static char values[3000];
    assert_null(gs_u64_map_get(&map, 5));
    gs_u64_map_remove(&map, 5);
    for (uint64_t key = 1; key < 3000; key++) assert_true(gs_u64_map_set(&map, key, &values[key]));
    assert_int_equal(map.count, 2999);
    for (uint64_t key = 1; key < 3000; key += 2) gs_u64_map_remove(&map, key);
    assert_int_equal(map.count, 1499);
    for (uint64_t key = 1; key < 3000; key++) {
        assert_ptr_equal(gs_u64_map_get(&map, key), key % 2 ? NULL : &values[key]);
    }
    assert_true(gs_u64_map_set(&map, 2, &values[0]));
    assert_int_equal(map.count, 1499);
    assert_ptr_equal(gs_u64_map_get(&map, 2), &values[0]);
    gs_u64_map_release(&map);
}

// Against a plain array, with few keys so that chains form and break often.
static void random_changes_agree_with_an_array(void **state) {
    (void)state;
    gs_u64_map map = {0};
    static char values[40];
    char *expected[40] = {0};
    uint64_t bits = 0x9e3779b97f4a7c15;
    for (int i = 0; i < 50000; i++) {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        size_t key = 1 + (bits >> 8) % 39;
        if (bits & 1) {
            assert_true(gs_u64_map_set(&map, key << 32, &values[key]));
            expected[key] = &values[key];
        } else {
            gs_u64_map_remove(&map, key << 32);
            expected[key] = NULL;
        }
        size_t other = 1 + (bits >> 40) % 39;
        assert_ptr_equal(gs_u64_map_get(&map, other << 32), expected[other]);
    }
    gs_u64_map_release(&map);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_found_until_removed),
        cmocka_unit_test(random_changes_agree_with_an_array),
    };
    return cmocka_run_group_tests_name("core u64_map", tests, NULL, NULL);
}
