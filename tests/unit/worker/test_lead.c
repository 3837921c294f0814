// When a rank takes a step, and when it stands still.
#include "worker/control/lead.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/boot_clock.h"
#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/support/slept_host.h"

typedef struct fixture {
    gs_launch_page page;
    gs_lead lead;
    gs_mailbox mailbox;
} fixture;

static int set_up(void **state) {
    fixture *it = calloc(1, sizeof *it);
    gs_mailbox_init(&it->mailbox);
    gs_mailbox_begin(&it->mailbox, 3);
    gs_lead_begin(&it->lead, &it->page, 600);
    *state = it;
    return 0;
}

static int tear_down(void **state) {
    fixture *it = *state;
    gs_mailbox_release(&it->mailbox);
    free(it);
    return 0;
}

// The last word of both is of so long ago.
static void grow_old(fixture *it, int64_t pulse_ns, int64_t answered_ns) {
    atomic_store(&it->page.pulse_ns, gs_boot_ns() - pulse_ns);
    atomic_store(&it->lead.answered_ns, gs_boot_ns() - answered_ns);
}

static void a_rank_steps_while_either_leads_it(void **state) {
    fixture *it = *state;
    int64_t old_ns = 100 * GS_LIFE_UNSEEN_NS;
    grow_old(it, 0, old_ns);
    assert_true(gs_lead_lost_since(&it->lead) == 0);
    grow_old(it, old_ns, 0);
    assert_true(gs_lead_lost_since(&it->lead) == 0);
    assert_ok(gs_lead_await(&it->lead, &it->mailbox));
}

static int is_lost(void *ctx) {
    const fixture *it = ctx;
    return gs_lead_lost_since(&it->lead) ? 0 : 1;
}

// Others may have taken its place meanwhile: a rank that wakes up with its host takes no step by what it heard before.
static void who_slept_with_the_host_is_led_by_nobody(void **state) {
    fixture *it = *state;
    grow_old(it, 0, 0);
    assert_true(gs_lead_lost_since(&it->lead) == 0);
    int found = behind_sleep(is_lost, it);
    if (found == SLEPT_CANNOT) skip();
    assert_int_equal(found, 0);
}

static void it_stands_when_both_are_old(void **state) {
    fixture *it = *state;
    grow_old(it, GS_LIFE_UNSEEN_NS, 2 * GS_LIFE_UNSEEN_NS);
    assert_true(gs_lead_lost_since(&it->lead) == atomic_load(&it->page.pulse_ns));
    grow_old(it, 2 * GS_LIFE_UNSEEN_NS, GS_LIFE_UNSEEN_NS);
    assert_true(gs_lead_lost_since(&it->lead) == atomic_load(&it->lead.answered_ns));
}

static void who_is_led_by_nobody_asks_nobody(void **state) {
    fixture *it = *state;
    gs_lead_begin(&it->lead, NULL, 600);
    grow_old(it, 100 * GS_LIFE_UNSEEN_NS, 100 * GS_LIFE_UNSEEN_NS);
    assert_ok(gs_lead_await(&it->lead, &it->mailbox));
}

typedef struct stander {
    fixture *of;
    gs_status status;
    atomic_bool is_done;
    pthread_t thread;
} stander;

static void *stand(void *ctx) {
    stander *it = ctx;
    it->status = gs_lead_await(&it->of->lead, &it->of->mailbox);
    atomic_store(&it->is_done, true);
    return NULL;
}

// It stands for longer than it looks.
static void begin_to_stand(stander *it, fixture *of) {
    *it = (stander){.of = of};
    grow_old(of, 2 * GS_LIFE_UNSEEN_NS, 2 * GS_LIFE_UNSEEN_NS);
    assert_int_equal(pthread_create(&it->thread, NULL, stand, it), 0);
    gs_sleep_ns(100 * GS_NS_PER_MS);
    assert_false(atomic_load(&it->is_done));
}

static void it_goes_on_when_one_of_them_is_back(void **state) {
    fixture *it = *state;
    stander standing;
    begin_to_stand(&standing, it);
    atomic_store(&it->page.pulse_ns, gs_boot_ns());
    pthread_join(standing.thread, NULL);
    assert_ok(standing.status);
    begin_to_stand(&standing, it);
    atomic_store(&it->lead.answered_ns, gs_boot_ns());
    pthread_join(standing.thread, NULL);
    assert_ok(standing.status);
}

static void it_leaves_when_its_generation_ends(void **state) {
    fixture *it = *state;
    stander standing;
    begin_to_stand(&standing, it);
    gs_mailbox_abort(&it->mailbox, 3, "others have begun");
    pthread_join(standing.thread, NULL);
    assert_int_equal(standing.status.code, GS_ABORTED);
}

static void it_stands_no_longer_than_ranks_stay_alone(void **state) {
    fixture *it = *state;
    stander standing;
    begin_to_stand(&standing, it);
    int64_t limit_ns = (int64_t)((600 + GS_STAND_MARGIN_SECONDS) * (double)GS_NS_PER_SEC);
    grow_old(it, limit_ns, 2 * limit_ns);
    pthread_join(standing.thread, NULL);
    assert_int_equal(standing.status.code, GS_UNAVAILABLE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_rank_steps_while_either_leads_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(who_slept_with_the_host_is_led_by_nobody, set_up, tear_down),
        cmocka_unit_test_setup_teardown(it_stands_when_both_are_old, set_up, tear_down),
        cmocka_unit_test_setup_teardown(who_is_led_by_nobody_asks_nobody, set_up, tear_down),
        cmocka_unit_test_setup_teardown(it_goes_on_when_one_of_them_is_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(it_leaves_when_its_generation_ends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(it_stands_no_longer_than_ranks_stay_alone, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
