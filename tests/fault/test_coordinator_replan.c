// Plans that change while a job trains, as the coordinator sees it: through the real process, with
// fake workers whose orders and changes the test decides.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/coordinator_stage.h"

typedef gs_stage stage;

static gs_status ask_of_job(stage *it, gs_json **reply, gs_method method) {
    char text[100];
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", it->job);
    return gs_stage_ask(it, reply, method, text);
}

// Two ranks; `reducer` are members of the specification. The two parameters of a fake trainer make
// two buckets.
static void train(stage *it, const char *reducer) {
    gs_fake_worker_options options = {.slots = 2, .step_ms = 5};
    for (int i = 0; i < 2; i++) gs_stage_start_worker(it, i, &options);
    char text[600];
    snprintf(text, sizeof text,
             "{\"name\":\"plans\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":2,\"max\":2,"
             "\"join_window_seconds\":0},\"steps\":{\"target\":1000000},"
             "\"restart\":{\"backoff_initial_seconds\":0.01},"
             "\"reducer\":{\"bucket_cap_bytes\":400%s}}",
             reducer);
    gs_stage_submit(it, text);
}

static gs_json *get_plan(stage *it) {
    gs_json *plan = NULL;
    gs_status status = ask_of_job(it, &plan, GS_GET_JOB_PLAN);
    if (!status.code) return plan;
    gs_json_release(plan);
    return NULL;
}

static const char *state_of_plan(const gs_json *plan) {
    return gs_json_get(plan, "pending") ? "pending" : "settled";
}

