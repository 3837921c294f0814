#include "worker/telemetry/link_shares.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"

#define RATE 40e6

static gs_link_rates rates_of(int num_hosts, double rate) {
    gs_link_rates rates = {.num_hosts = num_hosts};
    for (int a = 0; a < num_hosts; a++)
        for (int b = 0; b < num_hosts; b++) rates.of[a][b] = a == b ? 0 : rate;
    return rates;
}

static void set_pair(gs_link_rates *rates, int a, int b, double rate) {
    rates->of[a][b] = rates->of[b][a] = rate;
}

static void assert_even(const uint16_t *shares, int num_hosts) {
    for (int i = 0; i < num_hosts; i++) assert_int_equal(shares[i], shares[0]);
    assert_true(shares[0] > 0);
}

static int sum_of(const uint16_t *shares, int num_hosts) {
    int sum = 0;
    for (int i = 0; i < num_hosts; i++) sum += shares[i];
    return sum;
}

static void equal_ways_are_shared_equally(void **state) {
    (void)state;
    uint16_t shares[GS_LINK_MOST_HOSTS];
    for (int n = 1; n <= GS_LINK_MOST_HOSTS; n++) {
        gs_link_rates rates = rates_of(n, RATE);
        assert_true(gs_link_shares_choose(shares, &rates) == 1);
        assert_even(shares, n);
    }
}

static void what_is_not_known_is_shared_equally(void **state) {
    (void)state;
    uint16_t shares[4];
    gs_link_rates rates = rates_of(4, RATE);
    for (int i = 0; i < 4; i++) set_pair(&rates, 3, i, 0);
    assert_true(gs_link_shares_choose(shares, &rates) == 1);
    assert_even(shares, 4);
}

// Of two nothing can be left out: all has to cross.
static void two_hosts_have_one_way(void **state) {
    (void)state;
    uint16_t shares[2];
    gs_link_rates rates = rates_of(2, 1e3);
    assert_true(gs_link_shares_choose(shares, &rates) == 1);
    assert_even(shares, 2);
}

// 0 and 1 reach each other at a tenth of a host's rate. By hand: x / 2 of a byte would be 2x / b = (2 − 2x) / B, x = 1 / 11.
static void ends_of_a_slow_way_own_little(void **state) {
    (void)state;
    uint16_t shares[4];
    gs_link_rates rates = rates_of(4, RATE);
    set_pair(&rates, 0, 1, 3 * RATE / 10);
    double gain = gs_link_shares_choose(shares, &rates);
    assert_true(gain > 2.6 && gain < 2.8);
    assert_int_equal(sum_of(shares, 4), GS_LINK_WHOLE);
    assert_in_range(shares[0], 84, 98);
    assert_in_range(shares[1], 84, 98);
    assert_in_range(shares[2], 400, 418);
    assert_in_range(shares[3], 400, 418);
}

static void a_way_that_gives_nothing_is_all_but_left_out(void **state) {
    (void)state;
    uint16_t shares[4];
    gs_link_rates rates = rates_of(4, RATE);
    set_pair(&rates, 1, 3, 1);
    assert_true(gs_link_shares_choose(shares, &rates) > 1e6);
    assert_int_equal(shares[1] + shares[3], 0);
}

static void two_slow_ways_leave_the_others(void **state) {
    (void)state;
    uint16_t shares[6];
    gs_link_rates rates = rates_of(6, RATE);
    set_pair(&rates, 0, 1, RATE / 20);
    set_pair(&rates, 2, 3, RATE / 20);
    assert_true(gs_link_shares_choose(shares, &rates) > 2);
    for (int i = 0; i < 4; i++) assert_true(shares[i] < shares[4] / 3 && shares[i] < shares[5] / 3);
}

// Of a host whose own link is slow there is no way around it: what it owns others send it, and that can be given up.
static void a_slow_host_owns_less(void **state) {
    (void)state;
    uint16_t shares[4];
    gs_link_rates rates = rates_of(4, RATE);
    for (int i = 0; i < 4; i++)
        if (i != 2) set_pair(&rates, 2, i, RATE / 10);
    double gain = gs_link_shares_choose(shares, &rates);
    assert_true(gain > 1.4 && gain < 1.52);
    assert_true(shares[2] <= 10);
    assert_false(gs_link_pair_is_slow(&rates, 2, 0));
}

