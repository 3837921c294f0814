// Every method of the table, asked by a key of every role, over a real connection.
#include "rpc/server/key_gate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

#include "core/thread.h"
#include "rpc/client/rpc_client.h"
#include "rpc/keys/key_store.h"
#include "rpc/server/rpc_server.h"
#include "tests/support/asserts.h"

#define WAIT gs_deadline_in_seconds(20)

// What each key may, written down once more: rows are keys, columns what methods ask for, in the order of gs_role.
static const struct {
    gs_role key;
    const char *may;  // anybody, agent, trainer, enrol, metrics, viewer, operator, admin
} matrix[] = {{GS_ROLE_AGENT, "yyyy...."}, {GS_ROLE_ENROL, "y..y...."},    {GS_ROLE_METRICS, "y...y..."},
              {GS_ROLE_VIEWER, "y...yy.."}, {GS_ROLE_OPERATOR, "y...yyy."}, {GS_ROLE_ADMIN, "y...yyyy"}};
enum { NUM_KEYS = sizeof matrix / sizeof *matrix };

typedef struct stage {
    char dir[64], keys[GS_KEY_PATH_BYTES], endpoint[128];
    gs_rpc_context *context;
    gs_key_gate *gate;
    gs_rpc_server *server;
    gs_thread *thread;
    gs_key_file server_key, files[NUM_KEYS];
    gs_known_key known[NUM_KEYS];
    atomic_int handled;
    atomic_ullong refused, revoked, lost, failed_handshakes, silent;
    char caller[GS_KEY_NAME_BYTES];  // of the last call; read behind its answer
} stage;

static void answer(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    stage *it = ctx;
    (void)request;
    memcpy(it->caller, peer->caller.name, sizeof it->caller);
    atomic_fetch_add(&it->handled, 1);
    if (call) gs_rpc_reply(call, gs_ok(), NULL);
}

static gs_status count(void *ctx, const gs_rpc_peer *peer, const void *record, size_t bytes) {
    stage *it = ctx;
    (void)peer;
    (void)record;
    (void)bytes;
    atomic_fetch_add(&it->handled, 1);
    return gs_ok();
}

static void run(void *ctx, const atomic_bool *stopping) {
    stage *it = ctx;
    while (!atomic_load(stopping)) {
        gs_status status = gs_rpc_server_turn(it->server, -1, gs_deadline_in_ms(10));
        if (status.code) abort();
        gs_rpc_server_stats stats;
        gs_rpc_server_get_stats(it->server, &stats);
        atomic_store(&it->refused, stats.refused);
        atomic_store(&it->revoked, stats.revoked);
        atomic_store(&it->lost, stats.lost);
        atomic_store(&it->failed_handshakes, stats.failed_handshakes);
        atomic_store(&it->silent, stats.silent);
    }
}

static void make_keys(stage *it) {
    for (int i = 0; i < NUM_KEYS; i++) {
        it->known[i] = (gs_known_key){.role = matrix[i].key};
        snprintf(it->known[i].name, sizeof it->known[i].name, "key-%s", gs_key_role_name(matrix[i].key));
        assert_ok(gs_key_store_make(it->keys, &it->known[i], &it->files[i]));
        it->files[i].server = it->server_key.pair.shown;
    }
}

static void open_stage(stage *it) {
    snprintf(it->dir, sizeof it->dir, "/tmp/gradsync-gate.XXXXXX");
    assert_non_null(mkdtemp(it->dir));
    gs_key_store_path(it->keys, it->dir);
    assert_ok(gs_key_store_server(&it->server_key, it->dir, NULL));
    make_keys(it);
    assert_ok(gs_rpc_context_create(&it->context));
    assert_ok(gs_key_gate_open(&it->gate, it->context, &it->server_key.pair, it->keys));
    gs_rpc_server_options options = {
        .endpoints = {"tcp://127.0.0.1:0"}, .guarded = {true}, .gate = it->gate, .coordinator_epoch = 1, .ctx = it};
    for (int i = 1; i < GS_NUM_METHODS; i++) {
        if (i == GS_STEP_RECORD) options.record_handlers[i] = count;
        else options.handlers[i] = answer;
    }
    assert_ok(gs_rpc_server_open(&it->server, it->context, &options));
    snprintf(it->endpoint, sizeof it->endpoint, "%s", gs_rpc_server_endpoint(it->server, 0));
    assert_ok(gs_thread_start(&it->thread, "server", run, it));
}

