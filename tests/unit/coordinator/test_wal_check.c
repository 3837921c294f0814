// A bit of the write-ahead log is flipped, at each place that means something and at some of all others: whatever SQLite then
// does not read any more, but for the last transaction, is told.
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "coordinator/store/database/wal_check.h"
#include "core/log.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

#define NUM_ROWS 6  // of a transaction each
#define HEADER_BYTES 32
#define FRAME_HEADER_BYTES 24
#define FRAME_BYTES (FRAME_HEADER_BYTES + 4096)
#define MOST_BYTES (200 * FRAME_BYTES)
#define PAGE_STRIDE 211

static int read_to_fail;  // the so-many-th of those to come; 0: none

ssize_t __real_pread(int file, void *data, size_t bytes, off_t at);
ssize_t __wrap_pread(int file, void *data, size_t bytes, off_t at);
ssize_t __wrap_pread(int file, void *data, size_t bytes, off_t at) {
    if (read_to_fail == 0 || --read_to_fail > 0) return __real_pread(file, data, bytes, at);
    errno = EIO;
    return -1;
}

typedef struct copy {
    char *directory, database[600], log[620];
    uint8_t database_bytes[40 * 4096], log_bytes[MOST_BYTES];
    size_t num_database, num_log;
} copy;

static size_t read_file(const char *path, uint8_t *bytes, size_t most) {
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    size_t count = fread(bytes, 1, most, file);
    assert_true(count < most);
    fclose(file);
    return count;
}

static void write_file(const char *path, const uint8_t *bytes, size_t count) {
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

static void run(sqlite3 *database, const char *sql) {
    if (sqlite3_exec(database, sql, NULL, NULL, NULL) != SQLITE_OK) fail_msg("%s: %s", sql, sqlite3_errmsg(database));
}

static sqlite3 *open_database(const copy *it) {
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(it->database, &database), SQLITE_OK);
    return database;
}

