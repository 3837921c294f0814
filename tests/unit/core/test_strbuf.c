#include "core/strbuf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void empty_is_the_empty_text(void **state) {
    (void)state;
    gs_strbuf buf = {0};
    assert_string_equal(gs_strbuf_text(&buf), "");
    char *taken = gs_strbuf_take(&buf);
    assert_string_equal(taken, "");
    free(taken);
    gs_strbuf_release(&buf);
}

static void what_is_added_comes_out_in_order(void **state) {
    (void)state;
    gs_strbuf buf = {0};
    for (int i = 0; i < 1000; i++) {
        gs_strbuf_printf(&buf, "%d,", i % 10);
        gs_strbuf_puts(&buf, "ab");
        gs_strbuf_putc(&buf, ';');
    }
    assert_int_equal(buf.len, 5000);
    assert_false(gs_strbuf_failed(&buf));
    for (int i = 0; i < 1000; i++) {
        char piece[8];
        snprintf(piece, sizeof piece, "%d,ab;", i % 10);
        assert_memory_equal(buf.text + i * 5, piece, 5);
    }
    assert_int_equal(buf.text[buf.len], '\0');
    gs_strbuf_clear(&buf);
    assert_string_equal(gs_strbuf_text(&buf), "");
    gs_strbuf_release(&buf);
}

static void a_size_beyond_reason_fails_and_sticks(void **state) {
    (void)state;
    gs_strbuf buf = {0};
    gs_strbuf_puts(&buf, "kept");
    gs_strbuf_add(&buf, "", (size_t)1 << 41);
    assert_true(gs_strbuf_failed(&buf));
    gs_strbuf_puts(&buf, "ignored");
    assert_string_equal(gs_strbuf_text(&buf), "kept");
    assert_null(gs_strbuf_take(&buf));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_is_the_empty_text),
        cmocka_unit_test(what_is_added_comes_out_in_order),
        cmocka_unit_test(a_size_beyond_reason_fails_and_sticks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
