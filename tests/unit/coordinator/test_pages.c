// Long answers come in pages: whole, in order and once, whatever comes and goes between two of them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/model/memory.h"
#include "coordinator/observe/events.h"
#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/rank_reports.h"
#include "coordinator/observe/sights.h"
#include "coordinator/observe/timelines.h"
#include "coordinator/observe/views/page.h"
#include "coordinator/observe/worker_view.h"
#include "coordinator/observe/recall.h"
#include "coordinator/serve/job_lists.h"
#include "rpc/wire/frame.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

#define NUM_RANKS 10000
#define NUM_BUCKETS 20

// The last answer, to a call that nobody made.
static gs_status answer;
static gs_json *answered;  // owned

void __wrap_gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body);
void __wrap_gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body) {
    (void)call;
    gs_json_release(answered);
    answer = status;
    answered = body;
}

typedef struct play {
    gs_state state;
    gs_observer observer;
    gs_job_metrics *no_metrics;
    gs_job *job;
} play;

static int set_up(void **state) {
    play *it = calloc(1, sizeof *it);
    *state = it;
    it->state.timing = gs_timing_default;
    it->observer.state = &it->state;
    it->observer.no_metrics = gs_job_metrics_create();
    it->observer.recalls = gs_recalls_create();
    return 0;
}

static int tear_down(void **state) {
    play *it = *state;
    for (size_t i = 0; i < it->state.jobs.count; i++) gs_observer_forget(&it->observer, it->state.jobs.items[i]);
    gs_job_table_release(&it->state.jobs);
    gs_agent_table_release(&it->state.agents);
    gs_job_metrics_destroy(it->observer.no_metrics);
    gs_recalls_destroy(it->observer.recalls);
    gs_json_release(answered);
    answered = NULL;
    free(it);
    return 0;
}

// One that ended in a former life, with these documents.
static gs_job *add_job(play *it, uint32_t number, gs_job_documents documents) {
    gs_job_spec *spec = calloc(1, sizeof *spec);
    assert_non_null(spec);
    snprintf(spec->name, sizeof spec->name, "job-%u", number);
    gs_job *job = gs_job_create(gs_job_id_make(1000 + number, 1), spec);
    free(spec);
    job->state = GS_JOB_SUCCEEDED;
    gs_job_table_add(&it->state.jobs, job);
    assert_true(gs_observer_meet(&it->observer, job, &documents, true));
    return job;
}

static void ask(play *it, gs_rpc_handler handler, const gs_job *job, const char *limit, const char *cursor) {
    gs_json *request = gs_json_new_object();
    if (job) gs_json_set_string(request, "job", job->id_text);
    if (limit) gs_json_set_int(request, "limit", atoi(limit));
    gs_json_set_string(request, "cursor", cursor);
    gs_json_set_string(request, "fields", "*");
    handler(&it->observer, NULL, NULL, request);
    gs_json_release(request);
    if (answer.code) return;
    char *text = NULL;
    size_t bytes = 0;
    assert_ok(gs_json_encode(&text, &bytes, answered, false));
    assert_true(bytes <= GS_FRAME_MAX_BODY_BYTES);
    free(text);
}

// All pages, of which each item is shown to `see`. How many there were.
static int follow(play *it, gs_rpc_handler handler, const gs_job *job, const char *list, const char *limit,
                  void (*see)(void *ctx, const gs_json *item), void *ctx) {
    char cursor[100] = "";
    int num_pages = 0;
    do {
        ask(it, handler, job, limit, num_pages ? cursor : NULL);
        assert_ok(answer);
        const gs_json *items = gs_json_get(answered, list);
        for (size_t i = 0; i < gs_json_count(items); i++) see(ctx, gs_json_at(items, i));
        snprintf(cursor, sizeof cursor, "%s", gs_json_string_or(answered, "next_cursor", ""));
        assert_true(!cursor[0] || gs_json_count(items) > 0);
        num_pages++;
    } while (cursor[0]);
    return num_pages;
}

static void see_rank(void *ctx, const gs_json *item) {
    int *next = ctx;
    assert_int_equal(gs_json_int_or(item, "rank", -1), *next);
    (*next)++;
}

static gs_job_documents documents_with_ranks(int count) {
    gs_job_documents documents = {.spec = gs_json_new_object(), .final_workers = gs_json_new_array()};
    for (int rank = 0; rank < count; rank++) {
        gs_json *item = gs_json_new_object();
        gs_json_set_int(item, "rank", rank);
        gs_json_set_string(item, "worker", "a worker on a host whose name is as long as names of hosts are");
        gs_json_push(documents.final_workers, item);
    }
    return documents;
}

