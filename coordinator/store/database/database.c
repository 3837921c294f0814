#include "coordinator/store/database/database.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sqlite3.h>

#define READER_CACHE_KIB "256"
#define BUSY_MS 2000  // of somebody who looks into it with another program

struct gs_database {
    sqlite3 *handle;
    sqlite3_stmt **statements; // owned
    int num_statements;
};

static gs_status error_of(const gs_database *database, const char *what) {
    int code = sqlite3_extended_errcode(database->handle);
    const char *text = sqlite3_errmsg(database->handle);
    switch (code & 0xff) {
    case SQLITE_FULL: return gs_error(GS_RESOURCE_EXHAUSTED, "store: %s: %s", what, text);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return gs_error(GS_DATA_LOSS, "store: %s: %s", what, text);
    case SQLITE_BUSY:
    case SQLITE_IOERR: return gs_error(GS_UNAVAILABLE, "store: %s: %s", what, text);
    default: return gs_error(GS_INTERNAL, "store: %s: %s (%d)", what, text, code);
    }
}

gs_status gs_database_run(gs_database *database, const char *sql, const char *what) {
    if (sqlite3_exec(database->handle, sql, NULL, NULL, NULL) == SQLITE_OK) return gs_ok();
    return error_of(database, what);
}

static gs_status prepare_query(gs_database *database, sqlite3_stmt **statement, const char *sql) {
    *statement = NULL;
    if (sqlite3_prepare_v2(database->handle, sql, -1, statement, NULL) == SQLITE_OK) return gs_ok();
    return error_of(database, sql);
}

gs_status gs_database_read_number(gs_database *database, int64_t *value, const char *sql) {
    sqlite3_stmt *statement;
    GS_TRY(prepare_query(database, &statement, sql));
    gs_status status = gs_ok();
    if (sqlite3_step(statement) == SQLITE_ROW) *value = sqlite3_column_int64(statement, 0);
    else status = error_of(database, sql);
    sqlite3_finalize(statement);
    return status;
}

gs_status gs_database_read_text(gs_database *database, char *text, size_t text_bytes, const char *sql) {
    sqlite3_stmt *statement;
    GS_TRY(prepare_query(database, &statement, sql));
    gs_status status = gs_ok();
    if (sqlite3_step(statement) == SQLITE_ROW)
        snprintf(text, text_bytes, "%s", (const char *)sqlite3_column_text(statement, 0));
    else status = error_of(database, sql);
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

gs_status gs_database_check(gs_database *database) {
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(database->handle, "PRAGMA integrity_check(1)", -1, &statement, NULL) != SQLITE_OK)
        return error_of(database, "integrity check");
    gs_status status = gs_ok();
    if (sqlite3_step(statement) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(statement, 0);
        if (!text || tells_of_disk(text)) {
            status = gs_error(GS_UNAVAILABLE, "store: integrity check: %s", text ? text : "no answer");
        } else if (strcmp(text, "ok") != 0) {
            status = gs_error(GS_DATA_LOSS, "store: integrity check: %s", text);
        }
    } else {
        status = error_of(database, "integrity check");
    }
    sqlite3_finalize(statement);
    return status;
}

static int must_stop(void *stopping) { return atomic_load((const atomic_bool *)stopping); }

gs_status gs_database_check_file(const char *path, const atomic_bool *stopping) {
    gs_database reader = {0};
    gs_status status = gs_ok();
    int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(path, &reader.handle, flags, NULL) != SQLITE_OK) status = error_of(&reader, path);
    sqlite3_busy_timeout(reader.handle, BUSY_MS);
    sqlite3_progress_handler(reader.handle, 1000, must_stop, (void *)(uintptr_t)stopping);
    if (!status.code) status = gs_database_check(&reader);
    sqlite3_close(reader.handle);
    return atomic_load(stopping) ? gs_ok() : status;
}

void gs_database_keep_as_found(gs_database *database) {
    sqlite3_db_config(database->handle, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
}

// What is promised of a commit holds with the log alone.
static gs_status use_wal(gs_database *database) {
    char mode[16] = "";
    GS_TRY(gs_database_read_text(database, mode, sizeof mode, "PRAGMA journal_mode = WAL"));
    if (!strcmp(mode, "wal")) return gs_ok();
    return gs_error(GS_UNAVAILABLE, "store: this file system has no write-ahead log (journal mode %s)", mode);
}

static gs_status make_durable(gs_database *database) {
    sqlite3_busy_timeout(database->handle, BUSY_MS);
    GS_TRY(use_wal(database));
    return gs_database_run(database, "PRAGMA synchronous = FULL", "synchronous");
}

// Made here so that the mode is ours, whatever the umask says about SQLite's 0644.
static gs_status make_file(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) return gs_error_from_errno(errno, "store: %s", path);
    close(file);
    return gs_ok();
}

