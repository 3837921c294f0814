#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/store/transaction.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

#define MAX_JOBS 64
#define MIB ((size_t)1 << 20)

// A job's row, then a key beside it.
typedef struct put {
    gs_write base;
    uint64_t job;
    size_t bytes;    // of the row
    bool fails;      // behind its first row
} put;

typedef struct fixture {
    char *directory, path[600];
    gs_job_store *store;
    bool jobs[MAX_JOBS], keys[MAX_JOBS];  // that are stored
} fixture;

// In the place of the C library's, also for SQLite: so many of the next fail, as on a disk that gives an error.
static int num_to_fail;

static int sync_or_fail(long call, int file) {
    if (num_to_fail == 0) return (int)syscall(call, file);
    num_to_fail--;
    errno = EIO;
    return -1;
}

#define FOR_ALL __attribute__((visibility("default")))
FOR_ALL int fsync(int file) { return sync_or_fail(SYS_fsync, file); }
FOR_ALL int fdatasync(int file) { return sync_or_fail(SYS_fdatasync, file); }

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    f->directory = gs_temp_dir_make();
    snprintf(f->path, sizeof f->path, "%s/store.db", f->directory);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    gs_temp_dir_remove(f->directory);
    free(f);
    return 0;
}

static void open_store(fixture *f) {
    gs_store_start start;
    assert_ok(gs_job_store_open(&f->store, &start, f->path));
}

static gs_status write_both(gs_write *base, gs_job_store *store) {
    const put *it = (const put *)base;
    char key[30], *body = malloc(it->bytes + 1);
    memset(body, 'x', it->bytes);
    body[it->bytes] = '\0';
    snprintf(key, sizeof key, "k%llu", (unsigned long long)it->job);
    gs_status status = gs_job_store_put_job(store, it->job, body);
    free(body);
    if (!status.code && it->fails) status = gs_error(GS_INTERNAL, "no key for this one");
    if (!status.code) status = gs_job_store_put_key(store, key, "print", it->job, 99);
    return status;
}

static put put_of(uint64_t job, size_t bytes) {
    return (put){.base = {.run = write_both, .lane = GS_LANE_ROWS}, .job = job, .bytes = bytes};
}

static void run(fixture *f, put *puts, size_t count) {
    gs_write *writes[MAX_JOBS];
    for (size_t i = 0; i < count; i++) writes[i] = &puts[i].base;
    gs_transaction_run(f->store, writes, count);
}

static void see_job(void *ctx, const gs_store_row *row) { ((fixture *)ctx)->jobs[row->id] = true; }
static void see_key(void *ctx, const gs_store_row *row) { ((fixture *)ctx)->keys[row->job] = true; }

// As the next start finds it.
static void look(fixture *f) {
    gs_job_store_close(f->store);
    open_store(f);
    memset(f->jobs, 0, sizeof f->jobs);
    memset(f->keys, 0, sizeof f->keys);
    assert_ok(gs_job_store_load_jobs(f->store, see_job, f));
    assert_ok(gs_job_store_load_keys(f->store, see_key, f));
}

static void copy_file(const char *to, const char *from) {
    char block[4096];
    size_t bytes;
    FILE *source = fopen(from, "rb"), *target = fopen(to, "wb");
    assert_true(source && target);
    while ((bytes = fread(block, 1, sizeof block, source)) > 0) assert_int_equal(fwrite(block, 1, bytes, target), bytes);
    fclose(source);
    assert_int_equal(fclose(target), 0);
}

// As the next process finds it when this one is killed now: all that it has written, synced or not.
static void look_behind_a_kill(fixture *f) {
    char log[620];
    int left_to_fail = num_to_fail;
    fixture next = {.directory = f->directory};
    snprintf(next.path, sizeof next.path, "%s/killed.db", f->directory);
    snprintf(log, sizeof log, "%s-wal", f->path);
    copy_file(next.path, f->path);
    snprintf(next.path, sizeof next.path, "%s/killed.db-wal", f->directory);
    copy_file(next.path, log);
    snprintf(next.path, sizeof next.path, "%s/killed.db", f->directory);
    num_to_fail = 0;
    open_store(&next);
    assert_ok(gs_job_store_load_jobs(next.store, see_job, &next));
    assert_ok(gs_job_store_load_keys(next.store, see_key, &next));
    gs_job_store_close(next.store);
    num_to_fail = left_to_fail;
    memcpy(f->jobs, next.jobs, sizeof f->jobs);
    memcpy(f->keys, next.keys, sizeof f->keys);
}

static void check_stored(const fixture *f, const put *it) {
    bool wanted = !it->base.status.code;
    if (f->jobs[it->job] == wanted && f->keys[it->job] == wanted) return;
    fail_msg("write %llu says \"%s\"; its job is %s, its key %s", (unsigned long long)it->job, it->base.status.message,
             f->jobs[it->job] ? "stored" : "missing", f->keys[it->job] ? "stored" : "missing");
}

