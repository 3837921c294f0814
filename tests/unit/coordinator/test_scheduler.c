#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "coordinator/rules/scheduler.h"

static void a_job_starts_with_as_many_as_it_may_have(void **state) {
    (void)state;
    gs_schedule_job job = {.least = 2, .most = 4};
    gs_schedule_decide(&job, 1, (gs_slot_pools){.plain = 6}, (gs_slot_pools){.plain = 6});
    assert_int_equal(job.ranks, 4);
    assert_int_equal(job.wait, GS_WAIT_NONE);
}

static void all_ranks_start_together_or_not_at_all(void **state) {
    (void)state;
    gs_schedule_job job = {.least = 3, .most = 3, .join_passed = true};
    gs_schedule_decide(&job, 1, (gs_slot_pools){.plain = 2}, (gs_slot_pools){.plain = 8});
    assert_int_equal(job.ranks, 0);
    assert_int_equal(job.wait, GS_WAIT_SLOTS);
}

static void more_ranks_are_waited_for_within_the_window_only(void **state) {
    (void)state;
    gs_schedule_job job = {.least = 1, .most = 4};
    gs_schedule_decide(&job, 1, (gs_slot_pools){.plain = 2}, (gs_slot_pools){.plain = 2});
    assert_int_equal(job.wait, GS_WAIT_JOIN);
    job.join_passed = true;
    gs_schedule_decide(&job, 1, (gs_slot_pools){.plain = 2}, (gs_slot_pools){.plain = 2});
    assert_int_equal(job.ranks, 2);
}

static void a_small_job_does_not_starve_the_head(void **state) {
    (void)state;
    gs_schedule_job jobs[] = {{.least = 4, .most = 4}, {.least = 1, .most = 1}};
    gs_schedule_decide(jobs, 2, (gs_slot_pools){.plain = 2}, (gs_slot_pools){.plain = 4});
    assert_int_equal(jobs[0].wait, GS_WAIT_SLOTS);
    assert_int_equal(jobs[1].wait, GS_WAIT_TURN);
    assert_int_equal(jobs[1].behind, 0);
}

static void a_head_that_can_never_run_reserves_nothing(void **state) {
    (void)state;
    gs_schedule_job jobs[] = {{.least = 9, .most = 9}, {.least = 1, .most = 1}};
    gs_schedule_decide(jobs, 2, (gs_slot_pools){.plain = 2}, (gs_slot_pools){.plain = 4});
    assert_int_equal(jobs[0].wait, GS_WAIT_SLOTS);
    assert_int_equal(jobs[1].ranks, 1);
}

static void a_job_that_backs_off_holds_nobody_up(void **state) {
    (void)state;
    gs_schedule_job jobs[] = {{.least = 2, .most = 2, .backing_off = true}, {.least = 2, .most = 2}};
    gs_schedule_decide(jobs, 2, (gs_slot_pools){.plain = 2}, (gs_slot_pools){.plain = 2});
    assert_int_equal(jobs[0].wait, GS_WAIT_BACKOFF);
    assert_int_equal(jobs[1].ranks, 2);
}

static void ranks_spread_over_agents(void **state) {
    (void)state;
    const int free_slots[] = {4, 4, 2};
    int taken[3];
    gs_schedule_spread(taken, free_slots, 3, 4, 3);
    assert_int_equal(taken[0], 2);
    assert_int_equal(taken[1], 2);
    assert_int_equal(taken[2], 0);
    gs_schedule_spread(taken, free_slots, 3, 10, 3);
    assert_int_equal(taken[0] + taken[1] + taken[2], 10);
    assert_int_equal(taken[2], 2);
}

static void who_leads_gets_a_rank_whatever_others_have(void **state) {
    (void)state;
    const int free_slots[] = {1, 4, 8};
    int taken[3];
    gs_schedule_spread(taken, free_slots, 3, 2, 0);
    assert_int_equal(taken[0], 1);
    assert_int_equal(taken[1], 0);
    assert_int_equal(taken[2], 1);
    gs_schedule_spread(taken, free_slots, 3, 13, 1);
    assert_int_equal(taken[0] + taken[1] + taken[2], 13);
    assert_int_equal(taken[1], 4);
    gs_schedule_spread(taken, free_slots, 3, 0, 0);
    assert_int_equal(taken[0] + taken[1] + taken[2], 0);
}

