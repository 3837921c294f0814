#include "tests/traces/stage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "coordinator/serve/coordinator.h"
#include "coordinator/store/job_store.h"
#include "core/clock.h"
#include "core/log.h"
#include "tests/traces/stage_world.h"

stage_world stage;

static void set_clock(const gs_json *line) {
    int64_t since_ns = gs_json_int_or(line, "t", stage.now_ns - stage.begun_ns);
    stage.now_ns = stage.begun_ns + since_ns;
    stage.wall_ms = gs_json_int_or(line, "wall_ms", stage.begun_wall_ms + since_ns / GS_NS_PER_MS);
}

void stage_plain_path(char *plain, size_t bytes, const char *path) {
    const char *dot = strstr(path, "/./");
    if (dot) snprintf(plain, bytes, "%.*s%s", (int)(dot - path), path, dot + 2);
    else snprintf(plain, bytes, "%s", path);
}

void stage_reach(size_t line) { set_clock(stage.file->lines[line].json); }

void stage_leave(gs_json *json) {
    if (stage.cut) gs_json_release(json);
    else outputs_add(&stage.result->found, stage.turn, json);
}

static uint64_t id_of(const gs_json *row, size_t index) {
    int64_t value = 0;
    gs_json_int(&value, gs_json_at(row, index));
    return (uint64_t)value;
}

static gs_status put_row(gs_job_store *store, const gs_json *row) {
    const char *operation = gs_json_string(gs_json_at(row, 0));
    const gs_json *last = gs_json_at(row, gs_json_count(row) - 1);
    char *body = NULL;
    GS_TRY(gs_json_encode(&body, NULL, last, false));
    gs_status status = gs_error(GS_UNIMPLEMENTED, "row %s", operation);
    if (!strcmp(operation, "put_job")) status = gs_job_store_put_job(store, id_of(row, 1), body);
    if (!strcmp(operation, "put_event"))
        status = gs_job_store_put_event(store, id_of(row, 1), id_of(row, 2), body);
    if (!strcmp(operation, "put_checkpoint"))
        status = gs_job_store_put_checkpoint(store, id_of(row, 1), gs_json_string(gs_json_at(row, 2)),
                                             body);
    if (!strcmp(operation, "put_tombstone")) {
        gs_tombstone tombstone = {.job = id_of(row, 1), .generation = (uint32_t)id_of(row, 2),
                                  .deleted_ms = (int64_t)id_of(row, 4)};
        bool is_known = gs_job_state_from_name(&tombstone.outcome, gs_json_string(gs_json_at(row, 3)));
        if (is_known) status = gs_job_store_delete_job(store, &tombstone);
    }
    if (!strcmp(operation, "put_life")) status = gs_ok();  // stage_seams.c
    if (!strcmp(operation, "put_key"))
        status = gs_job_store_put_key(store, gs_json_string(gs_json_at(row, 1)),
                                      gs_json_string(gs_json_at(row, 2)), id_of(row, 3),
                                      (int64_t)id_of(row, 4));
    free(body);
    return status;
}

static gs_status put_rows(gs_job_store *store) {
    GS_TRY(gs_job_store_begin(store));
    const gs_json *start = stage.file->lines[0].json;
    uint32_t generation = (uint32_t)gs_json_int_or(start, "first_generation", 1);
    GS_TRY(gs_job_store_reserve_generations(store, generation));
    for (size_t i = 0; i < stage.file->count; i++) {
        const trace_line *line = &stage.file->lines[i];
        if (line->kind == TRACE_ROW) GS_TRY(put_row(store, gs_json_get(line->json, "row")));
    }
    return gs_job_store_commit(store);
}

// Each opening is a coordinator epoch; the last one is the coordinator's own.
static gs_status prepare_store(const char *data_dir) {
    char path[1200];
    snprintf(path, sizeof path, "%s/gradsync.db", data_dir);
    int64_t epoch = gs_json_int_or(stage.file->lines[0].json, "coordinator_epoch", 1);
    gs_store_start start;
    gs_status status = gs_ok();
    for (int64_t i = 1; i < epoch && !status.code; i++) {
        gs_job_store *store = NULL;
        GS_TRY(gs_job_store_open(&store, &start, path));
        if (i + 1 == epoch) status = put_rows(store);
        gs_job_store_close(store);
    }
    return status;
}

