#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/model/job_id.h"

static void text_and_number_are_the_same_id(void **state) {
    (void)state;
    const uint64_t ids[] = {0, 1, 31, 32, (UINT64_C(1) << 60) - 1, gs_job_id_make(1772366400000, 99999)};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        char text[GS_JOB_ID_LEN];
        uint64_t back = 1;
        gs_job_id_format(text, ids[i]);
        assert_int_equal(strlen(text), 14);
        assert_true(gs_job_id_parse(&back, text));
        assert_true(back == ids[i]);
    }
}

static void texts_sort_like_times(void **state) {
    (void)state;
    char earlier[GS_JOB_ID_LEN], later[GS_JOB_ID_LEN];
    gs_job_id_format(earlier, gs_job_id_make(1772366400000, 0x3ffff));
    gs_job_id_format(later, gs_job_id_make(1772366400001, 0));
    assert_true(strcmp(earlier, later) < 0);
}

static void what_is_no_id_is_refused(void **state) {
    (void)state;
    const char *const bad[] = {"", "j-", "j-01jqz7w3t5x", "j-01jqz7w3t5x00", "k-01jqz7w3t5x0",
                               "j-01jqz7w3t5xi", "j-01JQZ7W3T5X0", "j-01jqz7w3t5xu"};
    uint64_t id = 0;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_false(gs_job_id_parse(&id, bad[i]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_and_number_are_the_same_id),
        cmocka_unit_test(texts_sort_like_times),
        cmocka_unit_test(what_is_no_id_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
