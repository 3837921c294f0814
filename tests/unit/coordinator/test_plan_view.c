#include "coordinator/observe/views/plan_view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/plan_policy.h"

#define NUM_PARAMS 5

static const gs_hook_rule all_reduce = {.kind = "allreduce"};
static const gs_plan_header header = {.revision = 3,
                                      .reason = "ready_order",
                                      .hash = "xxh3:0",
                                      .world_size = 2,
                                      .since_step = 17,
                                      .hook = &all_reduce};

// fp32 of 40 bytes each; the third is sparse, the last fp64.
static gs_bucket_plan make_plan(gs_param_spec params[NUM_PARAMS], const size_t *order) {
    gs_bucket_plan plan;
    for (size_t i = 0; i < NUM_PARAMS; i++)
        params[i] = gs_param_spec_make(i == 4 ? GS_FP64 : GS_FP32, 10, 0, "p%zu", i);
    params[2].sparse = true;
    gs_status status = gs_bucket_plan_parity(&plan, params, NUM_PARAMS, 80, 100, order);
    assert_string_equal(status.message, "");
    return plan;
}

// As who asks for it gets it: tensors are text in it.
static gs_json *made_view(const gs_bucket_plan *plan, const gs_plan_header *shown, const gs_param_spec *params, const gs_param_order *order) {
    gs_json *view = gs_plan_to_view(plan, shown, params, order), *read = NULL;
    char *text;
    size_t bytes;
    gs_status status = gs_json_encode(&text, &bytes, view, false);
    if (!status.code) status = gs_json_parse(&read, text, bytes);
    assert_string_equal(status.message, "");
    free(text);
    gs_json_release(view);
    return read;
}

static void expect_bucket(const gs_json *view, size_t index, const char *ends, const char *why,
                          const char *first_tensor) {
    const gs_json *bucket = gs_json_at(gs_json_get(view, "buckets"), index);
    const gs_json *tensor = gs_json_at(gs_json_get(bucket, "tensors"), 0);
    assert_int_equal(gs_json_int_or(bucket, "index", -1), index);
    assert_int_equal(gs_json_int_or(bucket, "position", -1), index);
    assert_string_equal(gs_json_string_or(bucket, "ends", ""), ends);
    assert_string_equal(gs_json_string_or(bucket, "why", ""), why);
    assert_string_equal(gs_json_string_or(tensor, "name", ""), first_tensor);
}

static void each_bucket_says_why_it_ends_where_it_ends(void **state) {
    (void)state;
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan = make_plan(params, NULL);
    gs_json *view = made_view(&plan, &header, params, NULL);
    assert_int_equal(gs_json_count(gs_json_get(view, "buckets")), 4);
    expect_bucket(view, 0, "limit", "80 bytes reach the limit of 80", "p4");
    expect_bucket(view, 1, "leftover",
                  "40 bytes below the limit of 100: no other fp32 parameters are left", "p3");
    expect_bucket(view, 2, "sparse", "a sparse gradient travels alone", "p2");
    expect_bucket(view, 3, "limit", "80 bytes reach the limit of 80", "p0");
    assert_int_equal(gs_json_int_or(view, "revision", 0), 3);
    assert_int_equal(gs_json_int_or(view, "since_step", 0), 17);
    assert_int_equal(gs_json_int_or(view, "total_bytes", 0), 240);
    const gs_json *last = gs_json_at(gs_json_get(view, "buckets"), 3);
    assert_null(gs_json_get(last, "expected_ready"));
    const gs_json *second = gs_json_at(gs_json_get(last, "tensors"), 1);
    assert_int_equal(gs_json_int_or(second, "offset_bytes", 0), 40);
    gs_json_release(view);
    gs_bucket_plan_release(&plan);
}

