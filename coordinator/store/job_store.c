#include "coordinator/store/job_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sqlite3.h>

#include "coordinator/store/set_aside.h"
#include "coordinator/store/wal_check.h"
#include "core/clock.h"

#define SCHEMA_VERSION 1
#define LIVES_KEPT 10000
#define BUSY_MS 2000  // of somebody who looks into it with another program
#define CHECKED_AT_ONCE_BYTES ((off_t)4 << 20)

enum {
    STATEMENT_PUT_JOB = 0,
    STATEMENT_PUT_ADOPTED_JOB,
    STATEMENT_PUT_CARD,
    STATEMENT_MARK_LIVED,
    STATEMENT_DELETE_JOB,
    STATEMENT_DELETE_CARD,
    STATEMENT_DELETE_JOB_EVENTS,
    STATEMENT_DELETE_JOB_CHECKPOINTS,
    STATEMENT_DELETE_JOB_KEYS,
    STATEMENT_PUT_TOMBSTONE,
    STATEMENT_PRUNE_TOMBSTONES,
    STATEMENT_PUT_PURGE,
    STATEMENT_DELETE_PURGE,
    STATEMENT_PUT_EVENT,
    STATEMENT_PRUNE_EVENTS,
    STATEMENT_MARK_EVENTS,
    STATEMENT_PUT_CHECKPOINT,
    STATEMENT_DELETE_CHECKPOINT,
    STATEMENT_PUT_KEY,
    STATEMENT_PRUNE_KEYS,
    STATEMENT_MARK_GENERATION,
    NUM_STATEMENTS
};

static const char *const statement_texts[NUM_STATEMENTS] = {
    // A deleted job does not come back by a write that was late, but by its adoption.
    [STATEMENT_PUT_JOB] = "INSERT INTO job(id, body) SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM job WHERE id = ?1) "
                          "OR NOT EXISTS (SELECT 1 FROM tombstone WHERE job = ?1) "
                          "ON CONFLICT(id) DO UPDATE SET body = excluded.body",
    [STATEMENT_PUT_ADOPTED_JOB] = "INSERT INTO job(id, body) VALUES(?1, ?2) "
                                  "ON CONFLICT(id) DO UPDATE SET body = excluded.body",
    // Written again it keeps when it ended.
    [STATEMENT_PUT_CARD] = "INSERT INTO card(job, body, lived_ms) SELECT ?1, ?2, ?3 WHERE EXISTS (SELECT 1 FROM job WHERE id = ?1) "
                           "ON CONFLICT(job) DO UPDATE SET body = excluded.body",
    [STATEMENT_MARK_LIVED] = "UPDATE lived SET ms = ?1",
    [STATEMENT_DELETE_JOB] = "DELETE FROM job WHERE id = ?1",
    [STATEMENT_DELETE_CARD] = "DELETE FROM card WHERE job = ?1",
    [STATEMENT_DELETE_JOB_EVENTS] = "DELETE FROM event WHERE job = ?1",
    [STATEMENT_DELETE_JOB_CHECKPOINTS] = "DELETE FROM checkpoint WHERE job = ?1",
    [STATEMENT_DELETE_JOB_KEYS] = "DELETE FROM request_key WHERE job = ?1",
    [STATEMENT_PUT_TOMBSTONE] = "INSERT OR REPLACE INTO tombstone(job, generation, outcome, deleted_ms) "
                                "VALUES(?1, ?2, ?3, ?4)",
    [STATEMENT_PRUNE_TOMBSTONES] = "DELETE FROM tombstone WHERE job < "
                                   "(SELECT job FROM tombstone ORDER BY job DESC LIMIT 1 OFFSET ?1 - 1)",
    [STATEMENT_PUT_PURGE] = "INSERT OR IGNORE INTO owed_purge(job) VALUES(?1)",
    [STATEMENT_DELETE_PURGE] = "DELETE FROM owed_purge WHERE job = ?1",
    [STATEMENT_PUT_EVENT] = "INSERT OR REPLACE INTO event(sequence, job, body) VALUES(?1, ?2, ?3)",
    [STATEMENT_PRUNE_EVENTS] = "DELETE FROM event WHERE sequence < ?1",
    [STATEMENT_MARK_EVENTS] = "UPDATE event_mark SET sequence = ?1 + ?2 WHERE sequence < ?1 + ?2 / 2",
    [STATEMENT_PUT_CHECKPOINT] = "INSERT INTO checkpoint(job, directory, body) VALUES(?1, ?2, ?3) "
                                 "ON CONFLICT(job, directory) DO UPDATE SET body = excluded.body",
    [STATEMENT_DELETE_CHECKPOINT] = "DELETE FROM checkpoint WHERE job = ?1 AND directory = ?2",
    [STATEMENT_PUT_KEY] = "INSERT OR REPLACE INTO request_key(key, fingerprint, job, ends_lived_ms) "
                          "VALUES(?1, ?2, ?3, (SELECT ms FROM lived) + ?4)",
    [STATEMENT_PRUNE_KEYS] = "DELETE FROM request_key WHERE ends_lived_ms <= (SELECT ms FROM lived)",
    [STATEMENT_MARK_GENERATION] = "UPDATE meta SET generation_mark = ?1",
};

