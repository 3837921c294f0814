// Where a rank's own tensors lie, as another rank reads it: what it says at any moment, and what of it is not
// believed.
#include "gradsync/hooks/own_places.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { NUM = 3, BYTES = 16 };

typedef union arena {
    gs_own_places places;
    unsigned char bytes[1024];
} arena;

static void note(arena *it, int64_t step, size_t first) {
    gs_own_places_forget(&it->places, step);
    for (size_t i = 0; i < NUM; i++)
        gs_own_places_set(&it->places, step, i, it->bytes + first + i * BYTES);
    gs_own_places_know(&it->places, step);
}

static const void *find(const arena *it, int64_t step, size_t tensor) {
    return gs_own_places_find(it, sizeof *it, NUM, step, tensor, BYTES);
}

static void two_steps_are_known_and_the_third_replaces_the_first(void **state) {
    (void)state;
    arena it = {0};
    assert_true(gs_own_places_bytes(NUM) <= 128);
    gs_own_places_init(&it.places, NUM);
    for (int64_t step = 0; step < 3; step++) assert_null(find(&it, step, 0));
    note(&it, 7, 128);
    note(&it, 8, 512);
    assert_ptr_equal(find(&it, 7, 2), it.bytes + 128 + 2 * BYTES);
    assert_ptr_equal(find(&it, 8, 0), it.bytes + 512);
    assert_null(find(&it, 6, 0));
    assert_null(find(&it, 9, 0));
    gs_own_places_forget(&it.places, 9);
    assert_null(find(&it, 7, 2));
    assert_non_null(find(&it, 8, 0));
    note(&it, 9, 128);
    assert_ptr_equal(find(&it, 9, 1), it.bytes + 128 + BYTES);
    assert_null(find(&it, 7, 1));
}

static void what_a_dead_rank_scribbled_leads_nowhere(void **state) {
    (void)state;
    arena it = {0};
    assert_null(find(&it, 0, 0));  // zeros are no places
    gs_own_places_init(&it.places, NUM);
    note(&it, 4, 128);
    assert_null(find(&it, 4, NUM));
    assert_null(find(&it, -1, 0));
    assert_null(gs_own_places_find(&it, sizeof it, NUM + 1, 4, 0, BYTES));
    assert_null(gs_own_places_find(&it, gs_own_places_bytes(NUM) - 1, NUM, 4, 0, BYTES));
    assert_non_null(gs_own_places_find(&it, 128 + BYTES, NUM, 4, 0, BYTES));
    assert_null(gs_own_places_find(&it, 128 + BYTES - 1, NUM, 4, 0, BYTES));
    it.places.offsets[0] = UINT64_MAX - 8;
    assert_null(find(&it, 4, 0));
    it.places.magic++;
    assert_null(find(&it, 4, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_steps_are_known_and_the_third_replaces_the_first),
        cmocka_unit_test(what_a_dead_rank_scribbled_leads_nowhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
