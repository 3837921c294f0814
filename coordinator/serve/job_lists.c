#include "coordinator/serve/job_lists.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/job_view.h"
#include "coordinator/observe/recall.h"
#include "coordinator/observe/views/page.h"
#include "coordinator/store/record/checkpoint_record.h"
#include "core/clock.h"

void gs_get_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request) {
    (void)peer;
    gs_job *job = NULL;
    gs_json *details = NULL;
    gs_status status = gs_observer_find_job(ctx, &job, &details, request);
    if (!status.code && gs_recall_record(ctx, job, gs_get_job, call, request)) return;
    gs_rpc_reply(call, status, status.code ? details : gs_job_to_view(job, true));
}

void gs_get_job_workers(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                            const gs_json *request) {
    (void)peer;
    gs_job *job = NULL;
    gs_json *body = NULL;
    gs_status status = gs_observer_find_job(ctx, &job, &body, request);
    if (!status.code && gs_recall_record(ctx, job, gs_get_job_workers, call, request)) return;
    gs_page page = {0};
    int first = 0;
    if (!status.code) status = gs_page_read_first(&first, request);
    if (!status.code) status = gs_page_begin(&page, request, GS_PAGE_MAX_ITEMS);
    if (!status.code) {
        int rank = first, count = gs_job_num_members(job);
        while (rank < count && gs_page_add(&page, gs_job_member_to_view(job, rank))) rank++;
        body = gs_json_new_object();
        gs_json_set(body, "items", gs_page_end(&page));
        if (rank < count) gs_page_set_last(body, rank - 1);
    }
    gs_rpc_reply(call, status, body);
}

// "running,recovering" has the word.
static bool in_list(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length) {
        bool begins = at == list || at[-1] == ',';
        if (begins && (at[length] == '\0' || at[length] == ',')) return true;
    }
    return false;
}

static bool has_label(const gs_job *job, const char *wanted) {
    const char *colon = wanted ? strchr(wanted, ':') : NULL;
    for (int i = 0; colon && i < job->spec.num_labels; i++) {
        const gs_job_label *label = &job->spec.labels[i];
        if (!strncmp(label->key, wanted, (size_t)(colon - wanted)) &&
            !label->key[colon - wanted] && !strcmp(label->value, colon + 1)) {
            return true;
        }
    }
    return false;
}

static bool matches(const gs_job *job, const gs_json *request) {
    if (job->sight->has_no_row) return false;
    const char *states = gs_json_string_or(request, "state", NULL);
    if (states && states[0] && !in_list(states, gs_job_state_name(gs_sight_state(job)))) return false;
    const char *name = gs_json_string_or(request, "name", NULL);
    if (name && name[0] && fnmatch(name, job->spec.name, 0) != 0) return false;
    const gs_json *labels = gs_json_get(request, "label");
    for (size_t i = 0; i < gs_json_count(labels); i++) {
        if (!has_label(job, gs_json_string(gs_json_at(labels, i)))) return false;
    }
    return true;
}

typedef struct gs_field_pick {
    const char *fields;
    gs_json *out;
} gs_field_pick;

static bool pick_field(void *ctx, const char *key, const gs_json *value) {
    gs_field_pick *pick = ctx;
    if (in_list(pick->fields, key)) gs_json_set(pick->out, key, gs_json_copy(value));
    return true;
}

static bool wants_specs(const char *fields) { return fields && (!strcmp(fields, "*") || in_list(fields, "spec")); }

// `spec`: of a job that has none in memory; borrowed.
static gs_json *list_item(const gs_job *job, const char *fields, gs_json *spec) {
    bool all = fields && !strcmp(fields, "*");
    if ((!fields || !fields[0]) && job->run) return gs_job_to_line(job, gs_now_ns());
    gs_json *view = gs_job_to_view(job, wants_specs(fields));
    if (spec) gs_json_set(view, "spec", gs_json_retain(spec));
    if (!fields || !fields[0] || all) return view;
    gs_field_pick pick = {fields, gs_json_new_object()};
    gs_json_each(view, pick_field, &pick);
    gs_json_release(view);
    return pick.out;
}

// A page of jobs, as it was asked for.
typedef struct job_walk {
    const gs_job_table *jobs;
    const gs_json *request;
    const char *cursor;
    uint64_t after;
    bool ascending;
    size_t place;
} job_walk;

// NULL: there are no more. Ids grow with time, so the id of the last item is the cursor; newest first unless asked.
static const gs_job *next_job(job_walk *walk) {
    while (walk->place < walk->jobs->count) {
        const gs_job *job = walk->jobs->items[walk->ascending ? walk->place : walk->jobs->count - 1 - walk->place];
        walk->place++;
        if (walk->cursor && (walk->ascending ? job->id <= walk->after : job->id >= walk->after)) continue;
        if (matches(job, walk->request)) return job;
    }
    return NULL;
}

// Those of the page whose specification is on the disk alone. True: the call is kept until they are here.
static bool recall_specs(gs_observer *observer, job_walk walk, size_t limit, gs_rpc_call_handle *call) {
    uint64_t missing[GS_PAGE_MAX_ITEMS];
    size_t count = 0;
    const gs_job *job;
    for (size_t i = 0; i < limit && (job = next_job(&walk)); i++) {
        if (!job->sight->documents.spec) missing[count++] = job->id;
    }
    return count > 0 && gs_recall_specs(observer, missing, count, gs_list_jobs, call, walk.request);
}