gs_status gs_database_open(gs_database **out, const char *path) {
    gs_database *database = calloc(1, sizeof *database);
    if (!database) return gs_error(GS_RESOURCE_EXHAUSTED, "store: out of memory");
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX;
    gs_status status = make_file(path);
    if (!status.code && sqlite3_open_v2(path, &database->handle, flags, NULL) != SQLITE_OK) status = error_of(database, path);
    if (!status.code) status = make_durable(database);
    if (!status.code) {
        *out = database;
        return gs_ok();
    }
    if (database->handle) gs_database_keep_as_found(database);
    gs_database_close(database);
    return status;
}

gs_status gs_database_open_reader(gs_database **out, const char *path) {
    gs_database *database = calloc(1, sizeof *database);
    if (!database) return gs_error(GS_RESOURCE_EXHAUSTED, "store: out of memory");
    int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX;
    gs_status status = gs_ok();
    if (sqlite3_open_v2(path, &database->handle, flags, NULL) != SQLITE_OK) status = error_of(database, path);
    sqlite3_busy_timeout(database->handle, BUSY_MS);
    if (!status.code) status = gs_database_run(database, "PRAGMA cache_size = -" READER_CACHE_KIB, "cache of a reader");
    if (!status.code) *out = database;
    else gs_database_close(database);
    return status;
}

void gs_database_close(gs_database *database) {
    if (!database) return;
    for (int i = 0; i < database->num_statements; i++) sqlite3_finalize(database->statements[i]);
    sqlite3_close(database->handle);
    free(database->statements);
    free(database);
}

bool gs_database_is_in_transaction(const gs_database *database) { return !sqlite3_get_autocommit(database->handle); }

void gs_database_rollback(gs_database *database) { sqlite3_exec(database->handle, "ROLLBACK", NULL, NULL, NULL); }

gs_status gs_database_prepare(gs_database *database, const char *const *texts, int num_texts) {
    database->statements = calloc((size_t)num_texts, sizeof(sqlite3_stmt *));
    if (!database->statements) return gs_error(GS_RESOURCE_EXHAUSTED, "store: out of memory");
    database->num_statements = num_texts;
    for (int i = 0; i < num_texts; i++) {
        if (sqlite3_prepare_v3(database->handle, texts[i], -1, SQLITE_PREPARE_PERSISTENT, &database->statements[i], NULL) != SQLITE_OK)
            return error_of(database, texts[i]);
    }
    return gs_ok();
}

gs_status gs_database_execute(gs_database *database, int which, const gs_store_value *values, int num_values) {
    sqlite3_stmt *statement = database->statements[which];
    for (int i = 0; i < num_values; i++) {
        int code = values[i].text ? sqlite3_bind_text(statement, i + 1, values[i].text, -1, SQLITE_STATIC)
                                  : sqlite3_bind_int64(statement, i + 1, values[i].number);
        if (code != SQLITE_OK) return error_of(database, "bind");
    }
    gs_status status = gs_ok();
    if (sqlite3_step(statement) != SQLITE_DONE) status = error_of(database, "write");
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return status;
}

int gs_database_num_changed(const gs_database *database) { return sqlite3_changes(database->handle); }

gs_status gs_database_visit(gs_database *database, const char *sql, gs_store_visit visit, void *ctx) {
    sqlite3_stmt *statement;
    GS_TRY(prepare_query(database, &statement, sql));
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
    gs_status status = code == SQLITE_DONE ? gs_ok() : error_of(database, sql);
    sqlite3_finalize(statement);
    return status;
}

gs_status gs_database_find_text(gs_database *database, char **text, const char *sql, uint64_t id) {
    sqlite3_stmt *statement;
    *text = NULL;
    GS_TRY(prepare_query(database, &statement, sql));
    gs_status status = gs_ok();
    int code = sqlite3_bind_int64(statement, 1, (int64_t)id) == SQLITE_OK ? sqlite3_step(statement) : SQLITE_ERROR;
    if (code == SQLITE_DONE) {
        status = gs_error(GS_NOT_FOUND, "store: there is no such row");
    } else if (code != SQLITE_ROW) {
        status = error_of(database, sql);
    } else {
        const char *found = (const char *)sqlite3_column_text(statement, 0);
        *text = found ? strdup(found) : NULL;
        if (!*text) status = gs_error(GS_RESOURCE_EXHAUSTED, "store: out of memory");
    }
    sqlite3_finalize(statement);
    return status;
}
