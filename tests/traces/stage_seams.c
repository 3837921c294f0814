// In place of single functions (the linker's --wrap): clocks, random numbers, what is done with checkpoints.
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "coordinator/engine/engine.h"
#include "coordinator/store/job_store.h"
#include "coordinator/store/curve_file.h"
#include "coordinator/store/log_disk.h"
#include "core/clock.h"
#include "rpc/checkpoint/checkpoint_commit.h"
#include "tests/traces/stage_world.h"

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
gs_status __real_gs_job_store_open(gs_job_store **out, gs_store_start *start, const char *path);
gs_status __wrap_gs_job_store_open(gs_job_store **out, gs_store_start *start, const char *path);
gs_status __wrap_gs_job_store_load_lives(gs_job_store *store, gs_store_visit visit, void *ctx);
gs_effects __real_gs_engine_step(gs_engine *engine, gs_engine_event *event);
gs_effects __wrap_gs_engine_step(gs_engine *engine, gs_engine_event *event);
int __real_access(const char *path, int mode);
int __wrap_access(const char *path, int mode);
DIR *__real_opendir(const char *path);
DIR *__wrap_opendir(const char *path);
gs_status __wrap_gs_checkpoint_commit(gs_json **manifest, uint64_t *bytes, const char *path);
gs_status __wrap_gs_file_verify(const char *path, int levels, int64_t bytes, const char *digest);
gs_status __wrap_gs_file_remove_tree(const char *path, int levels);
gs_status __wrap_gs_file_remove_checkpoint(const char *path);
gs_status __real_gs_log_disk_append(gs_log_disk *disk, const char *line, uint64_t key);
gs_status __wrap_gs_log_disk_append(gs_log_disk *disk, const char *line, uint64_t key);
gs_status __wrap_gs_curve_file_append(const char *directory, const char *text, size_t bytes);
gs_status __real_gs_log_disk_read(gs_log_disk *disk, gs_log_answer *answer, const gs_log_query *query);
gs_status __wrap_gs_log_disk_read(gs_log_disk *disk, gs_log_answer *answer, const gs_log_query *query);

// The cluster, the life and the first event that the store drew or reserved are the record's; the oldest have none.
gs_status __wrap_gs_job_store_open(gs_job_store **out, gs_store_start *start, const char *path) {
    gs_status status = __real_gs_job_store_open(out, start, path);
    if (status.code || !stage.is_playing) return status;
    const gs_json *line = stage.file->lines[0].json;
    snprintf(start->cluster, sizeof start->cluster, "%s",
             gs_json_string_or(line, "cluster", "c-0000000000000000"));
    start->next_sequence = (uint64_t)gs_json_int_or(line, "next_sequence", 1);
    start->life = strtoull(gs_json_string_or(line, "coordinator_life", "1"), NULL, 10);
    return status;
}

gs_status __wrap_gs_job_store_load_lives(gs_job_store *store, gs_store_visit visit, void *ctx) {
    (void)store;
    for (size_t i = 0; i < stage.file->count; i++) {
        const gs_json *row = gs_json_get(stage.file->lines[i].json, "row");
        if (stage.file->lines[i].kind != TRACE_ROW) continue;
        if (strcmp(gs_json_string(gs_json_at(row, 0)), "put_life") != 0) continue;
        int64_t epoch = 0, life = 0;
        gs_json_int(&epoch, gs_json_at(row, 1));
        gs_json_int(&life, gs_json_at(row, 2));
        visit(ctx, &(gs_store_row){.id = (uint64_t)epoch, .job = (uint64_t)life, .key = "", .body = ""});
    }
    return gs_ok();
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
    if (!stage.is_playing || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME))
        return __real_clock_gettime(clock, now);
    int64_t ns = clock == CLOCK_MONOTONIC ? stage.now_ns - 1 : stage.wall_ms * GS_NS_PER_MS;
    *now = (struct timespec){.tv_sec = ns / GS_NS_PER_SEC, .tv_nsec = ns % GS_NS_PER_SEC};
    return 0;
}

