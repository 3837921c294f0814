// What is seen of jobs that rest: calls, files and lines that are on their way while they do.
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/observe/counters.h"
#include "coordinator/observe/curves.h"
#include "coordinator/observe/events.h"
#include "coordinator/observe/held.h"
#include "coordinator/observe/job_log.h"
#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/job_view.h"
#include "coordinator/observe/metrics/diagnose.h"
#include "coordinator/observe/metrics/metric_families.h"
#include "coordinator/observe/recall.h"
#include "coordinator/observe/sights.h"
#include "coordinator/observe/timelines.h"
#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

#define PATIENCE_NS (60 * GS_NS_PER_SEC)
#define NUM_CALLS 3

// Calls without a connection: what their keeper hung on them, and how they ended.
typedef struct played_call {
    gs_held *held;
    int num_answers;
    gs_status answer;
    bool says_ended;
    char summary[500], asked[500];  // the last event "Requested" of a list
    char unreadable[500];           // the last "JobsUnreadable"
    char code[24];                  // of details
    struct played_call *gone_with_it;  // its caller goes away when this one is answered
} played_call;

void __wrap_gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body);
void __wrap_gs_rpc_call_set_data(gs_rpc_call_handle *call, void *data);
void __wrap_gs_rpc_server_get_stats(const gs_rpc_server *server, gs_rpc_server_stats *stats);

static gs_rpc_server_stats server_says;

void __wrap_gs_rpc_server_get_stats(const gs_rpc_server *server, gs_rpc_server_stats *stats) {
    (void)server;
    *stats = server_says;
}

void __wrap_gs_rpc_call_set_data(gs_rpc_call_handle *call, void *data) {
    ((played_call *)(void *)call)->held = data;
}

void __wrap_gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body) {
    played_call *it = (played_call *)(void *)call, *other = it->gone_with_it;
    it->num_answers++;
    it->answer = status;
    it->says_ended = gs_json_bool_or(body, "ended", false);
    snprintf(it->code, sizeof it->code, "%s", gs_json_string_or(body, "code", ""));
    snprintf(it->summary, sizeof it->summary, "%s", gs_json_string_or(body, "summary", ""));
    const gs_json *items = gs_json_get(body, "items");
    for (size_t i = 0; i < gs_json_count(items); i++) {
        const gs_json *item = gs_json_at(items, i);
        const char *message = gs_json_string_or(item, "message", "");
        if (!strcmp(gs_json_string_or(item, "reason", ""), "JobsUnreadable")) snprintf(it->unreadable, sizeof it->unreadable, "%s", message);
        if (strcmp(gs_json_string_or(item, "reason", ""), "Requested") != 0) continue;
        snprintf(it->asked, sizeof it->asked, "%s", message);
    }
    gs_json_release(body);
    gs_held *held = other ? other->held : NULL;
    if (held) held->gone(held->owner, (gs_rpc_call_handle *)(void *)other);
}

static gs_rpc_call_handle *handle_of(played_call *call) {
    return (gs_rpc_call_handle *)(void *)call;
}

typedef struct play {
    char *directory;
    int wake_fd;
    gs_state state;
    gs_observer *observer;
    gs_job *job;  // ended in a former life
    char job_directory[1200];
} play;

static int set_up(void **state) {
    play *it = calloc(1, sizeof *it);
    *state = it;
    it->directory = gs_temp_dir_make();
    it->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    it->state.timing = gs_timing_default;
    char path[1100];
    snprintf(path, sizeof path, "%s/jobs", it->directory);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/store.db", it->directory);
    gs_store_start facts;
    gs_job_store *store = NULL;
    assert_ok(gs_job_store_open(&store, &facts, path));
    assert_ok(gs_observer_create(&it->observer, &(gs_observer_options){.state = &it->state,
                                                                       .data_dir = it->directory,
                                                                       .store = store,
                                                                       .next_sequence = 1}));
    assert_ok(gs_writer_start(&it->observer->writer, store, it->wake_fd, NULL));
    it->observer->wake_fd = it->wake_fd;
    it->job = gs_job_create(gs_job_id_make(1, 1), &(gs_job_spec){0});
    it->job->state = GS_JOB_SUCCEEDED;
    gs_job_table_add(&it->state.jobs, it->job);
    assert_true(gs_observer_meet(it->observer, it->job, &(gs_job_documents){0}, true));
    snprintf(it->job_directory, sizeof it->job_directory, "%s/jobs/%s", it->directory,
             it->job->id_text);
    return 0;
}

