#include "worker/control/outbox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "core/thread.h"
#include "rpc/server/rpc_server.h"
#include "tests/support/asserts.h"

#define ENDPOINT "inproc://test-outbox"
#define MAX_CALLS 512

// A coordinator that takes reports of checkpoints, each by its step. What it is sent first it does
// not answer, or refuses. Its fields belong to its thread until it has stopped, but for the atomic
// ones.
typedef struct listener {
    gs_rpc_context *context;
    gs_rpc_server *server;
    gs_thread *thread;
    int num_unanswered;
    int num_refused;       // of the first calls
    int64_t refused_step;  // -1: none
    atomic_bool thinks;    // answers nothing yet
    int64_t steps[MAX_CALLS];
    atomic_int num_calls;
} listener;

static void take(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                 const gs_json *request) {
    listener *to = ctx;
    (void)peer;
    int64_t step = gs_json_int_or(request, "step", -1);
    int number = atomic_load(&to->num_calls);
    if (number < MAX_CALLS) to->steps[number] = step;
    atomic_fetch_add(&to->num_calls, 1);
    if (number < to->num_unanswered) return;
    while (atomic_load(&to->thinks)) gs_sleep_ns(GS_NS_PER_MS);
    gs_status status = step == to->refused_step || number < to->num_refused
                           ? gs_error(GS_ABORTED, "refused")
                           : gs_ok();
    gs_rpc_reply(call, status, NULL);
}

static void run_server(void *ctx, const atomic_bool *stopping) {
    listener *to = ctx;
    while (!atomic_load(stopping)) {
        gs_status status = gs_rpc_server_turn(to->server, -1, gs_deadline_in_ms(5));
        if (status.code) return;
    }
}

typedef struct fixture {
    listener listener;
    gs_rpc_client *client;
    gs_outbox *outbox;
} fixture;

static int open_outbox(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->listener.refused_step = -1;
    assert_ok(gs_rpc_context_create(&f->listener.context));
    gs_rpc_client_options options = {.endpoint = ENDPOINT};
    assert_ok(gs_rpc_client_open(&f->client, f->listener.context, &options));
    assert_ok(gs_outbox_create(&f->outbox, f->client));
    *state = f;
    return 0;
}

static int close_outbox(void **state) {
    fixture *f = *state;
    gs_outbox_destroy(f->outbox);
    gs_thread_stop(f->listener.thread);
    gs_rpc_client_close(f->client);
    gs_rpc_server_close(f->listener.server);
    gs_rpc_context_destroy(f->listener.context);
    free(f);
    return 0;
}

static void start_listening(fixture *f) {
    listener *to = &f->listener;
    gs_rpc_server_options options = {.endpoints = {ENDPOINT}, .coordinator_epoch = 1, .ctx = to};
    options.handlers[GS_CHECKPOINTED] = take;
    assert_ok(gs_rpc_server_open(&to->server, to->context, &options));
    assert_ok(gs_thread_start(&to->thread, "listener", run_server, to));
}

static void stop_listening(fixture *f) {
    gs_thread_stop(f->listener.thread);
    f->listener.thread = NULL;
}

static void push(fixture *f, int64_t step) {
    gs_json *request = gs_json_new_object();
    gs_json_set_int(request, "step", step);
    gs_outbox_push(f->outbox, GS_CHECKPOINTED, request);
}

static void flush(fixture *f) {
    gs_outbox_flush(f->outbox, gs_deadline_in_seconds(60));
}

static void await_calls(fixture *f, int count) {
    gs_deadline deadline = gs_deadline_in_seconds(60);
    while (atomic_load(&f->listener.num_calls) < count && !gs_deadline_passed(deadline))
        gs_sleep_ns(GS_NS_PER_MS);
    assert_true(atomic_load(&f->listener.num_calls) >= count);
}

static void calls_from_before_the_coordinator_arrive_once_and_in_order(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 20; i++) push(f, i);
    start_listening(f);
    for (int i = 20; i < 40; i++) push(f, i);
    flush(f);
    stop_listening(f);
    assert_int_equal(f->listener.num_calls, 40);
    for (int i = 0; i < 40; i++) assert_int_equal(f->listener.steps[i], i);
}

static void what_does_not_fit_is_dropped_and_the_first_arrive(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 400; i++) push(f, i);
    start_listening(f);
    flush(f);
    stop_listening(f);
    // One may be on its way already.
    assert_in_range(f->listener.num_calls, 256, 257);
    for (int i = 0; i < 256; i++) assert_int_equal(f->listener.steps[i], i);
}

static void a_refused_call_is_not_repeated(void **state) {
    fixture *f = *state;
    f->listener.refused_step = 1;
    start_listening(f);
    for (int i = 0; i < 3; i++) push(f, i);
    flush(f);
    stop_listening(f);
    assert_int_equal(f->listener.num_calls, 3);
    assert_int_equal(f->listener.steps[2], 2);
}

static void what_is_not_answered_is_sent_again(void **state) {
    fixture *f = *state;
    f->listener.num_unanswered = 1;
    start_listening(f);
    push(f, 7);
    flush(f);
    stop_listening(f);
    assert_int_equal(f->listener.num_calls, 2);
    assert_int_equal(f->listener.steps[1], 7);
}

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void a_held_outbox_sends_nothing_and_rests(void **state) {
    fixture *f = *state;
    f->listener.num_unanswered = MAX_CALLS;
    start_listening(f);
    push(f, 7);
    await_calls(f, 1);
    gs_outbox_hold(f->outbox, true);
    // The call on its way ends without an answer, after a second; then the outbox is held.
    double before = cpu_seconds();
    gs_sleep_ns(3 * GS_NS_PER_SEC);
    assert_int_equal(atomic_load(&f->listener.num_calls), 1);
    assert_true(cpu_seconds() - before < 1.5);
    gs_outbox_hold(f->outbox, false);
    await_calls(f, 2);
}

static void what_is_refused_while_held_is_sent_again(void **state) {
    fixture *f = *state;
    f->listener.num_refused = 1;
    atomic_store(&f->listener.thinks, true);
    start_listening(f);
    push(f, 7);
    await_calls(f, 1);
    gs_outbox_hold(f->outbox, true);
    atomic_store(&f->listener.thinks, false);
    gs_sleep_ns(1500 * GS_NS_PER_MS);  // longer than a call
    gs_outbox_hold(f->outbox, false);
    await_calls(f, 2);
    flush(f);
    stop_listening(f);
    assert_int_equal(f->listener.num_calls, 2);
    assert_int_equal(f->listener.steps[1], 7);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_outbox, close_outbox)
    const struct CMUnitTest tests[] = {
        TEST(calls_from_before_the_coordinator_arrive_once_and_in_order),
        TEST(what_does_not_fit_is_dropped_and_the_first_arrive),
        TEST(a_refused_call_is_not_repeated),
        TEST(what_is_not_answered_is_sent_again),
        TEST(a_held_outbox_sends_nothing_and_rests),
        TEST(what_is_refused_while_held_is_sent_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
