#include "worker/agent/slot.h"

#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/thread.h"
#include "rpc/server/rpc_server.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

#define ENDPOINT "inproc://test-slot"

// This binary as a trainer: what it does is the job's name.
static int be_trainer(int launch_fd) {
    gs_launch launch;
    gs_status status = gs_launch_read(&launch, launch_fd);
    if (status.code) return 99;
    const char *task = launch.job_name;
    int exit_code = 0;
    if (strcmp(task, "talk") == 0) {
        atomic_store(&launch.page->rank, 5);
        atomic_store(&launch.page->generation, 9);
        for (int i = 0; i < 30; i++) fprintf(stderr, "line %d\n", i);
        printf("RANK=%s %s", getenv("RANK"), getenv("OPENBLAS_NUM_THREADS"));
        exit_code = 65;
    } else if (strcmp(task, "tell") == 0) {
        printf("TOKEN is %zu bytes: %s\n", strlen(getenv("TOKEN")), getenv("TOKEN"));
        printf("NoNewPrivs: %d\n", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    } else if (strcmp(task, "long") == 0) {
        for (int i = 0; i < 65520; i++) putchar('x');  // the token lies across the end of a piece
        printf("%s", getenv("TOKEN"));
        for (int i = 0; i < 65500; i++) putchar('y');
        printf("%s", getenv("TOKEN"));  // and no end of the line
    } else if (strcmp(task, "lie") == 0) {
        atomic_store(&launch.page->rank, -7);
        atomic_store(&launch.page->world_size, INT_MIN);
        atomic_store(&launch.page->state, 1 << 24);
    } else if (strcmp(task, "sleep") == 0) {
        puts("sleeping");
        fflush(stdout);
        for (;;) pause();
    } else if (strcmp(task, "deaf") == 0) {
        signal(SIGTERM, SIG_IGN);
        puts("deaf");
        fflush(stdout);
        for (;;) pause();
    }
    gs_launch_release(&launch);
    return exit_code;
}

// What the coordinator would hear. Of its thread until that has stopped.
typedef struct fixture {
    gs_rpc_context *context;
    gs_rpc_server *server;
    gs_rpc_client *client;
    gs_agent_reports *reports;
    gs_thread *thread;
    gs_slot slot;
    gs_json *exited;
    int num_lines, num_leaked;
} fixture;

static void take_exit(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                      const gs_json *request) {
    fixture *f = ctx;
    (void)peer;
    gs_json_release(f->exited);
    f->exited = gs_json_copy(request);
    gs_rpc_reply(call, gs_ok(), NULL);
}

static void take_log(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request) {
    fixture *f = ctx;
    const gs_json *records = gs_json_get(request, "records");
    (void)peer;
    f->num_lines += (int)gs_json_count(records);
    for (size_t i = 0; i < gs_json_count(records); i++)
        f->num_leaked += strchr(gs_json_string_or(gs_json_at(records, i), "text", "h"), 'h') != NULL;
    gs_rpc_reply(call, gs_ok(), NULL);
}

static void run_server(void *ctx, const atomic_bool *stopping) {
    fixture *f = ctx;
    while (!atomic_load(stopping)) {
        gs_status status = gs_rpc_server_turn(f->server, -1, gs_deadline_in_ms(5));
        if (status.code) return;
    }
}

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_ok(gs_rpc_context_create(&f->context));
    gs_rpc_server_options options = {.endpoints = {ENDPOINT}, .coordinator_epoch = 1, .ctx = f};
    options.handlers[GS_EXITED] = take_exit;
    options.handlers[GS_LOG] = take_log;
    assert_ok(gs_rpc_server_open(&f->server, f->context, &options));
    assert_ok(gs_thread_start(&f->thread, "coordinator", run_server, f));
    gs_rpc_client_options client = {.endpoint = ENDPOINT};
    assert_ok(gs_rpc_client_open(&f->client, f->context, &client));
    assert_ok(gs_agent_reports_create(&f->reports, f->client, 0));
    gs_slot_init(&f->slot, 2, f->reports, NULL);
    *state = f;
    return 0;
}

static void stop_listening(fixture *f) {
    gs_agent_reports_flush(f->reports, gs_deadline_in_seconds(60));
    gs_agent_reports_destroy(f->reports);
    gs_thread_stop(f->thread);
    f->reports = NULL;
    f->thread = NULL;
}

static int tear_down(void **state) {
    fixture *f = *state;
    if (f->thread) stop_listening(f);
    gs_rpc_client_close(f->client);
    gs_rpc_server_close(f->server);
    gs_rpc_context_destroy(f->context);
    gs_json_release(f->exited);
    free(f);
    return 0;
}

