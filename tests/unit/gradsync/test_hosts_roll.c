// Who is missing on two levels, by what ranks have said of where they are.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/clock.h"
#include "gradsync/comm/hosts/roll.h"
#include "gradsync/comm/net/net.h"

#define WORLD 4
#define MS GS_NS_PER_MS
#define AT 7  // the collective that is waited for

// ---- what was heard, by rank: of which collective, and how long ago

typedef struct heard {
    uint64_t sequence;
    int64_t ago_ms;
} heard;
static heard played[WORLD];

gs_net_presence __wrap_gs_net_was_here(const void *backend, int rank, int lane);
gs_net_presence __wrap_gs_net_was_here(const void *backend, int rank, int lane) {
    (void)backend, (void)lane;
    const heard *one = &played[rank];
    return (gs_net_presence){.sequence = one->sequence, .heard_ns = one->sequence ? gs_now_ns() - one->ago_ms * MS : 0};
}

// Ranks that rank 0 names behind so long a wait, as digits.
static const char *accused_after(int64_t waited_ms) {
    static char named[WORLD + 1];
    static gs_hosts_party party = {.rank = 0, .topology = {.world_size = WORLD}};
    gs_hosts_roll roll = {.said_ns = {1}};
    gs_hosts_lane *lane = calloc(1, sizeof *lane);
    gs_comm_failure late = {0};
    int count = 0;
    lane->party = &party;
    atomic_store(&lane->finished, AT - 1);
    bool any = gs_hosts_roll_accuse_silent(&roll, &party, lane, waited_ms * MS, &late);
    for (int i = 0; i < WORLD; i++)
        if (gs_comm_failure_names(&late, i)) named[count++] = (char)('0' + i);
    named[count] = 0;
    assert_int_equal(any, count > 0);
    free(lane);
    return named;
}

static void play(heard one, heard two, heard three) {
    played[1] = one, played[2] = two, played[3] = three;
}

static void who_says_nothing_is_named(void **state) {
    (void)state;
    play((heard){AT, 30}, (heard){AT, 3900}, (heard){AT, 60});
    assert_string_equal(accused_after(4000), "2");
    play((heard){AT, 30}, (heard){0, 0}, (heard){AT + 1, 60});
    assert_string_equal(accused_after(4000), "2");
    play((heard){AT, 3000}, (heard){0, 0}, (heard){AT, 60});
    assert_string_equal(accused_after(4000), "12");
}

static void who_waits_at_one_before_is_not_named_beside_who_says_nothing(void **state) {
    (void)state;
    play((heard){AT, 3900}, (heard){AT - 1, 40}, (heard){AT - 1, 20});
    assert_string_equal(accused_after(4000), "1");
}

static void who_was_at_one_before_when_the_wait_began_is_late(void **state) {
    (void)state;
    play((heard){AT, 30}, (heard){AT - 1, 1010}, (heard){AT, 20});
    assert_string_equal(accused_after(1000), "2");
    // Shorter than a silence, and behind all the same.
    play((heard){AT, 30}, (heard){AT - 1, 310}, (heard){AT, 20});
    assert_string_equal(accused_after(300), "2");
}

static void behind_a_short_wait_who_is_silent_for_far_longer_than_all_others_is_named(void **state) {
    (void)state;
    play((heard){AT, 30}, (heard){AT, 60}, (heard){AT, 420});
    assert_string_equal(accused_after(600), "3");
    // A machine that keeps all of them from speaking names nobody.
    play((heard){AT, 300}, (heard){AT, 260}, (heard){AT, 420});
    assert_string_equal(accused_after(600), "");
    play((heard){AT, 30}, (heard){AT, 60}, (heard){AT, 120});
    assert_string_equal(accused_after(600), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_says_nothing_is_named),
        cmocka_unit_test(who_waits_at_one_before_is_not_named_beside_who_says_nothing),
        cmocka_unit_test(who_was_at_one_before_when_the_wait_began_is_late),
        cmocka_unit_test(behind_a_short_wait_who_is_silent_for_far_longer_than_all_others_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
