// Whoever speaks the control protocol may send any JSON in any method: the coordinator refuses it or
// fails the job, and goes on. It runs under the sanitizers in the dev preset.
//
// An agent and its trainers follow the protocol with messages in which members are replaced, taken
// away or added at random, and the API's methods are asked the same way.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/model/job_id.h"
#include "core/clock.h"
#include "core/random.h"
#include "rpc/client/rpc_client.h"
#include "rpc/json/json.h"
#include "rpc/schema/messages.h"
#include "tests/support/asserts.h"
#include "tests/support/coordinator_process.h"
#include "tests/support/sample.h"

#define ROUNDS 1500
#define SECONDS 40
#define SLOTS 2

typedef struct message {
    gs_method method;
    const char *body;  // %J job, %T launch token, %I incarnation, %G generation, %S slot
} message;

static const message trainer_messages[] = {
    {GS_HEARTBEAT, "{\"state\":\"running\",\"generation\":%G,\"applied_step\":3,\"phase\":\"reduce\",\"rss_bytes\":1}"},
    {GS_READY, "{\"generation\":0,\"params\":[[\"a\",\"fp32\",[3,4]],[\"b\",\"fp32\",[5]]]}"},
    {GS_READY, "{\"generation\":%G,\"plan_hash\":\"x\",\"applied_step\":0,\"state_digest\":\"s\"}"},
    {GS_EXCHANGE, "{\"generation\":%G,\"tag\":\"t\",\"rank\":0,\"bytes\":\"AAAA\"}"},
    {GS_COMM_UP, "{\"generation\":%G,\"seconds\":0.1,\"backend\":\"shm\",\"reason\":\"\",\"algorithm\":\"flat\"}"},
    {GS_STEP, "{\"generation\":%G,\"rank\":0,\"step\":4,\"loss\":1.5,\"grad_norm\":1,\"lr\":0.1,\"step_seconds\":0.1,"
              "\"wait_seconds\":0.1,\"waits\":[[4,0.1,0.1,0.1,0.1,0.1]],\"buckets\":[{\"index\":0,\"bytes\":4,\"ready_seconds\":0.1}],"
              "\"totals\":{\"steps\":4,\"payload_bytes\":1,\"phases\":{\"data\":1}},"
              "\"step_histogram\":{\"counts\":[1,2],\"sum\":1},\"history\":[{\"step\":4,\"loss\":1}],"
              "\"eval\":{\"step\":4,\"loss\":1,\"batches\":2}}"},
    {GS_FAULT, "{\"generation\":%G,\"rank\":0,\"step\":4,\"kind\":\"timeout\",\"suspects\":[1],\"code\":4,\"text\":\"t\"}"},
    {GS_FAULT, "{\"generation\":%G,\"rank\":0,\"step\":4,\"kind\":\"timeout\",\"code\":4,\"text\":\"t\",\"suspects\":"
               "[-1,4096,1e30,1.5,\"1\",null,[0],{},9223372036854775807,-9223372036854775808,1,1,0]}"},
    {GS_SETTLE, "{\"generation\":%G,\"rank\":0,\"applied_step\":4,\"complete\":true}"},
    {GS_CHECKPOINTED, "{\"step\":4,\"directory\":\"step-4\",\"bytes\":4,\"seconds\":0.1,\"files\":[{\"name\":\"a\",\"bytes\":4,"
                      "\"digest\":\"xxh3:0\"}],\"manifest_digest\":\"xxh3:0\",\"world_size\":2,\"samples\":4,\"reason\":\"x\"}"},
    {GS_TIMELINE, "{\"request\":0,\"generation\":%G,\"more\":false,\"steps\":[{\"step\":4}]}"},
    {GS_BYE, "{\"generation\":%G,\"rank\":0,\"applied_step\":4,\"reason\":\"error\",\"exit_code\":70,\"class\":\"system\","
             "\"error\":\"e\",\"hint\":\"h\",\"sample\":\"s\",\"state_digest\":\"s\"}"},
};
static const message agent_messages[] = {
    {GS_AGENT_HEARTBEAT, "{\"slots_busy\":1}"},
    {GS_EXAMINED, "{\"request\":1,\"stage_number\":1,\"host\":{\"wall_ms\":1,\"port\":1},"
                  "\"peers\":[{\"worker\":\"w\",\"reachable\":true}]}"},
    {GS_LOG, "{\"job\":\"%J\",\"records\":[{\"rank\":0,\"generation\":1,\"stream\":\"stdout\",\"text\":\"hello\","
             "\"at_ms\":1,\"position\":1}]}"},
    {GS_EXITED, "{\"slot\":%S,\"job\":\"%J\",\"rank\":0,\"generation\":1,\"incarnation\":\"%I\",\"exit_code\":1,"
                "\"signal\":0,\"host\":\"h\",\"log_tail\":[\"bye\"]}"},
};
static const message api_messages[] = {
    {GS_CREATE_JOB, "{\"spec\":{\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":1,\"max\":2,\"join_window_seconds\":0},"
                    "\"steps\":{\"target\":9},\"restart\":{\"on_worker_error\":\"restart\"}},\"dry_run\":false,"
                    "\"idempotency_key\":\"k\"}"},
    {GS_CREATE_JOB, "{\"spec\":{\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":9}},\"dry_run\":true}"},
    {GS_LIST_JOBS, "{\"limit\":3,\"order\":\"asc\",\"state\":\"running\",\"label\":[\"a:b\"],\"fields\":\"id\"}"},
    {GS_GET_JOB, "{\"job\":\"%J\"}"},
    {GS_STOP_JOB, "{\"job\":\"%J\",\"mode\":\"graceful\",\"outcome\":\"cancelled\",\"grace_seconds\":1}"},
    {GS_DELETE_JOB, "{\"job\":\"%J\",\"purge\":true}"},
    {GS_GET_JOB_WORKERS, "{\"job\":\"%J\"}"},
    {GS_GET_JOB_PLAN, "{\"job\":\"%J\"}"},
    {GS_GET_JOB_METRICS, "{\"job\":\"%J\"}"},
    {GS_GET_JOB_SERIES, "{\"job\":\"%J\",\"names\":[\"loss\"],\"from_step\":0,\"to_step\":9,\"max_points\":5}"},
    {GS_LIST_EVENTS, "{\"job\":\"%J\",\"limit\":3,\"cursor\":\"1\"}"},
    {GS_READ_LOGS, "{\"job\":\"%J\",\"rank\":\"0,1\",\"stream\":\"stdout\",\"level\":\"warn\",\"grep\":\"a\",\"tail\":3,"
                   "\"since\":\"1\",\"generation\":1,\"limit\":3}"},
    {GS_LIST_CHECKPOINTS, "{\"job\":\"%J\"}"},
    {GS_LIST_WORKERS, "{}"},
    {GS_PREVIEW_PLAN, "{\"tensors\":[{\"name\":\"a\",\"elements\":4,\"dtype\":\"fp32\",\"device\":\"cpu\"}],"
                      "\"limits_bytes\":[4],\"reverse\":true}"},
    {GS_GET_JOB_DIAGNOSIS, "{\"job\":\"%J\"}"},
    {GS_TRACE_JOB, "{\"job\":\"%J\",\"on\":true}"},
    {GS_EXAMINE_WORKERS, "{\"workers\":[\"w\"],\"measure\":true,\"force\":true}"},
    {GS_GET_HEALTH, "{}"},
    {GS_GET_SYSTEM, "{}"},
};
#define COUNT(table) (sizeof table / sizeof table[0])

