#include "gradsync/reducer/order_watch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"

#define NUM_PARAMS 48
#define GROUP 4  // parameters of a layer, used together or not

static void fill(size_t *order, bool backwards) {
    for (size_t i = 0; i < NUM_PARAMS; i++) order[i] = backwards ? NUM_PARAMS - 1 - i : i;
}

static gs_order_watch *open_watch(bool backwards, bool is_observed, int64_t first_passes) {
    size_t planned[NUM_PARAMS];
    fill(planned, backwards);
    gs_order_watch *watch;
    gs_status status =
        gs_order_watch_create(&watch, planned, NUM_PARAMS, is_observed, first_passes);
    assert_string_equal(status.message, "");
    return watch;
}

// The verdict on `count` passes in this order that is not SAME, and how many there were.
static gs_order_verdict add_many(gs_order_watch *watch, const size_t *order, int count, int *told) {
    gs_order_verdict last = GS_ORDER_SAME;
    *told = 0;
    for (int i = 0; i < count; i++) {
        gs_order_verdict verdict = gs_order_watch_add(watch, order, NUM_PARAMS);
        if (verdict == GS_ORDER_SAME) continue;
        last = verdict;
        ++*told;
    }
    return last;
}

static void the_first_order_is_told_after_as_many_passes_as_asked(void **state) {
    (void)state;
    for (int64_t passes = 1; passes <= 40; passes += 13) {
        size_t order[NUM_PARAMS];
        gs_order_watch *watch = open_watch(true, false, passes);
        fill(order, false);
        for (int64_t i = 1; i <= 100; i++) {
            gs_order_verdict verdict = gs_order_watch_add(watch, order, NUM_PARAMS);
            gs_order_verdict wanted = i == passes ? GS_ORDER_SETTLED
                                      : i == 1    ? GS_ORDER_SEEN
                                                  : GS_ORDER_SAME;
            assert_int_equal(verdict, wanted);
            if (verdict != GS_ORDER_SAME)
                assert_memory_equal(gs_order_watch_order(watch), order, sizeof order);
        }
        gs_order_watch_destroy(watch);
    }
}

static void what_a_plan_follows_already_is_not_told_again(void **state) {
    (void)state;
    size_t order[NUM_PARAMS];
    int told;
    gs_order_watch *watch = open_watch(false, true, 1);
    fill(order, false);
    assert_int_equal(add_many(watch, order, 200, &told), GS_ORDER_SAME);
    gs_order_watch_destroy(watch);
}

static void a_change_for_good_is_told_once(void **state) {
    (void)state;
    size_t order[NUM_PARAMS];
    int told;
    gs_order_watch *watch = open_watch(false, true, 1);
    fill(order, false);
    add_many(watch, order, 50, &told);
    fill(order, true);
    assert_int_equal(add_many(watch, order, 4 * GS_ORDER_WINDOW, &told), GS_ORDER_SETTLED);
    assert_int_equal(told, 1);
    assert_memory_equal(gs_order_watch_order(watch), order, sizeof order);
    add_many(watch, order, 500, &told);
    assert_int_equal(told, 0);
    gs_order_watch_destroy(watch);
}

// One pass in five comes the other way round: the average of a window hardly moves.
static void outliers_are_not_told(void **state) {
    (void)state;
    size_t order[NUM_PARAMS], other[NUM_PARAMS];
    int told;
    gs_order_watch *watch = open_watch(false, true, 1);
    fill(order, false);
    fill(other, true);
    for (int i = 0; i < 1000; i++) {
        const size_t *now = i % 5 == 4 ? other : order;
        if (gs_order_watch_add(watch, now, NUM_PARAMS) != GS_ORDER_SAME) fail_msg("pass %d", i);
    }
    add_many(watch, order, 1, &told);
    gs_order_watch_destroy(watch);
}

static void neighbours_that_change_places_are_not_told(void **state) {
    (void)state;
    size_t order[NUM_PARAMS];
    gs_order_watch *watch = open_watch(false, true, 1);
    for (uint64_t i = 0; i < 1000; i++) {
        fill(order, false);
        for (uint64_t k = 0; k < 8; k++) {
            size_t at =
                gs_random_u64((gs_random_key){.seed = 5, .stream = i}, k) % (NUM_PARAMS - 1);
            size_t swapped = order[at];
            order[at] = order[at + 1];
            order[at + 1] = swapped;
        }
        assert_int_equal(gs_order_watch_add(watch, order, NUM_PARAMS), GS_ORDER_SAME);
    }
    gs_order_watch_destroy(watch);
}

