#include "rpc/schema/fields.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct point {
    int64_t x;
    char label[8];
} point;

typedef struct sample {
    char name[8];
    int64_t count;
    double ratio;
    bool on;
    int color;
    point inner;
    char files[2][8];
    int num_files;
    int64_t dims[3];
    int num_dims;
    point points[2];
    int num_points;
    double loss;
} sample;

static const char *const colors[] = {"red", "green", NULL};
static const char *const later_colors[] = {"blue", NULL};
static const gs_field point_fields[] = {
    {"x", GS_FIELD_INT, offsetof(point, x), .required = true, .help = "Where."},
    {"label", GS_FIELD_STRING, offsetof(point, label), .capacity = 8, .default_value = "\"p\""},
    {0},
};
static const gs_field sample_fields[] = {
    {"name", GS_FIELD_STRING, offsetof(sample, name), .capacity = 8, .pattern = "^[a-z]+$"},
    {"count", GS_FIELD_INT, offsetof(sample, count), .has_range = true, .least = 1, .most = 10,
     .default_value = "5", .help = "How many."},
    {"ratio", GS_FIELD_DOUBLE, offsetof(sample, ratio), .has_range = true, .least = 0, .most = 1,
     .default_value = "0.5"},
    {"on", GS_FIELD_BOOL, offsetof(sample, on), .default_value = "true"},
    {"color", GS_FIELD_ENUM, offsetof(sample, color), .words = colors, .later_words = later_colors,
     .default_value = "\"green\""},
    {"inner", GS_FIELD_OBJECT, offsetof(sample, inner), .fields = point_fields},
    {"files", GS_FIELD_STRINGS, offsetof(sample, files), .capacity = 2, .element_bytes = 8,
     .count_offset = offsetof(sample, num_files)},
    {"dims", GS_FIELD_INTS, offsetof(sample, dims), .capacity = 3,
     .count_offset = offsetof(sample, num_dims), .has_range = true, .least = 1, .most = 100,
     .default_value = "[7,8]"},
    {"points", GS_FIELD_OBJECTS, offsetof(sample, points), .capacity = 2,
     .element_bytes = sizeof(point), .count_offset = offsetof(sample, num_points),
     .fields = point_fields},
    {"loss", GS_FIELD_DOUBLE, .offset = offsetof(sample, loss)},
    {0},
};

static gs_status decode(sample *out, const char *text, gs_field_errors *errors) {
    gs_json *object = NULL;
    gs_status status = gs_json_parse(&object, text, strlen(text));
    assert_string_equal(status.message, "");
    memset(out, 0x5a, sizeof *out);
    *errors = (gs_field_errors){0};
    status = gs_fields_decode(out, sample_fields, object, errors);
    gs_json_release(object);
    return status;
}

static void expect_error(const char *text, const char *pointer, const char *code,
                         const char *message, const char *hint) {
    sample out;
    gs_field_errors errors;
    gs_status status = decode(&out, text, &errors);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_int_equal(errors.count, 1);
    assert_string_equal(errors.items[0].pointer, pointer);
    assert_string_equal(errors.items[0].code, code);
    assert_string_equal(errors.items[0].message, message);
    assert_string_equal(errors.items[0].hint, hint);
}

static void absent_members_get_their_defaults(void **state) {
    (void)state;
    sample out;
    gs_field_errors errors;
    gs_status status = decode(&out, "{\"inner\":{\"x\":3}}", &errors);
    assert_int_equal(status.code, GS_OK);
    assert_string_equal(out.name, "");
    assert_int_equal(out.count, 5);
    assert_true(out.ratio == 0.5);
    assert_true(out.on);
    assert_int_equal(out.color, 1);
    assert_int_equal(out.inner.x, 3);
    assert_string_equal(out.inner.label, "p");
    assert_int_equal(out.num_files, 0);
    assert_int_equal(out.num_dims, 2);
    assert_int_equal(out.dims[1], 8);
}

static void each_mistake_has_its_code(void **state) {
    (void)state;
    expect_error("{\"coun\":1}", "/coun", "unknown_member", "unknown member",
                 "did you mean count?");
    expect_error("{\"a/b~c\":1}", "/a~1b~0c", "unknown_member", "unknown member", "");
    expect_error("{\"count\":\"1\"}", "/count", "wrong_type", "must be an integer, not a string",
                 "");
    expect_error("{\"count\":1.0}", "/count", "wrong_type", "must be an integer, not a number", "");
    expect_error("{\"count\":null}", "/count", "wrong_type", "must be an integer, not null", "");
    expect_error("{\"on\":1}", "/on", "wrong_type", "must be true or false, not an integer", "");
    expect_error("{\"count\":11}", "/count", "out_of_range", "must be between 1 and 10", "");
    expect_error("{\"ratio\":1.5}", "/ratio", "out_of_range", "must be between 0 and 1", "");
    expect_error("{\"ratio\":\"NaN\"}", "/ratio", "wrong_type", "must be a number, not a string",
                 "");
    expect_error("{\"name\":\"abcdefgh\"}", "/name", "too_long", "longer than 7 bytes", "");
    expect_error("{\"name\":\"A\"}", "/name", "bad_pattern", "does not match ^[a-z]+$", "");
    expect_error("{\"color\":\"gren\"}", "/color", "bad_word", "must be one of: red, green",
                 "did you mean green?");
    expect_error("{\"color\":\"blue\"}", "/color", "bad_word",
                 "not in this version; one of: red, green", "");
    expect_error("{\"inner\":{}}", "/inner/x", "missing", "must be given", "");
    expect_error("{\"inner\":[]}", "/inner", "wrong_type", "must be an object, not a list", "");
    expect_error("{\"files\":[\"a\",\"b\",\"c\"]}", "/files", "too_many", "more than 2 entries",
                 "");
    expect_error("{\"files\":[\"a\",2]}", "/files/1", "wrong_type",
                 "must be a string, not an integer", "");
    expect_error("{\"dims\":[1,101]}", "/dims/1", "out_of_range", "must be between 1 and 100", "");
    expect_error("{\"points\":[{\"x\":1},{}]}", "/points/1/x", "missing", "must be given", "");
    expect_error("[]", "", "wrong_type", "must be an object, not a list", "");
}

