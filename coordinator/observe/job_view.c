#include "coordinator/observe/job_view.h"

#include <stdio.h>

#include "coordinator/model/run.h"
#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/views/control_path_view.h"
#include "core/clock.h"

#define LINE_NS (100 * GS_NS_PER_MS)

static void set_links(gs_json *view, const char *id) {
    gs_json *links = gs_json_new_object();
    char path[64];
    snprintf(path, sizeof path, "/v1/jobs/%s", id);
    gs_json_set_string(links, "self", path);
    snprintf(path, sizeof path, "/v1/jobs/%s/stream", id);
    gs_json_set_string(links, "stream", path);
    snprintf(path, sizeof path, "/v1/jobs/%s/logs", id);
    gs_json_set_string(links, "logs", path);
    gs_json_set(view, "links", links);
}

static gs_json *progress_of(const gs_job *job) {
    gs_json *progress = gs_json_new_object();
    int64_t target = job->spec.steps.target;
    gs_json_set_int(progress, "step", job->step);
    gs_json_set_int(progress, "target_steps", target);
    gs_json_set_double(progress, "ratio", target > 0 ? (double)job->step / (double)target : 0);
    double step_seconds = gs_job_metrics_step_seconds(job->sight->metrics);
    if (job->state == GS_JOB_RUNNING && step_seconds > 0) {
        gs_json_set_double(progress, "eta_seconds", (double)(target - job->step) * step_seconds);
    }
    return progress;
}

static void set_waiting(gs_json *view, const gs_job *job) {
    if (job->run || job->slots_needed == 0 || gs_job_state_terminal(job->state)) return;
    gs_json *waiting = gs_json_new_object();
    gs_json_set_int(waiting, "slots_needed", job->slots_needed);
    gs_json_set_int(waiting, "slots_free", job->slots_free);
    gs_json_set_time(waiting, "since", job->waiting_since_ms);
    gs_json_set(view, "waiting_for", waiting);
}

static void set_labels(gs_json *view, const gs_job *job) {
    const gs_job_spec *spec = &job->spec;
    if (spec->num_labels == 0) return;
    gs_json *labels = gs_json_new_object();
    for (int i = 0; i < spec->num_labels; i++) gs_json_set_string(labels, spec->labels[i].key, spec->labels[i].value);
    gs_json_set(view, "labels", labels);
}

static void set_reduction(gs_json *view, const gs_job *job) {
    gs_json *reduction = gs_job_metrics_reduction(job->sight->metrics);
    char hook[48];
    if (!reduction) return;
    gs_job_spec_hook_name(hook, sizeof hook, &job->spec);
    gs_json_set_string(reduction, "hook", hook);
    gs_json_set(view, "reduction", reduction);
}

const char *gs_job_shown_reason(const gs_job *job) { return job->sight->end_version ? "EndNotRecorded" : job->reason; }

void gs_job_show_message(char *text, size_t text_bytes, const gs_job *job) {
    if (!job->sight->end_version) snprintf(text, text_bytes, "%s", job->message);
    else snprintf(text, text_bytes, "its end (%s) is not recorded yet: %s", gs_job_state_name(job->state), job->message);
}

static void set_reason(gs_json *view, const gs_job *job) {
    char message[GS_SHOWN_MESSAGE_LEN];
    gs_job_show_message(message, sizeof message, job);
    gs_json_set_string(view, "reason", gs_job_shown_reason(job));
    gs_json_set_string(view, "message", message);
}

static void set_communicator(gs_json *view, const gs_job *job) {
    if (!job->run || !job->run->backend[0]) return;
    gs_json *communicator = gs_json_new_object();
    gs_json_set_string(communicator, "backend", job->run->backend);
    if (job->run->backend_reason[0]) gs_json_set_string(communicator, "reason", job->run->backend_reason);
    gs_json_set(view, "communicator", communicator);
}

