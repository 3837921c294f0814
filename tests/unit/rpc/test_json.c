#include "rpc/json/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect_refused(const char *text, const char *reason) {
    gs_json *value = NULL;
    gs_status status = gs_json_parse(&value, text, strlen(text));
    if (status.code != GS_INVALID_ARGUMENT) fail_msg("accepted: %s", text);
    if (!strstr(status.message, reason))
        fail_msg("%s: \"%s\", not \"%s\"", text, status.message, reason);
    assert_null(value);
}

static void expect_round_trip(const char *text) {
    gs_json *value = NULL;
    char *encoded;
    size_t bytes;
    gs_status status = gs_json_parse(&value, text, strlen(text));
    assert_string_equal(status.message, "");
    status = gs_json_encode(&encoded, &bytes, value, false);
    assert_int_equal(status.code, GS_OK);
    assert_string_equal(encoded, text);
    assert_int_equal(bytes, strlen(text));
    assert_in_range(gs_json_most_bytes(value), bytes, 4 * bytes + 24);
    free(encoded);
    gs_json_release(value);
}

static void valid_text_comes_back_the_same(void **state) {
    (void)state;
    expect_round_trip("{\"a\":1,\"b\":[true,false,null,-2.5,\"x/y\"],\"c\":{}}");
    expect_round_trip("[]");
    expect_round_trip("9223372036854775807");
    expect_round_trip("-9223372036854775808");
    expect_round_trip("\"\\u0001 \\\" \\\\ \\n\"");
    expect_round_trip("\"\xc3\xa9\xf0\x9f\x98\x80\"");
    expect_round_trip("[-1.2345678901234567e-308,{\"\\u0001\\\"\":\"\\u0001\\\"\\n\\u001f\"}]");
}

static void what_json_c_would_accept_is_refused(void **state) {
    (void)state;
    expect_refused("{\"a\":1,\"a\":2}", "member \"a\" twice at byte 7");
    expect_refused("{'a':1}", "member name expected at byte 1");
    expect_refused("[NaN]", "value expected at byte 1");
    expect_refused("[Infinity]", "value expected at byte 1");
    expect_refused("\"a\tb\"", "control character in a string at byte 2");
    expect_refused("\"\xff\"", "text that is not UTF-8 at byte 1");
    expect_refused("\"\xc0\x80\"", "text that is not UTF-8 at byte 1");
    expect_refused("\"\xed\xa0\x80\"", "text that is not UTF-8 at byte 1");
    expect_refused("\"\\ud800\"", "half of a surrogate pair at byte 1");
    expect_refused("\"\\udc00x\"", "half of a surrogate pair at byte 1");
    expect_refused("\"\\u0000\"", "NUL in a string at byte 1");
    expect_refused("9223372036854775808", "integer beyond 64 bits at byte 0");
    expect_refused("1e999", "number out of range at byte 0");
    expect_refused("012", "more after the value at byte 1");
    expect_refused("1.", "digit expected at byte 2");
    expect_refused("-", "digit expected at byte 1");
    expect_refused("+1", "value expected at byte 0");
    expect_refused("[1,]", "value expected at byte 3");
    expect_refused("{\"a\":1,}", "member name expected at byte 7");
    expect_refused("/* no */ 1", "value expected at byte 0");
    expect_refused("1 2", "more after the value at byte 2");
    expect_refused("", "value expected");
    expect_refused("{\"a\"", "':' expected at byte 4");
    expect_refused("\"abc", "string without an end at byte 0");
    expect_refused("\"\\x\"", "unknown escape at byte 1");
    expect_refused("tru", "value expected at byte 0");
    expect_refused("\xef\xbb\xbf{}", "value expected at byte 0");
}

static void depth_32_is_the_deepest(void **state) {
    (void)state;
    char text[80];
    memset(text, '[', 32);
    memset(text + 32, ']', 33);
    gs_json *value = NULL;
    gs_status status = gs_json_parse(&value, text, 64);
    assert_int_equal(status.code, GS_OK);
    gs_json_release(value);
    memset(text, '[', 33);
    memset(text + 33, ']', 33);
    status = gs_json_parse(&value, text, 66);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_string_equal(status.message, "more than 32 levels deep at byte 32");
}