static gs_json *document_of(const char *task, const char *environment) {
    char text[600];
    gs_json *document;
    snprintf(text, sizeof text,
             "{\"job\":\"j-000000000001\",\"job_name\":\"%s\",\"incarnation\":\"77\",\"slot\":2,"
             "\"rank_hint\":3,\"spec\":{\"name\":\"x\",\"model\":{\"kind\":\"mlp\"},"
             "\"environment\":[%s],\"steps\":{\"target\":1}}}",
             task, environment);
    assert_ok(gs_json_parse(&document, text, strlen(text)));
    return document;
}

static void start(fixture *f, const char *task) {
    gs_json *document = document_of(task, "");
    assert_ok(gs_slot_start(&f->slot, document, NULL));
    gs_json_release(document);
    assert_true(gs_slot_busy(&f->slot));
}

// What the agent's loop does, until the slot is free or has printed a line.
static void run_slot(fixture *f, bool until_line) {
    gs_deadline deadline = gs_deadline_in_seconds(60);
    while (gs_slot_busy(&f->slot) && !(until_line && f->slot.position > 0)) {
        if (gs_deadline_passed(deadline)) fail_msg("the trainer did not come to an end");
        struct pollfd fds[3] = {{.fd = f->slot.pidfd, .events = POLLIN},
                                {.fd = f->slot.outputs[0].fd, .events = POLLIN},
                                {.fd = f->slot.outputs[1].fd, .events = POLLIN}};
        poll(fds, 3, 10);
        for (int i = 0; i < 2; i++) {
            if (fds[1 + i].revents) gs_slot_read(&f->slot, &f->slot.outputs[i]);
        }
        if (fds[0].revents) gs_slot_reap(&f->slot, "here");
        gs_slot_tick(&f->slot);
    }
}

static void an_exit_is_reported_with_code_rank_and_last_lines(void **state) {
    fixture *f = *state;
    start(f, "talk");
    run_slot(f, false);
    stop_listening(f);
    assert_non_null(f->exited);
    assert_int_equal(gs_json_int_or(f->exited, "exit_code", 0), 65);
    assert_int_equal(gs_json_int_or(f->exited, "signal", -1), 0);
    assert_int_equal(gs_json_int_or(f->exited, "slot", -1), 2);
    assert_int_equal(gs_json_int_or(f->exited, "rank", -1), 5);
    assert_int_equal(gs_json_int_or(f->exited, "generation", -1), 9);
    assert_string_equal(gs_json_string_or(f->exited, "incarnation", ""), "77");
    const gs_json *tail = gs_json_get(f->exited, "log_tail");
    assert_int_equal(gs_json_count(tail), GS_SLOT_TAIL_LINES);
    assert_int_equal(f->num_lines, 31);
    bool has_environment = false;
    for (size_t i = 0; i < gs_json_count(tail); i++) {
        has_environment |= strcmp(gs_json_string(gs_json_at(tail, i)), "RANK=3 1") == 0;
    }
    assert_true(has_environment);
    assert_false(gs_slot_busy(&f->slot));
}

static void a_signal_is_reported_as_such(void **state) {
    fixture *f = *state;
    start(f, "sleep");
    run_slot(f, true);
    gs_slot_stop(&f->slot, false, 30);
    run_slot(f, false);
    stop_listening(f);
    assert_int_equal(gs_json_int_or(f->exited, "exit_code", 0), -1);
    assert_int_equal(gs_json_int_or(f->exited, "signal", 0), SIGTERM);
}

static void who_does_not_listen_is_killed_after_the_grace(void **state) {
    fixture *f = *state;
    start(f, "deaf");
    run_slot(f, true);
    gs_slot_stop(&f->slot, false, 0.05);
    run_slot(f, false);
    stop_listening(f);
    assert_int_equal(gs_json_int_or(f->exited, "signal", 0), SIGKILL);
}

// As of an agent that sees neither a coordinator nor checkpoints for longer than its trainers would train on alone.
static void who_stood_still_for_too_long_ends_by_a_signal(void **state) {
    fixture *f = *state;
    start(f, "sleep");
    run_slot(f, true);
    assert_false(gs_slot_held_longer(&f->slot, 0.01, 0));
    gs_slot_hold(&f->slot, true);
    assert_false(gs_slot_held_longer(&f->slot, 600, 30));
    gs_sleep_ns(30 * GS_NS_PER_MS);
    gs_slot_hold(&f->slot, true);  // of each turn
    assert_true(gs_slot_held_longer(&f->slot, 0.01, 0.01));
    assert_false(gs_slot_held_longer(&f->slot, 0, 0.01));  // they would for ever
    gs_slot_stop(&f->slot, false, 30);
    assert_false(gs_slot_held_longer(&f->slot, 0.01, 0.01));
    run_slot(f, false);
    stop_listening(f);
    assert_int_equal(gs_json_int_or(f->exited, "signal", 0), SIGTERM);
}