static int tear_down(void **state) {
    play *it = *state;
    gs_writer_stop(it->observer->writer);
    for (size_t i = 0; i < it->state.jobs.count; i++)
        gs_observer_forget(it->observer, it->state.jobs.items[i]);
    gs_observer_destroy(it->observer);
    gs_job_table_release(&it->state.jobs);
    gs_agent_table_release(&it->state.agents);
    close(it->wake_fd);
    gs_temp_dir_remove(it->directory);
    free(it);
    return 0;
}

// As long as nobody says what is waited for.
static void collect_until(play *it, bool (*is_so)(const play *it)) {
    int64_t until_ns = gs_now_ns() + PATIENCE_NS;
    while (!is_so(it)) {
        assert_true(gs_now_ns() < until_ns);
        gs_writer_collect(it->observer->writer);
        usleep(1000);
    }
}

static void tick(play *it) {
    it->observer->rested_ns = 0;  // looks for jobs that may rest each time
    gs_observer_tick(it->observer);
}

static played_call calls[NUM_CALLS];

static bool first_and_last_are_answered(const play *it) {
    (void)it;
    return calls[0].num_answers && calls[NUM_CALLS - 1].num_answers;
}

static void handler_of_nobody(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                              const gs_json *request) {
    (void)ctx;
    (void)peer;
    (void)request;
    gs_rpc_reply(call, gs_ok(), NULL);
}

// An answer that cannot be sent ends the connection, and with it what else its peer asked.
static void a_caller_may_go_away_while_another_is_answered(void **state) {
    play *it = *state;
    memset(calls, 0, sizeof calls);
    calls[0].gone_with_it = &calls[1];
    for (int i = 0; i < NUM_CALLS; i++)
        assert_true(
            gs_recall_record(it->observer, it->job, handler_of_nobody, handle_of(&calls[i]), NULL));
    collect_until(it, first_and_last_are_answered);
    assert_int_equal(calls[0].num_answers, 1);
    assert_int_equal(calls[1].num_answers, 0);
    assert_int_equal(calls[2].num_answers, 1);
    assert_int_equal(calls[2].answer.code, GS_NOT_FOUND);  // it has no row
}

static bool first_is_answered(const play *it) {
    (void)it;
    return calls[0].num_answers > 0;
}

// So large that nothing else fits beside it, until somebody lets it go.
static struct {
    gs_write base;
    atomic_bool may_end;
    bool has_ended;
} slow;

static gs_status wait_for_word(gs_write *base, gs_job_store *store) {
    (void)base;
    (void)store;
    while (!atomic_load(&slow.may_end)) usleep(1000);
    return gs_ok();
}

static void has_ended(gs_write *base, gs_status status) {
    (void)base;
    slow.has_ended = !status.code;
}

static bool slow_has_ended(const play *it) {
    (void)it;
    return slow.has_ended;
}

// The disk is not even asked: nobody waits for an answer that never comes.
static void who_cannot_be_recalled_is_told_so(void **state) {
    play *it = *state;
    memset(calls, 0, sizeof calls);
    slow.base = (gs_write){.run = wait_for_word, .done = has_ended, .lane = GS_LANE_READS, .bytes = (size_t)128 << 20};
    gs_writer_submit(it->observer->writer, &slow.base);
    assert_true(gs_recall_record(it->observer, it->job, handler_of_nobody, handle_of(&calls[0]), NULL));
    int num_answers = calls[0].num_answers;
    atomic_store(&slow.may_end, true);
    collect_until(it, slow_has_ended);
    assert_int_equal(num_answers, 1);
    assert_int_equal(calls[0].answer.code, GS_UNAVAILABLE);
}

static gs_status spoil_row(gs_write *base, gs_job_store *store) {
    (void)base;
    return gs_job_store_put_job(store, gs_job_id_make(1, 1), "{\"spec\":{}}");
}

// Its card is readable, so it is shown; of what its record has nobody is told that the question is wrong.
static void a_record_that_cannot_be_read_is_told_as_that(void **state) {
    play *it = *state;
    memset(calls, 0, sizeof calls);
    atomic_store(&slow.may_end, true);
    slow.has_ended = false;
    slow.base = (gs_write){.run = spoil_row, .done = has_ended, .lane = GS_LANE_ROWS};
    gs_writer_submit(it->observer->writer, &slow.base);
    collect_until(it, slow_has_ended);
    assert_true(gs_recall_record(it->observer, it->job, handler_of_nobody, handle_of(&calls[0]), NULL));
    collect_until(it, first_is_answered);
    assert_int_equal(calls[0].answer.code, GS_FAILED_PRECONDITION);
    assert_string_equal(calls[0].code, "unreadable");
}