gs_json *gs_job_to_view(const gs_job *job, bool with_spec) {
    gs_json *view = gs_json_new_object();
    gs_json_set_string(view, "id", job->id_text);
    gs_json_set_string(view, "name", job->spec.name);
    gs_json_set_string(view, "state", gs_job_state_name(gs_sight_state(job)));
    gs_json_set_string(view, "desired_state",
                       job->stop_asked ? gs_job_state_name(job->stop_outcome) : "running");
    set_reason(view, job);
    set_waiting(view, job);
    gs_json_set_time(view, "created_at", job->created_ms);
    gs_json_set_time(view, "state_since", gs_sight_state_since_ms(job));
    if (job->started_ms) gs_json_set_time(view, "started_at", job->started_ms);
    if (job->ended_ms && !job->sight->end_version) gs_json_set_time(view, "ended_at", job->ended_ms);
    gs_json_set_int(view, "generation", job->generation);
    gs_json_set_int(view, "world_size", job->world_size);
    gs_json_set_int(view, "restarts", job->restarts);
    gs_json_set_int(view, "lost_steps", job->lost_steps);
    set_communicator(view, job);
    gs_json_set(view, "progress", progress_of(job));
    gs_json *latest = gs_job_metrics_latest(job->sight->metrics);
    if (latest) gs_json_set(view, "latest", latest);
    set_reduction(view, job);
    if (job->sight->documents.failure) gs_json_set(view, "failure", gs_json_copy(job->sight->documents.failure));
    gs_json_set_string(view, "sample", job->sight->documents.sample);
    set_labels(view, job);
    gs_json_set_int(view, "version", (int64_t)job->version);
    set_links(view, job->id_text);
    if (with_spec && job->sight->documents.spec) gs_json_set(view, "spec", gs_json_retain(job->sight->documents.spec));
    return view;
}

gs_json *gs_job_to_line(const gs_job *job, int64_t now_ns) {
    gs_job_line *line = &job->sight->line;
    if (!line->text || line->state != gs_sight_state(job) || line->version != job->version || line->step != job->step || now_ns - line->made_ns >= LINE_NS) {
        gs_json *view = gs_job_to_view(job, false);
        gs_json_release(line->text);
        *line = (gs_job_line){gs_json_new_encoded(view), gs_sight_state(job), job->version, job->step, now_ns};
        gs_json_release(view);
    }
    return gs_json_retain(line->text);
}

static const char *describe_member(const gs_run *run, const gs_member *member) {
    if (member->stage == GS_MEMBER_EXITED) return "exited";
    if (member->stage == GS_MEMBER_LAUNCHED) return "launching";
    if (member->stage == GS_MEMBER_LEAVING) return "leaving";
    if (!member->stream.call) return "disconnected";
    return gs_run_phase_name(run->phase);
}

static gs_json *member_to_view(const gs_job *job, const gs_run *run, int rank, int64_t now_ns) {
    const gs_member *member = &run->members[rank];
    gs_json *item = gs_json_new_object();
    gs_json_set_int(item, "rank", rank);
    gs_json_set_string(item, "worker", member->worker);
    gs_json_set_string(item, "host", member->host);
    gs_json_set_int(item, "slot", member->slot);
    gs_json_set_string(item, "device", gs_device_word(member->is_on_gpu));
    if (member->device_uuid[0]) gs_json_set_string(item, "device_uuid", member->device_uuid);
    gs_json_set_int(item, "pid", member->pid);
    gs_json_set_int(item, "generation", run->generation);
    gs_json_set_string(item, "state", describe_member(run, member));
    gs_json_set_int(item, "step", member->applied_step);
    gs_json_set_double(item, "heartbeat_age_seconds",
                       (double)(now_ns - member->heard_ns) / GS_NS_PER_SEC);
    gs_json_set_double(item, "lag_seconds", gs_job_metrics_lag_seconds(job->sight->metrics, rank));
    gs_json_set_int(item, "resident_memory_bytes", member->rss_bytes);
    bool gone = member->stage == GS_MEMBER_EXITED;
    if (!gone) gs_control_path_to_view(item, member->control.since_ms);
    if (gone && member->signal) gs_json_set_int(item, "signal", member->signal);
    else if (gone) gs_json_set_int(item, "exit_code", member->exit_code);
    return item;
}

gs_json *gs_run_members_to_view(const gs_job *job, const gs_run *run) {
    gs_json *items = gs_json_new_array();
    int64_t now_ns = gs_now_ns();
    for (int i = 0; i < run->num_members; i++) gs_json_push(items, member_to_view(job, run, i, now_ns));
    return items;
}

int gs_job_num_members(const gs_job *job) {
    return job->run ? job->run->num_members : (int)gs_json_count(job->sight->documents.final_workers);
}

gs_json *gs_job_member_to_view(const gs_job *job, int rank) {
    if (job->run) return member_to_view(job, job->run, rank, gs_now_ns());
    return gs_json_copy(gs_json_at(job->sight->documents.final_workers, (size_t)rank));
}
