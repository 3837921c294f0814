// A live rank, with its own key and its own launch token, at a coordinator that asks for keys: it names another job, another rank,
// another generation than its own, and nothing comes of that: not for a job that a real worker trains, nor for its neighbour on its own
// worker, nor for what its own job has come to. Row M3 of docs/faults.md.
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/model/job_id.h"
#include "core/clock.h"
#include "rpc/keys/key_store.h"
#include "rpc/schema/step_record.h"
#include "rpc/wire/frame.h"
#include "tests/support/asserts.h"
#include "tests/support/coordinator_process.h"
#include "tests/support/fake_worker.h"

#define WAIT gs_deadline_in_seconds(60)
#define FORGED_STEP 900000
#define UNHEARD_MS 300  // who is not let in waits for an answer that never comes

typedef struct job_seen {
    char id[32];
    uint64_t number;
    int64_t generation, restarts, step;
} job_seen;

typedef struct stage {
    gs_coordinator_process process;
    gs_rpc_context *context;
    char keys[GS_KEY_PATH_BYTES];
    gs_key_file server, operator_key, rogue_key, real_key;
    gs_rpc_client *client;  // an operator's
    gs_fake_worker *rogue;
    pid_t real;
    job_seen own, next, victim;  // of slot 0 and 1 of the rogue, and of the real worker
    gs_fake_rank rank, neighbour;
} stage;

// What the rank says goes out in the name of this job, over its own connection and in its own session: nobody else's would be heard as it.
// 0: in its own.
static struct {
    _Atomic uint64_t of, job;
} forged;

void __real_gs_frame_pack(uint8_t *out, const gs_frame *frame, const void *body, size_t bytes);
void __wrap_gs_frame_pack(uint8_t *out, const gs_frame *frame, const void *body, size_t bytes);

void __wrap_gs_frame_pack(uint8_t *out, const gs_frame *frame, const void *body, size_t bytes) {
    gs_frame said = *frame;
    uint64_t job = atomic_load(&forged.job);
    if (job && said.incarnation == atomic_load(&forged.of)) said.job = job;
    __real_gs_frame_pack(out, &said, body, bytes);
}

static gs_status copy_key(void *ctx, gs_key_file *key) {
    *key = *(const gs_key_file *)ctx;
    return gs_ok();
}

static void make_key(const stage *it, gs_key_file *file, gs_role role, const char *name) {
    gs_known_key known = {.role = role};
    snprintf(known.name, sizeof known.name, "%s", name);
    assert_ok(gs_key_store_make(it->keys, &known, file));
    file->server = it->server.pair.shown;
}

static gs_json *ask(const stage *it, gs_method method, const char *text) {
    gs_json *request = NULL, *reply = NULL;
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    assert_ok(gs_rpc_call(it->client, method, request, &reply, WAIT));
    gs_json_release(request);
    return reply;
}

// As it is: it has to train.
static job_seen look(const stage *it, const job_seen *job) {
    char text[100];
    job_seen seen = *job;
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", job->id);
    gs_json *view = ask(it, GS_GET_JOB, text);
    const char *state = gs_json_string_or(view, "state", "");
    if (strcmp(state, "running") != 0 && job->generation) fail_msg("the job is %s: %s", state, gs_json_string_or(view, "message", ""));
    seen.generation = strcmp(state, "running") == 0 ? gs_json_int_or(view, "generation", 0) : 0;
    seen.restarts = gs_json_int_or(view, "restarts", -1);
    seen.step = gs_json_int_or(gs_json_get(view, "progress"), "step", -1);
    gs_json_release(view);
    return seen;
}