static void expect_number(const char *text) {
    gs_json *value = NULL;
    double number;
    gs_status status = gs_json_parse(&value, text, strlen(text));
    assert_string_equal(status.message, "");
    assert_true(gs_json_double(&number, value));
    double right = strtod(text, NULL);
    if (memcmp(&number, &right, sizeof right) != 0) fail_msg("%s is read as %.17g", text, number);
    gs_json_release(value);
}

// Short decimals take another road than strtod; every bit must be the same.
static void decimals_are_read_as_strtod_reads_them(void **state) {
    (void)state;
    static const char *const texts[] = {"0.0",
                                        "-0.0",
                                        "0.1",
                                        "-0.3",
                                        "0.000000000000001",
                                        "0.0000000000000000000001",
                                        "0.00000000000000000000001",
                                        "999999999999999.0",
                                        "99999999999999.9",
                                        "9007199254740993.0",
                                        "9007199254740992.5",
                                        "123456789012345.67",
                                        "1e22",
                                        "1.5e9",
                                        "1E-3",
                                        "2.2250738585072011e-308",
                                        "1e-400",
                                        "0.1e1"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) expect_number(texts[i]);
    uint64_t bits = 88172645463325252u;
    char text[64];
    for (int i = 0; i < 50000; i++) {
        bits = bits * 6364136223846793005u + 1442695040888963407u;
        snprintf(text, sizeof text, "%s%llu.%0*llu", bits & 1 ? "-" : "",
                 (unsigned long long)(bits >> 40), 1 + (int)(bits >> 8 & 15),
                 (unsigned long long)(bits >> 16 & 0xfffff));
        expect_number(text);
    }
}

static void names_survive_the_values_inside_them(void **state) {
    (void)state;
    static const char text[] =
        "{\"outer\":{\"inner\":[\"x\",{\"deep\":\"y\"}]},\"\\u006futer2\":\"z\"}";
    gs_json *value = NULL;
    gs_status status = gs_json_parse(&value, text, sizeof text - 1);
    assert_string_equal(status.message, "");
    const gs_json *list = gs_json_get(gs_json_get(value, "outer"), "inner");
    assert_string_equal(gs_json_string(gs_json_at(list, 0)), "x");
    assert_string_equal(gs_json_string_or(gs_json_at(list, 1), "deep", ""), "y");
    assert_string_equal(gs_json_string_or(value, "outer2", ""), "z");
    gs_json_release(value);
    expect_refused("{\"ab\":{\"ab\":1},\"a\\u0062\":2}", "member \"ab\" twice at byte 15");
}

// So many empty ones, of which each costs a multiple of its text.
static gs_status parse_many(const char *one, size_t num, bool is_foreign) {
    gs_strbuf text = {0};
    gs_json *value = NULL;
    gs_strbuf_puts(&text, "[");
    for (size_t i = 0; i < num; i++) gs_strbuf_printf(&text, "%s%s", i ? "," : "", one);
    gs_strbuf_puts(&text, "]");
    gs_status status = is_foreign ? gs_json_parse_foreign(&value, gs_strbuf_text(&text), text.len) : gs_json_parse(&value, gs_strbuf_text(&text), text.len);
    assert_int_equal(gs_json_count(value), status.code ? 0 : num);
    gs_json_release(value);
    gs_strbuf_release(&text);
    return status;
}

static void text_of_others_has_an_end_to_its_containers(void **state) {
    (void)state;
    assert_int_equal(parse_many("{}", GS_JSON_MOST_CONTAINERS - 1, true).code, GS_OK);
    gs_status status = parse_many("{}", GS_JSON_MOST_CONTAINERS, true);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_string_equal(status.message, "more than 73728 objects and arrays at byte 221182");
    assert_int_equal(parse_many("[[]]", GS_JSON_MOST_CONTAINERS / 2, true).code, GS_INVALID_ARGUMENT);
    assert_int_equal(parse_many("{\"elements\":1}", (1 << 20) / 15, true).code, GS_OK);  // a preview of 1 MiB
    assert_int_equal(parse_many("1", (1 << 20) / 2, true).code, GS_OK);
    assert_int_equal(parse_many("{}", (1 << 20) / 3, false).code, GS_OK);  // our own
}

static void embedded_nul_ends_nothing(void **state) {
    (void)state;
    gs_json *value = NULL;
    gs_status status = gs_json_parse(&value, "1\0002", 3);
    assert_string_equal(status.message, "more after the value at byte 1");
}

