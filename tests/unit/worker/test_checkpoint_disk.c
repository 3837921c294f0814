// Rows D1, D2, D5 and D7 of docs/faults.md for a save: each of its calls that changes the disk fails in its turn, as on a disk that is
// full, gives an error, or belongs to somebody else; or the process is killed at it. No failure leaves a checkpoint, or anything else, and the
// one of before can be read.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/random.h"
#include "kernels/device.h"
#include "rpc/checkpoint/checkpoint_commit.h"
#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"
#include "worker/checkpoint/checkpoint.h"

#define CLUSTER "c-home"
#define MOST_CALLS 200

// What the calls of a save do to the disk.
enum { MAKES = 1, WRITES = 2, SYNCS = 4, CLOSES = 8, NAMES = 16, ALL = 31 };

// The one of these kinds that is `at` the number fails with `error`, or ends the process. at 0: none.
static struct {
    int kinds, at, seen, error;
    bool lasts;  // and so do those behind it
    bool kills;
} trouble;

static bool strikes(int kind) {
    if (!trouble.at || !(trouble.kinds & kind) || ++trouble.seen < trouble.at) return false;
    if (trouble.seen > trouble.at && !trouble.lasts) return false;
    if (trouble.kills) raise(SIGKILL);
    errno = trouble.error;
    return true;
}

int __real_openat(int directory, const char *name, int flags, ...);
int __wrap_openat(int directory, const char *name, int flags, ...);
int __wrap_openat(int directory, const char *name, int flags, ...) {
    mode_t mode = 0;
    va_list more;
    va_start(more, flags);
    if (flags & O_CREAT) mode = va_arg(more, mode_t);
    va_end(more);
    return (flags & O_CREAT) && strikes(MAKES) ? -1 : __real_openat(directory, name, flags, mode);
}

int __real_mkdirat(int directory, const char *name, mode_t mode);
int __wrap_mkdirat(int directory, const char *name, mode_t mode);
int __wrap_mkdirat(int directory, const char *name, mode_t mode) { return strikes(MAKES) ? -1 : __real_mkdirat(directory, name, mode); }

int __real_posix_fallocate(int file, off_t at, off_t bytes);
int __wrap_posix_fallocate(int file, off_t at, off_t bytes);
int __wrap_posix_fallocate(int file, off_t at, off_t bytes) {
    return strikes(WRITES) ? trouble.error : __real_posix_fallocate(file, at, bytes);
}

ssize_t __real_write(int file, const void *data, size_t bytes);
ssize_t __wrap_write(int file, const void *data, size_t bytes);
// The half of it, first: a disk is full in the middle.
ssize_t __wrap_write(int file, const void *data, size_t bytes) {
    if (!strikes(WRITES)) return __real_write(file, data, bytes);
    if (bytes > 1) (void)!__real_write(file, data, bytes / 2);
    errno = trouble.error;
    return -1;
}

int __real_fsync(int file);
int __wrap_fsync(int file);
int __wrap_fsync(int file) { return strikes(SYNCS) ? -1 : __real_fsync(file); }

int __real_close(int file);
int __wrap_close(int file);
// Of what was written: it is closed all the same.
int __wrap_close(int file) {
    int flags = fcntl(file, F_GETFL);
    bool is_written = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY, fails = is_written && strikes(CLOSES);
    int closed = __real_close(file);
    if (fails) errno = trouble.error;
    return fails ? -1 : closed;
}

int __real_renameat(int from, const char *old, int to, const char *name);
int __wrap_renameat(int from, const char *old, int to, const char *name);
int __wrap_renameat(int from, const char *old, int to, const char *name) {
    return strikes(NAMES) ? -1 : __real_renameat(from, old, to, name);
}

typedef struct fixture {
    gs_device *device;
    gs_job_spec spec;
    gs_trainer_state state;
    gs_state_snapshot snapshot;
    gs_digest digest;          // of the state that is saved
    char *dir, job[600];
    char former[700];          // a checkpoint that is there already
} fixture;