static void wait_for_step(const stage *it, job_seen *job, int64_t step) {
    gs_deadline deadline = WAIT;
    for (;;) {
        job_seen seen = look(it, job);
        if (seen.generation && seen.step >= step) {
            *job = seen;
            return;
        }
        if (gs_deadline_passed(deadline)) fail_msg("job %s came to step %lld, not %lld", job->id, (long long)seen.step, (long long)step);
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
}

static void submit(const stage *it, job_seen *job, const char *name, int ranks) {
    char text[300];
    snprintf(text, sizeof text, "{\"spec\":{\"name\":\"%s\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":%d,\"max\":%d},"
             "\"steps\":{\"target\":10000000}}}", name, ranks, ranks);
    gs_json *made = ask(it, GS_CREATE_JOB, text);
    snprintf(job->id, sizeof job->id, "%s", gs_json_string_or(made, "id", ""));
    assert_true(gs_json_get(made, "id") != NULL);
    gs_json_release(made);
    wait_for_step(it, job, 20);
}

// It goes on as it was, and has come to no step that it did not take.
static void assert_undisturbed(const stage *it, job_seen *job) {
    job_seen before = *job;
    wait_for_step(it, job, look(it, job).step + 20);
    assert_int_equal(job->generation, before.generation);
    assert_int_equal(job->restarts, before.restarts);
    assert_true(job->step < FORGED_STEP);
}

typedef struct lie {
    gs_method method;
    bool is_of_itself;  // of whatever generation: a rank may say so
    const char *body;
} lie;

static const lie lies[] = {
    {GS_READY, false, "{\"generation\":%1$lld,\"plan_hash\":\"xxh3:1\",\"applied_step\":%2$d,\"state_digest\":\"\"}"},
    {GS_EXCHANGE, false, "{\"generation\":%1$lld,\"tag\":\"comm\",\"rank\":0,\"bytes\":\"AAAA\"}"},
    {GS_COMM_UP, false, "{\"generation\":%1$lld,\"seconds\":1,\"backend\":\"lies\"}"},
    {GS_READY_ORDER, false, "{\"generation\":%1$lld,\"step\":%2$d,\"settled\":true,\"order\":[1,0]}"},
    {GS_TIMELINE, false, "{\"generation\":%1$lld,\"request\":0,\"steps\":[]}"},
    {GS_FAULT, false, "{\"generation\":%1$lld,\"rank\":0,\"kind\":\"numerics\",\"accused\":[0],\"code\":\"ABORTED\",\"text\":\"lies\"}"},
    {GS_SETTLE, false, "{\"generation\":%1$lld,\"rank\":0,\"applied_step\":%2$d,\"complete\":true}"},
    {GS_CHECKPOINTED, true, "{\"generation\":%1$lld,\"step\":%2$d,\"directory\":\"step-1\",\"error\":\"no\",\"cause\":\"io\"}"},
    {GS_BYE, true, "{\"generation\":%1$lld,\"rank\":0,\"applied_step\":%2$d,\"reason\":\"error\",\"exit_code\":1,\"error\":\"lies\",\"class\":\"user\"}"},
};

static gs_json *words(const char *format, int64_t generation) {
    char body[300];
    gs_json *request = NULL;
    snprintf(body, sizeof body, format, (long long)generation, FORGED_STEP);
    assert_ok(gs_json_parse(&request, body, strlen(body)));
    return request;
}

static void tell(gs_rpc_client *client, gs_method method, const char *format, int64_t generation) {
    gs_json *request = words(format, generation);
    gs_rpc_send(client, method, request);
    gs_json_release(request);
}

// What is not answered, of that generation; behind it something is.
static void tell_steps(gs_rpc_client *client, int64_t generation) {
    static const char step[] = "{\"generation\":%1$lld,\"rank\":0,\"step\":%2$d,\"loss\":1.5,\"step_seconds\":9}";
    uint8_t record[GS_STEP_RECORD_MAX_BYTES];
    gs_step_report report = {.generation = generation, .rank = 0, .step = FORGED_STEP};
    gs_step_report_set(&report, GS_REPORT_STEP_SECONDS, 9);
    tell(client, GS_HEARTBEAT, "{\"state\":\"waiting\",\"generation\":%1$lld,\"applied_step\":%2$d,\"plan\":\"1\",\"next_plan\":\"0\",\"plan_step\":0}",
         generation);
    tell(client, GS_STEP, step, generation);
    gs_rpc_send_record(client, GS_STEP_RECORD, record, gs_step_record_pack(record, &report));
}

// All of them, refused by the coordinator itself: nobody had to wait in vain.
static void lie_and_be_refused(gs_rpc_client *client, int64_t generation, bool is_itself) {
    tell_steps(client, generation);
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        if (is_itself && lies[i].is_of_itself) continue;
        gs_json *request = words(lies[i].body, generation);
        gs_status status = gs_rpc_call(client, lies[i].method, request, NULL, WAIT);
        gs_json_release(request);
        if (status.code != GS_ABORTED && status.code != GS_PERMISSION_DENIED)
            fail_msg("%s of generation %lld: %s %s", gs_method_info_of(lies[i].method)->name, (long long)generation, gs_code_name(status.code),
                     status.message);
    }
}

