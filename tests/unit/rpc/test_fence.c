// Who may write into a job's checkpoint directory after another set of ranks has begun there.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "rpc/checkpoint/fence.h"
#include "rpc/checkpoint/life_sign.h"
#include "rpc/checkpoint/place_mark.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

static const gs_fence second = {"c-home", 2}, third = {"c-home", 3}, stranger = {"c-away", 900};

static int set_up(void **state) {
    *state = gs_temp_dir_make();
    return 0;
}

static int tear_down(void **state) {
    gs_temp_dir_remove(*state);
    return 0;
}

static void refused(gs_status status) {
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
}

static void a_later_generation_shuts_out_earlier_ones(void **state) {
    const char *path = *state;
    assert_ok(gs_fence_check(path, &second));
    assert_ok(gs_fence_raise(path, &second));
    assert_ok(gs_fence_check(path, &second));
    assert_ok(gs_fence_check(path, &third));
    assert_ok(gs_fence_raise(path, &third));
    assert_ok(gs_fence_raise(path, &third));
    refused(gs_fence_check(path, &second));
    refused(gs_fence_raise(path, &second));
    assert_ok(gs_fence_check(path, &third));
}

// Whoever begins to train there was asked to by somebody; who was there before has not heard of it.
static void another_cluster_takes_over_and_is_not_mistaken_for_later(void **state) {
    const char *path = *state;
    assert_ok(gs_fence_raise(path, &stranger));
    refused(gs_fence_check(path, &third));
    assert_ok(gs_fence_raise(path, &third));
    refused(gs_fence_check(path, &stranger));
}

static void ranks_of_a_version_before_pass(void **state) {
    const char *path = *state;
    const gs_fence unknown = {"", 0};
    assert_ok(gs_fence_raise(path, &third));
    assert_ok(gs_fence_check(path, &unknown));
}

static void a_damaged_fence_lets_nobody_write(void **state) {
    const char *path = *state;
    char file[300];
    assert_ok(gs_fence_raise(path, &third));
    snprintf(file, sizeof file, "%s/FENCE.json", path);
    assert_int_equal(truncate(file, 20), 0);
    assert_int_equal(gs_fence_check(path, &third).code, GS_DATA_LOSS);
}

// It keeps out whom it is above, and is nobody's: ranks of the next generation have not been there because of it.
static void a_fence_that_a_coordinator_puts_is_nobodys(void **state) {
    const char *path = *state;
    bool is_so;
    assert_ok(gs_fence_is_above(&is_so, path, &second));
    assert_false(is_so);
    assert_ok(gs_fence_raise(path, &second));
    assert_ok(gs_fence_is_above(&is_so, path, &second));
    assert_false(is_so);
    assert_ok(gs_fence_close(path, &second));
    refused(gs_fence_check(path, &second));
    assert_ok(gs_fence_is_above(&is_so, path, &second));
    assert_true(is_so);
    assert_ok(gs_fence_stands(&is_so, path, &third));
    assert_false(is_so);
    assert_ok(gs_fence_raise(path, &third));
    assert_ok(gs_fence_stands(&is_so, path, &third));
    assert_true(is_so);
    assert_ok(gs_fence_raise(path, &stranger));
    assert_ok(gs_fence_is_above(&is_so, path, &second));
    assert_false(is_so);
}

static void which_generation_was_there_last_is_told(void **state) {
    const char *path = *state;
    uint32_t generation = 9;
    assert_ok(gs_fence_last(&generation, path, "c-home"));
    assert_int_equal(generation, 0);
    assert_ok(gs_fence_raise(path, &third));
    assert_ok(gs_fence_last(&generation, path, "c-home"));
    assert_int_equal(generation, 3);
    assert_ok(gs_fence_close(path, &third));  // the fourth may never be
    assert_ok(gs_fence_last(&generation, path, "c-home"));
    assert_int_equal(generation, 3);
    assert_ok(gs_fence_raise(path, &stranger));
    assert_ok(gs_fence_last(&generation, path, "c-home"));
    assert_int_equal(generation, 0);
}

static unsigned mode_of(const char *directory, const char *name) {
    char path[600];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    assert_int_equal(stat(path, &facts), 0);
    return facts.st_mode & 0777;
}

// Coordinator and ranks may be two users.
static void what_others_look_for_they_may_read(void **state) {
    const char *path = *state;
    mode_t usual = umask(022);
    assert_ok(gs_fence_raise(path, &second));
    assert_ok(gs_life_sign_leave(path, &second, 1));
    assert_ok(gs_place_mark_leave(path, "c-home", 7));
    umask(usual);
    assert_int_equal(mode_of(path, "FENCE.json"), 0644);
    assert_int_equal(mode_of(path, "ALIVE.json"), 0644);
    assert_int_equal(mode_of(path, "PLACE-c-home.json"), 0644);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_others_look_for_they_may_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_fence_that_a_coordinator_puts_is_nobodys, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_later_generation_shuts_out_earlier_ones, set_up, tear_down),
        cmocka_unit_test_setup_teardown(another_cluster_takes_over_and_is_not_mistaken_for_later, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(ranks_of_a_version_before_pass, set_up, tear_down),
        cmocka_unit_test_setup_teardown(which_generation_was_there_last_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_damaged_fence_lets_nobody_write, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
