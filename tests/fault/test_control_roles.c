// Who may call what at the control port of the real coordinator: a key of every role, and of a rank, calls every method of the
// table; and whoever is not let in calls them all in vain. Which methods and which roles there are is the product's to say.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/random.h"
#include "rpc/client/rpc_client.h"
#include "rpc/json/json.h"
#include "rpc/keys/key_store.h"
#include "rpc/schema/messages.h"
#include "tests/support/asserts.h"
#include "tests/support/coordinator_process.h"
#include "tests/support/http.h"

#define WAIT gs_deadline_in_seconds(60)
enum { NOT_ANSWERED_MS = 10, NUM_ROLES = GS_ROLE_ADMIN + 1 };

typedef struct stage {
    gs_coordinator_process process;
    gs_rpc_context *context;
    char data[600], keys[GS_KEY_PATH_BYTES];
    gs_key_file server, files[NUM_ROLES];  // by role
    gs_rpc_client *clients[NUM_ROLES];
    gs_rpc_stream *commands;  // of the worker
    gs_rpc_client *agent;
} stage;

// How many messages of each method were taken, how many were refused for their sender's role.
typedef struct page {
    double taken[GS_NUM_METHODS], refused;
} page;

static double number_behind(const char *text, const char *series) {
    const char *at = strstr(text, series);
    return at ? strtod(at + strlen(series), NULL) : 0;
}

static page read_page(const stage *it) {
    page seen = {0};
    char series[160];
    gs_wire_response response = gs_wire_exchange(it->process.http, "GET /metrics HTTP/1.1\r\n\r\n", NULL, false);
    assert_int_equal(response.status, 200);
    for (int i = 1; i < GS_NUM_METHODS; i++) {
        snprintf(series, sizeof series, "\ngradsync_control_messages_total{direction=\"received\",type=\"%s\"} ", gs_method_info_of((gs_method)i)->name);
        seen.taken[i] = number_behind(response.body, series);
    }
    seen.refused = number_behind(response.body, "\ngradsync_control_messages_dropped_total{reason=\"role\"} ");
    gs_wire_response_release(&response);
    return seen;
}

// A page that was made behind what has been answered: it knows of another call.
static page read_page_behind(stage *it) {
    gs_deadline deadline = WAIT;
    double before = read_page(it).taken[GS_GET_HEALTH];
    assert_ok(gs_rpc_call(it->clients[GS_ROLE_ADMIN], GS_GET_HEALTH, NULL, NULL, WAIT));
    for (;;) {
        page seen = read_page(it);
        if (seen.taken[GS_GET_HEALTH] > before) return seen;
        assert_false(gs_deadline_passed(deadline));
        gs_sleep_ns(20 * GS_NS_PER_MS);
    }
}

static gs_status copy_key(void *ctx, gs_key_file *key) {
    *key = *(const gs_key_file *)ctx;
    return gs_ok();
}

static gs_rpc_client *open_client(const stage *it, gs_key_file *key, uint64_t incarnation) {
    gs_rpc_client *client = NULL;
    gs_rpc_client_options options = {.endpoint = it->process.control, .incarnation = incarnation};
    if (key) options.source = (gs_rpc_key_source){copy_key, key};
    assert_ok(gs_rpc_client_open(&client, it->context, &options));
    return client;
}

static void make_key(const stage *it, gs_key_file *file, gs_role role, const char *name) {
    gs_known_key known = {.role = role};
    snprintf(known.name, sizeof known.name, "%s", name);
    assert_ok(gs_key_store_make(it->keys, &known, file));
    file->server = it->server.pair.shown;
}

static gs_json *parse(const char *text) {
    gs_json *value = NULL;
    assert_ok(gs_json_parse(&value, text, strlen(text)));
    return value;
}

// As it is where the method's own rules are to refuse it, once its sender may call it: so that nothing comes of this test.
static gs_json *request_of(gs_method method) {
    if (method == GS_ENROL) return parse("{\"name\":\"no name\"}");
    if (method == GS_EXAMINE_WORKERS) return parse("{\"workers\":[\"nobody\"]}");
    return parse("{\"job\":\"nobody\"}");
}

