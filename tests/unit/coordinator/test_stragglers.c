#include "coordinator/observe/reports/stragglers.h"
#include "tests/support/asserts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MOST_RANKS 8

// A world in which rank `slow` needs `late` seconds longer, waiting for data or computing, and the others
// wait for it.
typedef struct world {
    gs_stragglers *stragglers;
    int num_ranks, slow;
    double late, late_data, transfer;
    int64_t step;
} world;

static void open_world(world *w, int num_ranks, int slow) {
    *w = (world){.num_ranks = num_ranks, .slow = slow};
    w->stragglers = gs_stragglers_create(num_ranks);
    assert_non_null(w->stragglers);
}

static void tell_rank(const world *w, int rank, int64_t step) {
    bool slow = rank == w->slow;
    // A little noise that is the same every time: ranks differ by some per cent.
    double noise = 0.001 * (double)((step * 7 + rank * 3) % 5);
    gs_straggler_sample sample = {.compute = 0.1 + noise + (slow ? w->late : 0),
                                  .wait = slow ? 0.0001 : 0.0001 + noise + w->late,
                                  .transfer = 0.01 + (slow ? w->transfer : 0),
                                  .data = 0.001 + (slow ? w->late_data : 0),
                                  .step_seconds = 0.12 + w->late};
    gs_stragglers_add(w->stragglers, rank, step, &sample);
}

static void run_steps(world *w, int count) {
    for (int i = 0; i < count; i++) {
        for (int rank = 0; rank < w->num_ranks; rank++) tell_rank(w, rank, w->step);
        w->step++;
    }
}

static bool is_flagged(const world *w, int rank) {
    return gs_stragglers_view(w->stragglers, rank).flagged;
}

static void the_rank_that_waits_least_is_the_straggler(void **state) {
    (void)state;
    for (int num_ranks = 2; num_ranks <= MOST_RANKS; num_ranks *= 2) {
        world w;
        open_world(&w, num_ranks, 1);
        w.late = 0.04;
        run_steps(&w, 4 * GS_STRAGGLER_WINDOW);
        for (int rank = 0; rank < num_ranks; rank++) assert_int_equal(is_flagged(&w, rank), rank == 1);
        gs_straggler_view view = gs_stragglers_view(w.stragglers, 1);
        assert_string_equal(view.phase, "compute");
        assert_true(view.share_last > 0.99);
        assert_near(view.median_lag_seconds, 0.042, 0.003);
        assert_near(view.lag_seconds, 0.042, 0.003);
        assert_true(view.compute_ratio > 1.3);
        assert_int_equal(view.last_arrivals, 4 * GS_STRAGGLER_WINDOW);
        assert_true(view.blame_seconds > 0.04 * 4 * GS_STRAGGLER_WINDOW);
        assert_near(gs_stragglers_step_seconds(w.stragglers), 0.16, 1e-7);
        assert_near(gs_stragglers_whatif_step_seconds(w.stragglers), 0.118, 0.003);
        gs_stragglers_destroy(w.stragglers);
    }
}

static void a_flag_needs_a_whole_window(void **state) {
    (void)state;
    world w;
    open_world(&w, 2, 0);
    run_steps(&w, GS_STRAGGLER_WINDOW);
    w.late = 0.04;
    run_steps(&w, GS_STRAGGLER_WINDOW / 2);
    assert_false(is_flagged(&w, 0));
    run_steps(&w, 2 * GS_STRAGGLER_WINDOW);
    assert_true(is_flagged(&w, 0));
    gs_stragglers_destroy(w.stragglers);
}

// It becomes a counter of the metrics page: one that fell would be taken for a restart.
static void lost_seconds_count_from_the_flag_on_and_never_fall(void **state) {
    (void)state;
    world w;
    double lost = 0;
    open_world(&w, 2, 0);
    w.late = 0.04;
    for (int i = 0; i < 12 * GS_STRAGGLER_WINDOW; i++) {
        bool was_flagged = is_flagged(&w, 0);
        if (i == 6 * GS_STRAGGLER_WINDOW) w.late = 0.0005;
        run_steps(&w, 1);
        gs_straggler_view view = gs_stragglers_view(w.stragglers, 0);
        assert_true(was_flagged ? view.lost_seconds >= lost : view.lost_seconds == lost);
        assert_true(view.lost_seconds <= view.blame_seconds);
        lost = view.lost_seconds;
    }
    assert_false(is_flagged(&w, 0));
    assert_true(lost > 0.04 * 3 * GS_STRAGGLER_WINDOW);
    assert_near(gs_stragglers_view(w.stragglers, 1).lost_seconds, 0, 0);
    gs_stragglers_destroy(w.stragglers);
}