static void close_stage(stage *it) {
    char command[128];
    gs_thread_stop(it->thread);
    gs_rpc_server_close(it->server);
    gs_key_gate_close(it->gate);
    gs_rpc_context_destroy(it->context);
    snprintf(command, sizeof command, "rm -rf %s", it->dir);
    assert_int_equal(system(command), 0);
}

static gs_status copy_key(void *ctx, gs_key_file *key) {
    *key = *(const gs_key_file *)ctx;
    return gs_ok();
}

static gs_rpc_client *open_client(stage *it, gs_key_file *key, uint64_t incarnation) {
    gs_rpc_client *client = NULL;
    gs_rpc_client_options options = {.endpoint = it->endpoint, .incarnation = incarnation};
    if (key) options.source = (gs_rpc_key_source){copy_key, key};
    assert_ok(gs_rpc_client_open(&client, it->context, &options));
    return client;
}

static gs_status ask(gs_rpc_client *client, gs_method method) {
    const gs_method_info *info = gs_method_info_of(method);
    if (info->shape == GS_CALL) return gs_rpc_call(client, method, NULL, NULL, WAIT);
    gs_rpc_stream *stream = NULL;
    gs_json *item = NULL;
    gs_status status = gs_rpc_stream_open(&stream, client, method, NULL);
    if (!status.code) status = gs_rpc_stream_next(stream, &item, WAIT);
    gs_rpc_stream_close(stream);
    return status;
}

// Nothing answers a one-way message; the call behind it on the same connection does.
static bool is_heard(stage *it, gs_rpc_client *client, gs_method method) {
    int before = atomic_load(&it->handled);
    if (method == GS_STEP_RECORD) gs_rpc_send_record(client, method, "x", 1);
    else gs_rpc_send(client, method, NULL);
    assert_ok(gs_rpc_call(client, GS_GET_HEALTH, NULL, NULL, WAIT));
    return atomic_load(&it->handled) == before + 2;
}

static void each_method_is_for_the_roles_that_it_names(void **state) {
    (void)state;
    stage it = {0};
    open_stage(&it);
    int refused = 0, for_anybody = 0;
    for (int k = 0; k < NUM_KEYS; k++) {
        gs_rpc_client *client = open_client(&it, &it.files[k], 0);
        assert_ok(gs_rpc_call(client, GS_GET_HEALTH, NULL, NULL, WAIT));
        assert_string_equal(it.caller, it.known[k].name);
        for (int m = 1; m < GS_NUM_METHODS; m++) {
            const gs_method_info *info = gs_method_info_of((gs_method)m);
            assert_non_null(info);
            bool may = matrix[k].may[info->role] == 'y';
            int before = atomic_load(&it.handled);
            for_anybody += info->role == GS_ROLE_ANYBODY;
            refused += !may;
            if (info->shape == GS_ONE_WAY) {
                if (is_heard(&it, client, (gs_method)m) != may) fail_msg("%s by %s", info->name, it.known[k].name);
                continue;
            }
            gs_status status = ask(client, (gs_method)m);
            if (status.code != (may ? GS_OK : GS_PERMISSION_DENIED))
                fail_msg("%s by %s: %d %s", info->name, it.known[k].name, (int)status.code, status.message);
            assert_int_equal(atomic_load(&it.handled), before + may);
        }
        gs_rpc_client_close(client);
    }
    assert_int_equal(for_anybody, NUM_KEYS);  // GetHealth alone: another one is a decision
    gs_sleep_ns(50 * GS_NS_PER_MS);
    assert_int_equal(atomic_load(&it.refused), refused);
    close_stage(&it);
}

static void wait_refused(gs_rpc_client *client, gs_rpc_refusal refusal) {
    for (gs_deadline deadline = WAIT; gs_rpc_client_refusal(client) != refusal; gs_sleep_ns(10 * GS_NS_PER_MS))
        if (gs_deadline_passed(deadline)) fail_msg("refusal %d, not %d", (int)gs_rpc_client_refusal(client), (int)refusal);
    assert_false(gs_rpc_client_connected(client));
}

