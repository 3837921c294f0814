// A trainer's last words, and coordinators that go away with them.
#include "worker/control/member.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/thread.h"
#include "rpc/server/rpc_server.h"
#include "tests/support/asserts.h"

#define AWAY_NS (6 * GS_NS_PER_SEC)  // longer than a call waits

// One life of a coordinator: it welcomes whoever says hello, and answers a Bye or not. Its fields belong to its thread until
// that has stopped, but for the atomic ones.
typedef struct coordinator {
    gs_rpc_server *server;
    gs_thread *thread;
    atomic_int says;  // to a Bye, a gs_code
    atomic_bool answers;
    atomic_int num_byes, num_hellos;
    char cluster[24];  // of the last hello; read when the thread has stopped
    double orphan_seconds;  // that it tells; 0: as one of before, nothing
} coordinator;

static void hello(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    coordinator *it = ctx;
    (void)peer;
    snprintf(it->cluster, sizeof it->cluster, "%s", gs_json_string_or(request, "cluster", ""));
    atomic_fetch_add(&it->num_hellos, 1);
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "welcome");
    if (it->orphan_seconds > 0) gs_json_set_double(item, "orphan_seconds", it->orphan_seconds);
    gs_status status = gs_rpc_item(call, item);
    if (status.code) fprintf(stderr, "welcome: %s\n", status.message);
}

static void bye(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    coordinator *it = ctx;
    (void)peer;
    (void)request;
    atomic_fetch_add(&it->num_byes, 1);
    gs_code says = (gs_code)atomic_load(&it->says);
    if (atomic_load(&it->answers)) gs_rpc_reply(call, says ? gs_error(says, "it is heard") : gs_ok(), NULL);
}

static void run_server(void *ctx, const atomic_bool *stopping) {
    coordinator *it = ctx;
    while (!atomic_load(stopping)) {
        gs_status status = gs_rpc_server_turn(it->server, -1, gs_deadline_in_ms(5));
        if (status.code) return;
    }
}

typedef struct fixture {
    gs_rpc_context *context;
    char endpoint[100];
    coordinator first, second;
    gs_launch_page page;
    gs_launch launch;
    gs_control control;
    gs_member *member;
} fixture;

static void open_coordinator(fixture *f, coordinator *it, uint32_t epoch) {
    gs_rpc_server_options options = {.endpoints = {f->endpoint}, .coordinator_epoch = epoch, .ctx = it};
    options.handlers[GS_HELLO] = hello;
    options.handlers[GS_BYE] = bye;
    // The socket of before is closed behind our back.
    gs_deadline deadline = gs_deadline_in_seconds(60);
    gs_status status;
    while ((status = gs_rpc_server_open(&it->server, f->context, &options)).code && !gs_deadline_passed(deadline)) gs_sleep_ns(10 * GS_NS_PER_MS);
    assert_ok(status);
    snprintf(f->endpoint, sizeof f->endpoint, "%s", gs_rpc_server_endpoint(it->server, 0));
    assert_ok(gs_thread_start(&it->thread, "coordinator", run_server, it));
}

static void close_coordinator(coordinator *it) {
    if (!it->thread) return;
    gs_thread_stop(it->thread);
    gs_rpc_server_close(it->server);
    it->thread = NULL;
    it->server = NULL;
}

static int set_up_with(void **state, double orphan_seconds) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->first.orphan_seconds = orphan_seconds;
    assert_ok(gs_rpc_context_create(&f->context));
    // An address of its own: nobody takes the port between the two lives.
    snprintf(f->endpoint, sizeof f->endpoint, "tcp://127.%d.%d.1:0", 1 + getpid() / 250 % 250, 1 + getpid() % 250);
    open_coordinator(f, &f->first, 1);
    static char none[] = "", job[] = "j-0000000000ab", token[] = "1";
    f->launch = (gs_launch){.job = job, .job_name = none, .launch_token = token, .coordinator = f->endpoint,
                            .worker = none, .host = none, .boot_id = none, .data_root = none, .checkpoints_dir = none,
                            .resume = none, .log_level = none, .cluster = none, .device = none, .incarnation = 5,
                            .job_number = 1, .page = &f->page};
    gs_control_init(&f->control, &gs_member_control_ops, NULL);
    assert_ok(gs_member_create(&f->member, &f->launch, &f->control));
    const gs_param_spec param = gs_param_spec_make(GS_FP32, 1, 0, "w");
    const gs_trainer_facts facts = {.params = &param, .num_params = 1, .total_elements = 1, .arithmetic = ""};
    assert_ok(gs_member_join(f->member, &facts));
    assert_true(gs_member_wait_for_welcome(f->member, gs_deadline_in_seconds(60)));
    *state = f;
    return 0;
}

