// The disk of the coordinator is full, or gives an error, at one of its writes, each of them in turn: rows, their log, lines, curves, new
// folders, marks among checkpoints; while ranks die and save, older checkpoints go and jobs are forgotten. Whoever asked gets an answer, it is true then and in the next life, what trains goes on, and when there is room
// again all is as if nothing had been.
//
// GRADSYNC_FULL_WRITES: how many calls of each kind (all: each of them; 4).
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/coordinator_stage.h"
#include "tests/support/full_disk.h"
#include "tests/support/sample.h"
#include "tests/support/soon.h"

#define TARGET 40
#define STEP_MS 5
#define NUM_LINES 3
#define FULL_FOR_GOOD INT64_MAX
#define MOST_CRASHES 2
static const int crash_steps[MOST_CRASHES] = {8, 24};

typedef struct full_stage {
    gs_stage *stage;
    gs_full_disk *disk;
    char state_path[600];
    int kinds, error;  // of what fails
    int rounds;
    char former[32];  // the job of the round before; "": there is none
    char id[32];
    gs_json *events;  // owned; that were listed before the end of a life
} full_stage;

static void fill(full_stage *it, int64_t first, int64_t last) {
    atomic_store(&it->disk->first, 0);
    atomic_store(&it->disk->kinds, it->kinds);
    atomic_store(&it->disk->error, it->error);
    atomic_store(&it->disk->writes, 0);
    atomic_store(&it->disk->refused, 0);
    atomic_store(&it->disk->last, last);
    atomic_store(&it->disk->first, first);
}

static void make_room(full_stage *it) { atomic_store(&it->disk->first, 0); }

static gs_status start(full_stage *it) {
    char root[600], asan[300];
    const char *given = getenv("ASAN_OPTIONS");
    char *kept = given ? strdup(given) : NULL;
    snprintf(root, sizeof root, "%s/data", it->stage->process.directory);
    snprintf(asan, sizeof asan, "%s:verify_asan_link_order=0", kept ? kept : "");
    setenv("ASAN_OPTIONS", asan, 1);
    setenv(GS_FULL_DISK_STATE, it->state_path, 1);
    setenv(GS_FULL_DISK_ROOT, root, 1);
    setenv("LD_PRELOAD", GRADSYNC_FULL_DISK_LIBRARY, 1);
    setenv("GRADSYNC_KEEP_JOBS", "1", 1);
    setenv("GRADSYNC_KEEP_SERIES", "1", 1);
    gs_status status = gs_coordinator_process_start(&it->stage->process);
    unsetenv("LD_PRELOAD");
    unsetenv("GRADSYNC_KEEP_JOBS");
    unsetenv("GRADSYNC_KEEP_SERIES");
    if (kept) setenv("ASAN_OPTIONS", kept, 1);
    else unsetenv("ASAN_OPTIONS");
    free(kept);
    return status;
}

static void expect_alive(full_stage *it) {
    int how = 0;
    if (waitpid(it->stage->process.pid, &how, WNOHANG) == 0) return;
    it->stage->process.pid = 0;
    fail_msg("the coordinator ended: %x", how);
}

// What a full disk may be answered with. Anything else is no answer, or about something else.
static bool is_refusal(gs_status status) {
    return status.code == GS_RESOURCE_EXHAUSTED || status.code == GS_UNAVAILABLE;
}

static gs_status ask(full_stage *it, gs_json **reply, gs_method method, const char *text) {
    gs_status status = gs_stage_ask(it->stage, reply, method, text);
    expect_alive(it);
    if (!status.code) return status;
    gs_json_release(*reply);  // details
    *reply = NULL;
    return status;
}

static bool is_there(full_stage *it, const char *id) {
    char text[64];
    gs_json *reply = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", id);
    gs_status status = ask(it, &reply, GS_GET_JOB, text);
    gs_json_release(reply);
    if (status.code && status.code != GS_NOT_FOUND) fail_msg("%s", status.message);
    return !status.code;
}

static int64_t count_jobs(full_stage *it) {
    gs_json *list = NULL;
    assert_ok(ask(it, &list, GS_LIST_JOBS, "{}"));
    int64_t count = (int64_t)gs_json_count(gs_json_get(list, "items"));
    gs_json_release(list);
    return count;
}

// Refused until there is room.
static void refused(full_stage *it, const char *what, gs_status status) {
    if (!is_refusal(status)) fail_msg("%s: %s", what, status.message);
    make_room(it);
}