static bool tail_has(const fixture *f, const char *line) {
    const gs_json *tail = gs_json_get(f->exited, "log_tail");
    for (size_t i = 0; i < gs_json_count(tail); i++)
        if (strcmp(gs_json_string(gs_json_at(tail, i)), line) == 0) return true;
    return false;
}

#define SECRET "{\"name\":\"TOKEN\",\"secret\":\"tracker\"}"

static void a_trainer_has_its_secret_and_nobody_else_sees_it(void **state) {
    fixture *f = *state;
    char *dir = gs_temp_dir_make(), path[600], *said;
    snprintf(path, sizeof path, "%s/tracker", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("hush-hush\n", file);
    fclose(file);
    const gs_confinement confinement = {.options = {.cgroup = "", .secrets = dir}};
    f->slot.confinement = &confinement;
    gs_json *document = document_of("tell", SECRET);
    assert_ok(gs_slot_start(&f->slot, document, NULL));
    gs_json *described = gs_slot_describe_fully(&f->slot);
    assert_ok(gs_json_encode(&said, NULL, described, false));
    assert_null(strstr(said, "hush"));
    free(said);
    gs_json_release(described);
    run_slot(f, false);
    stop_listening(f);
    assert_true(tail_has(f, "TOKEN is 9 bytes: ***"));
    assert_true(tail_has(f, "NoNewPrivs: 1"));
    gs_json_release(document);
    gs_temp_dir_remove(dir);
}

// Whoever has it now, its ranks write where their checkpoints lie in the name of who started it.
static void a_trainer_is_described_by_both_clusters(void **state) {
    fixture *f = *state;
    gs_json *document = document_of("talk", "");
    gs_json_set_string(document, "cluster", "c-first");
    assert_ok(gs_slot_start(&f->slot, document, NULL));
    snprintf(f->slot.cluster, sizeof f->slot.cluster, "c-adopts");
    gs_json *described = gs_slot_describe_fully(&f->slot);
    assert_string_equal(gs_json_string_or(described, "cluster", ""), "c-adopts");
    assert_string_equal(gs_json_string_or(described, "writes_as", ""), "c-first");
    gs_json_release(described);
    run_slot(f, false);
    gs_json_release(document);
}

static void a_secret_across_the_end_of_a_piece_is_hidden(void **state) {
    fixture *f = *state;
    char *dir = gs_temp_dir_make(), path[600];
    snprintf(path, sizeof path, "%s/tracker", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("hush-hush\n", file);
    fclose(file);
    const gs_confinement confinement = {.options = {.cgroup = "", .secrets = dir}};
    f->slot.confinement = &confinement;
    gs_json *document = document_of("long", SECRET);
    assert_ok(gs_slot_start(&f->slot, document, NULL));
    run_slot(f, false);
    stop_listening(f);
    assert_true(f->num_lines >= 2);
    assert_int_equal(f->num_leaked, 0);
    gs_json_release(document);
    gs_temp_dir_remove(dir);
}

static void what_a_trainer_says_of_itself_is_looked_at(void **state) {
    fixture *f = *state;
    start(f, "lie");
    run_slot(f, false);
    stop_listening(f);
    assert_int_equal(gs_json_int_or(f->exited, "exit_code", -1), 0);
    assert_int_equal(gs_json_int_or(f->exited, "rank", -1), 3);
    assert_int_equal(gs_json_int_or(f->exited, "world_size", -1), 0);
    assert_string_equal(gs_json_string_or(f->exited, "state", ""), "booting");
}

static void without_its_secret_nothing_is_started(void **state) {
    fixture *f = *state;
    gs_json *document = document_of("tell", SECRET);
    gs_status status = gs_slot_start(&f->slot, document, NULL);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "tracker"));
    assert_false(gs_slot_busy(&f->slot));
    gs_json_release(document);
}

static void a_slot_can_be_used_again(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 3; i++) {
        start(f, "talk");
        run_slot(f, false);
    }
    stop_listening(f);
    assert_int_equal(f->num_lines, 93);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--trainer") == 0) {
        return be_trainer((int)strtol(argv[2], NULL, 10));
    }
    unsetenv("OPENBLAS_CORETYPE");  // trainers have a line to say of it
    const struct CMUnitTest tests[] = {
        TEST(an_exit_is_reported_with_code_rank_and_last_lines),
        TEST(a_signal_is_reported_as_such),
        TEST(who_does_not_listen_is_killed_after_the_grace),
        TEST(who_stood_still_for_too_long_ends_by_a_signal),
        TEST(a_trainer_has_its_secret_and_nobody_else_sees_it),
        TEST(a_secret_across_the_end_of_a_piece_is_hidden),
        TEST(what_a_trainer_says_of_itself_is_looked_at),
        TEST(without_its_secret_nothing_is_started),
        TEST(a_trainer_is_described_by_both_clusters),
        TEST(a_slot_can_be_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
