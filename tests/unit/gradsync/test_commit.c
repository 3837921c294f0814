#include "gradsync/step/commit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static gs_commit_result commit(const gs_commit_vote *vote) {
    gs_device *device;
    gs_comm *comm;
    gs_status status = gs_device_open(&device, "cpu", &(gs_device_options){0});
    assert_string_equal(status.message, "");
    status = gs_comm_create(
        &comm, &(gs_comm_options){.backend = "self", .world_size = 1, .device = device},
        gs_deadline_in_seconds(60));
    assert_string_equal(status.message, "");
    gs_commit_result result;
    status = gs_commit_run(&result, comm, vote, gs_deadline_in_seconds(60));
    assert_string_equal(status.message, "");
    gs_comm_destroy(comm);
    gs_device_close(device);
    return result;
}

static void votes_are_counted(void **state) {
    (void)state;
    gs_commit_result result = commit(&(gs_commit_vote){.step = 12,
                                                       .generation = 4000000000u,
                                                       .plan_digest = UINT64_MAX,
                                                       .params_digest = UINT64_MAX - 5,
                                                       .wants_drain = true,
                                                       .failed = true,
                                                       .is_saving = true,
                                                       .samples = 1 << 20});
    assert_int_equal(result.drain_ranks, 1);
    assert_int_equal(result.failed_ranks, 1);
    assert_int_equal(result.saving_ranks, 1);
    assert_int_equal(result.nonfinite_ranks, 0);
    assert_int_equal(result.checkpoint_ranks, 0);
    assert_int_equal(result.samples, 1 << 20);
    assert_false(result.params_differ);
}

static void a_plan_that_waits_on_all_ranks_is_agreed_on(void **state) {
    (void)state;
    assert_false(commit(&(gs_commit_vote){.plan_digest = 5}).switches_plan);
    assert_true(commit(&(gs_commit_vote){.plan_digest = 5, .next_plan_digest = 6}).switches_plan);
}

static void loss_is_the_mean_in_fixed_point(void **state) {
    (void)state;
    gs_commit_result result = commit(&(gs_commit_vote){.loss_sum = 10.8, .num_losses = 4});
    assert_true(fabs(result.loss - 2.7) < 1e-7);
}

static void loss_that_is_not_finite_is_nan(void **state) {
    (void)state;
    assert_true(isnan(commit(&(gs_commit_vote){.loss_sum = INFINITY, .num_losses = 4}).loss));
    assert_true(isnan(commit(&(gs_commit_vote){.loss_sum = NAN, .num_losses = 4}).loss));
    assert_true(isnan(commit(&(gs_commit_vote){.num_losses = 0}).loss));
}

static void huge_loss_saturates(void **state) {
    (void)state;
    assert_true(commit(&(gs_commit_vote){.loss_sum = 1e300, .num_losses = 1}).loss == 0x1p26);
    assert_true(commit(&(gs_commit_vote){.loss_sum = -1e300, .num_losses = 1}).loss == -0x1p26);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(votes_are_counted),
        cmocka_unit_test(a_plan_that_waits_on_all_ranks_is_agreed_on),
        cmocka_unit_test(loss_is_the_mean_in_fixed_point),
        cmocka_unit_test(loss_that_is_not_finite_is_nan),
        cmocka_unit_test(huge_loss_saturates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
