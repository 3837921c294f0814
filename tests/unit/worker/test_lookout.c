// What an agent that hears no coordinator says and finds out where its ranks' checkpoints lie.
#include "worker/agent/lookout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/boot_clock.h"
#include "rpc/checkpoint/fence.h"
#include "rpc/checkpoint/life_sign.h"
#include "tests/support/asserts.h"
#include "tests/support/soon.h"
#include "tests/support/temp_dir.h"

static const gs_fence mine = {"c-home", 3}, above = {"c-home", 4}, before = {"c-home", 2};

typedef struct fixture {
    char *directory;
    gs_lookout *lookout;
    gs_lookout_place place;
} fixture;

static int set_up(void **state) {
    fixture *it = calloc(1, sizeof *it);
    it->directory = gs_temp_dir_make();
    it->place = (gs_lookout_place){.job = "j-1", .directory = it->directory, .cluster = "c-home", .generation = 3};
    assert_ok(gs_lookout_start(&it->lookout));
    *state = it;
    return 0;
}

static int tear_down(void **state) {
    fixture *it = *state;
    gs_lookout_stop(it->lookout);
    gs_temp_dir_remove(it->directory);
    free(it);
    return 0;
}

static int64_t sign_of(const fixture *it, const gs_fence *theirs) {
    int64_t number;
    assert_ok(gs_life_sign_read(&number, it->directory, theirs));
    return number;
}

static gs_lookout_sight ask(const fixture *it, bool alone) {
    gs_sleep_ns(5 * GS_NS_PER_MS);
    return gs_lookout_ask(it->lookout, &it->place, alone);
}

static void look_until_shared(const fixture *it, bool alone) {
    gs_deadline deadline = soon();
    while (!ask(it, alone).is_shared) assert_false(gs_deadline_passed(deadline));
}

static void lone_ranks_leave_one_sign_after_the_other(void **state) {
    const fixture *it = *state;
    gs_deadline deadline = soon();
    assert_ok(gs_fence_raise(it->directory, &mine));
    look_until_shared(it, true);
    int64_t first = 0;
    while (!(first = sign_of(it, &mine))) {
        ask(it, true);
        assert_false(gs_deadline_passed(deadline));
    }
    while (sign_of(it, &mine) == first) {
        ask(it, true);
        assert_false(gs_deadline_passed(deadline));
    }
    assert_int_equal(sign_of(it, &before), 0);  // nobody takes it for another's
    assert_int_equal(sign_of(it, &above), 0);
}

// Nobody waits for the disk with a sign.
static void a_sign_that_a_loss_of_power_has_cut_is_none(void **state) {
    const fixture *it = *state;
    char path[300];
    assert_ok(gs_life_sign_leave(it->directory, &mine, 5));
    assert_int_equal(sign_of(it, &mine), 5);
    snprintf(path, sizeof path, "%s/ALIVE.json", it->directory);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(sign_of(it, &mine), 0);
}

static void ranks_that_are_heard_leave_none(void **state) {
    const fixture *it = *state;
    assert_ok(gs_fence_raise(it->directory, &mine));
    look_until_shared(it, false);
    assert_int_equal(sign_of(it, &mine), 0);
}

// It may be another disk than the coordinator's, and a sign there says nothing to it.
static void ranks_that_have_raised_no_fence_leave_none(void **state) {
    const fixture *it = *state;
    gs_deadline deadline = soon();
    while (!ask(it, true).is_known) assert_false(gs_deadline_passed(deadline));
    assert_false(ask(it, true).is_shared);
    assert_int_equal(sign_of(it, &mine), 0);
}

static void a_fence_above_them_is_found(void **state) {
    const fixture *it = *state;
    gs_deadline deadline = soon();
    assert_ok(gs_fence_raise(it->directory, &mine));
    look_until_shared(it, true);
    assert_false(ask(it, true).is_over);
    assert_ok(gs_fence_raise(it->directory, &above));
    while (!ask(it, true).is_over) assert_false(gs_deadline_passed(deadline));
}

static void a_directory_that_is_away_is_not_seen(void **state) {
    const fixture *it = *state;
    char aside[300];
    assert_ok(gs_fence_raise(it->directory, &mine));
    look_until_shared(it, true);
    snprintf(aside, sizeof aside, "%s.aside", it->directory);
    assert_int_equal(rename(it->directory, aside), 0);
    int64_t gone_ns = gs_boot_ns();
    while (gs_boot_ns() - gone_ns < 2500 * GS_NS_PER_MS) assert_true(ask(it, true).seen_ns <= gone_ns);
    assert_int_equal(rename(aside, it->directory), 0);
    gs_deadline deadline = soon();
    while (ask(it, true).seen_ns <= gone_ns) assert_false(gs_deadline_passed(deadline));
}

// A full disk: it can be read, and takes no sign.
static void a_disk_that_takes_no_sign_is_seen(void **state) {
    const fixture *it = *state;
    char sign[300];
    snprintf(sign, sizeof sign, "%s/ALIVE.json", it->directory);
    assert_int_equal(mkdir(sign, 0700), 0);
    assert_ok(gs_fence_raise(it->directory, &mine));
    look_until_shared(it, true);
    int64_t seen_ns = ask(it, true).seen_ns;
    gs_deadline deadline = soon();
    while (ask(it, true).seen_ns == seen_ns) assert_false(gs_deadline_passed(deadline));
}

