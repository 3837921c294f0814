// "auto" between ranks, over links that are played: what it chooses, that all ranks choose alike though their gradients
// differ, and that nothing is lost where the choice, the plan or the world changes.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/hooks/auto_costs.h"
#include "gradsync/hooks/auto_errors.h"
#include "gradsync/hooks/auto_trial.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/hook_trial.h"
#include "tests/support/soon.h"

#define NUM_STEPS 12  // looks are at the first step of a plan and at the 9th
#define TOLERANCE 2e-5

// ---- the link

static bool is_slow;
static double second_bytes = 1e3;  // few: sums alone take longer than any step, and nobody tries what steps are without compression

void __wrap_gs_auto_costs_forecast(const gs_auto_costs *costs, double seconds[GS_NUM_OFFERS], size_t bytes);
void __wrap_gs_auto_costs_forecast(const gs_auto_costs *costs, double seconds[GS_NUM_OFFERS], size_t bytes) {
    static const double slow[GS_NUM_OFFERS] = {1, 0.55, 0.5, 0.3}, fast[GS_NUM_OFFERS] = {1, 1.1, 1.2, 5};
    (void)costs;
    for (int kind = 0; kind < GS_NUM_OFFERS; kind++)
        seconds[kind] = (is_slow ? slow : fast)[kind] / second_bytes * (double)(bytes + 1);
}

// Ranks of this machine play that they share no memory.
bool __wrap_gs_auto_costs_differ(const gs_comm *comm);
bool __wrap_gs_auto_costs_differ(const gs_comm *comm) {
    return gs_comm_world_size(comm) > 1;
}

#define BESIDE 7
#define BESIDE_NS (20 * GS_NS_PER_MS)

// A small sum that holds up what comes behind it.
gs_status __real_gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective);
gs_status __wrap_gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective);
gs_status __wrap_gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective) {
    if (collective->count == BESIDE && collective->bucket == -1) gs_sleep_ns(BESIDE_NS);
    return __real_gs_comm_post(comm, work, collective);
}

void __real_gs_auto_costs_forecast(const gs_auto_costs *costs, double seconds[GS_NUM_OFFERS], size_t bytes);

static double forecast_of(const gs_auto_costs *costs, int kind) {
    double seconds[GS_NUM_OFFERS];
    __real_gs_auto_costs_forecast(costs, seconds, 1000000);
    return seconds[kind];
}

static void forecasts_follow_what_links_and_kernels_really_take(void **state) {
    (void)state;
    gs_auto_costs costs = {.link.agreed = 1, .work.agreed = 1, .is_offered = {true, true, false, true}};
    for (int kind = 0; kind < GS_NUM_OFFERS; kind++) costs.kinds[kind] = (gs_auto_cost){0, 1e-8, 0};
    costs.kinds[GS_OFFER_INT8] = (gs_auto_cost){0, 2e-9, 3e-9};
    assert_true(fabs(forecast_of(&costs, GS_OFFER_ALLREDUCE) - 0.01) < 1e-9);
    assert_true(fabs(forecast_of(&costs, GS_OFFER_INT8) - 0.005) < 1e-9);
    assert_true(forecast_of(&costs, GS_OFFER_BF16) == 0);
    // Kernels take three times as long, the link as long as ever; a step that was held up, and one that does not count.
    for (int step = 0; step < GS_AUTO_RING; step++) {
        gs_auto_costs_note_link(&costs, GS_OFFER_INT8, 1000000, step == 2 ? 9 : 0.002);
        gs_auto_costs_note_work(&costs, GS_OFFER_INT8, 1000000, step == 5 ? 9 : 0.009);
        gs_auto_costs_close_step(&costs, step != 5);
    }
    assert_true(fabs(forecast_of(&costs, GS_OFFER_INT8) - 0.005) < 1e-9);
    gs_auto_drift_agree(&costs.link, gs_auto_drift_now(&costs.link));
    gs_auto_drift_agree(&costs.work, gs_auto_drift_now(&costs.work));
    assert_true(fabs(forecast_of(&costs, GS_OFFER_INT8) - 0.011) < 1e-9);
    assert_true(fabs(forecast_of(&costs, GS_OFFER_ALLREDUCE) - 0.01) < 1e-9);
}