static void relaxed_takes_comments_and_trailing_commas(void **state) {
    (void)state;
    static const char text[] = "// a file\n{\"a\": [1, 2,], /* why */ \"b\": 3,}\n// end";
    gs_json *value = NULL;
    gs_status status = gs_json_parse_relaxed(&value, text, sizeof text - 1);
    assert_string_equal(status.message, "");
    assert_int_equal(gs_json_count(gs_json_get(value, "a")), 2);
    assert_int_equal(gs_json_int_or(value, "b", 0), 3);
    gs_json_release(value);
    status = gs_json_parse_relaxed(&value, "/* no end", 9);
    assert_string_equal(status.message, "comment without an end at byte 0");
    status = gs_json_parse_relaxed(&value, "[,]", 3);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
}

static void expect_double_text(double number, const char *text) {
    gs_json *value = gs_json_new_double(number);
    char *encoded;
    gs_status status = gs_json_encode(&encoded, NULL, value, false);
    assert_int_equal(status.code, GS_OK);
    assert_string_equal(encoded, text);
    free(encoded);
    gs_json_release(value);
}

static void doubles_are_short_exact_and_never_bare_nan(void **state) {
    (void)state;
    expect_double_text(0.0006, "0.0006");
    expect_double_text(1e-8, "1e-08");
    expect_double_text(0.1 + 0.2, "0.30000000000000004");
    expect_double_text(3, "3.0");
    expect_double_text(1e22, "1e+22");
    expect_double_text(-0.0, "-0.0");
    expect_double_text(5e-324, "4.94065646e-324");
    expect_double_text(1.7976931348623157e308, "1.7976931348623157e+308");
    expect_double_text(NAN, "\"NaN\"");
    expect_double_text(INFINITY, "\"Infinity\"");
    expect_double_text(-INFINITY, "\"-Infinity\"");
}

static void doubles_read_back_equal(void **state) {
    (void)state;
    uint64_t bits = 88172645463325252u;
    for (int i = 0; i < 20000; i++) {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        double number, read;
        memcpy(&number, &bits, sizeof number);
        if (!isfinite(number)) continue;
        gs_json *value = gs_json_new_double(number), *back = NULL;
        char *text;
        size_t bytes;
        gs_status status = gs_json_encode(&text, &bytes, value, false);
        assert_int_equal(status.code, GS_OK);
        status = gs_json_parse(&back, text, bytes);
        assert_int_equal(status.code, GS_OK);
        assert_int_equal(gs_json_type_of(back), GS_JSON_DOUBLE);
        assert_true(gs_json_double(&read, back));
        assert_true(read == number);
        free(text);
        gs_json_release(value);
        gs_json_release(back);
    }
}

static void getters_never_coerce(void **state) {
    (void)state;
    static const char text[] = "{\"s\":\"12abc\",\"d\":3.9,\"i\":4,\"b\":true,\"n\":null}";
    gs_json *object = NULL;
    gs_status status = gs_json_parse(&object, text, sizeof text - 1);
    assert_int_equal(status.code, GS_OK);
    assert_int_equal(gs_json_int_or(object, "s", -1), -1);
    assert_int_equal(gs_json_int_or(object, "d", -1), -1);
    assert_int_equal(gs_json_int_or(object, "b", -1), -1);
    assert_int_equal(gs_json_int_or(object, "i", -1), 4);
    assert_true(gs_json_double_or(object, "i", 0) == 4.0);
    assert_true(gs_json_double_or(object, "s", 7) == 7.0);
    assert_string_equal(gs_json_string_or(object, "i", "no"), "no");
    assert_false(gs_json_bool_or(object, "i", false));
    assert_null(gs_json_get(object, "n"));
    int64_t number;
    status = gs_json_read_int(&number, object, "d", 0, 10);
    assert_string_equal(status.message, "member d must be an integer");
    status = gs_json_read_int(&number, object, "i", 5, 10);
    assert_string_equal(status.message, "member i is 4, not between 5 and 10");
    status = gs_json_read_int(&number, object, "x", 5, 10);
    assert_string_equal(status.message, "member x is missing");
    gs_json_release(object);
}

static void u64_travels_as_a_decimal_string(void **state) {
    (void)state;
    gs_json *object = gs_json_new_object();
    gs_json_set_u64(object, "id", UINT64_MAX);
    assert_string_equal(gs_json_string_or(object, "id", ""), "18446744073709551615");
    uint64_t id = 0;
    gs_status status = gs_json_read_u64(&id, object, "id");
    assert_int_equal(status.code, GS_OK);
    assert_true(id == UINT64_MAX);
    static const char *const bad[] = {"", "18446744073709551616", "-1", " 1", "1x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gs_json_set_string(object, "id", bad[i]);
        status = gs_json_read_u64(&id, object, "id");
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    }
    gs_json_set_int(object, "id", 5);
    status = gs_json_read_u64(&id, object, "id");
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    gs_json_release(object);
}

