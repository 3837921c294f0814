// A trial of other shares has bounds of its own: each of its collectives has the whole time of one, all together do not hold up a step
// for long, and one that could end the ranks is not begun. The communicator is a script: of four ranks, this is the first.
#include "worker/telemetry/link_balance.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/support/asserts.h"
#include "worker/telemetry/link_shares.h"

#define NUM_RANKS 4
#define RATE 40e6
#define BYTES 262144

static struct {
    double slow_rate;                  // between the first two; else RATE
    double equal_seconds, other_seconds;  // of a sum, by the slowest rank
    double sleeps;                     // that a sum really takes
    int num_sums;
    uint16_t shares[NUM_RANKS];
} line;

static void set_line(double slow_rate, double equal_seconds, double other_seconds) {
    memset(&line, 0, sizeof line);
    line.slow_rate = slow_rate;
    line.equal_seconds = equal_seconds;
    line.other_seconds = other_seconds;
}

static bool has_equal_shares(void) {
    for (int i = 1; i < NUM_RANKS; i++)
        if (line.shares[i] != line.shares[0]) return false;
    return true;
}

int __wrap_gs_comm_rank(const gs_comm *comm);
int __wrap_gs_comm_rank(const gs_comm *comm) { return (void)comm, 0; }

int __wrap_gs_comm_world_size(const gs_comm *comm);
int __wrap_gs_comm_world_size(const gs_comm *comm) { return (void)comm, NUM_RANKS; }

bool __wrap_gs_comm_shares(const gs_comm *comm);
bool __wrap_gs_comm_shares(const gs_comm *comm) { return (void)comm, true; }

gs_status __wrap_gs_comm_share(gs_comm *comm, const uint16_t *shares);
gs_status __wrap_gs_comm_share(gs_comm *comm, const uint16_t *shares) {
    (void)comm;
    memcpy(line.shares, shares, sizeof line.shares);
    return gs_ok();
}

static double rate_between(int a, int b) { return a + b == 1 ? line.slow_rate : RATE; }

bool __wrap_gs_comm_peer_link(const gs_comm *comm, int peer, gs_comm_link *out);
bool __wrap_gs_comm_peer_link(const gs_comm *comm, int peer, gs_comm_link *out) {
    (void)comm;
    *out = (gs_comm_link){.usual_bytes_per_sec = rate_between(0, peer)};
    return true;
}

// What the others say: each is a host of its own, and knows its ways.
static void tell_rates(double *numbers) {
    for (int rank = 0; rank < NUM_RANKS; rank++) {
        numbers[rank] = rank;
        for (int peer = 0; peer < NUM_RANKS; peer++)
            if (peer != rank) numbers[GS_LINK_MOST_HOSTS * (1 + rank) + peer] = rate_between(rank, peer);
    }
}

gs_status __wrap_gs_comm_run(gs_comm *comm, const gs_collective *collective, gs_deadline deadline);
gs_status __wrap_gs_comm_run(gs_comm *comm, const gs_collective *collective, gs_deadline deadline) {
    (void)comm;
    bool is_sum = collective->kind == GS_ALLREDUCE && collective->dtype == GS_FP32;
    if (is_sum) gs_sleep_ns((int64_t)(line.sleeps * 1e9));
    line.num_sums += is_sum;
    if (collective->kind == GS_ALLREDUCE && !is_sum && collective->count == 1)
        *(double *)collective->recv = has_equal_shares() ? line.equal_seconds : line.other_seconds;
    if (collective->kind == GS_ALLREDUCE && !is_sum && collective->count > GS_LINK_MOST_HOSTS * GS_LINK_MOST_HOSTS) tell_rates(collective->recv);
    if (!gs_deadline_passed(deadline)) return gs_ok();
    return gs_error(GS_DEADLINE_EXCEEDED, "a collective has no time left");
}

static bool consider(gs_link_balance *balance, double timeout_seconds) {
    bool changed = false;
    assert_ok(gs_link_balance_consider(balance, &changed, NULL, BYTES, timeout_seconds));
    return changed;
}

static void what_is_quicker_is_taken_and_else_all_stays(void **state) {
    (void)state;
    gs_link_balance balance = {0};
    set_line(RATE / 10, 0.05, 0.01);
    assert_true(consider(&balance, 60));
    assert_int_equal(line.num_sums, 6);
    assert_false(has_equal_shares());
    balance = (gs_link_balance){0};
    set_line(RATE / 10, 0.05, 0.05);
    assert_false(consider(&balance, 60));
    assert_true(has_equal_shares());
}

// As one that begins with little time left of the step's would have none.
static void a_trial_may_take_longer_than_a_collective(void **state) {
    (void)state;
    gs_link_balance balance = {0};
    set_line(RATE / 10, 0.05, 0.01);
    line.sleeps = 0.1;
    assert_true(consider(&balance, 0.3));
    assert_int_equal(line.num_sums, 6);
}

static void a_trial_that_takes_long_is_one_sum_of_each(void **state) {
    (void)state;
    gs_link_balance balance = {0};
    set_line(RATE / 10, 4, 1.5);
    assert_true(consider(&balance, 60));
    assert_int_equal(line.num_sums, 2);
    balance = (gs_link_balance){0};
    set_line(RATE / 10, 3, 1.5);  // behind a third, of the first kind
    assert_true(consider(&balance, 60));
    assert_int_equal(line.num_sums, 3);
}

// By these rates a sum takes 1.3 s, which a guess may be off by; the next look comes later, and asks nobody.
static void what_could_end_the_ranks_is_not_tried(void **state) {
    (void)state;
    gs_link_balance balance = {0};
    set_line(1e5, 0.05, 0.01);
    assert_false(consider(&balance, 4));
    assert_int_equal(line.num_sums, 0);
    assert_int_equal(balance.num_waits, 1);
    assert_false(consider(&balance, 4));
    assert_int_equal(line.num_sums, 0);
    assert_true(consider(&balance, 60));
    assert_int_equal(line.num_sums, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_quicker_is_taken_and_else_all_stays),
        cmocka_unit_test(a_trial_may_take_longer_than_a_collective),
        cmocka_unit_test(a_trial_that_takes_long_is_one_sum_of_each),
        cmocka_unit_test(what_could_end_the_ranks_is_not_tried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
