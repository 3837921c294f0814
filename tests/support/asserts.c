#include "tests/support/asserts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

void assert_status_ok(gs_status status, const char *file, int line) {
    if (!status.code) return;
    print_error("%s: %s\n", gs_code_name(status.code), status.message);
    _fail(file, line);
}

void assert_number_near(const char *what, double got, double wanted, gs_near within,
                        const char *file, int line) {
    assert_status_ok(check_near(what, got, wanted, within), file, line);
}

void assert_list_near(const char *what, const float *got, const float *wanted, size_t count,
                      gs_near within, const char *file, int line) {
    assert_status_ok(check_near_fp32(what, got, wanted, count, within), file, line);
}