static void steps_that_were_not_told_are_blamed_like_those_that_were(void **state) {
    (void)state;
    world every, some;
    open_world(&every, 2, 1);
    open_world(&some, 2, 1);
    every.late = some.late = 0.04;
    run_steps(&every, 32 * GS_STRAGGLER_WINDOW);
    for (int i = 0; i < 4 * GS_STRAGGLER_WINDOW; i++, some.step += 7) run_steps(&some, 1);
    double whole = gs_stragglers_view(every.stragglers, 1).blame_seconds;
    double told = gs_stragglers_view(some.stragglers, 1).blame_seconds;
    assert_true(told > 0.98 * whole && told < 1.02 * whole);
    gs_stragglers_destroy(every.stragglers);
    gs_stragglers_destroy(some.stragglers);
}

static void a_flag_stays_until_half_of_what_set_it(void **state) {
    (void)state;
    world w;
    open_world(&w, 2, 0);
    w.late = 0.04;
    run_steps(&w, 3 * GS_STRAGGLER_WINDOW);
    assert_true(is_flagged(&w, 0));
    w.late = 0.009;  // 7 % of a step: would not set it, does not clear it
    run_steps(&w, 3 * GS_STRAGGLER_WINDOW);
    assert_true(is_flagged(&w, 0));
    w.late = 0.0005;
    run_steps(&w, 3 * GS_STRAGGLER_WINDOW);
    assert_false(is_flagged(&w, 0));
    w.late = 0.009;
    run_steps(&w, 3 * GS_STRAGGLER_WINDOW);
    assert_false(is_flagged(&w, 0));
    gs_stragglers_destroy(w.stragglers);
}

static void a_spike_is_counted_and_not_flagged(void **state) {
    (void)state;
    world w;
    open_world(&w, 3, 2);
    run_steps(&w, GS_STRAGGLER_WINDOW);
    w.late = 1;
    run_steps(&w, 1);
    w.late = 0;
    run_steps(&w, GS_STRAGGLER_WINDOW);
    for (int rank = 0; rank < 3; rank++) assert_false(is_flagged(&w, rank));
    assert_int_equal(gs_stragglers_num_spikes(w.stragglers), 1);
    gs_stragglers_destroy(w.stragglers);
}

static void ranks_that_take_turns_are_no_stragglers(void **state) {
    (void)state;
    world w;
    open_world(&w, 2, 0);
    w.late = 0.04;
    for (int i = 0; i < 5 * GS_STRAGGLER_WINDOW; i++) {
        w.slow = i % 2;
        run_steps(&w, 1);
    }
    assert_false(is_flagged(&w, 0));
    assert_false(is_flagged(&w, 1));
    gs_stragglers_destroy(w.stragglers);
}

static void what_makes_it_late_is_told(void **state) {
    (void)state;
    world w;
    open_world(&w, 4, 3);
    w.late = w.late_data = 0.05;
    run_steps(&w, 3 * GS_STRAGGLER_WINDOW);
    assert_true(is_flagged(&w, 3));
    assert_string_equal(gs_stragglers_view(w.stragglers, 3).phase, "data");
    gs_stragglers_destroy(w.stragglers);
}

static void a_slow_link_is_told_from_slow_computing(void **state) {
    (void)state;
    gs_stragglers *stragglers = gs_stragglers_create(4);
    for (int64_t step = 0; step < 3 * GS_STRAGGLER_WINDOW; step++) {
        for (int rank = 0; rank < 4; rank++) {
            gs_straggler_sample sample = {.compute = 0.1,
                                          .wait = rank == 2 ? 0 : 0.03,
                                          .transfer = rank == 2 ? 0.05 : 0.01,
                                          .step_seconds = 0.15};
            gs_stragglers_add(stragglers, rank, step, &sample);
        }
    }
    assert_true(gs_stragglers_view(stragglers, 2).flagged);
    assert_string_equal(gs_stragglers_view(stragglers, 2).phase, "network");
    gs_stragglers_destroy(stragglers);
}

