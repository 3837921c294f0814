// Every method has a handler, and asks of its caller what the engine asks of who says the same.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "coordinator/engine/admission.h"
#include "coordinator/serve/decode_trainer.h"
#include "coordinator/serve/methods.h"

static gs_status answer;

void __wrap_gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body);
void __wrap_gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body) {
    (void)call;
    answer = status;
    gs_json_release(body);
}

static void no_more_removals_are_promised_than_may_be_owed(void **state) {
    (void)state;
    gs_steps steps = {.performer.purges = gs_purges_create()};
    gs_observer observer = {0};
    gs_service service = {.steps = &steps, .observer = &observer};
    gs_json *request = gs_json_new_object();
    gs_json_set_bool(request, "purge", true);
    for (uint64_t job = 1; job < GS_MAX_OWED_PURGES; job++) gs_purges_owe(steps.performer.purges, job, 0);
    assert_false(gs_purges_are_full(steps.performer.purges));
    gs_purges_owe(steps.performer.purges, GS_MAX_OWED_PURGES, 0);
    gs_coordinator_methods[GS_DELETE_JOB](&service, NULL, &(gs_rpc_peer){0}, request);
    assert_int_equal(answer.code, GS_RESOURCE_EXHAUSTED);
    assert_int_equal(observer.limits_reached[GS_LIMIT_REMOVALS], 1);
    gs_json_release(request);
    gs_purges_destroy(steps.performer.purges);
}

static void every_method_has_a_handler(void **state) {
    (void)state;
    for (int i = GS_METHOD_NONE + 1; i < GS_NUM_METHODS; i++) {
        assert_non_null(gs_method_info_of((gs_method)i));
        // One of them: a body is JSON, or it is a record.
        assert_int_equal(!gs_coordinator_methods[i], gs_coordinator_record_methods[i] != NULL);
    }
}

static void a_method_and_its_event_want_the_same_role(void **state) {
    (void)state;
    static const struct {
        gs_method method;
        gs_engine_event_kind event;
    } pairs[] = {
        {GS_AGENT_HELLO, GS_ON_AGENT_HELLO}, {GS_AGENT_HEARTBEAT, GS_ON_AGENT_HEARTBEAT},
        {GS_EXITED, GS_ON_EXITED},           {GS_HELLO, GS_ON_HELLO},
        {GS_READY, GS_ON_PARAMS},            {GS_READY, GS_ON_READY},
        {GS_EXCHANGE, GS_ON_EXCHANGE},       {GS_COMM_UP, GS_ON_COMM_UP},
        {GS_HEARTBEAT, GS_ON_HEARTBEAT},     {GS_STEP, GS_ON_STEP},
        {GS_STEP_RECORD, GS_ON_STEP},
        {GS_FAULT, GS_ON_FAULT},             {GS_SETTLE, GS_ON_SETTLE},
        {GS_CHECKPOINTED, GS_ON_CHECKPOINTED}, {GS_BYE, GS_ON_BYE},
        {GS_READY_ORDER, GS_ON_READY_ORDER}, {GS_CREATE_JOB, GS_ON_CREATE_JOB},
        {GS_STOP_JOB, GS_ON_STOP_JOB},       {GS_DELETE_JOB, GS_ON_DELETE_JOB},
        {GS_REPLAN_JOB, GS_ON_REPLAN_JOB},   {GS_RELEASE_JOB, GS_ON_RELEASE_JOB},
        {GS_ADOPT_JOB, GS_ON_ADOPT_JOB},     {GS_DESCRIBED, GS_ON_DESCRIBED},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        assert_int_equal(gs_method_info_of(pairs[i].method)->role, gs_event_rule_of(pairs[i].event)->role);
    }
}

// What no role is asked for can change nothing and shows nobody's work.
static void only_health_is_for_anybody(void **state) {
    (void)state;
    for (int i = GS_METHOD_NONE + 1; i < GS_NUM_METHODS; i++) {
        assert_int_equal(gs_method_info_of((gs_method)i)->role == GS_ROLE_ANYBODY, i == GS_GET_HEALTH);
    }
}

// Of a hostile worker: what deadlines are made of can be counted in nanoseconds.
static void a_step_lasts_no_longer_than_deadlines_can_count(void **state) {
    (void)state;
    const double told[] = {0.25, 1e6, 1e9, 1e300, INFINITY, NAN, -1}, taken[] = {0.25, 1e6, 1e6, 1e6, 0, 0, 0};
    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
        gs_step_report report = {.step = 7};
        gs_step_report_set(&report, GS_REPORT_STEP_SECONDS, told[i]);
        gs_engine_event event = {0};
        gs_decode_step(&event, &report);
        assert_true(event.step.step_seconds == taken[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_has_a_handler),
        cmocka_unit_test(no_more_removals_are_promised_than_may_be_owed),
        cmocka_unit_test(a_method_and_its_event_want_the_same_role),
        cmocka_unit_test(only_health_is_for_anybody),
        cmocka_unit_test(a_step_lasts_no_longer_than_deadlines_can_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
