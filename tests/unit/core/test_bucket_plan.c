#include "core/bucket_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"

#define MAX_TENSORS 200

// The plan in words, "[0 2] [1 3]", and the limits in force.
static void expect_plan(const gs_bucket_plan *plan, const char *buckets, const char *limits) {
    char text[512] = "", limit_text[256] = "";
    for (size_t b = 0; b < plan->num_buckets; b++) {
        const gs_plan_bucket *bucket = &plan->buckets[b];
        for (size_t i = 0; i < bucket->num_params; i++)
            sprintf(text + strlen(text), "%s%zu",
                    i   ? " "
                    : b ? " ["
                        : "[",
                    plan->params[bucket->first + i]);
        strcat(text, "]");
        sprintf(limit_text + strlen(limit_text), "%s%llu", b ? " " : "",
                (unsigned long long)bucket->limit_bytes);
    }
    assert_string_equal(text, buckets);
    assert_string_equal(limit_text, limits);
}

static void expect_assignment(const gs_plan_request *request, const char *buckets,
                              const char *limits) {
    gs_bucket_plan plan;
    gs_status status = gs_bucket_plan_assign(&plan, request);
    assert_string_equal(status.message, "");
    expect_plan(&plan, buckets, limits);
    gs_bucket_plan_release(&plan);
}

static const gs_plan_tensor multi_dtype[] = {
    {.count = 50, .dtype = GS_FP32}, {.count = 25, .dtype = GS_FP64}, {.count = 50, .dtype = GS_FP32},
    {.count = 25, .dtype = GS_FP64}, {.count = 50, .dtype = GS_FP32}, {.count = 25, .dtype = GS_FP64}};

static void bucket_closes_when_its_limit_is_reached(void **state) {
    (void)state;
    const gs_plan_tensor tensors[] = {{.count = 100, .dtype = GS_FP32},
                                      {.count = 200, .dtype = GS_FP32},
                                      {.count = 100, .dtype = GS_FP32},
                                      {.count = 50, .dtype = GS_FP32}};
    expect_assignment(&(gs_plan_request){.tensors = tensors,
                                         .num_tensors = 4,
                                         .limits_bytes = (const uint64_t[]){400},
                                         .num_limits = 1},
                      "[0] [1] [2] [3]", "400 400 400 400");
}

static void each_dtype_has_its_own_open_bucket_and_limits(void **state) {
    (void)state;
    expect_assignment(&(gs_plan_request){.tensors = multi_dtype,
                                         .num_tensors = 6,
                                         .limits_bytes = (const uint64_t[]){400},
                                         .num_limits = 1},
                      "[0 2] [1 3] [4] [5]", "400 400 400 400");
    expect_assignment(&(gs_plan_request){.tensors = multi_dtype,
                                         .num_tensors = 6,
                                         .limits_bytes = (const uint64_t[]){200, 400},
                                         .num_limits = 2},
                      "[0] [1] [2 4] [3 5]", "200 200 400 400");
}

static void limits_are_used_up_and_the_last_one_repeats(void **state) {
    (void)state;
    const gs_plan_tensor tensors[] = {{.count = 10, .dtype = GS_FP32},
                                      {.count = 10, .dtype = GS_FP32},
                                      {.count = 10, .dtype = GS_FP32},
                                      {.count = 10, .dtype = GS_FP32}};
    expect_assignment(&(gs_plan_request){.tensors = tensors,
                                         .num_tensors = 4,
                                         .limits_bytes = (const uint64_t[]){40, 80},
                                         .num_limits = 2},
                      "[0] [1 2] [3]", "40 80 80");
}