// Nor does who asks wait for the commit of others.
static void what_is_recalled_waits_for_no_commit(void **state) {
    play *it = *state;
    memset(calls, 0, sizeof calls);
    atomic_store(&slow.may_end, false);
    slow.has_ended = false;
    slow.base = (gs_write){.run = wait_for_word, .done = has_ended, .lane = GS_LANE_ROWS};
    gs_writer_submit(it->observer->writer, &slow.base);
    assert_true(gs_recall_record(it->observer, it->job, handler_of_nobody, handle_of(&calls[0]), NULL));
    collect_until(it, first_is_answered);
    bool has_waited = slow.has_ended;
    atomic_store(&slow.may_end, true);
    collect_until(it, slow_has_ended);
    assert_false(has_waited);
}

// While its row is on its way to the disk the older one is there: what is shown of the job stays in memory.
static void a_job_rests_behind_its_row(void **state) {
    play *it = *state;
    gs_job_sight *sight = it->job->sight;
    it->job->state = GS_JOB_SUCCEEDED;
    for (int is_stored = 0; is_stored < 2; is_stored++) {
        sight->is_resting = false;
        sight->used_ns = 0;
        sight->rows_on_their_way = !is_stored;
        it->observer->rested_ns = 0;
        gs_observer_tick(it->observer);
        assert_int_equal(sight->is_resting, is_stored);
        if (!is_stored) gs_observer_note_row(it->observer, it->job->id, it->job->version, gs_ok());
        assert_int_equal(sight->rows_on_their_way, 0);
    }
}

static bool first_is_answered_by_ticks(const play *it) {
    gs_observer_tick(it->observer);
    return first_is_answered(it);
}

// Of a file that cannot be read now nobody says that it is empty, and it is read when it can be.
static void curves_that_cannot_be_read_are_not_empty(void **state) {
    play *it = *state;
    char path[1300];
    snprintf(path, sizeof path, "%s/metrics.jsonl", it->job_directory);
    assert_int_equal(mkdir(it->job_directory, 0700), 0);
    assert_int_equal(symlink("metrics.jsonl", path), 0);
    for (int is_well = 0; is_well < 2; is_well++) {
        memset(calls, 0, sizeof calls);
        assert_true(gs_recall_curves(it->observer, it->job, handler_of_nobody, handle_of(&calls[0]), NULL));
        collect_until(it, first_is_answered_by_ticks);
        assert_int_equal(calls[0].answer.code, is_well ? GS_OK : GS_UNAVAILABLE);
        unlink(path);
    }
}

static gs_code say_line(play *it, const gs_rpc_caller *caller, uint64_t incarnation, int rank, int generation) {
    char text[200];
    gs_json *request = NULL;
    memset(calls, 0, sizeof calls);
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"records\":[{\"text\":\"a line\",\"rank\":%d,\"generation\":%d}]}",
             it->job->id_text, rank, generation);
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    gs_log_records(it->observer, handle_of(&calls[0]), &(gs_rpc_peer){.incarnation = incarnation, .caller = *caller}, request);
    gs_json_release(request);
    collect_until(it, first_is_answered);
    return calls[0].answer.code;
}

