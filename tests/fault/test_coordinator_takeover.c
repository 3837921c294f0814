// What a coordinator makes of an operator's word that unknown trainers are its own from now on.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/support/coordinator_stage.h"
#include "tests/support/soon.h"

#define TRAINER 88  // its incarnation
#define LOST "j-0000000000ab"
#define SPEC(name)                                                                                                   \
    "{\"name\":\"" name "\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":1,\"max\":2,\"join_window_seconds\":0}," \
    "\"steps\":{\"target\":100}}"

typedef struct agent {
    gs_rpc_client *client;
    gs_rpc_stream *stream;
} agent;

static gs_json *parse(const char *text) {
    gs_json *json = NULL;
    assert_ok(gs_json_parse(&json, text, strlen(text)));
    return json;
}

// Of one slot, in which rank 0 of generation 5 of the lost job runs, of another cluster.
static agent connect_agent(gs_stage *it, int incarnation) {
    agent out = {0};
    char text[500];
    gs_rpc_client_options options = {.endpoint = it->process.control, .incarnation = (uint64_t)incarnation};
    assert_ok(gs_rpc_client_open(&out.client, it->context, &options));
    snprintf(text, sizeof text,
             "{\"worker\":\"w\",\"host\":\"h\",\"boot_id\":\"b\",\"pid\":1,\"incarnation\":\"%d\",\"slots\":1,"
             "\"running\":[{\"slot\":0,\"job\":\"" LOST "\",\"cluster\":\"c-elsewhere\",\"rank\":0,\"generation\":5,"
             "\"world_size\":2,\"applied_step\":40,\"incarnation\":\"%d\",\"pid\":4242}]}",
             incarnation, TRAINER);
    gs_json *hello = parse(text);
    assert_ok(gs_rpc_stream_open(&out.stream, out.client, GS_AGENT_HELLO, hello));
    gs_json_release(hello);
    return out;
}

static void disconnect(agent *at) {
    gs_rpc_stream_close(at->stream);
    gs_rpc_client_close(at->client);
}

static void expect_item(agent *at, const char *type) {
    gs_json *item = NULL;
    do {  // asked again while it thinks
        gs_json_release(item);
        item = NULL;
        assert_ok(gs_rpc_stream_next(at->stream, &item, gs_deadline_in_seconds(60)));
        assert_non_null(item);
    } while (!strcmp(gs_json_string_or(item, "type", ""), "describe_rank") && strcmp(type, "describe_rank") != 0);
    assert_string_equal(gs_json_string_or(item, "type", ""), type);
    gs_json_release(item);
}

static void describe(agent *at, int world_size, const char *spec, const char *more) {
    char text[1500];
    snprintf(text, sizeof text,
             "{\"slot\":0,\"job\":\"" LOST "\",\"cluster\":\"c-elsewhere\",\"rank\":0,\"generation\":5,\"world_size\":%d,"
             "\"applied_step\":41,\"incarnation\":\"%d\",\"pid\":4242,\"launch_token\":\"7\",\"device\":\"cpu\",\"spec\":%s%s}",
             world_size, TRAINER, spec, more);
    gs_json *described = parse(text);
    gs_rpc_send(at->client, GS_DESCRIBED, described);
    gs_json_release(described);
}

// An operator who waits.
typedef struct adoption {
    gs_stage *it;
    pthread_t thread;
    gs_status status;
    gs_json *reply;
} adoption;

static void *ask(void *ctx) {
    adoption *asked = ctx;
    gs_json *request = NULL;
    asked->status = gs_json_parse(&request, "{\"job\":\"" LOST "\"}", strlen("{\"job\":\"" LOST "\"}"));
    if (!asked->status.code)
        asked->status = gs_rpc_call(asked->it->client, GS_ADOPT_JOB, request, &asked->reply, gs_deadline_in_seconds(60));
    gs_json_release(request);
    return NULL;
}

static void begin_adoption(adoption *asked, gs_stage *it) {
    *asked = (adoption){.it = it};
    assert_int_equal(pthread_create(&asked->thread, NULL, ask, asked), 0);
}

static gs_status finish_adoption(adoption *asked, const char *state) {
    pthread_join(asked->thread, NULL);
    if (!asked->status.code) {
        assert_string_equal(gs_json_string_or(asked->reply, "id", ""), LOST);
        assert_string_equal(gs_json_string_or(asked->reply, "state", ""), state);
    }
    gs_json_release(asked->reply);
    return asked->status;
}