static void sparse_tensor_gets_its_own_bucket_without_a_limit(void **state) {
    (void)state;
    gs_plan_tensor tensors[5];
    for (int i = 0; i < 5; i++)
        tensors[i] = (gs_plan_tensor){.count = 10, .dtype = GS_FP32, .sparse = i == 1};
    gs_plan_request request = {.tensors = tensors,
                               .num_tensors = 5,
                               .limits_bytes = (const uint64_t[]){80},
                               .num_limits = 1};
    expect_assignment(&request, "[0 2] [1] [3 4]", "80 0 80");
    request.order = (const size_t[]){4, 3, 2, 1, 0};
    expect_assignment(&request, "[4 3] [1] [2 0]", "80 0 80");
}

static void empty_list_gives_an_empty_plan(void **state) {
    (void)state;
    expect_assignment(&(gs_plan_request){.limits_bytes = (const uint64_t[]){400}, .num_limits = 1},
                      "", "");
}

static void limit_of_zero_separates_empty_tensors_too(void **state) {
    (void)state;
    const gs_plan_tensor tensors[] = {{.count = 0, .dtype = GS_FP32},
                                      {.count = 5, .dtype = GS_FP32},
                                      {.count = 0, .dtype = GS_FP32}};
    expect_assignment(&(gs_plan_request){.tensors = tensors,
                                         .num_tensors = 3,
                                         .limits_bytes = (const uint64_t[]){0},
                                         .num_limits = 1},
                      "[0] [1] [2]", "0 0 0");
}

static void bytes_saturate_and_do_not_wrap(void **state) {
    (void)state;
    const gs_plan_tensor tensors[] = {{.count = UINT64_MAX / 2, .dtype = GS_FP64},
                                      {.count = 1, .dtype = GS_FP64}};
    gs_bucket_plan plan;
    assert_int_equal(gs_bucket_plan_assign(
                         &plan, &(gs_plan_request){.tensors = tensors,
                                                   .num_tensors = 2,
                                                   .limits_bytes = (const uint64_t[]){UINT64_MAX},
                                                   .num_limits = 1})
                         .code,
                     GS_OK);
    expect_plan(&plan, "[0] [1]", "18446744073709551615 18446744073709551615");
    assert_true(plan.buckets[0].bytes == UINT64_MAX);
    gs_bucket_plan_release(&plan);
}

static void every_tensor_may_have_a_device_of_its_own(void **state) {
    (void)state;
    enum { NUM_TENSORS = 100000 };
    gs_plan_tensor *tensors = calloc(NUM_TENSORS, sizeof *tensors);
    for (size_t i = 0; i < NUM_TENSORS; i++)
        tensors[i] = (gs_plan_tensor){.count = 1,
                                      .dtype = i % 2 ? GS_FP32 : GS_FP64,
                                      .device = (int)(i % (NUM_TENSORS / 2)) - 1000};
    gs_bucket_plan plan;
    gs_status status =
        gs_bucket_plan_assign(&plan, &(gs_plan_request){.tensors = tensors,
                                                        .num_tensors = NUM_TENSORS,
                                                        .limits_bytes = (uint64_t[]){100},
                                                        .num_limits = 1});
    assert_string_equal(status.message, "");
    assert_int_equal(plan.num_buckets, NUM_TENSORS / 2);
    for (size_t b = 0; b < plan.num_buckets; b++) {
        assert_int_equal(plan.buckets[b].num_params, 2);
        assert_int_equal(plan.params[2 * b], b);
        assert_int_equal(plan.params[2 * b + 1], b + NUM_TENSORS / 2);
    }
    gs_bucket_plan_release(&plan);
    free(tensors);
}

static void bad_requests_are_refused(void **state) {
    (void)state;
    const gs_plan_tensor tensors[] = {{.count = 1, .dtype = GS_FP32},
                                      {.count = 1, .dtype = GS_FP32}};
    const gs_plan_tensor sparse[] = {{.count = 1, .dtype = GS_FP32, .sparse_storage = true}};
    const uint64_t limit[] = {400};
    const gs_plan_request requests[] = {
        {.tensors = tensors, .num_tensors = 2},
        {.tensors = tensors,
         .num_tensors = 2,
         .limits_bytes = limit,
         .num_limits = 1,
         .order = (const size_t[]){0, 0}},
        {.tensors = tensors,
         .num_tensors = 2,
         .limits_bytes = limit,
         .num_limits = 1,
         .order = (const size_t[]){0, 2}},
        {.tensors = sparse, .num_tensors = 1, .limits_bytes = limit, .num_limits = 1}};
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        gs_bucket_plan plan = {0};
        assert_int_equal(gs_bucket_plan_assign(&plan, &requests[i]).code, GS_INVALID_ARGUMENT);
    }
}