static void a_job_on_gpus_takes_no_other_slots(void **state) {
    (void)state;
    gs_schedule_job job = {.least = 2, .most = 4, .needs_gpu = true, .join_passed = true};
    gs_schedule_decide(&job, 1, (gs_slot_pools){.plain = 8, .gpu = 1}, (gs_slot_pools){8, 4});
    assert_int_equal(job.wait, GS_WAIT_SLOTS);
    gs_schedule_decide(&job, 1, (gs_slot_pools){.plain = 8, .gpu = 3}, (gs_slot_pools){8, 4});
    assert_int_equal(job.ranks, 3);
}

static void a_job_on_cpus_leaves_gpus_free_while_it_can(void **state) {
    (void)state;
    gs_schedule_job jobs[] = {{.least = 2, .most = 2}, {.least = 2, .most = 2, .needs_gpu = true}};
    gs_schedule_decide(jobs, 2, (gs_slot_pools){.plain = 2, .gpu = 2}, (gs_slot_pools){2, 2});
    assert_int_equal(jobs[0].ranks, 2);
    assert_int_equal(jobs[1].ranks, 2);
    gs_slot_pools taken = gs_schedule_take(false, 3, (gs_slot_pools){.plain = 2, .gpu = 2});
    assert_int_equal(taken.plain, 2);
    assert_int_equal(taken.gpu, 1);
}

static void who_waits_for_gpus_holds_up_no_job_on_cpus(void **state) {
    (void)state;
    gs_schedule_job jobs[] = {{.least = 4, .most = 4, .needs_gpu = true},
                              {.least = 2, .most = 2},
                              {.least = 2, .most = 2},
                              {.least = 1, .most = 1, .needs_gpu = true}};
    gs_schedule_decide(jobs, 4, (gs_slot_pools){.plain = 2, .gpu = 3}, (gs_slot_pools){2, 4});
    assert_int_equal(jobs[0].wait, GS_WAIT_SLOTS);
    assert_int_equal(jobs[1].ranks, 2);
    assert_int_equal(jobs[2].wait, GS_WAIT_TURN);  // only the slots held back are left
    assert_int_equal(jobs[3].wait, GS_WAIT_TURN);
    assert_int_equal(jobs[3].behind, 0);
}

// A stream of small jobs must not keep the second one waiting for as long as the first waits for GPUs.
static void who_waits_for_gpus_lets_nobody_starve_behind(void **state) {
    (void)state;
    gs_schedule_job jobs[] = {{.least = 4, .most = 4, .needs_gpu = true},
                              {.least = 4, .most = 4},
                              {.least = 1, .most = 1},
                              {.least = 1, .most = 1, .needs_gpu = true}};
    gs_schedule_decide(jobs, 4, (gs_slot_pools){.plain = 2, .gpu = 1}, (gs_slot_pools){4, 4});
    assert_int_equal(jobs[0].wait, GS_WAIT_SLOTS);
    assert_int_equal(jobs[1].wait, GS_WAIT_SLOTS);
    assert_int_equal(jobs[2].wait, GS_WAIT_TURN);
    assert_int_equal(jobs[2].behind, 1);
    assert_int_equal(jobs[3].wait, GS_WAIT_TURN);
    assert_int_equal(jobs[3].behind, 0);
}

static void who_waits_for_cpus_keeps_gpus_too(void **state) {
    (void)state;
    gs_schedule_job jobs[] = {{.least = 4, .most = 4}, {.least = 1, .most = 1, .needs_gpu = true}};
    gs_schedule_decide(jobs, 2, (gs_slot_pools){.plain = 2, .gpu = 1}, (gs_slot_pools){2, 2});
    assert_int_equal(jobs[0].wait, GS_WAIT_SLOTS);
    assert_int_equal(jobs[1].wait, GS_WAIT_TURN);
    assert_int_equal(jobs[1].behind, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_starts_with_as_many_as_it_may_have),
        cmocka_unit_test(all_ranks_start_together_or_not_at_all),
        cmocka_unit_test(more_ranks_are_waited_for_within_the_window_only),
        cmocka_unit_test(a_small_job_does_not_starve_the_head),
        cmocka_unit_test(a_head_that_can_never_run_reserves_nothing),
        cmocka_unit_test(a_job_that_backs_off_holds_nobody_up),
        cmocka_unit_test(ranks_spread_over_agents),
        cmocka_unit_test(who_leads_gets_a_rank_whatever_others_have),
        cmocka_unit_test(a_job_on_gpus_takes_no_other_slots),
        cmocka_unit_test(a_job_on_cpus_leaves_gpus_free_while_it_can),
        cmocka_unit_test(who_waits_for_gpus_holds_up_no_job_on_cpus),
        cmocka_unit_test(who_waits_for_gpus_lets_nobody_starve_behind),
        cmocka_unit_test(who_waits_for_cpus_keeps_gpus_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
