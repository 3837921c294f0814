#include "worker/agent/agent_reports.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/thread.h"
#include "rpc/schema/messages.h"

#define DEFAULT_LOG_BYTES (8u * 1024 * 1024)
// Lines wait for company this long.
#define BATCH_NS (100 * GS_NS_PER_MS)
// Six times as much when every byte must be escaped: still below the largest body.
#define BATCH_BYTES (128u * 1024)
#define BATCH_RECORDS 1000
#define BATCH_LOOK 8192  // lines that are looked at for one: other jobs' stay where they are
#define CALL_SECONDS 1.0
#define RETRY_NS (200 * GS_NS_PER_MS)

typedef struct entry {
    struct entry *next;
    gs_log_record record;
    int64_t since_ns;
    char job[24];
    char text[];
} entry;

// Empty lines take memory too.
static size_t entry_bytes(const gs_log_record *record) {
    return sizeof(entry) + record->bytes;
}

typedef struct pending_exit {
    struct pending_exit *next;
    gs_json *request;
} pending_exit;

struct gs_agent_reports {
    gs_rpc_client *client;
    size_t max_log_bytes;
    gs_thread *thread;

    pthread_mutex_t lock;  // of what follows
    pthread_cond_t changed;
    entry *first, *last;
    size_t log_bytes;
    uint64_t dropped;  // lines, since the last that was kept
    pending_exit *exits;
};

static gs_status send_request(gs_agent_reports *reports, gs_method method, const gs_json *request) {
    gs_json *reply = NULL;
    gs_status status =
        gs_rpc_call(reports->client, method, request, &reply, gs_deadline_in_seconds(CALL_SECONDS));
    gs_json_release(reply);
    return status;
}

static bool is_worth_repeating(gs_status status) {
    return status.code == GS_UNAVAILABLE || status.code == GS_DEADLINE_EXCEEDED ||
           status.code == GS_RESOURCE_EXHAUSTED;
}

static gs_json *encode_record(const gs_log_record *record) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "rank", record->rank);
    gs_json_set_int(out, "generation", record->generation);
    gs_json_set_string(out, "stream", record->stream);
    gs_json_set(out, "text", gs_json_new_string_len(record->text, record->bytes));
    gs_json_set_int(out, "at_ms", record->at_ms);
    gs_json_set_int(out, "position", record->position);
    return out;
}

// Lines of the job that has waited longest, however others' lie between them; they stay until they are acknowledged.
// Under the lock.
static gs_json *encode_batch(const gs_agent_reports *reports, int *count) {
    gs_json *out = gs_json_new_object(), *records = gs_json_new_array();
    const char *job = reports->first->job;
    size_t bytes = 0;
    int looked = 0;
    *count = 0;
    for (const entry *at = reports->first; at && *count < BATCH_RECORDS && looked < BATCH_LOOK; at = at->next, looked++) {
        if (strcmp(at->job, job) != 0) continue;
        if (*count && bytes + at->record.bytes > BATCH_BYTES) break;
        gs_json_push(records, encode_record(&at->record));
        bytes += at->record.bytes;
        (*count)++;
    }
    gs_json_set_string(out, "job", job);
    gs_json_set(out, "records", records);
    return out;
}

static void drop_first(gs_agent_reports *reports) {
    entry *gone = reports->first;
    reports->first = gone->next;
    if (!reports->first) reports->last = NULL;
    reports->log_bytes -= entry_bytes(&gone->record);
    free(gone);
}

// The first `count` lines of the first one's job. Under the lock.
static void drop_batch(gs_agent_reports *reports, int count) {
    char job[sizeof reports->first->job];
    snprintf(job, sizeof job, "%s", reports->first->job);
    entry *kept = NULL;
    for (entry **link = &reports->first; *link && count > 0;) {
        entry *at = *link;
        if (strcmp(at->job, job) != 0) {
            kept = at;
            link = &at->next;
            continue;
        }
        *link = at->next;
        if (reports->last == at) reports->last = kept;
        reports->log_bytes -= entry_bytes(&at->record);
        free(at);
        count--;
    }
}

// Called and left with the lock held.
static bool send_exit(gs_agent_reports *reports) {
    pending_exit *exit = reports->exits;
    pthread_mutex_unlock(&reports->lock);
    gs_status status = send_request(reports, GS_EXITED, exit->request);
    pthread_mutex_lock(&reports->lock);
    if (is_worth_repeating(status)) return false;
    if (status.code) gs_log_warn("exit not accepted", "reason=\"%s\"", status.message);
    reports->exits = exit->next;
    gs_json_release(exit->request);
    free(exit);
    return true;
}

// Lines that the coordinator does not take (their job is unknown to it) have no other place.
static void print_batch(const entry *at, int count) {
    const char *job = at->job;
    for (;; at = at->next) {
        char line[1000], text[1100];
        if (strcmp(at->job, job) != 0) continue;
        snprintf(line, sizeof line, "%.*s", (int)at->record.bytes, at->record.text);
        gs_log_info("line that no coordinator took", "job=%s rank=%lld text=%s", at->job,
                    (long long)at->record.rank, gs_log_quote(text, sizeof text, line));
        if (--count == 0) return;  // its `next` is another thread's to write
    }
}

static bool send_batch(gs_agent_reports *reports) {
    int count;
    gs_json *request = encode_batch(reports, &count);
    pthread_mutex_unlock(&reports->lock);
    gs_status status = send_request(reports, GS_LOG, request);
    gs_json_release(request);
    bool refused = status.code && !is_worth_repeating(status);
    if (refused && status.code != GS_NOT_FOUND)
        gs_log_warn("log lines not accepted", "reason=\"%s\"", status.message);
    if (refused) print_batch(reports->first, count);
    pthread_mutex_lock(&reports->lock);
    if (is_worth_repeating(status)) return false;
    drop_batch(reports, count);
    return true;
}

