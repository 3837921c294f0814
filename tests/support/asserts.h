// What tests assert beyond cmocka: statuses and floating-point numbers. A failure names the line of
// the test and what was there. For parents of ranks and for tests of one process; ranks return a
// status (near.h).
#ifndef TESTS_SUPPORT_ASSERTS_H
#define TESTS_SUPPORT_ASSERTS_H

#include "core/status.h"
#include "tests/support/near.h"

#define assert_ok(status) assert_status_ok(status, __FILE__, __LINE__)

// At most `absolute` apart, 0: equal; never for NaN or infinity.
#define assert_near(got, wanted, absolute_bound)                                                   \
    assert_number_near(#got, (double)(got), (double)(wanted),                                      \
                       (gs_near){.absolute = (double)(absolute_bound)}, __FILE__, __LINE__)
// At most relative_bound·|wanted| apart.
#define assert_relative(got, wanted, relative_bound)                                               \
    assert_number_near(#got, (double)(got), (double)(wanted),                                      \
                       (gs_near){.relative = (double)(relative_bound)}, __FILE__, __LINE__)
#define assert_near_fp32(got, wanted, count, within)                                               \
    assert_list_near(#got, got, wanted, count, within, __FILE__, __LINE__)

void assert_status_ok(gs_status status, const char *file, int line);
void assert_number_near(const char *what, double got, double wanted, gs_near within,
                        const char *file, int line);
void assert_list_near(const char *what, const float *got, const float *wanted, size_t count,
                      gs_near within, const char *file, int line);

#endif