static void steps_are_compared_when_all_ranks_have_told_them(void **state) {
    (void)state;
    world w;
    open_world(&w, 2, 0);
    for (int64_t step = 0; step < 10; step++) tell_rank(&w, 0, step);
    assert_int_equal(gs_stragglers_num_compared(w.stragglers), 0);
    for (int64_t step = 4; step < 10; step++) tell_rank(&w, 1, step);
    assert_int_equal(gs_stragglers_num_compared(w.stragglers), 6);
    for (int64_t step = 0; step < 10; step++) {  // told again, and told too late
        tell_rank(&w, 0, step);
        tell_rank(&w, 1, step);
    }
    assert_int_equal(gs_stragglers_num_compared(w.stragglers), 6);
    tell_rank(&w, 7, 11);
    tell_rank(&w, -1, 11);
    tell_rank(&w, 0, -3);
    assert_int_equal(gs_stragglers_num_compared(w.stragglers), 6);
    gs_stragglers_destroy(w.stragglers);
}

static void steps_that_a_rank_never_tells_do_not_hold_up_the_others(void **state) {
    (void)state;
    world w;
    open_world(&w, 2, 0);
    for (int64_t step = 0; step < 1000; step++) {
        tell_rank(&w, 0, step);
        if (step % 2 == 0) tell_rank(&w, 1, step);
    }
    assert_int_equal(gs_stragglers_num_compared(w.stragglers), 500);
    gs_stragglers_destroy(w.stragglers);
}

static void a_rank_alone_holds_up_nobody(void **state) {
    (void)state;
    world w;
    open_world(&w, 1, 0);
    w.late = 1;
    run_steps(&w, 3 * GS_STRAGGLER_WINDOW);
    assert_false(is_flagged(&w, 0));
    assert_int_equal(gs_stragglers_view(w.stragglers, 0).last_arrivals, 0);
    gs_stragglers_destroy(w.stragglers);
}

// Of a hostile rank: finite as it is told, and not as it would be kept.
static void numbers_that_no_step_has_are_left_out(void **state) {
    (void)state;
    static const double odd[] = {1e39, -1e39, 1e300, -1, 2e9, INFINITY, -INFINITY, NAN};
    world w;
    open_world(&w, 2, 1);
    w.late = 0.04;
    for (int round = 0; round < 100; round++) {
        run_steps(&w, 7);
        for (size_t k = 0; k < 5; k++) {
            double told[5] = {0.1, 0.1, 0.1, 0.1, 0.1};
            told[k] = odd[(size_t)round % (sizeof odd / sizeof odd[0])];
            const gs_straggler_sample sample = {told[0], told[1], told[2], told[3], told[4]};
            gs_stragglers_add(w.stragglers, 0, w.step, &sample);
            tell_rank(&w, 1, w.step++);
        }
    }
    assert_int_equal(gs_stragglers_num_compared(w.stragglers), 700);
    assert_true(is_flagged(&w, 1));
    assert_true(gs_stragglers_view(w.stragglers, 1).lost_seconds < 1000);
    gs_stragglers_destroy(w.stragglers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rank_that_waits_least_is_the_straggler),
        cmocka_unit_test(a_flag_needs_a_whole_window),
        cmocka_unit_test(a_flag_stays_until_half_of_what_set_it),
        cmocka_unit_test(lost_seconds_count_from_the_flag_on_and_never_fall),
        cmocka_unit_test(steps_that_were_not_told_are_blamed_like_those_that_were),
        cmocka_unit_test(a_spike_is_counted_and_not_flagged),
        cmocka_unit_test(ranks_that_take_turns_are_no_stragglers),
        cmocka_unit_test(what_makes_it_late_is_told),
        cmocka_unit_test(a_slow_link_is_told_from_slow_computing),
        cmocka_unit_test(steps_are_compared_when_all_ranks_have_told_them),
        cmocka_unit_test(steps_that_a_rank_never_tells_do_not_hold_up_the_others),
        cmocka_unit_test(a_rank_alone_holds_up_nobody),
        cmocka_unit_test(numbers_that_no_step_has_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
