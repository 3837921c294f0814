#include "coordinator/observe/recall.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/curves.h"
#include "coordinator/observe/held.h"
#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/views/page.h"
#include "coordinator/observe/views/plan_view.h"
#include "coordinator/store/record/job_record.h"
#include "core/clock.h"
#include "core/log.h"

#define SPECS_TOGETHER 16

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

typedef struct recalled_spec {
    uint64_t job;
    gs_recalled found;
    gs_json *text;  // owned; what the specification is, encoded
} recalled_spec;

typedef struct spec_list {
    gs_write base;
    gs_observer *observer;
    gs_rpc_handler handler;
    gs_rpc_call_handle *call;  // NULL: its caller is gone
    gs_json *request;          // owned
    gs_held held;
    size_t count, num_read, bytes;
    recalled_spec items[];
} spec_list;

struct gs_recalls {
    waiter *waiting;  // owned; oldest first
    int num_waiting, num_lists;
    const spec_list *specs;  // of the call that is answered now
};

typedef struct reading {
    gs_write base;
    gs_observer *observer;
    uint64_t job;
    gs_job_documents documents;  // owned
    gs_job_spec *spec;           // owned
    size_t bytes;                // of its row
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

// Of a record that is there, as the status of a read says: nobody's question was wrong.
static gs_json *unreadable_details(void) {
    gs_json *details = gs_json_new_object();
    gs_json_set_string(details, "code", "unreadable");
    gs_json_set_string(details, "hint", GS_UNREADABLE_HINT);
    return details;
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
        if (status.code) gs_rpc_reply(it->call, status, status.code == GS_FAILED_PRECONDITION ? unreadable_details() : NULL);
        else it->handler(observer, it->call, NULL, it->request);
        free_waiter(it);
    }
}

static gs_status read_record(gs_write *base, gs_job_store *store) {
    reading *it = (reading *)base;
    char *text = NULL;
    GS_TRY(gs_job_store_recall_job(store, &text, it->job));
    it->bytes = strlen(text);
    gs_status status = gs_job_documents_from_record(&it->documents, it->spec, text);
    if (status.code == GS_INVALID_ARGUMENT || status.code == GS_DATA_LOSS)
        status = gs_error(GS_FAILED_PRECONDITION, "the record of the job cannot be read: %.200s", status.message);
    if (!status.code) gs_plan_view_seal(it->documents.plan);
    free(text);
    return status;
}

// What one look at the ended jobs finds too much is looked for at once where so much has come since.
static void note_recalled(gs_observer *observer, gs_job_sight *sight, size_t bytes) {
    sight->recalled_bytes = bytes;
    observer->recalled_jobs++;
    observer->recalled_bytes += bytes;
    if (observer->recalled_jobs > GS_RECALL_MAX_KEPT || observer->recalled_bytes > GS_RECALL_MAX_KEPT_BYTES) observer->rested_ns = 0;
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
            note_recalled(it->observer, sight, it->bytes);
        }
        arrived(it->observer, job, false, status);
    }
    gs_job_documents_release(&it->documents);
    free(it->spec);
    free(it);
}

// True: it is on its way.
static bool begin(gs_observer *observer, gs_job *job) {
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
    it->base = (gs_write){.run = read_record, .done = have_read, .lane = GS_LANE_READS};
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
    if (!begin(observer, job)) return false;
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

static gs_status read_spec(recalled_spec *it, size_t *bytes, gs_job_store *store) {
    char *text = NULL;
    gs_json *record = NULL;
    it->found = GS_RECALLED_UNREADABLE;
    GS_TRY(gs_job_store_recall_job(store, &text, it->job));
    gs_status status = gs_json_parse(&record, text, strlen(text));
    free(text);
    GS_TRY(status);
    const gs_json *spec = gs_json_get(record, "spec");
    if (spec) {
        it->text = gs_json_new_encoded(spec);
        it->found = GS_RECALLED_SPEC;
        *bytes += gs_json_most_bytes(it->text);
    }
    gs_json_release(record);
    return gs_ok();
}

// Some at a time: others wait in the same lane.
static gs_status read_specs(gs_write *base, gs_job_store *store) {
    spec_list *it = (spec_list *)base;
    for (size_t end = it->num_read + SPECS_TOGETHER; it->num_read < end && it->num_read < it->count; it->num_read++) {
        if (it->bytes >= GS_PAGE_MAX_BYTES) break;
        recalled_spec *item = &it->items[it->num_read];
        gs_status status = read_spec(item, &it->bytes, store);
        if (status.code) gs_log_warn("record not read", "id=%llu reason=\"%s\"", (unsigned long long)item->job, status.message);
    }
    return gs_ok();
}

static void free_list(spec_list *it) {
    it->observer->recalls->num_lists--;
    for (size_t i = 0; i < it->count; i++) gs_json_release(it->items[i].text);
    gs_json_release(it->request);
    free(it);
}

static void have_read_specs(gs_write *base, gs_status status) {
    spec_list *it = (spec_list *)base;
    bool is_all = it->num_read == it->count || it->bytes >= GS_PAGE_MAX_BYTES;
    if (!status.code && it->call && !is_all) {
        gs_writer_submit(it->observer->writer, &it->base);
        return;
    }
    if (it->call) {
        gs_rpc_call_set_data(it->call, NULL);
        it->observer->recalls->specs = it;
        if (status.code) gs_rpc_reply(it->call, status, NULL);
        else it->handler(it->observer, it->call, NULL, it->request);
        it->observer->recalls->specs = NULL;
    }
    free_list(it);
}

static void forget_list(void *owner, gs_rpc_call_handle *call) {
    (void)call;
    ((spec_list *)owner)->call = NULL;
}

bool gs_recall_specs(gs_observer *observer, const uint64_t *jobs, size_t num_jobs, gs_rpc_handler handler,
                     gs_rpc_call_handle *call, const gs_json *request) {
    gs_recalls *recalls = observer->recalls;
    spec_list *it = recalls->num_lists < GS_RECALL_MAX_LISTS ? calloc(1, sizeof *it + num_jobs * sizeof *it->items) : NULL;
    if (!it) {
        observer->limits_reached[GS_LIMIT_RECALLS]++;
        gs_rpc_reply(call, gs_error(GS_RESOURCE_EXHAUSTED, "%d lists of ended jobs wait already", recalls->num_lists), NULL);
        return true;
    }
    recalls->num_lists++;
    it->base = (gs_write){.run = read_specs, .done = have_read_specs, .lane = GS_LANE_READS};
    it->observer = observer;
    it->handler = handler;
    it->call = call;
    it->request = gs_json_retain((gs_json *)(uintptr_t)request);
    it->count = num_jobs;
    for (size_t i = 0; i < num_jobs; i++) it->items[i].job = jobs[i];
    gs_held_keep(&it->held, call, forget_list, it);
    gs_writer_submit(observer->writer, &it->base);
    return true;
}

gs_recalled gs_recalled_spec(gs_json **spec, const gs_observer *observer, const gs_job *job) {
    const spec_list *specs = observer->recalls->specs;
    for (size_t i = 0; specs && i < specs->count; i++) {
        if (specs->items[i].job != job->id) continue;
        *spec = specs->items[i].text;
        return i < specs->num_read ? specs->items[i].found : GS_RECALLED_BEYOND;
    }
    return GS_RECALLED_NOTHING;
}

bool gs_recalls_have_specs(const gs_observer *observer) { return observer->recalls->specs; }

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