// What goes beside a bucket that is compressed is part of what that takes, and no part of what plain sums take.
static gs_status body_beside(const gs_rank_env *env) {
    comm_rank self;
    gs_auto_costs with, without;
    gs_status status = comm_rank_open(&self, env, 4096, &(gs_comm_options){.backend = "net"});
    if (!status.code) status = gs_auto_costs_measure(&with, self.comm, 100000, BESIDE, soon());
    if (!status.code) status = gs_auto_costs_measure(&without, self.comm, 100000, 0, soon());
    for (int kind = 0; kind < GS_NUM_OFFERS && !status.code; kind++) {
        double seconds[GS_NUM_OFFERS], alone[GS_NUM_OFFERS], beside = kind == GS_OFFER_ALLREDUCE ? 0 : gs_seconds_of(BESIDE_NS);
        __real_gs_auto_costs_forecast(&with, seconds, 4096);
        __real_gs_auto_costs_forecast(&without, alone, 4096);
        if (!with.is_offered[kind] || seconds[kind] < beside || alone[kind] >= gs_seconds_of(BESIDE_NS) || (!beside && seconds[kind] >= gs_seconds_of(BESIDE_NS)))
            status = gs_error(GS_INTERNAL, "%s takes %g s, and %g with nothing beside it", gs_offer_words[kind], seconds[kind], alone[kind]);
    }
    comm_rank_close(&self);
    return status;
}

static void what_goes_beside_a_bucket_is_part_of_what_it_takes(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("beside", 2, "", soon()));
}

// Where nothing but plain sums is offered nothing is reserved, and a world of another size has what it needs: the arena of one
// serves all.
static void every_world_needs_the_same_of_the_arena(void **state) {
    static const gs_hook_number budget = {"error_budget", 0.1};
    const gs_comm_hook *hook = gs_comm_hook_find("auto");
    const gs_hook_choice chosen = {.hook = hook, .numbers = &budget, .num_numbers = 1};
    const gs_hook_param param = {.count = 1000000, .room = 1000000, .dtype = GS_FP32};
    gs_hook_needs first = {0}, needs;
    (void)state;
    for (int world_size = 64; world_size >= 1; world_size--) {
        const gs_hook_setup setup = {.choice = &chosen, .params = &param, .num_params = 1, .world_size = world_size};
        assert_ok(hook->measure(&needs, &setup));
        if (world_size == 64) first = needs;
        assert_int_equal(needs.bucket_bytes, first.bucket_bytes);
        assert_int_equal(needs.state_bytes, first.state_bytes);
    }
    assert_true(first.bucket_bytes <= 4096);
}

static double played_with, played_without;  // of a step; 0: as it is

double __wrap_gs_auto_trial_step_seconds(const gs_auto_trial *trial);
double __real_gs_auto_trial_step_seconds(const gs_auto_trial *trial);
double __wrap_gs_auto_trial_step_seconds(const gs_auto_trial *trial) {
    if (played_with <= 0) return __real_gs_auto_trial_step_seconds(trial);
    return trial->phase == GS_TRIAL_PLAIN || trial->phase == GS_TRIAL_IDLE ? played_without : played_with;
}

static void the_usual_step_counts(void **state) {
    (void)state;
    static const double seconds[] = {1, 1, 9, 2, 1, 0.5, 1};
    gs_auto_trial trial = {0};
    int64_t now_ns = GS_NS_PER_SEC;
    gs_auto_trial_note_step(&trial, now_ns, true);
    for (size_t i = 0; i < 3; i++) gs_auto_trial_note_step(&trial, now_ns += (int64_t)(seconds[i] * 1e9), true);
    assert_true(__real_gs_auto_trial_step_seconds(&trial) == 0);
    for (size_t i = 3; i < 7; i++) gs_auto_trial_note_step(&trial, now_ns += (int64_t)(seconds[i] * 1e9), true);
    assert_true(fabs(__real_gs_auto_trial_step_seconds(&trial) - 1) < 1e-9);
    // Neither a step that does not count nor the one behind it.
    int num_steps = trial.num_steps;
    gs_auto_trial_note_step(&trial, now_ns, false);
    gs_auto_trial_note_step(&trial, now_ns += 100 * GS_NS_PER_SEC, true);
    assert_int_equal(trial.num_steps, num_steps);
}

