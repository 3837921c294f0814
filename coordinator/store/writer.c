#include "coordinator/store/writer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "coordinator/store/trace.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/thread.h"

#define MAX_QUEUED 65536
#define MAX_QUEUED_BYTES ((size_t)128 << 20)  // of a lane
#define LEAST_BYTES 512                       // of a write
#define MAX_TOGETHER 256

typedef struct lane {
    gs_writer *writer;
    gs_queue *queue;
    gs_thread *thread;
    _Atomic size_t waiting_bytes;
} lane;

struct gs_writer {
    gs_job_store *store;  // of the thread of rows once it runs; its reader of that of reads
    lane lanes[GS_NUM_LANES];
    uint64_t num_submitted, num_refused;
    atomic_bool is_stopping;
    int wake_fd;
    gs_trace *trace;
    pthread_mutex_t lock;  // guards finished
    gs_write *finished, **finished_end;
};

static size_t bytes_of(const gs_write *write) { return LEAST_BYTES + write->bytes; }

static void finish_write(gs_writer *writer, gs_write *item) {
    atomic_fetch_sub(&writer->lanes[item->lane].waiting_bytes, bytes_of(item));
    item->next = NULL;
    pthread_mutex_lock(&writer->lock);
    *writer->finished_end = item;
    writer->finished_end = &item->next;
    pthread_mutex_unlock(&writer->lock);
    uint64_t one = 1;
    ssize_t written = write(writer->wake_fd, &one, sizeof one);
    (void)written;
}

static void run_together(gs_writer *writer, gs_write **writes, size_t num_writes) {
    gs_transaction_run(writer->store, writes, num_writes);
    for (size_t i = 0; i < num_writes; i++) finish_write(writer, writes[i]);
}

// False: nothing came, and nothing will.
static bool take_next(lane *of, void **item, const atomic_bool *stopping) {
    while (!gs_queue_pop(of->queue, item, gs_deadline_in_ms(1000))) {
        if (atomic_load(stopping)) return false;
    }
    return true;
}

static void run_rows(void *ctx, const atomic_bool *stopping) {
    lane *rows = ctx;
    gs_write *together[MAX_TOGETHER];
    void *item;
    while (take_next(rows, &item, stopping)) {
        size_t count = 0;
        do together[count++] = item;
        while (count < MAX_TOGETHER && gs_queue_pop(rows->queue, &item, gs_deadline_in_ns(0)));
        run_together(rows->writer, together, count);
    }
}

// False: nobody takes it there any more.
static bool pass_on(const lane *from, gs_write *write) {
    lane *to = &from->writer->lanes[write->lane];
    return to != from && gs_queue_push(to->queue, write, gs_deadline_in_ns(0));
}

// The end of a process waits for no tree: what is left of one is owed, or found at the next start.
static bool is_dropped(const gs_write *write, const atomic_bool *stopping) {
    return write->lane == GS_LANE_TREES && atomic_load(stopping);
}

static void run_files(void *ctx, const atomic_bool *stopping) {
    lane *files = ctx;
    void *item;
    while (take_next(files, &item, stopping)) {
        gs_write *write = item;
        if (pass_on(files, write)) continue;
        gs_job_store *store = write->lane == GS_LANE_READS ? files->writer->store : NULL;
        write->status = is_dropped(write, stopping) ? gs_error(GS_CANCELLED, "writer: the coordinator ends") : write->run(write, store);
        finish_write(files->writer, write);
    }
}

static gs_status start_lane(gs_writer *writer, gs_write_lane which) {
    static const char *const names[GS_NUM_LANES] = {
        [GS_LANE_ROWS] = "rows", [GS_LANE_READS] = "reads", [GS_LANE_LOGS] = "logs", [GS_LANE_LOOKS] = "looks", [GS_LANE_BULK] = "bulk",
        [GS_LANE_TREES] = "trees"};
    lane *it = &writer->lanes[which];
    it->writer = writer;
    it->queue = gs_queue_create(MAX_QUEUED);
    if (!it->queue) return gs_error(GS_RESOURCE_EXHAUSTED, "writer: out of memory");
    return gs_thread_start(&it->thread, names[which], which == GS_LANE_ROWS ? run_rows : run_files, it);
}

gs_status gs_writer_start(gs_writer **out, gs_job_store *store, int wake_fd, gs_trace *trace) {
    gs_writer *writer = calloc(1, sizeof *writer);
    if (!writer) return gs_error(GS_RESOURCE_EXHAUSTED, "writer: out of memory");
    writer->wake_fd = wake_fd;
    writer->trace = trace;
    writer->finished_end = &writer->finished;
    pthread_mutex_init(&writer->lock, NULL);
    writer->store = store;
    gs_status status = gs_ok();
    for (int i = 0; i < GS_NUM_LANES && !status.code; i++) status = start_lane(writer, (gs_write_lane)i);
    if (status.code) {
        writer->store = NULL;  // stays the caller's
        gs_writer_stop(writer);
        return status;
    }
    *out = writer;
    return gs_ok();
}

void gs_writer_submit(gs_writer *writer, gs_write *write) {
    if (!write->is_unnumbered) write->number = writer->num_submitted++;
    lane *last = &writer->lanes[write->lane];
    const lane *first = write->is_behind_looks ? &writer->lanes[GS_LANE_LOOKS] : last;
    size_t waiting_bytes = atomic_fetch_add(&last->waiting_bytes, bytes_of(write));
    bool fits = waiting_bytes == 0 || waiting_bytes + bytes_of(write) <= MAX_QUEUED_BYTES;
    if (fits && gs_queue_push(first->queue, write, gs_deadline_in_ns(0))) return;
    atomic_fetch_sub(&last->waiting_bytes, bytes_of(write));
    if (atomic_load(&writer->is_stopping)) {
        write->done(write, gs_error(GS_UNAVAILABLE, "writer: the coordinator ends"));
        return;
    }
    writer->num_refused++;
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "writer: too much waits for the disk (%zu bytes)", waiting_bytes);
    gs_log_error("write refused", "reason=\"%s\"", status.message);
    write->done(write, status);
}

uint64_t gs_writer_num_refused(const gs_writer *writer) { return writer->num_refused; }

size_t gs_writer_waiting_bytes(const gs_writer *writer, gs_write_lane which) {
    return atomic_load(&writer->lanes[which].waiting_bytes);
}

void gs_writer_collect(gs_writer *writer) {
    pthread_mutex_lock(&writer->lock);
    gs_write *write = writer->finished;
    writer->finished = NULL;
    writer->finished_end = &writer->finished;
    pthread_mutex_unlock(&writer->lock);
    while (write) {
        gs_write *next = write->next;
        if (!write->is_unnumbered) gs_trace_written(writer->trace, write->number, write->status);
        write->done(write, write->status);
        write = next;
    }
}

const atomic_bool *gs_writer_stopping(const gs_writer *writer) { return &writer->is_stopping; }

void gs_writer_stop(gs_writer *writer) {
    if (!writer) return;
    atomic_store(&writer->is_stopping, true);
    for (int i = 0; i < GS_NUM_LANES; i++) {
        gs_thread_ask_to_stop(writer->lanes[i].thread);
        if (writer->lanes[i].queue) gs_queue_close(writer->lanes[i].queue);
    }
    for (int i = 0; i < GS_NUM_LANES; i++) gs_thread_stop(writer->lanes[i].thread);
    gs_writer_collect(writer);
    for (int i = 0; i < GS_NUM_LANES; i++) gs_queue_destroy(writer->lanes[i].queue);
    gs_job_store_close(writer->store);
    pthread_mutex_destroy(&writer->lock);
    free(writer);
}
