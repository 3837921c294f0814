#include "rpc/keys/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/thread.h"
#include "rpc/json/json.h"

enum { SYNC_MS = 1000, MOST_PATH = 200, TAIL_BYTES = 64 << 10, MOST_POSTED = 10000 };

// One file and those it was renamed to. Everything belongs to the audit's lock.
typedef struct ring {
    char path[PATH_MAX];
    int fd;  // −1: it could not be opened
    uint64_t bytes, next_seq;
    bool is_dirty;
} ring;

typedef struct posted {
    STAILQ_ENTRY(posted) next;
    bool is_other;  // it goes to the second file
    char *text;
} posted;

struct gs_audit {
    ring calls, refused;
    uint64_t most_bytes;
    unsigned most_files;
    atomic_uint_fast64_t lost;
    gs_thread *syncer;
    pthread_mutex_t lock;  // of the files; held while they are written
    pthread_mutex_t posting;  // of what follows; never held over the disk
    pthread_cond_t changed;
    STAILQ_HEAD(, posted) posted;
    size_t num_posted;
};

static const char *const kind_words[] = {"asked", "answered", "refused"};

// The number of the last whole line among the last bytes of a file; 0: there is none.
static uint64_t last_seq(int fd, uint64_t bytes, bool *is_cut) {
    uint64_t from = bytes > TAIL_BYTES ? bytes - TAIL_BYTES : 0, seq = 0;
    char *tail = malloc(TAIL_BYTES + 1);
    ssize_t got = tail ? pread(fd, tail, TAIL_BYTES, (off_t)from) : -1;
    *is_cut = got > 0 && tail[got - 1] != '\n';
    if (got < 0) got = 0;
    if (tail) tail[got] = '\0';
    for (char *line = tail, *end; line && (end = memchr(line, '\n', (size_t)(tail + got - line))); line = end + 1) {
        unsigned long long read = 0;
        if (sscanf(line, "{\"seq\":%llu,", &read) == 1 && read > seq) seq = read;
    }
    free(tail);
    return seq;
}