// For who listens. Cards, the time that was lived, how far numbers of events are reserved and what is owed to files are not told: they decide nothing that a run could
// differ by; keys that go with their job follow from its deletion.
static const char *const statement_names[NUM_STATEMENTS] = {
    [STATEMENT_PUT_JOB] = "put_job",
    [STATEMENT_PUT_ADOPTED_JOB] = "put_job",
    [STATEMENT_DELETE_JOB] = "delete_job",
    [STATEMENT_DELETE_JOB_EVENTS] = "delete_job_events",
    [STATEMENT_DELETE_JOB_CHECKPOINTS] = "delete_job_checkpoints",
    [STATEMENT_PUT_TOMBSTONE] = "put_tombstone",
    [STATEMENT_PRUNE_TOMBSTONES] = "prune_tombstones",
    [STATEMENT_PUT_EVENT] = "put_event",
    [STATEMENT_PRUNE_EVENTS] = "prune_events",
    [STATEMENT_PUT_CHECKPOINT] = "put_checkpoint",
    [STATEMENT_DELETE_CHECKPOINT] = "delete_checkpoint",
    [STATEMENT_PUT_KEY] = "put_key",
    [STATEMENT_PRUNE_KEYS] = "prune_keys",
    [STATEMENT_MARK_GENERATION] = "mark_generation",
};

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS meta(schema_version INTEGER NOT NULL, coord_epoch INTEGER NOT NULL,"
    " generation_mark INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS job(id INTEGER PRIMARY KEY, body TEXT NOT NULL);"
    "CREATE TABLE IF NOT EXISTS event(sequence INTEGER PRIMARY KEY, job INTEGER NOT NULL,"
    " body TEXT NOT NULL);"
    "CREATE INDEX IF NOT EXISTS event_job ON event(job);"
    "CREATE TABLE IF NOT EXISTS checkpoint(job INTEGER NOT NULL, directory TEXT NOT NULL,"
    " body TEXT NOT NULL, PRIMARY KEY(job, directory));"
    "CREATE TABLE IF NOT EXISTS idempotency(key TEXT PRIMARY KEY, fingerprint TEXT NOT NULL,"
    " job INTEGER NOT NULL, expires_ms INTEGER NOT NULL);"
    "INSERT INTO meta SELECT 1, 0, 1 WHERE NOT EXISTS (SELECT 1 FROM meta);"
    "CREATE TABLE IF NOT EXISTS cluster(id TEXT NOT NULL);"
    "INSERT INTO cluster SELECT 'c-' || lower(hex(randomblob(8))) WHERE NOT EXISTS (SELECT 1 FROM cluster);"
    "CREATE TABLE IF NOT EXISTS life(epoch INTEGER PRIMARY KEY, id INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS tombstone(job INTEGER PRIMARY KEY, generation INTEGER NOT NULL,"
    " outcome TEXT NOT NULL, deleted_ms INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS owed_purge(job INTEGER PRIMARY KEY);"
    "CREATE TABLE IF NOT EXISTS card(job INTEGER PRIMARY KEY, body TEXT NOT NULL, lived_ms INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS lived(ms INTEGER NOT NULL);"
    "INSERT INTO lived SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM lived);"
    "CREATE TABLE IF NOT EXISTS request_key(key TEXT PRIMARY KEY, fingerprint TEXT NOT NULL,"
    " job INTEGER NOT NULL, ends_lived_ms INTEGER NOT NULL);"
    // Of a version whose keys ended by the wall clock: they begin anew, once.
    "INSERT OR IGNORE INTO request_key SELECT key, fingerprint, job, (SELECT ms FROM lived) + 86400000 FROM idempotency;"
    "DELETE FROM idempotency;"
    "CREATE TABLE IF NOT EXISTS event_mark(sequence INTEGER NOT NULL);"
    "INSERT INTO event_mark SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM event_mark);";

struct gs_job_store {
    sqlite3 *database;
    sqlite3_stmt *statements[NUM_STATEMENTS];
    int64_t lived_ms, opened_ns;  // coordinators of this database, before this one
    gs_store_tap tap;
    void *tap_ctx;
};

static gs_status error_of(gs_job_store *store, const char *what) {
    int code = sqlite3_extended_errcode(store->database);
    const char *text = sqlite3_errmsg(store->database);
    switch (code & 0xff) {
    case SQLITE_FULL: return gs_error(GS_RESOURCE_EXHAUSTED, "store: %s: %s", what, text);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return gs_error(GS_DATA_LOSS, "store: %s: %s", what, text);
    case SQLITE_BUSY:
    case SQLITE_IOERR: return gs_error(GS_UNAVAILABLE, "store: %s: %s", what, text);
    default: return gs_error(GS_INTERNAL, "store: %s: %s (%d)", what, text, code);
    }
}

static gs_status run_sql(gs_job_store *store, const char *sql, const char *what) {
    if (sqlite3_exec(store->database, sql, NULL, NULL, NULL) == SQLITE_OK) return gs_ok();
    return error_of(store, what);
}

static gs_status read_number(gs_job_store *store, int64_t *value, const char *sql) {
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(store->database, sql, -1, &statement, NULL) != SQLITE_OK) {
        return error_of(store, sql);
    }
    gs_status status = gs_ok();
    if (sqlite3_step(statement) == SQLITE_ROW) *value = sqlite3_column_int64(statement, 0);
    else status = error_of(store, sql);
    sqlite3_finalize(statement);
    return status;
}