static size_t make_params(gs_param_spec *params, uint64_t seed) {
    gs_random_key key = {.seed = seed, .stream = 1};
    size_t num_params = 1 + gs_random_u64(key, 0) % (MAX_TENSORS - 1);
    for (size_t i = 0; i < num_params; i++)
        params[i] =
            gs_param_spec_make(GS_FP32, 1 + (int64_t)(gs_random_u64(key, 2 * i + 1) % 900),
                               1 + (int64_t)(gs_random_u64(key, 2 * i + 2) % 200), "p%zu", i);
    return num_params;
}

static void random_plans_hold_every_parameter_once_and_reach_their_limits(void **state) {
    (void)state;
    static gs_param_spec params[MAX_TENSORS];
    for (uint64_t seed = 0; seed < 100; seed++) {
        size_t num_params = make_params(params, seed);
        gs_bucket_plan plan;
        assert_int_equal(
            gs_bucket_plan_parity(&plan, params, num_params, 50000, 1000000, NULL).code, GS_OK);
        assert_int_equal(gs_bucket_plan_check(&plan, params, num_params).code, GS_OK);
        for (size_t b = 1; b < plan.num_buckets; b++) {  // bucket 0 is the leftover
            const gs_plan_bucket *bucket = &plan.buckets[b];
            size_t last = plan.params[bucket->first + bucket->num_params - 1];
            assert_true(bucket->bytes >= bucket->limit_bytes);
            assert_true(bucket->bytes - gs_param_spec_bytes(&params[last]) < bucket->limit_bytes);
        }
        gs_bucket_plan_release(&plan);
    }
}

static void parity_plan_starts_with_the_last_registered_parameters(void **state) {
    (void)state;
    gs_param_spec params[4];
    for (size_t i = 0; i < 4; i++) params[i] = gs_param_spec_make(GS_FP32, 10, 0, "p%zu", i);
    gs_bucket_plan plan;
    assert_int_equal(gs_bucket_plan_parity(&plan, params, 4, 40, 80, NULL).code, GS_OK);
    expect_plan(&plan, "[3] [1 2] [0]", "80 80 40");
    gs_bucket_plan_release(&plan);
    assert_int_equal(
        gs_bucket_plan_parity(&plan, params, 4, 40, 80, (const size_t[]){3, 1, 0, 2}).code, GS_OK);
    expect_plan(&plan, "[3] [1 0] [2]", "40 80 80");
    gs_bucket_plan_release(&plan);
}

static void one_host_plan_follows_the_ready_order_and_ends_small(void **state) {
    (void)state;
    gs_param_spec params[32];
    for (size_t i = 0; i < 32; i++) params[i] = gs_param_spec_make(GS_FP32, 128, 128, "p%zu", i);
    gs_bucket_plan plan;
    assert_int_equal(gs_bucket_plan_one_host(&plan, params, 32, NULL).code, GS_OK);
    assert_int_equal(gs_bucket_plan_check(&plan, params, 32).code, GS_OK);
    for (size_t i = 0; i < 32; i++) assert_int_equal(plan.params[i], 31 - i);
    assert_int_equal(plan.buckets[plan.num_buckets - 1].num_params, 1);
    assert_int_equal(plan.buckets[plan.num_buckets - 2].bytes, GS_HOST_BUCKET_CAP_BYTES);
    gs_bucket_plan_release(&plan);

    size_t order[32];
    for (size_t i = 0; i < 32; i++) order[i] = i * 5 % 32;
    assert_int_equal(gs_bucket_plan_one_host(&plan, params, 32, order).code, GS_OK);
    assert_memory_equal(plan.params, order, sizeof order);
    gs_bucket_plan_release(&plan);
}

