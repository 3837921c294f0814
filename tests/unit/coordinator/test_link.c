// Plans that follow what rank 0 tells of the link between hosts.
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/engine/runs/plans.h"
#include "tests/unit/coordinator/engine_play.h"

// Gradients come a second apart and take some to travel: a bucket for each where starts are cheap, else one for all.
static gs_engine_event told(gs_play *play, double start_seconds, double byte_seconds) {
    gs_engine_event event = gs_play_message(play, 0, GS_ON_READY_ORDER);
    gs_order_report *report = &event.ready_order;
    gs_link_cost cost = {start_seconds, byte_seconds};
    report->link.model = (gs_link_model){.cost = cost, .low = cost, .high = cost, .wire_ratio = 1, .step_seconds = 10, .num_samples = 20};
    report->link.num_params = report->order.count;
    report->link.ready_seconds = calloc(report->order.count, sizeof(double));
    for (size_t i = 0; i < report->order.count; i++) report->link.ready_seconds[report->order.params[i]] = (double)i;
    return event;
}

static void tell(gs_play *play, double start_seconds, double byte_seconds) {
    gs_engine_event event = told(play, start_seconds, byte_seconds);
    gs_play_hear(play, &event);
}

static void plan_itself(gs_play *play) {
    gs_play_run(play)->job->spec.reducer.plan = GS_PLAN_AUTO;
    play->watched_reason = "LinkMeasured";
}

static void take_over(gs_play *play) {
    gs_run *run = gs_play_run(play);
    assert_true(run->next.digest != 0);
    gs_engine_event beat = gs_play_message(play, 0, GS_ON_HEARTBEAT);
    beat.heartbeat.plan = (gs_plan_report){.told = true, .plan = run->next.digest, .plan_step = run->plan_step + 100};
    gs_play_hear(play, &beat);
    assert_int_equal(run->next.digest, 0);
}

#define CHEAP 0.001, 0.05
#define DEAR 40, 0.05

static void a_link_that_is_told_makes_the_plan(void **state) {
    gs_play *play = *state;
    plan_itself(play);
    tell(play, CHEAP);
    const gs_run *run = gs_play_run(play);
    assert_true(run->next.digest != 0);
    assert_string_equal(run->next.facts.reason, "link");
    assert_int_equal(play->num_watched, 1);
    take_over(play);
    assert_string_equal(run->job->plan.reason, "link");
    assert_true(run->plan.num_buckets > 1);
}

static void the_same_told_again_changes_nothing(void **state) {
    gs_play *play = *state;
    plan_itself(play);
    tell(play, CHEAP);
    take_over(play);
    int revision = gs_play_run(play)->job->plan.revision;
    for (int i = 0; i < 10; i++) tell(play, 0.0011, 0.051);
    assert_int_equal(gs_play_run(play)->next.digest, 0);
    assert_int_equal(gs_play_run(play)->job->plan.revision, revision);
    assert_int_equal(play->num_watched, 1);
}

// Found better once is an accident, twice in a row it is not.
static void what_is_worth_a_change_changes_the_plan(void **state) {
    gs_play *play = *state;
    plan_itself(play);
    tell(play, CHEAP);
    take_over(play);
    size_t num_buckets = gs_play_run(play)->plan.num_buckets;
    tell(play, DEAR);
    tell(play, CHEAP);
    tell(play, DEAR);
    assert_int_equal(gs_play_run(play)->next.digest, 0);
    tell(play, DEAR);
    take_over(play);
    assert_true(gs_play_run(play)->plan.num_buckets < num_buckets);
    assert_int_equal(play->num_watched, 2);
}

static void a_job_with_caps_keeps_them(void **state) {
    gs_play *play = *state;
    play->watched_reason = "LinkMeasured";
    tell(play, CHEAP);
    const gs_run *run = gs_play_run(play);
    assert_string_equal(run->next.facts.reason, "ready_order");
    assert_int_equal(play->num_watched, 0);
    assert_int_equal(run->job->observed_link.model.num_samples, 20);
}

static void without_rebuilds_only_an_operator_changes_the_plan(void **state) {
    gs_play *play = *state;
    plan_itself(play);
    gs_run *run = gs_play_run(play);
    run->job->spec.reducer.rebuild_after_steps = 0;
    tell(play, CHEAP);
    assert_int_equal(run->next.digest, 0);
    gs_engine_event ask = {.kind = GS_ON_REPLAN_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    ask.replan.job = play->job_text;
    gs_play_hear(play, &ask);
    assert_true(run->next.digest != 0);
    assert_string_equal(run->next.facts.reason, "link");
}

// Whoever tells of other parameters than there are is not believed.
static void times_of_other_parameters_plan_nothing(void **state) {
    gs_play *play = *state;
    plan_itself(play);
    gs_engine_event event = told(play, CHEAP);
    event.ready_order.link.num_params--;
    gs_play_hear(play, &event);
    assert_int_equal(play->num_watched, 0);
}

int main(void) {
#define TRAINING(test) cmocka_unit_test_setup_teardown(test, gs_play_set_up_training, gs_play_tear_down)
    const struct CMUnitTest tests[] = {
        TRAINING(a_link_that_is_told_makes_the_plan),
        TRAINING(the_same_told_again_changes_nothing),
        TRAINING(what_is_worth_a_change_changes_the_plan),
        TRAINING(a_job_with_caps_keeps_them),
        TRAINING(without_rebuilds_only_an_operator_changes_the_plan),
        TRAINING(times_of_other_parameters_plan_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
