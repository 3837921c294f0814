// What a coordinator makes of trainers that an agent says it runs: its own, ended ones, and
// strangers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/support/coordinator_stage.h"

#define AGENT 77  // its incarnation
#define TRAINER 88
#define STRANGER "j-0000000000ab"

typedef struct agent {
    gs_rpc_client *client;
    gs_rpc_stream *stream;
} agent;

// An agent of one slot, in which a trainer of `job` and `cluster` runs; `seen`: more members of its Hello.
static agent connect_agent_of(gs_stage *it, const char *job, const char *cluster, const char *seen) {
    agent out = {0};
    char text[600];
    gs_rpc_client_options options = {.endpoint = it->process.control, .incarnation = AGENT};
    assert_ok(gs_rpc_client_open(&out.client, it->context, &options));
    snprintf(text, sizeof text,
             "{\"worker\":\"w\",\"host\":\"h\",\"boot_id\":\"b\",\"pid\":1,\"incarnation\":\"%d\","
             "\"slots\":1%s,\"running\":[{\"slot\":0,\"job\":\"%s\",\"cluster\":\"%s\",\"rank\":3,"
             "\"generation\":5,\"incarnation\":\"%d\",\"pid\":4242}]}",
             AGENT, seen, job, cluster, TRAINER);
    gs_json *hello = NULL;
    assert_ok(gs_json_parse(&hello, text, strlen(text)));
    assert_ok(gs_rpc_stream_open(&out.stream, out.client, GS_AGENT_HELLO, hello));
    gs_json_release(hello);
    return out;
}

static agent connect_agent(gs_stage *it, const char *job) {
    return connect_agent_of(it, job, "", "");
}

static void disconnect(agent *at) {
    gs_rpc_stream_close(at->stream);
    gs_rpc_client_close(at->client);
}

// The type of the next item that the coordinator sends to this agent.
static void expect_item(agent *at, const char *type) {
    gs_json *item = NULL;
    assert_ok(gs_rpc_stream_next(at->stream, &item, gs_deadline_in_seconds(60)));
    assert_non_null(item);
    assert_string_equal(gs_json_string_or(item, "type", ""), type);
    if (!strcmp(type, "stop_rank")) {
        uint64_t incarnation = 0;
        assert_ok(gs_json_read_u64(&incarnation, item, "incarnation"));
        assert_int_equal(incarnation, TRAINER);
    }
    gs_json_release(item);
}

static void submit(gs_stage *it) {
    gs_stage_submit(it, "{\"name\":\"a\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"max\":1,"
                        "\"join_window_seconds\":0},\"steps\":{\"target\":100}}");
}

static gs_json *list_workers(gs_stage *it) {
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(it, &reply, GS_LIST_WORKERS, "{}"));
    return reply;
}

static bool has_event(gs_stage *it, const char *reason) {
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(it, &reply, GS_LIST_EVENTS, "{}"));
    const gs_json *items = gs_json_get(reply, "items");
    bool found = false;
    for (size_t i = 0; i < gs_json_count(items); i++) {
        found |= !strcmp(gs_json_string_or(gs_json_at(items, i), "reason", ""), reason);
    }
    gs_json_release(reply);
    return found;
}

static void send_exit(agent *at) {
    gs_json *exited = NULL, *reply = NULL;
    static const char text[] =
        "{\"slot\":0,\"job\":\"" STRANGER "\",\"incarnation\":\"88\",\"exit_code\":0}";
    assert_ok(gs_json_parse(&exited, text, strlen(text)));
    assert_ok(gs_rpc_call(at->client, GS_EXITED, exited, &reply, gs_deadline_in_seconds(60)));
    gs_json_release(exited);
    gs_json_release(reply);
}

static void a_trainer_of_an_unknown_job_is_left_alone_and_keeps_its_slot(void **state) {
    gs_stage *it = *state;
    agent at = connect_agent(it, STRANGER);
    expect_item(&at, "welcome");
    submit(it);

    gs_json *workers = list_workers(it);
    const gs_json *worker = gs_json_at(gs_json_get(workers, "items"), 0);
    const gs_json *unknown = gs_json_at(gs_json_get(worker, "unknown"), 0);
    assert_int_equal(gs_json_int_or(worker, "slots_busy", -1), 1);
    assert_int_equal(gs_json_count(gs_json_get(worker, "jobs")), 0);
    assert_string_equal(gs_json_string_or(unknown, "job", ""), STRANGER);
    assert_int_equal(gs_json_int_or(unknown, "rank", -1), 3);
    assert_int_equal(gs_json_int_or(unknown, "pid", -1), 4242);
    gs_json_release(workers);
    assert_true(has_event(it, "UnknownTrainer"));

    // Its end is all that frees the slot. Nothing was said to the agent before the job starts
    // there.
    send_exit(&at);
    expect_item(&at, "start_rank");
    disconnect(&at);
}

