#include "core/plan_policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"

#define MAX_PARAMS 60

// 10 floats each, so 40 bytes, unless a test changes one.
static void make_params(gs_param_spec *params, size_t num_params) {
    for (size_t i = 0; i < num_params; i++)
        params[i] = gs_param_spec_make(GS_FP32, 10, 0, "p%zu", i);
}

static void expect_owned(const gs_plan_policy *policy, const int *owners,
                         const gs_param_spec *params, size_t num_params, const size_t *order,
                         const char *buckets, const char *limits) {
    char text[512] = "", limit_text[256] = "";
    gs_bucket_plan plan;
    gs_status status = gs_plan_policy_apply_owned(&plan, policy, owners, params, num_params, order);
    assert_string_equal(status.message, "");
    for (size_t b = 0; b < plan.num_buckets; b++) {
        const gs_plan_bucket *bucket = &plan.buckets[b];
        for (size_t i = 0; i < bucket->num_params; i++)
            sprintf(text + strlen(text), "%s%zu",
                    i   ? " "
                    : b ? " ["
                        : "[",
                    plan.params[bucket->first + i]);
        strcat(text, "]");
        sprintf(limit_text + strlen(limit_text), "%s%llu", b ? " " : "",
                (unsigned long long)bucket->limit_bytes);
    }
    assert_string_equal(text, buckets);
    assert_string_equal(limit_text, limits);
    gs_bucket_plan_release(&plan);
}

static void expect(const gs_plan_policy *policy, const gs_param_spec *params, size_t num_params,
                   const size_t *order, const char *buckets, const char *limits) {
    expect_owned(policy, NULL, params, num_params, order, buckets, limits);
}

static void a_list_of_caps_is_the_list_of_limits(void **state) {
    (void)state;
    gs_param_spec params[7];
    make_params(params, 7);
    gs_plan_policy policy = {.caps_bytes = {40, 80, 120}, .num_caps = 3};
    expect(&policy, params, 7, NULL, "[6] [3 4 5] [1 2] [0]", "120 120 80 40");
    expect(&policy, params, 7, (const size_t[]){6, 5, 4, 3, 2, 1, 0}, "[6] [5 4] [3 2 1] [0]",
           "40 80 120 120");
}

static void a_first_limit_goes_before_the_caps(void **state) {
    (void)state;
    gs_param_spec params[5];
    make_params(params, 5);
    gs_plan_policy policy = {.first_bytes = 40, .caps_bytes = {80}, .num_caps = 1};
    const size_t order[] = {0, 1, 2, 3, 4};
    expect(&policy, params, 5, order, "[0] [1 2] [3 4]", "40 80 80");
    policy.first_bytes = 0;
    expect(&policy, params, 5, order, "[0 1] [2 3] [4]", "80 80 80");
}

// In a plan along registration order it is last anyway, since the list of buckets is reversed.
static void the_small_limit_may_fall_to_the_last_bucket(void **state) {
    (void)state;
    gs_param_spec params[6];
    make_params(params, 6);
    gs_plan_policy policy = {.first_bytes = 40, .caps_bytes = {80}, .num_caps = 1};
    const size_t order[] = {5, 4, 2, 3, 1, 0};
    expect(&policy, params, 6, order, "[5] [4 2] [3 1] [0]", "40 80 80 80");
    expect(&policy, params, 6, NULL, "[5] [3 4] [1 2] [0]", "80 80 80 40");
    policy.small_last = true;
    expect(&policy, params, 6, order, "[5] [4 2] [3 1] [0]", "80 80 80 40");
    expect(&policy, params, 6, NULL, "[5] [3 4] [1 2] [0]", "80 80 80 40");
}

static void caps_grow_until_there_are_few_enough_buckets(void **state) {
    (void)state;
    gs_param_spec params[8];
    make_params(params, 8);
    const size_t order[] = {0, 1, 2, 3, 4, 5, 6, 7};
    gs_plan_policy policy = {.first_bytes = 40, .caps_bytes = {80}, .num_caps = 1};
    expect(&policy, params, 8, order, "[0] [1 2] [3 4] [5 6] [7]", "40 80 80 80 80");
    policy.max_buckets = 5;
    expect(&policy, params, 8, order, "[0] [1 2] [3 4] [5 6] [7]", "40 80 80 80 80");
    policy.max_buckets = 4;
    expect(&policy, params, 8, order, "[0 1] [2 3 4 5] [6 7]", "80 160 160");
    policy.max_buckets = 1;
    expect(&policy, params, 8, order, "[0 1 2 3 4 5 6 7]", "320");
}