// Layers that are skipped at random take no place from the others: the order is found although no
// pass is whole, and told at most twice (the first pass cannot know where the skipped ones belong).
static void unused_parameters_keep_their_places(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        size_t order[NUM_PARAMS], ready[NUM_PARAMS];
        int told = 0;
        gs_order_watch *watch = open_watch(false, false, 1);
        // A layer's parameters come in another order than registered, the layers as registered.
        for (size_t i = 0; i < NUM_PARAMS; i++)
            order[i] = i / GROUP * GROUP + (GROUP - 1 - i % GROUP);
        for (uint64_t pass = 0; pass < 500; pass++) {
            size_t num_ready = 0;
            for (size_t i = 0; i < NUM_PARAMS; i++) {
                uint64_t bits =
                    gs_random_u64((gs_random_key){.seed = seed, .stream = pass}, i / GROUP);
                if (bits % 10 >= 4) ready[num_ready++] = order[i];
            }
            told += gs_order_watch_add(watch, ready, num_ready) != GS_ORDER_SAME;
        }
        if (told < 1 || told > 2)
            fail_msg("seed %llu: told %d times", (unsigned long long)seed, told);
        assert_memory_equal(gs_order_watch_estimate(watch), order, sizeof order);
        gs_order_watch_destroy(watch);
    }
}

static void a_pass_without_gradients_changes_nothing(void **state) {
    (void)state;
    size_t order[NUM_PARAMS];
    gs_order_watch *watch = open_watch(false, true, 1);
    fill(order, false);
    for (int i = 0; i < 100; i++)
        assert_int_equal(gs_order_watch_add(watch, order, i % 3 ? NUM_PARAMS : 0), GS_ORDER_SAME);
    gs_order_watch_destroy(watch);
}

// Rank 0 has no data in its first steps: what it tells afterwards is what it saw.
static void nothing_is_told_before_a_gradient_was_seen(void **state) {
    (void)state;
    size_t order[NUM_PARAMS];
    gs_order_watch *watch = open_watch(true, false, 1);
    fill(order, false);
    for (int i = 0; i < 3; i++)
        assert_int_equal(gs_order_watch_add(watch, order, 0), GS_ORDER_SAME);
    assert_int_equal(gs_order_watch_add(watch, order, NUM_PARAMS), GS_ORDER_SETTLED);
    assert_memory_equal(gs_order_watch_order(watch), order, sizeof order);
    gs_order_watch_destroy(watch);
}

// Whatever gradients do, plans change more and more seldom.
static void an_order_that_never_rests_is_told_less_and_less(void **state) {
    (void)state;
    size_t order[NUM_PARAMS];
    int told = 0, in_part;
    gs_order_watch *watch = open_watch(false, true, 1);
    for (int part = 0; part < 40; part++) {
        fill(order, part % 2 == 0);
        add_many(watch, order, 3 * GS_ORDER_WINDOW, &in_part);
        told += in_part;
    }
    assert_in_range(told, 2, 7);  // 1920 passes, at least 32, 64, 128 … apart
    gs_order_watch_destroy(watch);
}

static void no_parameters_are_no_trouble(void **state) {
    (void)state;
    gs_order_watch *watch;
    size_t none = 0;
    gs_status status = gs_order_watch_create(&watch, &none, 0, true, 1);
    assert_string_equal(status.message, "");
    for (int i = 0; i < 40; i++)
        assert_int_equal(gs_order_watch_add(watch, &none, 0), GS_ORDER_SAME);
    gs_order_watch_destroy(watch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_order_is_told_after_as_many_passes_as_asked),
        cmocka_unit_test(what_a_plan_follows_already_is_not_told_again),
        cmocka_unit_test(a_change_for_good_is_told_once),
        cmocka_unit_test(outliers_are_not_told),
        cmocka_unit_test(neighbours_that_change_places_are_not_told),
        cmocka_unit_test(unused_parameters_keep_their_places),
        cmocka_unit_test(a_pass_without_gradients_changes_nothing),
        cmocka_unit_test(nothing_is_told_before_a_gradient_was_seen),
        cmocka_unit_test(an_order_that_never_rests_is_told_less_and_less),
        cmocka_unit_test(no_parameters_are_no_trouble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
