// The coordinator killed with -9 just before one of its effects, each of them in turn: whatever it was about to answer,
// order, write or show, its next life brings the job to its end, and a job that trains never notices.
//
// GRADSYNC_KILLS: how many (8); GRADSYNC_KILLS_OF: of one kind alone, by its number; GRADSYNC_REAL_WORKERS=1: an agent with
// trainers that train.
// Row C2 of docs/faults.md.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/store/job_store.h"
#include "tests/support/asserts.h"
#include "tests/support/coordinator_stage.h"
#include "tests/support/sample.h"
#include "tests/support/soon.h"

#define TARGET 240
#define FAR_TARGET 1000000
#define STEP_MS 5
#define NUM_KINDS 8
#define FAKE_KINDS 4  // the last of them: only with fake workers
#define FAILS_AT 100
#define TRAINS_FROM 60  // steps: what it needs to go on is on the disk by then
#define MOST_UNREACHED 3  // in a row: a life has no more effects

typedef struct stage {
    gs_stage *stage;
    pid_t worker;  // 0: fake ones
    gs_fake_faults faults;  // of the first of these
    int deaths;    // of the coordinator, by its failpoint
    int rounds;
} stage;

static int number_from(const char *name, int fallback) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : fallback;
}

static void start_armed(stage *it, int effect) {
    char failpoint[60];
    snprintf(failpoint, sizeof failpoint, "coordinator.effect=kill@%d", effect);
    gs_coordinator_process_kill(&it->stage->process);
    setenv("GRADSYNC_FAILPOINTS", failpoint, 1);
    gs_status status = gs_coordinator_process_start(&it->stage->process);
    unsetenv("GRADSYNC_FAILPOINTS");
    if (status.code) it->deaths++;  // before it served
}

// Its next life has no failpoint.
static void revive(stage *it) {
    gs_coordinator_process *process = &it->stage->process;
    int how = 0;
    if (process->pid > 0 && waitpid(process->pid, &how, WNOHANG) == process->pid) {
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        process->pid = 0;
        it->deaths++;
    }
    if (process->pid <= 0) assert_ok(gs_coordinator_process_start(process));
}

// Asks until some life answers.
static gs_json *ask(stage *it, gs_method method, const char *text) {
    gs_deadline deadline = gs_deadline_in_seconds(180);
    gs_json *request = NULL, *reply = NULL;
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    for (;;) {
        revive(it);
        gs_status status = gs_rpc_call(it->stage->client, method, request, &reply, gs_deadline_in_ms(500));
        if (!status.code) break;
        gs_json_release(reply);
        reply = NULL;
        if (gs_deadline_passed(deadline)) fail_msg("%s", status.message);
    }
    gs_json_release(request);
    return reply;
}

// Asked again with its key where no answer came.
static void submit_of(stage *it, char id[32], int target, int world) {
    char text[500];
    snprintf(text, sizeof text,
             "{\"spec\":{\"name\":\"r%d\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":%d,\"max\":%d,"
             "\"join_window_seconds\":0},\"steps\":{\"target\":%d}%s},\"dry_run\":false,"
             "\"idempotency_key\":\"k%d\"}",
             it->rounds, world, world, target, it->worker ? ",\"debug\":{\"step_delay_ms\":20}" : "", it->rounds);
    gs_json *reply = ask(it, GS_CREATE_JOB, text);
    snprintf(id, 32, "%s", gs_json_string_or(reply, "id", ""));
    gs_json_release(reply);
}

static void submit(stage *it, char id[32], int target) { submit_of(it, id, target, 2); }

// One that never has the slots to begin.
static void submit_waiting(stage *it, char id[32]) { submit_of(it, id, FAR_TARGET, 9); }

static gs_json *look_at(stage *it, const char *id) {
    char text[64];
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", id);
    return ask(it, GS_GET_JOB, text);
}

static int64_t step_of(const gs_json *job) { return gs_json_int_or(gs_json_get(job, "progress"), "step", -1); }