static void a_worker_writes_for_ranks_that_it_has_or_had(void **state) {
    play *it = *state;
    static const char *const names[] = {"w1", "w2"};
    gs_rpc_caller keys[2];
    for (int i = 0; i < 2; i++) {
        gs_agent *agent = gs_agent_table_add(&it->state.agents, names[i]);
        snprintf(agent->name, sizeof agent->name, "%s", names[i]);
        assert_true(gs_agent_table_rename(&it->state.agents, agent, (uint64_t)i + 1));
        keys[i] = (gs_rpc_caller){.is_known = true, .role = GS_ROLE_AGENT};
        snprintf(keys[i].name, sizeof keys[i].name, "%s", names[i]);
    }
    assert_int_equal(say_line(it, &keys[0], 1, 0, 0), GS_PERMISSION_DENIED);  // never was there
    gs_run *run = gs_run_create(it->job, 2, 0);
    for (int i = 0; i < 2; i++) snprintf(run->members[i].worker, sizeof run->members[i].worker, "%s", names[i]);
    run->generation = 7;
    it->job->run = run;
    assert_int_equal(say_line(it, &keys[0], 1, 0, 7), GS_OK);
    assert_int_equal(say_line(it, &keys[0], 1, 0, 0), GS_OK);  // before it knew its generation
    assert_int_equal(say_line(it, &keys[0], 1, 1, 7), GS_PERMISSION_DENIED);
    assert_int_equal(say_line(it, &keys[0], 1, 1, 0), GS_PERMISSION_DENIED);
    assert_int_equal(say_line(it, &keys[0], 1, -1, 7), GS_PERMISSION_DENIED);
    assert_int_equal(say_line(it, &keys[0], 1, 2, 7), GS_PERMISSION_DENIED);
    assert_int_equal(say_line(it, &keys[0], 1, 0, 6), GS_PERMISSION_DENIED);
    assert_int_equal(say_line(it, &keys[0], 1, 0, 8), GS_PERMISSION_DENIED);
    assert_int_equal(say_line(it, &keys[1], 1, 0, 7), GS_UNAVAILABLE);  // as another worker
    // Its end: the last lines are still on their way, and the next generation is another's.
    int any_gate;
    it->observer->gate = (gs_key_gate *)(void *)&any_gate;  // where keys are shown
    gs_observer_see(it->observer, &(gs_effect){.kind = GS_DO_END_RUN, .job = it->job, .run = run});
    it->observer->gate = NULL;
    snprintf(run->members[0].worker, sizeof run->members[0].worker, "w2");
    run->generation = 8;
    assert_int_equal(say_line(it, &keys[0], 1, 0, 7), GS_OK);
    assert_int_equal(say_line(it, &keys[0], 1, 0, 8), GS_PERMISSION_DENIED);
    assert_int_equal(say_line(it, &keys[1], 2, 0, 8), GS_OK);
    assert_int_equal(say_line(it, &keys[1], 2, 0, 7), GS_PERMISSION_DENIED);
    it->job->run = NULL;
    gs_run_destroy(run);
    assert_int_equal(say_line(it, &keys[0], 1, 0, 7), GS_OK);
    assert_int_equal(say_line(it, &(gs_rpc_caller){0}, 1, 5, 5), GS_OK);  // where nobody shows a key
}

static const char *name_of(const gs_rpc_caller *caller, const char *said) {
    static char name[200];
    gs_json *request = gs_json_new_object();
    gs_json_set_string(request, "principal", said);
    snprintf(name, sizeof name, "%s", gs_events_asker(&(gs_rpc_peer){.caller = *caller}, request));
    gs_json_release(request);
    return name;
}

// By whose word somebody is named, and with what a name can be.
static void an_api_names_who_asked_it_and_nobody_else_does(void **state) {
    (void)state;
    const gs_rpc_caller local = {.is_local = true}, api = {.is_known = true, .role = GS_ROLE_OPERATOR, .name = "api"};
    const gs_rpc_caller worker = {.is_known = true, .role = GS_ROLE_AGENT, .name = "w"}, nobody = {0};
    assert_string_equal(name_of(&local, "ci (t-0123)"), "ci (t-0123)");
    assert_string_equal(name_of(&api, "ci (t-0123)"), "ci (t-0123)");
    assert_string_equal(name_of(&worker, "ci (t-0123)"), "");
    assert_string_equal(name_of(&nobody, "ci (t-0123)"), "");
    assert_string_equal(name_of(&local, "ci\nlevel=error msg=\"x\""), "");
    char longer[200];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_string_equal(name_of(&local, longer), "");
}

static bool tell_nobody(void *ctx, gs_call call, gs_json *item) {
    (void)ctx;
    (void)call;
    gs_json_release(item);
    return false;
}

static void who_has_timelines_recorded_is_told(void **state) {
    play *it = *state;
    memset(calls, 0, sizeof calls);
    it->job->run = gs_run_create(it->job, 1, 0);
    it->job->run->phase = GS_RUN_TRAINING;
    it->observer->send = tell_nobody;
    gs_rpc_peer api = {.caller = {.is_known = true, .role = GS_ROLE_OPERATOR, .name = "api"}};
    gs_json *request = gs_json_new_object(), *all = gs_json_new_object();
    gs_json_set_string(request, "job", it->job->id_text);
    gs_json_set_string(request, "principal", "ci (t-1)");
    gs_trace_job(it->observer, handle_of(&calls[0]), &api, request);
    assert_ok(calls[0].answer);
    gs_list_events(it->observer, handle_of(&calls[1]), &api, all);
    assert_non_null(strstr(calls[1].asked, "a recording of timelines of job"));
    assert_non_null(strstr(calls[1].asked, "was asked for by ci (t-1) through api"));
    gs_json_release(request);
    gs_json_release(all);
    gs_run_destroy(it->job->run);
    it->job->run = NULL;
}

