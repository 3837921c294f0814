#include "core/owner_buckets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/asserts.h"

static gs_owner_buckets plan_buckets(const size_t *counts, const bool *trainable, const int *owner,
                                     size_t num_params, int world_size, size_t capacity) {
    gs_owner_buckets plan;
    assert_ok(gs_owner_buckets_plan(&plan, owner,
                                    &(gs_owner_request){.counts = counts,
                                                        .trainable = trainable,
                                                        .num_params = num_params,
                                                        .world_size = world_size},
                                    capacity));
    return plan;
}

static void assert_place(const gs_owner_place *place, size_t param, size_t bucket, size_t offset) {
    assert_int_equal(place->param, param);
    assert_int_equal(place->bucket, bucket);
    assert_int_equal(place->offset, offset);
}

static void small_tensors_of_an_owner_travel_together_and_frozen_ones_not_at_all(void **state) {
    (void)state;
    const size_t counts[] = {5, 1, 3, 50, 1, 2};
    const bool trainable[] = {true, true, true, true, true, false};
    gs_owner_buckets plan =
        plan_buckets(counts, trainable, (const int[]){0, 1, 0, 1, 0, 0}, 6, 2, 9);
    assert_int_equal(plan.capacity, 9);
    assert_int_equal(plan.num_places, 5);
    assert_place(&plan.places[0], 4, 0, 0);
    assert_place(&plan.places[1], 1, 1, 0);
    assert_place(&plan.places[2], 2, 0, 1);
    assert_place(&plan.places[3], 0, GS_NO_BUCKET, 0);
    assert_place(&plan.places[4], 3, GS_NO_BUCKET, 0);
    assert_int_equal(plan.num_buckets, 2);
    assert_int_equal(plan.buckets[0].owner, 0);
    assert_int_equal(plan.buckets[0].count, 4);
    assert_int_equal(plan.buckets[1].owner, 1);
    assert_int_equal(plan.buckets[1].count, 1);
    gs_owner_buckets_release(&plan);
}

static void a_bucket_never_becomes_full(void **state) {
    (void)state;
    gs_owner_buckets plan =
        plan_buckets((const size_t[]){4, 4}, NULL, (const int[]){0, 0}, 2, 2, 8);
    assert_place(&plan.places[0], 0, 0, 0);
    assert_place(&plan.places[1], 1, GS_NO_BUCKET, 0);
    gs_owner_buckets_release(&plan);
}

static void a_small_model_bounds_the_capacity_and_one_rank_needs_none(void **state) {
    (void)state;
    const size_t counts[] = {4, 6};
    const int owner[] = {0, 0};
    gs_owner_buckets plan = plan_buckets(counts, (const bool[]){true, false}, owner, 2, 2, 1 << 23);
    assert_int_equal(plan.capacity, 10);
    assert_int_equal(plan.buckets[0].count, 4);
    gs_owner_buckets_release(&plan);
    plan = plan_buckets(counts, NULL, owner, 2, 1, 1 << 23);
    assert_int_equal(plan.capacity, 0);
    assert_int_equal(plan.num_buckets, 0);
    assert_int_equal(plan.places[1].bucket, GS_NO_BUCKET);
    gs_owner_buckets_release(&plan);
}

// There it is posted every step: a reduction of nothing.
static void a_bucket_into_which_nothing_fits_says_that_it_is_empty(void **state) {
    (void)state;
    gs_owner_buckets plan = plan_buckets((const size_t[]){7}, NULL, (const int[]){1}, 1, 2, 7);
    assert_int_equal(plan.num_buckets, 1);
    assert_int_equal(plan.buckets[0].count, 0);
    gs_owner_buckets_release(&plan);
}

static void tensors_of_2_to_the_63_do_not_wrap_round(void **state) {
    (void)state;
    const size_t huge = (size_t)1 << 63;
    gs_owner_buckets plan =
        plan_buckets((const size_t[]){huge - 1, huge}, NULL, (const int[]){0, 0}, 2, 2, SIZE_MAX);
    assert_place(&plan.places[0], 0, 0, 0);
    assert_place(&plan.places[1], 1, GS_NO_BUCKET, 0);
    gs_owner_buckets_release(&plan);
}

static void what_cannot_be_planned_is_refused(void **state) {
    (void)state;
    gs_owner_buckets plan;
    gs_owner_request request = {
        .counts = (const size_t[]){1, SIZE_MAX}, .num_params = 2, .world_size = 2};
    gs_status status = gs_owner_buckets_plan(&plan, (const int[]){0, 1}, &request, 1);
    assert_string_equal(status.message, "owner buckets: more elements than can be counted");
    status = gs_owner_buckets_plan(&plan, (const int[]){2, 1}, &request, 1);
    assert_string_equal(status.message, "owner buckets: parameter 0 is rank 2's of 2");
    request.world_size = 0;
    status = gs_owner_buckets_plan(&plan, (const int[]){0, 0}, &request, 1);
    assert_string_equal(status.message, "owner buckets: 0 ranks");
}

// 4 and 1 are owner 0's bucket, 2 that of 1; 0 and 3 are large. Gradients come from the last one to
// the first.
static void as_a_plan_they_come_as_they_are_complete(void **state) {
    (void)state;
    const size_t counts[] = {50, 3, 1, 60, 2};
    const size_t members[] = {3, 2, 4, 1, 0};
    gs_param_spec params[5];
    gs_bucket_plan plan;
    for (size_t i = 0; i < 5; i++)
        params[i] = gs_param_spec_make(GS_FP32, (int64_t)counts[i], 0, "p%zu", i);
    gs_owner_buckets buckets = plan_buckets(counts, NULL, (const int[]){0, 0, 1, 1, 0}, 5, 2, 9);
    assert_ok(gs_owner_buckets_to_plan(&plan, &buckets, params, 5));
    assert_int_equal(plan.num_buckets, 4);
    assert_memory_equal(plan.params, members, sizeof members);
    assert_int_equal(plan.buckets[2].num_params, 2);
    assert_int_equal(plan.buckets[2].bytes, 20);
    assert_int_equal(plan.buckets[0].limit_bytes, 36);
    gs_bucket_plan_release(&plan);
    buckets.num_places--;
    assert_int_equal(gs_owner_buckets_to_plan(&plan, &buckets, params, 5).code,
                     GS_INVALID_ARGUMENT);
    gs_owner_buckets_release(&buckets);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_a_plan_they_come_as_they_are_complete),
        cmocka_unit_test(small_tensors_of_an_owner_travel_together_and_frozen_ones_not_at_all),
        cmocka_unit_test(a_bucket_never_becomes_full),
        cmocka_unit_test(a_small_model_bounds_the_capacity_and_one_rank_needs_none),
        cmocka_unit_test(a_bucket_into_which_nothing_fits_says_that_it_is_empty),
        cmocka_unit_test(tensors_of_2_to_the_63_do_not_wrap_round),
        cmocka_unit_test(what_cannot_be_planned_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
