#include "core/owner_rules.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "tests/support/asserts.h"

#define MOST_PARAMS 40
#define MOST_RANKS 9

static uint64_t draw(uint64_t seed, uint64_t *at, uint64_t below) {
    return gs_random_u64((gs_random_key){.seed = seed}, (*at)++) % below;
}

// A drawn list: some empty tensors, some alike, now and then one giant.
typedef struct drawn_list {
    size_t counts[MOST_PARAMS], group_params[3];
    bool trainable[MOST_PARAMS];
    gs_owner_request request;
} drawn_list;

static void draw_list(drawn_list *list, uint64_t seed, uint64_t most_frozen_of_8) {
    uint64_t at = 0;
    size_t num_params = draw(seed, &at, MOST_PARAMS + 1);
    for (size_t i = 0; i < num_params; i++) {
        list->counts[i] = draw(seed, &at, 3) ? draw(seed, &at, 500) : 16 * draw(seed, &at, 3);
        if (!draw(seed, &at, 20)) list->counts[i] *= 1000;
        list->trainable[i] = draw(seed, &at, 8) >= most_frozen_of_8;
    }
    list->group_params[0] = draw(seed, &at, num_params + 1);
    list->group_params[1] = draw(seed, &at, num_params - list->group_params[0] + 1);
    list->group_params[2] = num_params - list->group_params[0] - list->group_params[1];
    list->request = (gs_owner_request){.counts = list->counts,
                                       .trainable = list->trainable,
                                       .num_params = num_params,
                                       .group_params = list->group_params,
                                       .num_groups = 3,
                                       .world_size = 1 + (int)draw(seed, &at, MOST_RANKS)};
}

static void assert_owners(const gs_owner_request *request, const int *wanted) {
    int owner[MOST_PARAMS];
    assert_ok(gs_owners_greedy(owner, request));
    for (size_t i = 0; i < request->num_params; i++) assert_int_equal(owner[i], wanted[i]);
}

static void greedy_takes_tensors_as_they_are_registered_the_lowest_rank_on_ties(void **state) {
    (void)state;
    const size_t counts[] = {10, 40, 20, 30, 5, 5, 25};
    assert_owners(&(gs_owner_request){.counts = counts, .num_params = 7, .world_size = 2},
                  (const int[]){0, 1, 0, 0, 1, 1, 1});
    assert_owners(&(gs_owner_request){.counts = (const size_t[]){7, 7, 7, 7},
                                      .num_params = 4,
                                      .world_size = 3},
                  (const int[]){0, 1, 2, 0});
}

static void sorted_takes_the_largest_first_and_says_the_order(void **state) {
    (void)state;
    const size_t counts[] = {10, 40, 20, 30, 5, 5, 25};
    int owner[7];
    size_t order[7];
    assert_ok(gs_owners_sorted(
        owner, order, &(gs_owner_request){.counts = counts, .num_params = 7, .world_size = 2}));
    assert_memory_equal(owner, ((const int[]){1, 0, 0, 1, 0, 0, 1}), sizeof owner);
    assert_memory_equal(order, ((const size_t[]){1, 3, 6, 2, 0, 4, 5}), sizeof order);
}

static void loads_are_carried_from_group_to_group(void **state) {
    (void)state;
    const size_t counts[] = {10, 4, 4}, groups[] = {1, 2};
    const gs_owner_request request = {.counts = counts,
                                      .num_params = 3,
                                      .group_params = groups,
                                      .num_groups = 2,
                                      .world_size = 2};
    int owner[3];
    assert_owners(&request, (const int[]){0, 1, 1});
    assert_ok(gs_owners_sorted(owner, NULL, &request));
    assert_memory_equal(owner, ((const int[]){0, 1, 1}), sizeof owner);
}

static void groups_are_sorted_each_for_itself(void **state) {
    (void)state;
    const size_t counts[] = {1, 2, 30, 40}, groups[] = {2, 0, 2};
    size_t order[4];
    int owner[4];
    assert_ok(gs_owners_sorted(owner, order,
                               &(gs_owner_request){.counts = counts,
                                                   .num_params = 4,
                                                   .group_params = groups,
                                                   .num_groups = 3,
                                                   .world_size = 2}));
    assert_memory_equal(order, ((const size_t[]){1, 0, 3, 2}), sizeof order);
}

static void frozen_tensors_are_dealt_out_by_count(void **state) {
    (void)state;
    const size_t counts[] = {1000, 2000, 3000, 2};
    const bool trainable[] = {false, false, false, true};
    assert_owners(
        &(gs_owner_request){
            .counts = counts, .trainable = trainable, .num_params = 4, .world_size = 3},
        (const int[]){0, 1, 2, 0});
    // The sorted rule does not look at that.
    int owner[4];
    assert_ok(gs_owners_sorted(
        owner, NULL,
        &(gs_owner_request){
            .counts = counts, .trainable = trainable, .num_params = 4, .world_size = 3}));
    assert_memory_equal(owner, ((const int[]){2, 1, 0, 2}), sizeof owner);
}

