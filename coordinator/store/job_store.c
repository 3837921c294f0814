#include "coordinator/store/job_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "coordinator/store/database/database.h"
#include "coordinator/store/database/set_aside.h"
#include "coordinator/store/database/wal_check.h"
#include "core/clock.h"
#include "core/failpoint.h"

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

struct gs_job_store {
    gs_database *database;
    gs_database *reader;  // of the thread that recalls; NULL: nothing was yet
    char *path;           // owned
    bool is_in_doubt;     // a commit failed, and its frames are in the log, whole perhaps
    int64_t lived_ms, opened_ns;  // coordinators of this database, before this one
    gs_store_tap tap;
    void *tap_ctx;
};

bool gs_job_store_is_large(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && info.st_size > CHECKED_AT_ONCE_BYTES;
}

gs_status gs_job_store_check(const char *path, const atomic_bool *stopping) { return gs_database_check_file(path, stopping); }

void gs_job_store_keep_as_found(gs_job_store *store) { gs_database_keep_as_found(store->database); }

static gs_status check_log(const char *path) {
    gs_status status = gs_wal_check(path);
    return status.code == GS_DATA_LOSS ? gs_set_aside(path, status) : status;
}

gs_status gs_job_store_open(gs_job_store **out, gs_store_start *start, const char *path) {
    GS_TRY(gs_set_aside_check(path));
    GS_TRY(check_log(path));
    gs_job_store *store = calloc(1, sizeof *store);
    if (!store) return gs_error(GS_RESOURCE_EXHAUSTED, "store: out of memory");
    store->opened_ns = gs_now_ns();
    store->path = strdup(path);
    gs_status status = store->path ? gs_database_open(&store->database, path) : gs_error(GS_RESOURCE_EXHAUSTED, "store: out of memory");
    if (!status.code && !gs_job_store_is_large(path)) status = gs_database_check(store->database);
    if (!status.code) status = gs_store_start_count(start, &store->lived_ms, store->database);
    if (!status.code) status = gs_database_prepare(store->database, statement_texts, NUM_STATEMENTS);
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
    gs_database_close(store->reader);  // first: the last to close it empties its log
    gs_database_close(store->database);
    free(store->path);
    free(store);
}

// The log may have got all of a commit before the disk said no, and the next start would take it for one. Whatever is committed
// next takes the place of its first frame, and nothing behind that counts any more.
static gs_status take_back(gs_job_store *store) {
    gs_status status = gs_database_run(store->database, "BEGIN IMMEDIATE", "begin");
    // Not by what it would be now: a page that stays as it is is not written.
    if (!status.code) status = gs_database_run(store->database, "UPDATE lived SET ms = ms + 1", "mark");
    if (!status.code) status = gs_database_run(store->database, "COMMIT", "commit");
    if (status.code) gs_database_rollback(store->database);
    else store->is_in_doubt = false;
    return status;
}

gs_status gs_job_store_begin(gs_job_store *store) {
    if (store->is_in_doubt) GS_TRY(gs_status_prefix(take_back(store), "what failed before is not taken back yet"));
    return gs_database_run(store->database, "BEGIN", "begin");
}

gs_status gs_job_store_commit(gs_job_store *store) {
    gs_status status = gs_database_run(store->database, "COMMIT", "commit");
    if (!status.code || status.code == GS_RESOURCE_EXHAUSTED) return status;  // of what has no room the end is missing
    gs_database_rollback(store->database);
    store->is_in_doubt = true;
    if (!take_back(store).code) return status;
    return gs_error(status.code, "%s; nor can it be taken back now: the next start may find it", status.message);
}

bool gs_job_store_is_in_doubt(const gs_job_store *store) { return store->is_in_doubt; }

void gs_job_store_rollback(gs_job_store *store) { gs_database_rollback(store->database); }

gs_status gs_job_store_begin_part(gs_job_store *store) { return gs_database_run(store->database, "SAVEPOINT part", "savepoint"); }

