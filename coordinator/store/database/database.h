// A database in one file: SQLite in WAL mode with synchronous=FULL, and the only file that sees it. What it says becomes a
// status; it knows no table. Each is of one thread at a time.
#ifndef COORDINATOR_STORE_DATABASE_DATABASE_H
#define COORDINATOR_STORE_DATABASE_DATABASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct gs_database gs_database;

typedef struct gs_store_value {
    int64_t number;
    const char *text;  // NULL: the number
    bool is_json;      // the text
} gs_store_value;

typedef struct gs_store_row {
    uint64_t id;            // job, or sequence of an event
    uint64_t job;
    const char *key, *body; // directory and body of a checkpoint; key and fingerprint
    int64_t time_ms;        // of a key, how long it lives yet
} gs_store_row;
typedef void (*gs_store_visit)(void *ctx, const gs_store_row *row);

// Made where there is none, for its owner alone.
// RESOURCE_EXHAUSTED: the disk is full; UNAVAILABLE: it cannot be read; DATA_LOSS: this is no database, or a damaged one.
GS_NODISCARD gs_status gs_database_open(gs_database **out, const char *path);
// One that is open already, for another thread: it only reads, what is committed by then, and keeps little in memory.
GS_NODISCARD gs_status gs_database_open_reader(gs_database **out, const char *path);
void gs_database_close(gs_database *database);  // NULL is fine
// What is damaged stays as it was found: closing it moves nothing from its log.
void gs_database_keep_as_found(gs_database *database);

// Reads all of it. DATA_LOSS: it is damaged; UNAVAILABLE: the disk does not say.
GS_NODISCARD gs_status gs_database_check(gs_database *database);
// The same of a file, beside whoever uses it. OK when it was to stop.
GS_NODISCARD gs_status gs_database_check_file(const char *path, const atomic_bool *stopping);

GS_NODISCARD gs_status gs_database_run(gs_database *database, const char *sql, const char *what);
bool gs_database_is_in_transaction(const gs_database *database);
void gs_database_rollback(gs_database *database);
// The first column of the first row.
GS_NODISCARD gs_status gs_database_read_number(gs_database *database, int64_t *value, const char *sql);
GS_NODISCARD gs_status gs_database_read_text(gs_database *database, char *text, size_t text_bytes, const char *sql);

// Once, before the first is executed.
GS_NODISCARD gs_status gs_database_prepare(gs_database *database, const char *const *texts, int num_texts);
GS_NODISCARD gs_status gs_database_execute(gs_database *database, int which, const gs_store_value *values, int num_values);
int gs_database_num_changed(const gs_database *database);  // rows, by the last that was executed

// Columns of `sql`: id, job, key, body, time. Each row in its order; its texts are borrowed.
GS_NODISCARD gs_status gs_database_visit(gs_database *database, const char *sql, gs_store_visit visit, void *ctx);
// The text of the one row that `sql` finds for ?1. The caller's (free()); NOT_FOUND: there is none.
GS_NODISCARD gs_status gs_database_find_text(gs_database *database, char **text, const char *sql, uint64_t id);

#endif