// The engine is given the numbers that are next in the record.
gs_effects __wrap_gs_engine_step(gs_engine *engine, gs_engine_event *event) {
    size_t count = 0;
    if (stage.is_playing) {
        event->draws = stage.drawn + stage.next_drawn;
        event->num_draws = stage.num_drawn - stage.next_drawn;
        event->random = ++stage.num_invented;  // a run that goes another way may need more
    }
    gs_effects effects = __real_gs_engine_step(engine, event);
    gs_engine_drawn(engine, &count);
    stage.next_drawn += count < event->num_draws ? count : event->num_draws;
    return effects;
}

// Directories of jobs were there. Of files only manifests are asked for; one that was missed in the record has been missing
// since.
int __wrap_access(const char *path, int mode) {
    if (!stage.is_playing || !strstr(path, "/checkpoints/")) return __real_access(path, mode);
    for (size_t i = 0; i < stage.end; i++) {
        const trace_line *line = &stage.file->lines[i];
        if (line->kind != TRACE_MISSING || strcmp(gs_json_string_or(line->json, "path", ""), path) != 0) continue;
        errno = ENOENT;
        return -1;
    }
    return 0;
}

// In their place one in which no checkpoint is.
DIR *__wrap_opendir(const char *path) {
    DIR *list = __real_opendir(path);
    return list || errno != ENOENT || !stage.is_playing ? list : __real_opendir("/");
}

static const char *below_checkpoints(const char *path) {
    static const char folder[] = "/checkpoints/";
    const char *at = strstr(path, folder);
    return at ? at + sizeof folder - 1 : path;
}

gs_status __wrap_gs_checkpoint_commit(gs_json **manifest, uint64_t *bytes, const char *path) {
    char wanted[1500], known[1500];
    *manifest = NULL;
    *bytes = 0;
    stage_plain_path(wanted, sizeof wanted, path);
    stage_note_write("commit", strrchr(path, '/') + 1);
    for (size_t i = 0; i < stage.file->count; i++) {
        trace_line *line = &stage.file->lines[i];
        if (line->kind != TRACE_FOUND || line->used) continue;
        stage_plain_path(known, sizeof known, gs_json_string_or(line->json, "path", ""));
        if (strcmp(known, wanted) != 0) continue;
        line->used = true;
        int code = (int)gs_json_int_or(line->json, "code", 0);
        if (code)
            return gs_error((gs_code)code, "%s", gs_json_string_or(line->json, "message", ""));
        *manifest = gs_json_copy(gs_json_get(line->json, "body"));
        *bytes = (uint64_t)gs_json_int_or(line->json, "bytes", 0);
        return gs_ok();
    }
    return gs_error(GS_NOT_FOUND, "the record has no look at %s", path);
}

gs_status __wrap_gs_file_verify(const char *path, int levels, int64_t bytes, const char *digest) {
    (void)levels;
    (void)bytes;
    (void)digest;
    stage_note_write("verify", below_checkpoints(path));
    return gs_ok();
}

gs_status __wrap_gs_file_remove_tree(const char *path, int levels) {
    (void)levels;
    stage_note_write("remove", below_checkpoints(path));
    return gs_ok();
}

gs_status __wrap_gs_file_remove_checkpoint(const char *path) {
    stage_note_write("remove", below_checkpoints(path));
    return gs_ok();
}

gs_status __wrap_gs_log_disk_append(gs_log_disk *disk, const char *line, uint64_t key) {
    stage_note_write("log", "");
    return __real_gs_log_disk_append(disk, line, key);
}

gs_status __wrap_gs_curve_file_append(const char *directory, const char *text, size_t bytes) {
    (void)directory;
    (void)text;
    (void)bytes;
    stage_note_write("series", "");
    return gs_ok();
}

gs_status __wrap_gs_log_disk_read(gs_log_disk *disk, gs_log_answer *answer, const gs_log_query *query) {
    stage_note_write("read", "");
    return __real_gs_log_disk_read(disk, answer, query);
}
