#include "tests/unit/rpc/rpc_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void end_streams(rpc_fixture *fixture) {
    for (int i = 0; i < MAX_HELD; i++) {
        if (fixture->streams[i]) gs_rpc_end(fixture->streams[i], gs_error(GS_UNAVAILABLE, "nobody was heard"));
        fixture->streams[i] = NULL;
    }
}

static void echo(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                 const gs_json *request) {
    rpc_fixture *fixture = ctx;
    (void)peer;
    if (atomic_load(&fixture->echo_ends_streams)) end_streams(fixture);
    gs_json *reply = gs_json_copy(request);
    if (!reply) reply = gs_json_new_object();
    gs_json_set_int(reply, "run", atomic_fetch_add(&fixture->num_calls, 1) + 1);
    gs_rpc_reply(call, gs_ok(), reply);
}

static void refuse(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                   const gs_json *request) {
    (void)ctx;
    (void)peer;
    (void)request;
    gs_json *details = gs_json_new_object();
    gs_json_set_string(details, "code", "wrong_state");
    gs_rpc_reply(call, gs_error(GS_FAILED_PRECONDITION, "the job has ended"), details);
}

static void keep(gs_rpc_call_handle **list, atomic_int *count, gs_rpc_call_handle *call) {
    for (int i = 0; i < MAX_HELD; i++) {
        if (list[i]) continue;
        list[i] = call;
        atomic_fetch_add(count, 1);
        return;
    }
    gs_rpc_reply(call, gs_error(GS_RESOURCE_EXHAUSTED, "no room in the fixture"), NULL);
}

static void hold(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                 const gs_json *request) {
    rpc_fixture *fixture = ctx;
    (void)peer;
    (void)request;
    keep(fixture->held, &fixture->num_held, call);
}

static void watch(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                  const gs_json *request) {
    rpc_fixture *fixture = ctx;
    (void)peer;
    int64_t count = gs_json_int_or(request, "count", 0);
    for (int64_t i = 0; i < count && !fixture->refused_item.code; i++) {
        gs_json *item = gs_json_new_object();
        gs_json_set_int(item, "index", i);
        char *padding = calloc(1, (size_t)gs_json_int_or(request, "padding", 0) + 1);
        memset(padding, 'x', (size_t)gs_json_int_or(request, "padding", 0));
        gs_json_set_string(item, "padding", padding);
        free(padding);
        gs_status status = gs_rpc_item(call, item);
        if (status.code) fixture->refused_item = status;
    }
    if (gs_json_bool_or(request, "end", false))
        gs_rpc_end(call, gs_ok());
    else
        keep(fixture->streams, &fixture->num_streams, call);
}

static void count_one_way(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                          const gs_json *request) {
    rpc_fixture *fixture = ctx;
    (void)peer;
    (void)request;
    assert_null(call);
    atomic_fetch_add(&fixture->num_one_way, 1);
}

static void stand(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                  const gs_json *request) {
    (void)ctx;
    (void)peer;
    (void)request;
    gs_sleep_ns(3200 * GS_NS_PER_MS);
    gs_rpc_reply(call, gs_ok(), NULL);
}

static void release_held(rpc_fixture *fixture) {
    for (int i = 0; i < MAX_HELD; i++) {
        if (!fixture->held[i]) continue;
        gs_json *reply = gs_json_new_object();
        gs_json_set_bool(reply, "released", true);
        gs_rpc_reply(fixture->held[i], gs_ok(), reply);
        fixture->held[i] = NULL;
    }
}

static void forget(void *ctx, gs_rpc_call_handle *call) {
    rpc_fixture *fixture = ctx;
    for (int i = 0; i < MAX_HELD; i++) {
        if (fixture->held[i] == call) fixture->held[i] = NULL;
        if (fixture->streams[i] == call) fixture->streams[i] = NULL;
    }
    if (atomic_load(&fixture->all_end_with_one)) release_held(fixture);
    atomic_fetch_add(&fixture->num_gone_calls, 1);
}

static void flood_streams(rpc_fixture *fixture) {
    for (int i = 0; i < MAX_HELD; i++) {
        for (int j = 0; fixture->streams[i] && j < 100; j++) {
            gs_status status = gs_rpc_item(fixture->streams[i], gs_json_new_object());
            (void)status;  // until nothing more fits
        }
    }
}

