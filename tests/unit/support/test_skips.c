// What is skipped, and what is not there, is not passed (tests/support/skips.c).
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void skips(void **state) {
    (void)state;
    skip();
}

static void passes(void **state) {
    (void)state;
}

static int check(const char *what, int got, int wanted) {
    if (got == wanted) return 0;
    fprintf(stderr, "%s: %d, wanted %d\n", what, got, wanted);
    return 1;
}

// Not a group of cmocka's itself: it is its exit status that is tested.
int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(skips), cmocka_unit_test(skips)};
    const struct CMUnitTest one[] = {cmocka_unit_test(passes), cmocka_unit_test(skips)};
    const struct CMUnitTest none[] = {cmocka_unit_test(passes), cmocka_unit_test(passes)};
    int wrong = check("all skipped", cmocka_run_group_tests(all, NULL, NULL), 77);
    wrong += check("one skipped", cmocka_run_group_tests(one, NULL, NULL), 0);
    wrong += check("none skipped", cmocka_run_group_tests(none, NULL, NULL), 0);
    cmocka_set_test_filter("skips");
    wrong += check("the one asked for", cmocka_run_group_tests(one, NULL, NULL), 77);
    cmocka_set_test_filter("renamed");
    wrong += check("one that is not there", cmocka_run_group_tests(one, NULL, NULL), 1);
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