static void strangers_are_not_let_in(void **state) {
    (void)state;
    stage it = {0};
    open_stage(&it);
    gs_key_file unknown = it.files[0], elsewhere = it.files[0];
    assert_ok(gs_curve_pair_draw(&unknown.pair));
    gs_curve_pair other;
    assert_ok(gs_curve_pair_draw(&other));
    elsewhere.server = other.shown;
    gs_rpc_client *plain = open_client(&it, NULL, 0), *stranger = open_client(&it, &unknown, 0),
                  *lost = open_client(&it, &elsewhere, 0);
    wait_refused(plain, GS_RPC_OTHER_SERVER);
    wait_refused(stranger, GS_RPC_KEY_REFUSED);
    wait_refused(lost, GS_RPC_OTHER_SERVER);
    gs_rpc_client_close(plain);
    gs_rpc_client_close(stranger);
    gs_rpc_client_close(lost);
    assert_int_equal(atomic_load(&it.handled), 0);
    close_stage(&it);
}

// A connection whose key is not let in is one of the gate's, and none whose handshake came to nothing.
static void a_refused_connection_is_counted_by_its_reason_alone(void **state) {
    (void)state;
    stage it = {0};
    open_stage(&it);
    gs_key_file unknown = it.files[0];
    assert_ok(gs_curve_pair_draw(&unknown.pair));
    gs_rpc_client *stranger = open_client(&it, &unknown, 0);
    wait_refused(stranger, GS_RPC_KEY_REFUSED);
    gs_rpc_client_close(stranger);
    gs_deadline deadline = gs_deadline_in_seconds(60);
    while (atomic_load(&it.silent) && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    assert_int_equal(atomic_load(&it.silent), 0);
    gs_key_gate_stats stats;
    gs_key_gate_get_stats(it.gate, &stats);
    assert_true(stats.refused_unknown >= 1);
    assert_int_equal(atomic_load(&it.failed_handshakes), 0);
    gs_rpc_client *plain = open_client(&it, NULL, 0);  // another mechanism: nobody is asked
    wait_refused(plain, GS_RPC_OTHER_SERVER);
    gs_rpc_client_close(plain);
    while (!atomic_load(&it.failed_handshakes) && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    assert_true(atomic_load(&it.failed_handshakes) >= 1);
    uint64_t refused = stats.refused_unknown;
    gs_key_gate_get_stats(it.gate, &stats);
    assert_int_equal(stats.refused_unknown, refused);
    close_stage(&it);
}

// What comes back to a Hello of an earlier version of the protocol.
static gs_status say_hello_of_earlier_version(stage *it, const gs_key_file *key) {
    static const char body[] = "{\"worker\":\"somebody\",\"host\":\"here\",\"build\":\"x\"}";
    gs_frame frame = {.proto = GS_PROTOCOL_LEAST - 1, .kind = GS_FRAME_REQUEST, .method = GS_AGENT_HELLO, .incarnation = 5, .seq = 1};
    gs_zmq_socket client;
    gs_zmq_message answer;
    uint8_t header[GS_FRAME_HEADER_BYTES];
    assert_ok(gs_zmq_socket_open(&client, it->context, ZMQ_DEALER, ZMQ_EVENT_CONNECTED));
    assert_ok(gs_zmq_show_key(&client, &key->pair, &key->server));
    assert_int_equal(zmq_connect(client.socket, it->endpoint), 0);
    gs_frame_pack(header, &frame, body, strlen(body));
    assert_true(zmq_send(client.socket, header, sizeof header, ZMQ_SNDMORE) > 0);
    assert_true(zmq_send(client.socket, body, strlen(body), 0) > 0);
    zmq_pollitem_t item = {.socket = client.socket, .events = ZMQ_POLLIN};
    assert_int_equal(zmq_poll(&item, 1, 20000), 1);
    assert_int_equal(gs_zmq_receive(&client, &answer, false), GS_ZMQ_MESSAGE);
    gs_json *told = NULL;
    gs_status parsed = gs_json_parse(&told, zmq_msg_data(&answer.body), zmq_msg_size(&answer.body));
    assert_ok(parsed);
    char *text = NULL;
    assert_ok(gs_json_encode(&text, NULL, told, false));
    gs_status status = gs_error(strstr(text, "may not call") ? GS_PERMISSION_DENIED : GS_FAILED_PRECONDITION, "%s", text);
    free(text);
    gs_json_release(told);
    gs_zmq_message_release(&answer);
    gs_zmq_socket_close(&client);
    return status;
}

static void another_version_is_read_of_nobody_who_may_not_say_it(void **state) {
    (void)state;
    stage it = {0};
    open_stage(&it);
    for (int k = 0; k < NUM_KEYS; k++) {
        bool may = matrix[k].may[GS_ROLE_AGENT] == 'y';
        gs_status status = say_hello_of_earlier_version(&it, &it.files[k]);
        assert_int_equal(status.code, may ? GS_FAILED_PRECONDITION : GS_PERMISSION_DENIED);
        if ((strstr(status.message, "somebody") != NULL) != may) fail_msg("%s", status.message);
    }
    assert_int_equal(atomic_load(&it.handled), 0);
    close_stage(&it);
}

// The server's thread tells what it has done behind its turn.
static void wait_revoked(stage *it, unsigned long long count) {
    for (gs_deadline deadline = WAIT; atomic_load(&it->revoked) < count && !gs_deadline_passed(deadline);)
        gs_sleep_ns(5 * GS_NS_PER_MS);
    assert_int_equal(atomic_load(&it->revoked), count);
}

static gs_status revoke_id(gs_key_list *list, void *ctx) {
    int num_revoked;
    return gs_key_list_revoke(list, ctx, gs_wall_ms(), &num_revoked);
}

static gs_rank_key make_rank(const stage *it, gs_key_file *file, uint64_t incarnation) {
    gs_rank_key rank = {.incarnation = incarnation};
    *file = it->files[0];
    assert_ok(gs_curve_pair_draw(&file->pair));
    rank.shown = file->pair.shown;
    memcpy(rank.owner, it->known[0].id, sizeof rank.owner);
    snprintf(rank.worker, sizeof rank.worker, "%s", it->known[0].name);
    return rank;
}

static void the_key_of_a_rank_is_that_rank_alone(void **state) {
    (void)state;
    stage it = {0};
    gs_key_file file;
    open_stage(&it);
    gs_rank_key rank = make_rank(&it, &file, 77);
    assert_true(gs_key_gate_add_rank(it.gate, &rank));
    gs_rpc_client *client = open_client(&it, &file, 77);
    for (int m = 1; m < GS_NUM_METHODS; m++) {
        const gs_method_info *info = gs_method_info_of((gs_method)m);
        bool may = info->role == GS_ROLE_TRAINER || info->role == GS_ROLE_ANYBODY;
        if (info->shape == GS_ONE_WAY) {
            if (is_heard(&it, client, (gs_method)m) != may) fail_msg("%s", info->name);
            continue;
        }
        gs_status status = ask(client, (gs_method)m);
        if (status.code != (may ? GS_OK : GS_PERMISSION_DENIED)) fail_msg("%s: %s", info->name, status.message);
    }
    assert_string_equal(it.caller, it.known[0].name);
    // Another rank of the same worker, its agent, somebody new.
    gs_rpc_client *other = open_client(&it, &file, 78);
    assert_int_not_equal(gs_rpc_call(other, GS_READY, NULL, NULL, gs_deadline_in_ms(1500)).code, GS_OK);
    gs_rpc_client_close(other);
    assert_ok(gs_rpc_call(client, GS_READY, NULL, NULL, WAIT));
    // Told again, as behind a reconnect of its agent: its connections stay.
    assert_true(gs_key_gate_add_rank(it.gate, &rank));
    gs_key_gate_look(it.gate);
    assert_ok(gs_rpc_call(client, GS_READY, NULL, NULL, WAIT));
    assert_int_equal(atomic_load(&it.revoked), 0);
    gs_rpc_client_close(client);
    gs_rpc_caller owner = {.is_known = true}, somebody = {.is_known = true};
    snprintf(owner.name, sizeof owner.name, "%s", it.known[0].name);
    snprintf(somebody.name, sizeof somebody.name, "somebody");
    gs_rpc_caller found;
    gs_key_gate_drop_rank(it.gate, 77, &somebody);
    assert_true(gs_key_gate_find(it.gate, "r-000000000001", &found));
    assert_int_equal(found.incarnation, 77);
    gs_key_gate_drop_rank(it.gate, 77, &owner);
    assert_false(gs_key_gate_find(it.gate, "r-000000000001", &found));
    client = open_client(&it, &file, 77);
    wait_refused(client, GS_RPC_KEY_REFUSED);
    gs_rpc_client_close(client);
    close_stage(&it);
}

static void the_key_of_a_rank_ends_with_its_workers(void **state) {
    (void)state;
    stage it = {0};
    gs_key_file file;
    open_stage(&it);
    gs_rank_key rank = make_rank(&it, &file, 77), known = rank;
    known.shown = it.known[3].shown;  // of a viewer: a rank takes nobody's key
    assert_false(gs_key_gate_add_rank(it.gate, &known));
    assert_true(gs_key_gate_add_rank(it.gate, &rank));
    gs_rpc_client *client = open_client(&it, &file, 77);
    assert_ok(gs_rpc_call(client, GS_READY, NULL, NULL, WAIT));
    assert_ok(gs_key_store_change(it.keys, revoke_id, it.known[0].id));
    gs_key_gate_look(it.gate);
    wait_refused(client, GS_RPC_KEY_REFUSED);
    wait_revoked(&it, 1);
    gs_rpc_client_close(client);
    close_stage(&it);
}

// An incarnation is no secret to other workers' keys, and with it go the answers that are kept for its repeats.
static void a_session_is_that_of_the_key_that_began_it(void **state) {
    (void)state;
    stage it = {0};
    open_stage(&it);
    gs_rpc_client *owner = open_client(&it, &it.files[0], 77);
    assert_ok(gs_rpc_call(owner, GS_READY, NULL, NULL, WAIT));
    gs_rpc_client *thief = open_client(&it, &it.files[5], 77);
    gs_status status = gs_rpc_call(thief, GS_GET_HEALTH, NULL, NULL, gs_deadline_in_ms(1500));
    assert_int_not_equal(status.code, GS_OK);
    assert_int_equal(atomic_load(&it.lost), 0);  // the owner's connection, for the thief's
    assert_ok(gs_rpc_call(owner, GS_READY, NULL, NULL, WAIT));
    gs_rpc_client_close(thief);
    assert_ok(gs_rpc_call(owner, GS_READY, NULL, NULL, WAIT));
    gs_rpc_client_close(owner);
    close_stage(&it);
}

static void a_revoked_key_is_cut_off_and_its_successor_comes_back(void **state) {
    (void)state;
    stage it = {0};
    open_stage(&it);
    gs_key_file current = it.files[0], next;
    gs_known_key successor = it.known[0];
    gs_rpc_client *client = open_client(&it, &current, 0);
    gs_rpc_stream *stream = NULL;
    assert_ok(gs_rpc_call(client, GS_READY, NULL, NULL, WAIT));
    assert_ok(gs_key_store_make(it.keys, &successor, &next));
    next.server = current.server;
    assert_ok(gs_key_store_change(it.keys, revoke_id, it.known[0].id));
    gs_key_gate_look(it.gate);
    wait_refused(client, GS_RPC_KEY_REFUSED);
    wait_revoked(&it, 1);
    gs_rpc_client_close(client);
    client = open_client(&it, &next, 0);
    assert_ok(gs_rpc_call(client, GS_READY, NULL, NULL, WAIT));
    gs_rpc_stream_close(stream);
    gs_rpc_client_close(client);
    close_stage(&it);
}

// Where no descriptor is free for a moment, the file cannot be read; it does not change again behind that.
static void a_revocation_is_not_lost_by_a_read_that_fails(void **state) {
    (void)state;
    stage it = {0};
    open_stage(&it);
    char fresh[GS_KEY_PATH_BYTES + 8];
    gs_rpc_client *client = open_client(&it, &it.files[0], 0);
    assert_ok(gs_rpc_call(client, GS_READY, NULL, NULL, WAIT));
    snprintf(fresh, sizeof fresh, "%s.fresh", it.keys);
    char command[600];
    snprintf(command, sizeof command, "cp %s %s", it.keys, fresh);
    assert_int_equal(system(command), 0);
    assert_ok(gs_key_store_change(fresh, revoke_id, it.known[0].id));
    struct rlimit usual, none;
    gs_key_gate_stats stats;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    int free_fd = dup(STDERR_FILENO);  // the lowest that is free
    none = (struct rlimit){.rlim_cur = (rlim_t)free_fd, .rlim_max = usual.rlim_max};
    assert_int_equal(close(free_fd), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int moved = rename(fresh, it.keys);
    gs_key_gate_look(it.gate);
    gs_key_gate_get_stats(it.gate, &stats);
    bool was_behind = stats.is_behind;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    assert_int_equal(moved, 0);
    gs_key_gate_look(it.gate);
    gs_key_gate_get_stats(it.gate, &stats);
    assert_true(was_behind);
    assert_false(stats.is_behind);
    wait_refused(client, GS_RPC_KEY_REFUSED);
    gs_rpc_client_close(client);
    close_stage(&it);
}

static gs_status add_known(gs_key_list *list, void *ctx) {
    return gs_key_list_add(list, ctx, gs_wall_ms());
}

static gs_status make_metrics(gs_key_list *list, void *ctx) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].id, ctx) == 0) list->items[i].role = GS_ROLE_METRICS;
    return gs_ok();
}

