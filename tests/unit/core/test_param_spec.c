#include "core/param_spec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void count_is_the_product_of_the_shape(void **state) {
    (void)state;
    gs_param_spec scalar = gs_param_spec_make(GS_FP32, 0, 0, "scalar");
    gs_param_spec vector = gs_param_spec_make(GS_FP32, 7, 0, "vector");
    gs_param_spec matrix = gs_param_spec_make(GS_BF16, 7, 5, "h.%d.weight", 3);
    assert_int_equal(gs_param_spec_count(&scalar), 1);
    assert_int_equal(gs_param_spec_count(&vector), 7);
    assert_int_equal(gs_param_spec_count(&matrix), 35);
    assert_int_equal(gs_param_spec_bytes(&matrix), 70);
    assert_string_equal(matrix.name, "h.3.weight");
}

static void empty_dimension_gives_no_elements(void **state) {
    (void)state;
    gs_param_spec spec = {.name = "none", .dtype = GS_FP32, .num_dims = 2, .shape = {0, INT64_MAX}};
    assert_int_equal(gs_param_spec_count(&spec), 0);
    assert_int_equal(gs_param_specs_check(&spec, 1).code, GS_OK);
}

static void bad_specs_are_refused_by_index_and_name(void **state) {
    (void)state;
    gs_param_spec good = gs_param_spec_make(GS_FP32, 2, 2, "good");
    gs_param_spec bad[] = {
        {.name = "", .dtype = GS_FP32},
        {.name = "untyped"},
        {.name = "negative", .dtype = GS_FP32, .num_dims = 1, .shape = {-1}},
        {.name = "huge", .dtype = GS_FP32, .num_dims = 2, .shape = {INT64_MAX, INT64_MAX}},
        {.name = "wide", .dtype = GS_FP64, .num_dims = 1, .shape = {INT64_MAX}},
        {.name = "deep", .dtype = GS_FP32, .num_dims = GS_MAX_DIMS + 1},
        {.name = "rowless", .dtype = GS_FP32, .sparse = true},
        {.name = "good", .dtype = GS_FP32}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        gs_param_spec list[] = {good, bad[i]};
        gs_status status = gs_param_specs_check(list, 2);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        assert_non_null(strstr(status.message, bad[i].name));
    }
}

static void digest_ignores_bytes_behind_name_and_shape(void **state) {
    (void)state;
    gs_param_spec a = gs_param_spec_make(GS_FP32, 3, 4, "w"), b;
    memset(&b, 0x5a, sizeof b);
    strcpy(b.name, "w");
    b.dtype = GS_FP32;
    b.num_dims = 2;
    b.shape[0] = 3;
    b.shape[1] = 4;
    b.sparse = false;
    assert_true(gs_digest_equal(gs_param_specs_digest(&a, 1), gs_param_specs_digest(&b, 1)));
    assert_int_equal(gs_param_specs_compare(&a, 1, &b, 1).code, GS_OK);
}

static void digest_sees_name_shape_dtype_order_and_number(void **state) {
    (void)state;
    gs_param_spec list[] = {gs_param_spec_make(GS_FP32, 3, 4, "a"),
                            gs_param_spec_make(GS_FP32, 4, 3, "b")};
    gs_digest digest = gs_param_specs_digest(list, 2);
    gs_param_spec swapped[] = {list[1], list[0]};
    gs_param_spec renamed[] = {list[0], gs_param_spec_make(GS_FP32, 4, 3, "c")};
    gs_param_spec reshaped[] = {list[0], gs_param_spec_make(GS_FP32, 3, 4, "b")};
    gs_param_spec retyped[] = {list[0], gs_param_spec_make(GS_BF16, 4, 3, "b")};
    assert_false(gs_digest_equal(gs_param_specs_digest(swapped, 2), digest));
    assert_false(gs_digest_equal(gs_param_specs_digest(renamed, 2), digest));
    assert_false(gs_digest_equal(gs_param_specs_digest(reshaped, 2), digest));
    assert_false(gs_digest_equal(gs_param_specs_digest(retyped, 2), digest));
    assert_false(gs_digest_equal(gs_param_specs_digest(list, 1), digest));
}

static void first_difference_is_said_in_words(void **state) {
    (void)state;
    gs_param_spec ours[] = {gs_param_spec_make(GS_FP32, 3, 4, "a"),
                            gs_param_spec_make(GS_FP32, 10, 64, "fc3.weight")};
    gs_param_spec theirs[] = {ours[0], gs_param_spec_make(GS_FP32, 64, 10, "fc3.weight")};
    gs_status status = gs_param_specs_compare(ours, 2, theirs, 2);
    assert_string_equal(status.message,
                        "parameter 1 \"fc3.weight\": shape [10,64] against [64,10]");
    theirs[1] = ours[1];
    theirs[1].dtype = GS_FP16;
    status = gs_param_specs_compare(ours, 2, theirs, 2);
    assert_string_equal(status.message, "parameter 1 \"fc3.weight\": dtype fp32 against fp16");
    status = gs_param_specs_compare(ours, 2, theirs, 1);
    assert_string_equal(status.message,
                        "2 parameters against 1: parameter 1 \"fc3.weight\" has no counterpart");
}

static void sparse_gradients_are_part_of_digest_and_comparison(void **state) {
    (void)state;
    gs_param_spec ours[] = {gs_param_spec_make(GS_FP32, 3, 4, "a"),
                            gs_param_spec_make(GS_FP32, 50, 8, "embedding.weight")};
    gs_param_spec theirs[] = {ours[0], ours[1]};
    theirs[1].sparse = true;
    assert_int_equal(gs_param_specs_check(theirs, 2).code, GS_OK);
    gs_digest dense = gs_param_specs_digest(ours, 2), sparse = gs_param_specs_digest(theirs, 2);
    assert_false(gs_digest_equal(dense, sparse));
    gs_status status = gs_param_specs_compare(theirs, 2, ours, 2);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_string_equal(status.message,
                        "parameter 1 \"embedding.weight\": gradient sparse against dense");
    status = gs_param_specs_compare(ours, 2, theirs, 2);
    assert_string_equal(status.message,
                        "parameter 1 \"embedding.weight\": gradient dense against sparse");
}

// Written down before gradients could be sparse: checkpoints and plans of then still match.
static void digest_of_a_dense_list_stays_what_it_was(void **state) {
    (void)state;
    gs_param_spec list[] = {gs_param_spec_make(GS_FP32, 3, 4, "a"),
                            gs_param_spec_make(GS_BF16, 10, 0, "b")};
    char text[GS_DIGEST_TEXT_LEN];
    gs_digest_format(text, gs_param_specs_digest(list, 2));
    assert_string_equal(text, "xxh3:2072561f41e5b66c40d6a817d4775fae");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(count_is_the_product_of_the_shape),
        cmocka_unit_test(empty_dimension_gives_no_elements),
        cmocka_unit_test(bad_specs_are_refused_by_index_and_name),
        cmocka_unit_test(digest_ignores_bytes_behind_name_and_shape),
        cmocka_unit_test(digest_sees_name_shape_dtype_order_and_number),
        cmocka_unit_test(first_difference_is_said_in_words),
        cmocka_unit_test(sparse_gradients_are_part_of_digest_and_comparison),
        cmocka_unit_test(digest_of_a_dense_list_stays_what_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