static void bytes_of_every_length_come_back(void **state) {
    (void)state;
    unsigned char data[70];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 37 + 200);
    for (size_t bytes = 0; bytes <= sizeof data; bytes++) {
        gs_json *object = gs_json_new_object();
        gs_json_set_bytes(object, "b", data, bytes);
        void *back = NULL;
        size_t back_bytes = 0;
        gs_status status = gs_json_read_bytes(&back, &back_bytes, object, "b");
        assert_int_equal(status.code, GS_OK);
        assert_int_equal(back_bytes, bytes);
        if (bytes) assert_memory_equal(back, data, bytes);
        free(back);
        gs_json_release(object);
    }
}

static void base64_with_a_second_spelling_is_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "A", "AA", "AAA", "AB==", "AAB=", "A===", "AA==AAAA", "AA=A", "AA\n=", "AAA*", "===="};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gs_json *object = gs_json_new_object();
        gs_json_set_string(object, "b", bad[i]);
        void *data = NULL;
        size_t bytes;
        gs_status status = gs_json_read_bytes(&data, &bytes, object, "b");
        if (status.code != GS_INVALID_ARGUMENT) fail_msg("accepted: %s", bad[i]);
        gs_json_release(object);
    }
}

static void text_that_is_not_utf8_is_mended(void **state) {
    (void)state;
    gs_json *value = gs_json_new_string_len("a\xff\0b\xe2\x82", 6);
    assert_string_equal(gs_json_string(value), "a\xef\xbf\xbd\xef\xbf\xbd"
                                               "b\xef\xbf\xbd\xef\xbf\xbd");
    char *text;
    size_t bytes;
    gs_status status = gs_json_encode(&text, &bytes, value, false);
    assert_int_equal(status.code, GS_OK);
    gs_json *back = NULL;
    status = gs_json_parse(&back, text, bytes);
    assert_int_equal(status.code, GS_OK);
    gs_json_release(back);
    free(text);
    gs_json_release(value);
}

// Texts are checked in words of eight bytes where they can be.
static void one_bad_byte_is_mended_wherever_it_stands(void **state) {
    (void)state;
    for (size_t bytes = 1; bytes <= 25; bytes++) {
        for (size_t at = 0; at < bytes; at++) {
            for (int bad = 0; bad < 2; bad++) {
                char text[25], wanted[25 + 3];
                memset(text, bad ? '\x01' : '\x7f', bytes);
                memset(wanted, text[0], bytes + 2);
                wanted[bytes + 2] = '\0';
                text[at] = bad ? '\x80' : '\0';
                memcpy(wanted + at, "\xef\xbf\xbd", 3);
                gs_json *value = gs_json_new_string_len(text, bytes);
                assert_string_equal(gs_json_string(value), wanted);
                gs_json_release(value);
            }
        }
    }
}

static void setters_replace_take_and_ignore_null(void **state) {
    (void)state;
    gs_json *object = gs_json_new_object(), *array = gs_json_new_array();
    gs_json_set_int(object, "a", 1);
    gs_json_set_string(object, "a", "two");
    gs_json_set_string(object, "none", NULL);
    gs_json_set(object, "null", NULL);
    gs_json_push(array, gs_json_new_bool(true));
    gs_json_push(array, NULL);
    gs_json_set(object, "list", array);
    gs_json_set(NULL, "x", gs_json_new_int(1));
    gs_json_set(array, "x", gs_json_new_int(1));
    gs_json_set_time(object, "at", 0);
    gs_json_remove(object, "absent");
    char *text;
    gs_status status = gs_json_encode(&text, NULL, object, false);
    assert_int_equal(status.code, GS_OK);
    assert_string_equal(text,
                        "{\"a\":\"two\",\"list\":[true],\"at\":\"1970-01-01T00:00:00.000Z\"}");
    free(text);
    gs_json_release(object);
}