static void run(void *ctx, const atomic_bool *stopping) {
    gs_agent_reports *reports = ctx;
    pthread_mutex_lock(&reports->lock);
    while (!atomic_load(stopping)) {
        int64_t due_ns = reports->first ? reports->first->since_ns + BATCH_NS - gs_now_ns() : 0;
        bool sent = true;
        if (reports->exits)
            sent = send_exit(reports);
        else if (reports->first && (due_ns <= 0 || reports->log_bytes > BATCH_BYTES))
            sent = send_batch(reports);
        else
            gs_cond_wait(&reports->changed, &reports->lock,
                         gs_deadline_in_ns(reports->first ? due_ns : 10 * BATCH_NS));
        if (!reports->exits && !reports->first) pthread_cond_broadcast(&reports->changed);
        if (sent) continue;
        pthread_mutex_unlock(&reports->lock);
        gs_sleep_ns(RETRY_NS);
        pthread_mutex_lock(&reports->lock);
    }
    pthread_mutex_unlock(&reports->lock);
}

gs_status gs_agent_reports_create(gs_agent_reports **out, gs_rpc_client *client,
                                  size_t max_log_bytes) {
    gs_agent_reports *reports = calloc(1, sizeof *reports);
    if (!reports) return gs_error(GS_RESOURCE_EXHAUSTED, "agent reports: out of memory");
    reports->client = client;
    reports->max_log_bytes = max_log_bytes ? max_log_bytes : DEFAULT_LOG_BYTES;
    pthread_mutex_init(&reports->lock, NULL);
    gs_cond_init(&reports->changed);
    gs_status status = gs_thread_start(&reports->thread, "gs-reports", run, reports);
    if (status.code) {
        gs_agent_reports_destroy(reports);
        return status;
    }
    *out = reports;
    return gs_ok();
}

void gs_agent_reports_destroy(gs_agent_reports *reports) {
    if (!reports) return;
    gs_thread_ask_to_stop(reports->thread);
    pthread_mutex_lock(&reports->lock);
    pthread_cond_broadcast(&reports->changed);
    pthread_mutex_unlock(&reports->lock);
    gs_thread_stop(reports->thread);
    while (reports->first) drop_first(reports);
    while (reports->exits) {
        pending_exit *exit = reports->exits;
        reports->exits = exit->next;
        gs_json_release(exit->request);
        free(exit);
    }
    pthread_cond_destroy(&reports->changed);
    pthread_mutex_destroy(&reports->lock);
    free(reports);
}

static entry *copy_record(const gs_log_record *record) {
    entry *copy = malloc(entry_bytes(record));
    if (!copy) return NULL;
    copy->next = NULL;
    copy->record = *record;
    snprintf(copy->job, sizeof copy->job, "%s", record->job);
    memcpy(copy->text, record->text, record->bytes);
    copy->record.job = copy->job;
    copy->record.text = copy->text;
    return copy;
}

static void append(gs_agent_reports *reports, entry *added) {
    if (!added) return;
    added->since_ns = gs_now_ns();
    if (reports->last)
        reports->last->next = added;
    else
        reports->first = added;
    reports->last = added;
    reports->log_bytes += entry_bytes(&added->record);
}

// The newest lines give way: those that are kept are the ones that a batch in flight may hold.
// Under the lock.
static void append_bounded(gs_agent_reports *reports, const gs_log_record *record) {
    if (reports->log_bytes + entry_bytes(record) > reports->max_log_bytes) {
        reports->dropped++;
        return;
    }
    if (reports->dropped) {
        char text[96];
        int bytes = snprintf(text, sizeof text, "[%llu lines dropped: the coordinator was away]",
                             (unsigned long long)reports->dropped);
        gs_log_record mark = *record;
        mark.text = text;
        mark.bytes = (size_t)bytes;
        mark.position--;  // of a line that was dropped
        reports->dropped = 0;
        append(reports, copy_record(&mark));
    }
    append(reports, copy_record(record));
}

void gs_agent_reports_add_line(gs_agent_reports *reports, const gs_log_record *record) {
    pthread_mutex_lock(&reports->lock);
    bool was_empty = reports->first == NULL;
    append_bounded(reports, record);
    if (was_empty || reports->log_bytes > BATCH_BYTES) pthread_cond_broadcast(&reports->changed);
    pthread_mutex_unlock(&reports->lock);
}

void gs_agent_reports_add_exit(gs_agent_reports *reports, gs_json *exited) {
    pending_exit *exit = calloc(1, sizeof *exit);
    if (!exit) {
        gs_json_release(exited);
        return;
    }
    exit->request = exited;
    pthread_mutex_lock(&reports->lock);
    pending_exit **at = &reports->exits;
    while (*at) at = &(*at)->next;
    *at = exit;
    pthread_cond_broadcast(&reports->changed);
    pthread_mutex_unlock(&reports->lock);
}

void gs_agent_reports_flush(gs_agent_reports *reports, gs_deadline deadline) {
    pthread_mutex_lock(&reports->lock);
    while ((reports->first || reports->exits) && !gs_deadline_passed(deadline)) {
        gs_cond_wait(&reports->changed, &reports->lock, deadline);
    }
    pthread_mutex_unlock(&reports->lock);
}