static void all_problems_are_found_at_once(void **state) {
    (void)state;
    sample out;
    gs_field_errors errors;
    gs_status status = decode(&out, "{\"count\":0,\"on\":3,\"color\":\"x\",\"what\":1}", &errors);
    assert_string_equal(status.message, "4 problems found");
    gs_json *json = gs_field_errors_to_json(&errors);
    assert_int_equal(gs_json_count(gs_json_get(json, "errors")), 4);
    gs_json_release(json);
}

static void more_errors_than_fit_are_counted(void **state) {
    (void)state;
    gs_field_errors errors = {0};
    for (int i = 0; i < GS_MAX_FIELD_ERRORS + 9; i++) {
        gs_field_errors_add(&errors, "/x", "missing", NULL, "number %d", i);
    }
    assert_int_equal(errors.count, GS_MAX_FIELD_ERRORS + 9);
    gs_json *json = gs_field_errors_to_json(&errors);
    assert_int_equal(gs_json_count(gs_json_get(json, "errors")), GS_MAX_FIELD_ERRORS);
    gs_json_release(json);
}

static void one_value_is_a_list_of_one(void **state) {
    (void)state;
    sample out;
    gs_field_errors errors;
    gs_status status = decode(&out, "{\"files\":\"a\",\"dims\":9}", &errors);
    assert_int_equal(status.code, GS_OK);
    assert_int_equal(out.num_files, 1);
    assert_string_equal(out.files[0], "a");
    assert_int_equal(out.num_dims, 1);
    assert_int_equal(out.dims[0], 9);
    assert_int_equal(out.dims[1], 0);
}

static void decode_of_encode_is_the_same(void **state) {
    (void)state;
    sample out, again;
    gs_field_errors errors;
    gs_status status =
        decode(&out,
               "{\"name\":\"abc\",\"count\":3,\"ratio\":0.1,\"on\":false,\"color\":\"red\","
               "\"inner\":{\"x\":-1,\"label\":\"q\"},\"files\":[\"f\",\"g\"],\"dims\":[],"
               "\"points\":[{\"x\":5}],\"loss\":\"-Infinity\"}",
               &errors);
    assert_int_equal(status.code, GS_OK);
    gs_json *encoded = gs_fields_encode(&out, sample_fields);
    memset(&again, 0x5a, sizeof again);
    errors = (gs_field_errors){0};
    status = gs_fields_decode(&again, sample_fields, encoded, &errors);
    assert_int_equal(status.code, GS_OK);
    gs_json *encoded_again = gs_fields_encode(&again, sample_fields);
    char *first, *second;
    status = gs_json_encode(&first, NULL, encoded, false);
    assert_int_equal(status.code, GS_OK);
    status = gs_json_encode(&second, NULL, encoded_again, false);
    assert_int_equal(status.code, GS_OK);
    assert_string_equal(first, second);
    assert_int_equal(again.num_dims, 0);
    free(first);
    free(second);
    gs_json_release(encoded);
    gs_json_release(encoded_again);
}

static void schema_says_what_decode_checks(void **state) {
    (void)state;
    gs_json *schema = gs_fields_schema(sample_fields, "A sample.");
    char *text;
    gs_status status = gs_json_encode(&text, NULL, schema, false);
    assert_int_equal(status.code, GS_OK);
    assert_non_null(strstr(text, "\"description\":\"A sample.\""));
    assert_non_null(strstr(text,
                           "\"count\":{\"type\":\"integer\",\"format\":\"int64\",\"minimum\":1,"
                           "\"maximum\":10,\"description\":\"How many.\",\"default\":5}"));
    assert_non_null(strstr(text, "\"enum\":[\"red\",\"green\"]"));
    assert_non_null(strstr(text, "\"required\":[\"x\"]"));
    assert_non_null(strstr(text, "\"maxItems\":3"));
    assert_non_null(strstr(text, "\"additionalProperties\":false"));
    free(text);
    gs_json_release(schema);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_members_get_their_defaults),
        cmocka_unit_test(each_mistake_has_its_code),
        cmocka_unit_test(all_problems_are_found_at_once),
        cmocka_unit_test(more_errors_than_fit_are_counted),
        cmocka_unit_test(one_value_is_a_list_of_one),
        cmocka_unit_test(decode_of_encode_is_the_same),
        cmocka_unit_test(schema_says_what_decode_checks),
    };
    return cmocka_run_group_tests_name("rpc fields", tests, NULL, NULL);
}