// Whoever is connected goes by what its key is now.
static void a_key_that_may_less_ends_what_it_has_begun(void **state) {
    (void)state;
    stage it = {0};
    open_stage(&it);
    gs_rpc_client *client = open_client(&it, &it.files[3], 0);
    assert_ok(gs_rpc_call(client, GS_LIST_JOBS, NULL, NULL, WAIT));
    assert_ok(gs_key_store_change(it.keys, make_metrics, it.known[3].id));
    gs_status status = gs_ok();
    for (gs_deadline deadline = WAIT; !status.code && !gs_deadline_passed(deadline); gs_sleep_ns(20 * GS_NS_PER_MS))
        status = gs_rpc_call(client, GS_LIST_JOBS, NULL, NULL, WAIT);
    assert_int_equal(status.code, GS_PERMISSION_DENIED);
    assert_ok(ask(client, GS_GET_METRICS));
    wait_revoked(&it, 1);
    gs_rpc_client_close(client);
    close_stage(&it);
}

// Who enrols names his key's bytes, and need not have its other half.
static void a_key_that_begins_like_another_takes_nobodys_place(void **state) {
    (void)state;
    stage it = {0};
    open_stage(&it);
    gs_known_key twin = {.name = "twin", .role = GS_ROLE_AGENT, .shown = it.known[0].shown};
    twin.shown.bytes[sizeof twin.shown.bytes - 1] ^= 1;
    assert_ok(gs_key_store_change(it.keys, add_known, &twin));
    gs_key_gate_look(it.gate);
    gs_rpc_client *client = open_client(&it, &it.files[0], 0);
    assert_ok(gs_rpc_call(client, GS_READY, NULL, NULL, WAIT));
    assert_string_equal(it.caller, it.known[0].name);
    gs_rpc_client_close(client);
    close_stage(&it);
}