// Of ten thousand jobs that have ended, each with thousands of ranks.
static void a_resting_job_keeps_nothing_of_its_runs(void **state) {
    play *it = *state;
    gs_run *run = gs_run_create(it->job, 2, 0);
    gs_observer_see(it->observer, &(gs_effect){.kind = GS_DO_END_RUN, .job = it->job, .run = run});
    assert_int_equal(it->job->sight->past.count, 0);  // nobody shows a key, so nobody is asked whose they were
    int any_gate;
    it->observer->gate = (gs_key_gate *)(void *)&any_gate;
    gs_observer_see(it->observer, &(gs_effect){.kind = GS_DO_END_RUN, .job = it->job, .run = run});
    it->observer->gate = NULL;
    assert_int_equal(it->job->sight->past.count, 2);
    gs_run_destroy(run);
    it->job->offers = (gs_plan_offers){.buckets = calloc(1, sizeof *it->job->offers.buckets), .num_buckets = 1};
    tick(it);
    assert_true(it->job->sight->is_resting);
    assert_int_equal(it->job->sight->past.reserved, 0);
    assert_null(it->job->offers.buckets);
}

static bool log_is_open(const play *it) {
    char name[64], path[1300];
    for (int fd = 0; fd < 256; fd++) {
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(name, path, sizeof path - 1);
        path[length < 0 ? 0 : length] = '\0';
        if (strstr(path, it->job->id_text) && strstr(path, "/log-")) return true;
    }
    return false;
}

static bool log_is_closed(const play *it) {
    return !log_is_open(it);
}

// An agent that was away for long brings the last lines of a job that rests.
static void the_log_of_a_resting_job_is_closed_again(void **state) {
    play *it = *state;
    memset(calls, 0, sizeof calls);
    gs_agent *agent = gs_agent_table_add(&it->state.agents, "w1");
    assert_true(gs_agent_table_rename(&it->state.agents, agent, 5));
    tick(it);
    assert_true(it->job->sight->is_resting);
    char text[200];
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"records\":[{\"text\":\"late\",\"rank\":0}]}",
             it->job->id_text);
    gs_json *request = NULL;
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    gs_log_records(it->observer, handle_of(&calls[0]), &(gs_rpc_peer){.incarnation = 5}, request);
    gs_json_release(request);
    collect_until(it, first_is_answered);
    assert_ok(calls[0].answer);
    assert_true(log_is_open(it));
    tick(it);
    it->job->sight->used_ns -= it->job->sight->used_ns ? 61 * GS_NS_PER_SEC : 0;
    tick(it);
    collect_until(it, log_is_closed);
}

static bool curves_are_there(const play *it) {
    char path[1300];
    snprintf(path, sizeof path, "%s/metrics.jsonl", it->job_directory);
    gs_observer_tick(it->observer);
    return !access(path, F_OK);
}

static bool curves_are_settled(const play *it) {
    tick((play *)(uintptr_t)it);
    return it->job->sight->is_resting;
}

static void a_job_does_not_rest_before_its_curves_are_written(void **state) {
    play *it = *state;
    FILE *file = fopen(it->job_directory, "w");  // where its directory should be
    assert_non_null(file);
    fclose(file);
    gs_json *entry = gs_json_new_object();
    gs_json_set_int(entry, "step", 7);
    gs_curves_note(it->observer, it->job, entry);
    gs_json_release(entry);
    for (int i = 0; i < 3; i++) {
        tick(it);
        gs_writer_collect(it->observer->writer);
        usleep(1000);
    }
    assert_false(it->job->sight->is_resting);
    assert_int_equal(unlink(it->job_directory), 0);
    collect_until(it, curves_are_there);
    collect_until(it, curves_are_settled);
}

static void note_steps(play *it, int first, int count) {
    for (int step = first; step < first + count; step++) {
        gs_json *entry = gs_json_new_object();
        gs_json_set_int(entry, "step", step);
        gs_json_set_string(entry, "filler", "what else is drawn of a step, by which its line has two hundred bytes or so: a loss, a norm, a rate, "
                                            "seconds, tokens, and how much of them was hidden");
        gs_curves_note(it->observer, it->job, entry);
        gs_json_release(entry);
    }
}

static size_t read_curves(const play *it, char *text, size_t room) {
    char path[1300];
    snprintf(path, sizeof path, "%s/metrics.jsonl", it->job_directory);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t bytes = fread(text, 1, room - 1, file);
    text[bytes] = '\0';
    fclose(file);
    return bytes;
}