static void all_ranks_of_a_large_job_are_listed_once(void **state) {
    play *it = *state;
    gs_job *job = add_job(it, 1, documents_with_ranks(NUM_RANKS));
    int next = 0;
    assert_int_equal(follow(it, gs_get_job_workers, job, "items", NULL, see_rank, &next), NUM_RANKS / GS_PAGE_MAX_ITEMS);
    assert_int_equal(next, NUM_RANKS);
    next = 0;
    assert_int_equal(follow(it, gs_get_job_workers, job, "items", "499", see_rank, &next), 21);
    assert_int_equal(next, NUM_RANKS);
}

static void write_nothing(void *ctx, const gs_json *entry) {
    (void)ctx;
    (void)entry;
}

// As real ones report: with their buckets a page of 500 would be larger than a message may be.
static void reports_of_a_large_job_are_listed_once(void **state) {
    play *it = *state;
    gs_job *job = add_job(it, 1, documents_with_ranks(0));
    gs_job_metrics *metrics = gs_sight_own_metrics(&it->observer, job);
    gs_report_bucket buckets[NUM_BUCKETS] = {{0}};
    for (int i = 0; i < NUM_BUCKETS; i++) buckets[i].index = i;
    for (int rank = 0; rank < NUM_RANKS; rank++) {
        gs_step_report report = {.step = 7, .rank = rank, .buckets = buckets, .num_buckets = NUM_BUCKETS};
        for (int i = 0; i < GS_NUM_REPORT_VALUES; i++) gs_step_report_set(&report, (gs_report_value)i, 1.2345678901234567);
        gs_job_metrics_take(metrics, rank, NUM_RANKS, &report, &(gs_metrics_record){write_nothing, NULL});
    }
    int next = 0;
    assert_true(follow(it, gs_get_job_metrics, job, "ranks", NULL, see_rank, &next) > NUM_RANKS / GS_PAGE_MAX_ITEMS);
    assert_int_equal(next, NUM_RANKS);
    assert_non_null(gs_json_get(answered, "totals"));
    gs_job_metrics_begin_generation(metrics, 3);
    ask(it, gs_get_job_metrics, job, NULL, "5000");  // of a generation that was larger
    assert_ok(answer);
    assert_int_equal(gs_json_count(gs_json_get(answered, "ranks")), 0);
    assert_null(gs_json_get(answered, "next_cursor"));
}

typedef struct names_seen {
    char last[64];
    int count;
} names_seen;

static void see_worker(void *ctx, const gs_json *item) {
    names_seen *seen = ctx;
    const char *id = gs_json_string_or(item, "id", "");
    assert_true(strcmp(id, seen->last) > 0);
    snprintf(seen->last, sizeof seen->last, "%s", id);
    seen->count++;
}

static void add_worker(play *it, int number) {
    char name[64];
    snprintf(name, sizeof name, "w%05d", number);
    assert_non_null(gs_agent_table_add(&it->state.agents, name));
}

static void workers_are_listed_by_name(void **state) {
    play *it = *state;
    for (int i = 0; i < NUM_RANKS; i++) add_worker(it, (i * 7919) % NUM_RANKS);
    names_seen seen = {0};
    assert_int_equal(follow(it, gs_list_workers, NULL, "items", NULL, see_worker, &seen), NUM_RANKS / GS_PAGE_MAX_ITEMS);
    assert_int_equal(seen.count, NUM_RANKS);
}

// Also the one whose name is the cursor; its place in the table is another one's then.
static void workers_that_go_hide_no_others(void **state) {
    play *it = *state;
    for (int i = 0; i < 20; i++) add_worker(it, i);
    ask(it, gs_list_workers, NULL, "5", NULL);
    assert_ok(answer);
    assert_string_equal(gs_json_string_or(answered, "next_cursor", ""), "w00004");
    for (int i = 0; i < 10; i += 2) {
        char name[16];
        snprintf(name, sizeof name, "w%05d", i);
        gs_agent *agent = gs_agent_table_find(&it->state.agents, name);
        gs_agent_table_unlink(&it->state.agents, agent);
        gs_agent_destroy(agent);
    }
    add_worker(it, 0);
    ask(it, gs_list_workers, NULL, "100", "w00004");
    const gs_json *items = gs_json_get(answered, "items");
    assert_int_equal(gs_json_count(items), 13);  // 5, 7, 9 and 10 to 19
    assert_string_equal(gs_json_string_or(gs_json_at(items, 0), "id", ""), "w00005");
}

static void see_job(void *ctx, const gs_json *item) {
    (void)item;
    (*(int *)ctx)++;
}

