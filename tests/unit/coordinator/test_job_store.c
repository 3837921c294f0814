#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "coordinator/store/job_store.h"
#include "coordinator/store/row_work.h"
#include "coordinator/store/database/set_aside.h"
#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

typedef struct store_fixture {
    char *directory, path[600];
    char seen[400];
} store_fixture;

static int set_up(void **state) {
    store_fixture *fixture = calloc(1, sizeof *fixture);
    fixture->directory = gs_temp_dir_make();
    snprintf(fixture->path, sizeof fixture->path, "%s/store.db", fixture->directory);
    *state = fixture;
    return 0;
}

static int tear_down(void **state) {
    store_fixture *fixture = *state;
    gs_temp_dir_remove(fixture->directory);
    free(fixture);
    return 0;
}

static gs_job_store *open_store(store_fixture *fixture, gs_store_start *start) {
    gs_job_store *store = NULL;
    gs_status status = gs_job_store_open(&store, start, fixture->path);
    if (status.code) print_error("%s\n", status.message);
    assert_int_equal(status.code, GS_OK);
    return store;
}

static void see_row(void *ctx, const gs_store_row *row) {
    store_fixture *fixture = ctx;
    size_t used = strlen(fixture->seen);
    snprintf(fixture->seen + used, sizeof fixture->seen - used, "%llu/%s/%s;",
             (unsigned long long)row->id, row->key, row->body);
}

static void each_start_is_counted_and_has_generations_of_its_own(void **state) {
    uint32_t last_end = 0;
    for (uint32_t i = 1; i <= 4; i++) {
        gs_store_start start;
        gs_job_store_close(open_store(*state, &start));
        assert_int_equal(start.coordinator_epoch, i);
        assert_true(start.first_generation >= last_end);
        last_end = start.first_generation + GS_GENERATION_BLOCK;
    }
}

static void what_was_committed_is_there_after_reopening(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store *store = open_store(fixture, &start);
    assert_ok(gs_job_store_begin(store));
    assert_ok(gs_job_store_put_job(store, 7, "one"));
    assert_ok(gs_job_store_put_job(store, 7, "two"));
    assert_ok(gs_job_store_put_checkpoint(store, 7, "step-1", "row"));
    assert_ok(gs_job_store_put_event(store, 12, 7, "event"));
    assert_ok(gs_job_store_put_key(store, "key", "print", 7, 99));
    assert_ok(gs_job_store_commit(store));
    gs_job_store_close(store);

    store = open_store(fixture, &start);
    assert_true(start.next_sequence > 12);
    assert_ok(gs_job_store_load_jobs(store, see_row, fixture));
    assert_ok(gs_job_store_load_checkpoints(store, see_row, fixture));
    assert_ok(gs_job_store_load_events(store, see_row, fixture));
    assert_ok(gs_job_store_load_keys(store, see_row, fixture));
    assert_string_equal(fixture->seen, "7//two;7/step-1/row;12//event;7/key/print;");
    gs_job_store_close(store);
}

// Whoever goes on from a number would miss what gets it a second time.
static void numbers_of_events_are_never_used_twice(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store *store = open_store(fixture, &start);
    assert_int_equal(start.next_sequence, 1);
    assert_ok(gs_job_store_put_event(store, 12, 7, "the newest, which goes with its job"));
    assert_ok(gs_job_store_delete_job(store, &(gs_tombstone){.job = 7, .outcome = GS_JOB_FAILED}));
    gs_job_store_close(store);
    store = open_store(fixture, &start);
    assert_true(start.next_sequence > 12);
    // Those behind it were shown, and a crash came before they were written: half a block of them.
    uint64_t written = start.next_sequence + 3 * (uint64_t)GS_EVENT_BLOCK;
    assert_ok(gs_job_store_put_event(store, written, 8, "event"));
    gs_job_store_close(store);
    gs_job_store_close(open_store(fixture, &start));
    assert_true(start.next_sequence > written + GS_EVENT_BLOCK / 2);
}