// A directory whose parts somebody looked at before a rank had told of them was there when the coordinator started.
static gs_status make_directories(const char *data_dir) {
    char path[1500];
    snprintf(path, sizeof path, "%s/checkpoints", data_dir);
    if (mkdir(path, 0700) != 0) return gs_error_from_errno(errno, "%s", path);
    for (size_t i = 0; i < stage.file->count; i++) {
        const trace_line *line = &stage.file->lines[i];
        if (line->kind == TRACE_REQUEST &&
            !strcmp(gs_json_string_or(line->json, "method", ""), "Checkpointed"))
            return gs_ok();
        if (line->kind != TRACE_FOUND) continue;
        stage_plain_path(path, sizeof path, gs_json_string_or(line->json, "path", ""));
        char *slash = strrchr(path, '/');
        if (!slash) continue;
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
        mkdir(path, 0700);
    }
    return gs_ok();
}

static bool has_kind_in_turn(trace_kind kind) {
    for (size_t i = stage.first; i < stage.end; i++) {
        if (stage.file->lines[i].kind == kind) {
            stage_reach(i);
            return true;
        }
    }
    return false;
}

// The lines of the next turn, up to the close. False: there is none.
static bool find_turn(void) {
    stage.first = stage.end;
    stage.turn++;
    while (stage.end < stage.file->count) {
        const trace_line *line = &stage.file->lines[stage.end];
        if (line->turn > stage.turn || line->kind == TRACE_CLOSE) break;
        stage.end++;
    }
    return stage.end > stage.first;
}

static gs_status play_turns(gs_coordinator *coordinator) {
    while (find_turn()) {
        GS_TRY(gs_coordinator_turn(coordinator));
        if (has_kind_in_turn(TRACE_DRAIN)) gs_coordinator_drain(coordinator);
        if (stage.end == stage.file->count || stage.file->lines[stage.end].kind != TRACE_CLOSE)
            continue;
        stage.first = stage.end;
        stage.end = stage.file->count;
        stage_reach(stage.first);
        return gs_ok();
    }
    stage.cut = true;  // killed: what it says when it is closed now, nobody has heard
    return gs_ok();
}

static void collect_drawn(const trace_file *file) {
    stage.drawn = calloc(file->count + 1, sizeof *stage.drawn);
    for (size_t i = 0; stage.drawn && i < file->count; i++) {
        if (file->lines[i].kind != TRACE_DRAWN) continue;
        const char *number = gs_json_string_or(file->lines[i].json, "number", "0");
        stage.drawn[stage.num_drawn++] = strtoull(number, NULL, 10);
    }
}

static void begin(stage_result *result, trace_file *file) {
    const gs_json *start = file->lines[0].json;
    *result = (stage_result){.write_names = calloc(file->count, sizeof(char *))};
    stage = (stage_world){.file = file, .result = result, .turn = -1};
    collect_drawn(file);
    stage.begun_ns = stage.now_ns = gs_json_int_or(start, "now_ns", 1);
    stage.begun_wall_ms = stage.wall_ms = gs_json_int_or(start, "wall_ms", 0);
    for (size_t i = 0; i < file->count; i++) {
        if (file->lines[i].kind != TRACE_TICK) continue;
        // The coordinator looked at its clock before it opened its store, which began the record.
        int64_t since_ns = gs_json_int_or(file->lines[i].json, "t", 0);
        if (since_ns < STAGE_TICK_NS) stage.now_ns -= STAGE_TICK_NS - since_ns;
        break;
    }
}

gs_status stage_play(stage_result *result, trace_file *file, const char *data_dir) {
    char checkpoints[1200];
    snprintf(checkpoints, sizeof checkpoints, "%s", gs_json_string_or(file->lines[0].json, "checkpoints_dir", ""));
    begin(result, file);
    gs_rpc_context *context = NULL;
    gs_coordinator *coordinator = NULL;
    gs_coordinator_options options = {.data_dir = data_dir, .checkpoints_dir = checkpoints,
                                      .control_endpoint = "tcp://127.0.0.1:0"};
    gs_status status = prepare_store(data_dir);
    if (!status.code) status = make_directories(data_dir);
    if (!status.code) status = gs_rpc_context_create(&context);
    options.context = context;
    stage.is_playing = true;
    find_turn();  // what comes before the first
    if (!status.code) status = gs_coordinator_create(&coordinator, &options);
    if (!status.code) status = play_turns(coordinator);
    gs_coordinator_destroy(coordinator);
    stage.is_playing = false;
    if (context) gs_rpc_context_destroy(context);
    stage_forget_calls();
    free(stage.drawn);
    return status;
}

void stage_result_release(stage_result *result, const trace_file *file) {
    outputs_release(&result->found);
    for (size_t i = 0; result->write_names && i < file->count; i++) free(result->write_names[i]);
    free(result->write_names);
    for (size_t i = 0; i < result->num_new_writes; i++) free(result->new_writes[i].name);
    free(result->new_writes);
    *result = (stage_result){0};
}