static gs_status read_text(gs_job_store *store, char *text, size_t text_bytes, const char *sql) {
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(store->database, sql, -1, &statement, NULL) != SQLITE_OK) {
        return error_of(store, sql);
    }
    gs_status status = gs_ok();
    if (sqlite3_step(statement) == SQLITE_ROW)
        snprintf(text, text_bytes, "%s", (const char *)sqlite3_column_text(statement, 0));
    else status = error_of(store, sql);
    sqlite3_finalize(statement);
    return status;
}

// The check goes on where a page cannot be read, and its text says so: that is the disk's trouble, and may pass.
static bool tells_of_disk(const char *text) {
    static const char before[] = "error code=";
    const char *found = strstr(text, before);
    int code = found ? (int)strtol(found + strlen(before), NULL, 10) & 0xff : SQLITE_OK;
    bool is_free_page = strstr(text, "failed to get page") != NULL;  // its number was looked at before
    return is_free_page || code == SQLITE_IOERR || code == SQLITE_NOMEM;
}

static gs_status check_integrity(gs_job_store *store) {
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(store->database, "PRAGMA integrity_check(1)", -1, &statement, NULL) !=
        SQLITE_OK) {
        return error_of(store, "integrity check");
    }
    gs_status status = gs_ok();
    if (sqlite3_step(statement) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(statement, 0);
        if (!text || tells_of_disk(text)) {
            status = gs_error(GS_UNAVAILABLE, "store: integrity check: %s", text ? text : "no answer");
        } else if (strcmp(text, "ok") != 0) {
            status = gs_error(GS_DATA_LOSS, "store: integrity check: %s", text);
        }
    } else {
        status = error_of(store, "integrity check");
    }
    sqlite3_finalize(statement);
    return status;
}

