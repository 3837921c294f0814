#include "coordinator/observe/job_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/model/run.h"
#include "coordinator/observe/held.h"
#include "coordinator/observe/job_sight.h"
#include "coordinator/store/log_disk.h"
#include "core/clock.h"
#include "core/digest.h"
#include "core/log.h"

#define MAX_LIMIT 2000
// Lines of an ended job may still be on their way from an agent for that long.
#define AFTERMATH_NS (700 * GS_NS_PER_MS)

typedef struct gs_log_reader {
    gs_write base;
    gs_observer *observer;
    uint64_t job;
    gs_log_disk *disk;
    gs_rpc_call_handle *call;  // NULL: its caller is gone
    gs_held held;
    gs_log_query query;
    gs_log_answer answer;
    int64_t deadline_ns;
    bool busy, again;      // the writer has it; something came meanwhile
    bool final;            // asked after the job's last line
    struct gs_log_reader *next;
} gs_log_reader;

struct gs_job_log {
    gs_log_disk *disk;       // the writer's
    gs_log_reader *readers;  // waiting or being answered
    bool is_open;            // its disk may hold a file open, and marks
};

static void job_directory(char *path, size_t path_bytes, const gs_observer *observer,
                          const gs_job *job) {
    snprintf(path, path_bytes, "%s/jobs/%s", observer->data_dir, job->id_text);
}

gs_job_log *gs_job_log_create(gs_observer *observer, gs_job *job) {
    gs_job_log *log = calloc(1, sizeof *log);
    char directory[1200];
    job_directory(directory, sizeof directory, observer, job);
    if (log) log->disk = gs_log_disk_create(directory);
    if (log && log->disk) return log;
    free(log);
    return NULL;
}

void gs_job_log_destroy(gs_job_log *log) {
    if (!log) return;
    while (log->readers) {
        gs_log_reader *reader = log->readers;
        log->readers = reader->next;
        if (reader->call) gs_rpc_reply(reader->call, gs_error(GS_UNAVAILABLE, "stopping"), NULL);
        free(reader);
    }
    gs_log_disk_destroy(log->disk);
    free(log);
}

typedef struct gs_log_write {
    gs_write base;
    gs_observer *observer;
    uint64_t job;
    gs_log_disk *disk;
    gs_rpc_call_handle *call;
    gs_held held;
    size_t num_lines, num_refused;
    char **lines;    // owned
    uint64_t *keys;  // owned
    bool removes, rests;
    char aside[GS_ASIDE_LEN];  // where what it removes is
} gs_log_write;

static gs_status write_log(gs_write *base, gs_job_store *store) {
    (void)store;
    gs_log_write *write = (gs_log_write *)base;
    if (write->removes) return gs_log_disk_put_aside(write->disk, write->aside);
    if (write->rests) {
        gs_log_disk_rest(write->disk);
        return gs_ok();
    }
    for (size_t i = 0; i < write->num_lines; i++) {
        GS_TRY(gs_log_disk_append(write->disk, write->lines[i], write->keys[i]));
    }
    return gs_log_disk_flush(write->disk);
}

// An agent puts what is refused so into its own log.
static gs_status not_its_own(size_t count) {
    return gs_error(GS_PERMISSION_DENIED, "log: %zu lines are of ranks that this worker did not have", count);
}

static void log_written(gs_write *base, gs_status status) {
    gs_log_write *write = (gs_log_write *)base;
    if (status.code) gs_log_warn("log not written", "reason=\"%s\"", status.message);
    if (!status.code && write->num_refused) status = not_its_own(write->num_refused);
    if (write->call) gs_rpc_reply(write->call, status, status.code ? NULL : gs_json_new_object());
    gs_job *job = gs_job_table_get(&write->observer->state->jobs, write->job);
    if (job && write->num_lines > 0) gs_job_log_wake(write->observer, job);
    for (size_t i = 0; i < write->num_lines; i++) free(write->lines[i]);
    if (write->removes) {
        gs_leftovers_remove(write->observer->writer, write->aside);
        gs_log_disk_destroy(write->disk);
    }
    free(write->lines);
    free(write->keys);
    free(write);
}

static void submit_log(gs_observer *observer, const gs_job *job, gs_log_write *write) {
    write->base.run = write_log;
    write->base.done = log_written;
    write->base.lane = GS_LANE_LOGS;
    write->observer = observer;
    write->job = job->id;
    if (!write->disk) write->disk = job->sight->log->disk;
    job->sight->log->is_open = true;
    gs_writer_submit(observer->writer, &write->base);
}