static void submit(full_stage *it, char id[32]) {
    char text[600];
    snprintf(text, sizeof text,
             "{\"spec\":{\"name\":\"r%d\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":2,\"max\":2,"
             "\"join_window_seconds\":0},\"checkpoint\":{\"keep_last\":1},"
             "\"restart\":{\"backoff_initial_seconds\":0.05,\"backoff_max_seconds\":0.1},\"steps\":{\"target\":%d}},\"dry_run\":false,\"idempotency_key\":\"k%d\"}",
             it->rounds, TARGET, it->rounds);
    int64_t before = count_jobs(it);
    gs_json *reply = NULL;
    gs_status status = ask(it, &reply, GS_CREATE_JOB, text);
    bool is_known = id[0] != '\0';
    if (status.code) {
        refused(it, "create", status);
        assert_int_equal(count_jobs(it), before);
        assert_ok(ask(it, &reply, GS_CREATE_JOB, text));
    }
    if (is_known) assert_string_equal(gs_json_string_or(reply, "id", ""), id);
    snprintf(id, 32, "%s", gs_json_string_or(reply, "id", ""));
    gs_json_release(reply);
    assert_int_equal(count_jobs(it), before + !is_known);
}

static void write_lines(full_stage *it) {
    gs_json *request = NULL, *reply = NULL;
    char text[600];
    size_t length = (size_t)snprintf(text, sizeof text, "{\"job\":\"%s\",\"records\":[", it->id);
    for (int i = 0; i < NUM_LINES; i++)
        length += (size_t)snprintf(text + length, sizeof text - length,
                                   "%s{\"rank\":0,\"generation\":1,\"stream\":\"stdout\",\"text\":\"line %d\",\"at_ms\":1,"
                                   "\"position\":%d}", i ? "," : "", i, i + 1);
    snprintf(text + length, sizeof text - length, "]}");
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    gs_deadline deadline = soon();
    gs_status status;
    do {
        gs_rpc_client *agent = gs_fake_worker_client(it->stage->workers[0]);
        status = gs_rpc_call(agent, GS_LOG, request, &reply, gs_deadline_in_seconds(60));
        expect_alive(it);
        gs_json_release(reply);
        reply = NULL;
        if (!status.code) break;
        refused(it, "lines", status);
        gs_sleep_ns(5 * GS_NS_PER_MS);  // an agent that has not said hello again is refused, too
    } while (!gs_deadline_passed(deadline));
    assert_ok(status);
    gs_json_release(request);
}

// Each line once, in order.
static void expect_lines(full_stage *it) {
    char text[100], wanted[20];
    gs_json *reply = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"grep\":\"line \"}", it->id);
    assert_ok(ask(it, &reply, GS_READ_LOGS, text));
    const gs_json *records = gs_json_get(reply, "records");
    assert_int_equal(gs_json_count(records), NUM_LINES);
    for (int i = 0; i < NUM_LINES; i++) {
        snprintf(wanted, sizeof wanted, "line %d", i);
        assert_string_equal(gs_json_string_or(gs_json_at(records, (size_t)i), "text", ""), wanted);
    }
    gs_json_release(reply);
}

static void expect_curve(full_stage *it) {
    gs_json *series = gs_stage_get(it->stage, GS_GET_JOB_SERIES, it->id);
    const gs_json *points = gs_json_get(gs_json_at(gs_json_get(series, "series"), 0), "points");
    const gs_json *last = gs_json_at(points, gs_json_count(points) - 1);
    int64_t step = -1;
    assert_true(gs_json_count(points) > 0 && gs_json_int(&step, gs_json_at(last, 0)));
    assert_int_equal(step, TARGET);
    gs_json_release(series);
}

// Told that it has ended, or that this cannot be made durable now.
static void stop_ended(full_stage *it) {
    char text[64];
    gs_json *reply = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", it->id);
    gs_status status = ask(it, &reply, GS_STOP_JOB, text);
    if (status.code) {
        refused(it, "stop", status);
        assert_ok(ask(it, &reply, GS_STOP_JOB, text));
    }
    assert_string_equal(gs_json_string_or(reply, "state", ""), "succeeded");
    gs_json_release(reply);
}

// One more has ended than are kept.
static void wait_until_former_is_forgotten(full_stage *it) {
    gs_deadline deadline = soon();
    while (it->former[0] && is_there(it, it->former)) {
        assert_false(gs_deadline_passed(deadline));
        gs_sleep_ns(20 * GS_NS_PER_MS);
    }
}