static gs_code send_line(agent *at) {
    static const char text[] = "{\"job\":\"" STRANGER "\",\"records\":[{\"rank\":3,\"generation\":5,"
                               "\"stream\":\"stderr\",\"text\":\"why\",\"at_ms\":1,\"position\":2}]}";
    gs_json *request = NULL, *reply = NULL;
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    gs_status status = gs_rpc_call(at->client, GS_LOG, request, &reply, gs_deadline_in_seconds(60));
    gs_json_release(request);
    gs_json_release(reply);
    return status.code;
}

// An agent prints what is refused so. Exits go before lines: the last ones, which say why a trainer
// ended, come when its slot is free.
static void lines_of_an_unknown_job_are_left_to_the_agent_also_after_the_exit(void **state) {
    gs_stage *it = *state;
    agent at = connect_agent(it, STRANGER);
    expect_item(&at, "welcome");
    assert_int_equal(send_line(&at), GS_NOT_FOUND);
    send_exit(&at);
    assert_int_equal(send_line(&at), GS_NOT_FOUND);
    disconnect(&at);
}

static void a_trainer_of_a_job_that_has_ended_is_stopped(void **state) {
    gs_stage *it = *state;
    char text[80];
    gs_json *reply = NULL;
    submit(it);
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", it->job);
    assert_ok(gs_stage_ask(it, &reply, GS_STOP_JOB, text));
    gs_json_release(reply);
    gs_json_release(gs_stage_wait_for_state(it, it->job, "cancelled"));
    agent at = connect_agent(it, it->job);
    expect_item(&at, "stop_rank");
    expect_item(&at, "welcome");
    disconnect(&at);
}

// Another run of this job has its place: two must not train it side by side.
static void a_trainer_that_a_restart_has_superseded_is_stopped(void **state) {
    gs_stage *it = *state;
    submit(it);
    agent at = connect_agent(it, it->job);
    expect_item(&at, "stop_rank");
    expect_item(&at, "welcome");
    disconnect(&at);
}

// Says hello as a trainer of `job` that this coordinator did not start; returns what ends the
// stream.
static gs_code hello_of(gs_stage *it, const char *job, int incarnation) {
    gs_rpc_client *client = NULL;
    gs_rpc_stream *stream = NULL;
    gs_rpc_client_options options = {.endpoint = it->process.control,
                                     .incarnation = (uint64_t)incarnation};
    assert_ok(gs_rpc_client_open(&client, it->context, &options));
    char text[120];
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"incarnation\":\"%d\",\"launch_token\":\"1\"}",
             job, incarnation);
    gs_json *hello = NULL, *item = NULL;
    assert_ok(gs_json_parse(&hello, text, strlen(text)));
    assert_ok(gs_rpc_stream_open(&stream, client, GS_HELLO, hello));
    gs_status status = gs_rpc_stream_next(stream, &item, gs_deadline_in_seconds(60));
    gs_json_release(item);
    gs_json_release(hello);
    gs_rpc_stream_close(stream);
    gs_rpc_client_close(client);
    return status.code;
}

static void unknown_and_over_are_two_answers(void **state) {
    gs_stage *it = *state;
    submit(it);
    assert_int_equal(hello_of(it, STRANGER, TRAINER), GS_NOT_FOUND);
    assert_int_equal(hello_of(it, it->job, TRAINER + 1), GS_ABORTED);
}

// The same job in another cluster: a copy of the data, or chance. Nothing is said to its agent.
static void a_trainer_of_another_cluster_is_left_alone(void **state) {
    gs_stage *it = *state;
    submit(it);
    agent at = connect_agent_of(it, it->job, "c-elsewhere", "");
    expect_item(&at, "welcome");
    assert_true(has_event(it, "UnknownTrainer"));
    send_exit(&at);
    expect_item(&at, "start_rank");
    disconnect(&at);
}

static gs_code end_of(agent *at) {
    gs_json *item = NULL;
    gs_status status = gs_rpc_stream_next(at->stream, &item, gs_deadline_in_seconds(60));
    gs_json_release(item);
    return status.code;
}

// Who welcomed it, in words for the next Hello: as it was, and as it is for those who have seen what it will never be.
static void note_welcome(agent *at, char *later, char *other, char *same, size_t bytes) {
    static const char format[] = ",\"seen_cluster\":\"%s\",\"seen_epoch\":%lld,\"seen_life\":\"%llu\"";
    gs_json *item = NULL;
    uint64_t life = 0;
    assert_ok(gs_rpc_stream_next(at->stream, &item, gs_deadline_in_seconds(60)));
    assert_ok(gs_json_read_u64(&life, item, "coordinator_life"));
    const char *cluster = gs_json_string_or(item, "cluster", "");
    long long epoch = gs_json_int_or(item, "coordinator_epoch", 0);
    snprintf(same, bytes, format, cluster, epoch, (unsigned long long)life);
    snprintf(later, bytes, format, cluster, epoch + 1000, (unsigned long long)life);
    snprintf(other, bytes, format, cluster, epoch, (unsigned long long)life + 2);
    gs_json_release(item);
}