void gs_job_log_remove(gs_observer *observer, gs_job *job) {
    gs_log_write *write = calloc(1, sizeof *write);
    if (write) {
        write->removes = true;
        write->disk = job->sight->log->disk;
        job->sight->log->disk = NULL;
    }
    // Readers that the writer has come back to find neither job nor list: they free themselves.
    for (gs_log_reader *reader = job->sight->log->readers; reader;) {
        gs_log_reader *next = reader->next;
        if (reader->call) {
            gs_rpc_reply(reader->call, gs_error(GS_NOT_FOUND, "the job was deleted"), NULL);
            reader->call = NULL;
        }
        if (!reader->busy) free(reader);
        reader = next;
    }
    job->sight->log->readers = NULL;
    if (write) submit_log(observer, job, write);
    gs_job_log_destroy(job->sight->log);
    job->sight->log = NULL;
}

void gs_job_log_rest(gs_observer *observer, gs_job *job) {
    gs_job_log *log = job->sight->log;
    gs_log_write *write = log->is_open && !log->readers ? calloc(1, sizeof *write) : NULL;
    if (!write) return;
    write->rests = true;
    submit_log(observer, job, write);
    log->is_open = false;
}

// Our own log lines carry their level; what else comes on standard error deserves to be seen.
static const char *level_of(const char *text, const char *stream) {
    const char *at = strstr(text, " level=");
    if (at && at - text < 64 && !strncmp(text, "ts=", 3)) {
        at += strlen(" level=");
        if (!strncmp(at, "debug", 5)) return "debug";
        if (!strncmp(at, "warn", 4)) return "warning";
        if (!strncmp(at, "error", 5)) return "error";
        return "info";
    }
    return strcmp(stream, "stderr") ? "info" : "warning";
}

static char *line_of(const gs_json *record, const gs_agent *agent, uint64_t *key) {
    const char *text = gs_json_string_or(record, "text", "");
    const char *stream = gs_json_string_or(record, "stream", "stdout");
    gs_json *line = gs_json_new_object();
    gs_json_set_time(line, "at", gs_json_int_or(record, "at_ms", 0));
    gs_json_set_int(line, "rank", gs_json_int_or(record, "rank", -1));
    gs_json_set_int(line, "generation", gs_json_int_or(record, "generation", 0));
    gs_json_set_string(line, "worker", agent->name);
    gs_json_set_string(line, "host", agent->host);
    gs_json_set_string(line, "stream", stream);
    gs_json_set_string(line, "level", level_of(text, stream));
    gs_json_set_string(line, "text", text);
    char *encoded = NULL;
    size_t bytes = 0;
    gs_status status = gs_json_encode(&encoded, &bytes, line, false);
    gs_json_release(line);
    if (status.code) return NULL;
    *key = gs_hash64(encoded, bytes, (uint64_t)gs_json_int_or(record, "position", 0));
    return encoded;
}

static void forget_log_call(void *owner, gs_rpc_call_handle *call) {
    (void)call;
    ((gs_log_write *)owner)->call = NULL;
}

// Why records are not taken. An agent repeats what is unavailable or exhausted and forgets the rest: after
// a restart of the coordinator its lines come before its hello, and must not be lost for that. NOT_FOUND: its
// own log is the only place for the lines of a job that nobody here knows, or not any more.
static gs_status refuse_records(const gs_agent *agent, const gs_job *job, const gs_json *request) {
    if (!agent) return gs_error(GS_UNAVAILABLE, "log: say hello first");
    if (!job) {
        return gs_error(GS_NOT_FOUND, "log: job %s is not known here", gs_json_string_or(request, "job", "?"));
    }
    if (gs_json_count(gs_json_get(request, "records")) == 0) return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "log: out of memory");
}

// Lines of ranks that it has, or had. Where nobody shows a key, anybody can be any worker.
static bool may_write(const gs_principal *caller, const gs_job *job, const char *worker, const gs_json *record) {
    int64_t rank = gs_json_int_or(record, "rank", -1), generation = gs_json_int_or(record, "generation", 0);
    const gs_run *run = job->run;
    if (!caller->is_known) return true;
    bool is_now = run && rank >= 0 && rank < run->num_members && (!generation || generation == run->generation);
    if (is_now && strcmp(run->members[rank].worker, worker) == 0) return true;
    return gs_past_ranks_have(&job->sight->past, worker, rank, generation);
}