static void a_number_of_buckets_that_cannot_be_is_refused(void **state) {
    (void)state;
    gs_param_spec params[4];
    make_params(params, 4);
    params[1].dtype = GS_BF16;
    params[2].sparse = true;
    gs_bucket_plan plan;
    gs_plan_policy policy = {.one_host = true, .max_buckets = 2};
    gs_status status = gs_plan_policy_apply(&plan, &policy, params, 4, NULL);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "need 3"));
    policy.max_buckets = 3;
    status = gs_plan_policy_apply(&plan, &policy, params, 4, NULL);
    assert_string_equal(status.message, "");
    gs_bucket_plan_release(&plan);
}

// The original looks the flag up by parameter, and so do we: not by place in the order.
static void a_sparse_parameter_is_alone_wherever_it_comes(void **state) {
    (void)state;
    gs_param_spec params[5];
    make_params(params, 5);
    params[1].sparse = true;
    gs_plan_policy policy = {.caps_bytes = {80}, .num_caps = 1};
    expect(&policy, params, 5, NULL, "[3 4] [1] [0 2]", "80 0 80");
    expect(&policy, params, 5, (const size_t[]){4, 3, 2, 1, 0}, "[4 3] [1] [2 0]", "80 0 80");
    policy.small_last = true;
    expect(&policy, params, 5, (const size_t[]){4, 3, 2, 1, 0}, "[4 3] [2 0] [1]", "80 80 0");
}

// An accident of the original: with an order given, leftovers come out as its hash table has them.
static void leftovers_follow_in_the_order_in_which_they_were_opened(void **state) {
    (void)state;
    static const gs_dtype dtypes[] = {GS_FP32, GS_FP64, GS_FP16, GS_BF16};
    gs_param_spec params[4];
    gs_plan_policy policy = {.caps_bytes = {1000}, .num_caps = 1};
    make_params(params, 4);
    for (size_t i = 0; i < 4; i++) params[i].dtype = dtypes[i];
    expect(&policy, params, 4, (const size_t[]){2, 0, 3, 1}, "[2] [0] [3] [1]",
           "1000 1000 1000 1000");
    expect(&policy, params, 4, (const size_t[]){1, 3, 0, 2}, "[1] [3] [0] [2]",
           "1000 1000 1000 1000");
}

static void nothing_makes_an_empty_plan(void **state) {
    (void)state;
    expect(&(gs_plan_policy){0}, NULL, 0, NULL, "", "");
    expect(&(gs_plan_policy){.one_host = true, .max_buckets = 1}, NULL, 0, NULL, "", "");
}

static void the_default_is_one_cap_of_25_mib(void **state) {
    (void)state;
    gs_param_spec params[2];
    make_params(params, 2);
    expect(&(gs_plan_policy){0}, params, 2, NULL, "[0 1]", "26214400");
}

// The original pays for an unlimited first bucket until it knows the order; ours starts in plan
// order on every rank, so the first plan is as good as any other and needs no such step.
static void the_first_plan_has_several_buckets_already(void **state) {
    (void)state;
    gs_param_spec params[4];
    make_params(params, 4);
    gs_plan_policy policy = {.first_bytes = 40, .caps_bytes = {80}, .num_caps = 1};
    expect(&policy, params, 4, NULL, "[3] [1 2] [0]", "80 80 40");
}

static gs_plan_policy draw_policy(gs_random_key key) {
    gs_plan_policy policy = {.one_host = gs_random_u64(key, 0) % 5 == 0,
                             .first_bytes = gs_random_u64(key, 1) % 3 * 500,
                             .num_caps = 1 + gs_random_u64(key, 2) % 4,
                             .small_last = gs_random_u64(key, 3) % 2,
                             .max_buckets = gs_random_u64(key, 4) % 3 * 9};
    for (size_t i = 0; i < policy.num_caps; i++)
        policy.caps_bytes[i] = gs_random_u64(key, 5 + i) % 5000;
    return policy;
}

static size_t draw_params(gs_param_spec *params, size_t *order, gs_random_key key) {
    static const gs_dtype dtypes[] = {GS_FP32, GS_FP32, GS_FP64, GS_BF16};
    size_t num_params = 1 + gs_random_u64(key, 20) % (MAX_PARAMS - 1);
    for (size_t i = 0; i < num_params; i++) {
        params[i] =
            gs_param_spec_make(dtypes[gs_random_u64(key, 100 + i) % 4],
                               1 + (int64_t)(gs_random_u64(key, 200 + i) % 400), 0, "p%zu", i);
        params[i].sparse = gs_random_u64(key, 300 + i) % 9 == 0;
        order[i] = i;
    }
    for (size_t i = num_params; i > 1; i--) {
        size_t other = gs_random_u64(key, 400 + i) % i, swapped = order[i - 1];
        order[i - 1] = order[other];
        order[other] = swapped;
    }
    return num_params;
}