// What came of it; of a one-way message nothing is known.
static gs_status ask(gs_rpc_client *client, gs_method method, gs_deadline deadline) {
    gs_json *request = request_of(method), *answer = NULL;
    gs_rpc_stream *stream = NULL;
    gs_status status = gs_ok();
    if (method == GS_STEP_RECORD) {
        gs_rpc_send_record(client, method, "none", 4);
    } else if (gs_method_info_of(method)->shape == GS_ONE_WAY) {
        gs_rpc_send(client, method, request);
    } else if (gs_method_info_of(method)->shape == GS_CALL) {
        status = gs_rpc_call(client, method, request, &answer, deadline);
    } else {
        status = gs_rpc_stream_open(&stream, client, method, request);
        // A refusal is there before what is answered behind it.
        if (!status.code) status = gs_rpc_call(client, GS_GET_HEALTH, NULL, NULL, deadline);
        if (!status.code) status = gs_rpc_stream_next(stream, &answer, gs_deadline_in_ms(0));
        if (status.code == GS_DEADLINE_EXCEEDED) status = gs_ok();
        gs_rpc_stream_close(stream);
    }
    gs_json_release(answer);
    gs_json_release(request);
    return status;
}

static bool is_refused_for_its_role(const gs_status *status, const char *method) {
    char words[96];
    snprintf(words, sizeof words, ", which may not call %s", method);
    return status->code == GS_PERMISSION_DENIED && strstr(status->message, words);
}

static void check_row(stage *it, gs_role role) {
    page before = read_page_behind(it);
    int num_refused = 0;
    for (int i = 1; i < GS_NUM_METHODS; i++) {
        const gs_method_info *info = gs_method_info_of((gs_method)i);
        bool may = gs_role_may(role, info->role);
        gs_status status = ask(it->clients[role], (gs_method)i, WAIT);
        num_refused += !may;
        if (info->shape != GS_ONE_WAY && is_refused_for_its_role(&status, info->name) == may)
            fail_msg("role %d, %s: %s in place of %s: %s", role, info->name, gs_code_name(status.code), may ? "a call" : "a refusal", status.message);
    }
    assert_ok(gs_rpc_call(it->clients[role], GS_GET_HEALTH, NULL, NULL, WAIT));  // behind what is not answered
    page after = read_page_behind(it);
    for (int i = 1; i < GS_NUM_METHODS; i++) {
        const gs_method_info *info = gs_method_info_of((gs_method)i);
        bool is_taken = after.taken[i] > before.taken[i], may = gs_role_may(role, info->role);
        // Pages are read by the coordinator's own API.
        if (i != GS_GET_METRICS && is_taken != may) fail_msg("role %d, %s: was %staken", role, info->name, is_taken ? "" : "not ");
    }
    assert_int_equal((int)(after.refused - before.refused), num_refused);
}

static void a_key_of_each_role_calls_what_the_table_says_and_nothing_else(void **state) {
    stage *it = *state;
    for (int role = GS_ROLE_AGENT; role < NUM_ROLES; role++) {
        assert_non_null(it->clients[role]);
        check_row(it, (gs_role)role);
    }
}

static int count_jobs(const stage *it) {
    gs_json *jobs = NULL;
    assert_ok(gs_rpc_call(it->clients[GS_ROLE_VIEWER], GS_LIST_JOBS, NULL, &jobs, WAIT));
    int count = (int)gs_json_count(gs_json_get(jobs, "items"));
    gs_json_release(jobs);
    return count;
}

static gs_method method_of(const char *name) {
    for (int i = 1; i < GS_NUM_METHODS; i++)
        if (strcmp(gs_method_info_of((gs_method)i)->name, name) == 0) return (gs_method)i;
    return GS_METHOD_NONE;
}

// How many lines there are of each role.
static void count_lines(const stage *it, const char *name, bool are_refusals, int counts[NUM_ROLES]) {
    char path[700], text[4096];
    snprintf(path, sizeof path, "%s/%s", it->data, name);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(text, sizeof text, file)) {
        gs_json *line = parse(text);
        gs_role role = GS_ROLE_TRAINER;  // of which no key of the list is
        const char *of = gs_json_string_or(line, "role", "");
        gs_method method = method_of(gs_json_string_or(line, "route", ""));
        if (method && (gs_key_role_from_name(&role, of) || strcmp(of, "rank") == 0)) {
            counts[role]++;
            assert_int_equal(gs_role_may(role, gs_method_info_of(method)->role), !are_refusals);
            if (are_refusals) assert_string_equal(gs_json_string_or(line, "result", ""), "PERMISSION_DENIED");
        }
        gs_json_release(line);
    }
    fclose(file);
}

