#include "coordinator/serve/job_lists.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/observe/job_view.h"
#include "coordinator/observe/recall.h"
#include "coordinator/store/record/checkpoint_record.h"

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
    if (!status.code) {
        body = gs_json_new_object();
        gs_json_set(body, "items", gs_job_members_to_view(job));
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
    const char *states = gs_json_string_or(request, "state", NULL);
    if (states && states[0] && !in_list(states, gs_job_state_name(job->state))) return false;
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

static gs_json *list_item(const gs_job *job, const char *fields) {
    bool all = fields && !strcmp(fields, "*");
    gs_json *view = gs_job_to_view(job, all || (fields && in_list(fields, "spec")));
    if (!fields || !fields[0] || all) return view;
    gs_field_pick pick = {fields, gs_json_new_object()};
    gs_json_each(view, pick_field, &pick);
    gs_json_release(view);
    return pick.out;
}

// Ids grow with time, so the id of the last item is the cursor; newest first unless asked.
void gs_list_jobs(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                      const gs_json *request) {
    (void)peer;
    const gs_job_table *jobs = &((const gs_observer *)ctx)->state->jobs;
    int64_t limit = gs_json_int_or(request, "limit", 50);
    bool ascending = !strcmp(gs_json_string_or(request, "order", "desc"), "asc");
    const char *cursor = gs_json_string_or(request, "cursor", NULL);
    uint64_t after = 0;
    if (limit < 1 || limit > 500 || (cursor && !gs_job_id_parse(&after, cursor))) {
        gs_rpc_reply(call, gs_error(GS_INVALID_ARGUMENT, "limit: 1 to 500; cursor: as it was given"),
                     NULL);
        return;
    }
    gs_json *items = gs_json_new_array();
    const gs_job *last = NULL;
    bool more = false;
    for (size_t k = 0; k < jobs->count && !more; k++) {
        const gs_job *job = jobs->items[ascending ? k : jobs->count - 1 - k];
        if (cursor && (ascending ? job->id <= after : job->id >= after)) continue;
        if (!matches(job, request)) continue;
        if ((int64_t)gs_json_count(items) == limit) {
            more = true;
            break;
        }
        gs_json_push(items, list_item(job, gs_json_string_or(request, "fields", NULL)));
        last = job;
    }
    gs_json *reply = gs_json_new_object();
    gs_json_set(reply, "items", items);
    if (more && last) gs_json_set_string(reply, "next_cursor", last->id_text);
    gs_rpc_reply(call, gs_ok(), reply);
}

void gs_list_checkpoints(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                         const gs_json *request) {
    (void)peer;
    const gs_observer *observer = ctx;
    gs_job *job = NULL;
    gs_json *body = NULL;
    gs_status status = gs_observer_find_job(ctx, &job, &body, request);
    if (!status.code) {
        gs_json *items = gs_json_new_array();
        char directory[1100], path[1400];
        snprintf(directory, sizeof directory, "%s/%s", observer->state->checkpoints_dir, job->id_text);
        for (size_t i = job->checkpoints.count; i-- > 0;) {  // newest first
            const gs_checkpoint *checkpoint = &job->checkpoints.items[i];
            if (checkpoint->state == GS_CHECKPOINT_DELETING) continue;
            gs_json *item = gs_checkpoint_to_view(checkpoint);
            snprintf(path, sizeof path, "%s/%s", directory, checkpoint->directory);
            gs_json_set_string(item, "path", path);
            gs_json_push(items, item);
        }
        body = gs_json_new_object();
        gs_json_set(body, "items", items);
    }
    gs_rpc_reply(call, status, body);
}