static gs_json *list_page(const gs_observer *observer, job_walk *walk, gs_page *page) {
    const char *fields = gs_json_string_or(walk->request, "fields", NULL);
    const gs_job *last = NULL, *job;
    bool more = false;
    while (!more && (job = next_job(walk))) {
        gs_json *spec = NULL;
        bool is_beyond = gs_recalled_spec(&spec, observer, job) == GS_RECALLED_BEYOND && last;
        more = is_beyond || !gs_page_add(page, list_item(job, fields, spec));
        if (!more) last = job;
    }
    gs_json *reply = gs_json_new_object();
    gs_json_set(reply, "items", gs_page_end(page));
    if (more && last) gs_json_set_string(reply, "next_cursor", last->id_text);
    return reply;
}

void gs_list_jobs(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                      const gs_json *request) {
    (void)peer;
    gs_observer *observer = ctx;
    job_walk walk = {.jobs = &observer->state->jobs,
                     .request = request,
                     .cursor = gs_json_string_or(request, "cursor", NULL),
                     .ascending = !strcmp(gs_json_string_or(request, "order", "desc"), "asc")};
    gs_page page = {0};
    gs_status status = walk.cursor && !gs_job_id_parse(&walk.after, walk.cursor)
                           ? gs_error(GS_INVALID_ARGUMENT, "cursor: not as it was given")
                           : gs_page_begin(&page, request, 50);
    bool is_asked = !status.code && wants_specs(gs_json_string_or(request, "fields", NULL)) && !gs_recalls_have_specs(observer);
    if (is_asked && recall_specs(observer, walk, page.limit, call)) {
        gs_json_release(gs_page_end(&page));
        return;
    }
    gs_rpc_reply(call, status, status.code ? NULL : list_page(observer, &walk, &page));
}

// Of the page before: its last one. A newer one is not among those that follow, and where it is gone meanwhile those of earlier
// steps do.
typedef struct checkpoint_cursor {
    long long step;
    const char *directory;  // in the request; NULL: there is no page before
} checkpoint_cursor;

static gs_status read_cursor(checkpoint_cursor *cursor, const gs_json *request) {
    const char *text = gs_json_string_or(request, "cursor", NULL);
    *cursor = (checkpoint_cursor){0};
    if (!text) return gs_ok();
    char *end = NULL;
    cursor->step = strtoll(text, &end, 10);
    if (end == text || *end != '/') return gs_error(GS_INVALID_ARGUMENT, "cursor: not as it was given");
    cursor->directory = end + 1;
    return gs_ok();
}

// Those that follow are [0, this).
static size_t end_of_rest(const gs_checkpoints *checkpoints, const checkpoint_cursor *cursor) {
    size_t end = checkpoints->count;
    if (!cursor->directory) return end;
    for (size_t i = 0; i < checkpoints->count; i++)
        if (!strcmp(checkpoints->items[i].directory, cursor->directory)) return i;
    while (end > 0 && checkpoints->items[end - 1].step >= cursor->step) end--;
    return end;
}

static gs_json *list_checkpoint(const gs_checkpoint *checkpoint, const char *directory) {
    char path[1400];
    gs_json *item = gs_checkpoint_to_view(checkpoint);
    snprintf(path, sizeof path, "%s/%s", directory, checkpoint->directory);
    gs_json_set_string(item, "path", path);
    return item;
}

static gs_json *page_of_checkpoints(gs_page *page, const gs_job *job, const char *directory, size_t end) {
    const gs_checkpoint *last = NULL;
    bool more = false;
    for (size_t i = end; i-- > 0 && !more;) {  // newest first
        const gs_checkpoint *checkpoint = &job->checkpoints.items[i];
        if (checkpoint->state == GS_CHECKPOINT_DELETING) continue;
        more = !gs_page_add(page, list_checkpoint(checkpoint, directory));
        if (!more) last = checkpoint;
    }
    gs_json *body = gs_json_new_object();
    gs_json_set(body, "items", gs_page_end(page));
    if (!more) return body;
    char cursor[GS_CHECKPOINT_NAME_LEN + 24];
    snprintf(cursor, sizeof cursor, "%lld/%s", (long long)last->step, last->directory);
    gs_json_set_string(body, "next_cursor", cursor);
    return body;
}

void gs_list_checkpoints(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                         const gs_json *request) {
    (void)peer;
    const gs_observer *observer = ctx;
    gs_job *job = NULL;
    gs_json *body = NULL;
    checkpoint_cursor cursor;
    gs_page page = {0};
    gs_status status = gs_observer_find_job(observer, &job, &body, request);
    if (!status.code) status = read_cursor(&cursor, request);
    if (!status.code) status = gs_page_begin(&page, request, GS_PAGE_MAX_ITEMS);
    if (!status.code) {
        char directory[1100];
        snprintf(directory, sizeof directory, "%s/%s", observer->state->checkpoints_dir, job->id_text);
        body = page_of_checkpoints(&page, job, directory, end_of_rest(&job->checkpoints, &cursor));
    }
    gs_rpc_reply(call, status, body);
}