// A directory that hangs says neither yes nor no, for as long as it likes, and the job goes on.
static void curves_of_a_disk_that_hangs_are_bounded(void **state) {
    play *it = *state;
    static char text[2 * GS_CURVES_MAX_PENDING];
    atomic_store(&slow.may_end, false);
    slow.has_ended = false;
    slow.base = (gs_write){.run = wait_for_word, .done = has_ended, .lane = GS_LANE_LOGS};
    gs_writer_submit(it->observer->writer, &slow.base);
    note_steps(it, 1, 1);
    tick(it);
    note_steps(it, 2, 9999);
    uint64_t num_lost = it->observer->limits_reached[GS_LIMIT_CURVES];
    atomic_store(&slow.may_end, true);
    collect_until(it, slow_has_ended);
    assert_true(num_lost > 8000);
    collect_until(it, curves_are_there);
    collect_until(it, curves_are_settled);
    size_t bytes = read_curves(it, text, sizeof text);
    assert_true(bytes > GS_CURVES_MAX_PENDING / 2 && bytes < GS_CURVES_MAX_PENDING + 400);
    assert_memory_equal(text, "{\"step\":1,", 10);
    assert_non_null(strstr(text, "\n{\"step\":10000,"));
    assert_null(strstr(text, "\n{\"step\":1000,"));
}

// Somebody sets the clock of the machine: a job that has just ended is no older for it, and an old
// one no younger.
static void what_is_shown_goes_by_the_time_that_was_lived(void **state) {
    play *it = *state;
    for (int is_old = 0; is_old < 2; is_old++) {
        memset(calls, 0, sizeof calls);
        it->job->ended_ms = is_old ? gs_wall_ms() + 86400 * 1000 : 1;
        // A reader that takes its time on a loaded machine must not make it old.
        it->job->ended_ns = gs_now_ns() + (is_old ? -301 : 3600) * GS_NS_PER_SEC;
        assert_int_equal(gs_metrics_expired(it->observer, it->job), is_old);
        char text[100];
        snprintf(text, sizeof text, "{\"job\":\"%s\"}", it->job->id_text);
        gs_json *request = NULL;
        assert_ok(gs_json_parse(&request, text, strlen(text)));
        gs_read_logs(it->observer, handle_of(&calls[0]), NULL, request);
        gs_json_release(request);
        collect_until(it, first_is_answered);
        assert_ok(calls[0].answer);
        assert_int_equal(calls[0].says_ended, is_old);
    }
}

// What the control port refuses or drops because there is too much of it.
static void each_bound_of_the_control_port_is_told(void **state) {
    play *it = *state;
    static int any_server;
    static const struct {
        gs_limit limit;
        uint64_t *count;
    } bounds[] = {{GS_LIMIT_REQUESTS, &server_says.refused_full},
                  {GS_LIMIT_UNREAD, &server_says.dropped_slow},
                  {GS_LIMIT_ENDS, &server_says.cut},
                  {GS_LIMIT_OPEN_CALLS, &server_says.refused_open},
                  {GS_LIMIT_ANSWERS, &server_says.unkept},
                  {GS_LIMIT_CONNECTIONS, &server_says.refused_connections},
                  {GS_LIMIT_SESSIONS, &server_says.forgotten_sessions},
                  {GS_LIMIT_MESSAGES, &server_says.dropped_flood}};
    it->observer->server = (gs_rpc_server *)(void *)&any_server;
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        gs_counters_tick(it->observer);
        assert_int_equal(it->observer->limit_told_ns[bounds[i].limit], 0);
        *bounds[i].count += 3;
        gs_counters_tick(it->observer);
        assert_int_not_equal(it->observer->limit_told_ns[bounds[i].limit], 0);
        assert_int_equal(it->observer->limit_totals[bounds[i].limit], 3);
    }
    it->observer->server = NULL;
}

static void ask_for_events(const play *it) {
    gs_json *all = gs_json_new_object();
    memset(calls, 0, sizeof calls);
    gs_list_events(it->observer, handle_of(&calls[0]), &(gs_rpc_peer){0}, all);
    gs_json_release(all);
    assert_ok(calls[0].answer);
}

