#include "core/library.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE "GRADSYNC_TEST_LIBRARY"

static const char *const math_names[] = {"libnowhere.so.9", "libm.so.6", NULL};
static const char *const missing_names[] = {"libnowhere.so.9", "libnowhere.so.8", NULL};

static gs_library *open_math(void) {
    gs_library *library = NULL;
    gs_library_options options = {.what = "math", .file_names = math_names};
    gs_status status = gs_library_open(&library, &options);
    if (status.code) fail_msg("%s", status.message);
    return library;
}

static void the_first_file_that_loads_is_taken(void **state) {
    (void)state;
    gs_library *library = open_math();
    double (*square_root)(double) = NULL;
    gs_library_symbol symbols[] = {{"sqrt", (void *)&square_root, false}};
    assert_string_equal(gs_library_file(library), "libm.so.6");
    assert_int_equal(gs_library_load(library, symbols, 1).code, GS_OK);
    assert_true(square_root(9.0) == 3.0);
    gs_library_close(library);
    assert_true(square_root(16.0) == 4.0);  // it stays
    gs_library_close(NULL);
}

static void a_missing_library_is_unavailable_with_the_loaders_words(void **state) {
    (void)state;
    gs_library *library = NULL;
    gs_library_options options = {.what = "nowhere", .file_names = missing_names};
    gs_status status = gs_library_open(&library, &options);
    assert_int_equal(status.code, GS_UNAVAILABLE);
    assert_non_null(strstr(status.message, "nowhere: libnowhere.so.9"));
    assert_null(library);
}

static void a_file_that_is_named_is_the_only_one_tried(void **state) {
    (void)state;
    gs_library *library = NULL;
    gs_library_options options = {.what = "math", .variable = VARIABLE, .file_names = math_names};
    setenv(VARIABLE, "/nowhere/libm.so", 1);
    gs_status status = gs_library_open(&library, &options);
    assert_int_equal(status.code, GS_UNAVAILABLE);
    assert_non_null(strstr(status.message, VARIABLE));
    assert_non_null(strstr(status.message, "/nowhere/libm.so"));
    unsetenv(VARIABLE);
    assert_int_equal(gs_library_open(&library, &options).code, GS_OK);
    gs_library_close(library);
}

static void a_missing_symbol_is_named_and_nothing_is_set(void **state) {
    (void)state;
    gs_library *library = open_math();
    void *cosine = NULL, *none = NULL;
    gs_library_symbol symbols[] = {{"cos", &cosine, false}, {"gs_no_such_call", &none, true}};
    assert_int_equal(gs_library_load(library, symbols, 2).code, GS_OK);
    assert_non_null(cosine);
    assert_null(none);
    symbols[1].optional = false;
    gs_status status = gs_library_load(library, symbols, 2);
    assert_int_equal(status.code, GS_UNIMPLEMENTED);
    assert_string_equal(status.message, "math: libm.so.6 has no gs_no_such_call");
    assert_null(cosine);
    gs_library_close(library);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_file_that_loads_is_taken),
        cmocka_unit_test(a_missing_library_is_unavailable_with_the_loaders_words),
        cmocka_unit_test(a_file_that_is_named_is_the_only_one_tried),
        cmocka_unit_test(a_missing_symbol_is_named_and_nothing_is_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