static void a_write_that_fails_leaves_nothing_of_itself(void **state) {
    fixture *f = *state;
    put puts[] = {put_of(1, 10), put_of(2, 10), put_of(3, 10)};
    puts[1].fails = true;
    open_store(f);
    run(f, puts, 3);
    look(f);
    assert_int_equal(puts[1].base.status.code, GS_INTERNAL);
    assert_ok(puts[0].base.status);
    assert_ok(puts[2].base.status);
    for (int i = 0; i < 3; i++) check_stored(f, &puts[i]);
    gs_job_store_close(f->store);
}

// Of a row that is larger than the disk, in the midst of others; then of small ones until nothing more fits.
static void what_a_full_disk_refuses_is_not_stored(void **state) {
    fixture *f = *state;
    if (mount("none", f->directory, "tmpfs", 0, "size=768k") < 0) {
        print_message("skipped: no tmpfs can be mounted here (%s)\n", strerror(errno));
        skip();
    }
    put first[] = {put_of(1, 10), put_of(2, 4 * MIB), put_of(3, 10)}, then[] = {put_of(4, 10), put_of(5, 10)}, rest[40];
    open_store(f);
    run(f, first, 3);
    run(f, then, 2);
    int refused = 0;
    for (int i = 0; i < 40; i++) rest[i] = put_of(10 + (uint64_t)i, 20000);
    for (int i = 0; i < 40; i += 2) {
        run(f, &rest[i], 2);
        refused += rest[i].base.status.code != GS_OK;
    }
    gs_job_store_close(f->store);
    // Room for the next start, as its operator makes.
    assert_int_equal(mount("none", f->directory, "tmpfs", MS_REMOUNT, "size=8m"), 0);
    open_store(f);
    look(f);
    gs_job_store_close(f->store);
    umount(f->directory);
    assert_int_equal(first[1].base.status.code, GS_RESOURCE_EXHAUSTED);
    assert_ok(then[0].base.status);
    assert_true(refused > 0);
    for (int i = 0; i < 3; i++) check_stored(f, &first[i]);
    for (int i = 0; i < 2; i++) check_stored(f, &then[i]);
    for (int i = 0; i < 40; i++) check_stored(f, &rest[i]);
}

// The log had got all of it before the disk said no, and the next start took it for committed.
static void what_a_failed_sync_refuses_is_not_there_after_a_kill(void **state) {
    fixture *f = *state;
    put first = put_of(1, 10), refused[] = {put_of(2, 10), put_of(3, 20000)}, then = put_of(4, 10);
    open_store(f);
    run(f, &first, 1);
    num_to_fail = 1;
    run(f, refused, 2);
    assert_int_equal(num_to_fail, 0);
    assert_false(gs_job_store_is_in_doubt(f->store));
    look_behind_a_kill(f);
    assert_ok(first.base.status);
    check_stored(f, &first);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(refused[i].base.status.code, GS_UNAVAILABLE);
        check_stored(f, &refused[i]);
    }
    run(f, &then, 1);
    assert_ok(then.base.status);
    look_behind_a_kill(f);
    for (int i = 0; i < 2; i++) check_stored(f, &refused[i]);
    check_stored(f, &then);
    gs_job_store_close(f->store);
}

static gs_status write_nothing(gs_write *base, gs_job_store *store) {
    (void)base;
    return gs_job_store_prune_events(store, 0);
}

// It says so, takes nothing more meanwhile, and is of one mind again before anything else is answered.
static void what_cannot_be_taken_back_is_said_to_be_in_doubt(void **state) {
    fixture *f = *state;
    put first = put_of(1, 10), doubted = put_of(2, 10), meanwhile = put_of(3, 10);
    gs_write nothing = {.run = write_nothing}, *list = &nothing;
    open_store(f);
    run(f, &first, 1);
    num_to_fail = 1000;
    run(f, &doubted, 1);
    assert_int_equal(doubted.base.status.code, GS_UNAVAILABLE);
    assert_non_null(strstr(doubted.base.status.message, "the next start may find it"));
    assert_true(gs_job_store_is_in_doubt(f->store));
    run(f, &meanwhile, 1);
    assert_int_equal(meanwhile.base.status.code, GS_UNAVAILABLE);
    look_behind_a_kill(f);
    check_stored(f, &meanwhile);
    check_stored(f, &first);
    num_to_fail = 0;
    gs_transaction_run(f->store, &list, 1);  // has no page to write by itself
    assert_ok(nothing.status);
    assert_false(gs_job_store_is_in_doubt(f->store));
    look_behind_a_kill(f);
    check_stored(f, &doubted);
    check_stored(f, &first);
    gs_job_store_close(f->store);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_write_that_fails_leaves_nothing_of_itself),
        TEST(what_a_full_disk_refuses_is_not_stored),
        TEST(what_a_failed_sync_refuses_is_not_there_after_a_kill),
        TEST(what_cannot_be_taken_back_is_said_to_be_in_doubt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