static void find(const play *it, uint64_t id, gs_code expected, const char *code) {
    char text[GS_JOB_ID_LEN];
    gs_job_id_format(text, id);
    gs_json *request = gs_json_new_object(), *details = NULL;
    gs_json_set_string(request, "job", text);
    gs_job *job = NULL;
    assert_int_equal(gs_observer_find_job(it->observer, &job, &details, request).code, expected);
    assert_string_equal(gs_json_string_or(details, "code", ""), code);
    gs_json_release(details);
    gs_json_release(request);
}

// Its id is all that is known of it: the events of all name it.
static void jobs_that_cannot_be_read_are_told_of(void **state) {
    play *it = *state;
    gs_observer_tell_unreadable(it->observer);
    ask_for_events(it);
    assert_string_equal(calls[0].unreadable, "");
    for (uint64_t id = 70; id < 77; id++) gs_job_table_add_unreadable(&it->state.jobs, id);
    gs_observer_tell_unreadable(it->observer);
    ask_for_events(it);
    char id_text[GS_JOB_ID_LEN];
    gs_job_id_format(id_text, 70);
    assert_non_null(strstr(calls[0].unreadable, "7 jobs cannot be read and are not shown: "));
    assert_non_null(strstr(calls[0].unreadable, id_text));
    assert_non_null(strstr(calls[0].unreadable, " and 2 others"));
    find(it, 76, GS_FAILED_PRECONDITION, "unreadable");
    find(it, 77, GS_NOT_FOUND, "");
}

static void assert_line(const play *it, int64_t now_ns, const char *has, const char *has_not) {
    char *text;
    gs_json *line = gs_job_to_line(it->job, now_ns);
    assert_ok(gs_json_encode(&text, NULL, line, false));
    gs_json_release(line);
    if (!strstr(text, has) || strstr(text, has_not)) fail_msg("%s", text);
    free(text);
}

static void a_line_of_a_list_is_as_new_as_the_job(void **state) {
    play *it = *state;
    gs_job *job = it->job;
    job->lost_steps = 5;
    assert_line(it, 1, "\"lost_steps\":5", "\"lost_steps\":6");
    // What neither a version nor a step tells of is shown a moment later.
    job->lost_steps = 6;
    assert_line(it, 2, "\"lost_steps\":5", "\"lost_steps\":6");
    assert_line(it, 1 + GS_NS_PER_SEC, "\"lost_steps\":6", "\"lost_steps\":5");
    job->step = 7;
    assert_line(it, 2 + GS_NS_PER_SEC, "\"step\":7", "\"step\":0");
    job->state = GS_JOB_FAILED;
    job->version++;
    assert_line(it, 3 + GS_NS_PER_SEC, "\"state\":\"failed\"", "succeeded");
}

static void ask_for_diagnosis(const play *it) {
    gs_json *request = gs_json_new_object();
    gs_json_set_string(request, "job", it->job->id_text);
    memset(calls, 0, sizeof calls);
    gs_get_job_diagnosis(it->observer, handle_of(&calls[0]), NULL, request);
    gs_json_release(request);
    assert_ok(calls[0].answer);
}

static void expect_time(const play *it, const char *name, const char *wanted) {
    gs_json *view = gs_job_to_view(it->job, false);
    assert_string_equal(gs_json_string_or(view, name, "none"), wanted);
    gs_json_release(view);
}

// An end may be taken back by a crash until its row is durable: neither a time nor a diagnosis tells of it before.
static void an_end_is_shown_nowhere_before_its_row_is_durable(void **state) {
    play *it = *state;
    gs_job *job = it->job;
    gs_effect show = {.kind = GS_DO_SHOW_JOB, .job = job}, end = {.kind = GS_DO_END_JOB, .job = job};
    job->sight->documents.spec = gs_json_new_object();  // it has not come to rest yet
    job->state = GS_JOB_STOPPING;
    job->state_since_ms = 1000;
    snprintf(job->message, sizeof job->message, "as was asked");
    gs_observer_see(it->observer, &show);
    job->state = GS_JOB_CANCELLED;
    job->state_since_ms = job->ended_ms = 5000;
    job->version = 9;
    snprintf(job->message, sizeof job->message, "all is over");
    gs_observer_see(it->observer, &show);
    gs_observer_see(it->observer, &end);
    ask_for_diagnosis(it);
    assert_string_equal(calls[0].summary, "stopping: its end (cancelled) is not recorded yet: all is over");
    expect_time(it, "state_since", "1970-01-01T00:00:01.000Z");
    expect_time(it, "ended_at", "none");
    gs_observer_note_row(it->observer, job->id, 9, gs_ok());
    ask_for_diagnosis(it);
    assert_string_equal(calls[0].summary, "cancelled: all is over");
    expect_time(it, "state_since", "1970-01-01T00:00:05.000Z");
    expect_time(it, "ended_at", "1970-01-01T00:00:05.000Z");
}