// Acknowledged when the lines are in the file: a coordinator that is killed before loses none of them.
void gs_log_records(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request) {
    gs_observer *observer = ctx;
    gs_identity who = gs_identity_of_peer(peer);
    gs_agent *agent = gs_identity_find_agent(observer->state, &who);
    gs_job *job = gs_job_table_of_text(&observer->state->jobs, gs_json_string_or(request, "job", NULL));
    const gs_json *records = gs_json_get(request, "records");
    size_t count = gs_json_count(records);
    gs_log_write *write = agent && job && count ? calloc(1, sizeof *write) : NULL;
    if (write) {
        write->lines = calloc(count, sizeof *write->lines);
        write->keys = calloc(count, sizeof *write->keys);
    }
    if (!write || !write->lines || !write->keys) {
        gs_rpc_reply(call, refuse_records(agent, job, request), NULL);
        if (write) free(write->lines), free(write->keys);
        free(write);
        return;
    }
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        const gs_json *record = gs_json_at(records, i);
        if (!may_write(&who.principal, job, agent->name, record)) {
            write->num_refused++;
            continue;
        }
        char *line = line_of(record, agent, &write->keys[write->num_lines]);
        if (!line) continue;
        write->lines[write->num_lines++] = line;
        bytes += strlen(line);
    }
    if (!write->num_lines && write->num_refused) {
        gs_rpc_reply(call, not_its_own(write->num_refused), NULL);
        free(write->lines);
        free(write->keys);
        free(write);
        return;
    }
    write->base.bytes = bytes;
    write->call = call;
    gs_held_keep(&write->held, call, forget_log_call, write);
    if (job->sight->is_resting) gs_sight_use(job->sight);  // what this opens is closed again
    submit_log(observer, job, write);
}

static void unlink_reader(gs_job *job, gs_log_reader *reader) {
    gs_log_reader **link = &job->sight->log->readers;
    while (*link && *link != reader) link = &(*link)->next;
    if (*link) *link = reader->next;
}

static void forget_reader(void *owner, gs_rpc_call_handle *call) {
    (void)call;
    gs_log_reader *reader = owner;
    reader->call = NULL;
    if (reader->busy) return;
    gs_job *job = gs_job_table_get(&reader->observer->state->jobs, reader->job);
    if (job) unlink_reader(job, reader);
    free(reader);
}

static gs_status read_log(gs_write *base, gs_job_store *store) {
    (void)store;
    gs_log_reader *reader = (gs_log_reader *)base;
    return gs_log_disk_read(reader->disk, &reader->answer, &reader->query);
}

static bool is_silent(const gs_job *job) {
    return gs_sight_has_ended(job) && gs_now_ns() - job->ended_ns > AFTERMATH_NS;
}

static void log_read(gs_write *base, gs_status status);

static void submit_reader(gs_log_reader *reader, gs_job *job) {
    reader->busy = true;
    reader->again = false;
    reader->final = is_silent(job);
    reader->disk = job->sight->log->disk;
    job->sight->log->is_open = true;
    gs_sight_use(job->sight);
    reader->base = (gs_write){.run = read_log, .done = log_read, .lane = GS_LANE_LOGS};
    gs_writer_submit(reader->observer->writer, &reader->base);
}

static void log_read(gs_write *base, gs_status status) {
    gs_log_reader *reader = (gs_log_reader *)base;
    gs_job *job = gs_job_table_get(&reader->observer->state->jobs, reader->job);
    reader->busy = false;
    bool ended = reader->final && reader->answer.at_end;
    bool found = !status.code && gs_json_count(reader->answer.records) > 0;
    bool waits = job && reader->call && !status.code && !found && !ended &&
                 gs_now_ns() < reader->deadline_ns;
    if (waits) {
        gs_json_release(reader->answer.records);
        if (reader->query.since < reader->answer.cursor) reader->query.since = reader->answer.cursor;
        reader->answer = (gs_log_answer){0};
        if (reader->again) submit_reader(reader, job);
        return;
    }
    if (job) unlink_reader(job, reader);
    if (!reader->call || status.code) {
        gs_json_release(reader->answer.records);
        if (reader->call) gs_rpc_reply(reader->call, status, NULL);
    } else {
        gs_json *reply = gs_json_new_object();
        gs_json_set(reply, "records", reader->answer.records);
        gs_json_set_u64(reply, "cursor", reader->answer.cursor);
        gs_json_set_bool(reply, "ended", ended);
        gs_rpc_reply(reader->call, gs_ok(), reply);
    }
    free(reader);
}

