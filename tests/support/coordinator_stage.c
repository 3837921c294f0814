#include "tests/support/coordinator_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/support/asserts.h"

#define WAIT_SECONDS 120  // far beyond what anything takes, so that a loaded machine under a sanitizer makes it

int gs_stage_set_up(void **state) {
    gs_stage *stage = calloc(1, sizeof *stage);
    *state = stage;
    assert_ok(gs_coordinator_process_start(&stage->process));
    assert_ok(gs_rpc_context_create(&stage->context));
    gs_rpc_client_options options = {.endpoint = stage->process.control};
    assert_ok(gs_rpc_client_open(&stage->client, stage->context, &options));
    return 0;
}

int gs_stage_tear_down(void **state) {
    gs_stage *stage = *state;
    for (int i = 0; i < GS_STAGE_MAX_WORKERS; i++) gs_fake_worker_stop(stage->workers[i]);
    gs_rpc_client_close(stage->client);
    gs_rpc_context_destroy(stage->context);
    gs_coordinator_process_release(&stage->process);
    free(stage);
    return 0;
}

void gs_stage_start_worker(gs_stage *stage, int index, const gs_fake_worker_options *options) {
    static const char *const names[GS_STAGE_MAX_WORKERS] = {"w1", "w2", "w3", "w4"};
    gs_fake_worker_options own = *options;
    if (!own.name) own.name = names[index];
    own.control = stage->process.control;
    own.faults = &stage->faults;
    own.plans = &stage->plans;
    assert_ok(gs_fake_worker_start(&stage->workers[index], stage->context, &own));
}

gs_status gs_stage_ask(gs_stage *stage, gs_json **reply, gs_method method, const char *text) {
    gs_json *request = NULL;
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    gs_status status =
        gs_rpc_call(stage->client, method, request, reply, gs_deadline_in_seconds(60));
    gs_json_release(request);
    return status;
}

gs_json *gs_stage_get(gs_stage *stage, gs_method method, const char *job) {
    char text[100];
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", job);
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(stage, &reply, method, text));
    return reply;
}

void gs_stage_submit(gs_stage *stage, const char *spec) {
    char text[1000];
    int length = snprintf(text, sizeof text, "{\"spec\":%s,\"dry_run\":false}", spec);
    assert_true(length < (int)sizeof text);
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(stage, &reply, GS_CREATE_JOB, text));
    snprintf(stage->job, sizeof stage->job, "%s", gs_json_string_or(reply, "id", ""));
    gs_json_release(reply);
}

static bool has_ended(const char *state) {
    return !strcmp(state, "failed") || !strcmp(state, "succeeded") || !strcmp(state, "cancelled");
}

gs_json *gs_stage_wait_for_state(gs_stage *stage, const char *job, const char *wanted) {
    gs_deadline deadline = gs_deadline_in_seconds(WAIT_SECONDS);
    for (;;) {
        gs_json *view = gs_stage_get(stage, GS_GET_JOB, job);
        const char *state = gs_json_string_or(view, "state", "");
        if (!strcmp(state, wanted)) return view;
        if (has_ended(state) || gs_deadline_passed(deadline))
            fail_msg("wanted %s, the job is %s: %s", wanted, state,
                     gs_json_string_or(view, "message", ""));
        gs_json_release(view);
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
}

void gs_stage_wait_for_step(gs_stage *stage, const char *job, int64_t step) {
    gs_deadline deadline = gs_deadline_in_seconds(WAIT_SECONDS);
    int64_t seen = -1;
    while (seen < step && !gs_deadline_passed(deadline)) {
        gs_json *view = gs_stage_get(stage, GS_GET_JOB, job);
        seen = gs_json_int_or(gs_json_get(view, "progress"), "step", 0);
        gs_json_release(view);
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
    assert_true(seen >= step);
}