static void decode_spec(gs_job_spec *spec) {
    static const char text[] = "{\"name\":\"c\",\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[30,20,4]}},\"steps\":{\"target\":9}}";
    gs_json *json;
    gs_field_errors errors = {0};
    assert_ok(gs_json_parse(&json, text, strlen(text)));
    assert_ok(gs_job_spec_decode(spec, json, &errors));
    gs_json_release(json);
}

static void scramble(gs_trainer_state *state, int64_t step) {
    for (size_t i = 0; i < state->num_tensors; i++) {
        unsigned char *data = calloc(1, state->tensors[i].bytes + 1);
        assert_non_null(data);
        if (state->tensors[i].dtype == GS_FP32)
            gs_random_fill_normal((float *)(void *)data, state->tensors[i].bytes / 4, (gs_random_key){(uint64_t)step, i}, 0, 0, 1);
        assert_ok(gs_trainer_state_write(state, i, data));
        free(data);
    }
    state->position = (gs_position){.step = step, .consumed = step * 8};
}

static gs_checkpoint_result save(const fixture *f, int part, int num_parts) {
    gs_checkpoint_result result;
    gs_checkpoint_options options = {.directory = f->job,
                                     .job = "j-000000000001",
                                     .cluster = CLUSTER,
                                     .spec = &f->spec,
                                     .request = {.reason = "periodic", .world_size = 2, .part = part, .num_parts = num_parts, .generation = 3}};
    gs_status status = gs_checkpoint_save(&result, &f->snapshot, &options);
    assert_int_equal(status.code, result.status.code);
    return result;
}

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    decode_spec(&f->spec);
    assert_ok(gs_device_open(&f->device, "cpu", &(gs_device_options){.num_threads = 1}));
    assert_ok(gs_trainer_state_init(&f->state, &f->spec, f->device));
    assert_ok(gs_state_snapshot_init(&f->snapshot, &f->state, (gs_share_range){0}));
    f->dir = gs_temp_dir_make();
    snprintf(f->job, sizeof f->job, "%s/job", f->dir);
    scramble(&f->state, 40);
    assert_ok(gs_state_snapshot_take(&f->snapshot, &f->state));
    gs_checkpoint_result former = save(f, 0, 1);
    assert_ok(former.status);
    snprintf(f->former, sizeof f->former, "%s/%s", f->job, former.name);
    scramble(&f->state, 41);
    assert_ok(gs_state_snapshot_take(&f->snapshot, &f->state));
    f->digest = gs_trainer_state_digest(&f->state);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    gs_temp_dir_remove(f->dir);
    gs_state_snapshot_release(&f->snapshot);
    gs_trainer_state_release(&f->state);
    gs_device_close(f->device);
    free(f);
    return 0;
}

static void path_of(char path[700], const fixture *f, const char *name) { snprintf(path, 700, "%s/%s", f->job, name); }

// The names of all that is there, in an order.
static void list_all(char *text, size_t text_bytes, const fixture *f) {
    char command[700];
    snprintf(command, sizeof command, "cd '%s' && find . | sort", f->dir);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t length = fread(text, 1, text_bytes - 1, pipe);
    text[length] = '\0';
    assert_int_equal(pclose(pipe), 0);
}

static void expect_loads(fixture *f, const char *path, int64_t step) {
    assert_ok(gs_checkpoint_load(&f->state, path, &f->spec));
    assert_int_equal(f->state.position.step, step);
    if (step == 41) assert_true(gs_digest_equal(f->digest, gs_trainer_state_digest(&f->state)));
}

static void expect_nothing_left(fixture *f, const char *before, const char *what, gs_status status) {
    static char after[20000];
    list_all(after, sizeof after, f);
    if (strcmp(after, before) != 0) fail_msg("%s %d failed (%s), and left\n%s\nwhere there was\n%s", what, trouble.at, status.message, after, before);
    expect_loads(f, f->former, 40);
}