static gs_json *wait_for_end(stage *it, const char *id) {
    gs_deadline deadline = gs_deadline_in_seconds(180);
    for (;;) {
        gs_json *job = look_at(it, id);
        const char *state = gs_json_string_or(job, "state", "");
        if (!strcmp(state, "succeeded")) {
            assert_int_equal(step_of(job), TARGET);
            return job;
        }
        if (!strcmp(state, "failed") || gs_deadline_passed(deadline))
            fail_msg("job %s is %s: %s", id, state, gs_json_string_or(job, "message", ""));
        gs_json_release(job);
        gs_sleep_ns(10 * GS_NS_PER_MS);
    }
}

// It is there once; then it goes, so that the next life has no more to begin with than this one had.
static void forget(stage *it, const char *id) {
    char text[64];
    gs_json *list = ask(it, GS_LIST_JOBS, "{}"), *request = NULL;
    assert_int_equal(gs_json_count(gs_json_get(list, "items")), 1);
    gs_json_release(list);
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", id);
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    gs_status status;
    do {
        gs_json *reply = NULL;
        revive(it);
        status = gs_rpc_call(it->stage->client, GS_DELETE_JOB, request, &reply, gs_deadline_in_ms(500));
        gs_json_release(reply);
    } while (status.code && status.code != GS_NOT_FOUND);
    gs_json_release(request);
}

// From before the job is there: it is accepted once, and gets to its end. True: the effect was reached.
static bool kill_at_the_start(stage *it, int effect) {
    char id[32];
    int deaths = it->deaths;
    it->rounds++;
    start_armed(it, effect);
    submit(it, id, TARGET);
    gs_json_release(wait_for_end(it, id));
    bool reached = it->deaths > deaths;
    forget(it, id);
    return reached;
}

static gs_json *begin_training(stage *it, char id[32], int target) {
    gs_coordinator_process_kill(&it->stage->process);
    submit(it, id, target);
    gs_json *job = NULL;
    do {
        gs_json_release(job);
        job = look_at(it, id);
        gs_sleep_ns(2 * GS_NS_PER_MS);
    } while (step_of(job) < TRAINS_FROM);
    return job;
}

// From its training to its end: the ranks go on in their generation, no step is taken twice, and who has left has left.
static bool kill_in_training(stage *it, int effect) {
    char id[32];
    it->rounds++;
    gs_json *job = begin_training(it, id, TARGET);
    int64_t generation = gs_json_int_or(job, "generation", -1);
    gs_json_release(job);
    int deaths = it->deaths;
    start_armed(it, effect);
    job = wait_for_end(it, id);
    bool reached = it->deaths > deaths;
    assert_int_equal(gs_json_int_or(job, "generation", -2), generation);
    assert_int_equal(gs_json_int_or(job, "restarts", -1), 0);
    assert_int_equal(gs_json_int_or(job, "lost_steps", -1), 0);
    gs_json_release(job);
    forget(it, id);
    return reached;
}

// A stop that was answered is one, and an end that was told does not change.
static bool kill_at_a_stop(stage *it, int effect) {
    char id[32], text[64], told[20];
    it->rounds++;
    gs_json_release(begin_training(it, id, FAR_TARGET));
    int deaths = it->deaths;
    start_armed(it, effect);
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", id);
    gs_json *reply = ask(it, GS_STOP_JOB, text);
    snprintf(told, sizeof told, "%s", gs_json_string_or(reply, "state", ""));
    gs_json_release(reply);
    if (strcmp(told, "cancelled") != 0) assert_string_equal(told, "stopping");
    gs_deadline deadline = gs_deadline_in_seconds(180);
    for (bool has_ended = false; !has_ended;) {
        gs_json *job = look_at(it, id);
        const char *state = gs_json_string_or(job, "state", "");
        has_ended = !strcmp(state, "cancelled");
        bool may_be = has_ended || (strcmp(told, "cancelled") != 0 && !strcmp(state, "stopping"));
        if (!may_be || gs_deadline_passed(deadline)) fail_msg("stopped, told \"%s\", and it is %s", told, state);
        if (has_ended) snprintf(told, sizeof told, "cancelled");
        gs_json_release(job);
    }
    bool reached = it->deaths > deaths;
    forget(it, id);
    return reached;
}

