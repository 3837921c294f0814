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
#define MAX_TOGETHER 256

struct gs_writer {
    gs_job_store *store;  // writer thread only once it runs
    gs_queue *queue;
    gs_thread *thread;
    int wake_fd;
    gs_trace *trace;
    pthread_mutex_t lock;  // guards finished
    gs_write *finished, **finished_end;
};

static void finish_write(gs_writer *writer, gs_write *item) {
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

static void run_writer(void *ctx, const atomic_bool *stopping) {
    gs_writer *writer = ctx;
    gs_write *together[MAX_TOGETHER];
    void *item = NULL;
    for (;;) {
        if (!item && !gs_queue_pop(writer->queue, &item, gs_deadline_in_ms(1000))) {
            if (atomic_load(stopping)) return;
            continue;
        }
        gs_write *write = item;
        item = NULL;
        if (!write->touches_store) {
            write->status = write->run(write, writer->store);
            finish_write(writer, write);
            continue;
        }
        size_t count = 0;
        together[count++] = write;
        while (count < MAX_TOGETHER && gs_queue_pop(writer->queue, &item, gs_deadline_in_ns(0))) {
            if (!((gs_write *)item)->touches_store) break;
            together[count++] = item;
            item = NULL;
        }
        run_together(writer, together, count);
    }
}

gs_status gs_writer_start(gs_writer **out, gs_job_store *store, int wake_fd, gs_trace *trace) {
    gs_writer *writer = calloc(1, sizeof *writer);
    if (!writer) return gs_error(GS_RESOURCE_EXHAUSTED, "writer: out of memory");
    writer->wake_fd = wake_fd;
    writer->trace = trace;
    writer->finished_end = &writer->finished;
    pthread_mutex_init(&writer->lock, NULL);
    writer->queue = gs_queue_create(MAX_QUEUED);
    gs_status status = writer->queue ? gs_ok()
                                     : gs_error(GS_RESOURCE_EXHAUSTED, "writer: out of memory");
    writer->store = store;
    if (!status.code) status = gs_thread_start(&writer->thread, "writer", run_writer, writer);
    if (status.code) {
        writer->store = NULL;  // stays the caller's
        gs_writer_stop(writer);
        return status;
    }
    *out = writer;
    return gs_ok();
}

void gs_writer_submit(gs_writer *writer, gs_write *write) {
    if (gs_queue_push(writer->queue, write, gs_deadline_in_ns(0))) return;
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "writer: %d writes are waiting", MAX_QUEUED);
    gs_log_error("write refused", "reason=\"%s\"", status.message);
    write->done(write, status);
}

void gs_writer_collect(gs_writer *writer) {
    pthread_mutex_lock(&writer->lock);
    gs_write *write = writer->finished;
    writer->finished = NULL;
    writer->finished_end = &writer->finished;
    pthread_mutex_unlock(&writer->lock);
    while (write) {
        gs_write *next = write->next;
        gs_trace_written(writer->trace, write->status);
        write->done(write, write->status);
        write = next;
    }
}

void gs_writer_stop(gs_writer *writer) {
    if (!writer) return;
    if (writer->queue) gs_queue_close(writer->queue);
    gs_thread_stop(writer->thread);
    gs_writer_collect(writer);
    gs_queue_destroy(writer->queue);
    gs_job_store_close(writer->store);
    pthread_mutex_destroy(&writer->lock);
    free(writer);
}
