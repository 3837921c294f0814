// In place of coordinator/store/writer.c: a write is done at once, and comes back when it did in the record.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/store/writer.h"
#include "core/clock.h"
#include "tests/traces/stage_world.h"

#define MAX_NAME 1000  // of a write

typedef struct given {
    gs_write *write;
    char name[MAX_NAME];
    bool is_new;  // the record has no such row in this turn
    struct given *next;
} given;

struct gs_writer {
    gs_job_store *store;
    atomic_bool is_stopping;
    uint64_t num_submitted;
    given *first;
};

static char current[MAX_NAME];

void stage_note_write(const char *operation, const char *key) {
    size_t used = strlen(current);
    if (used && strcmp(operation, "log") == 0) return;  // many lines
    snprintf(current + used, sizeof current - used, "%s%s%s%s", used ? ", " : "", operation,
             key[0] ? " " : "", key);
}

static gs_json *value_to_json(const gs_store_value *value) {
    gs_json *json = NULL;
    if (!value->text) return gs_json_new_int(value->number);
    if (!value->is_json) return gs_json_new_string(value->text);
    gs_status status = gs_json_parse(&json, value->text, strlen(value->text));
    return status.code ? gs_json_new_string(value->text) : json;
}

static void row_written(void *ctx, const char *operation, const gs_store_value *values,
                        int num_values) {
    (void)ctx;
    char key[200] = "";
    bool is_of_all = strncmp(operation, "prune", 5) == 0;
    if (!is_of_all && values[0].text) snprintf(key, sizeof key, "%s", values[0].text);
    else if (!is_of_all) snprintf(key, sizeof key, "%lld", (long long)values[0].number);
    stage_note_write(operation, key);
    gs_json *row = gs_json_new_array(), *line = gs_json_new_object();
    gs_json_push(row, gs_json_new_string(operation));
    for (int i = 0; i < num_values; i++) gs_json_push(row, value_to_json(&values[i]));
    gs_json_set_string(line, "out", "row");
    gs_json_set(line, "row", row);
    stage_leave(line);
}

gs_status gs_writer_start(gs_writer **out, gs_job_store *store, int wake_fd, gs_trace *trace) {
    (void)wake_fd;
    (void)trace;
    gs_writer *writer = calloc(1, sizeof *writer);
    if (!writer) return gs_error(GS_RESOURCE_EXHAUSTED, "stage: out of memory");
    gs_job_store_set_tap(store, row_written, writer);
    writer->store = store;
    *out = writer;
    return gs_job_store_begin(store);
}

// In a record that was put in order: there the row stands where the write was given. Else nobody knows.
static bool is_new(const char *name) {
    char row_name[MAX_NAME];
    bool is_in_order = false;
    if (strncmp(name, "put_job", 7) != 0) return false;
    for (size_t i = 0; i < stage.file->count && !is_in_order; i++)
        is_in_order = stage.file->lines[i].kind == TRACE_WRITTEN && gs_json_get(stage.file->lines[i].json, "write");
    for (size_t i = stage.first; i < stage.end && is_in_order; i++) {
        trace_line *line = &stage.file->lines[i];
        const gs_json *row = gs_json_get(line->json, "row");
        int64_t id = 0;
        if (line->kind != TRACE_OUT || !row || line->used || !gs_json_int(&id, gs_json_at(row, 1))) continue;
        snprintf(row_name, sizeof row_name, "%s %lld", gs_json_string(gs_json_at(row, 0)), (long long)id);
        if (strncmp(name, row_name, strlen(row_name)) != 0) continue;
        line->used = true;
        return false;
    }
    return is_in_order;
}

static void note_new(const given *it) {
    stage_result *result = stage.result;
    result->new_writes = realloc(result->new_writes, (result->num_new_writes + 1) * sizeof *result->new_writes);
    if (!result->new_writes) abort();
    result->new_writes[result->num_new_writes].turn = stage.turn;
    result->new_writes[result->num_new_writes++].name = strdup(it->name);
}

static bool will_fail(const given *it) {
    for (size_t i = stage.first; i < stage.file->count; i++) {
        const trace_line *line = &stage.file->lines[i];
        if (line->kind != TRACE_WRITTEN) continue;
        const char *name = gs_json_string_or(line->json, "write", NULL);
        bool is_it = name ? !strcmp(name, it->name) : gs_json_int_or(line->json, "number", -1) == (int64_t)it->write->number;
        if (is_it) return gs_json_int_or(line->json, "code", 0) != 0;
    }
    return false;
}