static void buckets_are_expected_at_their_places_in_the_order(void **state) {
    (void)state;
    size_t order[NUM_PARAMS] = {4, 1, 2, 0, 3};
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan = make_plan(params, order);
    const gs_param_order seen = {order, NUM_PARAMS};
    gs_json *view = made_view(&plan, &header, params, &seen);
    static const int64_t expected[][2] = {{0, 0}, {2, 2}, {1, 3}, {4, 4}};  // [4] [2] [1 0] [3]
    for (size_t i = 0; i < 4; i++) {
        const gs_json *ready =
            gs_json_get(gs_json_at(gs_json_get(view, "buckets"), i), "expected_ready");
        assert_int_equal(gs_json_int_or(ready, "first", -1), expected[i][0]);
        assert_int_equal(gs_json_int_or(ready, "last", -1), expected[i][1]);
    }
    gs_json_release(view);
    gs_bucket_plan_release(&plan);
}

static void expect_volume(const gs_json *bucket, int64_t elements, int64_t sent, int64_t bytes,
                          int64_t compressed) {
    assert_int_equal(gs_json_int_or(bucket, "elements", -1), elements);
    assert_int_equal(gs_json_int_or(bucket, "elements_sent", -1), sent);
    assert_int_equal(gs_json_int_or(bucket, "wire_bytes", -1), bytes);
    assert_int_equal(gs_json_int_or(bucket, "compressed_tensors", -1), compressed);
}

static void each_bucket_says_what_its_hook_sends(void **state) {
    (void)state;
    gs_param_spec params[2] = {gs_param_spec_make(GS_FP32, 100, 60, "matrix"),
                               gs_param_spec_make(GS_FP32, 16, 0, "bias")};
    gs_bucket_plan plan;
    assert_int_equal(gs_bucket_plan_parity(&plan, params, 2, 60, 100, NULL).code, GS_OK);
    const gs_hook_rule hook = {
        .kind = "powersgd", .wire_dtype = GS_BF16, .rank = 1, .min_compression_rate = 2};
    gs_plan_header with_hook = header;
    with_hook.hook = &hook;
    gs_json *view = made_view(&plan, &with_hook, params, NULL);
    const gs_json *bias = gs_json_at(gs_json_get(view, "buckets"), 0);
    const gs_json *matrix = gs_json_at(gs_json_get(view, "buckets"), 1);
    assert_string_equal(gs_json_string_or(bias, "hook", ""), "powersgd");
    assert_string_equal(gs_json_string_or(matrix, "wrap", ""), "bf16");
    expect_volume(bias, 16, 16, 32, 0);
    expect_volume(matrix, 6000, 160, 320, 1);
    assert_int_equal(gs_json_int_or(view, "total_wire_bytes", 0), 352);
    gs_json_release(view);
    gs_bucket_plan_release(&plan);
}

static void buckets_of_owned_parameters_name_their_owner(void **state) {
    (void)state;
    static const int owners[] = {1, 0, 1};
    gs_param_spec params[3];
    for (size_t i = 0; i < 3; i++) params[i] = gs_param_spec_make(GS_FP32, 10, 0, "p%zu", i);
    gs_bucket_plan plan;
    gs_status status = gs_plan_policy_apply_owned(
        &plan, &(gs_plan_policy){.caps_bytes = {100}, .num_caps = 1}, owners, params, 3, NULL);
    assert_string_equal(status.message, "");
    gs_plan_header owned = header;
    owned.owners = owners;
    gs_json *view = made_view(&plan, &owned, params, NULL);
    const gs_json *buckets = gs_json_get(view, "buckets");
    expect_bucket(view, 0, "leftover",
                  "40 bytes below the limit of 100: no other fp32 parameters of its owner are left",
                  "p1");
    assert_int_equal(gs_json_int_or(gs_json_at(buckets, 0), "owner", -1), 0);
    assert_int_equal(gs_json_int_or(gs_json_at(buckets, 1), "owner", -1), 1);
    gs_json_release(view);
    gs_bucket_plan_release(&plan);
}