static void digest_sees_order_limits_and_boundaries(void **state) {
    (void)state;
    static gs_param_spec params[MAX_TENSORS];
    size_t num_params = make_params(params, 7);
    gs_bucket_plan plan, other;
    assert_int_equal(gs_bucket_plan_parity(&plan, params, num_params, 1000, 90000, NULL).code,
                     GS_OK);
    assert_int_equal(gs_bucket_plan_copy(&other, &plan).code, GS_OK);
    gs_digest digest = gs_bucket_plan_digest(&plan);
    assert_true(gs_digest_equal(gs_bucket_plan_digest(&other), digest));

    other.buckets[0].limit_bytes++;
    assert_false(gs_digest_equal(gs_bucket_plan_digest(&other), digest));
    other.buckets[0].limit_bytes--;
    size_t swapped = other.params[num_params - 1];
    other.params[num_params - 1] = other.params[0];
    other.params[0] = swapped;
    assert_false(gs_digest_equal(gs_bucket_plan_digest(&other), digest));
    gs_bucket_plan_release(&plan);
    gs_bucket_plan_release(&other);
}

// A plan that names no hooks has the digest that it always had; data of coordinators holds such.
static void digest_sees_hooks_and_old_plans_keep_theirs(void **state) {
    (void)state;
    gs_param_spec params[4];
    gs_bucket_plan plan;
    char text[GS_DIGEST_TEXT_LEN];
    for (int i = 0; i < 4; i++) params[i] = gs_param_spec_make(GS_FP32, 100 * (i + 1), 3, "p%d", i);
    assert_int_equal(gs_bucket_plan_parity(&plan, params, 4, 1000, 4000, NULL).code, GS_OK);
    gs_digest plain = gs_bucket_plan_digest(&plan);
    gs_digest_format(text, plain);
    assert_string_equal(text, "xxh3:b5a9de0996203ae62fca57459cede0a4");
    plan.buckets[1].hook = 1;
    gs_digest second = gs_bucket_plan_digest(&plan);
    assert_false(gs_digest_equal(second, plain));
    plan.buckets[1].hook = 0;
    plan.buckets[2].hook = 1;
    assert_false(gs_digest_equal(gs_bucket_plan_digest(&plan), plain));
    assert_false(gs_digest_equal(gs_bucket_plan_digest(&plan), second));
    plan.buckets[2].hook = -1;
    assert_int_equal(gs_bucket_plan_check(&plan, params, 4).code, GS_INVALID_ARGUMENT);
    gs_bucket_plan_release(&plan);
}

// Caps bound what a bucket holds and sends: fp32 gradients, whatever the parameters are.
static void gradients_of_16_bit_parameters_count_as_fp32(void **state) {
    (void)state;
    const gs_dtype dtypes[] = {GS_FP32, GS_FP16, GS_BF16};
    for (size_t d = 0; d < 3; d++) {
        gs_param_spec params[8];
        for (size_t i = 0; i < 8; i++) params[i] = gs_param_spec_make(dtypes[d], 100, 0, "p%zu", i);
        gs_bucket_plan plan;
        assert_int_equal(gs_bucket_plan_parity(&plan, params, 8, 400, 1000, NULL).code, GS_OK);
        assert_int_equal(plan.num_buckets, 4);
        for (size_t b = 0; b < 4; b++) {
            assert_int_equal(plan.buckets[b].dtype, dtypes[d]);
            assert_int_equal(plan.buckets[b].bytes, 400 * plan.buckets[b].num_params);
        }
        gs_bucket_plan_release(&plan);
    }
}