// A rank dies on the way: that is one failure in all lives together, and the job gets to its end behind it.
static bool kill_at_a_failure(stage *it, int effect) {
    char id[32];
    it->rounds++;
    gs_json_release(begin_training(it, id, TARGET));
    atomic_store(&it->faults.crash_at_step, FAILS_AT);  // or at once, where that took long
    int deaths = it->deaths;
    start_armed(it, effect);
    gs_json *job = wait_for_end(it, id);
    bool reached = it->deaths > deaths, has_failed = !atomic_exchange(&it->faults.crash_at_step, 0);
    assert_int_equal(gs_json_int_or(job, "restarts", -1), has_failed);
    gs_json_release(job);
    forget(it, id);
    return reached;
}

// Until some life has done it: OK, or NOT_FOUND where the answer was lost.
static void delete_with_files(stage *it, const char *id) {
    char text[80];
    gs_json *request = NULL;
    gs_deadline deadline = soon();
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"purge\":true}", id);
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    for (gs_status status = gs_error(GS_UNAVAILABLE, "not asked"); status.code && status.code != GS_NOT_FOUND;) {
        gs_json *reply = NULL;
        revive(it);
        status = gs_rpc_call(it->stage->client, GS_DELETE_JOB, request, &reply, gs_deadline_in_ms(500));
        gs_json_release(reply);
        if (status.code && gs_deadline_passed(deadline)) fail_msg("%s", status.message);
    }
    gs_json_release(request);
}

static void stop(stage *it, const char *id) {
    char text[64];
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", id);
    gs_json_release(ask(it, GS_STOP_JOB, text));
}

// That of this life, so that the next one knows which directory it was.
static void wait_for_mark(stage *it) {
    char path[700];
    snprintf(path, sizeof path, "%s/data/marked-checkpoints.json", it->stage->process.directory);
    for (gs_deadline deadline = soon(); access(path, F_OK) != 0; gs_sleep_ns(5 * GS_NS_PER_MS)) assert_false(gs_deadline_passed(deadline));
}

static void stop_and_wait(stage *it, const char *id) {
    gs_deadline deadline = soon();
    stop(it, id);
    for (bool has_ended = false; !has_ended;) {
        gs_json *job = look_at(it, id);
        has_ended = !strcmp(gs_json_string_or(job, "state", ""), "cancelled");
        gs_json_release(job);
        assert_true(has_ended || !gs_deadline_passed(deadline));
        gs_sleep_ns(2 * GS_NS_PER_MS);
    }
}

// Whatever a deletion promised to take along goes, in this life or in the next.
static bool kill_at_a_purge(stage *it, int effect) {
    char id[32], path[700], save[720];
    it->rounds++;
    gs_coordinator_process_kill(&it->stage->process);
    submit(it, id, FAR_TARGET);
    stop_and_wait(it, id);
    snprintf(path, sizeof path, "%s/data/checkpoints/%s", it->stage->process.directory, id);
    snprintf(save, sizeof save, "%s/step-1", path);
    (void)!mkdir(path, 0700);
    assert_int_equal(mkdir(save, 0700), 0);
    int deaths = it->deaths;
    start_armed(it, effect);
    delete_with_files(it, id);
    for (gs_deadline deadline = soon(); access(path, F_OK) == 0; gs_sleep_ns(5 * GS_NS_PER_MS)) {
        revive(it);
        assert_false(gs_deadline_passed(deadline));
    }
    bool reached = it->deaths > deaths;
    gs_json *list = ask(it, GS_LIST_JOBS, "{}");
    assert_int_equal(gs_json_count(gs_json_get(list, "items")), 0);
    gs_json_release(list);
    return reached;
}

static bool is_there(stage *it, const char *id) {
    bool found = false;
    gs_json *list = ask(it, GS_LIST_JOBS, "{}");
    const gs_json *items = gs_json_get(list, "items");
    for (size_t i = 0; i < gs_json_count(items); i++) found |= !strcmp(gs_json_string_or(gs_json_at(items, i), "id", ""), id);
    gs_json_release(list);
    return found;
}