// 500 items of 8 KB are more than a message holds.
static void jobs_with_long_members_are_listed_once(void **state) {
    play *it = *state;
    char *text = calloc(1, 8001);
    memset(text, 'x', 8000);
    for (uint32_t i = 0; i < 600; i++) {
        gs_json *spec = gs_json_new_object();
        gs_json_set_string(spec, "long", text);
        add_job(it, i, (gs_job_documents){.spec = spec});
    }
    free(text);
    int count = 0;
    assert_true(follow(it, gs_list_jobs, NULL, "items", "500", see_job, &count) >= 10);
    assert_int_equal(count, 600);
}

typedef struct checkpoints_seen {
    int64_t last, count;
} checkpoints_seen;

static void see_checkpoint(void *ctx, const gs_json *item) {
    checkpoints_seen *seen = ctx;
    int64_t step = gs_json_int_or(item, "step", -1);
    assert_true(step < seen->last);
    seen->last = step;
    seen->count++;
}

static void add_checkpoint(gs_job *job, int64_t step) {
    gs_checkpoints *checkpoints = &job->checkpoints;
    checkpoints->items = gs_model_grow(checkpoints->items, checkpoints->count, &checkpoints->reserved, sizeof *checkpoints->items);
    gs_checkpoint *item = &checkpoints->items[checkpoints->count++];
    *item = (gs_checkpoint){.step = step, .state = GS_CHECKPOINT_GOOD};
    snprintf(item->directory, sizeof item->directory, "step-%010lld-00000000", (long long)step);
}

static void remove_checkpoint(gs_job *job, size_t index) {
    gs_checkpoints *checkpoints = &job->checkpoints;
    checkpoints->count--;
    memmove(&checkpoints->items[index], &checkpoints->items[index + 1], (checkpoints->count - index) * sizeof *checkpoints->items);
}

// Below a directory whose name is as long as it may be, 2,000 are more than a message holds.
static void checkpoints_below_a_long_path_are_listed_once(void **state) {
    play *it = *state;
    gs_job *job = add_job(it, 1, documents_with_ranks(0));
    memset(it->state.checkpoints_dir, 'd', sizeof it->state.checkpoints_dir - 1);
    for (int64_t step = 0; step < 2000; step++) add_checkpoint(job, step);
    checkpoints_seen seen = {.last = INT64_MAX};
    assert_true(follow(it, gs_list_checkpoints, job, "items", NULL, see_checkpoint, &seen) > 4);
    assert_int_equal(seen.count, 2000);
}

static void checkpoints_that_go_hide_no_others(void **state) {
    play *it = *state;
    gs_job *job = add_job(it, 1, documents_with_ranks(0));
    for (int64_t step = 0; step < 10; step++) add_checkpoint(job, step);
    ask(it, gs_list_checkpoints, job, "3", NULL);
    char cursor[300];
    snprintf(cursor, sizeof cursor, "%s", gs_json_string_or(answered, "next_cursor", ""));
    assert_string_equal(cursor, "7/step-0000000007-00000000");
    add_checkpoint(job, 10);
    remove_checkpoint(job, 0);
    ask(it, gs_list_checkpoints, job, "3", cursor);
    assert_int_equal(gs_json_int_or(gs_json_at(gs_json_get(answered, "items"), 0), "step", -1), 6);
    remove_checkpoint(job, 6);  // that of the cursor
    ask(it, gs_list_checkpoints, job, "3", cursor);
    assert_int_equal(gs_json_int_or(gs_json_at(gs_json_get(answered, "items"), 0), "step", -1), 6);
    assert_int_equal(gs_json_count(gs_json_get(answered, "items")), 3);
    ask(it, gs_list_checkpoints, job, NULL, "7");
    assert_int_equal(answer.code, GS_INVALID_ARGUMENT);
}

static void see_event(void *ctx, const gs_json *item) {
    int64_t *next = ctx;
    assert_int_equal(gs_json_int_or(item, "sequence", -1), *next);
    (*next)++;
}