static void check_refuses_plans_of_other_models(void **state) {
    (void)state;
    gs_param_spec params[3];
    for (size_t i = 0; i < 3; i++) params[i] = gs_param_spec_make(GS_FP32, 10, 0, "p%zu", i);
    gs_bucket_plan plan;
    assert_int_equal(gs_bucket_plan_parity(&plan, params, 3, 40, 80, NULL).code, GS_OK);
    assert_int_equal(gs_bucket_plan_check(&plan, params, 2).code, GS_INVALID_ARGUMENT);
    const size_t first = plan.params[0];
    plan.params[0] = plan.params[1];
    assert_int_equal(gs_bucket_plan_check(&plan, params, 3).code, GS_INVALID_ARGUMENT);
    plan.params[0] = 7;
    assert_int_equal(gs_bucket_plan_check(&plan, params, 3).code, GS_INVALID_ARGUMENT);
    plan.params[0] = first;
    assert_int_equal(gs_bucket_plan_check(&plan, params, 3).code, GS_OK);
    params[0].dtype = GS_BF16;
    gs_status status = gs_bucket_plan_check(&plan, params, 3);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "\"p0\""));
    gs_bucket_plan_release(&plan);
}

static void chunk_never_passes_its_limit_unless_one_tensor_does(void **state) {
    (void)state;
    const gs_plan_tensor tensors[] = {{.count = 15, .dtype = GS_FP32},
                                      {.count = 15, .dtype = GS_FP32},
                                      {.count = 900, .dtype = GS_FP32},
                                      {.count = 3, .dtype = GS_FP32}};
    size_t chunk_of[4], num_chunks;
    assert_int_equal(gs_take_tensors(chunk_of, &num_chunks, tensors, 4, 100, true).code, GS_OK);
    const size_t expected[] = {0, 1, 2, 3};
    assert_memory_equal(chunk_of, expected, sizeof expected);
    assert_int_equal(num_chunks, 4);
}

static void chunks_are_numbered_as_they_close(void **state) {
    (void)state;
    size_t chunk_of[6], num_chunks;
    assert_int_equal(gs_take_tensors(chunk_of, &num_chunks, multi_dtype, 6, 400, true).code, GS_OK);
    const size_t per_type[] = {0, 1, 0, 1, 2, 3};
    // the pairs are full at 400 bytes; the third of each type closes its chunk
    assert_memory_equal(chunk_of, per_type, sizeof per_type);
    assert_int_equal(gs_take_tensors(chunk_of, &num_chunks, multi_dtype, 6, 400, false).code,
                     GS_OK);
    const size_t in_order[] = {0, 0, 1, 1, 2, 2};
    assert_memory_equal(chunk_of, in_order, sizeof in_order);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bucket_closes_when_its_limit_is_reached),
        cmocka_unit_test(each_dtype_has_its_own_open_bucket_and_limits),
        cmocka_unit_test(limits_are_used_up_and_the_last_one_repeats),
        cmocka_unit_test(sparse_tensor_gets_its_own_bucket_without_a_limit),
        cmocka_unit_test(empty_list_gives_an_empty_plan),
        cmocka_unit_test(limit_of_zero_separates_empty_tensors_too),
        cmocka_unit_test(bytes_saturate_and_do_not_wrap),
        cmocka_unit_test(every_tensor_may_have_a_device_of_its_own),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(random_plans_hold_every_parameter_once_and_reach_their_limits),
        cmocka_unit_test(parity_plan_starts_with_the_last_registered_parameters),
        cmocka_unit_test(one_host_plan_follows_the_ready_order_and_ends_small),
        cmocka_unit_test(digest_sees_order_limits_and_boundaries),
        cmocka_unit_test(digest_sees_hooks_and_old_plans_keep_theirs),
        cmocka_unit_test(gradients_of_16_bit_parameters_count_as_fp32),
        cmocka_unit_test(check_refuses_plans_of_other_models),
        cmocka_unit_test(chunk_never_passes_its_limit_unless_one_tensor_does),
        cmocka_unit_test(chunks_are_numbered_as_they_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
