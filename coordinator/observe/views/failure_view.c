#include "coordinator/observe/views/failure_view.h"

#include <string.h>

void gs_fault_to_view(gs_json *out, const gs_fault_facts *fault) {
    gs_json *accused = gs_json_new_array();
    for (int rank = 0; rank < GS_FAULT_MAX_RANKS; rank++) {
        if (gs_fault_accuses(fault, rank)) gs_json_push(accused, gs_json_new_int(rank));
    }
    gs_json_set_string(out, "kind", gs_fault_kind_name(fault->kind));
    gs_json_set(out, "accused", accused);
    if (fault->reporter >= 0) gs_json_set_int(out, "reporter", fault->reporter);
    if (!fault->collective) return;
    gs_json_set_int(out, "collective", (int64_t)fault->collective);
    gs_json_set_int(out, "lane", fault->lane);
    gs_json_set_int(out, "collective_step", fault->step);
    if (fault->bucket >= 0) gs_json_set_int(out, "bucket", fault->bucket);
}

static const char *class_of(const gs_run_cause *cause, int exit_code) {
    if (cause->class[0]) return cause->class;
    if (cause->kind == GS_FAILURE_LOST) return "infrastructure";
    return exit_code == 70 || exit_code == 71 ? "system" : "user";
}

static gs_json *log_tail_of(const gs_member *culprit) {
    gs_json *tail = NULL;
    if (!culprit || !culprit->log_tail) return gs_json_new_array();
    gs_status status = gs_json_parse(&tail, culprit->log_tail, strlen(culprit->log_tail));
    return status.code ? gs_json_new_array() : tail;
}

static gs_json *first_of(const gs_run *run, const gs_member *culprit) {
    const gs_run_cause *cause = &run->cause;
    gs_json *first = gs_json_new_object();
    if (culprit) {
        gs_json_set_int(first, "rank", cause->member);
        gs_json_set_string(first, "worker", culprit->worker);
        gs_json_set_string(first, "host", culprit->host);
        if (culprit->signal) gs_json_set_int(first, "signal", culprit->signal);
        else if (culprit->exit_code >= 0) gs_json_set_int(first, "exit_code", culprit->exit_code);
    }
    gs_json_set_int(first, "generation", run->generation);
    // What it said on leaving is newer than what was known when the failure was noticed.
    bool said_more = culprit && culprit->applied_step > cause->step;
    gs_json_set_int(first, "step", said_more ? culprit->applied_step : cause->step);
    gs_json_set_time(first, "at", cause->at_ms);
    gs_fault_to_view(first, &cause->fault);
    return first;
}

static gs_json *consequences_of(const gs_run *run) {
    gs_json *consequences = gs_json_new_array();
    for (int i = 0; i < run->num_members; i++) {
        if (i == run->cause.member) continue;
        gs_json *entry = gs_json_new_object();
        gs_json_set_int(entry, "rank", i);
        gs_json_set_string(entry, "reason",
                           run->members[i].was_up ? "CommunicatorAborted" : "GenerationAborted");
        gs_json_push(consequences, entry);
    }
    return consequences;
}

gs_json *gs_failure_to_view(const gs_run *run) {
    const gs_run_cause *cause = &run->cause;
    const gs_member *culprit = cause->member >= 0 ? &run->members[cause->member] : NULL;
    gs_json *failure = gs_json_new_object();
    gs_json_set_string(failure, "class", class_of(cause, culprit ? culprit->exit_code : -1));
    gs_json_set_string(failure, "message", cause->message);
    gs_json_set(failure, "first", first_of(run, culprit));
    gs_json_set(failure, "log_tail", log_tail_of(culprit));
    gs_json_set(failure, "consequences", consequences_of(run));
    if (cause->hint[0]) gs_json_set_string(failure, "hint", cause->hint);
    return failure;
}
