// What a worker sees of the coordinator's checkpoint directory.
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "rpc/checkpoint/place_mark.h"
#include "tests/support/asserts.h"
#include "worker/agent/shared_place.h"

#define WAIT_SECONDS 60.0

static atomic_int num_begun, num_allowed;

gs_status __wrap_gs_place_mark_read(uint64_t *life, const char *directory, const char *cluster);

// A disk that answers each look when the test says so, and holds the mark of life 1.
gs_status __wrap_gs_place_mark_read(uint64_t *life, const char *directory, const char *cluster) {
    (void)directory;
    (void)cluster;
    int number = atomic_fetch_add(&num_begun, 1) + 1;
    gs_deadline deadline = gs_deadline_in_seconds(WAIT_SECONDS);
    while (atomic_load(&num_allowed) < number && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    *life = 1;
    return gs_ok();
}

static void wait_for_look(int number) {
    gs_deadline deadline = gs_deadline_in_seconds(WAIT_SECONDS);
    while (atomic_load(&num_begun) < number && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    assert_true(atomic_load(&num_begun) >= number);
}

// What is seen of one mark, while another is asked for, says nothing of that one.
static void expect_unknown_behind(const char *cluster, uint64_t life) {
    gs_shared_place *place = NULL;
    atomic_store(&num_begun, 0);
    atomic_store(&num_allowed, 0);
    assert_ok(gs_shared_place_start(&place));
    gs_shared_place_set(place, "/c", "one", 1);
    wait_for_look(1);
    gs_shared_place_set(place, "/c", cluster, life);
    atomic_store(&num_allowed, 1);
    wait_for_look(2);
    assert_int_equal(gs_shared_place_sight(place).num_looks, 0);
    atomic_store(&num_allowed, 1000);
    gs_deadline deadline = gs_deadline_in_seconds(WAIT_SECONDS);
    const char *wanted = life == 1 ? "same" : "other";
    while (strcmp(gs_shared_place_sight(place).state, wanted) != 0 && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    assert_string_equal(gs_shared_place_sight(place).state, wanted);
    gs_shared_place_stop(place);
}

static void a_look_for_another_life_is_not_kept(void **state) {
    (void)state;
    expect_unknown_behind("one", 2);
}

static void a_look_for_another_cluster_is_not_kept(void **state) {
    (void)state;
    expect_unknown_behind("two", 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_look_for_another_life_is_not_kept),
        cmocka_unit_test(a_look_for_another_cluster_is_not_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