static size_t count_unknown(gs_stage *it) {
    gs_json *workers = NULL;
    assert_ok(gs_stage_ask(it, &workers, GS_LIST_WORKERS, "{}"));
    size_t count = gs_json_count(gs_json_get(gs_json_at(gs_json_get(workers, "items"), 0), "unknown"));
    gs_json_release(workers);
    return count;
}

// Says hello as the trainer and reads what it is told first.
static void expect_of_trainer(gs_stage *it, const char *first, const char *second) {
    gs_rpc_client *client = NULL;
    gs_rpc_stream *stream = NULL;
    gs_rpc_client_options options = {.endpoint = it->process.control, .incarnation = TRAINER};
    assert_ok(gs_rpc_client_open(&client, it->context, &options));
    gs_json *hello = parse("{\"job\":\"" LOST "\",\"cluster\":\"c-elsewhere\",\"incarnation\":\"88\",\"launch_token\":\"7\"}");
    assert_ok(gs_rpc_stream_open(&stream, client, GS_HELLO, hello));
    gs_json_release(hello);
    const char *const wanted[] = {first, second};
    for (int i = 0; i < 2; i++) {
        gs_json *item = NULL;
        assert_ok(gs_rpc_stream_next(stream, &item, gs_deadline_in_seconds(60)));
        assert_string_equal(gs_json_string_or(item, "type", ""), wanted[i]);
        gs_json_release(item);
    }
    gs_rpc_stream_close(stream);
    gs_rpc_client_close(client);
}

static void a_whole_generation_goes_on_here_also_in_the_next_life(void **state) {
    gs_stage *it = *state;
    adoption asked;
    agent at = connect_agent(it, 77);
    expect_item(&at, "welcome");
    assert_int_equal(count_unknown(it), 1);
    begin_adoption(&asked, it);
    expect_item(&at, "describe_rank");
    describe(&at, 1, SPEC("lost"), "");
    expect_item(&at, "adopt_rank");
    assert_ok(finish_adoption(&asked, "recovering"));
    assert_int_equal(count_unknown(it), 0);
    expect_of_trainer(it, "welcome", "go");
    begin_adoption(&asked, it);
    assert_ok(finish_adoption(&asked, "recovering"));  // the same answer
    disconnect(&at);

    // Its worker has not heard whose it is: it is told again.
    gs_coordinator_process_kill(&it->process);
    assert_ok(gs_coordinator_process_start(&it->process));
    at = connect_agent(it, 78);
    expect_item(&at, "adopt_rank");
    expect_item(&at, "welcome");
    assert_int_equal(count_unknown(it), 0);
    disconnect(&at);
}

static void of_half_a_generation_those_who_are_there_save_and_end(void **state) {
    gs_stage *it = *state;
    adoption asked, second;
    agent at = connect_agent(it, 77);
    expect_item(&at, "welcome");
    begin_adoption(&asked, it);
    expect_item(&at, "describe_rank");
    describe(&at, 2, SPEC("lost"), "");
    begin_adoption(&second, it);
    assert_int_equal(finish_adoption(&second, "").code, GS_FAILED_PRECONDITION);  // it is being adopted
    expect_item(&at, "adopt_rank");
    expect_item(&at, "stop_rank");
    assert_ok(finish_adoption(&asked, "queued"));
    // Nobody takes its place before it has ended.
    gs_json *exited = parse("{\"slot\":0,\"job\":\"" LOST "\",\"incarnation\":\"88\",\"exit_code\":0}"), *reply = NULL;
    assert_ok(gs_rpc_call(at.client, GS_EXITED, exited, &reply, gs_deadline_in_seconds(60)));
    gs_json_release(exited);
    gs_json_release(reply);
    expect_item(&at, "start_rank");
    disconnect(&at);
}

static void what_does_not_fit_is_left_alone(void **state) {
    gs_stage *it = *state;
    static const struct {
        const char *spec, *more;
        gs_code code;
    } cases[] = {{SPEC("taken"), "", GS_ALREADY_EXISTS},
                 {SPEC("lost"), ",\"checkpoints_dir\":\"/elsewhere/" LOST "\"", GS_FAILED_PRECONDITION},
                 {"{\"name\":\"lost\"}", "", GS_INVALID_ARGUMENT}};
    adoption asked;
    begin_adoption(&asked, it);
    assert_int_equal(finish_adoption(&asked, "").code, GS_NOT_FOUND);
    gs_stage_submit(it, SPEC("taken"));
    agent at = connect_agent(it, 77);
    expect_item(&at, "welcome");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin_adoption(&asked, it);
        expect_item(&at, "describe_rank");
        describe(&at, 1, cases[i].spec, cases[i].more);
        assert_int_equal(finish_adoption(&asked, "").code, cases[i].code);
        assert_int_equal(count_unknown(it), 1);
    }
    disconnect(&at);
}