// One job too many has ended: the older one is forgotten whole, and no other.
static bool kill_at_retention(stage *it, int effect) {
    char older[32], newer[32];
    gs_coordinator_process_kill(&it->stage->process);
    for (int i = 0; i < 2; i++) {
        it->rounds++;
        submit_waiting(it, i ? newer : older);
        stop_and_wait(it, i ? newer : older);
    }
    int deaths = it->deaths;
    setenv("GRADSYNC_KEEP_JOBS", "1", 1);
    setenv("GRADSYNC_KEEP_SERIES", "1", 1);
    start_armed(it, effect);
    for (gs_deadline deadline = soon(); is_there(it, older); gs_sleep_ns(20 * GS_NS_PER_MS)) assert_false(gs_deadline_passed(deadline));
    gs_coordinator_process_kill(&it->stage->process);
    unsetenv("GRADSYNC_KEEP_JOBS");
    unsetenv("GRADSYNC_KEEP_SERIES");
    bool reached = it->deaths > deaths;
    assert_false(is_there(it, older));
    forget(it, newer);
    return reached;
}

static void put_dead_key(stage *it, const char *key, const char *id) {
    char path[700];
    uint64_t job = 0;
    gs_job_store *store = NULL;
    gs_store_start start;
    gs_coordinator_process_kill(&it->stage->process);
    snprintf(path, sizeof path, "%s/data/gradsync.db", it->stage->process.directory);
    assert_true(gs_job_id_parse(&job, id));
    assert_ok(gs_job_store_open(&store, &start, path));
    assert_ok(gs_job_store_begin(store));
    assert_ok(gs_job_store_put_key(store, key, "of another request", job, -1));
    assert_ok(gs_job_store_commit(store));
    gs_job_store_close(store);
}

// The life of one key is over, that of another is not: the one makes a job again, the other never does.
static bool kill_at_key_expiry(stage *it, int effect) {
    char id[32], again[32], next[32], key[20];
    it->rounds++;
    gs_coordinator_process_kill(&it->stage->process);
    submit_waiting(it, id);
    stop_and_wait(it, id);
    snprintf(key, sizeof key, "k%d", it->rounds + 1);  // of the request after this one
    put_dead_key(it, key, id);
    int deaths = it->deaths;
    start_armed(it, effect);
    submit_waiting(it, again);
    assert_string_equal(again, id);
    it->rounds++;
    submit_waiting(it, next);
    assert_string_not_equal(next, id);
    stop_and_wait(it, next);
    bool reached = it->deaths > deaths;
    delete_with_files(it, id);
    forget(it, next);
    return reached;
}

// Whether some life has taken its word. It need not where the job waits for nothing, or not yet.
static bool release_from_disk(stage *it, const char *id) {
    char text[64];
    gs_json *request = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", id);
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    revive(it);
    gs_status status = gs_rpc_call(it->stage->client, GS_RELEASE_JOB, request, NULL, gs_deadline_in_ms(500));
    gs_json_release(request);
    return !status.code;
}

// The disk of checkpoints is away, and an operator has said that a job need not wait for it: nobody asks him again.
static bool kill_at_a_release(stage *it, int effect) {
    char first[32], id[32], root[700], away[700];
    snprintf(root, sizeof root, "%s/data/checkpoints", it->stage->process.directory);
    snprintf(away, sizeof away, "%s/data/away", it->stage->process.directory);
    it->rounds++;
    gs_json_release(begin_training(it, first, FAR_TARGET));  // it has the slots
    it->rounds++;
    submit(it, id, TARGET);
    wait_for_mark(it);
    gs_coordinator_process_kill(&it->stage->process);
    assert_int_equal(rename(root, away), 0);
    int deaths = it->deaths;
    start_armed(it, effect);
    gs_deadline deadline = soon();
    bool is_released = false, has_ended = false, is_stopped = false;
    gs_json_release(look_at(it, id));
    for (int i = 0; !has_ended; i++) {
        if (!is_released) is_released = release_from_disk(it, id);
        if (!is_stopped && (i == 20 || is_released)) {
            stop(it, first);
            is_stopped = true;
        }
        gs_json *job = look_at(it, id);
        has_ended = !strcmp(gs_json_string_or(job, "state", ""), "succeeded");
        gs_json_release(job);
        if (gs_deadline_passed(deadline)) fail_msg("released: %d", is_released);
        gs_sleep_ns(20 * GS_NS_PER_MS);
    }
    bool reached = it->deaths > deaths;
    gs_coordinator_process_kill(&it->stage->process);
    (void)!rmdir(root);
    assert_int_equal(rename(away, root), 0);
    stop_and_wait(it, first);
    delete_with_files(it, first);
    forget(it, id);
    return reached;
}