static gs_rpc_client *open_as(const stage *it, gs_key_file *key, uint64_t job, uint64_t incarnation) {
    gs_rpc_client *client = NULL;
    gs_rpc_client_options options = {.endpoint = it->process.control, .job = job, .incarnation = incarnation,
                                     .launch_token = it->rank.launch_token, .source = {copy_key, key}};
    assert_ok(gs_rpc_client_open(&client, it->context, &options));
    return client;
}

static void assert_all_undisturbed(stage *it) {
    assert_undisturbed(it, &it->victim);
    assert_undisturbed(it, &it->next);
    assert_undisturbed(it, &it->own);
}

// Over its own connection, of its own job: what is bound to a generation counts in the one that lives alone.
static void a_rank_speaks_in_no_generation_but_its_own(void **state) {
    stage *it = *state;
    const int64_t others[] = {it->own.generation - 1, it->own.generation + 1, it->victim.generation, it->next.generation, 0, -1, INT64_MAX};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (others[i] != it->own.generation) lie_and_be_refused(it->rank.client, others[i], true);
    assert_all_undisturbed(it);
}

// With its key, its token and as the rank that it is: in the name of the victim's job, in each generation that there is.
static void a_rank_speaks_in_no_job_but_its_own(void **state) {
    stage *it = *state;
    const job_seen *const named[] = {&it->victim, &it->next};
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        const int64_t generations[] = {it->own.generation, named[i]->generation, named[i]->generation - 1, named[i]->generation + 1};
        atomic_store(&forged.job, named[i]->number);
        for (size_t k = 0; k < sizeof generations / sizeof generations[0]; k++) lie_and_be_refused(it->rank.client, generations[k], false);
        atomic_store(&forged.job, 0);
    }
    assert_all_undisturbed(it);
}

static void enter_and_be_refused(const stage *it, const job_seen *job) {
    char text[600];
    gs_json *hello = NULL, *item = NULL;
    gs_rpc_stream *stream = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"launch_token\":\"%llu\",\"worker\":\"rogue\",\"slot\":0,\"incarnation\":\"%llu\",\"pid\":4,"
             "\"host\":\"h\",\"boot_id\":\"b\",\"build\":\"t\",\"proto_least\":%d,\"proto_most\":%d,\"params_digest\":\"same\",\"num_params\":2,"
             "\"total_elements\":17,\"data_digest\":\"d\",\"applied_step\":%d}", job->id, (unsigned long long)it->rank.launch_token,
             (unsigned long long)it->rank.incarnation, GS_PROTOCOL_LEAST, GS_PROTOCOL_MOST, FORGED_STEP);
    assert_ok(gs_json_parse(&hello, text, strlen(text)));
    assert_ok(gs_rpc_stream_open(&stream, it->rank.client, GS_HELLO, hello));
    gs_status status = gs_rpc_stream_next(stream, &item, WAIT);
    if (status.code != GS_ABORTED && status.code != GS_PERMISSION_DENIED)
        fail_msg("a hello in %s: %s %s", job->id, gs_code_name(status.code), status.message);
    gs_rpc_stream_close(stream);
    gs_json_release(item);
    gs_json_release(hello);
}

// A hello in another job's name, with the token that was given out for its own: whatever the envelope says.
static void a_rank_enters_no_job_but_its_own(void **state) {
    stage *it = *state;
    const job_seen *const named[] = {&it->victim, &it->next};
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        enter_and_be_refused(it, named[i]);
        atomic_store(&forged.job, named[i]->number);
        enter_and_be_refused(it, named[i]);
        atomic_store(&forged.job, 0);
    }
    assert_all_undisturbed(it);
}