static void every_parameter_is_in_one_bucket_whatever_the_policy(void **state) {
    (void)state;
    gs_param_spec params[MAX_PARAMS];
    size_t order[MAX_PARAMS];
    int refused = 0;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        gs_random_key key = {.seed = seed, .stream = 3};
        gs_plan_policy policy = draw_policy(key);
        size_t num_params = draw_params(params, order, key);
        for (int observed = 0; observed < 2; observed++) {
            gs_bucket_plan plan, again;
            gs_status status =
                gs_plan_policy_apply(&plan, &policy, params, num_params, observed ? order : NULL);
            if (status.code) {
                if (!policy.max_buckets)
                    fail_msg("seed %llu: %s", (unsigned long long)seed, status.message);
                refused++;
                continue;
            }
            status = gs_bucket_plan_check(&plan, params, num_params);
            if (status.code) fail_msg("seed %llu: %s", (unsigned long long)seed, status.message);
            if (policy.max_buckets) assert_true(plan.num_buckets <= policy.max_buckets);
            for (size_t b = 0; b < plan.num_buckets; b++) {
                const gs_plan_bucket *bucket = &plan.buckets[b];
                if (params[plan.params[bucket->first]].sparse)
                    assert_int_equal(bucket->num_params, 1);
            }
            assert_int_equal(
                gs_plan_policy_apply(&again, &policy, params, num_params, observed ? order : NULL)
                    .code,
                GS_OK);
            assert_true(
                gs_digest_equal(gs_bucket_plan_digest(&plan), gs_bucket_plan_digest(&again)));
            gs_bucket_plan_release(&plan);
            gs_bucket_plan_release(&again);
        }
    }
    assert_in_range(refused, 0, 300);
}

static void a_bucket_has_one_owner_and_each_owner_its_limits(void **state) {
    (void)state;
    gs_param_spec params[6];
    make_params(params, 6);
    const int owners[] = {0, 7, 0, 7, 7, 0};
    gs_plan_policy policy = {.first_bytes = 40, .caps_bytes = {80}, .num_caps = 1};
    const size_t order[] = {5, 4, 3, 2, 1, 0};
    expect_owned(&policy, owners, params, 6, order, "[5] [4] [3 1] [2 0]", "40 40 80 80");
    expect_owned(&policy, owners, params, 6, NULL, "[3 4] [2 5] [1] [0]", "80 80 40 40");
    policy = (gs_plan_policy){.one_host = true};
    expect_owned(&policy, owners, params, 6, NULL, "[4 3 1] [5 2 0]", "65536 65536");
}

static void owners_do_not_show_as_devices_and_need_their_buckets(void **state) {
    (void)state;
    gs_param_spec params[4];
    make_params(params, 4);
    gs_bucket_plan plan;
    gs_plan_policy policy = {.max_buckets = 2};
    gs_status status =
        gs_plan_policy_apply_owned(&plan, &policy, (const int[]){3, 5, 3, 5}, params, 4, NULL);
    assert_string_equal(status.message, "");
    assert_int_equal(plan.num_buckets, 2);
    for (size_t b = 0; b < 2; b++) assert_int_equal(plan.buckets[b].device, 0);
    gs_bucket_plan_release(&plan);
    policy.max_buckets = 1;
    status = gs_plan_policy_apply_owned(&plan, &policy, (const int[]){3, 5, 3, 5}, params, 4, NULL);
    assert_string_equal(status.message,
                        "max_buckets: 1; types, owners and sparse parameters need 2");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_of_caps_is_the_list_of_limits),
        cmocka_unit_test(a_first_limit_goes_before_the_caps),
        cmocka_unit_test(the_small_limit_may_fall_to_the_last_bucket),
        cmocka_unit_test(caps_grow_until_there_are_few_enough_buckets),
        cmocka_unit_test(a_number_of_buckets_that_cannot_be_is_refused),
        cmocka_unit_test(a_sparse_parameter_is_alone_wherever_it_comes),
        cmocka_unit_test(leftovers_follow_in_the_order_in_which_they_were_opened),
        cmocka_unit_test(nothing_makes_an_empty_plan),
        cmocka_unit_test(the_default_is_one_cap_of_25_mib),
        cmocka_unit_test(the_first_plan_has_several_buckets_already),
        cmocka_unit_test(every_parameter_is_in_one_bucket_whatever_the_policy),
        cmocka_unit_test(a_bucket_has_one_owner_and_each_owner_its_limits),
        cmocka_unit_test(owners_do_not_show_as_devices_and_need_their_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