static void start_workers(stage *it) {
    if (!number_from("GRADSYNC_REAL_WORKERS", 0)) {
        gs_fake_worker_options options = {.slots = 1, .step_ms = STEP_MS};
        for (int i = 0; i < 2; i++) {
            options.faults = i == 0 ? &it->faults : NULL;
            gs_stage_start_worker(it->stage, i, &options);
        }
        return;
    }
    it->worker = fork();
    assert_true(it->worker >= 0);
    if (it->worker > 0) return;
    execl(GRADSYNC_BIN_DIR "/gradsync-worker", "gradsync-worker", "--coordinator", it->stage->process.control,
          "--name", "real", "--slots", "2", (char *)NULL);
    _exit(127);
}

#ifdef GRADSYNC_FAILPOINTS
static const bool has_failpoints = true;
#else
static const bool has_failpoints = false;
#endif

static void whatever_it_was_about_to_do_nothing_is_lost(void **state) {
    if (!has_failpoints) skip();
    stage it = {.stage = *state};
    int wanted = number_from("GRADSYNC_KILLS", NUM_KINDS), unreached[NUM_KINDS] = {0}, effect[NUM_KINDS] = {0}, passes = 0;
    // A few of many: spread over the effects of a life, and other ones each time.
    int stride = wanted < 40 ? 1 + (int)(sample_seed("effects") % 7) : 1;
    bool (*const rounds[NUM_KINDS])(stage *, int) = {kill_at_the_start, kill_in_training,   kill_at_a_stop,    kill_at_a_purge,
                                                              kill_at_a_failure, kill_at_retention, kill_at_key_expiry, kill_at_a_release};
    start_workers(&it);
    int kinds = it.worker ? NUM_KINDS - FAKE_KINDS : NUM_KINDS, only = number_from("GRADSYNC_KILLS_OF", -1);
    if (only >= kinds) fail_msg("GRADSYNC_KILLS_OF: there is no kind %d", only);
    while (it.deaths < wanted) {
        for (int kind = only < 0 ? 0 : only; kind <= (only < 0 ? kinds - 1 : only) && it.deaths < wanted; kind++) {
            effect[kind] += stride;
            int64_t begin_ns = gs_now_ns();
            bool was_reached = rounds[kind](&it, effect[kind]);
            print_message("kind %d, effect %d: %.1f s\n", kind, effect[kind], gs_seconds_of(gs_now_ns() - begin_ns));
            unreached[kind] = was_reached ? 0 : unreached[kind] + 1;
            if (unreached[kind] < MOST_UNREACHED) continue;
            print_message("kind %d: a life has less than %d effects\n", kind, effect[kind]);
            effect[kind] = ++passes % stride;
            unreached[kind] = 0;
        }
    }
    print_message("%d deaths in %d jobs, stride %d, effects up to", it.deaths, it.rounds, stride);
    for (int kind = 0; kind < kinds; kind++) print_message(" %d", effect[kind]);
    print_message("\n");
    if (it.worker > 0) {
        kill(it.worker, SIGTERM);
        waitpid(it.worker, NULL, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(whatever_it_was_about_to_do_nothing_is_lost, gs_stage_set_up,
                                        gs_stage_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