// One transaction: the start is counted and its generations are reserved before anybody sees either.
static gs_status count_start(gs_job_store *store, gs_store_start *start) {
    int64_t version = 0, epoch = 0, mark = 0, sequence = 0;
    GS_TRY(run_sql(store, "BEGIN IMMEDIATE", "begin"));
    GS_TRY(run_sql(store, schema, "schema"));
    GS_TRY(read_number(store, &version, "SELECT schema_version FROM meta"));
    if (version != SCHEMA_VERSION) {
        return gs_error(GS_FAILED_PRECONDITION, "store: schema version %lld, this program knows %d",
                        (long long)version, SCHEMA_VERSION);
    }
    GS_TRY(read_number(store, &epoch, "SELECT coord_epoch FROM meta"));
    GS_TRY(read_number(store, &mark, "SELECT generation_mark FROM meta"));
    GS_TRY(read_number(store, &sequence, "SELECT max(sequence, (SELECT coalesce(max(sequence), 0) FROM event)) FROM event_mark"));
    if (epoch >= UINT32_MAX - 1 || mark >= UINT32_MAX - 2 * GS_GENERATION_BLOCK) {
        return gs_error(GS_OUT_OF_RANGE, "store: coordinator epochs or generations are used up");
    }
    if (sequence > INT64_MAX - 2 * GS_EVENT_BLOCK) {
        return gs_error(GS_OUT_OF_RANGE, "store: numbers of events are used up");
    }
    GS_TRY(read_number(store, &store->lived_ms, "SELECT ms FROM lived"));
    GS_TRY(read_text(store, start->cluster, sizeof start->cluster, "SELECT id FROM cluster"));
    char sql[300];
    snprintf(sql, sizeof sql,
             "UPDATE meta SET coord_epoch = %lld, generation_mark = %lld;"
             "UPDATE event_mark SET sequence = %lld;"
             "INSERT OR REPLACE INTO life SELECT %lld, random() & 0x7fffffffffffffff | 1;"
             "DELETE FROM life WHERE epoch < %lld",
             (long long)epoch + 1, (long long)mark + GS_GENERATION_BLOCK,
             (long long)sequence + GS_EVENT_BLOCK, (long long)epoch + 1,
             (long long)epoch + 1 - LIVES_KEPT);
    GS_TRY(run_sql(store, sql, "count start"));
    int64_t life = 0;
    GS_TRY(read_number(store, &life, "SELECT id FROM life ORDER BY epoch DESC LIMIT 1"));
    // Earlier versions left rows of checkpoints behind the deletion of their job.
    GS_TRY(run_sql(store, "DELETE FROM checkpoint WHERE job NOT IN (SELECT id FROM job)", "prune checkpoints"));
    GS_TRY(run_sql(store, "COMMIT", "commit"));
    start->life = (uint64_t)life;
    start->coordinator_epoch = (uint32_t)(epoch + 1);
    start->first_generation = (uint32_t)mark;
    start->next_sequence = (uint64_t)sequence + 1;
    return gs_ok();
}

static gs_status prepare_statements(gs_job_store *store) {
    for (int i = 0; i < NUM_STATEMENTS; i++) {
        if (sqlite3_prepare_v3(store->database, statement_texts[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &store->statements[i], NULL) != SQLITE_OK) {
            return error_of(store, statement_texts[i]);
        }
    }
    return gs_ok();
}

// What is promised of a commit holds with the log alone.
static gs_status use_wal(gs_job_store *store) {
    char mode[16] = "";
    GS_TRY(read_text(store, mode, sizeof mode, "PRAGMA journal_mode = WAL"));
    if (!strcmp(mode, "wal")) return gs_ok();
    return gs_error(GS_UNAVAILABLE, "store: this file system has no write-ahead log (journal mode %s)", mode);
}

bool gs_job_store_is_large(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && info.st_size > CHECKED_AT_ONCE_BYTES;
}

static int must_stop(void *stopping) { return atomic_load((const atomic_bool *)stopping); }

gs_status gs_job_store_check(const char *path, const atomic_bool *stopping) {
    gs_job_store reader = {0};
    gs_status status = gs_ok();
    int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(path, &reader.database, flags, NULL) != SQLITE_OK) status = error_of(&reader, path);
    sqlite3_busy_timeout(reader.database, BUSY_MS);
    sqlite3_progress_handler(reader.database, 1000, must_stop, (void *)(uintptr_t)stopping);
    if (!status.code) status = check_integrity(&reader);
    sqlite3_close(reader.database);
    return atomic_load(stopping) ? gs_ok() : status;
}