// Waits for revision and for whether another one is pending.
static gs_json *wait_for_plan(stage *it, int64_t revision, const char *wanted) {
    gs_deadline deadline = gs_deadline_in_seconds(60);
    for (;;) {
        gs_json *plan = get_plan(it);
        if (gs_json_int_or(plan, "revision", 0) == revision && !strcmp(state_of_plan(plan), wanted))
            return plan;
        if (gs_deadline_passed(deadline))
            fail_msg("wanted revision %lld %s, there is %lld %s", (long long)revision, wanted,
                     (long long)gs_json_int_or(plan, "revision", 0), state_of_plan(plan));
        gs_json_release(plan);
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
}

static void wait_until_missing(stage *it, size_t count) {
    gs_deadline deadline = gs_deadline_in_seconds(60);
    for (;;) {
        gs_json *plan = get_plan(it);
        const gs_json *pending = gs_json_get(plan, "pending");
        bool reached = pending && gs_json_count(gs_json_get(pending, "ranks_missing")) == count;
        gs_json_release(plan);
        if (reached) return;
        if (gs_deadline_passed(deadline)) fail_msg("%zu ranks without the plan: never", count);
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
}

static void wait_until_training(stage *it) {
    gs_deadline deadline = gs_deadline_in_seconds(240);
    for (bool trains = false; !trains;) {
        gs_json *job = NULL;
        assert_ok(ask_of_job(it, &job, GS_GET_JOB));
        trains = !strcmp(gs_json_string_or(job, "state", ""), "running");
        gs_json_release(job);
        if (gs_deadline_passed(deadline)) fail_msg("the job does not train");
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
}

static bool has_event(stage *it, const char *reason) {
    gs_json *events = NULL;
    assert_ok(ask_of_job(it, &events, GS_LIST_EVENTS));
    const gs_json *items = gs_json_get(events, "items");
    bool found = false;
    for (size_t i = 0; i < gs_json_count(items); i++)
        found |= !strcmp(gs_json_string_or(gs_json_at(items, i), "reason", ""), reason);
    gs_json_release(events);
    return found;
}

// Value of the sample line that begins so; −1: there is none.
static double scrape(stage *it, const char *line) {
    gs_json *request = gs_json_new_object(), *item = NULL;
    gs_rpc_stream *stream = NULL;
    double value = -1;
    assert_ok(gs_rpc_stream_open(&stream, it->client, GS_GET_METRICS, request));
    gs_json_release(request);
    for (;;) {
        assert_ok(gs_rpc_stream_next(stream, &item, gs_deadline_in_seconds(60)));
        if (!item) break;
        const gs_json *families = gs_json_get(item, "families");
        for (size_t i = 0; i < gs_json_count(families); i++) {
            const char *text = gs_json_string_or(gs_json_at(families, i), "text", "");
            const char *at = strstr(text, line);
            if (at) value = strtod(at + strlen(line), NULL);
        }
        gs_json_release(item);
    }
    gs_rpc_stream_close(stream);
    return value;
}

static void a_settled_order_becomes_a_plan_when_all_ranks_have_it(void **state) {
    stage *it = *state;
    char line[120];
    train(it, "");
    gs_json_release(wait_for_plan(it, 1, "settled"));
    atomic_store(&it->plans.tells_order, 2);  // the first plan is backwards: bucket list reversed
    gs_json *plan = wait_for_plan(it, 1, "pending");
    const gs_json *pending = gs_json_get(plan, "pending");
    assert_int_equal(gs_json_int_or(pending, "revision", 0), 2);
    assert_string_equal(gs_json_string_or(pending, "reason", ""), "ready_order");
    assert_int_equal(gs_json_int_or(pending, "num_buckets", 0), 2);
    gs_json_release(plan);
    wait_until_missing(it, 0);
    atomic_store(&it->plans.switches, true);
    plan = wait_for_plan(it, 2, "settled");
    assert_string_equal(gs_json_string_or(plan, "reason", ""), "ready_order");
    assert_true(gs_json_int_or(plan, "since_step", 0) > 0);
    const gs_json *history = gs_json_get(plan, "history"),
                  *bucket = gs_json_at(gs_json_get(plan, "buckets"), 0);
    assert_int_equal(gs_json_count(history), 2);
    assert_string_equal(gs_json_string_or(gs_json_at(history, 0), "reason", ""), "size_based");
    assert_string_equal(gs_json_string_or(gs_json_at(history, 1), "hash", "no"),
                        gs_json_string_or(plan, "hash", ""));
    assert_string_equal(gs_json_string_or(bucket, "ends", ""), "limit");
    assert_string_equal(gs_json_string_or(bucket, "why", ""), "4000 bytes reach the limit of 400");
    assert_int_equal(gs_json_int_or(gs_json_get(bucket, "expected_ready"), "last", -1), 0);
    assert_int_equal(gs_json_int_or(bucket, "device", -1), 0);
    gs_json_release(plan);
    assert_true(has_event(it, "PlanRebuilt"));
    snprintf(line, sizeof line,
             "gradsync_plan_rebuilds_total{job_id=\"%s\",reason=\"ready_order\"} ", it->job);
    for (gs_deadline deadline = gs_deadline_in_seconds(60); scrape(it, line) != 1; gs_sleep_ns(5 * GS_NS_PER_MS))
        assert_false(gs_deadline_passed(deadline));  // the page may be older than an answer
}

static void an_order_that_leads_to_the_same_plan_changes_nothing(void **state) {
    stage *it = *state;
    train(it, "");
    atomic_store(&it->plans.tells_order, 1);
    wait_until_training(it);
    gs_json *reply = NULL;
    gs_deadline deadline = gs_deadline_in_seconds(60);
    // Refused until the order has been told.
    while (ask_of_job(it, &reply, GS_REPLAN_JOB).code && !gs_deadline_passed(deadline)) {
        gs_json_release(reply);
        reply = NULL;
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
    assert_int_equal(gs_json_int_or(reply, "revision", 0), 1);
    assert_false(gs_json_bool_or(reply, "pending", true));
    gs_json_release(reply);
    gs_json_release(wait_for_plan(it, 1, "settled"));
    assert_false(has_event(it, "PlanRebuilt"));
}

static void an_operator_may_ask_for_what_is_not_done_by_itself(void **state) {
    stage *it = *state;
    gs_json *reply = NULL;
    train(it, ",\"rebuild_after_steps\":0");
    wait_until_training(it);
    gs_status status = ask_of_job(it, &reply, GS_REPLAN_JOB);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "no order of gradients has been observed yet"));
    assert_string_equal(gs_json_string_or(reply, "code", ""), "wrong_state");
    gs_json_release(reply);

    atomic_store(&it->plans.tells_order, 2);
    gs_deadline deadline = gs_deadline_in_seconds(60);
    reply = NULL;
    while (ask_of_job(it, &reply, GS_REPLAN_JOB).code && !gs_deadline_passed(deadline)) {
        gs_json_release(reply);
        reply = NULL;
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
    for (int again = 0; again < 2; again++) {
        assert_int_equal(gs_json_int_or(reply, "revision", 0), 2);
        assert_true(gs_json_bool_or(reply, "pending", false));
        assert_string_equal(gs_json_string_or(reply, "reason", ""), "operator");
        gs_json_release(reply);
        assert_ok(ask_of_job(it, &reply, GS_REPLAN_JOB));
    }
    gs_json_release(reply);
    atomic_store(&it->plans.switches, true);
    gs_json *plan = wait_for_plan(it, 2, "settled");
    assert_string_equal(gs_json_string_or(plan, "reason", ""), "operator");
    gs_json_release(plan);
    assert_ok(ask_of_job(it, &reply, GS_REPLAN_JOB));
    assert_false(gs_json_bool_or(reply, "pending", true));
    gs_json_release(reply);
}

static void a_job_that_does_not_train_has_no_plan_to_change(void **state) {
    stage *it = *state;
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(
        it, &reply, GS_CREATE_JOB,
        "{\"spec\":{\"name\":\"waits\",\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5}}}"));
    snprintf(it->job, sizeof it->job, "%s", gs_json_string_or(reply, "id", ""));
    gs_json_release(reply);
    gs_status status = ask_of_job(it, &reply, GS_REPLAN_JOB);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_string_equal(gs_json_string_or(reply, "code", ""), "wrong_state");
    gs_json_release(reply);
}

static void a_plan_that_was_lost_on_its_way_is_sent_again(void **state) {
    stage *it = *state;
    atomic_store(&it->faults.slot, 0);
    atomic_store(&it->faults.loses_replan, true);
    train(it, "");
    gs_json_release(wait_for_plan(it, 1, "settled"));
    atomic_store(&it->plans.tells_order, 2);
    wait_until_missing(it, 0);
    assert_false(atomic_load(&it->faults.loses_replan));
    atomic_store(&it->plans.switches, true);
    gs_json_release(wait_for_plan(it, 2, "settled"));
}

static void an_order_that_turns_back_calls_the_plan_back(void **state) {
    stage *it = *state;
    train(it, "");
    gs_json_release(wait_for_plan(it, 1, "settled"));
    atomic_store(&it->plans.tells_order, 2);
    gs_json_release(wait_for_plan(it, 1, "pending"));
    atomic_store(&it->plans.tells_order, 1);
    gs_json_release(wait_for_plan(it, 1, "settled"));
    assert_false(has_event(it, "PlanRebuilt"));
}

// Two changes in quick succession, back and forth: what a heartbeat that lags says of the first plan
// is not taken for the second change.
static void a_heartbeat_from_before_a_change_is_not_taken_for_the_next(void **state) {
    stage *it = *state;
    atomic_store(&it->plans.switches, true);
    atomic_store(&it->plans.lags, true);
    train(it, "");
    gs_json_release(wait_for_plan(it, 1, "settled"));
    atomic_store(&it->plans.tells_order, 2);
    gs_json_release(wait_for_plan(it, 2, "settled"));
    atomic_store(&it->plans.switches, false);
    atomic_store(&it->plans.tells_order, 1);
    wait_until_missing(it, 0);
    gs_json_release(wait_for_plan(it, 2, "pending"));
    atomic_store(&it->plans.switches, true);
    gs_json_release(wait_for_plan(it, 3, "settled"));
}

// Neither the list of parameters nor the plan may outgrow a message.
static void twenty_thousand_buckets_train_and_change_their_order(void **state) {
    stage *it = *state;
    atomic_store(&it->plans.num_params, 20000);
    atomic_store(&it->plans.switches, true);
    train(it, "");
    wait_until_training(it);
    atomic_store(&it->plans.tells_order, 2);
    gs_deadline deadline = gs_deadline_in_seconds(240);
    while (!has_event(it, "PlanRebuilt")) {
        if (gs_deadline_passed(deadline)) fail_msg("the plan was not changed");
        gs_sleep_ns(20 * GS_NS_PER_MS);
    }
}

// The next generation begins with the plan that waited: nothing is left to be agreed on.
static void a_rank_killed_while_a_plan_waits_costs_no_plan(void **state) {
    stage *it = *state;
    train(it, "");
    gs_json_release(wait_for_plan(it, 1, "settled"));
    atomic_store(&it->plans.tells_order, 2);
    gs_json_release(wait_for_plan(it, 1, "pending"));
    atomic_store(&it->faults.slot, 0);
    atomic_store(&it->faults.crash_at_step, 1);
    gs_json *plan = wait_for_plan(it, 2, "settled");
    assert_string_equal(gs_json_string_or(plan, "reason", ""), "ready_order");
    gs_json_release(plan);
    wait_until_training(it);
    gs_json_release(wait_for_plan(it, 2, "settled"));
}

// Also what the original writes into its logging record only: the reason stands in the job and its
// events.
static void a_plan_that_cannot_be_made_fails_the_job_with_its_reason(void **state) {
    stage *it = *state;
    atomic_store(&it->plans.has_two_types, true);
    train(it, ",\"max_buckets\":1");
    gs_deadline deadline = gs_deadline_in_seconds(60);
    for (bool failed = false; !failed;) {
        gs_json *job = NULL;
        assert_ok(ask_of_job(it, &job, GS_GET_JOB));
        failed = !strcmp(gs_json_string_or(job, "state", ""), "failed");
        if (failed) {
            assert_string_equal(gs_json_string_or(job, "reason", ""), "PlanRefused");
            assert_non_null(strstr(gs_json_string_or(job, "message", ""),
                                   "max_buckets: 1; types, devices and sparse parameters need 2"));
        }
        gs_json_release(job);
        if (gs_deadline_passed(deadline)) fail_msg("the job did not fail");
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
    assert_true(has_event(it, "PlanRefused"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_settled_order_becomes_a_plan_when_all_ranks_have_it,
                                        gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(an_order_that_leads_to_the_same_plan_changes_nothing,
                                        gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(an_operator_may_ask_for_what_is_not_done_by_itself, gs_stage_set_up,
                                        gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_job_that_does_not_train_has_no_plan_to_change, gs_stage_set_up,
                                        gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_plan_that_was_lost_on_its_way_is_sent_again, gs_stage_set_up,
                                        gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(an_order_that_turns_back_calls_the_plan_back, gs_stage_set_up,
                                        gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_heartbeat_from_before_a_change_is_not_taken_for_the_next,
                                        gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(twenty_thousand_buckets_train_and_change_their_order,
                                        gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_rank_killed_while_a_plan_waits_costs_no_plan, gs_stage_set_up,
                                        gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_plan_that_cannot_be_made_fails_the_job_with_its_reason,
                                        gs_stage_set_up, gs_stage_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