// As one that hears nobody and stood still itself: whom it holds it would let go.
static void nothing_is_forgotten_because_nobody_asked_for_a_while(void **state) {
    const fixture *it = *state;
    assert_ok(gs_fence_raise(it->directory, &mine));
    look_until_shared(it, true);
    gs_sleep_ns(5500 * GS_NS_PER_MS);
    assert_true(gs_lookout_ask(it->lookout, &it->place, true).is_shared);
    gs_lookout_forget_unasked(it->lookout);
    assert_true(gs_lookout_ask(it->lookout, &it->place, true).is_shared);
    gs_lookout_forget_unasked(it->lookout);
    gs_lookout_forget_unasked(it->lookout);
    assert_false(gs_lookout_ask(it->lookout, &it->place, false).is_shared);
}

static void who_stands_still_goes_on_by_a_fresh_sight_only(void **state) {
    (void)state;
    const int64_t now_ns = 1000 * GS_NS_PER_SEC, long_ago_ns = now_ns - 100 * GS_NS_PER_SEC;
    const gs_lookout_sight unknown = {0}, others = {.is_known = true};
    const gs_lookout_sight stale = {.is_known = true, .is_shared = true, .seen_ns = now_ns - 5 * GS_NS_PER_SEC};
    const gs_lookout_sight fresh = {.is_known = true, .is_shared = true, .seen_ns = now_ns - GS_NS_PER_SEC};
    assert_false(gs_lookout_holds(&unknown, false, long_ago_ns, now_ns));
    assert_false(gs_lookout_holds(&others, false, long_ago_ns, now_ns));
    assert_false(gs_lookout_holds(&fresh, false, long_ago_ns, now_ns));
    assert_true(gs_lookout_holds(&stale, false, long_ago_ns, now_ns));
    assert_false(gs_lookout_holds(&stale, false, now_ns - GS_NS_PER_SEC, now_ns));  // a coordinator was heard since
    assert_true(gs_lookout_holds(&unknown, true, long_ago_ns, now_ns));
    assert_true(gs_lookout_holds(&others, true, long_ago_ns, now_ns));
    assert_true(gs_lookout_holds(&stale, true, long_ago_ns, now_ns));
    assert_false(gs_lookout_holds(&fresh, true, long_ago_ns, now_ns));
}

// Each look takes a third of the time in which each place wants one.
#define SLOW_LOOKS "lookout.look=sleep:300@1-12"

static void who_woke_up_leads_by_a_fresh_sight_only(void **state) {
    (void)state;
    const int64_t woke_ns = 100 * GS_NS_PER_SEC, later_ns = 50 * GS_NS_PER_SEC;
    gs_lookout_sight sight = {.is_known = true, .is_shared = true, .seen_ns = woke_ns - 1};
    assert_true(gs_lookout_leads(&sight, 0, woke_ns));
    assert_false(gs_lookout_leads(&sight, woke_ns, woke_ns + later_ns));
    sight.seen_ns = woke_ns;
    assert_true(gs_lookout_leads(&sight, woke_ns, woke_ns + 1));
    sight = (gs_lookout_sight){.is_known = true};
    assert_false(gs_lookout_leads(&sight, woke_ns, woke_ns + GS_LIFE_UNSEEN_NS - 1));
    assert_true(gs_lookout_leads(&sight, woke_ns, woke_ns + GS_LIFE_UNSEEN_NS));
}

static void each_of_many_slow_places_has_its_turn(void **state) {
    const fixture *it = *state;
    enum { COUNT = 5 };
    char jobs[COUNT][8];
    int64_t seen_ns = 0;
    int num_first = 0;
    gs_deadline deadline = soon();
    assert_ok(gs_fence_raise(it->directory, &mine));
    for (bool has_all = false; !has_all;) {
        assert_false(gs_deadline_passed(deadline));
        for (int i = 0; i < COUNT; i++) {
            gs_lookout_place place = it->place;
            snprintf(jobs[i], sizeof jobs[i], "j-%d", i);
            place.job = jobs[i];
            const gs_lookout_sight sight = gs_lookout_ask(it->lookout, &place, true);
            if (i == 0 && sight.seen_ns != seen_ns) num_first++;
            if (i == 0) seen_ns = sight.seen_ns;
            has_all = sight.is_known;  // of the last
        }
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
    assert_true(num_first <= 2);
}

int main(void) {
    setenv("GRADSYNC_FAILPOINTS", SLOW_LOOKS, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(who_woke_up_leads_by_a_fresh_sight_only, set_up, tear_down),
        cmocka_unit_test_setup_teardown(each_of_many_slow_places_has_its_turn, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_disk_that_takes_no_sign_is_seen, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_forgotten_because_nobody_asked_for_a_while, set_up, tear_down),
        cmocka_unit_test(who_stands_still_goes_on_by_a_fresh_sight_only),
        cmocka_unit_test_setup_teardown(lone_ranks_leave_one_sign_after_the_other, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_sign_that_a_loss_of_power_has_cut_is_none, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ranks_that_are_heard_leave_none, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ranks_that_have_raised_no_fence_leave_none, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_fence_above_them_is_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_directory_that_is_away_is_not_seen, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
