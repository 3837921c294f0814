// Bits of a real data directory are flipped, at random places of its database, log, curves, lines and manifests: the next
// coordinator starts, or refuses to and has set the database aside with all that it was; it never ends by a fault of its
// own, and no job is gone without a word.
//
// GRADSYNC_DAMAGES: how many directories (4).
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/coordinator_stage.h"
#include "tests/support/sample.h"

#define NUM_JOBS 2  // of the golden directory
#define NUM_NEW 4   // whose rows are in the log
#define MOST_FILES 64
#define MOST_FLIPS 8

typedef struct damage {
    gs_stage *stage;
    char data[600], base[600], log[600];
    char files[MOST_FILES][700];
    int num_files;
    int log_flips;  // in that of the database: one alone is told, unless it hits the last transaction
} damage;

static void run(const char *format, ...) {
    char command[2000];
    va_list values;
    va_start(values, format);
    vsnprintf(command, sizeof command, format, values);
    va_end(values);
    assert_int_equal(system(command), 0);
}

// Killed, so that its last words are in the write-ahead log.
static void make_base(damage *it) {
    gs_coordinator_process *process = &it->stage->process;
    snprintf(it->data, sizeof it->data, "%s/data", process->directory);
    snprintf(it->base, sizeof it->base, "%s/base", process->directory);
    snprintf(it->log, sizeof it->log, "%s/coordinator.log", process->directory);
    assert_int_equal(gs_coordinator_process_stop(process), 0);
    run("rm -rf '%s' && cp -r '" GRADSYNC_SOURCE_DIR "/tests/golden/v0.1-98af560/data' '%s'", it->data, it->data);
    assert_ok(gs_coordinator_process_start(process));
    for (int i = 0; i < NUM_NEW; i++)
        gs_stage_submit(it->stage, "{\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":9,\"max\":9},\"steps\":{\"target\":5}}");
    gs_coordinator_process_kill(process);
    run("cp -r '%s' '%s'", it->data, it->base);
}

static void list_files(damage *it) {
    char command[900];
    snprintf(command, sizeof command, "find '%s' -type f ! -name '*.lock' ! -name '*.safetensors' | sort", it->data);
    FILE *list = popen(command, "r");
    assert_non_null(list);
    it->num_files = 0;
    while (it->num_files < MOST_FILES && fgets(it->files[it->num_files], sizeof it->files[0], list)) {
        char *path = it->files[it->num_files++];
        path[strcspn(path, "\n")] = '\0';
    }
    assert_int_equal(pclose(list), 0);
    assert_true(it->num_files > 6);
}

// Half of all go into the database and its log.
static const char *draw_file(const damage *it) {
    for (;;) {
        const char *file = it->files[random() % it->num_files];
        if (strstr(file, "/gradsync.db") || random() % 4 == 0) return file;
    }
}

// Anywhere, or among the words of a record where the file has some: its pages are mostly empty.
static long draw_place(FILE *file) {
    static char text[1 << 20];
    rewind(file);
    size_t bytes = fread(text, 1, sizeof text, file);
    if (bytes == 0) return 0;
    size_t from = (size_t)random() % bytes;
    const char *record = random() % 2 ? memmem(text + from, bytes - from, "{\"", 2) : NULL;
    if (record) from = (size_t)(record - text) + (size_t)random() % 300;
    return (long)(from < bytes ? from : bytes - 1);
}

static void flip(damage *it, const char *path) {
    it->log_flips += strstr(path, "-wal") != NULL;
    FILE *file = fopen(path, "r+e");
    assert_non_null(file);
    long at = draw_place(file);
    fseek(file, at, SEEK_SET);
    int byte = fgetc(file);
    fseek(file, at, SEEK_SET);
    if (byte >= 0) fputc(byte ^ 1 << random() % 8, file);
    fclose(file);
    print_message("  %s at %ld\n", strrchr(path, '/') + 1, at);
}

