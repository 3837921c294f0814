// Who holds a sum up is told from who only waits for it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gradsync/comm/net/debts.h"

#define WORLD 4
#define RANKS(a, b) (gs_net_rank_bit(a) | gs_net_rank_bit(b))

static gs_net_ranks blame(gs_net_debts debts, const gs_net_word *words) {
    return gs_net_debts_blame(&debts, 0, 7, words, WORLD, 100);
}

static void what_is_a_ranks_own_outranks_what_hangs_on_others(void **state) {
    (void)state;
    const gs_net_word silence[WORLD] = {{0}};
    gs_net_debts debts = {.own = gs_net_rank_bit(2), .sums = RANKS(1, 3)};
    assert_int_equal(blame(debts, silence), gs_net_rank_bit(2));
    debts.absent = gs_net_rank_bit(3);
    assert_int_equal(blame(debts, silence), gs_net_rank_bit(3));
    debts = (gs_net_debts){.sums = RANKS(1, 3)};
    assert_int_equal(blame(debts, silence), RANKS(1, 3));
    debts = (gs_net_debts){0};
    assert_int_equal(blame(debts, silence), 0);
}

static void who_says_for_whom_it_waits_is_not_blamed(void **state) {
    (void)state;
    gs_net_word words[WORLD] = {[1] = {7, RANKS(0, 3), 100}, [2] = {6, gs_net_rank_bit(1), 100}};
    gs_net_debts debts = {.sums = RANKS(1, 2)};
    assert_int_equal(blame(debts, words), gs_net_rank_bit(3));
    // It is further than this rank: what it waits for there is another matter.
    words[1].sequence = 8;
    assert_int_equal(blame(debts, words), gs_net_rank_bit(1));
    // For nobody any more.
    words[1] = (gs_net_word){7, 0, 100};
    assert_int_equal(blame(debts, words), gs_net_rank_bit(1));
    // For this rank, which knows better.
    words[1] = (gs_net_word){7, gs_net_rank_bit(0), 100};
    assert_int_equal(blame(debts, words), gs_net_rank_bit(1));
    // It has fallen silent since.
    words[1] = (gs_net_word){7, gs_net_rank_bit(3), 99};
    assert_int_equal(blame(debts, words), gs_net_rank_bit(1));
}

static void two_that_wait_for_each_other_are_both_blamed(void **state) {
    (void)state;
    const gs_net_word words[WORLD] = {
        [1] = {7, gs_net_rank_bit(2), 100}, [2] = {7, gs_net_rank_bit(1), 100}};
    gs_net_debts debts = {.sums = RANKS(1, 2)};
    assert_int_equal(blame(debts, words), RANKS(1, 2));
}

// A peer's words may be any bytes.
static void ranks_that_are_not_there_are_not_blamed(void **state) {
    (void)state;
    const gs_net_word words[WORLD] = {[1] = {7, ~UINT64_C(0) << WORLD, 100}};
    gs_net_debts debts = {.sums = gs_net_rank_bit(1)};
    assert_int_equal(blame(debts, words), gs_net_rank_bit(1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_a_ranks_own_outranks_what_hangs_on_others),
        cmocka_unit_test(who_says_for_whom_it_waits_is_not_blamed),
        cmocka_unit_test(two_that_wait_for_each_other_are_both_blamed),
        cmocka_unit_test(ranks_that_are_not_there_are_not_blamed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
