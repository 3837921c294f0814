// Who goes on with whose share: those that are there, newcomers, and what is left over.
#include "worker/state/share_deal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/asserts.h"

enum { STEP = 40, CHECKPOINT = 5, GENERATION = 9 };

static gs_share_claim nothing(void) {
    return (gs_share_claim){.rank = -1};
}

static gs_share_claim of_checkpoint(int world_size) {
    gs_share_claim claim = {
        .origin = CHECKPOINT, .step = STEP, .world_size = world_size, .rank = -1};
    for (int rank = 0; rank < world_size; rank++) gs_share_claim_add(&claim, rank);
    return claim;
}

static gs_share_claim survivor(int rank, int world_size, int found) {
    gs_share_claim claim = {
        .origin = GENERATION, .step = STEP, .world_size = world_size, .rank = rank};
    gs_share_claim_add(&claim, rank);
    if (found >= 0) gs_share_claim_add(&claim, found);
    return claim;
}

static void check(const gs_share_claim *claims, int world_size, int num_shares, const int *owners,
                  const int *holders) {
    gs_share_deal deal;
    assert_ok(gs_share_deal_make(&deal, claims, world_size, STEP));
    assert_false(deal.has_lost);
    assert_int_equal(deal.num_shares, num_shares);
    for (int i = 0; i < num_shares; i++) {
        assert_int_equal(deal.shares[i].owner, owners[i]);
        assert_int_equal(deal.shares[i].holder, holders[i]);
    }
    gs_share_deal_release(&deal);
}

static void check_lost(const gs_share_claim *claims, int world_size, int lost) {
    gs_share_deal deal;
    assert_ok(gs_share_deal_make(&deal, claims, world_size, STEP));
    assert_true(deal.has_lost);
    assert_int_equal(deal.lost, lost);
    assert_int_equal(deal.num_shares, 0);
    gs_share_deal_release(&deal);
}

static void a_checkpoint_gives_the_same_world_its_shares_back(void **state) {
    (void)state;
    const gs_share_claim claims[] = {of_checkpoint(3), of_checkpoint(3), of_checkpoint(3)};
    check(claims, 3, 3, (const int[]){0, 1, 2}, (const int[]){0, 1, 2});
}

static void another_world_adds_what_it_has_no_rank_for(void **state) {
    (void)state;
    const gs_share_claim two[] = {of_checkpoint(5), of_checkpoint(5)};
    check(two, 2, 5, (const int[]){0, 1, 0, 1, 0}, (const int[]){0, 1, 0, 1, 0});
    const gs_share_claim four[] = {of_checkpoint(2), of_checkpoint(2), of_checkpoint(2),
                                   of_checkpoint(2)};
    check(four, 4, 2, (const int[]){0, 1}, (const int[]){0, 1});
}

// Rank 1 of 3 has died and is replaced; ranks have other numbers now.
static void a_newcomer_gets_the_share_of_the_dead(void **state) {
    (void)state;
    const gs_share_claim claims[] = {nothing(), survivor(2, 3, 1), survivor(0, 3, 1)};
    check(claims, 3, 3, (const int[]){2, 0, 1}, (const int[]){2, 1, 1});
}

static void without_newcomers_survivors_take_it_over(void **state) {
    (void)state;
    const gs_share_claim claims[] = {survivor(0, 4, 1), survivor(3, 4, 2)};
    check(claims, 2, 4, (const int[]){0, 1, 0, 1}, (const int[]){0, 0, 1, 1});
}

static void whose_share_nobody_has_is_named(void **state) {
    (void)state;
    const gs_share_claim claims[] = {survivor(0, 3, -1), nothing(), survivor(2, 3, -1)};
    check_lost(claims, 3, 1);
    // A checkpoint of that very step, which some rank has, replaces it.
    const gs_share_claim saved[] = {survivor(0, 3, -1), of_checkpoint(3), survivor(2, 3, -1)};
    check(saved, 3, 3, (const int[]){0, 1, 2}, (const int[]){1, 1, 1});
}

static void only_shares_of_the_step_count(void **state) {
    (void)state;
    gs_share_claim claims[] = {survivor(0, 2, -1), survivor(1, 2, -1), of_checkpoint(2)};
    claims[2].step = STEP - 1;
    check(claims, 3, 2, (const int[]){0, 1}, (const int[]){0, 1});
    claims[1].step = STEP - 1;
    check_lost(claims, 3, 1);
    claims[0].step = STEP - 1;
    check(claims, 3, 0, NULL, NULL);
    const gs_share_claim none[] = {nothing(), nothing()};
    check(none, 2, 0, NULL, NULL);
}

static void what_survivors_have_comes_before_a_checkpoint(void **state) {
    (void)state;
    const gs_share_claim claims[] = {of_checkpoint(2), survivor(1, 2, -1), survivor(0, 2, -1)};
    check(claims, 3, 2, (const int[]){2, 1}, (const int[]){2, 1});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_gives_the_same_world_its_shares_back),
        cmocka_unit_test(another_world_adds_what_it_has_no_rank_for),
        cmocka_unit_test(a_newcomer_gets_the_share_of_the_dead),
        cmocka_unit_test(without_newcomers_survivors_take_it_over),
        cmocka_unit_test(whose_share_nobody_has_is_named),
        cmocka_unit_test(only_shares_of_the_step_count),
        cmocka_unit_test(what_survivors_have_comes_before_a_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