static int set_up(void **state) { return set_up_with(state, 0); }

static int set_up_with_limit(void **state) { return set_up_with(state, 1); }

static int tear_down(void **state) {
    fixture *f = *state;
    gs_member_destroy(f->member);
    gs_control_release(&f->control);
    close_coordinator(&f->first);
    close_coordinator(&f->second);
    gs_rpc_context_destroy(f->context);
    free(f);
    return 0;
}

static void leave(void *ctx, const atomic_bool *stopping) {
    (void)stopping;
    fixture *f = ctx;
    const gs_trainer_outcome outcome = {.end = GS_TARGET_REACHED};
    gs_member_say_bye(f->member, &outcome, 0);
}

static void await_bye(coordinator *it) {
    gs_deadline deadline = gs_deadline_in_seconds(60);
    while (!atomic_load(&it->num_byes) && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    assert_int_equal(atomic_load(&it->num_byes), 1);
}

// It has heard the word, and nobody knows whether it wrote it down: its next life has to hear it, too, or takes the end of
// the trainer for a loss.
static void who_takes_a_bye_and_is_gone_is_not_the_last_to_hear_it(void **state) {
    fixture *f = *state;
    gs_thread *leaving;
    assert_ok(gs_thread_start(&leaving, "leave", leave, f));
    await_bye(&f->first);
    close_coordinator(&f->first);
    gs_sleep_ns(AWAY_NS);
    atomic_store(&f->second.answers, true);
    open_coordinator(f, &f->second, 2);
    await_bye(&f->second);
    gs_thread_stop(leaving);
}

// As long as ranks wait who have nobody to direct them, and no longer.
static void a_last_word_waits_for_the_limit_that_was_told(void **state) {
    fixture *f = *state;
    gs_thread *leaving;
    int64_t begin_ns = gs_now_ns();
    assert_ok(gs_thread_start(&leaving, "leave", leave, f));
    await_bye(&f->first);
    close_coordinator(&f->first);
    gs_thread_stop(leaving);
    assert_true(gs_now_ns() - begin_ns < 60 * GS_NS_PER_SEC);
}

// Whoever is there and says that it could not write it down has said all that it can.
static void an_answer_is_the_end_of_it(void **state) {
    fixture *f = *state;
    atomic_store(&f->first.says, GS_UNAVAILABLE);
    atomic_store(&f->first.answers, true);
    const gs_trainer_outcome outcome = {.end = GS_TARGET_REACHED};
    gs_member_say_bye(f->member, &outcome, 0);
    assert_int_equal(atomic_load(&f->first.num_byes), 1);
}

// Its agent tells it to a coordinator that has never heard of this trainer.
static void the_page_says_how_far_it_is(void **state) {
    fixture *f = *state;
    assert_int_equal(atomic_load(&f->page.state), GS_MEMBER_WAITING);
    gs_member_take_place(f->member, &(gs_place){.generation = 3, .world_size = 1});
    assert_int_equal(atomic_load(&f->page.state), GS_MEMBER_PREPARED);
    gs_member_set_state(f->member, GS_MEMBER_CONNECTED, 3);
    assert_int_equal(atomic_load(&f->page.state), GS_MEMBER_CONNECTED);
}

// Its agent was told that another cluster has it now, and the coordinator that took it was gone before it had answered. The one of
// before would end it for good as one of its own that it has given up.
static void who_was_adopted_behind_its_back_says_by_whom(void **state) {
    fixture *f = *state;
    gs_launch_page_put_cluster(&f->page, "c-0000000000000002");
    close_coordinator(&f->first);
    assert_string_equal(f->first.cluster, "");
    open_coordinator(f, &f->second, 1);
    gs_deadline deadline = gs_deadline_in_seconds(60);
    while (!atomic_load(&f->second.num_hellos) && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    close_coordinator(&f->second);
    assert_string_equal(f->second.cluster, "c-0000000000000002");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(who_takes_a_bye_and_is_gone_is_not_the_last_to_hear_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_last_word_waits_for_the_limit_that_was_told, set_up_with_limit, tear_down),
        cmocka_unit_test_setup_teardown(an_answer_is_the_end_of_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_page_says_how_far_it_is, set_up, tear_down),
        cmocka_unit_test_setup_teardown(who_was_adopted_behind_its_back_says_by_whom, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
