#include "coordinator/store/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/strbuf.h"
#include "rpc/schema/step_record.h"

#define MAX_BYTES ((size_t)1 << 30)
#define WALL_SLACK_MS 1

struct gs_trace {
    pthread_mutex_t lock;  // guards all below: rows are written on a thread of the writer
    int file;              // -1: over
    gs_strbuf lines;       // of this turn
    size_t written_bytes;
    int64_t begun_ns, wall_ms;  // the same moment on both clocks
    bool in_turn;               // this turn has a line
};

gs_status gs_trace_open(gs_trace **out, const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) return gs_error_from_errno(errno, "trace: %s", path);
    gs_trace *trace = calloc(1, sizeof *trace);
    if (!trace) {
        close(file);
        return gs_error(GS_RESOURCE_EXHAUSTED, "trace: out of memory");
    }
    pthread_mutex_init(&trace->lock, NULL);
    trace->file = file;
    *out = trace;
    return gs_ok();
}

static gs_status write_all(int file, const char *text, size_t bytes) {
    while (bytes > 0) {
        ssize_t written = write(file, text, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return gs_error_from_errno(errno, "trace");
        text += written;
        bytes -= (size_t)written;
    }
    return gs_ok();
}

static void end_record(gs_trace *trace, const char *why) {
    gs_log_warn("trace ended", "reason=\"%s\"", why);
    close(trace->file);
    trace->file = -1;
    gs_strbuf_release(&trace->lines);
}

static void flush_lines(gs_trace *trace) {
    if (trace->file < 0) return;
    gs_status status = gs_strbuf_failed(&trace->lines)
                           ? gs_error(GS_RESOURCE_EXHAUSTED, "out of memory")
                           : write_all(trace->file, gs_strbuf_text(&trace->lines), trace->lines.len);
    trace->written_bytes += trace->lines.len;
    gs_strbuf_clear(&trace->lines);
    if (status.code) end_record(trace, status.message);
    else if (trace->written_bytes > MAX_BYTES) end_record(trace, "the file is full");
}

void gs_trace_close(gs_trace *trace) {
    if (!trace) return;
    flush_lines(trace);
    if (trace->file >= 0) close(trace->file);
    gs_strbuf_release(&trace->lines);
    pthread_mutex_destroy(&trace->lock);
    free(trace);
}

// Between these two, one line is put together. False: there is no record.
static bool begin_line(gs_trace *trace) {
    if (!trace) return false;
    pthread_mutex_lock(&trace->lock);
    if (trace->file >= 0) return true;
    pthread_mutex_unlock(&trace->lock);
    return false;
}

static void end_line(gs_trace *trace) {
    gs_strbuf_puts(&trace->lines, "}\n");
    pthread_mutex_unlock(&trace->lock);
}

// What comes in has its time; the wall's is told only when it is not where it should be.
static bool begin_input(gs_trace *trace, const char *name) {
    if (!begin_line(trace)) return false;
    if (!trace->in_turn) gs_strbuf_puts(&trace->lines, "{\"in\":\"turn\"}\n");
    trace->in_turn = true;
    int64_t since_ns = gs_now_ns() - trace->begun_ns, wall_ms = gs_wall_ms();
    int64_t expected_ms = trace->wall_ms + since_ns / GS_NS_PER_MS;
    gs_strbuf_printf(&trace->lines, "{\"in\":\"%s\",\"t\":%" PRId64, name, since_ns);
    if (llabs(wall_ms - expected_ms) > WALL_SLACK_MS)
        gs_strbuf_printf(&trace->lines, ",\"wall_ms\":%" PRId64, wall_ms);
    return true;
}

static void put_string(gs_strbuf *line, const char *text) {
    char *encoded = NULL;
    gs_json *value = gs_json_new_string(text);
    gs_status status = gs_json_encode(&encoded, NULL, value, false);
    gs_strbuf_puts(line, status.code ? "\"\"" : encoded);
    free(encoded);
    gs_json_release(value);
}

// A text that is JSON already; in one that a peer wrote, a new line can only stand between two words.
static void put_body(gs_strbuf *line, const char *body, size_t bytes) {
    if (!bytes) return;
    size_t begin = line->len;
    gs_strbuf_puts(line, ",\"body\":");
    gs_strbuf_add(line, body, bytes);
    for (size_t i = begin; i < line->len; i++) {
        if (line->text[i] == '\n' || line->text[i] == '\r') line->text[i] = ' ';
    }
}

static void put_status(gs_strbuf *line, gs_status status) {
    gs_strbuf_printf(line, ",\"code\":%d", (int)status.code);
    if (!status.code) return;
    gs_strbuf_puts(line, ",\"message\":");
    put_string(line, status.message);
}

static void put_row(gs_strbuf *line, const char *operation, const gs_store_value *values,
                    int num_values) {
    gs_strbuf_printf(line, "\"row\",\"row\":[\"%s\"", operation);
    for (int i = 0; i < num_values; i++) {
        gs_strbuf_putc(line, ',');
        if (!values[i].text) gs_strbuf_printf(line, "%" PRId64, values[i].number);
        else if (values[i].is_json) gs_strbuf_puts(line, values[i].text);
        else put_string(line, values[i].text);
    }
    gs_strbuf_putc(line, ']');
}

static void row_written(void *ctx, const char *operation, const gs_store_value *values,
                        int num_values) {
    gs_trace *trace = ctx;
    if (!begin_line(trace)) return;
    gs_strbuf_puts(&trace->lines, "{\"out\":");
    put_row(&trace->lines, operation, values, num_values);
    end_line(trace);
}

static void put_loaded(gs_trace *trace, const char *operation, const gs_store_value *values,
                       int num_values) {
    if (!begin_line(trace)) return;
    gs_strbuf_puts(&trace->lines, "{\"in\":");
    put_row(&trace->lines, operation, values, num_values);
    end_line(trace);
}

static void job_loaded(void *ctx, const gs_store_row *row) {
    gs_store_value values[] = {{.number = (int64_t)row->id}, {.text = row->body, .is_json = true}};
    put_loaded(ctx, "put_job", values, 2);
}

static void event_loaded(void *ctx, const gs_store_row *row) {
    gs_store_value values[] = {{.number = (int64_t)row->id},
                               {.number = (int64_t)row->job},
                               {.text = row->body, .is_json = true}};
    put_loaded(ctx, "put_event", values, 3);
}

static void checkpoint_loaded(void *ctx, const gs_store_row *row) {
    gs_store_value values[] = {{.number = (int64_t)row->job},
                               {.text = row->key},
                               {.text = row->body, .is_json = true}};
    put_loaded(ctx, "put_checkpoint", values, 3);
}

static void key_loaded(void *ctx, const gs_store_row *row) {
    gs_store_value values[] = {{.text = row->key},
                               {.text = row->body},
                               {.number = (int64_t)row->job},
                               {.number = row->time_ms}};
    put_loaded(ctx, "put_key", values, 4);
}

// Row id is the coordinator epoch, job its life.
static void life_loaded(void *ctx, const gs_store_row *row) {
    gs_store_value values[] = {{.number = (int64_t)row->id}, {.number = (int64_t)row->job}};
    put_loaded(ctx, "put_life", values, 2);
}

static void tombstone_loaded(void *ctx, const gs_store_row *row) {
    gs_store_value values[] = {{.number = (int64_t)row->id},
                               {.number = (int64_t)row->job},
                               {.text = row->key},
                               {.number = row->time_ms}};
    put_loaded(ctx, "put_tombstone", values, 4);
}

static void put_start(gs_trace *trace, const gs_store_start *start, const char *data_dir,
                      const char *checkpoints_dir) {
    if (!begin_line(trace)) return;
    trace->begun_ns = gs_now_ns();
    trace->wall_ms = gs_wall_ms();
    gs_strbuf_printf(&trace->lines,
                     "{\"in\":\"start\",\"trace\":1,\"version\":\"%s\",\"now_ns\":%" PRId64
                     ",\"wall_ms\":%" PRId64
                     ",\"coordinator_epoch\":%u,\"first_generation\":%u,\"next_sequence\":%" PRIu64
                     ",\"cluster\":\"%s\",\"coordinator_life\":\"%" PRIu64 "\",\"data_dir\":",
                     GRADSYNC_VERSION, trace->begun_ns, trace->wall_ms, start->coordinator_epoch,
                     start->first_generation, start->next_sequence, start->cluster, start->life);
    put_string(&trace->lines, data_dir);
    gs_strbuf_puts(&trace->lines, ",\"checkpoints_dir\":");
    put_string(&trace->lines, checkpoints_dir);
    end_line(trace);
}

gs_status gs_trace_begin(gs_trace *trace, gs_job_store *store, const gs_store_start *start,
                         const char *data_dir, const char *checkpoints_dir) {
    if (!trace) return gs_ok();
    put_start(trace, start, data_dir, checkpoints_dir);
    gs_job_store_set_tap(store, row_written, trace);
    GS_TRY(gs_job_store_load_jobs(store, job_loaded, trace));
    GS_TRY(gs_job_store_load_events(store, event_loaded, trace));
    GS_TRY(gs_job_store_load_checkpoints(store, checkpoint_loaded, trace));
    GS_TRY(gs_job_store_load_keys(store, key_loaded, trace));
    GS_TRY(gs_job_store_load_lives(store, life_loaded, trace));
    return gs_job_store_load_tombstones(store, tombstone_loaded, trace);
}

void gs_trace_turn(gs_trace *trace) {
    if (!trace) return;
    pthread_mutex_lock(&trace->lock);
    if (trace->lines.len > 0) flush_lines(trace);
    trace->in_turn = false;
    pthread_mutex_unlock(&trace->lock);
}

void gs_trace_event(gs_trace *trace, const char *name) {
    if (begin_input(trace, name)) end_line(trace);
}

void gs_trace_written(gs_trace *trace, uint64_t number, gs_status status) {
    if (!begin_input(trace, "written")) return;
    gs_strbuf_printf(&trace->lines, ",\"number\":%" PRIu64, number);
    put_status(&trace->lines, status);
    end_line(trace);
}

void gs_trace_drawn(gs_trace *trace, uint64_t number) {
    if (!begin_line(trace)) return;
    gs_strbuf_printf(&trace->lines, "{\"in\":\"drawn\",\"number\":\"%" PRIu64 "\"", number);
    end_line(trace);
}

void gs_trace_missing(gs_trace *trace, const char *path) {
    if (!begin_line(trace)) return;
    gs_strbuf_puts(&trace->lines, "{\"in\":\"missing\",\"path\":");
    put_string(&trace->lines, path);
    end_line(trace);
}

void gs_trace_found(gs_trace *trace, const char *path, gs_status status, const gs_json *manifest,
                    uint64_t bytes) {
    if (!begin_line(trace)) return;
    char *text = NULL;
    size_t length = 0;
    gs_status encoded = status.code ? status : gs_json_encode(&text, &length, manifest, false);
    gs_strbuf_puts(&trace->lines, "{\"in\":\"found\",\"path\":");
    put_string(&trace->lines, path);
    put_status(&trace->lines, status);
    if (!encoded.code) {
        gs_strbuf_printf(&trace->lines, ",\"bytes\":%" PRIu64, bytes);
        put_body(&trace->lines, text, length);
    }
    free(text);
    end_line(trace);
}

// A record is written down as a worker of before would have said it.
static char *record_to_text(const char *body, size_t *bytes) {
    gs_report_rows *rows = malloc(sizeof *rows);
    gs_step_report report;
    gs_status status = rows ? gs_step_record_unpack(&report, rows, body, *bytes)
                            : gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_json *step = status.code ? NULL : gs_step_report_to_json(&report);
    char *text = NULL;
    *bytes = 0;
    if (step) status = gs_json_encode(&text, bytes, step, false);
    gs_json_release(step);
    free(rows);
    return text;
}

static void request_came(void *ctx, uint64_t call, gs_method method, const gs_rpc_peer *peer,
                         const char *body, size_t bytes) {
    gs_trace *trace = ctx;
    if (method == GS_STEP_RECORD) {
        char *text = record_to_text(body, &bytes);
        if (text) request_came(ctx, call, GS_STEP, peer, text, bytes);
        free(text);
        return;
    }
    if (!begin_input(trace, "request")) return;
    gs_strbuf_printf(&trace->lines,
                     ",\"call\":%" PRIu64 ",\"method\":\"%s\",\"connection\":%" PRIu64
                     ",\"incarnation\":\"%" PRIu64 "\",\"job\":\"%" PRIu64
                     "\",\"generation\":%u,\"coordinator_epoch\":%u",
                     call, gs_method_info_of(method)->name, peer->connection, peer->incarnation,
                     peer->job, peer->generation, peer->coordinator_epoch);
    if (peer->token) gs_strbuf_printf(&trace->lines, ",\"token\":\"%" PRIu64 "\"", peer->token);
    put_body(&trace->lines, body, bytes);
    end_line(trace);
}

static void call_gone(void *ctx, uint64_t call, bool closed) {
    gs_trace *trace = ctx;
    if (!begin_input(trace, "gone")) return;
    gs_strbuf_printf(&trace->lines, ",\"call\":%" PRIu64 ",\"closed\":%s", call,
                     closed ? "true" : "false");
    end_line(trace);
}

static void call_answered(void *ctx, uint64_t call, gs_code code, const char *body, size_t bytes) {
    gs_trace *trace = ctx;
    if (!begin_line(trace)) return;
    gs_strbuf_printf(&trace->lines, "{\"out\":\"answer\",\"call\":%" PRIu64 ",\"code\":%d", call,
                     (int)code);
    put_body(&trace->lines, body, bytes);
    end_line(trace);
}

static void item_sent(void *ctx, uint64_t call, const char *body, size_t bytes, bool sent) {
    gs_trace *trace = ctx;
    if (!begin_line(trace)) return;
    gs_strbuf_printf(&trace->lines, "{\"out\":\"item\",\"call\":%" PRIu64 ",\"sent\":%s", call,
                     sent ? "true" : "false");
    put_body(&trace->lines, body, bytes);
    end_line(trace);
}

gs_rpc_tap gs_trace_tap(gs_trace *trace) {
    return (gs_rpc_tap){.ctx = trace,
                        .request = request_came,
                        .gone = call_gone,
                        .answer = call_answered,
                        .item = item_sent};
}
