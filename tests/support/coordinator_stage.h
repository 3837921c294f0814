// A real coordinator process with a client beside it and fake workers before it: where tests of the
// coordinator play. Functions fail the test themselves, unless they return a status.
#ifndef TESTS_SUPPORT_COORDINATOR_STAGE_H
#define TESTS_SUPPORT_COORDINATOR_STAGE_H

#include "rpc/json/json.h"
#include "rpc/schema/messages.h"
#include "tests/support/coordinator_process.h"
#include "tests/support/fake_worker.h"

#define GS_STAGE_MAX_WORKERS 4

typedef struct gs_stage {
    gs_coordinator_process process;
    gs_rpc_context *context;
    gs_rpc_client *client;
    gs_fake_worker *workers[GS_STAGE_MAX_WORKERS];
    gs_fake_faults faults;  // of every worker
    gs_fake_plans plans;
    char job[32];           // for tests of one job
} gs_stage;

// cmocka's fixtures: *state is a gs_stage, all zero but for the process and the client.
int gs_stage_set_up(void **state);
int gs_stage_tear_down(void **state);

// Worker number `index`, "w1" for 0, unless `options` name it. Control, faults and plans are the stage's.
void gs_stage_start_worker(gs_stage *stage, int index, const gs_fake_worker_options *options);
// `text`: the request.
gs_status gs_stage_ask(gs_stage *stage, gs_json **reply, gs_method method, const char *text);
gs_json *gs_stage_get(gs_stage *stage, gs_method method, const char *job);
// Creates the job of this specification (JSON) and keeps its id as the stage's job.
void gs_stage_submit(gs_stage *stage, const char *spec);
// Waits until the job shows `state`; fails when it ends otherwise. Returns the job.
gs_json *gs_stage_wait_for_state(gs_stage *stage, const char *job, const char *state);
void gs_stage_wait_for_step(gs_stage *stage, const char *job, int64_t step);

#endif
