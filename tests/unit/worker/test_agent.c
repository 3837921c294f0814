// A real agent and a real trainer against a coordinator that the test plays itself.
#include "worker/agent/agent.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/bucket_plan.h"
#include "rpc/plan/param_page.h"
#include "rpc/plan/plan_message.h"
#include "rpc/server/rpc_server.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"
#include "worker/trainer/trainer_process.h"

#define JOB "j-000000000001"
#define INCARNATION 77
#define WAIT_SECONDS 40.0
#define MAX_STEPS 512

typedef struct fixture {
    char *dir, endpoint[64];
    gs_rpc_context *context;
    gs_rpc_server *server;
    uint32_t epoch;
    pid_t agent;
    int trainer_pidfd;

    gs_rpc_call_handle *agent_stream, *trainer_stream;
    gs_status refusal;  // of agents; ok: welcome
    gs_param_list params;       // owned
    gs_json *bye, *exited;      // owned
    char plan_hash[GS_DIGEST_TEXT_LEN];
    bool comm_up;
    int num_hellos, num_lines, num_saves, num_heartbeats;
    bool withholds_ready;       // a list of parameters is not answered
    int64_t withheld_since_ns;  // 0: none was
    int64_t last_position;
    bool lines_in_order;
    int64_t step;
    int told[MAX_STEPS];  // how often the history of a step came
} fixture;

static void send_item(gs_rpc_call_handle *stream, const char *text) {
    gs_json *item;
    assert_ok(gs_json_parse(&item, text, strlen(text)));
    assert_ok(gs_rpc_item(stream, item));
}

static void take_agent(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                       const gs_json *request) {
    fixture *f = ctx;
    (void)peer;
    assert_string_equal(gs_json_string_or(request, "worker", ""), "w");
    if (f->refusal.code) {
        gs_rpc_end(call, f->refusal);
        return;
    }
    f->agent_stream = call;
    send_item(call, "{\"type\":\"welcome\",\"coordinator_epoch\":1,\"heartbeat_seconds\":0.05,"
                    "\"checkpoints_dir\":\"/nowhere\"}");
}

static void take_hello(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                       const gs_json *request) {
    fixture *f = ctx;
    uint64_t incarnation;
    (void)peer;
    assert_ok(gs_json_read_u64(&incarnation, request, "incarnation"));
    assert_int_equal(incarnation, INCARNATION);
    if (f->num_hellos++ == 0) {
        f->trainer_pidfd = (int)syscall(SYS_pidfd_open, gs_json_int_or(request, "pid", 0), 0);
    }
    f->trainer_stream = call;
    send_item(call, f->params.is_complete
                        ? "{\"type\":\"welcome\",\"heartbeat_seconds\":0.05,\"send_params\":false}"
                        : "{\"type\":\"welcome\",\"heartbeat_seconds\":0.05,\"send_params\":true}");
}

static gs_json *encode_plan(const gs_param_list *list) {
    gs_bucket_plan plan;
    assert_true(list->is_complete);
    assert_ok(
        gs_bucket_plan_parity(&plan, list->params, list->num_params, 1 << 20, 1 << 20, NULL));
    assert_int_equal(plan.num_buckets, 1);
    gs_json *out = gs_plan_message_encode(&plan, &(gs_plan_label){1, "size_based", false});
    gs_bucket_plan_release(&plan);
    return out;
}

static void prepare(fixture *f) {
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "prepare");
    gs_json_set_int(item, "generation", 3);
    gs_json_set_int(item, "rank", 0);
    gs_json_set_int(item, "world_size", 1);
    gs_json_set_int(item, "num_shards", 1);
    gs_json_set(item, "plan", encode_plan(&f->params));
    assert_ok(gs_rpc_item(f->trainer_stream, item));
}

static void take_ready(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                       const gs_json *request) {
    fixture *f = ctx;
    (void)peer;
    if (f->withholds_ready) {
        if (!f->withheld_since_ns) f->withheld_since_ns = gs_now_ns();
        return;
    }
    gs_rpc_reply(call, gs_ok(), NULL);
    if (gs_json_int_or(request, "generation", -1) == 0) {
        assert_ok(gs_param_list_add(&f->params, request));
        if (f->params.is_complete) prepare(f);
        return;
    }
    snprintf(f->plan_hash, sizeof f->plan_hash, "%s", gs_json_string_or(request, "plan_hash", ""));
    send_item(f->trainer_stream, "{\"type\":\"start\",\"generation\":3,\"base_step\":0}");
}

static void take_comm_up(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                         const gs_json *request) {
    fixture *f = ctx;
    (void)peer;
    (void)request;
    f->comm_up = true;
    gs_rpc_reply(call, gs_ok(), NULL);
    send_item(f->trainer_stream, "{\"type\":\"go\",\"generation\":3}");
}