// Its neighbour's incarnation is no secret on its worker. With its own key it is not even heard; with the worker's, its token is not the
// neighbour's.
static void a_rank_speaks_for_no_other_rank(void **state) {
    stage *it = *state;
    gs_rpc_client *own_key = open_as(it, &it->rank.key, it->next.number, it->neighbour.incarnation);
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        gs_json *request = words(lies[i].body, it->next.generation);
        gs_status status = gs_rpc_call(own_key, lies[i].method, request, NULL, gs_deadline_in_ms(UNHEARD_MS));
        gs_json_release(request);
        assert_int_not_equal(status.code, GS_OK);
    }
    gs_rpc_client_close(own_key);
    gs_rpc_client *worker_key = open_as(it, &it->rogue_key, it->next.number, it->neighbour.incarnation);
    lie_and_be_refused(worker_key, it->next.generation, false);
    gs_rpc_client_close(worker_key);
    assert_all_undisturbed(it);
}

static void start_real_worker(stage *it) {
    char path[700], log[700];
    snprintf(path, sizeof path, "%s/real.key", it->process.directory);
    snprintf(log, sizeof log, "%s/real.log", it->process.directory);
    assert_ok(gs_key_file_write(&it->real_key, path));
    it->real = fork();
    assert_true(it->real >= 0);
    if (it->real > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!freopen(log, "w", stderr) || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) _exit(126);
    execl(GRADSYNC_BIN_DIR "/gradsync-worker", "gradsync-worker", "--coordinator", it->process.control, "--name", "real", "--slots", "2", "--key",
          path, (char *)NULL);
    _exit(127);
}

static int set_up(void **state) {
    stage *it = calloc(1, sizeof *it);
    *state = it;
    it->process.flag = "--require-key";
    assert_ok(gs_coordinator_process_start(&it->process));
    char data[600];
    snprintf(data, sizeof data, "%s/data", it->process.directory);
    gs_key_store_path(it->keys, data);
    assert_ok(gs_key_store_server(&it->server, data, NULL));
    assert_ok(gs_rpc_context_create(&it->context));
    make_key(it, &it->operator_key, GS_ROLE_OPERATOR, "people");
    make_key(it, &it->rogue_key, GS_ROLE_AGENT, "rogue");
    make_key(it, &it->real_key, GS_ROLE_AGENT, "real");
    gs_rpc_client_options options = {.endpoint = it->process.control, .source = {copy_key, &it->operator_key}};
    assert_ok(gs_rpc_client_open(&it->client, it->context, &options));
    gs_fake_worker_options rogue = {.name = "rogue", .control = it->process.control, .slots = 2, .step_ms = 5, .key = &it->rogue_key};
    assert_ok(gs_fake_worker_start(&it->rogue, it->context, &rogue));
    submit(it, &it->own, "own", 1);
    assert_true(gs_fake_worker_rank(it->rogue, 0, &it->rank));
    submit(it, &it->next, "next", 1);
    assert_true(gs_fake_worker_rank(it->rogue, 1, &it->neighbour));
    start_real_worker(it);
    submit(it, &it->victim, "victim", 2);
    it->own.number = it->rank.job;
    it->next.number = it->neighbour.job;
    atomic_store(&forged.of, it->rank.incarnation);
    assert_true(gs_job_id_parse(&it->victim.number, it->victim.id));
    return 0;
}

static int tear_down(void **state) {
    stage *it = *state;
    if (it->real > 0) kill(it->real, SIGTERM);
    gs_fake_worker_stop(it->rogue);
    gs_rpc_client_close(it->client);
    gs_rpc_context_destroy(it->context);
    gs_coordinator_process_release(&it->process);
    if (it->real > 0) kill(it->real, SIGKILL);
    if (it->real > 0) waitpid(it->real, NULL, 0);
    free(it);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_speaks_in_no_generation_but_its_own),
        cmocka_unit_test(a_rank_speaks_in_no_job_but_its_own),
        cmocka_unit_test(a_rank_enters_no_job_but_its_own),
        cmocka_unit_test(a_rank_speaks_for_no_other_rank),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