void gs_job_store_keep_as_found(gs_job_store *store) {
    sqlite3_db_config(store->database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
}

static gs_status check_log(const char *path) {
    gs_status status = gs_wal_check(path);
    return status.code == GS_DATA_LOSS ? gs_set_aside(path, status) : status;
}

gs_status gs_job_store_open(gs_job_store **out, gs_store_start *start, const char *path) {
    GS_TRY(gs_set_aside_check(path));
    GS_TRY(check_log(path));
    gs_job_store *store = calloc(1, sizeof *store);
    if (!store) return gs_error(GS_RESOURCE_EXHAUSTED, "store: out of memory");
    // Made here so that the mode is ours, whatever the umask says about SQLite's 0644.
    int file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) {
        free(store);
        return gs_error_from_errno(errno, "store: %s", path);
    }
    close(file);
    store->opened_ns = gs_now_ns();
    gs_status status = gs_ok();
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(path, &store->database, flags, NULL) != SQLITE_OK) {
        status = error_of(store, path);
    }
    if (!status.code) sqlite3_busy_timeout(store->database, BUSY_MS);
    if (!status.code) status = use_wal(store);
    if (!status.code) status = run_sql(store, "PRAGMA synchronous = FULL", "synchronous");
    if (!status.code && !gs_job_store_is_large(path)) status = check_integrity(store);
    if (!status.code) status = count_start(store, start);
    if (!status.code) status = prepare_statements(store);
    if (status.code) {
        if (store->database) gs_job_store_keep_as_found(store);
        gs_job_store_close(store);
        return status.code == GS_DATA_LOSS ? gs_set_aside(path, status) : status;
    }
    *out = store;
    return gs_ok();
}

void gs_job_store_close(gs_job_store *store) {
    if (!store) return;
    for (int i = 0; i < NUM_STATEMENTS; i++) sqlite3_finalize(store->statements[i]);
    sqlite3_close(store->database);
    free(store);
}

gs_status gs_job_store_begin(gs_job_store *store) { return run_sql(store, "BEGIN", "begin"); }

gs_status gs_job_store_commit(gs_job_store *store) { return run_sql(store, "COMMIT", "commit"); }

void gs_job_store_rollback(gs_job_store *store) {
    sqlite3_exec(store->database, "ROLLBACK", NULL, NULL, NULL);
}

gs_status gs_job_store_begin_part(gs_job_store *store) { return run_sql(store, "SAVEPOINT part", "savepoint"); }

gs_status gs_job_store_end_part(gs_job_store *store, gs_status status) {
    // On some errors (a full disk, no memory) SQLite rolls all of it back by itself: what came now would be
    // committed alone.
    if (sqlite3_get_autocommit(store->database)) return status.code ? status : gs_error(GS_INTERNAL, "store: no transaction");
    if (status.code) GS_TRY(run_sql(store, "ROLLBACK TO part", "roll back"));
    return run_sql(store, "RELEASE part", "release");
}

void gs_job_store_set_tap(gs_job_store *store, gs_store_tap tap, void *ctx) {
    store->tap = tap;
    store->tap_ctx = ctx;
}

static gs_status execute(gs_job_store *store, int which, const gs_store_value *values,
                         int num_values) {
    sqlite3_stmt *statement = store->statements[which];
    for (int i = 0; i < num_values; i++) {
        int code = values[i].text
                       ? sqlite3_bind_text(statement, i + 1, values[i].text, -1, SQLITE_STATIC)
                       : sqlite3_bind_int64(statement, i + 1, values[i].number);
        if (code != SQLITE_OK) return error_of(store, "bind");
    }
    gs_status status = gs_ok();
    if (sqlite3_step(statement) != SQLITE_DONE) status = error_of(store, "write");
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    if (store->tap && statement_names[which]) store->tap(store->tap_ctx, statement_names[which], values, num_values);
    return status;
}

#define NUMBER(value) {.number = (int64_t)(value)}
#define TEXT(value) {.text = (value)}
#define JSON(value) {.text = (value), .is_json = true}

gs_status gs_job_store_put_job(gs_job_store *store, uint64_t id, const char *body) {
    GS_TRY(execute(store, STATEMENT_PUT_JOB, (gs_store_value[]){NUMBER(id), JSON(body)}, 2));
    if (sqlite3_changes(store->database) > 0) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION, "store: the job was deleted");
}

gs_status gs_job_store_delete_purge(gs_job_store *store, uint64_t job) {
    return execute(store, STATEMENT_DELETE_PURGE, (gs_store_value[]){NUMBER(job)}, 1);
}

