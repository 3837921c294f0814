// Runs that were recorded (tests/golden/coordinator_traces) are lived through again: the same requests, times and numbers
// lead to the same answers, messages and rows. The folder's README says what was changed on purpose, and how.
//
//   test_traces [FILE…]             the files given, or all of the folder
//   test_traces --write RAW FILE    puts a record in order: what comes in as in RAW, what goes out as it does now
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "tests/support/temp_dir.h"
#include "tests/traces/outputs.h"
#include "tests/traces/stage.h"
#include "tests/traces/trace_file.h"

#define FOLDER GRADSYNC_SOURCE_DIR "/tests/golden/coordinator_traces"
#define MOST_SHOWN 40

typedef struct judgement {
    const char *trace;
    size_t num_wrong;
} judgement;

// A later version has more settings, with their defaults.
static bool is_new_setting(const difference *one) {
    return !one->expected[0] && strstr(one->path, "/spec/");
}

static void judge(void *ctx, const difference *one) {
    judgement *it = ctx;
    if (is_new_setting(one) || it->num_wrong++ >= MOST_SHOWN) return;
    printf("  turn %d, %s %s: %.300s → %.300s\n", one->turn, one->channel,
           one->path, one->expected[0] ? one->expected : "nothing",
           one->found[0] ? one->found : "nothing");
}

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void collect_expected(outputs *expected, const trace_file *file) {
    for (size_t i = 0; i < file->count; i++) {
        const trace_line *line = &file->lines[i];
        if (line->kind == TRACE_OUT)
            outputs_add(expected, line->turn, gs_json_retain(line->json));
    }
}

// False: no such life.
static bool play_life(size_t *num_wrong, const char *path, int life) {
    char *directory = gs_temp_dir_make();
    trace_file file = {0};
    stage_result result = {0};
    outputs expected = {0};
    judgement it = {.trace = name_of(path)};
    gs_status status = trace_file_read(&file, path, life, directory);
    bool found = status.code != GS_NOT_FOUND;
    if (!status.code) status = stage_play(&result, &file, directory);
    if (!status.code) {
        collect_expected(&expected, &file);
        outputs_sort(&expected);
        outputs_sort(&result.found);
        outputs_compare(&expected, &result.found, judge, &it);
    }
    if (found) {
        printf("%s %d: %zu outputs, %d turns", it.trace, life, expected.count, file.num_turns);
        if (it.num_wrong) printf(", %zu DIFFER", it.num_wrong);
        if (result.num_unmatched) printf(", %zu writes are not made", result.num_unmatched);
        printf("%s%s\n", status.code ? ": " : "", status.message);
        *num_wrong += it.num_wrong + (status.code != GS_OK);
    }
    outputs_release(&expected);
    stage_result_release(&result, &file);
    trace_file_release(&file);
    gs_temp_dir_remove(directory);
    return found;
}

static bool play(const char *path) {
    size_t num_wrong = 0;
    int life = 0;
    while (play_life(&num_wrong, path, life)) life++;
    if (life == 0) printf("%s: is no trace\n", path);
    return life > 0 && num_wrong == 0;
}

static void print_line(FILE *out, const gs_json *json, const char *directory) {
    char *text = NULL;
    gs_status status = gs_json_encode(&text, NULL, json, false);
    if (status.code) abort();
    size_t length = strlen(directory);
    for (const char *at = text; *at;) {
        if (strncmp(at, directory, length) == 0) {
            fputs("@data@", out);
            at += length;
        } else {
            fputc(*at++, out);
        }
    }
    fputc('\n', out);
    free(text);
}

static void print_turn(FILE *out, const trace_file *file, const stage_result *result,
                       const char *directory, int turn) {
    for (size_t i = 0; i < file->count; i++) {
        const trace_line *line = &file->lines[i];
        if (line->turn != turn || line->kind == TRACE_OUT) continue;
        if (line->kind == TRACE_WRITTEN && !result->write_names[i]) continue;
        if (result->write_names[i]) gs_json_set_string(line->json, "write", result->write_names[i]);
        print_line(out, line->json, directory);
    }
    for (size_t i = 0; i < result->num_new_writes; i++) {
        if (result->new_writes[i].turn == turn)
            fprintf(out, "{\"in\":\"written\",\"code\":0,\"write\":\"%s\"}\n", result->new_writes[i].name);
    }
    for (size_t i = 0; i < result->found.count; i++) {
        if (result->found.items[i].turn == turn)
            print_line(out, result->found.items[i].json, directory);
    }
}

static gs_status write_life(FILE *out, const char *raw, int life) {
    char *directory = gs_temp_dir_make();
    trace_file file = {0};
    stage_result result = {0};
    gs_status status = trace_file_read(&file, raw, life, directory);
    if (!status.code) status = stage_play(&result, &file, directory);
    for (int turn = 0; !status.code && turn <= file.num_turns; turn++)
        print_turn(out, &file, &result, directory, turn);
    stage_result_release(&result, &file);
    trace_file_release(&file);
    gs_temp_dir_remove(directory);
    return status;
}

static int write_in_order(const char *raw, const char *path) {
    FILE *out = fopen(path, "we");
    gs_status status = gs_ok();
    int lives = 0;
    while (out && !status.code) status = write_life(out, raw, lives++);
    bool written = out && fclose(out) == 0 && status.code == GS_NOT_FOUND && lives > 1;
    if (!written) printf("%s: %s\n", raw, status.message);
    return written ? 0 : 1;
}

static int play_folder(void) {
    int failed = 0, played = 0;
    struct dirent **entries;
    int count = scandir(FOLDER, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char path[1300];
        snprintf(path, sizeof path, "%s/%s", FOLDER, entries[i]->d_name);
        if (strstr(entries[i]->d_name, ".jsonl.gz")) {
            played++;
            failed += !play(path);
        }
        free(entries[i]);
    }
    if (count >= 0) free(entries);
    if (played == 0) printf("no traces in %s\n", FOLDER);
    return failed || !played ? 1 : 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    gs_log_set_level(GS_LOG_OFF);
    setenv("TMPDIR", "/dev/shm", 0);  // a hundred stores are made, which wait for a disk
    if (argc == 4 && !strcmp(argv[1], "--write")) return write_in_order(argv[2], argv[3]);
    if (argc < 2) return play_folder();
    int failed = 0;
    for (int i = 1; i < argc; i++) failed += !play(argv[i]);
    return failed ? 1 : 0;
}