static void publish_stats(rpc_fixture *fixture) {
    gs_rpc_server_stats stats;
    gs_rpc_server_get_stats(fixture->server, &stats);
    atomic_store(&fixture->malformed, stats.dropped_malformed);
    atomic_store(&fixture->stale, stats.dropped_stale);
    atomic_store(&fixture->repeated, stats.repeated);
    atomic_store(&fixture->connections, stats.connections);
    atomic_store(&fixture->calls_open, stats.calls_open);
    atomic_store(&fixture->sent, stats.sent);
    atomic_store(&fixture->flood, stats.dropped_flood);
    atomic_store(&fixture->accepted, stats.accepted);
    atomic_store(&fixture->failed_handshakes, stats.failed_handshakes);
    atomic_store(&fixture->heard, stats.heard);
    atomic_store(&fixture->silent, stats.silent);
    atomic_store(&fixture->num_gone_peers, (int)stats.lost);
}

static void run_server(void *ctx, const atomic_bool *stopping) {
    rpc_fixture *fixture = ctx;
    while (!atomic_load(stopping)) {
        if (atomic_load(&fixture->paused)) {
            gs_sleep_ns(GS_NS_PER_MS);
            continue;
        }
        atomic_fetch_add(&fixture->num_turns, 1);
        gs_status status = gs_rpc_server_turn(fixture->server, -1, gs_deadline_in_ms(5));
        assert_int_equal(status.code, GS_OK);
        if (atomic_load(&fixture->release_held)) release_held(fixture);
        if (atomic_load(&fixture->flood_streams)) flood_streams(fixture);
        publish_stats(fixture);
    }
}

void start_fixture(rpc_fixture *fixture, const char *endpoint, uint32_t coordinator_epoch) {
    gs_status status = gs_ok();
    if (!fixture->context) status = gs_rpc_context_create(&fixture->context);
    assert_int_equal(status.code, GS_OK);
    gs_rpc_server_options options = {.coordinator_epoch = coordinator_epoch,
                                     .pings_a_second = fixture->pings_a_second,
                                     .ctx = fixture,
                                     .call_gone = forget};
    options.endpoints[0] = endpoint;
    options.handlers[GS_GET_JOB] = echo;
    options.handlers[GS_BYE] = echo;
    options.handlers[GS_GET_SYSTEM] = stand;
    options.handlers[GS_STOP_JOB] = refuse;
    options.handlers[GS_EXCHANGE] = hold;
    options.handlers[GS_READ_LOGS] = hold;
    options.handlers[GS_WATCH] = watch;
    options.handlers[GS_HELLO] = watch;
    options.handlers[GS_HEARTBEAT] = count_one_way;
    // A port that was closed a moment ago is free when ZeroMQ's thread has got round to it.
    gs_deadline deadline = WAIT;
    do {
        status = gs_rpc_server_open(&fixture->server, fixture->context, &options);
    } while (status.code == GS_FAILED_PRECONDITION && !gs_deadline_passed(deadline));
    assert_string_equal(status.message, "");
    snprintf(fixture->endpoint, sizeof fixture->endpoint, "%s",
             gs_rpc_server_endpoint(fixture->server, 0));
    status = gs_thread_start(&fixture->thread, "server", run_server, fixture);
    assert_int_equal(status.code, GS_OK);
}

void stop_server(rpc_fixture *fixture) {
    gs_thread_stop(fixture->thread);
    gs_rpc_server_close(fixture->server);
    memset(fixture->held, 0, sizeof fixture->held);
    memset(fixture->streams, 0, sizeof fixture->streams);
    fixture->thread = NULL;
    fixture->server = NULL;
}

void stop_fixture(rpc_fixture *fixture) {
    stop_server(fixture);
    gs_rpc_context_destroy(fixture->context);
    fixture->context = NULL;
}

gs_rpc_client *open_client(rpc_fixture *fixture) {
    gs_rpc_client *client = NULL;
    gs_rpc_client_options options = {.endpoint = fixture->endpoint};
    gs_status status = gs_rpc_client_open(&client, fixture->context, &options);
    assert_int_equal(status.code, GS_OK);
    return client;
}

void wait_for_count(atomic_int *counter, int value) {
    gs_deadline deadline = WAIT;
    while (atomic_load(counter) != value) {
        if (gs_deadline_passed(deadline))
            fail_msg("count is %d, not %d", atomic_load(counter), value);
        gs_sleep_ns(GS_NS_PER_MS);
    }
}

void wait_for_total(atomic_ullong *counter, unsigned long long value) {
    gs_deadline deadline = WAIT;
    while (atomic_load(counter) != value) {
        if (gs_deadline_passed(deadline))
            fail_msg("total is %llu, not %llu", atomic_load(counter), value);
        gs_sleep_ns(GS_NS_PER_MS);
    }
}