// The answer to who has used it may be on its way when the token has ended.
static void a_used_token_is_cut_off_behind_its_answer(void **state) {
    (void)state;
    stage it = {0};
    open_stage(&it);
    gs_rpc_client *client = open_client(&it, &it.files[1], 0);
    assert_ok(gs_rpc_call(client, GS_ENROL, NULL, NULL, WAIT));
    assert_ok(gs_key_store_change(it.keys, revoke_id, it.known[1].id));
    int64_t changed_ns = gs_now_ns();
    gs_key_gate_look(it.gate);
    for (gs_deadline deadline = WAIT; !atomic_load(&it.revoked); gs_sleep_ns(GS_NS_PER_MS)) assert_false(gs_deadline_passed(deadline));
    assert_true(gs_now_ns() - changed_ns >= 499 * GS_NS_PER_MS);  // a look of the server later
    wait_refused(client, GS_RPC_KEY_REFUSED);
    gs_rpc_client_close(client);
    close_stage(&it);
}

static void assert_owner(const char *dir, const char *name, uid_t owner) {
    char path[256];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(facts.st_uid, owner);
    assert_int_equal(facts.st_mode & 0777, 0600);
}

// `worker.key -> ..data/worker.key`, `..data -> ..2026`, as Kubernetes mounts a secret; and what it leads to is looked at.
static void a_key_is_read_where_a_volume_of_secrets_has_it(void **state) {
    (void)state;
    char dir[] = "/tmp/gradsync-gate.XXXXXX", keys[GS_KEY_PATH_BYTES], path[200], target[200];
    gs_key_file made_file, read;
    gs_known_key made = {.name = "one", .role = GS_ROLE_AGENT};
    gs_file_mark mark, same;
    assert_non_null(mkdtemp(dir));
    gs_key_store_path(keys, dir);
    assert_ok(gs_key_store_make(keys, &made, &made_file));
    snprintf(path, sizeof path, "%s/..2026", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(target, sizeof target, "%s/..2026/worker.key", dir);
    assert_ok(gs_key_file_write(&made_file, target));
    snprintf(path, sizeof path, "%s/..data", dir);
    assert_int_equal(symlink("..2026", path), 0);
    snprintf(path, sizeof path, "%s/worker.key", dir);
    assert_int_equal(symlink("..data/worker.key", path), 0);
    assert_ok(gs_key_file_read(&read, &mark, path));
    assert_ok(gs_file_mark_take(&same, target));
    assert_true(gs_file_mark_equal(&mark, &same));
    assert_string_equal(read.name, "one");
    assert_int_equal(chmod(target, 0440), 0);
    assert_ok(gs_key_file_read(&read, NULL, path));
    assert_int_equal(chmod(target, 0444), 0);
    assert_int_equal(gs_key_file_read(&read, NULL, path).code, GS_FAILED_PRECONDITION);
    snprintf(path, sizeof path, "rm -rf %s", dir);
    assert_int_equal(system(path), 0);
}

static void what_root_makes_is_the_coordinators_users(void **state) {
    (void)state;
    if (geteuid() != 0) skip();
    char dir[] = "/tmp/gradsync-gate.XXXXXX", keys[GS_KEY_PATH_BYTES], command[128];
    gs_key_file server, file;
    gs_known_key made = {.name = "one", .role = GS_ROLE_AGENT};
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chown(dir, 12345, 12346), 0);
    gs_key_store_path(keys, dir);
    assert_ok(gs_key_store_server(&server, dir, NULL));
    assert_ok(gs_key_store_make(keys, &made, &file));
    assert_owner(dir, "control.key", 12345);
    assert_owner(dir, "control.key.lock", 12345);
    assert_owner(dir, "keys.json", 12345);
    assert_owner(dir, "keys.json.lock", 12345);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

static void without_a_handler_no_handshake_succeeds(void **state) {
    (void)state;
    gs_rpc_context *context = NULL;
    gs_zmq_socket server, client;
    gs_curve_pair own, other;
    char endpoint[128];
    size_t bytes = sizeof endpoint;
    int event = 0, value;
    assert_ok(gs_curve_pair_draw(&own));
    assert_ok(gs_curve_pair_draw(&other));
    assert_ok(gs_rpc_context_create(&context));
    assert_ok(gs_zmq_socket_open(&server, context, ZMQ_ROUTER, ZMQ_EVENT_LISTENING));
    assert_ok(gs_zmq_ask_for_keys(&server, &own));
    assert_int_equal(zmq_bind(server.socket, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(server.socket, ZMQ_LAST_ENDPOINT, endpoint, &bytes), 0);
    assert_ok(gs_zmq_socket_open(&client, context, ZMQ_DEALER, ZMQ_EVENT_HANDSHAKE_SUCCEEDED | GS_ZMQ_HANDSHAKE_FAILED));
    assert_ok(gs_zmq_show_key(&client, &other, &own.shown));
    assert_int_equal(zmq_connect(client.socket, endpoint), 0);
    zmq_pollitem_t item = {.socket = client.monitor, .events = ZMQ_POLLIN};
    if (zmq_poll(&item, 1, 20000) > 0) assert_true(gs_zmq_next_event(&client, &event, &value));
    assert_int_not_equal(event, ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
    assert_int_not_equal(event, 0);
    gs_zmq_socket_close(&client);
    gs_zmq_socket_close(&server);
    gs_rpc_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_method_is_for_the_roles_that_it_names),
        cmocka_unit_test(strangers_are_not_let_in),
        cmocka_unit_test(a_refused_connection_is_counted_by_its_reason_alone),
        cmocka_unit_test(another_version_is_read_of_nobody_who_may_not_say_it),
        cmocka_unit_test(without_a_handler_no_handshake_succeeds),
        cmocka_unit_test(the_key_of_a_rank_is_that_rank_alone),
        cmocka_unit_test(the_key_of_a_rank_ends_with_its_workers),
        cmocka_unit_test(a_session_is_that_of_the_key_that_began_it),
        cmocka_unit_test(a_revoked_key_is_cut_off_and_its_successor_comes_back),
        cmocka_unit_test(a_revocation_is_not_lost_by_a_read_that_fails),
        cmocka_unit_test(a_key_that_may_less_ends_what_it_has_begun),
        cmocka_unit_test(a_key_that_begins_like_another_takes_nobodys_place),
        cmocka_unit_test(a_used_token_is_cut_off_behind_its_answer),
        cmocka_unit_test(a_key_is_read_where_a_volume_of_secrets_has_it),
        cmocka_unit_test(what_root_makes_is_the_coordinators_users),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