// Words of a trainer: what an older one does not say is not there, and what is no text becomes some.
static void a_job_says_what_its_ranks_reduce_over_and_why(void **state) {
    play *it = *state;
    gs_run *run = it->job->run = gs_run_create(it->job, 2, 1);
    assert_line(it, 1, "\"world_size\"", "communicator");
    snprintf(run->backend, sizeof run->backend, "net");
    it->job->version++;
    assert_line(it, 1, "\"communicator\":{\"backend\":\"net\"}", "reason\":\"there");
    snprintf(run->backend_reason, sizeof run->backend_reason, "there are \xff 2\nranks");
    it->job->version++;
    assert_line(it, 1, "\"communicator\":{\"backend\":\"net\",\"reason\":\"there are \xef\xbf\xbd 2\\nranks\"}", "\xff");
}

// As if somebody had just asked for it: its specification is in memory.
static void add_recalled_job(play *it, uint32_t number) {
    gs_job *job = gs_job_create(gs_job_id_make(1000 + number, 1), &(gs_job_spec){0});
    job->state = GS_JOB_SUCCEEDED;
    gs_job_table_add(&it->state.jobs, job);
    gs_job_documents documents = {.spec = gs_json_new_object()};
    assert_true(gs_observer_meet(it->observer, job, &documents, true));
    gs_sight_use(job->sight);
}

// Who walks through all ended jobs has some of them in memory for a minute, and not all.
static void no_more_jobs_are_kept_than_a_bound_because_somebody_asked(void **state) {
    play *it = *state;
    for (uint32_t i = 0; i < GS_RECALL_MAX_KEPT; i++) add_recalled_job(it, i);
    tick(it);
    for (size_t i = 1; i < it->state.jobs.count; i++) assert_false(it->state.jobs.items[i]->sight->is_resting);
    add_recalled_job(it, GS_RECALL_MAX_KEPT);
    tick(it);
    for (size_t i = 1; i < it->state.jobs.count; i++) {
        assert_true(it->state.jobs.items[i]->sight->is_resting);
        assert_null(it->state.jobs.items[i]->sight->documents.spec);
    }
}

static void a_bound_of_bytes_counts_for_what_was_recalled_too(void **state) {
    play *it = *state;
    add_recalled_job(it, 0);
    add_recalled_job(it, 1);
    gs_job_sight *large = it->state.jobs.items[1]->sight;
    large->recalled_bytes = GS_RECALL_MAX_KEPT_BYTES;
    tick(it);
    assert_false(large->is_resting);
    assert_int_equal(it->observer->limit_told_ns[GS_LIMIT_RECALLED], 0);
    it->state.jobs.items[2]->sight->recalled_bytes = 1;
    tick(it);
    assert_true(large->is_resting);
    assert_int_equal(large->recalled_bytes, 0);
    assert_int_not_equal(it->observer->limit_told_ns[GS_LIMIT_RECALLED], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_caller_may_go_away_while_another_is_answered, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(who_cannot_be_recalled_is_told_so, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_record_that_cannot_be_read_is_told_as_that, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_recalled_waits_for_no_commit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_job_rests_behind_its_row, set_up, tear_down),
        cmocka_unit_test_setup_teardown(curves_that_cannot_be_read_are_not_empty, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_worker_writes_for_ranks_that_it_has_or_had, set_up, tear_down),
        cmocka_unit_test_setup_teardown(who_has_timelines_recorded_is_told, set_up, tear_down),
        cmocka_unit_test(an_api_names_who_asked_it_and_nobody_else_does),
        cmocka_unit_test_setup_teardown(a_resting_job_keeps_nothing_of_its_runs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_log_of_a_resting_job_is_closed_again, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(jobs_that_cannot_be_read_are_told_of, set_up, tear_down),
        cmocka_unit_test_setup_teardown(each_bound_of_the_control_port_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(curves_of_a_disk_that_hangs_are_bounded, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_job_does_not_rest_before_its_curves_are_written, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(what_is_shown_goes_by_the_time_that_was_lived, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_line_of_a_list_is_as_new_as_the_job, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_end_is_shown_nowhere_before_its_row_is_durable, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_job_says_what_its_ranks_reduce_over_and_why, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_more_jobs_are_kept_than_a_bound_because_somebody_asked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_bound_of_bytes_counts_for_what_was_recalled_too, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