static void take_step(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                      const gs_json *request) {
    fixture *f = ctx;
    const gs_json *history = gs_json_get(request, "history");
    (void)call;
    (void)peer;
    f->step = gs_json_int_or(request, "step", -1);
    for (size_t i = 0; i < gs_json_count(history); i++) {
        int64_t step = gs_json_int_or(gs_json_at(history, i), "step", -1);
        assert_in_range(step, 1, MAX_STEPS - 1);
        f->told[step]++;
    }
}

static void take_saved(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                       const gs_json *request) {
    fixture *f = ctx;
    (void)peer;
    (void)request;
    f->num_saves++;
    gs_rpc_reply(call, gs_ok(), NULL);
}

static void take_bye(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request) {
    fixture *f = ctx;
    (void)peer;
    gs_json_release(f->bye);
    f->bye = gs_json_copy(request);
    gs_rpc_reply(call, gs_ok(), NULL);
}

static void take_exited(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
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
    for (size_t i = 0; i < gs_json_count(records); i++) {
        int64_t position = gs_json_int_or(gs_json_at(records, i), "position", -1);
        f->lines_in_order = f->lines_in_order && position > f->last_position;
        f->last_position = position;
        f->num_lines++;
    }
    gs_rpc_reply(call, gs_ok(), NULL);
}

static void ignore(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                   const gs_json *request) {
    (void)ctx;
    (void)peer;
    (void)request;
    if (call) gs_rpc_reply(call, gs_ok(), NULL);
}

static void count_heartbeat(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                            const gs_json *request) {
    fixture *f = ctx;
    (void)call;
    (void)peer;
    (void)request;
    f->num_heartbeats += f->withheld_since_ns != 0;
}

static void forget_stream(void *ctx, gs_rpc_call_handle *call) {
    fixture *f = ctx;
    if (call == f->agent_stream) f->agent_stream = NULL;
    if (call == f->trainer_stream) f->trainer_stream = NULL;
}

static void open_server(fixture *f) {
    gs_rpc_server_options options = {.endpoints = {f->endpoint},
                                     .coordinator_epoch = ++f->epoch,
                                     .ctx = f,
                                     .call_gone = forget_stream};
    options.handlers[GS_AGENT_HELLO] = take_agent;
    options.handlers[GS_AGENT_HEARTBEAT] = ignore;
    options.handlers[GS_HEARTBEAT] = count_heartbeat;
    options.handlers[GS_HELLO] = take_hello;
    options.handlers[GS_READY] = take_ready;
    options.handlers[GS_COMM_UP] = take_comm_up;
    options.handlers[GS_STEP] = take_step;
    options.handlers[GS_CHECKPOINTED] = take_saved;
    options.handlers[GS_BYE] = take_bye;
    options.handlers[GS_EXITED] = take_exited;
    options.handlers[GS_LOG] = take_log;
    assert_ok(gs_rpc_server_open(&f->server, f->context, &options));
    snprintf(f->endpoint, sizeof f->endpoint, "%s", gs_rpc_server_endpoint(f->server, 0));
}

static void close_server(fixture *f) {
    gs_rpc_server_close(f->server);
    f->server = NULL;
    f->agent_stream = f->trainer_stream = NULL;
}

static void start_agent(fixture *f) {
    fflush(NULL);
    f->agent = fork();
    assert_true(f->agent >= 0);
    if (f->agent == 0) {
        execl("/proc/self/exe", "test_worker_agent", "--agent", f->endpoint, f->dir, (char *)NULL);
        _exit(127);
    }
}

static void *start_coordinator(void) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->dir = gs_temp_dir_make();
    f->trainer_pidfd = -1;
    f->lines_in_order = true;
    snprintf(f->endpoint, sizeof f->endpoint, "tcp://127.0.0.1:*");
    assert_ok(gs_rpc_context_create(&f->context));
    open_server(f);
    return f;
}

static int set_up(void **state) {
    *state = start_coordinator();
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    if (f->agent > 0) {
        kill(f->agent, SIGKILL);
        waitpid(f->agent, NULL, 0);
    }
    if (f->trainer_pidfd >= 0) close(f->trainer_pidfd);
    gs_rpc_server_close(f->server);
    gs_rpc_context_destroy(f->context);
    gs_param_list_release(&f->params);
    gs_json_release(f->bye);
    gs_json_release(f->exited);
    gs_temp_dir_remove(f->dir);
    free(f);
    return 0;
}