static void delete_former(full_stage *it) {
    char text[64];
    gs_json *reply = NULL;
    if (!it->former[0] || !is_there(it, it->former)) return;
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", it->former);
    gs_status status = ask(it, &reply, GS_DELETE_JOB, text);
    // It has been forgotten meanwhile: one more has ended than are kept.
    if (status.code && status.code != GS_NOT_FOUND) {
        refused(it, "delete", status);
        assert_true(is_there(it, it->former));
        assert_ok(ask(it, &reply, GS_DELETE_JOB, text));
    }
    gs_json_release(reply);
    assert_false(is_there(it, it->former));
}

static void wait_until_ready(full_stage *it) {
    gs_deadline deadline = soon();
    for (bool ready = false; !ready;) {
        gs_json *health = NULL;
        assert_ok(ask(it, &health, GS_GET_HEALTH, "{}"));
        ready = gs_json_bool_or(health, "ready", false);
        gs_json_release(health);
        assert_true(ready || !gs_deadline_passed(deadline));
        if (!ready) gs_sleep_ns(5 * GS_NS_PER_MS);
    }
}

static gs_json *list_events(full_stage *it) {
    gs_json *reply = NULL;
    assert_ok(ask(it, &reply, GS_LIST_EVENTS, "{\"limit\":500}"));
    return reply;
}

static gs_json *list_events_from(full_stage *it, int64_t sequence) {
    gs_json *reply = NULL;
    char request[80];
    snprintf(request, sizeof request, "{\"limit\":500,\"cursor\":\"%lld\"}", (long long)sequence - 1);
    assert_ok(ask(it, &reply, GS_LIST_EVENTS, request));
    return reply;
}

// What was told of this job before is told again, in its order.
static void expect_events(full_stage *it, const gs_json *before) {
    const gs_json *wanted = gs_json_get(before, "items");
    gs_json *after = list_events_from(it, gs_json_int_or(gs_json_at(wanted, 0), "sequence", 1));
    const gs_json *found = gs_json_get(after, "items");
    size_t at = 0;
    for (size_t i = 0; i < gs_json_count(wanted); i++) {
        int64_t sequence = gs_json_int_or(gs_json_at(wanted, i), "sequence", 0);
        while (at < gs_json_count(found) && gs_json_int_or(gs_json_at(found, at), "sequence", 0) < sequence) at++;
        if (at == gs_json_count(found) || gs_json_int_or(gs_json_at(found, at), "sequence", 0) != sequence)
            fail_msg("event %lld is gone", (long long)sequence);
    }
    gs_json_release(after);
}

// Killed, or ended as an operator ends it: then also what nobody was promised is on the disk.
static void begin_another_life(full_stage *it, bool is_killed) {
    gs_json *events = is_killed ? NULL : list_events(it);
    if (is_killed) gs_coordinator_process_kill(&it->stage->process);
    else assert_int_equal(gs_coordinator_process_stop(&it->stage->process), 0);
    assert_ok(start(it));
    if (events) expect_events(it, events);
    gs_json_release(events);
}

// While nothing can be written people are told that its end waits, not that it has ended.
static void wait_until_over(full_stage *it) {
    gs_deadline deadline = soon();
    int64_t num_crashes = 1;  // the first is on its way since before there was a job: who is slow here misses none
    for (bool is_over = false; !is_over; gs_sleep_ns(5 * GS_NS_PER_MS)) {
        gs_json *job = gs_stage_get(it->stage, GS_GET_JOB, it->id);
        int64_t restarts = gs_json_int_or(job, "restarts", -1);
        is_over = !strcmp(gs_json_string_or(job, "state", ""), "succeeded") ||
                  !strcmp(gs_json_string_or(job, "reason", ""), "EndNotRecorded");
        gs_json_release(job);
        assert_in_range(restarts, 0, num_crashes);
        if (restarts == num_crashes && num_crashes < MOST_CRASHES) atomic_store(&it->stage->faults.crash_at_step, crash_steps[num_crashes++]);
        assert_true(is_over || !gs_deadline_passed(deadline));
    }
    atomic_store(&it->stage->faults.crash_at_step, 0);
}

