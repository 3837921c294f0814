#include "core/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"

static const char *const level_names[] = {"debug", "info", "warn", "error", "off"};

static void write_to_stderr(void *ctx, gs_log_level level, const char *line) {
    (void)ctx;
    (void)level;
    char text[4096];
    int length = snprintf(text, sizeof text, "%s\n", line);
    if (length >= (int)sizeof text) {
        length = (int)sizeof text - 1;
        text[length - 1] = '\n';
    }
    // One write, so that lines of several processes on one pipe do not mix.
    ssize_t written = write(STDERR_FILENO, text, (size_t)length);
    (void)written;
}

// The log sink is one of the few statics that we allow: a library has no other way to reach its
// host from everywhere. Set once at start, before threads.
static gs_log_sink current_sink = write_to_stderr;
static void *current_ctx;
static atomic_int current_level = GS_LOG_INFO;

void gs_log_set_sink(gs_log_sink sink, void *ctx) {
    current_sink = sink ? sink : write_to_stderr;
    current_ctx = sink ? ctx : NULL;
}

void gs_log_set_level(gs_log_level least) {
    atomic_store_explicit(&current_level, (int)least, memory_order_relaxed);
}

bool gs_log_enabled(gs_log_level level) {
    return (int)level >= atomic_load_explicit(&current_level, memory_order_relaxed);
}

const char *gs_log_level_name(gs_log_level level) {
    return (unsigned)level <= GS_LOG_OFF ? level_names[level] : "off";
}

bool gs_log_level_from_name(gs_log_level *level, const char *name) {
    for (unsigned i = 0; i <= GS_LOG_OFF; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *level = (gs_log_level)i;
            return true;
        }
    }
    return false;
}

// What would end the line, or drive the terminal that shows it: C0, DEL, and C1 as UTF-8 has it (U+009B begins a sequence as
// ESC [ does).
static void blank_controls(char *line) {
    for (char *c = line; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = ' ';
        if ((unsigned char)c[0] == 0xc2 && (unsigned char)c[1] >= 0x80 && (unsigned char)c[1] < 0xa0) c[0] = c[1] = ' ';
    }
}

void gs_log(gs_log_level level, const char *event, const char *format, ...) {
    if (!gs_log_enabled(level)) return;
    char line[2048], stamp[GS_TIMESTAMP_LEN];
    gs_timestamp_format(stamp, gs_wall_ms());
    int used = snprintf(line, sizeof line, "ts=%s level=%s msg=\"%s\"", stamp,
                        gs_log_level_name(level), event);
    if (used > 0 && (size_t)used < sizeof line - 2 && format[0]) {
        line[used++] = ' ';
        va_list args;
        va_start(args, format);
        vsnprintf(line + used, sizeof line - (size_t)used, format, args);
        va_end(args);
    }
    blank_controls(line);
    current_sink(current_ctx, level, line);
}

const char *gs_log_quote(char *text, size_t text_bytes, const char *value) {
    bool plain = value[0] != '\0';
    for (const char *c = value; *c; c++) {
        if ((unsigned char)*c <= ' ' || *c == 0x7f || *c == '"' || *c == '=' || *c == '\\') plain = false;
    }
    if (plain) {
        snprintf(text, text_bytes, "%s", value);
        return text;
    }
    size_t used = 0;
    if (text_bytes < 4) {
        if (text_bytes) text[0] = '\0';
        return text;
    }
    text[used++] = '"';
    for (const char *c = value; *c && used + 4 < text_bytes; c++) {
        if (*c == '"' || *c == '\\') text[used++] = '\\';
        text[used++] = (unsigned char)*c < ' ' || *c == 0x7f ? ' ' : *c;
    }
    text[used++] = '"';
    text[used] = '\0';
    return text;
}
