#include "rpc/plan/param_page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rpc/schema/messages.h"

static gs_param_spec *make_params(size_t num_params) {
    gs_param_spec *params = calloc(num_params, sizeof *params);
    assert_non_null(params);
    for (size_t i = 0; i < num_params; i++) {
        params[i] = gs_param_spec_make(GS_FP32, (int64_t)i + 1, 3, "p%zu", i);
        params[i].sparse = i % 7 == 0;
    }
    return params;
}

static gs_json *make_page(const gs_param_spec *params, size_t num_params, size_t first) {
    gs_json *page = gs_json_new_object();
    gs_param_page_write(page, params, num_params, first);
    return page;
}

static gs_status add(gs_param_list *list, gs_json *page) {
    gs_status status = gs_param_list_add(list, page);
    gs_json_release(page);
    return status;
}

static gs_status add_text(gs_param_list *list, const char *text) {
    gs_json *page;
    gs_status status = gs_json_parse(&page, text, strlen(text));
    assert_string_equal(status.message, "");
    return add(list, page);
}

static void check_passage(size_t num_params) {
    gs_param_spec *params = make_params(num_params);
    gs_param_list list = {0};
    for (size_t first = 0; first < num_params; first += GS_PARAM_PAGE_ROWS) {
        assert_false(list.is_complete);
        gs_status status = add(&list, make_page(params, num_params, first));
        assert_string_equal(status.message, "");
    }
    assert_true(list.is_complete);
    gs_status status = gs_param_specs_compare(params, num_params, list.params, list.num_params);
    assert_string_equal(status.message, "");
    gs_param_list_release(&list);
    free(params);
}

static void lists_of_any_length_come_through(void **state) {
    (void)state;
    static const size_t counts[] = {
        1, 2, GS_PARAM_PAGE_ROWS - 1, GS_PARAM_PAGE_ROWS, GS_PARAM_PAGE_ROWS + 1, GS_MAX_PARAMS};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) check_passage(counts[i]);
}

static void a_page_of_the_longest_rows_fits_a_message(void **state) {
    (void)state;
    gs_param_spec *params = make_params(GS_PARAM_PAGE_ROWS);
    for (size_t i = 0; i < GS_PARAM_PAGE_ROWS; i++) {
        memset(params[i].name, '\1', GS_PARAM_NAME_LEN - 1);  // six characters each in JSON
        params[i].num_dims = GS_MAX_DIMS;
        params[i].sparse = true;
        for (int d = 0; d < GS_MAX_DIMS; d++) params[i].shape[d] = INT64_C(9007199254740992);
    }
    gs_json *page = make_page(params, GS_PARAM_PAGE_ROWS, 0);
    char *text = NULL;
    size_t bytes = 0;
    gs_status status = gs_json_encode(&text, &bytes, page, false);
    assert_string_equal(status.message, "");
    assert_in_range(bytes, 900 * GS_PARAM_PAGE_ROWS,
                    gs_method_info_of(GS_READY)->max_body_bytes - 1000);
    gs_json_release(page);
    free(params);
    free(text);
}

static void a_list_begins_anew_with_its_first_page(void **state) {
    (void)state;
    enum { NUM_PARAMS = GS_PARAM_PAGE_ROWS + 5 };
    gs_param_spec *params = make_params(NUM_PARAMS);
    gs_param_list list = {0};
    for (int again = 0; again < 2; again++) {
        gs_status status = add(&list, make_page(params, NUM_PARAMS, 0));
        assert_string_equal(status.message, "");
        assert_int_equal(list.num_params, GS_PARAM_PAGE_ROWS);
    }
    gs_status status = add(&list, make_page(params, NUM_PARAMS, GS_PARAM_PAGE_ROWS));
    assert_string_equal(status.message, "");
    assert_int_equal(list.num_params, NUM_PARAMS);
    gs_param_list_release(&list);
    free(params);
}

static void what_is_wrong_with_a_page_is_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *problem;
    } cases[] = {
        {"{}", "params: 0 parameters, allowed are 1 to 20000"},
        {"{\"params\":[]}", "params: 0 parameters"},
        {"{\"params\":5}", "params: 0 parameters"},
        {"{\"params\":[[\"a\",\"fp32\",[1]]],\"first\":1}", "a page from 1 on, wanted from 0 on"},
        {"{\"params\":[[\"a\",\"fp32\",[1]]],\"first\":-1}", "a page from -1 on"},
        {"{\"params\":[[\"a\",\"fp32\",[1]],[\"b\"]]}", "parameter 1: must be [name, dtype"},
        {"{\"params\":[[\"a\",\"fp32\",[1,\"x\"]]]}",
         "parameter 0 \"a\": a dimension is no integer"},
        {"{\"params\":[[\"a\",\"fp32\",[1,1,1,1,1,1,1,1,1]]]}", "more than 8 dimensions"},
        {"{\"params\":[[\"a\",\"int7\",[1]]]}", "\"a\""},
        {"{\"params\":[[\"a\",\"fp32\",[1]],[\"a\",\"fp32\",[1]]]}", "\"a\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gs_param_list list = {0};
        gs_status status = add_text(&list, cases[i].text);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        if (!strstr(status.message, cases[i].problem))
            fail_msg("%s: %s", cases[i].text, status.message);
        assert_false(list.is_complete);
        gs_param_list_release(&list);
    }
}

static void more_than_the_most_is_refused_before_it_is_kept(void **state) {
    (void)state;
    gs_param_spec *params = make_params(GS_MAX_PARAMS + 1);
    gs_param_list list = {0};
    gs_status status = gs_ok();
    for (size_t first = 0; first <= GS_MAX_PARAMS && !status.code; first += GS_PARAM_PAGE_ROWS)
        status = add(&list, make_page(params, GS_MAX_PARAMS + 1, first));
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "20001 parameters, allowed are 1 to 20000"));
    assert_int_equal(list.num_params, GS_MAX_PARAMS);
    gs_param_list_release(&list);
    free(params);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_any_length_come_through),
        cmocka_unit_test(a_page_of_the_longest_rows_fits_a_message),
        cmocka_unit_test(a_list_begins_anew_with_its_first_page),
        cmocka_unit_test(what_is_wrong_with_a_page_is_named),
        cmocka_unit_test(more_than_the_most_is_refused_before_it_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