static void steps_are_tried_where_a_gain_is_not_certain(void **state) {
    (void)state;
    gs_auto_trial trial = {0};
    assert_true(gs_auto_trial_decide(&trial, 0, 0, 0.1, false, true));
    // Sums alone would take longer than these steps do.
    assert_true(gs_auto_trial_decide(&trial, 8, 0.1, 0.11, true, true));
    assert_int_equal(trial.phase, GS_TRIAL_GAINS);
    trial = (gs_auto_trial){0};
    assert_false(gs_auto_trial_decide(&trial, 8, 0.1, 0.09, true, true));
    assert_false(gs_auto_trial_decide(&trial, 12, 0.2, 0.09, false, true));  // a look amid it
    assert_int_equal(trial.look_at, 16);
    gs_auto_trial gains = trial;
    assert_true(gs_auto_trial_decide(&gains, 16, 0.104, 0.09, false, true));
    assert_false(gs_auto_trial_decide(&trial, 16, 0.102, 0.09, false, true));
    assert_int_equal(trial.phase, GS_TRIAL_IDLE);
    assert_false(gs_auto_trial_decide(&trial, 64, 0.12, 0.09, false, true));
    // Steps have become slow: it is looked at anew.
    assert_true(gs_auto_trial_decide(&trial, 128, 0.13, 0.2, false, true));
    assert_true(trial.with_seconds == 0);
}

// ---- ranks

static hook_trial trial;
static gs_hook_number numbers[2];
static gs_hook_choice choice;

static gs_status open_trial(const gs_rank_env *env, double error_budget) {
    numbers[0] = (gs_hook_number){"error_budget", error_budget};
    choice = (gs_hook_choice){.hook = gs_comm_hook_find("auto"), .numbers = numbers, .num_numbers = 1};
    return hook_trial_open(&trial, env, &choice, NULL);
}

static gs_status take_steps(int64_t first, int64_t end) {
    for (int64_t step = first; step < end; step++) GS_TRY(hook_trial_step(&trial, step));
    return gs_ok();
}

// Of buckets of fp32; those of fp64 go as they are, and one of a single element loses nothing as a code.
static gs_status expect_all(int kind) {
    const gs_bucket_plan *plan = gs_reducer_plan(trial.reducer);
    size_t num_seen = 0;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        gs_hook_offers offers;
        if (!gs_reducer_bucket_offers(&offers, trial.reducer, b)) return gs_error(GS_INTERNAL, "bucket %zu: no offers", b);
        int wanted = plan->buckets[b].dtype == GS_FP32 ? kind : GS_OFFER_ALLREDUCE;
        if (offers.errors[GS_OFFER_INT8] == 0 && offers.chosen == GS_OFFER_INT8) continue;
        num_seen += wanted == kind;
        if (offers.chosen != wanted)
            return gs_error(GS_INTERNAL, "bucket %zu: %s, not %s; errors %g %g %g", b, gs_offer_words[offers.chosen],
                            gs_offer_words[wanted], offers.errors[1], offers.errors[2], offers.errors[3]);
    }
    gs_hook_offers none;
    if (gs_reducer_bucket_offers(&none, trial.reducer, plan->num_buckets)) return gs_error(GS_INTERNAL, "a bucket too many");
    return num_seen ? gs_ok() : gs_error(GS_INTERNAL, "no bucket");
}

static gs_status expect_owed(bool owes) {
    double owed = hook_trial_owed(&trial);
    return (owed > 0) == owes ? gs_ok() : gs_error(GS_INTERNAL, "%g is owed", owed);
}

static gs_status replan(bool slow) {
    is_slow = slow;
    return gs_reducer_set_plan(trial.reducer, &trial.plans[1], soon());
}

// Codes on a slow link, owing what they lose; then plain sums, which pay it all.
static gs_status pay_back(const gs_rank_env *env) {
    gs_reduce_result result;
    is_slow = true;
    GS_TRY(open_trial(env, 0.1));
    GS_TRY(expect_all(GS_OFFER_ALLREDUCE));
    GS_TRY(take_steps(0, 3));
    GS_TRY(expect_all(GS_OFFER_INT8));
    GS_TRY(expect_owed(true));
    GS_TRY(hook_trial_check(&trial, TOLERANCE));
    // A step that does not count.
    GS_TRY(hook_trial_reduce(&trial, 3, &result));
    GS_TRY(gs_reducer_rollback(trial.reducer));
    GS_TRY(take_steps(3, 4));
    GS_TRY(hook_trial_check(&trial, TOLERANCE));
    GS_TRY(replan(false));
    GS_TRY(expect_owed(true));
    GS_TRY(take_steps(4, NUM_STEPS));
    GS_TRY(expect_all(GS_OFFER_ALLREDUCE));
    GS_TRY(expect_owed(false));
    return hook_trial_check(&trial, TOLERANCE);
}

static gs_status body_pay_back(const gs_rank_env *env) {
    gs_status status = pay_back(env);
    hook_trial_close(&trial);
    return status;
}

static void another_choice_pays_what_codes_owe(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("pay_back", 2, "", soon()));
    assert_ok(gs_ranks_run("pay_back", 3, "", soon()));
}

