#include "coordinator/observe/curves.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/job_sight.h"
#include "coordinator/store/curve_file.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/strbuf.h"

#define RETRY_NS GS_NS_PER_SEC

typedef enum where {
    IN_MEMORY = 0,
    ON_DISK,  // what a former life wrote
    COMING,
    NOT_READ,  // of an ended job, when it was tried: whoever asks again tries again
} where;

struct gs_curves {
    gs_strbuf pending;  // lines that are not on their way yet
    bool is_writing;    // one at a time, so that they keep their order
    int64_t retry_ns;   // behind a write that failed; 0: the last one did not
    where are;
};

typedef struct transfer {
    gs_write base;
    gs_observer *observer;
    uint64_t job;
    char directory[1200];
    char *text;  // owned
    size_t bytes;
    gs_job_metrics *read;  // owned
} transfer;

gs_curves *gs_curves_create(bool was_stored) {
    gs_curves *curves = calloc(1, sizeof *curves);
    if (curves) curves->are = was_stored ? ON_DISK : IN_MEMORY;
    return curves;
}

void gs_curves_destroy(gs_curves *curves) {
    if (!curves) return;
    gs_strbuf_release(&curves->pending);
    free(curves);
}

// The oldest go, so that at most as many bytes are left.
static void drop_lines(gs_observer *observer, gs_curves *curves, size_t most) {
    if (curves->pending.len <= most) return;
    const char *text = gs_strbuf_text(&curves->pending), *from = text + (curves->pending.len - most);
    const char *end = memchr(from, '\n', most);
    gs_strbuf kept = {0};
    uint64_t lost = 0;
    const char *first = end ? end + 1 : text + curves->pending.len;
    for (const char *at = text; at < first; at++) lost += *at == '\n';
    gs_strbuf_add(&kept, first, (size_t)(text + curves->pending.len - first));
    gs_strbuf_release(&curves->pending);
    curves->pending = kept;
    observer->limits_reached[GS_LIMIT_CURVES] += lost;
}

void gs_curves_note(gs_observer *observer, gs_job *job, const gs_json *entry) {
    gs_curves *curves = job->sight->curves;
    char *text = NULL;
    gs_status status = gs_json_encode(&text, NULL, entry, false);
    if (status.code) return;
    gs_strbuf_puts(&curves->pending, text);
    gs_strbuf_putc(&curves->pending, '\n');
    free(text);
    // A disk that hangs says neither yes nor no. A quarter at once: each time all that stays is copied.
    if (curves->pending.len > GS_CURVES_MAX_PENDING) drop_lines(observer, curves, GS_CURVES_MAX_PENDING / 4 * 3);
}

static transfer *make_transfer(gs_observer *observer, const gs_job *job) {
    transfer *it = calloc(1, sizeof *it);
    if (!it) return NULL;
    it->base.lane = GS_LANE_LOGS;
    it->observer = observer;
    it->job = job->id;
    snprintf(it->directory, sizeof it->directory, "%s/jobs/%s", observer->data_dir, job->id_text);
    return it;
}

static gs_curves *curves_of(const transfer *it, gs_job **job) {
    *job = gs_job_table_get(&it->observer->state->jobs, it->job);
    return *job && (*job)->sight ? (*job)->sight->curves : NULL;
}

static gs_status append(gs_write *base, gs_job_store *store) {
    (void)store;
    const transfer *it = (const transfer *)base;
    return gs_curve_file_append(it->directory, it->text, it->bytes);
}

static void appended(gs_write *base, gs_status status) {
    transfer *it = (transfer *)base;
    gs_job *job = NULL;
    gs_curves *curves = curves_of(it, &job);
    // Said once: a disk that is full stays so for long, and each job has its curves.
    if (status.code && (!curves || !curves->retry_ns))
        gs_log_warn("curves not written", "job=%s reason=\"%s\"", job ? job->id_text : "", status.message);
    if (!status.code && curves && curves->retry_ns) gs_log_info("curves written again", "job=%s", job->id_text);
    if (curves) {
        curves->is_writing = false;
        curves->retry_ns = status.code ? gs_now_ns() + RETRY_NS : 0;
    }
    if (status.code && curves) {
        gs_strbuf again = {0};
        gs_strbuf_add(&again, it->text, it->bytes);
        gs_strbuf_add(&again, gs_strbuf_text(&curves->pending), curves->pending.len);
        gs_strbuf_release(&curves->pending);
        curves->pending = again;
        drop_lines(it->observer, curves, GS_CURVES_MAX_PENDING);
    }
    free(it->text);
    free(it);
}