typedef struct trouble_row {
    const char *what;
    int kinds, error;
    const char *cause, *words;
    int least;  // calls of a save that it can strike
} trouble_row;

static const trouble_row rows[] = {
    {"a full disk at a new file", MAKES, ENOSPC, "space", "No space left", 3},
    {"a full disk at a write", WRITES, ENOSPC, "space", "No space left", 4},
    {"a full disk at a sync", SYNCS, ENOSPC, "space", "No space left", 5},
    {"a full disk at a close", CLOSES, ENOSPC, "space", "No space left", 2},
    {"a full disk at a rename", NAMES, ENOSPC, "space", "No space left", 2},
    {"no quota at a write", WRITES, EDQUOT, "space", "quota", 4},
    {"an error at a new file", MAKES, EIO, "io", "Input/output error", 3},
    {"an error at a write", WRITES, EIO, "io", "Input/output error", 4},
    {"an error at a sync", SYNCS, EIO, "io", "Input/output error", 5},
    {"an error at a close", CLOSES, EIO, "io", "Input/output error", 2},
    {"an error at a rename", NAMES, EIO, "io", "Input/output error", 2},
};

static void begin_trouble(const trouble_row *row, int at, bool lasts) {
    trouble.kinds = row->kinds;
    trouble.lasts = lasts;
    trouble.error = row->error;
    trouble.seen = 0;
    trouble.at = at;
}

// Whether it struck.
static bool end_trouble(void) {
    bool has_struck = trouble.at && trouble.seen >= trouble.at;
    trouble.seen = 0;
    trouble.kinds = 0;
    return has_struck;
}

static void expect_cause(const gs_checkpoint_result *result, const trouble_row *row) {
    if (!result->status.code) fail_msg("%s %d: the save says that all is well", row->what, trouble.at);
    if (strcmp(result->cause, row->cause) != 0 || !strstr(result->status.message, row->words))
        fail_msg("%s %d: \"%s\", because of \"%s\"", row->what, trouble.at, result->status.message, result->cause);
}

static void fail_saves(fixture *f, const trouble_row *row, bool lasts) {
    static char before[20000];
    bool has_struck = true;
    int at = 0;
    list_all(before, sizeof before, f);
    while (has_struck && at < MOST_CALLS) {
        begin_trouble(row, ++at, lasts);
        gs_checkpoint_result result = save(f, 0, 1);
        has_struck = end_trouble();
        if (has_struck) {
            expect_cause(&result, row);
            expect_nothing_left(f, before, row->what, result.status);
            continue;
        }
        char path[700];
        path_of(path, f, result.name);
        assert_ok(result.status);
        expect_loads(f, path, 41);
        gs_temp_dir_remove(strdup(path));
    }
    if (at <= row->least) fail_msg("%s: a save has only %d of these calls", row->what, at - 1);
}

static void a_save_that_fails_says_why_and_leaves_nothing(void **state) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fail_saves(*state, &rows[i], false);
        fail_saves(*state, &rows[i], true);
    }
}

// The others of it have theirs, and the next try has all.
static void a_part_that_fails_says_why_and_leaves_nothing(void **state) {
    fixture *f = *state;
    static char before[20000];
    gs_checkpoint_result other = save(f, 1, 2);
    assert_ok(other.status);
    list_all(before, sizeof before, f);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool has_struck = true;
        for (int at = 1; has_struck && at < MOST_CALLS; at++) {
            begin_trouble(&rows[i], at, at % 2);
            gs_checkpoint_result result = save(f, 0, 2);
            has_struck = end_trouble();
            if (has_struck) {
                expect_cause(&result, &rows[i]);
                expect_nothing_left(f, before, rows[i].what, result.status);
                continue;
            }
            assert_ok(result.status);
            char path[700], file[800];
            path_of(path, f, result.name);
            snprintf(file, sizeof file, "%s/part-0.safetensors", path);
            assert_int_equal(unlink(file), 0);
            snprintf(file, sizeof file, "%s/part-0.json", path);
            assert_int_equal(unlink(file), 0);
        }
        assert_false(has_struck);
    }
}

