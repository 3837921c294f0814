#include "coordinator/observe/recall.h"

#include <stdlib.h>

#include "coordinator/observe/curves.h"
#include "coordinator/observe/held.h"
#include "coordinator/observe/job_sight.h"
#include "coordinator/store/record/job_record.h"
#include "core/clock.h"
#include "core/log.h"

typedef struct waiter {
    gs_observer *observer;
    uint64_t job;
    gs_rpc_handler handler;
    gs_rpc_call_handle *call;
    gs_json *request;   // owned
    bool wants_curves;  // else its record
    bool has_come;      // what it waits for
    gs_held held;
    struct waiter *next;
} waiter;

struct gs_recalls {
    waiter *waiting;  // owned; oldest first
    int num_waiting;
};

typedef struct reading {
    gs_write base;
    gs_observer *observer;
    uint64_t job;
    gs_job_documents documents;  // owned
    gs_job_spec *spec;           // owned
} reading;

gs_recalls *gs_recalls_create(void) { return calloc(1, sizeof(gs_recalls)); }

void gs_recalls_destroy(gs_recalls *recalls) { free(recalls); }

static void free_waiter(waiter *it) {
    gs_json_release(it->request);
    free(it);
}

static void unlink_waiter(gs_recalls *recalls, waiter *it) {
    waiter **link = &recalls->waiting;
    while (*link != it) link = &(*link)->next;
    *link = it->next;
    recalls->num_waiting--;
}

static void forget_waiter(void *owner, gs_rpc_call_handle *call) {
    (void)call;
    waiter *it = owner;
    unlink_waiter(it->observer->recalls, it);
    free_waiter(it);
}

static waiter *next_come(const gs_recalls *recalls) {
    waiter *it = recalls->waiting;
    while (it && !it->has_come) it = it->next;
    return it;
}

// Handlers may keep their call again: those that wait now have their turn. Each stays in the list until then, for its
// caller may go away while another one is answered.
static void arrived(gs_observer *observer, const gs_job *job, bool are_curves, gs_status status) {
    gs_recalls *recalls = observer->recalls;
    for (waiter *it = recalls->waiting; it; it = it->next)
        it->has_come |= it->job == job->id && it->wants_curves == are_curves;
    for (waiter *it; (it = next_come(recalls));) {
        unlink_waiter(recalls, it);
        gs_rpc_call_set_data(it->call, NULL);
        if (status.code) gs_rpc_reply(it->call, status, NULL);
        else it->handler(observer, it->call, NULL, it->request);
        free_waiter(it);
    }
}

static gs_status read_record(gs_write *base, gs_job_store *store) {
    reading *it = (reading *)base;
    char *text = NULL;
    GS_TRY(gs_job_store_get_job(store, &text, it->job));
    gs_status status = gs_job_documents_from_record(&it->documents, it->spec, text);
    free(text);
    return status;
}

static void have_read(gs_write *base, gs_status status) {
    reading *it = (reading *)base;
    gs_job *job = gs_job_table_get(&it->observer->state->jobs, it->job);
    gs_job_sight *sight = job ? job->sight : NULL;
    if (sight) {
        sight->record_is_coming = false;
        if (status.code) {
            gs_log_warn("record not read", "job=%s reason=\"%s\"", job->id_text, status.message);
        } else {
            gs_job_documents_release(&sight->documents);
            sight->documents = it->documents;
            it->documents = (gs_job_documents){0};
            job->spec = *it->spec;
            gs_sight_use(sight);
        }
        arrived(it->observer, job, false, status);
    }
    gs_job_documents_release(&it->documents);
    free(it->spec);
    free(it);
}

bool gs_recall_begin(gs_observer *observer, gs_job *job) {
    gs_job_sight *sight = job->sight;
    if (sight->documents.spec) {
        gs_sight_use(sight);
        return false;
    }
    if (sight->record_is_coming) return true;
    reading *it = calloc(1, sizeof *it);
    if (it) it->spec = calloc(1, sizeof *it->spec);
    if (!it || !it->spec) {
        free(it);
        return false;
    }
    it->base = (gs_write){.run = read_record, .done = have_read, .lane = GS_LANE_ROWS};
    it->observer = observer;
    it->job = job->id;
    sight->record_is_coming = true;
    gs_writer_submit(observer->writer, &it->base);
    return true;
}

static void keep(gs_observer *observer, const gs_job *job, gs_rpc_handler handler, gs_rpc_call_handle *call,
                 const gs_json *request, bool wants_curves) {
    gs_recalls *recalls = observer->recalls;
    waiter *it = recalls->num_waiting < GS_RECALL_MAX_WAITING ? calloc(1, sizeof *it) : NULL;
    if (!it) {
        observer->limits_reached[GS_LIMIT_RECALLS]++;
        gs_rpc_reply(call, gs_error(GS_RESOURCE_EXHAUSTED, "%d questions about ended jobs wait already", recalls->num_waiting),
                     NULL);
        return;
    }
    *it = (waiter){.observer = observer,
                   .job = job->id,
                   .handler = handler,
                   .call = call,
                   .request = gs_json_retain((gs_json *)(uintptr_t)request),
                   .wants_curves = wants_curves};
    waiter **link = &recalls->waiting;
    while (*link) link = &(*link)->next;
    *link = it;
    recalls->num_waiting++;
    gs_held_keep(&it->held, call, forget_waiter, it);
}

bool gs_recall_record(gs_observer *observer, gs_job *job, gs_rpc_handler handler, gs_rpc_call_handle *call,
                      const gs_json *request) {
    if (!gs_recall_begin(observer, job)) return false;
    // Where the disk does not even take the question, nothing comes.
    if (job->sight->record_is_coming) keep(observer, job, handler, call, request, false);
    else gs_rpc_reply(call, gs_error(GS_UNAVAILABLE, "the record of job %s cannot be read now", job->id_text), NULL);
    return true;
}

bool gs_recall_curves(gs_observer *observer, gs_job *job, gs_rpc_handler handler, gs_rpc_call_handle *call,
                      const gs_json *request) {
    gs_sight_use(job->sight);
    if (!gs_curves_are_missing(job)) return false;
    gs_curves_tick(observer, job, true);
    keep(observer, job, handler, call, request, true);
    return true;
}

static void answer_all(gs_observer *observer, const gs_job *job, gs_status status) {
    waiter **link = &observer->recalls->waiting;
    while (*link) {
        waiter *it = *link;
        if (job && it->job != job->id) {
            link = &it->next;
            continue;
        }
        *link = it->next;
        observer->recalls->num_waiting--;
        gs_rpc_call_set_data(it->call, NULL);
        gs_rpc_reply(it->call, status, NULL);
        free_waiter(it);
    }
}

void gs_recall_forget(gs_observer *observer, const gs_job *job) {
    answer_all(observer, job, gs_error(GS_NOT_FOUND, "the job was deleted"));
}

void gs_recall_end_all(gs_observer *observer) {
    answer_all(observer, NULL, gs_error(GS_UNAVAILABLE, "the coordinator stops"));
}

void gs_recall_tick(gs_observer *observer) {
    for (waiter *it = observer->recalls->waiting; it; it = it->next) {
        gs_job *job = gs_job_table_get(&observer->state->jobs, it->job);
        bool is_lost = it->wants_curves && gs_curves_are_unreadable(job);
        if (!it->wants_curves || (gs_curves_are_missing(job) && !is_lost)) continue;
        arrived(observer, job, true, is_lost ? gs_error(GS_UNAVAILABLE, "the curves of job %s cannot be read now", job->id_text) : gs_ok());
        return;  // of the others with the next one: the list is another
    }
}