gs_status gs_job_store_put_adopted_job(gs_job_store *store, uint64_t id, const char *body) {
    GS_TRY(gs_job_store_delete_purge(store, id));  // its checkpoints are its own again
    return execute(store, STATEMENT_PUT_ADOPTED_JOB, (gs_store_value[]){NUMBER(id), JSON(body)}, 2);
}

int64_t gs_job_store_lived_ms(const gs_job_store *store) {
    return store->lived_ms + (gs_now_ns() - store->opened_ns) / GS_NS_PER_MS;
}

static gs_status mark_lived(gs_job_store *store) {
    return execute(store, STATEMENT_MARK_LIVED, (gs_store_value[]){NUMBER(gs_job_store_lived_ms(store))}, 1);
}

gs_status gs_job_store_put_card(gs_job_store *store, uint64_t id, const char *body) {
    int64_t lived_ms = gs_job_store_lived_ms(store);
    GS_TRY(execute(store, STATEMENT_PUT_CARD, (gs_store_value[]){NUMBER(id), JSON(body), NUMBER(lived_ms)}, 3));
    return mark_lived(store);
}

gs_status gs_job_store_delete_job(gs_job_store *store, const gs_tombstone *tombstone) {
    uint64_t id = tombstone->job;
    GS_TRY(execute(store, STATEMENT_DELETE_JOB, (gs_store_value[]){NUMBER(id)}, 1));
    GS_TRY(execute(store, STATEMENT_DELETE_CARD, (gs_store_value[]){NUMBER(id)}, 1));
    GS_TRY(execute(store, STATEMENT_DELETE_JOB_EVENTS, (gs_store_value[]){NUMBER(id)}, 1));
    GS_TRY(execute(store, STATEMENT_DELETE_JOB_CHECKPOINTS, (gs_store_value[]){NUMBER(id)}, 1));
    if (tombstone->frees_keys) GS_TRY(execute(store, STATEMENT_DELETE_JOB_KEYS, (gs_store_value[]){NUMBER(id)}, 1));
    if (tombstone->purges) GS_TRY(execute(store, STATEMENT_PUT_PURGE, (gs_store_value[]){NUMBER(id)}, 1));
    GS_TRY(execute(store, STATEMENT_PUT_TOMBSTONE,
                   (gs_store_value[]){NUMBER(id), NUMBER(tombstone->generation),
                                      TEXT(gs_job_state_name(tombstone->outcome)), NUMBER(tombstone->deleted_ms)},
                   4));
    return execute(store, STATEMENT_PRUNE_TOMBSTONES, (gs_store_value[]){NUMBER(GS_MAX_TOMBSTONES)}, 1);
}

gs_status gs_job_store_put_event(gs_job_store *store, uint64_t sequence, uint64_t job,
                                 const char *body) {
    GS_TRY(execute(store, STATEMENT_MARK_EVENTS, (gs_store_value[]){NUMBER(sequence), NUMBER(GS_EVENT_BLOCK)}, 2));
    return execute(store, STATEMENT_PUT_EVENT,
                   (gs_store_value[]){NUMBER(sequence), NUMBER(job), JSON(body)}, 3);
}

gs_status gs_job_store_prune_events(gs_job_store *store, uint64_t least) {
    return execute(store, STATEMENT_PRUNE_EVENTS, (gs_store_value[]){NUMBER(least)}, 1);
}

gs_status gs_job_store_put_checkpoint(gs_job_store *store, uint64_t job, const char *directory,
                                      const char *body) {
    return execute(store, STATEMENT_PUT_CHECKPOINT,
                   (gs_store_value[]){NUMBER(job), TEXT(directory), JSON(body)}, 3);
}

gs_status gs_job_store_delete_checkpoint(gs_job_store *store, uint64_t job, const char *directory) {
    return execute(store, STATEMENT_DELETE_CHECKPOINT,
                   (gs_store_value[]){NUMBER(job), TEXT(directory)}, 2);
}

gs_status gs_job_store_put_key(gs_job_store *store, const char *key, const char *fingerprint,
                               uint64_t job, int64_t left_ms) {
    GS_TRY(mark_lived(store));
    return execute(store, STATEMENT_PUT_KEY,
                   (gs_store_value[]){TEXT(key), TEXT(fingerprint), NUMBER(job), NUMBER(left_ms)}, 4);
}