static void rates_that_differ_by_chance_are_equal(void **state) {
    (void)state;
    uint16_t shares[GS_LINK_MOST_HOSTS];
    for (uint64_t round = 0; round < 200; round++) {
        gs_random_key key = {.seed = round, .stream = 7};
        int n = 3 + (int)(round % 20);
        gs_link_rates rates = rates_of(n, RATE);
        for (int a = 0; a < n; a++)
            for (int b = 0; b < a; b++)
                set_pair(&rates, a, b, RATE * (0.8 + 0.4 * (double)(gs_random_u64(key, (uint64_t)(a * 64 + b)) >> 11) * 0x1p-53));
        // A host whose ways all have bad luck may own less. Nobody is taken for slow.
        double gain = gs_link_shares_choose(shares, &rates);
        assert_true(gain < 1.25);
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++) assert_false(gs_link_pair_is_slow(&rates, a, b));
    }
}

// The model's own measure, of whole thousandths.
static double seconds_by(const uint16_t *shares, const gs_link_rates *rates, double host_rate) {
    double most = 0, whole = sum_of(shares, rates->num_hosts);
    for (int a = 0; a < rates->num_hosts; a++) {
        double seconds = (1 + (rates->num_hosts - 2) * shares[a] / whole) / host_rate;
        if (seconds > most) most = seconds;
        for (int b = 0; b < a; b++) {
            seconds = (shares[a] + shares[b]) / whole / rates->of[a][b];
            if (gs_link_pair_is_slow(rates, a, b) && seconds > most) most = seconds;
        }
    }
    return most;
}

// Every division of 24 parts among five hosts: none is better by a twentieth.
static void no_other_division_is_better(void **state) {
    (void)state;
    enum { HOSTS = 5, PARTS = 24 };
    for (uint64_t round = 0; round < 20; round++) {
        gs_random_key key = {.seed = round, .stream = 9};
        gs_link_rates rates = rates_of(HOSTS, RATE);
        uint16_t shares[HOSTS], other[HOSTS];
        for (uint64_t k = 0; k < 2; k++) {
            int a = (int)(gs_random_u64(key, 3 * k) % HOSTS), b = (int)(gs_random_u64(key, 3 * k + 1) % HOSTS);
            if (a != b) set_pair(&rates, a, b, RATE / (double)(3 + gs_random_u64(key, 3 * k + 2) % 30));
        }
        gs_link_shares_choose(shares, &rates);
        double chosen = seconds_by(shares, &rates, 4 * RATE), best = chosen;
        for (int code = 0; code < PARTS * PARTS * PARTS * PARTS; code++) {
            int rest = code, left = PARTS;
            for (int i = 0; i < HOSTS - 1; i++, rest /= PARTS) left -= other[i] = (uint16_t)(rest % PARTS);
            if (left < 0) continue;
            other[HOSTS - 1] = (uint16_t)left;
            double seconds = seconds_by(other, &rates, 4 * RATE);
            if (seconds < best) best = seconds;
        }
        assert_true(chosen <= 1.05 * best);
    }
}

static void equal_rates_give_equal_shares(void **state) {
    (void)state;
    uint16_t first[5], second[5];
    gs_link_rates rates = rates_of(5, RATE);
    set_pair(&rates, 4, 2, RATE / 7);
    assert_true(gs_link_shares_choose(first, &rates) == gs_link_shares_choose(second, &rates));
    assert_memory_equal(first, second, sizeof first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_ways_are_shared_equally),
        cmocka_unit_test(what_is_not_known_is_shared_equally),
        cmocka_unit_test(two_hosts_have_one_way),
        cmocka_unit_test(ends_of_a_slow_way_own_little),
        cmocka_unit_test(a_way_that_gives_nothing_is_all_but_left_out),
        cmocka_unit_test(two_slow_ways_leave_the_others),
        cmocka_unit_test(a_slow_host_owns_less),
        cmocka_unit_test(rates_that_differ_by_chance_are_equal),
        cmocka_unit_test(no_other_division_is_better),
        cmocka_unit_test(equal_rates_give_equal_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