static int count_in_log(const damage *it, const char *words) {
    char line[4000];
    int count = 0;
    FILE *log = fopen(it->log, "re");
    assert_non_null(log);
    while (fgets(line, sizeof line, log)) count += strstr(line, words) != NULL;
    fclose(log);
    return count;
}

static bool is_set_aside(const damage *it) {
    DIR *list = opendir(it->data);
    bool found = false;
    assert_non_null(list);
    for (const struct dirent *entry; (entry = readdir(list));) found |= !strncmp(entry->d_name, "gradsync.db.damaged-", 20);
    closedir(list);
    return found;
}

// Whoever looks at it may be told that it cannot be read, in whatever words.
static void look_at_everything(const damage *it, const gs_json *jobs) {
    static const gs_method methods[] = {GS_GET_JOB, GS_GET_JOB_WORKERS, GS_GET_JOB_PLAN, GS_GET_JOB_METRICS,
                                        GS_GET_JOB_SERIES, GS_READ_LOGS, GS_LIST_CHECKPOINTS, GS_LIST_EVENTS};
    for (size_t i = 0; i < gs_json_count(jobs); i++) {
        for (size_t k = 0; k < sizeof methods / sizeof *methods; k++) {
            char text[100];
            gs_json *reply = NULL;
            snprintf(text, sizeof text, "{\"job\":\"%s\"}", gs_json_string_or(gs_json_at(jobs, i), "id", ""));
            gs_status status = gs_stage_ask(it->stage, &reply, methods[k], text);
            if (status.code == GS_DEADLINE_EXCEEDED) fail_msg("no answer to method %d", (int)methods[k]);
            gs_json_release(reply);
        }
    }
}

// True: it serves.
static bool open_damaged(damage *it) {
    int code = 0;
    gs_status status = gs_coordinator_process_start(&it->stage->process);
    if (!status.code) return true;
    assert_int_equal(sscanf(status.message, "the coordinator ended with %d", &code), 1);
    // 69: it takes it for the data of another version.
    if (code != EX_DATAERR && code != EX_UNAVAILABLE) fail_msg("%s: see %s", status.message, it->log);
    if (code == EX_DATAERR) assert_true(is_set_aside(it));
    return false;
}

static void live_with(damage *it) {
    int unreadable = count_in_log(it, "job not readable");
    if (!open_damaged(it)) return;
    gs_json *list = NULL;
    assert_ok(gs_stage_ask(it->stage, &list, GS_LIST_JOBS, "{}"));
    const gs_json *jobs = gs_json_get(list, "items");
    int known = (int)gs_json_count(jobs), told = count_in_log(it, "job not readable") - unreadable;
    // Of the last transaction, or of the one before where its end is hit.
    int lost = it->log_flips == 0 ? 0 : it->log_flips == 1 ? 2 : NUM_NEW;
    if (known + told < NUM_JOBS + NUM_NEW - lost) fail_msg("%d jobs, %d that cannot be read: see %s", known, told, it->log);
    look_at_everything(it, jobs);
    gs_json_release(list);
    int code = gs_coordinator_process_stop(&it->stage->process);
    if (code != 0 && code != EX_DATAERR) fail_msg("it ended with %d: see %s", code, it->log);
}

static void damaged_data_end_nothing_and_hide_nothing(void **state) {
    damage it = {.stage = *state};
    const char *wanted = getenv("GRADSYNC_DAMAGES");
    int count = wanted && *wanted ? atoi(wanted) : 4;
    unsigned seed = (unsigned)sample_seed("flips");
    make_base(&it);
    list_files(&it);
    for (int i = 0; i < count; i++) {
        srandom(seed + (unsigned)i);
        run("rm -rf '%s' && cp -r '%s' '%s'", it.data, it.base, it.data);
        print_message("seed %u\n", seed + (unsigned)i);
        it.log_flips = 0;
        for (long flips = 1 + random() % MOST_FLIPS; flips > 0; flips--) flip(&it, draw_file(&it));
        live_with(&it);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(damaged_data_end_nothing_and_hide_nothing, gs_stage_set_up, gs_stage_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