// As a kill leaves it. `checkpoints`: the log was begun anew, and what is behind its end is of before.
static void make(copy *it, bool checkpoints) {
    sqlite3 *database = open_database(it);
    run(database, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0");
    run(database, "CREATE TABLE row(id INTEGER PRIMARY KEY, text TEXT)");
    if (checkpoints) {
        for (int i = 0; i < 20; i++) run(database, "INSERT INTO row VALUES(NULL, hex(randomblob(3000)))");
        run(database, "DELETE FROM row");
        run(database, "PRAGMA wal_checkpoint(RESTART)");
    }
    for (int i = 0; i < NUM_ROWS; i++) run(database, "INSERT INTO row VALUES(NULL, hex(randomblob(400)))");
    it->num_database = read_file(it->database, it->database_bytes, sizeof it->database_bytes);
    it->num_log = read_file(it->log, it->log_bytes, sizeof it->log_bytes);
    sqlite3_close(database);
}

static void restore(const copy *it) {
    char index[640];
    snprintf(index, sizeof index, "%s-shm", it->database);
    unlink(index);
    write_file(it->database, it->database_bytes, it->num_database);
    write_file(it->log, it->log_bytes, it->num_log);
}

// As many as SQLite finds; -1: it opens nothing.
static int count_rows(const copy *it) {
    sqlite3 *database = open_database(it);
    sqlite3_stmt *statement = NULL;
    int count = -1;
    if (sqlite3_prepare_v2(database, "SELECT count(*) FROM row", -1, &statement, NULL) == SQLITE_OK && sqlite3_step(statement) == SQLITE_ROW)
        count = sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(database);
    return count;
}

// Then the frame passes for one in the middle of a transaction, and it takes two behind it to show that it was not.
static bool hides_commit(const copy *it, size_t at) {
    size_t in_frame = at < HEADER_BYTES ? 0 : (at - HEADER_BYTES) % FRAME_BYTES;
    const uint8_t *size = it->log_bytes + at - in_frame + 4;
    return in_frame >= 4 && in_frame < 8 && !size[0] && !size[1] && !size[2] && !size[3];
}

static int num_told, num_lost;

static void flip(copy *it, size_t at) {
    uint8_t bit = (uint8_t)(1u << (at % 8));
    it->log_bytes[at] ^= bit;
    restore(it);
    gs_status status = gs_wal_check(it->database);
    if (status.code) assert_int_equal(status.code, GS_DATA_LOSS);
    int count = count_rows(it), known = NUM_ROWS - 1 - hides_commit(it, at);
    if (count < known && !status.code) fail_msg("byte %zu: %d rows of %d, and not a word", at, count, NUM_ROWS);
    num_told += status.code != GS_OK;
    num_lost += count < NUM_ROWS;
    it->log_bytes[at] ^= bit;
}

static copy *begin(bool checkpoints) {
    copy *it = calloc(1, sizeof *it);
    it->directory = gs_temp_dir_make();
    snprintf(it->database, sizeof it->database, "%s/some.db", it->directory);
    snprintf(it->log, sizeof it->log, "%s-wal", it->database);
    make(it, checkpoints);
    restore(it);
    assert_ok(gs_wal_check(it->database));
    assert_int_equal(count_rows(it), NUM_ROWS);
    return it;
}

static void end(copy *it) {
    gs_temp_dir_remove(it->directory);
    free(it);
}

static void what_is_not_read_any_more_is_told(void **state) {
    (void)state;
    for (int checkpoints = 0; checkpoints < 2; checkpoints++) {
        copy *it = begin(checkpoints);
        num_told = num_lost = 0;
        for (size_t at = 0; at < it->num_log; at++) {
            size_t in_frame = at < HEADER_BYTES ? 0 : (at - HEADER_BYTES) % FRAME_BYTES;
            bool has_meaning = in_frame < FRAME_HEADER_BYTES && at < HEADER_BYTES + 20 * FRAME_BYTES;
            if (has_meaning || at % PAGE_STRIDE == 0) flip(it, at);
        }
        print_message("%d flips lost something, %d were told\n", num_lost, num_told);
        assert_true(num_told > 50);
        end(it);
    }
}

// Whatever a kill or a loss of power leaves of the last transaction is no damage.
static void a_log_that_is_cut_off_is_none(void **state) {
    (void)state;
    for (int checkpoints = 0; checkpoints < 2; checkpoints++) {
        copy *it = begin(checkpoints);
        size_t whole = it->num_log;
        for (size_t cut = 0; cut < whole; cut += cut < HEADER_BYTES ? 7 : FRAME_BYTES / 3) {
            it->num_log = cut;
            restore(it);
            assert_ok(gs_wal_check(it->database));
        }
        end(it);
    }
}

// Of the last transaction power may leave any of its frames, also the last without the first.
static void any_part_of_the_last_transaction_may_be_missing(void **state) {
    (void)state;
    copy *it = begin(false);
    size_t before = it->num_log;
    restore(it);
    sqlite3 *database = open_database(it);
    run(database, "PRAGMA wal_autocheckpoint = 0; INSERT INTO row SELECT NULL, hex(randomblob(1500)) FROM row");
    it->num_log = read_file(it->log, it->log_bytes, sizeof it->log_bytes);
    sqlite3_close(database);
    size_t num_frames = (it->num_log - before) / FRAME_BYTES;
    uint8_t *whole = malloc(it->num_log);
    memcpy(whole, it->log_bytes, it->num_log);
    assert_in_range(num_frames, 4, 12);
    for (unsigned there = 0; there < 1u << num_frames; there += 5) {
        for (size_t i = 0; i < num_frames; i++) {
            size_t at = before + i * FRAME_BYTES;
            if (there >> i & 1) memcpy(it->log_bytes + at, whole + at, FRAME_BYTES);
            else memset(it->log_bytes + at, 0, FRAME_BYTES);
        }
        restore(it);
        assert_ok(gs_wal_check(it->database));
    }
    free(whole);
    end(it);
}

// The start is refused, and tried again; a database is set aside for damage alone.
static void a_log_that_cannot_be_read_is_not_damaged(void **state) {
    (void)state;
    copy *it = begin(false);
    restore(it);
    int num_reads = 0;
    gs_status status;
    do {
        read_to_fail = ++num_reads;
        status = gs_wal_check(it->database);
        if (read_to_fail) break;  // it had fewer
        assert_int_equal(status.code, GS_UNAVAILABLE);
        assert_non_null(strstr(status.message, "Input/output error"));
    } while (num_reads < 1000);
    read_to_fail = 0;
    assert_ok(status);
    assert_in_range(num_reads, 5, 999);
    end(it);
}

static void without_a_log_nothing_is_damaged(void **state) {
    (void)state;
    assert_ok(gs_wal_check("/nonexistent/some.db"));
}

int main(void) {
    gs_log_set_level(GS_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_read_any_more_is_told),
        cmocka_unit_test(a_log_that_is_cut_off_is_none),
        cmocka_unit_test(any_part_of_the_last_transaction_may_be_missing),
        cmocka_unit_test(a_log_that_cannot_be_read_is_not_damaged),
        cmocka_unit_test(without_a_log_nothing_is_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