// The link gets slow while a plan stays: the next look finds it.
static gs_status body_slows(const gs_rank_env *env) {
    is_slow = false;
    gs_status status = open_trial(env, 0.1);
    if (!status.code) status = take_steps(0, 4);
    if (!status.code) status = expect_all(GS_OFFER_ALLREDUCE);
    is_slow = true;
    if (!status.code) status = take_steps(4, GS_AUTO_RING);
    if (!status.code) status = expect_all(GS_OFFER_ALLREDUCE);
    if (!status.code) status = take_steps(GS_AUTO_RING, GS_AUTO_RING + 1);
    if (!status.code) status = expect_all(GS_OFFER_INT8);
    if (!status.code) status = replan(true);
    if (!status.code) status = take_steps(GS_AUTO_RING + 1, NUM_STEPS);
    if (!status.code) status = expect_all(GS_OFFER_INT8);
    if (!status.code) status = hook_trial_check(&trial, TOLERANCE);
    hook_trial_close(&trial);
    return status;
}

static void a_link_that_slows_down_is_found(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("slows", 2, "", soon()));
}

// arg: "BUDGET KIND"
static gs_status body_budget(const gs_rank_env *env) {
    double error_budget;
    int kind;
    if (sscanf(env->arg, "%lf %d", &error_budget, &kind) != 2) return gs_error(GS_INTERNAL, "what?");
    is_slow = true;
    gs_status status = open_trial(env, error_budget);
    if (!status.code) status = take_steps(0, 2);
    if (!status.code) status = expect_all(kind);
    if (!status.code && kind == GS_OFFER_ALLREDUCE) status = hook_trial_check(&trial, TOLERANCE);
    hook_trial_close(&trial);
    return status;
}

static void the_budget_decides(void **state) {
    static const struct {
        const char *budget;
        int kind;
    } rows[] = {{"0", GS_OFFER_ALLREDUCE},
                {"1e-7", GS_OFFER_ALLREDUCE},
                {"0.0006", GS_OFFER_FP16},
                {"0.0035", GS_OFFER_BF16},
                {"0.1", GS_OFFER_INT8}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char arg[40];
        snprintf(arg, sizeof arg, "%s %d", rows[i].budget, rows[i].kind);
        gs_status status = gs_ranks_run("budget", 2, arg, soon());
        if (status.code) fail_msg("budget %s: %s", rows[i].budget, status.message);
    }
}

// arg: what a step takes with compression and without, and which way buckets go in the end.
static gs_status body_try(const gs_rank_env *env) {
    int kind;
    gs_hook_offers offers;
    if (sscanf(env->arg, "%lf %lf %d", &played_with, &played_without, &kind) != 3) return gs_error(GS_INTERNAL, "what?");
    is_slow = true;
    second_bytes = 1e9;
    gs_status status = open_trial(env, 0.1);
    if (!status.code) status = take_steps(0, GS_AUTO_RING);
    if (!status.code) status = expect_all(GS_OFFER_INT8);
    if (!status.code) status = take_steps(GS_AUTO_RING, GS_AUTO_RING + 1);
    if (!status.code) status = expect_all(GS_OFFER_ALLREDUCE);
    if (!status.code) status = take_steps(GS_AUTO_RING + 1, 2 * GS_AUTO_RING + 1);
    if (!status.code) status = expect_all(kind);
    if (!status.code) status = hook_trial_check(&trial, TOLERANCE);
    if (!status.code && !gs_reducer_bucket_offers(&offers, trial.reducer, 0)) status = gs_error(GS_INTERNAL, "no offers");
    if (!status.code && (offers.with_seconds != played_with || offers.without_seconds != played_without))
        status = gs_error(GS_INTERNAL, "steps take %g and %g", offers.with_seconds, offers.without_seconds);
    hook_trial_close(&trial);
    return status;
}

static void compression_that_does_not_show_in_steps_is_left(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("try", 2, "0.0219 0.0213 0", soon()));
    assert_ok(gs_ranks_run("try", 2, "0.0219 0.0305 3", soon()));
}

// From the second step on gradients are a million times larger: no fp16 holds them.
static double outgrow(const hook_trial *of, int64_t step, int shard, size_t param, size_t index) {
    double value = hook_trial_drawn(of, step, shard, param, index);
    return step > 0 ? 1e6 * value : value;
}

