#include "worker/control/outbox.h"

#include <stdlib.h>

#include "core/log.h"
#include "core/thread.h"

#define CALL_SECONDS 1.0
#define RETRY_NS (200 * GS_NS_PER_MS)
#define MAX_ENTRIES 256  // a list of parameters is one for each thousand

typedef struct entry {
    gs_method method;
    gs_json *request;  // owned
} entry;

struct gs_outbox {
    gs_rpc_client *client;
    gs_thread *thread;
    gs_queue *entries;
    atomic_int count;  // until they have been acknowledged
    atomic_bool held;
};

static void drop_entry(entry *it) {
    gs_json_release(it->request);
    free(it);
}

static gs_status deliver(gs_outbox *outbox, const entry *it, const atomic_bool *stopping) {
    gs_status status = gs_error(GS_UNAVAILABLE, "not sent");
    bool held = false;
    // A refusal that comes while held is that of somebody else's coordinator.
    while (!atomic_load(stopping) && (held || status.code == GS_UNAVAILABLE ||
                                      status.code == GS_DEADLINE_EXCEEDED)) {
        held = atomic_load(&outbox->held);
        if (!held) {
            status = gs_rpc_call(outbox->client, it->method, it->request, NULL,
                                 gs_deadline_in_seconds(CALL_SECONDS));
            held = status.code && atomic_load(&outbox->held);
        }
        if (held || status.code == GS_UNAVAILABLE) gs_sleep_ns(RETRY_NS);
    }
    return status;
}

static void run(void *ctx, const atomic_bool *stopping) {
    gs_outbox *outbox = ctx;
    while (!atomic_load(stopping)) {
        void *item;
        if (!gs_queue_pop(outbox->entries, &item, gs_deadline_in_ms(100))) continue;
        entry *it = item;
        gs_status status = deliver(outbox, it, stopping);
        if (status.code && status.code != GS_UNAVAILABLE) {
            gs_log_warn("not accepted", "method=%s reason=\"%s\"",
                        gs_method_info_of(it->method)->name, status.message);
        }
        drop_entry(it);
        atomic_fetch_sub(&outbox->count, 1);
    }
}

gs_status gs_outbox_create(gs_outbox **out, gs_rpc_client *client) {
    gs_outbox *outbox = calloc(1, sizeof *outbox);
    if (!outbox) return gs_error(GS_RESOURCE_EXHAUSTED, "outbox: out of memory");
    outbox->client = client;
    outbox->entries = gs_queue_create(MAX_ENTRIES);
    gs_status status = outbox->entries ? gs_thread_start(&outbox->thread, "gs-outbox", run, outbox)
                                       : gs_error(GS_RESOURCE_EXHAUSTED, "outbox: out of memory");
    if (status.code) {
        gs_outbox_destroy(outbox);
        return status;
    }
    *out = outbox;
    return gs_ok();
}

void gs_outbox_destroy(gs_outbox *outbox) {
    if (!outbox) return;
    gs_thread_stop(outbox->thread);
    void *it;
    while (outbox->entries && gs_queue_pop(outbox->entries, &it, (gs_deadline){0})) drop_entry(it);
    gs_queue_destroy(outbox->entries);
    free(outbox);
}

// Takes the request: values belong to one thread at a time.
void gs_outbox_push(gs_outbox *outbox, gs_method method, gs_json *request) {
    entry *it = calloc(1, sizeof *it);
    if (it) {
        *it = (entry){method, request};
        atomic_fetch_add(&outbox->count, 1);
        if (gs_queue_push(outbox->entries, it, (gs_deadline){0})) return;
        atomic_fetch_sub(&outbox->count, 1);
        free(it);
    }
    gs_json_release(request);
    gs_log_warn("too much waits for the coordinator", "dropped=%s",
                gs_method_info_of(method)->name);
}

void gs_outbox_hold(gs_outbox *outbox, bool held) {
    atomic_store(&outbox->held, held);
}

void gs_outbox_flush(gs_outbox *outbox, gs_deadline deadline) {
    while (atomic_load(&outbox->count) > 0 && !gs_deadline_passed(deadline))
        gs_sleep_ns(2 * GS_NS_PER_MS);
}