// The newest that is shown as verified; −1: none, or one is not yet. How many there are.
static int64_t newest_checkpoint(full_stage *it, size_t *count) {
    gs_json *list = gs_stage_get(it->stage, GS_LIST_CHECKPOINTS, it->id);
    const gs_json *items = gs_json_get(list, "items");
    int64_t newest = -1;
    bool are_all = true;
    *count = gs_json_count(items);
    for (size_t i = 0; i < *count; i++) {
        int64_t step = gs_json_int_or(gs_json_at(items, i), "step", -1);
        are_all &= gs_json_bool_or(gs_json_at(items, i), "verified", false);
        if (step > newest) newest = step;
    }
    gs_json_release(list);
    return are_all ? newest : -1;
}

// Of the directories that hold a whole one.
static int64_t newest_on_disk(full_stage *it, size_t *count) {
    char path[700];
    int64_t newest = -1;
    snprintf(path, sizeof path, "%s/data/checkpoints/%s", it->stage->process.directory, it->id);
    DIR *list = opendir(path);
    *count = 0;
    for (const struct dirent *entry; list && (entry = readdir(list));) {
        char manifest[1000];
        long long step = -1;
        snprintf(manifest, sizeof manifest, "%s/%s/MANIFEST.json", path, entry->d_name);
        if (sscanf(entry->d_name, "step-%lld", &step) != 1 || access(manifest, F_OK) != 0) continue;
        ++*count;
        if (step > newest) newest = step;
    }
    if (list) closedir(list);
    return newest;
}

// What was shown before is there, and nothing but the newest.
static void expect_checkpoint(full_stage *it, int64_t step) {
    gs_deadline deadline = soon();
    for (bool is_so = false; !is_so; gs_sleep_ns(5 * GS_NS_PER_MS)) {
        size_t shown = 0, there = 0;
        int64_t newest = newest_checkpoint(it, &shown), on_disk = newest_on_disk(it, &there);
        if (newest < step || on_disk < newest) fail_msg("step %lld was there, now %lld is, on the disk %lld", (long long)step, (long long)newest, (long long)on_disk);
        is_so = shown == 1 && there == 1;
        if (!is_so && gs_deadline_passed(deadline)) fail_msg("%zu checkpoints, %zu on the disk", shown, there);
    }
}