typedef struct trainer {
    gs_rpc_client *client;
    gs_rpc_stream *stream;
    uint64_t incarnation;
    char token[24];
    int64_t generation;
} trainer;

typedef struct garbage {
    gs_coordinator_process process;
    gs_rpc_context *context;
    gs_rpc_client *api, *agent;
    gs_rpc_stream *commands;
    trainer trainers[SLOTS];
    char job[32];
    gs_random_key key;
    uint64_t drawn;
} garbage;

static uint64_t draw(garbage *it, uint64_t below) { return gs_random_u64(it->key, it->drawn++) % below; }

static gs_json *any_value(garbage *it) {
    switch (draw(it, 12)) {
    case 0: return NULL;
    case 1: return gs_json_new_int(INT64_MIN);
    case 2: return gs_json_new_int(INT64_MAX);
    case 3: return gs_json_new_int(-1);
    case 4: return gs_json_new_double(1e300);
    case 5: return gs_json_new_string("NaN");
    case 6: return gs_json_new_string("");
    case 7: return gs_json_new_string("../../etc/\"\n%s%n");
    case 8: return gs_json_new_bool(true);
    case 9: return gs_json_new_array();
    case 10: return gs_json_new_object();
    default: break;
    }
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    return gs_json_new_string(text);
}

typedef struct mutation {
    garbage *it;
    gs_json *out;
    uint64_t one_in;
} mutation;

static gs_json *mutate(garbage *it, const gs_json *value, uint64_t one_in);