// Serves until *done is true.
#define SERVE_UNTIL(f, done)                                                        \
    do {                                                                            \
        gs_deadline end_ = gs_deadline_in_seconds(WAIT_SECONDS);                    \
        while (!(done) && !gs_deadline_passed(end_)) {                              \
            assert_ok(gs_rpc_server_turn((f)->server, -1, gs_deadline_in_ms(20)));  \
        }                                                                           \
        if (!(done)) fail_msg("waited in vain for: %s", #done);                     \
    } while (0)

static void start_rank_from(fixture *f, int64_t target, int64_t delay_ms, const char *resume) {
    char text[2400];
    SERVE_UNTIL(f, f->agent_stream);
    snprintf(text, sizeof text,
             "{\"type\":\"start_rank\",\"slot\":0,\"job\":\"" JOB "\",\"job_name\":\"t\",\"rank_hint\":0,"
             "\"incarnation\":\"%d\",\"launch_token\":\"5\",\"checkpoints_dir\":\"%s/" JOB "\","
             "\"resume\":{\"step\":1,\"directory\":\"%s\"},\"spec\":"
             "{\"name\":\"t\",\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,8,3]}},"
             "\"steps\":{\"target\":%lld},\"debug\":{\"step_delay_ms\":%lld}}}",
             INCARNATION, f->dir, resume, (long long)target, (long long)delay_ms);
    send_item(f->agent_stream, text);
}

static void start_rank(fixture *f, int64_t target, int64_t delay_ms) {
    start_rank_from(f, target, delay_ms, "");
}

static const char *bye_reason(const fixture *f) {
    return gs_json_string_or(f->bye, "reason", "");
}

static bool has_ended(const fixture *f) {
    struct pollfd fd = {.fd = f->trainer_pidfd, .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

static void a_trainer_lives_from_start_to_good_bye(void **state) {
    fixture *f = *state;
    start_agent(f);
    start_rank(f, 40, 0);
    SERVE_UNTIL(f, f->exited && f->num_lines);
    assert_true(f->comm_up);
    assert_string_equal(bye_reason(f), "target_reached");
    assert_int_equal(gs_json_int_or(f->exited, "exit_code", -1), 0);
    assert_int_equal(gs_json_int_or(f->exited, "generation", -1), 3);
    assert_int_equal(f->step, 40);
    assert_int_equal(f->num_saves, 1);
    for (int step = 1; step <= 40; step++) assert_int_equal(f->told[step], 1);
}

// Whoever is silent for long is taken for dead.
static void a_list_of_parameters_that_nobody_answers_stops_no_heartbeat(void **state) {
    fixture *f = *state;
    f->withholds_ready = true;
    start_agent(f);
    start_rank(f, 5, 0);
    SERVE_UNTIL(f, f->withheld_since_ns);
    SERVE_UNTIL(f, f->num_heartbeats >= 10);  // one in 50 ms
    assert_true(gs_now_ns() - f->withheld_since_ns < 20 * GS_NS_PER_SEC);
    f->withholds_ready = false;
    SERVE_UNTIL(f, f->exited);
    assert_string_equal(bye_reason(f), "target_reached");
}

static void a_stopped_rank_drains(void **state) {
    fixture *f = *state;
    start_agent(f);
    start_rank(f, 1000000, 5);
    SERVE_UNTIL(f, f->step > 0);
    send_item(f->agent_stream, "{\"type\":\"stop_rank\",\"slot\":0,\"incarnation\":\"77\","
                               "\"signal\":\"term\",\"grace_seconds\":30}");
    SERVE_UNTIL(f, f->exited);
    assert_string_equal(bye_reason(f), "drained");
    assert_int_equal(gs_json_int_or(f->exited, "exit_code", -1), 0);
}

// Who orders it took an old word of this worker's for its last.
static void a_rank_that_is_not_there_has_exited(void **state) {
    fixture *f = *state;
    start_agent(f);
    SERVE_UNTIL(f, f->agent_stream);
    send_item(f->agent_stream, "{\"type\":\"stop_rank\",\"slot\":0,\"incarnation\":\"78\","
                               "\"signal\":\"term\",\"grace_seconds\":30}");
    SERVE_UNTIL(f, f->exited);
    uint64_t incarnation = 0;
    assert_ok(gs_json_read_u64(&incarnation, f->exited, "incarnation"));
    assert_int_equal(incarnation, 78);
    assert_int_equal(gs_json_int_or(f->exited, "exit_code", 0), -1);
}

static void a_killed_trainer_is_reported_with_its_signal(void **state) {
    fixture *f = *state;
    start_agent(f);
    start_rank(f, 1000000, 5);
    SERVE_UNTIL(f, f->step > 0);
    syscall(SYS_pidfd_send_signal, f->trainer_pidfd, SIGKILL, NULL, 0);
    SERVE_UNTIL(f, f->exited);
    assert_int_equal(gs_json_int_or(f->exited, "signal", 0), SIGKILL);
    assert_int_equal(gs_json_int_or(f->exited, "exit_code", 0), -1);
    assert_null(f->bye);
}

static void trainers_end_with_their_agent(void **state) {
    fixture *f = *state;
    start_agent(f);
    start_rank(f, 1000000, 5);
    SERVE_UNTIL(f, f->step > 0);
    kill(f->agent, SIGKILL);
    SERVE_UNTIL(f, has_ended(f));
}

// The run comes to its end while nobody listens: nothing that it has to tell is lost.
static void what_happens_during_an_outage_is_told_afterwards(void **state) {
    fixture *f = *state;
    struct pollfd fd;
    start_agent(f);
    start_rank(f, 300, 2);
    SERVE_UNTIL(f, f->step > 0);
    close_server(f);
    // Longer than 300 steps take, and longer than a good-bye that does not wait: an event that never
    // comes while nobody is there.
    fd = (struct pollfd){.fd = f->trainer_pidfd, .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 8000), 0);
    open_server(f);
    SERVE_UNTIL(f, f->exited && f->num_lines >= 3);
    assert_string_equal(bye_reason(f), "target_reached");
    assert_int_equal(f->num_saves, 1);
    assert_int_equal(f->step, 300);
    assert_true(f->lines_in_order);
    for (int step = 1; step <= 300; step++) {
        if (!f->told[step]) fail_msg("step %d was never told", step);
    }
}

// The coordinator starts it again, from what is left.
static void a_damaged_checkpoint_is_put_aside_and_asks_for_a_restart(void **state) {
    fixture *f = *state;
    char path[600], manifest[640], aside[640];
    snprintf(path, sizeof path, "%s/step-1", f->dir);
    snprintf(aside, sizeof aside, "%s/bad-step-1", f->dir);
    snprintf(manifest, sizeof manifest, "%s/MANIFEST.json", path);
    assert_int_equal(mkdir(path, 0700), 0);
    FILE *file = fopen(manifest, "w");
    assert_non_null(file);
    fputs("{\"format\":\"gradsync-checkpoint\",\"digest\":\"xxh3:0\"}", file);
    fclose(file);
    start_agent(f);
    start_rank_from(f, 40, 0, path);
    SERVE_UNTIL(f, f->exited);
    assert_string_equal(bye_reason(f), "aborted");
    assert_string_equal(gs_json_string_or(f->bye, "class", ""), "infrastructure");
    assert_int_equal(gs_json_int_or(f->exited, "exit_code", -1), 75);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(aside, F_OK), 0);
}

// Another rank was faster to put it aside.
static void a_missing_checkpoint_asks_for_a_restart(void **state) {
    fixture *f = *state;
    char path[600];
    snprintf(path, sizeof path, "%s/step-1", f->dir);
    start_agent(f);
    start_rank_from(f, 40, 0, path);
    SERVE_UNTIL(f, f->exited);
    assert_int_equal(gs_json_int_or(f->exited, "exit_code", -1), 75);
}

static bool agent_has_ended(fixture *f, int *outcome) {
    if (f->agent > 0 && waitpid(f->agent, outcome, WNOHANG) == f->agent) f->agent = 0;
    return f->agent == 0;
}

static void a_refused_agent_exits_with_78(void **state) {
    fixture *f = *state;
    int outcome = 0;
    f->refusal = gs_error(GS_FAILED_PRECONDITION, "another version");
    start_agent(f);
    SERVE_UNTIL(f, agent_has_ended(f, &outcome));
    assert_true(WIFEXITED(outcome));
    assert_int_equal(WEXITSTATUS(outcome), 78);
}

static int be_agent(char **argv) {
    static char name[] = "w", none[] = "", level[] = "info";
    gs_agent_options options = {.coordinator = argv[2],
                                .slots = 1,
                                .data_root = argv[3],
                                .checkpoints = none,
                                .name = name,
                                .log_level = level,
                                .grace_seconds = 10};
    return gs_agent_run(&options);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        TEST(a_trainer_lives_from_start_to_good_bye),
        TEST(a_list_of_parameters_that_nobody_answers_stops_no_heartbeat),
        TEST(a_stopped_rank_drains),
        TEST(a_rank_that_is_not_there_has_exited),
        TEST(a_killed_trainer_is_reported_with_its_signal),
        TEST(trainers_end_with_their_agent),
        TEST(what_happens_during_an_outage_is_told_afterwards),
        TEST(a_damaged_checkpoint_is_put_aside_and_asks_for_a_restart),
        TEST(a_missing_checkpoint_asks_for_a_restart),
        TEST(a_refused_agent_exits_with_78),
    };
    if (argc == 4 && strcmp(argv[1], "--agent") == 0) return be_agent(argv);
    if (argc == 3 && strcmp(argv[1], "--trainer") == 0) return gs_trainer_process_run(atoi(argv[2]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