// What an owner has to send is asked anew, and says nothing of what was trainable before.
static void an_owner_whose_tensors_are_all_frozen_sends_nothing(void **state) {
    (void)state;
    const size_t counts[] = {10, 4, 4, 4};
    bool trainable[] = {true, true, true, true};
    int owner[4];
    size_t order[4], offsets[4], flat_counts[2];
    const gs_owner_request request = {
        .counts = counts, .trainable = trainable, .num_params = 4, .world_size = 2};
    assert_ok(gs_owners_greedy(owner, &request));
    assert_memory_equal(owner, ((const int[]){0, 1, 1, 1}), sizeof owner);
    gs_owners_ascending(order, counts, 4);
    gs_owners_flat(offsets, flat_counts, owner, order, &request);
    assert_memory_equal(flat_counts, ((const size_t[]){10, 12}), sizeof flat_counts);
    trainable[1] = trainable[2] = trainable[3] = false;
    gs_owners_flat(offsets, flat_counts, owner, order, &request);
    assert_memory_equal(flat_counts, ((const size_t[]){10, 0}), sizeof flat_counts);
}

static void empty_tensors_in_a_row_lie_with_one_rank(void **state) {
    (void)state;
    assert_owners(&(gs_owner_request){.counts = (const size_t[]){3, 0, 0, 0, 1},
                                      .num_params = 5,
                                      .world_size = 2},
                  (const int[]){0, 1, 1, 1, 1});
}

static void ranks_beyond_the_tensors_own_nothing(void **state) {
    (void)state;
    size_t offsets[2], flat_counts[5];
    const gs_owner_request request = {
        .counts = (const size_t[]){3, 5}, .num_params = 2, .world_size = 5};
    assert_owners(&request, (const int[]){0, 1});
    gs_owners_flat(offsets, flat_counts, (const int[]){0, 1}, (const size_t[]){0, 1}, &request);
    assert_memory_equal(flat_counts, ((const size_t[]){3, 5, 0, 0, 0}), sizeof flat_counts);
    assert_ok(gs_owners_greedy(NULL, &(gs_owner_request){.world_size = 5}));
    assert_ok(gs_owners_sorted(NULL, NULL, &(gs_owner_request){.world_size = 5}));
}

static void assert_bound(const int *owner, const drawn_list *list, bool frozen_weigh_one) {
    size_t loads[MOST_RANKS] = {0}, total = 0, largest = 0, most = 0;
    size_t world_size = (size_t)list->request.world_size;
    for (size_t i = 0; i < list->request.num_params; i++) {
        size_t weight = frozen_weigh_one && !list->trainable[i] ? 1 : list->counts[i];
        assert_in_range(owner[i], 0, world_size - 1);
        loads[owner[i]] += weight;
        total += weight;
        if (weight > largest) largest = weight;
    }
    for (size_t r = 0; r < world_size; r++) {
        if (loads[r] > most) most = loads[r];
    }
    assert_true(most * world_size <= total + (world_size - 1) * largest);
}

static void the_largest_load_is_bounded_by_the_mean_and_the_largest_tensor(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 500; seed++) {
        drawn_list list;
        int owner[MOST_PARAMS];
        draw_list(&list, seed, seed % 4);
        assert_ok(gs_owners_greedy(owner, &list.request));
        assert_bound(owner, &list, true);
        assert_ok(gs_owners_sorted(owner, NULL, &list.request));
        assert_bound(owner, &list, false);
    }
}

static void what_comes_later_moves_nothing(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        drawn_list list;
        int owner[MOST_PARAMS], first[MOST_PARAMS];
        draw_list(&list, seed, 2);
        assert_ok(gs_owners_greedy(owner, &list.request));
        list.request.group_params = NULL;
        for (size_t n = list.request.num_params; n--;) {
            list.request.num_params = n;
            assert_ok(gs_owners_greedy(first, &list.request));
            assert_int_equal(memcmp(first, owner, n * sizeof *owner), 0);
        }
    }
}

// With OSS the map is dealt anew with the flags of today, while local optimizers stay: tensor 2
// moves from rank 1 to rank 0 in the map, rank 1 goes on updating it and rank 0 overwrites the
// result.
static void a_group_added_after_freezing_leaves_every_owner_where_it_was(void **state) {
    (void)state;
    const size_t counts[] = {10, 4, 4, 4, 6};
    bool trainable[] = {true, true, true, true, true};
    int owner[5], dealt_anew[5];
    gs_owner_request request = {
        .counts = counts, .trainable = trainable, .num_params = 4, .world_size = 2};
    assert_ok(gs_owners_greedy(owner, &request));
    assert_memory_equal(owner, ((const int[]){0, 1, 1, 1}), 4 * sizeof *owner);

    trainable[0] = false;
    request.num_params = 5;
    assert_ok(gs_owners_greedy(dealt_anew, &request));
    assert_int_equal(dealt_anew[2], 0);
    request.num_kept = 4;
    assert_ok(gs_owners_greedy(owner, &request));
    assert_memory_equal(owner, ((const int[]){0, 1, 1, 1, 0}), sizeof owner);
}