static void copy_is_deep(void **state) {
    (void)state;
    gs_json *object = gs_json_new_object(), *inner = gs_json_new_object();
    gs_json_set_double(inner, "x", 0.1);
    gs_json_set(object, "inner", inner);
    gs_json *copy = gs_json_copy(object);
    gs_json_set_double(inner, "x", 2);
    char *text;
    gs_status status = gs_json_encode(&text, NULL, copy, false);
    assert_int_equal(status.code, GS_OK);
    assert_string_equal(text, "{\"inner\":{\"x\":0.1}}");
    free(text);
    gs_json_release(copy);
    gs_json_release(object);
}

static void what_is_encoded_once_is_part_of_many(void **state) {
    (void)state;
    gs_json *object = gs_json_new_object(), *lists[2] = {gs_json_new_array(), gs_json_new_array()};
    gs_json_set_string(object, "quoted", "a\"b/\n");
    gs_json_set_double(object, "x", 0.1);
    gs_json *encoded = gs_json_new_encoded(object);
    gs_json_set_double(object, "x", 2);
    gs_json_release(object);
    for (int i = 0; i < 2; i++) {
        gs_json_push(lists[i], gs_json_retain(encoded));
        gs_json_push(lists[i], gs_json_new_int(i));
    }
    gs_json_release(encoded);
    for (int i = 0; i < 2; i++) {
        gs_json *copy = gs_json_copy(lists[i]);
        char *text, expected[64];
        gs_status status = gs_json_encode(&text, NULL, copy, false);
        assert_int_equal(status.code, GS_OK);
        snprintf(expected, sizeof expected, "[{\"quoted\":\"a\\\"b/\\n\",\"x\":0.1},%d]", i);
        assert_string_equal(text, expected);
        free(text);
        gs_json_release(copy);
        gs_json_release(lists[i]);
    }
}

static void a_member_is_found_in_a_text(void **state) {
    (void)state;
    static const struct {
        const char *text, *found;
    } cases[] = {
        {"{\"items\":[{\"next\":\"a label\"}],\"next\":\"7\"}", "7"},
        {"{\"next\":\"7\",\"items\":[]}", "7"},
        {"{\"text\":\"{\\\"next\\\":\\\"x\\\"\",\"next\":\"7\"}", "7"},
        {"{\"items\":[{\"next\":\"a label\"}]}", NULL},
        {"{\"a\":\"next\",\"nexts\":\"x\"}", NULL},
        {"{\"next\":7}", NULL},
        {"{\"next\":null}", NULL},
        {"{\"next\":\"a\\\"b\"}", NULL},
        {"{\"next\":\"0123456789\"}", NULL},
        {"{\"next\":\"7", NULL},
        {"{\"next", NULL},
        {"\"next\":\"7\"", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char value[8] = "";
        size_t bytes = strlen(cases[i].text);
        char *text = malloc(bytes ? bytes : 1);  // nothing behind it
        assert_non_null(text);
        memcpy(text, cases[i].text, bytes);
        bool found = gs_json_peek_string(value, sizeof value, text, bytes, "next");
        assert_int_equal(found, cases[i].found != NULL);
        if (found) assert_string_equal(value, cases[i].found);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_text_comes_back_the_same),
        cmocka_unit_test(what_json_c_would_accept_is_refused),
        cmocka_unit_test(depth_32_is_the_deepest),
        cmocka_unit_test(text_of_others_has_an_end_to_its_containers),
        cmocka_unit_test(embedded_nul_ends_nothing),
        cmocka_unit_test(decimals_are_read_as_strtod_reads_them),
        cmocka_unit_test(names_survive_the_values_inside_them),
        cmocka_unit_test(relaxed_takes_comments_and_trailing_commas),
        cmocka_unit_test(doubles_are_short_exact_and_never_bare_nan),
        cmocka_unit_test(doubles_read_back_equal),
        cmocka_unit_test(getters_never_coerce),
        cmocka_unit_test(u64_travels_as_a_decimal_string),
        cmocka_unit_test(bytes_of_every_length_come_back),
        cmocka_unit_test(base64_with_a_second_spelling_is_refused),
        cmocka_unit_test(text_that_is_not_utf8_is_mended),
        cmocka_unit_test(one_bad_byte_is_mended_wherever_it_stands),
        cmocka_unit_test(setters_replace_take_and_ignore_null),
        cmocka_unit_test(copy_is_deep),
        cmocka_unit_test(what_is_encoded_once_is_part_of_many),
        cmocka_unit_test(a_member_is_found_in_a_text),
    };
    return cmocka_run_group_tests_name("rpc json", tests, NULL, NULL);
}