// Behind the other one, on the same coordinator.
static void what_was_refused_has_changed_nothing_and_is_in_the_audit(void **state) {
    stage *it = *state;
    assert_int_equal(count_jobs(it), 1);
    int refused[NUM_ROLES] = {0}, called[NUM_ROLES] = {0};
    count_lines(it, "audit.jsonl.refused", true, refused);
    count_lines(it, "audit.jsonl", false, called);
    for (int role = GS_ROLE_AGENT; role < NUM_ROLES; role++) {
        assert_true(refused[role] > 0);  // none may call everything
        if (role >= GS_ROLE_OPERATOR) assert_true(called[role] > 0);
        else if (role == GS_ROLE_METRICS || role == GS_ROLE_VIEWER || role == GS_ROLE_TRAINER) assert_int_equal(called[role], 0);
    }
}

static bool is_let_in(gs_rpc_client *client) {
    return gs_rpc_call(client, GS_GET_HEALTH, NULL, NULL, gs_deadline_in_ms(50)).code == GS_OK;
}

static void await_shut_out(gs_rpc_client *client) {
    gs_deadline deadline = WAIT;
    while (is_let_in(client) || gs_rpc_client_refusal(client) == GS_RPC_NOT_REFUSED) {
        assert_false(gs_deadline_passed(deadline));
        gs_sleep_ns(20 * GS_NS_PER_MS);
    }
}

static void check_shut_out(stage *it, gs_rpc_client *client, gs_rpc_refusal wanted) {
    await_shut_out(client);
    assert_int_equal(gs_rpc_client_refusal(client), wanted);
    page before = read_page_behind(it);
    for (int i = 1; i < GS_NUM_METHODS; i++) {
        const gs_method_info *info = gs_method_info_of((gs_method)i);
        gs_status status = ask(client, (gs_method)i, gs_deadline_in_ms(NOT_ANSWERED_MS));
        if (info->shape == GS_CALL && status.code != GS_DEADLINE_EXCEEDED && status.code != GS_UNAVAILABLE)
            fail_msg("%s was answered: %s %s", info->name, gs_code_name(status.code), status.message);
    }
    page after = read_page_behind(it);
    for (int i = 1; i < GS_NUM_METHODS; i++)
        if (i != GS_GET_METRICS && i != GS_GET_HEALTH && after.taken[i] > before.taken[i])
            fail_msg("%s was taken of who is not let in", gs_method_info_of((gs_method)i)->name);
    assert_int_equal((int)(after.taken[GS_GET_HEALTH] - before.taken[GS_GET_HEALTH]), 1);  // that of the page itself
    gs_rpc_client_close(client);
}

static void who_shows_no_key_calls_nothing(void **state) {
    stage *it = *state;
    check_shut_out(it, open_client(it, NULL, 0), GS_RPC_OTHER_SERVER);
}

static void who_shows_a_key_that_is_not_known_calls_nothing(void **state) {
    stage *it = *state;
    gs_key_file stranger = {.name = "stranger", .server = it->server.pair.shown};
    assert_ok(gs_curve_pair_draw(&stranger.pair));
    check_shut_out(it, open_client(it, &stranger, 0), GS_RPC_KEY_REFUSED);
}

static void await_let_in(gs_rpc_client *client) {
    gs_deadline deadline = WAIT;
    while (!is_let_in(client)) assert_false(gs_deadline_passed(deadline));
}

static gs_status revoke(gs_key_list *list, void *ctx) {
    int count;
    return gs_key_list_revoke(list, ctx, gs_wall_ms(), &count);
}

// He is connected all the while.
static void whose_key_is_revoked_calls_nothing_from_then_on(void **state) {
    stage *it = *state;
    gs_key_file file;
    make_key(it, &file, GS_ROLE_ADMIN, "revoked");
    gs_rpc_client *client = open_client(it, &file, 0);
    await_let_in(client);
    assert_ok(gs_key_store_change(it->keys, revoke, "revoked"));
    check_shut_out(it, client, GS_RPC_KEY_REFUSED);
}

static gs_status expire(gs_key_list *list, void *ctx) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].name, ctx) == 0) list->items[i].expires_ms = gs_wall_ms();
    return gs_ok();
}

static void whose_key_expires_calls_nothing_from_then_on(void **state) {
    stage *it = *state;
    gs_key_file file;
    make_key(it, &file, GS_ROLE_ADMIN, "expired");
    gs_rpc_client *client = open_client(it, &file, 0);
    await_let_in(client);
    assert_ok(gs_key_store_change(it->keys, expire, "expired"));
    check_shut_out(it, client, GS_RPC_KEY_REFUSED);
}