static void submit_lines(gs_observer *observer, gs_job *job) {
    gs_curves *curves = job->sight->curves;
    if (curves->pending.len == 0 || curves->is_writing) return;
    transfer *it = make_transfer(observer, job);
    if (!it) return;
    it->bytes = curves->pending.len;
    it->text = gs_strbuf_take(&curves->pending);
    it->base.run = append;
    it->base.done = appended;
    it->base.bytes = it->bytes;
    curves->is_writing = true;
    if (it->text) gs_writer_submit(observer->writer, &it->base);
    else appended(&it->base, gs_error(GS_RESOURCE_EXHAUSTED, "curves: out of memory"));
}

static gs_status read_lines(gs_write *base, gs_job_store *store) {
    (void)store;
    transfer *it = (transfer *)base;
    GS_TRY(gs_curve_file_read(&it->text, &it->bytes, it->directory));
    it->read = gs_job_metrics_create();
    if (!it->read) return gs_error(GS_RESOURCE_EXHAUSTED, "curves: out of memory");
    gs_job_metrics_draw_lines(it->read, it->text);
    return gs_ok();
}

static void have_read(gs_write *base, gs_status status) {
    transfer *it = (transfer *)base;
    gs_job *job = NULL;
    gs_curves *curves = curves_of(it, &job);
    it->observer->num_curves_coming--;
    if (status.code && status.code != GS_NOT_FOUND)
        gs_log_warn("curves not read", "job=%s reason=\"%s\"", job ? job->id_text : "", status.message);
    if (curves) {
        gs_job_metrics *metrics = it->read ? gs_sight_own_metrics(it->observer, job) : NULL;
        if (metrics) gs_job_metrics_put_before(metrics, it->read);
        bool has_failed = status.code && status.code != GS_NOT_FOUND;
        curves->are = has_failed && gs_job_state_terminal(job->state) ? NOT_READ : IN_MEMORY;
    }
    gs_job_metrics_destroy(it->read);
    free(it->text);
    free(it);
}

static bool submit_read(gs_observer *observer, gs_job *job) {
    transfer *it = make_transfer(observer, job);
    if (!it) return false;
    it->base.lane = GS_LANE_READS;  // no line of a log waits for it
    it->base.run = read_lines;
    it->base.done = have_read;
    job->sight->curves->are = COMING;
    observer->num_curves_coming++;
    gs_writer_submit(observer->writer, &it->base);
    return true;
}

void gs_curves_part(gs_observer *observer, gs_job *job) { submit_lines(observer, job); }

bool gs_curves_tick(gs_observer *observer, gs_job *job, bool reads) {
    int64_t retry_ns = job->sight->curves->retry_ns;
    if (!retry_ns || gs_now_ns() >= retry_ns) submit_lines(observer, job);
    where are = job->sight->curves->are;
    return reads && (are == ON_DISK || are == NOT_READ) && submit_read(observer, job);
}

bool gs_curves_are_missing(const gs_job *job) { return job->sight->curves->are != IN_MEMORY; }

bool gs_curves_are_unreadable(const gs_job *job) { return job->sight->curves->are == NOT_READ; }

bool gs_curves_are_moving(const gs_job *job) {
    const gs_curves *curves = job->sight->curves;
    return curves->pending.len > 0 || curves->is_writing || curves->are == COMING;
}

void gs_curves_let_go(gs_job *job) {
    if (job->sight->curves->are == IN_MEMORY) job->sight->curves->are = ON_DISK;
}