static gs_status body_outgrow(const gs_rank_env *env) {
    gs_reduce_result result = {0};
    is_slow = true;
    gs_status status = open_trial(env, 0.0006);
    trial.value = outgrow;
    if (!status.code) status = take_steps(0, 1);
    if (!status.code) status = expect_all(GS_OFFER_FP16);
    if (!status.code) status = hook_trial_reduce(&trial, 1, &result);
    if (!status.code && !result.nonfinite) status = gs_error(GS_INTERNAL, "fp16 held them");
    if (!status.code) status = gs_reducer_rollback(trial.reducer);
    if (!status.code) status = take_steps(2, 4);
    if (!status.code) status = expect_all(GS_OFFER_ALLREDUCE);
    hook_trial_close(&trial);
    return status;
}

static void gradients_that_outgrow_fp16_cost_one_step(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("outgrow", 2, "", soon()));
}

// A rank is gone: the others go on, with what they owe, and begin with plain sums.
static gs_status body_shrink(const gs_rank_env *env) {
    is_slow = true;
    gs_status status = open_trial(env, 0.1);
    if (!status.code) status = take_steps(0, 3);
    if (!status.code) status = expect_all(GS_OFFER_INT8);
    char here = 1, all[8];
    if (!status.code) status = gs_rank_exchange(env->exchange, "here", NULL, 0, &here, 1, all, soon());
    if (env->rank < env->world_size - 1) {
        if (!status.code) status = hook_trial_reset(&trial, env->world_size - 1);
        if (!status.code) status = expect_all(GS_OFFER_ALLREDUCE);
        if (!status.code) status = expect_owed(true);
        if (!status.code) status = take_steps(3, 6);
        if (!status.code) status = expect_all(GS_OFFER_INT8);
    }
    hook_trial_close(&trial);
    return status;
}

static void a_smaller_world_chooses_anew(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("shrink", 3, "", soon()));
}

// ---- what would be lost

static void errors_are_those_of_what_would_be_sent(void **state) {
    enum { COUNT = 5000 };
    static float data[COUNT];
    double errors[GS_NUM_OFFERS];
    gs_device *device;
    (void)state;
    assert_ok(gs_device_open(&device, "cpu", NULL));
    for (int i = 0; i < COUNT; i++) data[i] = sinf((float)i) * 1e-3f;
    gs_auto_errors_measure(errors, device, data, COUNT, 1, 2);
    assert_true(errors[GS_OFFER_ALLREDUCE] == 0);
    assert_true(errors[GS_OFFER_FP16] > 1e-4 && errors[GS_OFFER_FP16] < 1e-3);
    assert_true(errors[GS_OFFER_BF16] > 1e-3 && errors[GS_OFFER_BF16] < 4e-3);
    // Steps of a 255th of the range of a row, which is 2, of numbers whose root mean square is 0.7.
    assert_true(errors[GS_OFFER_INT8] > 2e-3 && errors[GS_OFFER_INT8] < 5e-3);
    // One outlier in a row of 512 hides the rest; large numbers have no place in fp16.
    data[700] = 1000;
    gs_auto_errors_measure(errors, device, data, COUNT, 100, 2);
    assert_true(errors[GS_OFFER_FP16] == 1);
    data[0] = NAN;
    gs_auto_errors_measure(errors, device, data, COUNT, 1, 2);
    assert_true(errors[GS_OFFER_BF16] == 1 && errors[GS_OFFER_INT8] == 1);
    memset(data, 0, sizeof data);
    gs_auto_errors_measure(errors, device, data, COUNT, 1, 2);
    assert_true(errors[GS_OFFER_BF16] == 0 && errors[GS_OFFER_INT8] == 0);
    gs_device_close(device);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"pay_back", body_pay_back},
                                          {"slows", body_slows},
                                          {"budget", body_budget},
                                          {"shrink", body_shrink},
                                          {"outgrow", body_outgrow},
                                          {"try", body_try},
                                          {"beside", body_beside},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forecasts_follow_what_links_and_kernels_really_take),
        cmocka_unit_test(what_goes_beside_a_bucket_is_part_of_what_it_takes),
        cmocka_unit_test(every_world_needs_the_same_of_the_arena),
        cmocka_unit_test(errors_are_those_of_what_would_be_sent),
        cmocka_unit_test(the_budget_decides),
        cmocka_unit_test(another_choice_pays_what_codes_owe),
        cmocka_unit_test(a_link_that_slows_down_is_found),
        cmocka_unit_test(a_smaller_world_chooses_anew),
        cmocka_unit_test(the_usual_step_counts),
        cmocka_unit_test(steps_are_tried_where_a_gain_is_not_certain),
        cmocka_unit_test(compression_that_does_not_show_in_steps_is_left),
        cmocka_unit_test(gradients_that_outgrow_fp16_cost_one_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