static bool is_checkpoint(const char *path) {
    char manifest[800];
    snprintf(manifest, sizeof manifest, "%s/MANIFEST.json", path);
    return access(manifest, F_OK) == 0;
}

static gs_status commit(const char *path) {
    gs_json *manifest;
    uint64_t bytes;
    gs_status status = gs_checkpoint_commit(&manifest, &bytes, path);
    gs_json_release(manifest);
    return status;
}

// Whether it struck.
static bool fail_commit(fixture *f, const trouble_row *row, int at, bool lasts) {
    static char before[20000];
    char path[700];
    gs_checkpoint_result parts[] = {save(f, 0, 2), save(f, 1, 2)};
    assert_ok(parts[0].status);
    assert_ok(parts[1].status);
    path_of(path, f, parts[0].name);
    list_all(before, sizeof before, f);
    begin_trouble(row, at, lasts);
    gs_status status = commit(path);
    bool has_struck = end_trouble();
    // One that has its name already is synced once more, and counts when that is done.
    bool is_named = is_checkpoint(path);
    if (has_struck && !is_named) expect_nothing_left(f, before, row->what, status);
    if (has_struck && !status.code && (lasts || !is_named)) fail_msg("%s %d: the manifest is said to be there", row->what, at);
    if (status.code && !strstr(status.message, row->words)) fail_msg("%s %d: %s", row->what, at, status.message);
    if (status.code == GS_DATA_LOSS) fail_msg("%s %d: taken for damage: %s", row->what, at, status.message);
    if (status.code) assert_ok(commit(path));
    expect_loads(f, path, 41);
    gs_temp_dir_remove(strdup(path));
    return has_struck;
}

// Who makes the manifest of parts: there is none, the parts stay, and the next try makes it of them.
static void a_manifest_that_fails_leaves_the_parts(void **state) {
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        int at = 1;
        while (at < MOST_CALLS && fail_commit(*state, &rows[i / 2], at, i % 2)) at++;
        assert_int_not_equal(at, MOST_CALLS);
    }
}

// Each directory but the former one: whole, or no checkpoint. How many are whole.
static int look_at_all(fixture *f) {
    int num_whole = 0;
    DIR *list = opendir(f->job);
    assert_non_null(list);
    for (const struct dirent *entry; (entry = readdir(list));) {
        char path[700];
        path_of(path, f, entry->d_name);
        if (strncmp(entry->d_name, "step-", 5) != 0 || !strcmp(path, f->former)) continue;
        if (is_checkpoint(path)) {
            expect_loads(f, path, 41);
            num_whole++;
        } else {
            gs_status status = gs_checkpoint_load(&f->state, path, &f->spec);
            assert_int_equal(status.code, GS_NOT_FOUND);
        }
        gs_temp_dir_remove(strdup(path));
    }
    closedir(list);
    return num_whole;
}

// In a process that is killed at its at-th call of any kind. False: it had fewer.
static bool save_and_die(fixture *f, int num_parts, int at) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        gs_checkpoint_result last = {0};
        trouble.kinds = ALL;
        trouble.seen = 0;
        trouble.at = at;
        trouble.kills = true;
        for (int part = 0; part < num_parts; part++) last = save(f, part, num_parts);
        char path[700];
        path_of(path, f, last.name);
        gs_status status = num_parts > 1 ? commit(path) : last.status;
        _exit(status.code ? 1 : 0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    if (WIFEXITED(how)) assert_int_equal(WEXITSTATUS(how), 0);
    else assert_int_equal(WTERMSIG(how), SIGKILL);
    return WIFSIGNALED(how);
}

