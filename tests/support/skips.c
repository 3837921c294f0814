// A binary all of whose tests were skipped is skipped itself (77), not passed, and one that is asked for a test that
// it does not have has failed. Linked in place of cmocka's own functions (--wrap), so no test has to know.
#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define SKIPPED 77

static const char *filter;  // of names: what the command line asked for
static size_t num_skipped;

void __real__skip(const char *file, int line);
void __wrap__skip(const char *file, int line);
void __real_cmocka_set_test_filter(const char *pattern);
void __wrap_cmocka_set_test_filter(const char *pattern);
int __real__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests,
                                   size_t num_tests, CMFixtureFunction set_up,
                                   CMFixtureFunction tear_down);
int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests,
                                   size_t num_tests, CMFixtureFunction set_up,
                                   CMFixtureFunction tear_down);

void __wrap__skip(const char *file, int line) {
    num_skipped++;
    __real__skip(file, line);
}

void __wrap_cmocka_set_test_filter(const char *pattern) {
    filter = pattern;
    __real_cmocka_set_test_filter(pattern);
}

int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests,
                                   size_t num_tests, CMFixtureFunction set_up,
                                   CMFixtureFunction tear_down) {
    size_t num_run = 0;
    for (size_t i = 0; i < num_tests; i++)
        num_run += !filter || fnmatch(filter, tests[i].name, 0) == 0;
    if (!num_run) {
        print_error("no test is called %s\n", filter ? filter : "anything");
        return 1;
    }
    num_skipped = 0;
    int num_failed = __real__cmocka_run_group_tests(name, tests, num_tests, set_up, tear_down);
    return !num_failed && num_skipped >= num_run ? SKIPPED : num_failed;
}
