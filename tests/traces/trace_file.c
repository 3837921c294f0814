#include "tests/traces/trace_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/strbuf.h"

static const struct {
    const char *name;
    trace_kind kind;
} kinds[] = {{"start", TRACE_START},   {"row", TRACE_ROW},         {"turn", TRACE_TURN},
             {"request", TRACE_REQUEST}, {"gone", TRACE_GONE},     {"tick", TRACE_TICK},
             {"drain", TRACE_DRAIN},   {"close", TRACE_CLOSE},     {"written", TRACE_WRITTEN},
             {"found", TRACE_FOUND},   {"missing", TRACE_MISSING}, {"drawn", TRACE_DRAWN}};

static trace_kind kind_of(const gs_json *json) {
    if (gs_json_get(json, "out")) return TRACE_OUT;
    const char *name = gs_json_string_or(json, "in", "");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, name) == 0) return kinds[i].kind;
    }
    return TRACE_OTHER;
}

static gs_status add_line(trace_file *file, const char *text, size_t bytes) {
    if (file->count == file->reserved) {
        size_t reserved = file->reserved ? 2 * file->reserved : 1024;
        trace_line *lines = realloc(file->lines, reserved * sizeof *lines);
        if (!lines) return gs_error(GS_RESOURCE_EXHAUSTED, "trace: out of memory");
        file->lines = lines;
        file->reserved = reserved;
    }
    gs_json *json = NULL;
    gs_status status = gs_json_parse(&json, text, bytes);
    if (status.code) return gs_status_prefix(status, "line %zu", file->count + 1);
    trace_kind kind = kind_of(json);
    if (kind == TRACE_TURN) file->num_turns++;
    file->lines[file->count++] = (trace_line){.kind = kind, .turn = file->num_turns, .json = json};
    return gs_ok();
}

static void replace_all(gs_strbuf *out, const char *text, const char *what, const char *by) {
    gs_strbuf_clear(out);
    const char *at;
    while ((at = strstr(text, what))) {
        gs_strbuf_add(out, text, (size_t)(at - text));
        gs_strbuf_puts(out, by);
        text = at + strlen(what);
    }
    gs_strbuf_puts(out, text);
}

typedef struct directories {
    char data[1100], checkpoints[1100];
} directories;

// The record's own: its first line says them.
static gs_status read_directories(directories *own, const char *line, size_t bytes) {
    gs_json *start = NULL;
    GS_TRY(gs_json_parse(&start, line, bytes));
    snprintf(own->data, sizeof own->data, "%s", gs_json_string_or(start, "data_dir", ""));
    snprintf(own->checkpoints, sizeof own->checkpoints, "%s",
             gs_json_string_or(start, "checkpoints_dir", ""));
    gs_json_release(start);
    return own->data[0] && own->checkpoints[0] ? gs_ok() : gs_error(GS_DATA_LOSS, "is no trace");
}

static bool begins_life(const char *line) {
    static const char start[] = "{\"in\":\"start\"";
    return strncmp(line, start, sizeof start - 1) == 0;
}

static gs_status read_lines(trace_file *file, FILE *stream, int life, const char *data_dir) {
    char *text = NULL, checkpoints[1200];
    directories own = {0};
    size_t reserved = 0;
    ssize_t length;
    gs_strbuf first = {0}, line = {0};
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", data_dir);
    gs_status status = gs_ok();
    while (!status.code && (length = getline(&text, &reserved, stream)) > 0) {
        if (text[length - 1] != '\n') break;  // cut by a kill
        if (begins_life(text)) life--;
        if (life >= 0) continue;
        if (life < -1) break;
        if (!own.data[0]) status = read_directories(&own, text, (size_t)length);
        if (status.code) break;
        replace_all(&first, text, own.checkpoints, checkpoints);
        replace_all(&line, gs_strbuf_text(&first), own.data, data_dir);
        status = add_line(file, gs_strbuf_text(&line), line.len);
    }
    gs_strbuf_release(&first);
    gs_strbuf_release(&line);
    free(text);
    return status;
}

gs_status trace_file_read(trace_file *file, const char *path, int life, const char *data_dir) {
    *file = (trace_file){0};
    size_t length = strlen(path);
    bool packed = length > 3 && strcmp(path + length - 3, ".gz") == 0;
    char command[1200];
    snprintf(command, sizeof command, "gzip -dc '%s'", path);
    FILE *stream = packed ? popen(command, "re") : fopen(path, "re");
    if (!stream) return gs_error_from_errno(errno, "%s", path);
    gs_status status = read_lines(file, stream, life, data_dir);
    if (packed) pclose(stream);  // which may end before it has written all
    else fclose(stream);
    if (!status.code && file->count == 0) status = gs_error(GS_NOT_FOUND, "has no life %d", life);
    if (status.code) trace_file_release(file);
    return status.code ? gs_status_prefix(status, "%s", path) : status;
}

void trace_file_release(trace_file *file) {
    for (size_t i = 0; i < file->count; i++) gs_json_release(file->lines[i].json);
    free(file->lines);
    *file = (trace_file){0};
}