gs_status gs_job_store_end_part(gs_job_store *store, gs_status status) {
    // On some errors (a full disk, no memory) SQLite rolls all of it back by itself: what came now would be
    // committed alone.
    if (!gs_database_is_in_transaction(store->database)) return status.code ? status : gs_error(GS_INTERNAL, "store: no transaction");
    if (status.code) GS_TRY(gs_database_run(store->database, "ROLLBACK TO part", "roll back"));
    return gs_database_run(store->database, "RELEASE part", "release");
}

void gs_job_store_set_tap(gs_job_store *store, gs_store_tap tap, void *ctx) {
    store->tap = tap;
    store->tap_ctx = ctx;
}

static gs_status execute(gs_job_store *store, int which, const gs_store_value *values, int num_values) {
    gs_status status = gs_database_execute(store->database, which, values, num_values);
    if (store->tap && statement_names[which]) store->tap(store->tap_ctx, statement_names[which], values, num_values);
    return status;
}

#define NUMBER(value) {.number = (int64_t)(value)}
#define TEXT(value) {.text = (value)}
#define JSON(value) {.text = (value), .is_json = true}

gs_status gs_job_store_put_job(gs_job_store *store, uint64_t id, const char *body) {
    GS_TRY(execute(store, STATEMENT_PUT_JOB, (gs_store_value[]){NUMBER(id), JSON(body)}, 2));
    if (gs_database_num_changed(store->database) > 0) return gs_ok();
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

gs_status gs_job_store_load_jobs(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return gs_database_visit(store->database, "SELECT id, id, '', body, 0 FROM job ORDER BY id", visit, ctx);
}

gs_status gs_job_store_load_jobs_without_card(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return gs_database_visit(store->database, "SELECT id, id, '', body, 0 FROM job WHERE id NOT IN (SELECT job FROM card) ORDER BY id", visit,
                      ctx);
}

// One that an earlier version has left behind a job that it deleted is none.
gs_status gs_job_store_load_cards(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return gs_database_visit(store->database, "SELECT card.job, card.job, '', card.body, lived_ms FROM card JOIN job ON job.id = card.job ORDER BY card.job",
                      visit, ctx);
}

gs_status gs_job_store_get_job(gs_job_store *store, char **body, uint64_t id) {
    return gs_database_find_text(store->database, body, "SELECT body FROM job WHERE id = ?1", id);
}

gs_status gs_job_store_recall_job(gs_job_store *store, char **body, uint64_t id) {
    *body = NULL;
    GS_FAILPOINT("store.recall");
    if (!store->reader) GS_TRY(gs_database_open_reader(&store->reader, store->path));
    return gs_database_find_text(store->reader, body, "SELECT body FROM job WHERE id = ?1", id);
}

gs_status gs_job_store_load_lives(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return gs_database_visit(store->database, "SELECT epoch, id, '', '', 0 FROM life ORDER BY epoch", visit, ctx);
}

gs_status gs_job_store_load_tombstones(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return gs_database_visit(store->database, "SELECT job, generation, outcome, '', deleted_ms FROM tombstone ORDER BY job", visit,
                      ctx);
}

gs_status gs_job_store_load_purges(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return gs_database_visit(store->database, "SELECT job, job, '', '', 0 FROM owed_purge ORDER BY job", visit, ctx);
}

gs_tombstone gs_tombstone_of_row(const gs_store_row *row) {
    gs_tombstone tombstone = {.job = row->id, .generation = (uint32_t)row->job, .deleted_ms = row->time_ms};
    if (!gs_job_state_from_name(&tombstone.outcome, row->key)) tombstone.outcome = GS_JOB_CANCELLED;
    return tombstone;
}

gs_status gs_job_store_load_events(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return gs_database_visit(store->database, "SELECT sequence, job, '', body, 0 FROM event ORDER BY sequence", visit,
                      ctx);
}

gs_status gs_job_store_load_checkpoints(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return gs_database_visit(
        store->database, "SELECT job, job, directory, body, 0 FROM checkpoint ORDER BY job, directory", visit,
        ctx);
}

gs_status gs_job_store_load_keys(gs_job_store *store, gs_store_visit visit, void *ctx) {
    return gs_database_visit(store->database, "SELECT job, job, key, fingerprint, ends_lived_ms - (SELECT ms FROM lived) FROM request_key", visit,
                      ctx);
}