static gs_status open_file(ring *it) {
    struct stat facts;
    it->fd = open(it->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (it->fd < 0) return gs_error_from_errno(errno, "audit: %s", it->path);
    gs_status status = gs_ok();
    if (fstat(it->fd, &facts) != 0) status = gs_error_from_errno(errno, "audit: %s", it->path);
    else if (!S_ISREG(facts.st_mode) || (facts.st_uid != geteuid() && facts.st_uid != 0 && geteuid() != 0) || (facts.st_mode & (S_IWGRP | S_IWOTH)))
        status = gs_error(GS_FAILED_PRECONDITION, "audit: %s is no regular file that only this user may write", it->path);
    if (status.code) {
        close(it->fd);
        it->fd = -1;
        return status;
    }
    it->bytes = (uint64_t)facts.st_size;
    return gs_ok();
}

// Its number goes on where it was: a file that was renamed the moment before is looked into too.
static gs_status open_ring(ring *it) {
    char before[PATH_MAX + 16];
    bool is_cut = false, is_cut_before;
    GS_TRY(open_file(it));
    uint64_t seq = last_seq(it->fd, it->bytes, &is_cut);
    if (is_cut && write(it->fd, "\n", 1) == 1) it->bytes++;
    snprintf(before, sizeof before, "%s.1", it->path);
    struct stat facts;
    int fd = seq ? -1 : open(before, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && fstat(fd, &facts) == 0) seq = last_seq(fd, (uint64_t)facts.st_size, &is_cut_before);
    if (fd >= 0) close(fd);
    it->next_seq = seq + 1;
    return gs_ok();
}

// From the oldest on: killed in between, a number is missing, and no line.
static void rename_files(const ring *it, unsigned most_files) {
    char from[PATH_MAX + 16], to[PATH_MAX + 16];
    for (unsigned i = most_files; i > 0; i--) {
        snprintf(to, sizeof to, "%s.%u", it->path, i);
        if (i > 1) snprintf(from, sizeof from, "%s.%u", it->path, i - 1);
        else snprintf(from, sizeof from, "%s", it->path);
        if (rename(from, to) != 0 && errno != ENOENT)
            gs_log_error("audit file cannot be renamed", "path=%s reason=\"%s\"", from, strerror(errno));
    }
}

static void begin_next_file(gs_audit *audit, ring *it) {
    fdatasync(it->fd);
    close(it->fd);
    it->fd = -1;
    rename_files(it, audit->most_files);
    gs_status status = open_file(it);
    if (status.code) gs_log_error("audit file cannot be opened", "reason=\"%s\"", status.message);
}

static gs_json *new_line(const gs_audit_line *line) {
    char path[MOST_PATH + 1];
    snprintf(path, sizeof path, "%s", line->path);
    gs_json *json = gs_json_new_object();
    gs_json_set_time(json, "at", gs_wall_ms());
    gs_json_set_string(json, "event", kind_words[line->kind]);
    if (*line->request_id) gs_json_set_string(json, "id", line->request_id);
    gs_json_set_string(json, "method", line->method);
    gs_json_set_string(json, "route", line->route);
    if (*path) gs_json_set_string(json, "path", path);
    if (*line->token) gs_json_set_string(json, "token", line->token);
    if (*line->name) gs_json_set_string(json, "name", line->name);
    if (*line->role) gs_json_set_string(json, "role", line->role);
    if (line->by && *line->by) gs_json_set_string(json, "by", line->by);
    gs_json_set_string(json, "from", line->from);
    if (line->count) gs_json_set_int(json, "count", (int64_t)line->count);
    if (line->result) gs_json_set_string(json, "result", line->result);
    if (line->status) gs_json_set_int(json, "status", line->status);
    if (line->made) gs_json_set_string(json, "made", line->made);
    if (line->status || (line->result && line->kind == GS_AUDIT_ANSWERED)) gs_json_set_double(json, "seconds", line->seconds);
    return json;
}

// Under the lock. `text` is an object; its number is put before its members, and it ends with a line break. In one write: lines
// of other processes, and what a full disk leaves, do not mix with it.
static bool append_line(gs_audit *audit, ring *it, const char *text) {
    if (it->fd >= 0 && it->bytes >= audit->most_bytes) begin_next_file(audit, it);
    if (it->fd < 0 && open_file(it).code) return false;
    char *whole = NULL;
    int bytes = asprintf(&whole, "{\"seq\":%" PRIu64 ",%s\n", it->next_seq, text + 1);
    if (bytes < 0) return false;
    ssize_t put = write(it->fd, whole, (size_t)bytes);
    free(whole);
    if (put > 0) it->bytes += (uint64_t)put;
    it->is_dirty = true;
    if (put == bytes) {
        it->next_seq++;
        return true;
    }
    // A part of it is there: cut off again, so that the next line is one.
    if (put > 0 && ftruncate(it->fd, (off_t)(it->bytes - (uint64_t)put)) == 0) it->bytes -= (uint64_t)put;
    return false;
}

static char *text_of(const gs_audit_line *line) {
    char *text = NULL;
    gs_json *json = new_line(line);
    gs_status status = gs_json_encode(&text, NULL, json, false);
    gs_json_release(json);
    return status.code ? NULL : text;
}

static bool is_for_other(const gs_audit_line *line) { return line->is_lesser || line->kind == GS_AUDIT_REFUSED; }

static void lose_line(gs_audit *audit, const char *text) {
    char quoted[1024];
    atomic_fetch_add(&audit->lost, 1);
    gs_log_error("audit line cannot be written", "line=%s", gs_log_quote(quoted, sizeof quoted, text ? text : "?"));
}

// Takes the text.
static void write_text(gs_audit *audit, bool is_other, char *text) {
    pthread_mutex_lock(&audit->lock);
    bool is_there = text && append_line(audit, is_other ? &audit->refused : &audit->calls, text);
    pthread_mutex_unlock(&audit->lock);
    if (!is_there) lose_line(audit, text);
    free(text);
}

void gs_audit_write(gs_audit *audit, const gs_audit_line *line) {
    if (audit) write_text(audit, is_for_other(line), text_of(line));
}

void gs_audit_post(gs_audit *audit, const gs_audit_line *line) {
    if (!audit) return;
    posted *it = calloc(1, sizeof *it);
    char *text = text_of(line);
    bool has_room = false;
    if (it && text) {
        *it = (posted){.is_other = is_for_other(line), .text = text};
        pthread_mutex_lock(&audit->posting);
        has_room = audit->num_posted < MOST_POSTED;
        if (has_room) {
            STAILQ_INSERT_TAIL(&audit->posted, it, next);
            audit->num_posted++;
            pthread_cond_signal(&audit->changed);
        }
        pthread_mutex_unlock(&audit->posting);
    }
    if (has_room) return;
    lose_line(audit, text);
    free(text);
    free(it);
}

static posted *take_posted(gs_audit *audit) {
    pthread_mutex_lock(&audit->posting);
    posted *it = STAILQ_FIRST(&audit->posted);
    if (it) {
        STAILQ_REMOVE_HEAD(&audit->posted, next);
        audit->num_posted--;
    }
    pthread_mutex_unlock(&audit->posting);
    return it;
}

static void write_posted(gs_audit *audit) {
    for (posted *it; (it = take_posted(audit));) {
        write_text(audit, it->is_other, it->text);
        free(it);
    }
}

uint64_t gs_audit_lost(const gs_audit *audit) {
    return audit ? atomic_load(&audit->lost) : 0;
}

// Not under the lock: requests wait for no disk.
static void sync_ring(gs_audit *audit, ring *it) {
    pthread_mutex_lock(&audit->lock);
    int fd = it->is_dirty && it->fd >= 0 ? fcntl(it->fd, F_DUPFD_CLOEXEC, 0) : -1;
    it->is_dirty = false;
    pthread_mutex_unlock(&audit->lock);
    if (fd < 0) return;
    fdatasync(fd);
    close(fd);
}

static void sync_files(void *ctx, const atomic_bool *stopping) {
    gs_audit *audit = ctx;
    gs_deadline sync = gs_deadline_in_ms(SYNC_MS);
    for (bool goes_on = true; goes_on;) {
        goes_on = !atomic_load(stopping);
        write_posted(audit);
        if (!goes_on || gs_deadline_passed(sync)) {
            sync_ring(audit, &audit->calls);
            sync_ring(audit, &audit->refused);
            sync = gs_deadline_in_ms(SYNC_MS);
        }
        pthread_mutex_lock(&audit->posting);
        if (goes_on && !atomic_load(stopping) && STAILQ_EMPTY(&audit->posted)) gs_cond_wait(&audit->changed, &audit->posting, sync);
        pthread_mutex_unlock(&audit->posting);
    }
}

gs_status gs_audit_open(gs_audit **out, const gs_audit_options *options) {
    if (strlen(options->path) + 32 >= PATH_MAX) return gs_error(GS_INVALID_ARGUMENT, "audit: the path is too long");
    gs_audit *audit = calloc(1, sizeof *audit);
    if (!audit) return gs_error(GS_RESOURCE_EXHAUSTED, "audit: out of memory");
    pthread_mutex_init(&audit->lock, NULL);
    pthread_mutex_init(&audit->posting, NULL);
    STAILQ_INIT(&audit->posted);
    gs_cond_init(&audit->changed);
    audit->calls.fd = audit->refused.fd = -1;
    audit->most_bytes = options->most_bytes ? options->most_bytes : 16 << 20;
    audit->most_files = options->most_files ? options->most_files : 8;
    snprintf(audit->calls.path, sizeof audit->calls.path, "%s", options->path);
    snprintf(audit->refused.path, sizeof audit->refused.path, "%s.refused", options->path);
    gs_status status = open_ring(&audit->calls);
    if (!status.code) status = open_ring(&audit->refused);
    if (!status.code) status = gs_thread_start(&audit->syncer, "audit", sync_files, audit);
    if (status.code) {
        gs_audit_close(audit);
        return status;
    }
    *out = audit;
    return gs_ok();
}

void gs_audit_close(gs_audit *audit) {
    if (!audit) return;
    if (audit->syncer) {
        pthread_mutex_lock(&audit->posting);
        gs_thread_ask_to_stop(audit->syncer);
        pthread_cond_broadcast(&audit->changed);
        pthread_mutex_unlock(&audit->posting);
        gs_thread_stop(audit->syncer);
    }
    if (audit->calls.fd >= 0) close(audit->calls.fd);
    if (audit->refused.fd >= 0) close(audit->refused.fd);
    pthread_cond_destroy(&audit->changed);
    pthread_mutex_destroy(&audit->posting);
    pthread_mutex_destroy(&audit->lock);
    free(audit);
}