// A disk that takes nothing for a day, a storm of events, and a kill -9.
static void numbers_of_events_that_no_disk_took_are_not_used_again(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store_close(open_store(fixture, &start));
    uint64_t shown = start.next_sequence + 86400ULL * 10000;
    gs_job_store_close(open_store(fixture, &start));
    assert_true(start.next_sequence > shown);
}

static void what_was_rolled_back_is_not(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store *store = open_store(fixture, &start);
    assert_ok(gs_job_store_begin(store));
    assert_ok(gs_job_store_put_job(store, 7, "one"));
    gs_job_store_rollback(store);
    assert_ok(gs_job_store_load_jobs(store, see_row, fixture));
    assert_string_equal(fixture->seen, "");
    gs_job_store_close(store);
}

static void run_sql(const store_fixture *fixture, const char *sql) {
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(fixture->path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_exec(database, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(database);
}

static void see_life(void *ctx, const gs_store_row *row) { *(int64_t *)ctx = row->time_ms; }

// A coordinator that is not there takes nothing of a key's life.
static void a_key_lives_while_coordinators_do(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    int64_t left_ms = 0;
    gs_job_store *store = open_store(fixture, &start);
    assert_ok(gs_job_store_put_key(store, "long", "print", 7, 3600 * 1000));
    assert_ok(gs_job_store_put_key(store, "over", "print", 7, 0));
    assert_ok(gs_job_store_prune_keys(store));
    gs_job_store_close(store);
    store = open_store(fixture, &start);
    assert_ok(gs_job_store_load_keys(store, see_life, &left_ms));
    assert_true(left_ms > 1800 * 1000 && left_ms <= 3600 * 1000);
    assert_ok(gs_job_store_load_keys(store, see_row, fixture));
    assert_string_equal(fixture->seen, "7/long/print;");
    gs_job_store_close(store);
}

// As a version wrote it whose keys ended by the wall clock.
static void keys_of_before_begin_anew(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    int64_t left_ms = 0;
    gs_job_store_close(open_store(fixture, &start));
    run_sql(fixture, "INSERT INTO idempotency VALUES('old', 'print', 7, 1)");
    gs_job_store *store = open_store(fixture, &start);
    assert_ok(gs_job_store_load_keys(store, see_life, &left_ms));
    assert_int_equal(left_ms, GS_KEY_LIFE_NS / GS_NS_PER_MS);
    gs_job_store_close(store);
}

static int64_t read_version(const store_fixture *fixture) {
    sqlite3 *database = NULL;
    sqlite3_stmt *query = NULL;
    assert_int_equal(sqlite3_open(fixture->path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(database, "SELECT schema_version FROM meta", -1, &query, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(query), SQLITE_ROW);
    int64_t version = sqlite3_column_int64(query, 0);
    sqlite3_finalize(query);
    sqlite3_close(database);
    return version;
}

// The programs of version 1 open no other: they would see neither tombstones nor which numbers are given out.
static void data_of_the_first_version_are_of_this_one_from_their_first_start(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store_close(open_store(fixture, &start));
    assert_int_equal(read_version(fixture), 2);
    run_sql(fixture, "UPDATE meta SET schema_version = 1; DROP TABLE cluster; DROP TABLE life; DROP TABLE tombstone; DROP TABLE card;"
                     "DROP TABLE owed_purge; DROP TABLE lived; DROP TABLE request_key; DROP TABLE event_mark");
    gs_job_store_close(open_store(fixture, &start));
    assert_int_equal(start.coordinator_epoch, 2);
    assert_int_equal(read_version(fixture), 2);
}

static void data_of_a_version_that_is_not_known_are_left_as_they_are(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store_close(open_store(fixture, &start));
    static const char *const others[] = {"UPDATE meta SET schema_version = 3", "UPDATE meta SET schema_version = 0"};
    for (size_t i = 0; i < 2; i++) {
        gs_job_store *store = NULL;
        run_sql(fixture, others[i]);
        gs_status status = gs_job_store_open(&store, &start, fixture->path);
        assert_int_equal(status.code, GS_FAILED_PRECONDITION);
        assert_non_null(strstr(status.message, "this program knows 1 to 2"));
        assert_null(store);
        assert_int_equal(read_version(fixture), i ? 0 : 3);
    }
    run_sql(fixture, "UPDATE meta SET schema_version = 2");
    gs_job_store_close(open_store(fixture, &start));
    assert_int_equal(start.coordinator_epoch, 2);  // no start that was refused is counted
}

static void keys_go_with_a_job_that_is_deleted_not_with_one_that_is_forgotten(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store *store = open_store(fixture, &start);
    assert_ok(gs_job_store_put_key(store, "a", "print", 7, 99));
    assert_ok(gs_job_store_put_key(store, "b", "print", 8, 99));
    assert_ok(gs_job_store_delete_job(store, &(gs_tombstone){.job = 8, .outcome = GS_JOB_FAILED}));
    assert_ok(gs_job_store_delete_job(store, &(gs_tombstone){.job = 7, .outcome = GS_JOB_FAILED, .frees_keys = true}));
    assert_ok(gs_job_store_load_keys(store, see_row, fixture));
    assert_string_equal(fixture->seen, "8/b/print;");
    gs_job_store_close(store);
}

static void a_deleted_job_takes_its_rows_along(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store *store = open_store(fixture, &start);
    assert_ok(gs_job_store_put_job(store, 7, "one"));
    assert_ok(gs_job_store_put_checkpoint(store, 7, "step-1", "row"));
    assert_ok(gs_job_store_put_event(store, 1, 7, "event"));
    assert_ok(gs_job_store_delete_job(store, &(gs_tombstone){.job = 7, .generation = 3, .outcome = GS_JOB_FAILED, .deleted_ms = 99}));
    assert_ok(gs_job_store_load_jobs(store, see_row, fixture));
    assert_ok(gs_job_store_load_checkpoints(store, see_row, fixture));
    assert_ok(gs_job_store_load_events(store, see_row, fixture));
    assert_string_equal(fixture->seen, "");
    assert_ok(gs_job_store_load_tombstones(store, see_row, fixture));
    assert_string_equal(fixture->seen, "7/failed/;");
    gs_job_store_close(store);
}

static void checkpoints_of_a_purged_job_are_owed_until_they_are_gone(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store *store = open_store(fixture, &start);
    for (uint64_t id = 7; id <= 9; id++) {
        assert_ok(gs_job_store_put_job(store, id, "one"));
        assert_ok(gs_job_store_delete_job(store, &(gs_tombstone){.job = id, .outcome = GS_JOB_FAILED, .purges = id != 8}));
    }
    gs_job_store_close(store);
    store = open_store(fixture, &start);
    assert_ok(gs_job_store_load_purges(store, see_row, fixture));
    assert_string_equal(fixture->seen, "7//;9//;");
    assert_ok(gs_job_store_delete_purge(store, 7));
    assert_ok(gs_job_store_put_adopted_job(store, 9, "two"));  // they are its own again
    fixture->seen[0] = '\0';
    assert_ok(gs_job_store_load_purges(store, see_row, fixture));
    assert_string_equal(fixture->seen, "");
    gs_job_store_close(store);
}

static void a_deleted_job_comes_back_with_its_trainers_alone(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store *store = open_store(fixture, &start);
    assert_ok(gs_job_store_put_job(store, 7, "one"));
    assert_ok(gs_job_store_delete_job(store, &(gs_tombstone){.job = 7, .generation = 3, .outcome = GS_JOB_FAILED, .deleted_ms = 99}));
    assert_int_equal(gs_job_store_put_job(store, 7, "two").code, GS_FAILED_PRECONDITION);
    assert_ok(gs_job_store_load_jobs(store, see_row, fixture));
    assert_string_equal(fixture->seen, "");
    assert_ok(gs_job_store_put_adopted_job(store, 7, "three"));
    assert_ok(gs_job_store_put_job(store, 7, "four"));
    assert_ok(gs_job_store_load_jobs(store, see_row, fixture));
    assert_string_equal(fixture->seen, "7//four;");
    gs_job_store_close(store);
}

static gs_status write_row(gs_job_store *store, const gs_job *job) {
    const gs_job_documents documents = {.spec = gs_json_new_object()};
    gs_work *work = gs_row_work_put_job(job, &documents, NULL, 1);
    gs_status status = work->base.run(&work->base, store);
    gs_work_destroy(work);
    gs_json_release(documents.spec);
    return status;
}

static void late_writes_of_an_adopted_job_are_refused_as_others(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store *store = open_store(fixture, &start);
    gs_job *job = gs_job_create(7, &(gs_job_spec){0});
    const gs_tombstone tombstone = {.job = 7, .generation = 3, .outcome = GS_JOB_FAILED, .deleted_ms = 99};
    assert_ok(gs_job_store_delete_job(store, &tombstone));
    snprintf(job->adopted_from, sizeof job->adopted_from, "c-0000000000000001");
    job->held_back = true;
    assert_ok(write_row(store, job));
    job->held_back = false;
    assert_ok(write_row(store, job));
    assert_ok(gs_job_store_delete_job(store, &tombstone));
    assert_int_equal(write_row(store, job).code, GS_FAILED_PRECONDITION);
    gs_job_destroy(job);
    gs_job_store_close(store);
}

// Else a job that comes back under its id would have them.
static void a_start_removes_checkpoints_of_no_job(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store *store = open_store(fixture, &start);
    assert_ok(gs_job_store_put_job(store, 7, "one"));
    assert_ok(gs_job_store_put_checkpoint(store, 7, "step-1", "row"));
    assert_ok(gs_job_store_put_checkpoint(store, 8, "step-2", "row"));
    gs_job_store_close(store);
    store = open_store(fixture, &start);
    assert_ok(gs_job_store_load_checkpoints(store, see_row, fixture));
    assert_string_equal(fixture->seen, "7/step-1/row;");
    gs_job_store_close(store);
}

static void count_row(void *ctx, const gs_store_row *row) {
    (void)row;
    ++*(size_t *)ctx;
}

static void the_newest_tombstones_are_kept(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store *store = open_store(fixture, &start);
    assert_ok(gs_job_store_begin(store));
    for (uint64_t id = 1; id <= GS_MAX_TOMBSTONES + 2; id++)
        assert_ok(gs_job_store_delete_job(store, &(gs_tombstone){.job = id, .generation = 1, .outcome = GS_JOB_SUCCEEDED, .deleted_ms = 1}));
    assert_ok(gs_job_store_commit(store));
    size_t count = 0;
    assert_ok(gs_job_store_load_tombstones(store, count_row, &count));
    assert_int_equal(count, GS_MAX_TOMBSTONES);
    gs_job_store_close(store);
}

static void the_file_is_for_its_owner_alone(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store_close(open_store(fixture, &start));
    struct stat info;
    assert_int_equal(stat(fixture->path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
}

static void a_planted_link_is_refused(void **state) {
    store_fixture *fixture = *state;
    char elsewhere[640];
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", fixture->directory);
    assert_int_equal(symlink(elsewhere, fixture->path), 0);
    gs_job_store *store = NULL;
    gs_store_start start;
    gs_status status = gs_job_store_open(&store, &start, fixture->path);
    assert_int_not_equal(status.code, GS_OK);
    assert_int_not_equal(access(elsewhere, F_OK), 0);
}

static void a_damaged_file_is_kept_aside_and_named(void **state) {
    store_fixture *fixture = *state;
    FILE *file = fopen(fixture->path, "w");
    for (int i = 0; i < 1000; i++) fprintf(file, "this is no database %d\n", i);
    fclose(file);
    gs_job_store *store = NULL;
    gs_store_start start;
    gs_status status = gs_job_store_open(&store, &start, fixture->path);
    assert_int_equal(status.code, GS_DATA_LOSS);
    assert_non_null(strstr(status.message, ".damaged-"));
    assert_int_not_equal(access(fixture->path, F_OK), 0);
}

// An index that lacks rows: what a start reads is all there.
static void damage_that_no_query_meets_is_found(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store *store = open_store(fixture, &start);
    assert_ok(gs_job_store_put_event(store, 12, 7, "event"));
    gs_job_store_close(store);
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(fixture->path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_exec(database, "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = "
                                            "'CREATE INDEX event_job ON event(body)' WHERE name = 'event_job'",
                                  NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
    gs_status status = gs_job_store_open(&store, &start, fixture->path);
    assert_int_equal(status.code, GS_DATA_LOSS);
    assert_non_null(strstr(status.message, ".damaged-"));
}

static void a_record_is_its_jobs_own(void **state) {
    store_fixture *fixture = *state;
    gs_store_start start;
    gs_job_store *store = open_store(fixture, &start);
    char *body = NULL;
    for (uint64_t id = 1; id <= 3; id++) assert_ok(gs_job_store_put_job(store, 7 * id, id == 2 ? "two" : "another"));
    assert_ok(gs_job_store_get_job(store, &body, 14));
    assert_string_equal(body, "two");
    free(body);
    assert_int_equal(gs_job_store_get_job(store, &body, 15).code, GS_NOT_FOUND);
    assert_null(body);
    // The one that recalls sees what is committed, and nothing before.
    assert_ok(gs_job_store_recall_job(store, &body, 7));
    assert_string_equal(body, "another");
    free(body);
    assert_int_equal(gs_job_store_recall_job(store, &body, 15).code, GS_NOT_FOUND);
    assert_ok(gs_job_store_begin(store));
    assert_ok(gs_job_store_put_job(store, 7, "newer"));
    assert_ok(gs_job_store_recall_job(store, &body, 7));
    assert_string_equal(body, "another");
    free(body);
    assert_ok(gs_job_store_commit(store));
    assert_ok(gs_job_store_recall_job(store, &body, 7));
    assert_string_equal(body, "newer");
    free(body);
    gs_job_store_close(store);
}

// Whatever starts it again by itself: a new one would know no job and hide that this one is to be rescued.
static void no_start_makes_another_beside_a_damaged_one(void **state) {
    store_fixture *fixture = *state;
    FILE *file = fopen(fixture->path, "w");
    fprintf(file, "this is no database, nor was it ever one");
    fclose(file);
    gs_job_store *store = NULL;
    gs_store_start start;
    char aside[700], moved[700];
    assert_int_equal(gs_job_store_open(&store, &start, fixture->path).code, GS_DATA_LOSS);
    for (int i = 0; i < 2; i++) {
        gs_status status = gs_job_store_open(&store, &start, fixture->path);
        assert_int_equal(status.code, GS_DATA_LOSS);
        assert_int_equal(sscanf(status.message, "%699[^ ] was damaged, and nothing is in its place", aside), 1);
        assert_int_equal(access(aside, F_OK), 0);
        assert_int_not_equal(access(fixture->path, F_OK), 0);
    }
    // An operator's word.
    snprintf(moved, sizeof moved, "%s/kept", fixture->directory);
    assert_int_equal(rename(aside, moved), 0);
    gs_job_store_close(open_store(fixture, &start));
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void check_refused(const store_fixture *fixture, const char *words) {
    gs_job_store *store = NULL;
    gs_store_start start;
    gs_status status = gs_job_store_open(&store, &start, fixture->path);
    assert_int_equal(status.code, GS_DATA_LOSS);
    assert_non_null(strstr(status.message, words));
}

// It would open, and lack what was only in the log. So for one whose place another has taken.
static void no_start_opens_a_database_whose_log_is_set_aside(void **state) {
    store_fixture *fixture = *state;
    char log[700], moved[700];
    gs_store_start start;
    gs_job_store_close(open_store(fixture, &start));
    snprintf(log, sizeof log, "%s.damaged-5-wal", fixture->path);
    write_file(log, "what is in no other file");
    for (int i = 0; i < 2; i++) check_refused(fixture, "store.db.damaged-5-wal is the log of");
    assert_int_equal(access(log, F_OK), 0);
    snprintf(moved, sizeof moved, "%s/kept", fixture->directory);
    assert_int_equal(rename(log, moved), 0);
    gs_job_store_close(open_store(fixture, &start));
}

// Killed between the two: the log goes to the newest that lacks one, and over none.
static void a_log_that_was_left_behind_follows_its_database(void **state) {
    store_fixture *fixture = *state;
    char older[700], aside[700], log[700], moved[700];
    snprintf(older, sizeof older, "%s.damaged-5", fixture->path);
    snprintf(aside, sizeof aside, "%s.damaged-7", fixture->path);
    snprintf(log, sizeof log, "%s-wal", fixture->path);
    snprintf(moved, sizeof moved, "%s-wal", aside);
    write_file(older, "a database");
    write_file(aside, "another");
    write_file(log, "its log");
    for (int i = 0; i < 2; i++) check_refused(fixture, "store.db.damaged-7 was damaged");
    assert_int_not_equal(access(log, F_OK), 0);
    assert_int_equal(access(moved, F_OK), 0);
    write_file(log, "the log of something else");
    check_refused(fixture, "store.db.damaged-7 was damaged");
    assert_int_equal(access(log, F_OK), 0);
}

// Its log would be too long a name: the error comes behind the first move, and the next start knows what it finds.
static void what_cannot_be_set_aside_whole_is_not_opened(void **state) {
    store_fixture *fixture = *state;
    char name[234], log[1000];
    memset(name, 's', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    snprintf(fixture->path, sizeof fixture->path, "%s/%s", fixture->directory, name);
    snprintf(log, sizeof log, "%s-wal", fixture->path);
    write_file(fixture->path, "a database");
    write_file(log, "its log");
    assert_int_equal(gs_set_aside(fixture->path, gs_error(GS_DATA_LOSS, "garbage")).code, GS_DATA_LOSS);
    assert_int_not_equal(access(fixture->path, F_OK), 0);
    assert_int_equal(access(log, F_OK), 0);
    gs_job_store *store = NULL;
    gs_store_start start;
    assert_int_not_equal(gs_job_store_open(&store, &start, fixture->path).code, GS_OK);
    assert_int_not_equal(access(fixture->path, F_OK), 0);
    assert_int_equal(access(log, F_OK), 0);
}

static void copy_file(const char *from, const char *to) {
    char data[65536];
    size_t got;
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_non_null(in);
    assert_non_null(out);
    while ((got = fread(data, 1, sizeof data, in)) > 0) assert_int_equal(fwrite(data, 1, got, out), got);
    fclose(in);
    fclose(out);
}

static void put_jobs(gs_job_store *store, uint64_t first, uint64_t last) {
    static char body[3000];
    memset(body, 'x', sizeof body - 1);
    assert_ok(gs_job_store_begin(store));
    for (uint64_t id = first; id <= last; id++) assert_ok(gs_job_store_put_job(store, id, body));
    assert_ok(gs_job_store_commit(store));
}

// Leaves beside the fixture's store what a kill would: a database, and a log with data that is not in it.
static void leave_killed_store(store_fixture *fixture, char *path, size_t path_bytes) {
    static const char *const suffixes[] = {"", "-wal", "-shm"};
    char from[700], to[700];
    gs_store_start start;
    gs_job_store *store = open_store(fixture, &start);
    put_jobs(store, 1, 40);
    gs_job_store_close(store);
    store = open_store(fixture, &start);
    put_jobs(store, 41, 42);
    snprintf(path, path_bytes, "%s/killed.db", fixture->directory);
    for (int i = 0; i < 3; i++) {
        snprintf(from, sizeof from, "%s%s", fixture->path, suffixes[i]);
        snprintf(to, sizeof to, "%s%s", path, suffixes[i]);
        copy_file(from, to);
    }
    gs_job_store_close(store);
}

static void damage_pages(const char *path) {
    static char garbage[65536];
    memset(garbage, 0xfe, sizeof garbage);
    FILE *file = fopen(path, "r+b");
    assert_int_equal(fseek(file, 32768, SEEK_SET), 0);
    assert_int_equal(fwrite(garbage, 1, sizeof garbage, file), sizeof garbage);
    fclose(file);
}

static size_t file_bytes(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? (size_t)info.st_size : 0;
}

static void a_damaged_file_takes_its_log_along(void **state) {
    store_fixture *fixture = *state;
    char path[650], log[700], aside[300];
    leave_killed_store(fixture, path, sizeof path);
    damage_pages(path);
    snprintf(log, sizeof log, "%s-wal", path);
    size_t log_bytes = file_bytes(log);
    assert_true(log_bytes > 4000);
    gs_job_store *store = NULL;
    gs_store_start start;
    gs_status status = gs_job_store_open(&store, &start, path);
    assert_int_equal(status.code, GS_DATA_LOSS);
    assert_int_equal(file_bytes(log), 0);
    const char *name = strstr(status.message, "killed.db.damaged-");
    assert_non_null(name);
    assert_int_equal(sscanf(name, "%255[a-z0-9.-]", aside), 1);
    snprintf(log, sizeof log, "%s/%s-wal", fixture->directory, aside);
    assert_int_equal(file_bytes(log), log_bytes);
    snprintf(log, sizeof log, "%s/%s", fixture->directory, aside);
    assert_true(file_bytes(log) > 65536);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_damaged_file_takes_its_log_along, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_start_makes_another_beside_a_damaged_one, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_start_opens_a_database_whose_log_is_set_aside, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_log_that_was_left_behind_follows_its_database, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_cannot_be_set_aside_whole_is_not_opened, set_up, tear_down),
        cmocka_unit_test_setup_teardown(each_start_is_counted_and_has_generations_of_its_own, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_was_committed_is_there_after_reopening, set_up, tear_down),
        cmocka_unit_test_setup_teardown(checkpoints_of_a_purged_job_are_owed_until_they_are_gone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(numbers_of_events_are_never_used_twice, set_up, tear_down),
        cmocka_unit_test_setup_teardown(numbers_of_events_that_no_disk_took_are_not_used_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_was_rolled_back_is_not, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_key_lives_while_coordinators_do, set_up, tear_down),
        cmocka_unit_test_setup_teardown(keys_of_before_begin_anew, set_up, tear_down),
        cmocka_unit_test_setup_teardown(data_of_the_first_version_are_of_this_one_from_their_first_start, set_up, tear_down),
        cmocka_unit_test_setup_teardown(data_of_a_version_that_is_not_known_are_left_as_they_are, set_up, tear_down),
        cmocka_unit_test_setup_teardown(keys_go_with_a_job_that_is_deleted_not_with_one_that_is_forgotten, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_deleted_job_takes_its_rows_along, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_deleted_job_comes_back_with_its_trainers_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(late_writes_of_an_adopted_job_are_refused_as_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_start_removes_checkpoints_of_no_job, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_newest_tombstones_are_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_file_is_for_its_owner_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_planted_link_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_damaged_file_is_kept_aside_and_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(damage_that_no_query_meets_is_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_record_is_its_jobs_own, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