gs_status gs_job_store_prune_keys(gs_job_store *store) {
    GS_TRY(mark_lived(store));
    return execute(store, STATEMENT_PRUNE_KEYS, NULL, 0);
}

gs_status gs_job_store_reserve_generations(gs_job_store *store, uint32_t next) {
    return execute(store, STATEMENT_MARK_GENERATION, (gs_store_value[]){NUMBER(next)}, 1);
}

// Columns of every reading query: id, job, key, body, time.
static gs_status visit_rows(gs_job_store *store, const char *sql, gs_store_visit visit, void *ctx) {
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(store->database, sql, -1, &statement, NULL) != SQLITE_OK) {
        return error_of(store, sql);
    }
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        gs_store_row row = {
            .id = (uint64_t)sqlite3_column_int64(statement, 0),
            .job = (uint64_t)sqlite3_column_int64(statement, 1),
            .key = (const char *)sqlite3_column_text(statement, 2),
            .body = (const char *)sqlite3_column_text(statement, 3),
            .time_ms = sqlite3_column_int64(statement, 4),
        };
        visit(ctx, &row);
    }
    gs_status status = code == SQLITE_DONE ? gs_ok() : error_of(store, sql);
    sqlite3_finalize(statement);
    return status;
}

gs_status gs_job_store_load_jobs(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return visit_rows(store, "SELECT id, id, '', body, 0 FROM job ORDER BY id", visit, ctx);
}

gs_status gs_job_store_load_jobs_without_card(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return visit_rows(store, "SELECT id, id, '', body, 0 FROM job WHERE id NOT IN (SELECT job FROM card) ORDER BY id", visit,
                      ctx);
}

// One that an earlier version has left behind a job that it deleted is none.
gs_status gs_job_store_load_cards(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return visit_rows(store, "SELECT card.job, card.job, '', card.body, lived_ms FROM card JOIN job ON job.id = card.job ORDER BY card.job",
                      visit, ctx);
}

gs_status gs_job_store_get_job(gs_job_store *store, char **body, uint64_t id) {
    sqlite3_stmt *statement = NULL;
    *body = NULL;
    if (sqlite3_prepare_v2(store->database, "SELECT body FROM job WHERE id = ?1", -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_bind_int64(statement, 1, (int64_t)id) != SQLITE_OK)
        return error_of(store, "read job");
    gs_status status = gs_ok();
    int code = sqlite3_step(statement);
    if (code == SQLITE_DONE) {
        status = gs_error(GS_NOT_FOUND, "store: there is no such job");
    } else if (code != SQLITE_ROW) {
        status = error_of(store, "read job");
    } else {
        const char *text = (const char *)sqlite3_column_text(statement, 0);
        *body = text ? strdup(text) : NULL;
        if (!*body) status = gs_error(GS_RESOURCE_EXHAUSTED, "store: out of memory");
    }
    sqlite3_finalize(statement);
    return status;
}

gs_status gs_job_store_load_lives(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return visit_rows(store, "SELECT epoch, id, '', '', 0 FROM life ORDER BY epoch", visit, ctx);
}

gs_status gs_job_store_load_tombstones(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return visit_rows(store, "SELECT job, generation, outcome, '', deleted_ms FROM tombstone ORDER BY job", visit,
                      ctx);
}

gs_status gs_job_store_load_purges(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return visit_rows(store, "SELECT job, job, '', '', 0 FROM owed_purge ORDER BY job", visit, ctx);
}

gs_tombstone gs_tombstone_of_row(const gs_store_row *row) {
    gs_tombstone tombstone = {.job = row->id, .generation = (uint32_t)row->job, .deleted_ms = row->time_ms};
    if (!gs_job_state_from_name(&tombstone.outcome, row->key)) tombstone.outcome = GS_JOB_CANCELLED;
    return tombstone;
}

gs_status gs_job_store_load_events(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return visit_rows(store, "SELECT sequence, job, '', body, 0 FROM event ORDER BY sequence", visit,
                      ctx);
}

gs_status gs_job_store_load_checkpoints(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return visit_rows(
        store, "SELECT job, job, directory, body, 0 FROM checkpoint ORDER BY job, directory", visit,
        ctx);
}

gs_status gs_job_store_load_keys(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return visit_rows(store, "SELECT job, job, key, fingerprint, ends_lived_ms - (SELECT ms FROM lived) FROM request_key", visit,
                      ctx);
}