static bool mutate_member(void *ctx, const char *key, const gs_json *value) {
    mutation *at = ctx;
    bool struck = draw(at->it, at->one_in) == 0;
    if (struck && draw(at->it, 4) == 0) return true;  // taken away
    gs_json_set(at->out, key, struck ? any_value(at->it) : mutate(at->it, value, at->one_in));
    return true;
}

static gs_json *mutate(garbage *it, const gs_json *value, uint64_t one_in) {
    if (gs_json_type_of(value) == GS_JSON_OBJECT) {
        mutation at = {it, gs_json_new_object(), one_in};
        gs_json_each(value, mutate_member, &at);
        return at.out;
    }
    if (gs_json_type_of(value) != GS_JSON_ARRAY) return gs_json_copy(value);
    gs_json *out = gs_json_new_array();
    for (size_t i = 0; i < gs_json_count(value); i++) {
        const gs_json *entry = gs_json_at(value, i);
        gs_json_push(out, draw(it, one_in) == 0 ? any_value(it) : mutate(it, entry, one_in));
    }
    return out;
}

// The body with its placeholders filled in, one member in `one_in` being wrong (0: none).
static gs_json *make_body(garbage *it, const char *body, const trainer *of, uint64_t one_in) {
    char text[2000];
    size_t length = 0;
    for (const char *c = body; *c && length < sizeof text - 64; c++) {
        char *at = text + length;
        if (*c != '%') text[length++] = *c;
        else if (*++c == 'J') length += (size_t)sprintf(at, "%s", it->job);
        else if (*c == 'T') length += (size_t)sprintf(at, "%s", of->token);
        else if (*c == 'I') length += (size_t)sprintf(at, "%llu", (unsigned long long)of->incarnation);
        else if (*c == 'G') length += (size_t)sprintf(at, "%lld", (long long)of->generation);
        else length += (size_t)sprintf(at, "%d", (int)(of - it->trainers));
    }
    gs_json *whole = NULL;
    assert_ok(gs_json_parse(&whole, text, length));
    gs_json *mutated = one_in ? mutate(it, whole, one_in) : gs_json_retain(whole);
    gs_json_release(whole);
    return mutated;
}

static void say(garbage *it, gs_rpc_client *client, const message *what, const trainer *of, uint64_t one_in) {
    gs_json *body = make_body(it, what->body, of, one_in), *reply = NULL;
    if (gs_method_info_of(what->method)->shape == GS_ONE_WAY) {
        gs_rpc_send(client, what->method, body);
    } else {
        gs_status status = gs_rpc_call(client, what->method, body, &reply, gs_deadline_in_ms(60));
        const char *id = what->method == GS_CREATE_JOB ? gs_json_string_or(reply, "id", NULL) : NULL;
        if (!status.code && id) snprintf(it->job, sizeof it->job, "%s", id);
    }
    gs_json_release(body);
    gs_json_release(reply);
}

static void open_commands(garbage *it) {
    gs_rpc_stream_close(it->commands);
    it->commands = NULL;
    gs_json *hello = make_body(it, "{\"worker\":\"g\",\"host\":\"h\",\"boot_id\":\"b\",\"pid\":1,\"incarnation\":\"7\","
                                   "\"build\":\"t\",\"proto_least\":1,\"proto_most\":1,\"slots\":2,\"cores\":1,"
                                   "\"data_root\":\"/\",\"devices\":[{\"uuid\":\"GPU-0\",\"name\":\"n\","
                                   "\"memory_bytes\":5,\"capability\":\"9.0\",\"driver\":\"13.0\"},"
                                   "{\"uuid\":\"GPU-1\",\"memory_bytes\":5}],\"devices_per_slot\":1,"
                                   "\"devices_reason\":\"r\",\"nccl\":\"2.28.9\",\"running\":[{\"slot\":%S,\"job\":\"%J\",\"rank\":0,"
                                   "\"generation\":1,\"incarnation\":\"%I\",\"pid\":3}]}",
                               &it->trainers[draw(it, SLOTS)], draw(it, 2) * 12);
    gs_status status = gs_rpc_stream_open(&it->commands, it->agent, GS_AGENT_HELLO, hello);
    if (status.code) it->commands = NULL;
    gs_json_release(hello);
}

static void close_trainer(trainer *of) {
    gs_rpc_stream_close(of->stream);
    gs_rpc_client_close(of->client);
    *of = (trainer){0};
}