void gs_writer_submit(gs_writer *writer, gs_write *write) {
    given *it = calloc(1, sizeof *it), **end = &writer->first;
    if (!it) abort();
    current[0] = '\0';
    write->number = write->is_unnumbered ? UINT64_MAX : writer->num_submitted++;
    it->write = write;
    if (gs_job_store_begin_part(writer->store).code) abort();
    write->status = write->run(write, writer->store);
    snprintf(it->name, sizeof it->name, "%s", current);
    // What failed then has left nothing in the database.
    gs_status undone = will_fail(it) ? gs_error(GS_UNAVAILABLE, "as then") : write->status;
    if (gs_job_store_end_part(writer->store, undone).code) abort();
    it->is_new = is_new(it->name);
    while (*end) end = &(*end)->next;
    *end = it;
}

const atomic_bool *gs_writer_stopping(const gs_writer *writer) { return &writer->is_stopping; }

uint64_t gs_writer_num_refused(const gs_writer *writer) {
    (void)writer;
    return 0;
}

// A record as it was made knows its number.
static given *take_number(gs_writer *writer, int64_t number) {
    given **link = &writer->first;
    while (*link && (*link)->write->number != (uint64_t)number) link = &(*link)->next;
    given *it = *link;
    if (it) *link = it->next;
    return it;
}

// The oldest of the name; else of its first word: a folder is not listed in the same order everywhere. NULL: any.
static given *take(gs_writer *writer, const char *name) {
    given **link = &writer->first;
    size_t word = name ? strcspn(name, " ,") : 0;
    while (*link && name && (strcmp((*link)->name, name) != 0 || (*link)->is_new)) link = &(*link)->next;
    if (!*link && word > 0) {
        link = &writer->first;
        while (*link && (strncmp((*link)->name, name, word) != 0 || (*link)->is_new)) link = &(*link)->next;
    }
    given *it = *link;
    if (it) *link = it->next;
    return it;
}

static void finish(given *it, gs_status status) {
    it->write->done(it->write, status);
    free(it);
}

static void come_back(gs_writer *writer, size_t index) {
    const gs_json *line = stage.file->lines[index].json;
    int code = (int)gs_json_int_or(line, "code", 0);
    const char *name = gs_json_string_or(line, "write", NULL);
    int64_t number = gs_json_int_or(line, "number", -1);
    given *it = !name && number >= 0 ? take_number(writer, number) : take(writer, name);
    if (!it) {
        stage.result->num_unmatched++;
        return;
    }
    stage.result->write_names[index] = strdup(it->name);
    finish(it, code ? gs_error((gs_code)code, "%s", gs_json_string_or(line, "message", ""))
                    : gs_ok());
}

static bool comes_back_later(const char *name) {
    for (size_t i = stage.end; i < stage.file->count; i++) {
        const trace_line *line = &stage.file->lines[i];
        if (line->kind != TRACE_WRITTEN) continue;
        const char *wanted = gs_json_string_or(line->json, "write", NULL);
        if (!wanted || strcmp(wanted, name) == 0) return true;
    }
    return false;
}

// What the record does not know comes back at once: where it was done in the loop, or not at all.
static void finish_unknown(gs_writer *writer) {
    for (given **link = &writer->first; *link;) {
        given *it = *link;
        if (stage.cut || (!it->is_new && comes_back_later(it->name))) {
            link = &it->next;
            continue;
        }
        *link = it->next;
        if (it->is_new) note_new(it);
        finish(it, it->write->status);
        link = &writer->first;
    }
}

// Then time goes on to the timers' turn, or stays before it.
static void reach_tick(void) {
    for (size_t i = stage.first; i < stage.end; i++) {
        if (stage.file->lines[i].kind != TRACE_TICK) continue;
        stage_reach(i);
        stage.ticked_ns = stage.now_ns;
        return;
    }
    if (stage.ticked_ns && stage.now_ns >= stage.ticked_ns + STAGE_TICK_NS)
        stage.now_ns = stage.ticked_ns + STAGE_TICK_NS - 1;
}

void gs_writer_collect(gs_writer *writer) {
    for (size_t i = stage.first; i < stage.end; i++) {
        if (stage.file->lines[i].kind != TRACE_WRITTEN) continue;
        stage_reach(i);
        come_back(writer, i);
    }
    finish_unknown(writer);
    reach_tick();
}

void gs_writer_stop(gs_writer *writer) {
    if (!writer) return;
    for (size_t i = stage.first; i < stage.end; i++) {
        if (stage.file->lines[i].kind != TRACE_WRITTEN) continue;
        stage_reach(i);
        come_back(writer, i);
    }
    while (writer->first) finish(take(writer, NULL), gs_ok());
    gs_job_store_rollback(writer->store);
    gs_job_store_close(writer->store);
    free(writer);
}