// 40 and 10 elements on lines of 16, cut among 3 ranks: parts of 32.
static void tensors_of_a_bucket_that_is_cut_name_their_owners(void **state) {
    (void)state;
    gs_param_spec params[] = {gs_param_spec_make(GS_FP32, 40, 0, "a"),
                              gs_param_spec_make(GS_FP32, 10, 0, "b")};
    gs_bucket_plan plan;
    assert_int_equal(gs_bucket_plan_parity(&plan, params, 2, 1000, 1000, NULL).code, GS_OK);
    gs_plan_header cut = header;
    cut.cut_among = 3;
    gs_json *view = made_view(&plan, &cut, params, NULL);
    const gs_json *bucket = gs_json_at(gs_json_get(view, "buckets"), 0);
    assert_int_equal(gs_json_int_or(bucket, "part_elements", -1), 32);
    assert_int_equal(gs_json_count(gs_json_get(bucket, "tensors")), 2);
    static const int64_t expected[2][3] = {{0, 0, 1}, {48, 1, 1}};
    for (size_t i = 0; i < 2; i++) {
        const gs_json *tensor = gs_json_at(gs_json_get(bucket, "tensors"), i);
        assert_int_equal(gs_json_int_or(tensor, "first_element", -1), expected[i][0]);
        assert_int_equal(gs_json_int_or(tensor, "first_owner", -1), expected[i][1]);
        assert_int_equal(gs_json_int_or(tensor, "last_owner", -1), expected[i][2]);
    }
    gs_json_release(view);
    gs_bucket_plan_release(&plan);
}

// Names come from ranks.
static void a_name_is_whole_whatever_is_in_it(void **state) {
    (void)state;
    static const char *const names[] = {"a\"b\\c", "line\nand\ttab", "\xc3\xa4\xe2\x82\xac", "\x7f", ""};
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan = make_plan(params, NULL);
    for (int i = 0; i < NUM_PARAMS; i++) snprintf(params[i].name, sizeof params[i].name, "%s", names[i]);
    gs_json *view = made_view(&plan, &header, params, NULL);
    size_t num_found = 0;
    for (size_t b = 0; b < gs_json_count(gs_json_get(view, "buckets")); b++) {
        const gs_json *tensors = gs_json_get(gs_json_at(gs_json_get(view, "buckets"), b), "tensors");
        for (size_t i = 0; i < gs_json_count(tensors); i++) {
            const char *name = gs_json_string_or(gs_json_at(tensors, i), "name", "?");
            for (int k = 0; k < NUM_PARAMS; k++) num_found += strcmp(name, names[k]) == 0;
        }
    }
    assert_int_equal(num_found, NUM_PARAMS);
    gs_json_release(view);
    gs_bucket_plan_release(&plan);
}

// As text that is part of many answers it says the same, and how many there are.
static void a_sealed_view_reads_the_same(void **state) {
    (void)state;
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan = make_plan(params, NULL);
    gs_json *view = made_view(&plan, &header, params, NULL), *read = NULL;
    char *text = NULL;
    gs_plan_view_seal(view);
    gs_plan_view_seal(view);  // a second time there is nothing to do
    assert_int_equal(gs_json_encode(&text, NULL, view, false).code, GS_OK);
    assert_int_equal(gs_json_parse(&read, text, strlen(text)).code, GS_OK);
    expect_bucket(read, 0, "limit", "80 bytes reach the limit of 80", "p4");
    const gs_json *last = gs_json_at(gs_json_get(read, "buckets"), 3);
    assert_int_equal(gs_json_count(gs_json_get(last, "tensors")), 2);
    assert_int_equal(gs_json_int_or(last, "num_tensors", 0), 2);
    free(text);
    gs_json_release(read);
    gs_json_release(view);
    gs_bucket_plan_release(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_is_whole_whatever_is_in_it),
        cmocka_unit_test(each_bucket_says_why_it_ends_where_it_ends),
        cmocka_unit_test(buckets_are_expected_at_their_places_in_the_order),
        cmocka_unit_test(each_bucket_says_what_its_hook_sends),
        cmocka_unit_test(buckets_of_owned_parameters_name_their_owner),
        cmocka_unit_test(tensors_of_a_bucket_that_is_cut_name_their_owners),
        cmocka_unit_test(a_sealed_view_reads_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