static void start_trainer(garbage *it, const gs_json *item) {
    int64_t slot = gs_json_int_or(item, "slot", -1);
    assert_true(slot >= 0 && slot < SLOTS);
    trainer *of = &it->trainers[slot];
    close_trainer(of);
    snprintf(it->job, sizeof it->job, "%s", gs_json_string_or(item, "job", ""));
    snprintf(of->token, sizeof of->token, "%s", gs_json_string_or(item, "launch_token", ""));
    assert_ok(gs_json_read_u64(&of->incarnation, item, "incarnation"));
    gs_rpc_client_options options = {.endpoint = it->process.control, .incarnation = of->incarnation};
    assert_true(gs_job_id_parse(&options.job, it->job));
    assert_ok(gs_rpc_client_open(&of->client, it->context, &options));
    gs_json *hello = make_body(it, "{\"job\":\"%J\",\"launch_token\":\"%T\",\"worker\":\"g\",\"slot\":%S,\"incarnation\":\"%I\","
                                   "\"pid\":4,\"host\":\"h\",\"boot_id\":\"b\",\"build\":\"t\",\"proto_least\":1,\"proto_most\":1,"
                                   "\"params_digest\":\"p\",\"num_params\":2,\"total_elements\":17,\"arithmetic\":{\"isa\":\"x\"},"
                                   "\"data_digest\":\"d\",\"applied_step\":0}", of, draw(it, 3) == 0 ? 12 : 0);
    assert_ok(gs_rpc_stream_open(&of->stream, of->client, GS_HELLO, hello));
    gs_json_release(hello);
}

// What came on the streams: new trainers, and the generation that a trainer belongs to.
static void read_streams(garbage *it) {
    gs_json *item = NULL;
    gs_status status = {.code = GS_UNAVAILABLE};
    while (it->commands) {
        status = gs_rpc_stream_next(it->commands, &item, gs_deadline_in_ms(1));
        if (status.code || !item) break;
        if (!strcmp(gs_json_string_or(item, "type", ""), "start_rank")) start_trainer(it, item);
        gs_json_release(item);
    }
    if (!it->commands || status.code != GS_DEADLINE_EXCEEDED || draw(it, 50) == 0) open_commands(it);
    for (int i = 0; i < SLOTS; i++) {
        trainer *of = &it->trainers[i];
        while (of->stream) {
            status = gs_rpc_stream_next(of->stream, &item, gs_deadline_in_ms(1));
            if (status.code || !item) break;
            of->generation = gs_json_int_or(item, "generation", of->generation);
            gs_json_release(item);
        }
        if (of->client) gs_rpc_client_set_generation(of->client, (uint32_t)of->generation);
    }
}

static void show_log(const garbage *it) {
    char path[600], line[1000];
    snprintf(path, sizeof path, "%s/coordinator.log", it->process.directory);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "ts=", 3) != 0) print_error("%s", line);
    }
    if (file) fclose(file);
}

static void garbage_in_any_message_ends_nothing_but_jobs(void **state) {
    garbage *it = *state;
    gs_deadline deadline = gs_deadline_in_seconds(SECONDS);
    for (int i = 0; i < ROUNDS && !gs_deadline_passed(deadline); i++) {
        read_streams(it);
        uint64_t one_in = draw(it, 3) == 0 ? 0 : 8;
        trainer *of = &it->trainers[draw(it, SLOTS)];
        if (of->client) say(it, of->client, &trainer_messages[draw(it, COUNT(trainer_messages))], of, one_in);
        if (draw(it, 4) == 0) say(it, it->agent, &agent_messages[draw(it, COUNT(agent_messages))], of, one_in);
        say(it, it->api, &api_messages[draw(it, COUNT(api_messages))], of, one_in);
    }
    int exit_code = gs_coordinator_process_stop(&it->process);
    if (exit_code != 0) show_log(it);
    assert_int_equal(exit_code, 0);
}

static int set_up(void **state) {
    garbage *it = calloc(1, sizeof *it);
    *state = it;
    it->key = (gs_random_key){.seed = sample_seed("garbage")};
    assert_ok(gs_coordinator_process_start(&it->process));
    assert_ok(gs_rpc_context_create(&it->context));
    gs_rpc_client_options api = {.endpoint = it->process.control};
    assert_ok(gs_rpc_client_open(&it->api, it->context, &api));
    gs_rpc_client_options agent = {.endpoint = it->process.control, .incarnation = 7};
    assert_ok(gs_rpc_client_open(&it->agent, it->context, &agent));
    return 0;
}

static int tear_down(void **state) {
    garbage *it = *state;
    for (int i = 0; i < SLOTS; i++) close_trainer(&it->trainers[i]);
    gs_rpc_stream_close(it->commands);
    gs_rpc_client_close(it->agent);
    gs_rpc_client_close(it->api);
    gs_rpc_context_destroy(it->context);
    gs_coordinator_process_release(&it->process);
    free(it);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(garbage_in_any_message_ends_nothing_but_jobs, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