// Of what is kept the present weight counts: rank 0's tensor was frozen, so rank 0 gets the new
// ones.
static void sorted_keeps_owners_as_well(void **state) {
    (void)state;
    int owner[] = {1, 1, -1, -1};
    size_t order[4];
    assert_ok(gs_owners_sorted(owner, order,
                               &(gs_owner_request){.counts = (const size_t[]){50, 6, 8, 9},
                                                   .num_params = 4,
                                                   .num_kept = 2,
                                                   .world_size = 2}));
    assert_memory_equal(owner, ((const int[]){1, 1, 0, 0}), sizeof owner);
}

static void sizes_of_2_to_the_62_are_added_up_right(void **state) {
    (void)state;
    const size_t huge = (size_t)1 << 62;
    assert_owners(&(gs_owner_request){.counts = (const size_t[]){huge, huge - 1, 1, 2, huge},
                                      .num_params = 5,
                                      .world_size = 2},
                  (const int[]){0, 1, 1, 0, 1});
}

static void assert_refused(int *owner, const gs_owner_request *request, const char *message) {
    gs_status status = gs_owners_greedy(owner, request);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_string_equal(status.message, message);
    assert_int_equal(gs_owners_sorted(owner, NULL, request).code, GS_INVALID_ARGUMENT);
}

static void what_cannot_be_dealt_out_is_refused(void **state) {
    (void)state;
    int owner[] = {0, 2, 0};
    const size_t counts[] = {1, SIZE_MAX / 2, SIZE_MAX / 2};
    const size_t few[] = {1, 1}, many[] = {2, 2};
    gs_owner_request request = {.counts = counts, .num_params = 3, .world_size = 2};
    assert_refused(owner, &request,
                   "owners: parameters up to 2 have more elements than can be counted");
    request.num_params = 2;
    request.world_size = 0;
    assert_refused(owner, &request, "owners: 0 ranks");
    request.world_size = 2;
    request.num_kept = 2;
    assert_refused(owner, &request, "owners: parameter 1 is kept by rank 2 of 2");
    request.num_kept = 3;
    assert_refused(owner, &request, "owners: 3 of 2 parameters are kept");
    request.num_kept = 0;
    request.group_params = many;
    request.num_groups = 2;
    assert_refused(owner, &request, "owners: group 1 goes beyond 2 parameters");
    request.group_params = few;
    request.num_groups = 1;
    assert_refused(owner, &request, "owners: groups have 1 of 2 parameters");
}

static void flat_buffers_are_ascending_without_gaps_and_without_what_is_frozen(void **state) {
    (void)state;
    const size_t counts[] = {4, 2, 9, 2, 0};
    const bool trainable[] = {true, true, false, true, true};
    const int owner[] = {0, 0, 0, 0, 1};
    size_t order[5], offsets[5], flat_counts[2];
    gs_owners_ascending(order, counts, 5);
    assert_memory_equal(order, ((const size_t[]){4, 1, 3, 0, 2}), sizeof order);
    gs_owners_flat(offsets, flat_counts, owner, order,
                   &(gs_owner_request){
                       .counts = counts, .trainable = trainable, .num_params = 5, .world_size = 2});
    assert_memory_equal(offsets, ((const size_t[]){4, 0, GS_NOT_FLAT, 2, 0}), sizeof offsets);
    assert_memory_equal(flat_counts, ((const size_t[]){8, 0}), sizeof flat_counts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_tensors_as_they_are_registered_the_lowest_rank_on_ties),
        cmocka_unit_test(sorted_takes_the_largest_first_and_says_the_order),
        cmocka_unit_test(loads_are_carried_from_group_to_group),
        cmocka_unit_test(groups_are_sorted_each_for_itself),
        cmocka_unit_test(frozen_tensors_are_dealt_out_by_count),
        cmocka_unit_test(empty_tensors_in_a_row_lie_with_one_rank),
        cmocka_unit_test(ranks_beyond_the_tensors_own_nothing),
        cmocka_unit_test(the_largest_load_is_bounded_by_the_mean_and_the_largest_tensor),
        cmocka_unit_test(what_comes_later_moves_nothing),
        cmocka_unit_test(a_group_added_after_freezing_leaves_every_owner_where_it_was),
        cmocka_unit_test(sorted_keeps_owners_as_well),
        cmocka_unit_test(sizes_of_2_to_the_62_are_added_up_right),
        cmocka_unit_test(what_cannot_be_dealt_out_is_refused),
        cmocka_unit_test(flat_buffers_are_ascending_without_gaps_and_without_what_is_frozen),
        cmocka_unit_test(an_owner_whose_tensors_are_all_frozen_sends_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