#ifdef GRADSYNC_FAILPOINTS
static const bool has_failpoints = true;
#else
static const bool has_failpoints = false;
#endif

static void begin_life(gs_stage *it, const char *failpoints) {
    gs_coordinator_process_kill(&it->process);
    setenv("GRADSYNC_FAILPOINTS", failpoints, 1);
    gs_status status = gs_coordinator_process_start(&it->process);
    unsetenv("GRADSYNC_FAILPOINTS");
    assert_ok(status);
}

static gs_status ask_of_lost(gs_stage *it, gs_method method, const char *more) {
    gs_json *reply = NULL;
    char text[80];
    snprintf(text, sizeof text, "{\"job\":\"" LOST "\"%s}", more);
    gs_status status = gs_stage_ask(it, &reply, method, text);
    gs_json_release(reply);
    return status;
}

static gs_status adopt(gs_stage *it, agent *at, const char *state) {
    adoption asked;
    begin_adoption(&asked, it);
    expect_item(at, "describe_rank");
    describe(at, 1, SPEC("lost"), "");
    return finish_adoption(&asked, state);
}

// Of two lives the one could remove what the other has taken for its own: so it waits until the removal is over, and says so.
static void who_is_being_removed_is_not_adopted(void **state) {
    gs_stage *it = *state;
    if (!has_failpoints) skip();
    begin_life(it, "store.purge=sleep:600000@1");
    agent at = connect_agent(it, 77);
    expect_item(&at, "welcome");
    assert_ok(adopt(it, &at, "recovering"));
    expect_item(&at, "adopt_rank");
    assert_ok(ask_of_lost(it, GS_STOP_JOB, ",\"now\":true"));
    gs_json *exited = parse("{\"slot\":0,\"job\":\"" LOST "\",\"incarnation\":\"88\",\"exit_code\":0}"), *reply = NULL;
    assert_ok(gs_rpc_call(at.client, GS_EXITED, exited, &reply, gs_deadline_in_seconds(60)));
    gs_json_release(exited);
    gs_json_release(reply);
    gs_json_release(gs_stage_wait_for_state(it, LOST, "cancelled"));
    assert_ok(ask_of_lost(it, GS_DELETE_JOB, ",\"purge\":true"));
    disconnect(&at);
    at = connect_agent(it, 78);  // a trainer of it runs after all
    expect_item(&at, "welcome");
    gs_status status = adopt(it, &at, "");
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "in flight"));
    assert_int_equal(ask_of_lost(it, GS_GET_JOB, "").code, GS_NOT_FOUND);
    disconnect(&at);
    begin_life(it, "");  // which removes it, or has it adopted first
    at = connect_agent(it, 79);
    expect_item(&at, "welcome");
    for (gs_deadline deadline = soon(); (status = adopt(it, &at, "recovering")).code; gs_sleep_ns(20 * GS_NS_PER_MS)) {
        assert_int_equal(status.code, GS_FAILED_PRECONDITION);
        assert_false(gs_deadline_passed(deadline));
    }
    disconnect(&at);
}

// Nothing is told to its trainers, nothing is left of it, and it may be asked for again.
static void what_cannot_be_recorded_is_not_adopted(void **state) {
    gs_stage *it = *state;
    if (!has_failpoints) skip();
    begin_life(it, "store.commit=error@1-1000000");
    agent at = connect_agent(it, 77);
    expect_item(&at, "welcome");
    assert_int_not_equal(adopt(it, &at, "").code, GS_OK);
    assert_int_equal(count_unknown(it), 1);
    assert_int_equal(ask_of_lost(it, GS_GET_JOB, "").code, GS_NOT_FOUND);
    disconnect(&at);
    begin_life(it, "");
    assert_int_equal(ask_of_lost(it, GS_GET_JOB, "").code, GS_NOT_FOUND);
    at = connect_agent(it, 78);
    expect_item(&at, "welcome");
    assert_ok(adopt(it, &at, "recovering"));
    disconnect(&at);
    begin_life(it, "");
    assert_ok(ask_of_lost(it, GS_GET_JOB, ""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_whole_generation_goes_on_here_also_in_the_next_life, gs_stage_set_up,
                                        gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(of_half_a_generation_those_who_are_there_save_and_end, gs_stage_set_up,
                                        gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(what_does_not_fit_is_left_alone, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(who_is_being_removed_is_not_adopted, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(what_cannot_be_recorded_is_not_adopted, gs_stage_set_up, gs_stage_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