static gs_status restart(gs_stage *it) {
    gs_coordinator_process_kill(&it->process);
    return gs_coordinator_process_start(&it->process);
}

static void stop_and_delete(gs_stage *it) {
    char text[80];
    gs_json *reply = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", it->job);
    assert_ok(gs_stage_ask(it, &reply, GS_STOP_JOB, text));
    gs_json_release(reply);
    gs_json_release(gs_stage_wait_for_state(it, it->job, "cancelled"));
    reply = NULL;
    assert_ok(gs_stage_ask(it, &reply, GS_DELETE_JOB, text));
    gs_json_release(reply);
}

// What is left of it outlives the row, and the coordinator.
static void a_trainer_of_a_job_that_was_deleted_is_stopped(void **state) {
    gs_stage *it = *state;
    submit(it);
    stop_and_delete(it);
    for (int life = 0; life < 2; life++) {
        agent at = connect_agent(it, it->job);
        expect_item(&at, "stop_rank");
        expect_item(&at, "welcome");
        assert_int_equal(hello_of(it, it->job, TRAINER), GS_ABORTED);
        assert_false(has_event(it, "UnknownTrainer"));
        disconnect(&at);
        assert_ok(restart(it));
    }
    // A cluster of its own may have a job of this id.
    agent at = connect_agent_of(it, it->job, "c-elsewhere", "");
    expect_item(&at, "welcome");
    assert_true(has_event(it, "UnknownTrainer"));
    disconnect(&at);
}

static void an_old_copy_of_the_database_is_found_out_and_ends(void **state) {
    gs_stage *it = *state;
    char later[200], other[200], same[200];
    agent at = connect_agent(it, STRANGER);
    note_welcome(&at, later, other, same, sizeof same);
    disconnect(&at);
    assert_ok(restart(it));
    at = connect_agent_of(it, STRANGER, "", same);
    expect_item(&at, "welcome");
    disconnect(&at);
    // An epoch that is still to come, and one that somebody else has lived.
    const char *const seen[] = {later, other};
    assert_false(has_event(it, "OldDatabase"));
    for (int i = 0; i < 2; i++) {
        assert_ok(restart(it));
        at = connect_agent_of(it, STRANGER, "", seen[i]);
        assert_int_equal(end_of(&at), GS_UNAVAILABLE);
        disconnect(&at);
        assert_int_equal(gs_coordinator_process_wait(&it->process), 65);
    }
    // Of those starts none has given out a generation, and what they said is there.
    assert_ok(restart(it));
    assert_true(has_event(it, "OldDatabase"));
}

// A Hello that says what it speaks, whatever the frame's version.
static void an_agent_of_another_protocol_is_refused_by_name(void **state) {
    gs_stage *it = *state;
    gs_rpc_client *client = NULL;
    gs_rpc_stream *stream = NULL;
    gs_json *hello = NULL, *item = NULL;
    static const char text[] = "{\"worker\":\"w7\",\"slots\":1,\"proto_least\":1,\"proto_most\":1}";
    gs_rpc_client_options options = {.endpoint = it->process.control, .incarnation = AGENT};
    assert_ok(gs_rpc_client_open(&client, it->context, &options));
    assert_ok(gs_json_parse(&hello, text, strlen(text)));
    assert_ok(gs_rpc_stream_open(&stream, client, GS_AGENT_HELLO, hello));
    gs_status status = gs_rpc_stream_next(stream, &item, gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_string_equal(status.message, "worker w7 speaks protocol 1 to 1, the coordinator 2 to 2");
    gs_json_release(hello);
    gs_rpc_stream_close(stream);
    gs_rpc_client_close(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            a_trainer_of_an_unknown_job_is_left_alone_and_keeps_its_slot, gs_stage_set_up,
            gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(
            lines_of_an_unknown_job_are_left_to_the_agent_also_after_the_exit, gs_stage_set_up,
            gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_trainer_of_a_job_that_has_ended_is_stopped,
                                        gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_trainer_of_a_job_that_was_deleted_is_stopped,
                                        gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_trainer_that_a_restart_has_superseded_is_stopped,
                                        gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(an_agent_of_another_protocol_is_refused_by_name,
                                        gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_trainer_of_another_cluster_is_left_alone, gs_stage_set_up,
                                        gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(an_old_copy_of_the_database_is_found_out_and_ends,
                                        gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(unknown_and_over_are_two_answers, gs_stage_set_up,
                                        gs_stage_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