static int64_t wait_for_checkpoint(full_stage *it) {
    gs_deadline deadline = soon();
    size_t count;
    int64_t step;
    while ((step = newest_checkpoint(it, &count)) < 0) {
        assert_false(gs_deadline_passed(deadline));
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
    return step;
}

// A life of a job on a disk that is full from its `first` write to the `last` one. How many writes it was.
static int64_t live_through(full_stage *it, int64_t first, int64_t last) {
    it->rounds++;
    it->id[0] = '\0';
    bool is_killed = it->rounds % 2;
    fill(it, first, last);
    atomic_store(&it->stage->faults.crash_at_step, crash_steps[0]);
    submit(it, it->id);
    write_lines(it);
    wait_until_over(it);
    stop_ended(it);
    if (is_killed) delete_former(it);
    make_room(it);
    wait_until_ready(it);
    if (!is_killed) wait_until_former_is_forgotten(it);
    int64_t step = wait_for_checkpoint(it);
    int64_t writes = atomic_load(&it->disk->writes);
    begin_another_life(it, is_killed);
    if (it->former[0]) assert_false(is_there(it, it->former));
    gs_json *job = gs_stage_wait_for_state(it->stage, it->id, "succeeded");
    assert_int_equal(gs_json_int_or(gs_json_get(job, "progress"), "step", -1), TARGET);
    gs_json_release(job);
    assert_int_equal(count_jobs(it), 1);
    expect_lines(it);
    expect_checkpoint(it, step);
    if (!is_killed) expect_curve(it);
    submit(it, it->id);  // its key has made this job
    snprintf(it->former, sizeof it->former, "%s", it->id);
    return writes;
}

// A start that has no room may be refused; the next one finds everything.
static int64_t start_on(full_stage *it, int64_t first, int64_t last) {
    gs_coordinator_process_kill(&it->stage->process);
    fill(it, first, last);
    gs_status status = start(it);
    int64_t writes = atomic_load(&it->disk->writes);
    make_room(it);
    if (status.code) assert_ok(start(it));
    wait_until_ready(it);
    assert_true(is_there(it, it->former));
    assert_int_equal(count_jobs(it), 1);
    expect_lines(it);
    return writes;
}

static int set_up(void **state) {
    full_stage *it = calloc(1, sizeof *it);
    gs_stage_set_up((void **)&it->stage);
    snprintf(it->state_path, sizeof it->state_path, "%s/full_disk", it->stage->process.directory);
    int file = open(it->state_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(file >= 0 && ftruncate(file, sizeof *it->disk) == 0);
    it->disk = mmap(NULL, sizeof *it->disk, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert_true(it->disk != MAP_FAILED);
    close(file);
    gs_coordinator_process_kill(&it->stage->process);
    assert_ok(start(it));
    gs_fake_worker_options options = {.slots = 1, .step_ms = STEP_MS};
    for (int i = 0; i < 2; i++) gs_stage_start_worker(it->stage, i, &options);
    *state = it;
    return 0;
}

static int tear_down(void **state) {
    full_stage *it = *state;
    void *stage = it->stage;
    gs_stage_tear_down(&stage);
    munmap(it->disk, sizeof *it->disk);
    free(it);
    return 0;
}

// For one write, for some, and until somebody has noticed.
static const int64_t lengths[] = {1, 20, FULL_FOR_GOOD};

static void fail_in_turn(full_stage *it, int64_t least_of_life, int64_t least_of_start) {
    const char *wanted = getenv("GRADSYNC_FULL_WRITES");
    bool all = wanted && !strcmp(wanted, "all");
    int draws = wanted && !all ? atoi(wanted) : 4;
    live_through(it, 0, 0);
    int64_t of_life = live_through(it, 0, 0), of_start = start_on(it, 0, 0);  // the second also deletes a job
    print_message("%lld of these calls in a life, %lld in a start\n", (long long)of_life, (long long)of_start);
    assert_true(of_life > least_of_life && of_start > least_of_start);
    srandom((unsigned)sample_seed("writes"));
    for (int64_t i = 1; all ? i <= of_life : i <= draws; i++) {
        int64_t first = all ? i : 1 + random() % of_life;
        for (int k = all ? 0 : (int)(i % 3); k < 3; k += all ? 1 : 3) {
            print_message("from call %lld on, for %lld\n", (long long)first, (long long)lengths[k]);
            live_through(it, first, lengths[k] == FULL_FOR_GOOD ? FULL_FOR_GOOD : first + lengths[k] - 1);
        }
    }
    for (int64_t i = 1; all ? i <= of_start : i <= draws / 2; i++) {
        int64_t first = all ? i : 1 + random() % of_start;
        print_message("a start: from call %lld on\n", (long long)first);
        start_on(it, first, i % 2 ? first : FULL_FOR_GOOD);
    }
}

static void a_full_disk_loses_nothing_that_was_promised(void **state) { fail_in_turn(*state, 20, 5); }

static void a_disk_that_gives_errors_loses_nothing_that_was_promised(void **state) {
    full_stage *it = *state;
    it->kinds = GS_FULL_DISK_SYNCS | GS_FULL_DISK_CLOSES | GS_FULL_DISK_NAMES;
    it->error = EIO;
    fail_in_turn(it, 20, 3);
}

// The disk says no to the sync of a commit; whoever asked is told, and the coordinator is killed.
static void what_a_failed_sync_refused_is_not_there_after_a_kill(void **state) {
    full_stage *it = *state;
    int num_refused = 0;
    it->kinds = GS_FULL_DISK_SYNCS;
    it->error = EIO;
    for (int i = 0; i < 20 && num_refused < 3; i++) {
        char text[300];
        gs_json *reply = NULL;
        snprintf(text, sizeof text,
                 "{\"spec\":{\"name\":\"s%d\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":9,\"max\":9},\"steps\":{\"target\":5}},"
                 "\"dry_run\":false,\"idempotency_key\":\"s%d\"}", i, i);
        int64_t before = count_jobs(it);
        fill(it, 1, 1);
        gs_status status = ask(it, &reply, GS_CREATE_JOB, text);
        make_room(it);
        gs_json_release(reply);
        reply = NULL;
        if (status.code && !is_refusal(status)) fail_msg("%s", status.message);
        gs_coordinator_process_kill(&it->stage->process);
        assert_ok(start(it));
        wait_until_ready(it);
        assert_int_equal(count_jobs(it), before + !status.code);
        if (!status.code) continue;  // another commit was in front of it
        num_refused++;
        assert_ok(ask(it, &reply, GS_CREATE_JOB, text));
        gs_json_release(reply);
        assert_int_equal(count_jobs(it), before + 1);
    }
    assert_int_equal(num_refused, 3);
}

// A name: of the one test that is to be run.
int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_full_disk_loses_nothing_that_was_promised, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_disk_that_gives_errors_loses_nothing_that_was_promised, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_a_failed_sync_refused_is_not_there_after_a_kill, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