static void a_save_that_is_killed_anywhere_is_whole_or_none(void **state) {
    fixture *f = *state;
    for (int num_parts = 1; num_parts <= 2; num_parts++) {
        int num_kills = 0, num_whole = 0;
        while (num_kills < MOST_CALLS && save_and_die(f, num_parts, num_kills + 1)) {
            num_kills++;
            expect_loads(f, f->former, 40);
            num_whole += look_at_all(f);
        }
        assert_int_equal(look_at_all(f), 1);  // of the one that nobody killed
        print_message("%d parts: %d kills, behind %d of them it was whole\n", num_parts, num_kills, num_whole);
        assert_in_range(num_kills, 20 * num_parts, MOST_CALLS - 1);
        assert_in_range(num_whole, 1, num_kills / 2);
    }
}

enum { SOMEBODY = 54321 };

// As somebody else, who tells what went wrong.
static void save_as_somebody(char *words, size_t words_bytes, fixture *f) {
    int pipes[2], how;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (geteuid() == 0 && (setgroups(0, NULL) != 0 || setgid(SOMEBODY) != 0 || setuid(SOMEBODY) != 0)) _exit(100);
        gs_checkpoint_result result = save(f, 0, 1);
        (void)!write(pipes[1], result.status.message, strlen(result.status.message));
        _exit(result.status.code);
    }
    close(pipes[1]);
    ssize_t length = read(pipes[0], words, words_bytes - 1);
    words[length > 0 ? length : 0] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), GS_PERMISSION_DENIED);
}

static void expect_refused(fixture *f, const char *where, const char *why) {
    static char before[20000], after[20000], words[400];
    list_all(before, sizeof before, f);
    save_as_somebody(words, sizeof words, f);
    list_all(after, sizeof after, f);
    if (!strstr(words, where) || !strstr(words, why)) fail_msg("\"%s\" names neither %s nor \"%s\"", words, where, why);
    assert_string_equal(after, before);
    expect_loads(f, f->former, 40);
}

// Its own directory, which it may not write to; somebody else's; a file system that takes nothing.
static void a_place_that_takes_nothing_is_named(void **state) {
    fixture *f = *state;
    bool is_root = geteuid() == 0;
    uid_t user = is_root ? SOMEBODY : getuid();
    assert_int_equal(chmod(f->dir, 0755), 0);
    assert_int_equal(chown(f->job, user, (gid_t)-1), 0);
    assert_int_equal(chmod(f->job, 0500), 0);
    if (is_root) {
        char command[800];
        snprintf(command, sizeof command, "chmod -R a+rX '%s'", f->former);
        assert_int_equal(system(command), 0);
    }
    expect_refused(f, f->job, "Permission denied");
    assert_int_equal(chmod(f->job, 0755), 0);
    if (!is_root) {
        print_message("skipped in part: other users, and mounts, are root's\n");
        return;
    }
    assert_int_equal(chown(f->job, 0, 0), 0);
    expect_refused(f, f->job, "Permission denied");
    assert_int_equal(chown(f->job, SOMEBODY, SOMEBODY), 0);
    if (mount(f->job, f->job, NULL, MS_BIND, NULL) != 0) {
        print_message("skipped in part: nothing can be mounted here (%s)\n", strerror(errno));
        return;
    }
    int failed = mount("none", f->job, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL);
    if (!failed) expect_refused(f, f->job, "Read-only file system");
    umount(f->job);
    assert_int_equal(failed, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_save_that_fails_says_why_and_leaves_nothing),
        TEST(a_part_that_fails_says_why_and_leaves_nothing),
        TEST(a_manifest_that_fails_leaves_the_parts),
        TEST(a_save_that_is_killed_anywhere_is_whole_or_none),
        TEST(a_place_that_takes_nothing_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
