#include "coordinator/store/database/store_start.h"

#include <stdio.h>

#include "coordinator/model/state.h"

// 1: without what stands below from `cluster` on, which a program that does not know it would lose sight of: who was deleted, which
// numbers are given out. An older one refuses this one. Raised with each change that it could not leave alone.
#define SCHEMA_VERSION 2
#define LIVES_KEPT 10000

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

gs_status gs_store_start_count(gs_store_start *start, int64_t *lived_ms, gs_database *database) {
    int64_t version = 0, epoch = 0, mark = 0, sequence = 0;
    GS_TRY(gs_database_run(database, "BEGIN IMMEDIATE", "begin"));
    GS_TRY(gs_database_run(database, schema, "schema"));
    GS_TRY(gs_database_read_number(database, &version, "SELECT schema_version FROM meta"));
    if (version < 1 || version > SCHEMA_VERSION) {
        return gs_error(GS_FAILED_PRECONDITION, "store: schema version %lld, this program knows 1 to %d",
                        (long long)version, SCHEMA_VERSION);
    }
    GS_TRY(gs_database_read_number(database, &epoch, "SELECT coord_epoch FROM meta"));
    GS_TRY(gs_database_read_number(database, &mark, "SELECT generation_mark FROM meta"));
    GS_TRY(gs_database_read_number(database, &sequence, "SELECT max(sequence, (SELECT coalesce(max(sequence), 0) FROM event)) FROM event_mark"));
    if (epoch >= UINT32_MAX - 1 || mark >= UINT32_MAX - 2 * GS_GENERATION_BLOCK) {
        return gs_error(GS_OUT_OF_RANGE, "store: coordinator epochs or generations are used up");
    }
    if (sequence > INT64_MAX - 2 * GS_EVENT_BLOCK) {
        return gs_error(GS_OUT_OF_RANGE, "store: numbers of events are used up");
    }
    GS_TRY(gs_database_read_number(database, lived_ms, "SELECT ms FROM lived"));
    GS_TRY(gs_database_read_text(database, start->cluster, sizeof start->cluster, "SELECT id FROM cluster"));
    char sql[340];
    snprintf(sql, sizeof sql,
             "UPDATE meta SET schema_version = %d, coord_epoch = %lld, generation_mark = %lld;"
             "UPDATE event_mark SET sequence = %lld;"
             "INSERT OR REPLACE INTO life SELECT %lld, random() & 0x7fffffffffffffff | 1;"
             "DELETE FROM life WHERE epoch < %lld",
             SCHEMA_VERSION, (long long)epoch + 1, (long long)mark + GS_GENERATION_BLOCK,
             (long long)sequence + GS_EVENT_BLOCK, (long long)epoch + 1,
             (long long)epoch + 1 - LIVES_KEPT);
    GS_TRY(gs_database_run(database, sql, "count start"));
    int64_t life = 0;
    GS_TRY(gs_database_read_number(database, &life, "SELECT id FROM life ORDER BY epoch DESC LIMIT 1"));
    // Earlier versions left rows of checkpoints behind the deletion of their job.
    GS_TRY(gs_database_run(database, "DELETE FROM checkpoint WHERE job NOT IN (SELECT id FROM job)", "prune checkpoints"));
    GS_TRY(gs_database_run(database, "COMMIT", "commit"));
    start->life = (uint64_t)life;
    start->coordinator_epoch = (uint32_t)(epoch + 1);
    start->first_generation = (uint32_t)mark;
    start->next_sequence = (uint64_t)sequence + 1;
    return gs_ok();
}