// A worker of one slot gets a rank to start, and tells the key of that.
static void become_rank(stage *it) {
    uint64_t incarnation;
    char text[512], shown[GS_CURVE_KEY_TEXT_BYTES], number[32];
    uint64_t agent = gs_random_from_system() >> 1 | 1;
    it->agent = open_client(it, &it->files[GS_ROLE_AGENT], agent);
    snprintf(text, sizeof text, "{\"worker\":\"%s\",\"host\":\"h\",\"boot_id\":\"b\",\"pid\":1,\"incarnation\":\"%llu\",\"build\":\"t\",\"slots\":1,"
             "\"cores\":1,\"data_root\":\"/\"}", it->files[GS_ROLE_AGENT].name, (unsigned long long)agent);
    gs_json *hello = parse(text), *item = NULL, *made = NULL;
    assert_ok(gs_rpc_stream_open(&it->commands, it->agent, GS_AGENT_HELLO, hello));
    gs_json_release(hello);
    gs_json *job = parse("{\"spec\":{\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":1,\"max\":1},\"steps\":{\"target\":9}}}");
    assert_ok(gs_rpc_call(it->clients[GS_ROLE_OPERATOR], GS_CREATE_JOB, job, &made, WAIT));
    gs_json_release(made);
    gs_json_release(job);
    for (;;) {
        assert_ok(gs_rpc_stream_next(it->commands, &item, WAIT));
        assert_non_null(item);
        if (strcmp(gs_json_string_or(item, "type", ""), "start_rank") == 0) break;
        gs_json_release(item);
    }
    assert_ok(gs_json_read_u64(&incarnation, item, "incarnation"));
    gs_json_release(item);
    gs_key_file *file = &it->files[GS_ROLE_TRAINER];
    *file = (gs_key_file){.name = "rank", .server = it->server.pair.shown};
    assert_ok(gs_curve_pair_draw(&file->pair));
    gs_curve_key_format(shown, &file->pair.shown);
    snprintf(number, sizeof number, "%llu", (unsigned long long)incarnation);
    snprintf(text, sizeof text, "{\"keys\":[{\"slot\":0,\"incarnation\":\"%s\",\"public\":\"%s\"}]}", number, shown);
    gs_json *keys = parse(text);
    gs_rpc_send(it->agent, GS_RANK_KEYS, keys);
    gs_json_release(keys);
    it->clients[GS_ROLE_TRAINER] = open_client(it, file, incarnation);
    await_let_in(it->clients[GS_ROLE_TRAINER]);
}

static int set_up(void **state) {
    stage *it = calloc(1, sizeof *it);
    *state = it;
    it->process.flag = "--require-key";
    assert_ok(gs_coordinator_process_start(&it->process));
    snprintf(it->data, sizeof it->data, "%s/data", it->process.directory);
    gs_key_store_path(it->keys, it->data);
    assert_ok(gs_key_store_server(&it->server, it->data, NULL));
    assert_ok(gs_rpc_context_create(&it->context));
    for (int role = GS_ROLE_AGENT; role < NUM_ROLES; role++) {
        const char *name = gs_key_role_name((gs_role)role);
        if (!name) continue;
        make_key(it, &it->files[role], (gs_role)role, name);
        it->clients[role] = open_client(it, &it->files[role], 0);
        await_let_in(it->clients[role]);
    }
    become_rank(it);
    return 0;
}

static int tear_down(void **state) {
    stage *it = *state;
    gs_rpc_stream_close(it->commands);
    gs_rpc_client_close(it->agent);
    for (int role = 0; role < NUM_ROLES; role++)
        if (it->clients[role]) gs_rpc_client_close(it->clients[role]);
    gs_rpc_context_destroy(it->context);
    gs_coordinator_process_release(&it->process);
    free(it);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_of_each_role_calls_what_the_table_says_and_nothing_else),
        cmocka_unit_test(what_was_refused_has_changed_nothing_and_is_in_the_audit),
        cmocka_unit_test(who_shows_no_key_calls_nothing),
        cmocka_unit_test(who_shows_a_key_that_is_not_known_calls_nothing),
        cmocka_unit_test(whose_key_is_revoked_calls_nothing_from_then_on),
        cmocka_unit_test(whose_key_expires_calls_nothing_from_then_on),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
