// A worker that enrols does not lose the only key that the coordinator knows of it.
#include "worker/own_key.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/thread.h"
#include "rpc/keys/key_store.h"
#include "rpc/server/rpc_server.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

typedef struct stage {
    char *dir, keys[GS_KEY_PATH_BYTES], token[300], path[300], made[310], endpoint[128];
    gs_rpc_context *context;
    gs_key_gate *gate;
    gs_rpc_server *server;
    gs_thread *thread;
    atomic_int of_token, of_key;  // a gs_code: what is answered to whom
    _Atomic(const char *) name;   // and how the worker is called then
    atomic_int num_asked;
} stage;

static void answer(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    stage *it = ctx;
    (void)request;
    gs_code code = (gs_code)atomic_load(peer->caller.role == GS_ROLE_ENROL ? &it->of_token : &it->of_key);
    gs_json *reply = gs_json_new_object();
    gs_json_set_string(reply, "name", atomic_load(&it->name));
    atomic_fetch_add(&it->num_asked, 1);
    gs_rpc_reply(call, code ? gs_error(code, "said no") : gs_ok(), reply);
}

static void run(void *ctx, const atomic_bool *stopping) {
    stage *it = ctx;
    while (!atomic_load(stopping)) {
        gs_status status = gs_rpc_server_turn(it->server, -1, gs_deadline_in_ms(10));
        if (status.code) abort();
    }
}

static void make_token(stage *it, const gs_key_file *server) {
    gs_known_key known = {.name = "one", .role = GS_ROLE_ENROL};
    gs_key_file key;
    char text[GS_ENROL_TOKEN_BYTES];
    assert_ok(gs_key_store_make(it->keys, &known, &key));
    gs_enrol_token_format(text, &server->pair.shown, &key.pair.secret);
    FILE *file = fopen(it->token, "w");
    assert_non_null(file);
    fprintf(file, "%s\n", text);
    assert_int_equal(fchmod(fileno(file), 0600), 0);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state) {
    stage *it = calloc(1, sizeof *it);
    gs_key_file server;
    it->dir = gs_temp_dir_make();
    it->name = "one";
    gs_key_store_path(it->keys, it->dir);
    snprintf(it->token, sizeof it->token, "%s/token", it->dir);
    snprintf(it->path, sizeof it->path, "%s/worker.key", it->dir);
    snprintf(it->made, sizeof it->made, "%s.new", it->path);
    assert_ok(gs_key_store_server(&server, it->dir, NULL));
    make_token(it, &server);
    assert_ok(gs_rpc_context_create(&it->context));
    assert_ok(gs_key_gate_open(&it->gate, it->context, &server.pair, it->keys));
    gs_rpc_server_options options = {
        .endpoints = {"tcp://127.0.0.1:0"}, .guarded = {true}, .gate = it->gate, .coordinator_epoch = 1, .ctx = it};
    options.handlers[GS_ENROL] = answer;
    assert_ok(gs_rpc_server_open(&it->server, it->context, &options));
    snprintf(it->endpoint, sizeof it->endpoint, "%s", gs_rpc_server_endpoint(it->server, 0));
    assert_ok(gs_thread_start(&it->thread, "server", run, it));
    *state = it;
    return 0;
}

static int tear_down(void **state) {
    stage *it = *state;
    gs_thread_stop(it->thread);
    gs_rpc_server_close(it->server);
    gs_key_gate_close(it->gate);
    gs_rpc_context_destroy(it->context);
    gs_temp_dir_remove(it->dir);
    free(it);
    return 0;
}

static gs_status settle(const stage *it) {
    gs_own_key own;
    const gs_own_key_options options = {
        .context = it->context, .coordinator = it->endpoint, .path = it->path, .enrol = it->token, .name = "one", .host = "here"};
    return gs_own_key_settle(&own, &options);
}

// As if an earlier try had enrolled with it, and its answer had been lost: the coordinator knows the key.
static void make_known(const stage *it) {
    gs_known_key known = {.name = "one", .role = GS_ROLE_AGENT};
    gs_key_file key, server;
    assert_ok(gs_key_store_server(&server, it->dir, NULL));
    assert_ok(gs_key_store_make(it->keys, &known, &key));
    key.server = server.pair.shown;
    assert_ok(gs_key_file_write(&key, it->made));
    gs_key_gate_look(it->gate);
}

static bool is_there(const char *path) { return access(path, F_OK) == 0; }

static void what_was_enrolled_gets_its_name(void **state) {
    stage *it = *state;
    gs_key_file key;
    it->name = "called-otherwise";
    assert_ok(settle(it));
    assert_ok(gs_key_file_read(&key, NULL, it->path));
    assert_string_equal(key.name, "called-otherwise");
    assert_false(is_there(it->made));
}

// The token has been used, and of the key nobody says that it is refused.
static void a_key_stays_while_nobody_refuses_it(void **state) {
    stage *it = *state;
    it->of_token = GS_PERMISSION_DENIED;
    it->of_key = GS_INTERNAL;
    make_known(it);
    gs_status status = settle(it);
    assert_int_equal(status.code, GS_INTERNAL);
    assert_int_equal(atomic_load(&it->num_asked), 2);
    assert_true(is_there(it->made));
    it->of_key = GS_OK;
    assert_ok(settle(it));
    assert_true(is_there(it->path));
    assert_false(is_there(it->made));
}

static void who_is_refused_keeps_nothing(void **state) {
    stage *it = *state;
    it->of_token = it->of_key = GS_PERMISSION_DENIED;
    make_known(it);
    assert_int_equal(settle(it).code, GS_PERMISSION_DENIED);
    assert_false(is_there(it->made));
    assert_false(is_there(it->path));
}

// With it whoever reads it would enrol in this one's place.
static void a_token_that_others_may_read_is_not_taken(void **state) {
    stage *it = *state;
    assert_int_equal(chmod(it->token, 0644), 0);
    gs_status status = settle(it);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, it->token));
    assert_non_null(strstr(status.message, "others than its owner may read or change it"));
    assert_int_equal(atomic_load(&it->num_asked), 0);
    assert_false(is_there(it->made));
    assert_int_equal(chmod(it->token, 0640), 0);  // a group may read it, as it may a key
    assert_ok(settle(it));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(what_was_enrolled_gets_its_name),
        TEST(a_key_stays_while_nobody_refuses_it),
        TEST(who_is_refused_keeps_nothing),
        TEST(a_token_that_others_may_read_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