// As those of a fault that accuses thousands: 100 are more than a message holds, 1,000 more than is kept in memory.
static void long_events_are_listed_once(void **state) {
    play *it = *state;
    char *directory = gs_temp_dir_make(), path[1100], *text = calloc(1, 20001), *body;
    gs_job_store *store = NULL;
    gs_store_start start;
    snprintf(path, sizeof path, "%s/store.db", directory);
    assert_ok(gs_job_store_open(&store, &start, path));
    memset(text, 'x', 20000);
    assert_ok(gs_job_store_begin(store));
    for (int sequence = 1; sequence <= 1000; sequence++) {
        gs_json *item = gs_json_new_object();
        gs_json_set_int(item, "sequence", sequence);
        gs_json_set_string(item, "long", text);
        assert_ok(gs_json_encode(&body, NULL, item, false));
        assert_ok(gs_job_store_put_event(store, (uint64_t)sequence, 0, body));
        gs_json_release(item);
        free(body);
    }
    free(text);
    assert_ok(gs_job_store_commit(store));
    assert_ok(gs_events_create(&it->observer.events, store, 2000));
    int64_t next = 901;
    assert_true(follow(it, gs_list_events, NULL, "items", "100", see_event, &next) >= 4);
    assert_int_equal(next, 1001);
    ask(it, gs_list_events, NULL, "1", "0");
    next = gs_json_int_or(gs_json_at(gs_json_get(answered, "items"), 0), "sequence", -1);
    assert_in_range(next, 150, 400);
    gs_events_destroy(it->observer.events);
    gs_job_store_close(store);
    gs_temp_dir_remove(directory);
}

// Each page as large as a message may be; what is not kept is counted, and room comes back when a job is forgotten.
static void ended_ranks_leave_no_more_than_there_is_room_for(void **state) {
    play *it = *state;
    gs_job *job = add_job(it, 1, documents_with_ranks(0));
    enum { RANKS = 100 };
    job->run = gs_run_create(job, RANKS, 1);
    char *text = calloc(1, (1 << 20) - 1000);
    assert_non_null(text);
    memset(text, 'x', (1 << 20) - 1001);
    gs_json *steps = gs_json_new_array(), *request = gs_json_new_object();
    gs_json_push(steps, gs_json_new_string(text));
    gs_json_set_int(request, "generation", job->run->generation);
    gs_json_set(request, "steps", steps);
    free(text);
    for (int round = 0; round < 2; round++) {
        for (int rank = 0; rank < RANKS; rank++) {
            gs_member *member = &job->run->members[rank];
            member->rank = rank;
            member->job = job;
            assert_true(gs_u64_map_set(&it->state.members, (uint64_t)rank + 1, member));
            gs_timeline_page(&it->observer, NULL, &(gs_rpc_peer){.incarnation = (uint64_t)rank + 1, .job = job->id}, request);
            assert_ok(answer);
        }
        assert_in_range(it->observer.left_timeline_bytes, 60 << 20, GS_TIMELINES_MAX_LEFT_BYTES);
        assert_int_equal(it->observer.limits_reached[GS_LIMIT_LEFT_TIMELINES], 36 * (round + 1));
    }
    gs_timelines_forget(&it->observer, job);
    assert_int_equal(it->observer.left_timeline_bytes, 0);
    gs_json_release(request);
    gs_u64_map_release(&it->state.members);
}

static void garbage_is_no_cursor(void **state) {
    play *it = *state;
    gs_job *job = add_job(it, 1, documents_with_ranks(3));
    static const char *const numbers[] = {"", "-1", "x", "1x", "0x10", "99999999999999999999", "1 ", "\xff"};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        ask(it, gs_get_job_workers, job, NULL, numbers[i]);
        assert_int_equal(answer.code, GS_INVALID_ARGUMENT);
        ask(it, gs_get_job_metrics, job, NULL, numbers[i]);
        assert_int_equal(answer.code, GS_INVALID_ARGUMENT);
    }
    ask(it, gs_get_job_workers, job, NULL, "18446744073709551615");
    assert_ok(answer);
    assert_int_equal(gs_json_count(gs_json_get(answered, "items")), 0);
    char text[80];
    memset(text, 'w', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    ask(it, gs_list_workers, NULL, NULL, text);
    assert_int_equal(answer.code, GS_INVALID_ARGUMENT);
    static const char *const limits[] = {"0", "-1", "501"};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        ask(it, gs_list_workers, NULL, limits[i], NULL);
        assert_int_equal(answer.code, GS_INVALID_ARGUMENT);
        ask(it, gs_list_jobs, NULL, limits[i], NULL);
        assert_int_equal(answer.code, GS_INVALID_ARGUMENT);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_ranks_of_a_large_job_are_listed_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(reports_of_a_large_job_are_listed_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(workers_are_listed_by_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(workers_that_go_hide_no_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(jobs_with_long_members_are_listed_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(checkpoints_below_a_long_path_are_listed_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(checkpoints_that_go_hide_no_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(long_events_are_listed_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ended_ranks_leave_no_more_than_there_is_room_for, set_up, tear_down),
        cmocka_unit_test_setup_teardown(garbage_is_no_cursor, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