void gs_job_log_wake(gs_observer *observer, gs_job *job) {
    (void)observer;
    if (!job->sight->log) return;
    gs_log_reader *next;
    for (gs_log_reader *reader = job->sight->log->readers; reader; reader = next) {
        next = reader->next;
        if (reader->busy) reader->again = true;
        else submit_reader(reader, job);
    }
}

void gs_job_log_tick(gs_observer *observer, gs_job *job) {
    (void)observer;
    int64_t now_ns = gs_now_ns();
    gs_log_reader *next;
    for (gs_log_reader *reader = job->sight->log->readers; reader; reader = next) {
        next = reader->next;
        if (!reader->busy && (now_ns >= reader->deadline_ns || is_silent(job))) {
            submit_reader(reader, job);
        }
    }
}

static gs_status read_ranks(gs_log_query *query, const char *text) {
    if (!text) return gs_ok();
    query->all_ranks = !strcmp(text, "all");
    while (!query->all_ranks && *text) {
        char *end = NULL;
        long rank = strtol(text, &end, 10);
        if (end == text || rank < 0 || (*end && *end != ',') || query->num_ranks == GS_LOG_MAX_RANKS) {
            return gs_error(GS_INVALID_ARGUMENT, "rank: must be \"all\" or numbers like \"0,3\"");
        }
        query->ranks[query->num_ranks++] = rank;
        text = *end ? end + 1 : end;
    }
    return gs_ok();
}

static int64_t clamp(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
}

static gs_status read_query(gs_log_query *query, const gs_json *request) {
    GS_TRY(read_ranks(query, gs_json_string_or(request, "rank", NULL)));
    const char *level = gs_json_string_or(request, "level", "debug");
    query->least_level = gs_log_level_rank(level);
    if (query->least_level < 0) {
        return gs_error(GS_INVALID_ARGUMENT, "level: must be debug, info, warning or error");
    }
    snprintf(query->stream, sizeof query->stream, "%s", gs_json_string_or(request, "stream", ""));
    const char *grep = gs_json_string_or(request, "grep", "");
    if (strlen(grep) >= sizeof query->grep) {
        return gs_error(GS_INVALID_ARGUMENT, "grep: longer than %zu bytes", sizeof query->grep - 1);
    }
    snprintf(query->grep, sizeof query->grep, "%s", grep);
    int64_t since = gs_json_int_or(request, "since", -1);  // cursors are strings; a number will do
    if (since >= 0) query->since = (uint64_t)since;
    else if (gs_json_get(request, "since")) GS_TRY(gs_json_read_u64(&query->since, request, "since"));
    query->tail = clamp(gs_json_int_or(request, "tail", 0), 0, MAX_LIMIT);
    query->generation = gs_json_int_or(request, "generation", -1);
    query->limit = clamp(gs_json_int_or(request, "limit", 1000), 1, MAX_LIMIT);
    return gs_ok();
}

void gs_read_logs(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                  const gs_json *request) {
    (void)peer;
    gs_observer *observer = ctx;
    gs_job *job = NULL;
    gs_json *details = NULL;
    gs_status status = gs_observer_find_job(observer, &job, &details, request);
    gs_log_reader *reader = status.code ? NULL : calloc(1, sizeof *reader);
    if (!status.code && !reader) status = gs_error(GS_RESOURCE_EXHAUSTED, "log: out of memory");
    if (!status.code) status = read_query(&reader->query, request);
    if (status.code) {
        free(reader);
        gs_rpc_reply(call, status, details);
        return;
    }
    double wait_seconds = gs_json_double_or(request, "wait_seconds", 0);
    if (!(wait_seconds >= 0)) wait_seconds = 0;
    if (wait_seconds > 60) wait_seconds = 60;
    reader->observer = observer;
    reader->job = job->id;
    reader->deadline_ns = gs_now_ns() + (int64_t)(wait_seconds * (double)GS_NS_PER_SEC);
    reader->call = call;
    reader->next = job->sight->log->readers;
    job->sight->log->readers = reader;
    gs_held_keep(&reader->held, call, forget_reader, reader);
    submit_reader(reader, job);
}
