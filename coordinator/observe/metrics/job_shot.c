#include "coordinator/observe/metrics/job_shot.h"

#include <stdio.h>
#include <stdlib.h>

#include "coordinator/model/run.h"
#include "core/clock.h"

static void copy_kind(char text[32], const gs_json *spec, const char *object) {
    snprintf(text, 32, "%s", gs_json_string_or(gs_json_get(spec, object), "kind", "none"));
}

static double seconds_in(const gs_job *job, gs_job_state state, int64_t wall_ms) {
    int64_t spent_ms = job->spent_ms[state];
    if (job->state == state) spent_ms += wall_ms - job->state_since_ms;
    return spent_ms > 0 ? (double)spent_ms / 1000 : 0;
}

// Of a plan that was shown, and of one that was read from a row.
static double count_elements(const gs_json *bucket, const gs_json *tensors) {
    double elements = gs_json_double_or(bucket, "elements", -1);
    if (elements >= 0) return elements;
    elements = 0;
    for (size_t i = 0; i < gs_json_count(tensors); i++)
        elements += gs_json_double_or(gs_json_at(tensors, i), "elements", 0);
    return elements;
}

static void take_buckets(gs_job_shot *shot, const gs_json *plan) {
    const gs_json *buckets = gs_json_get(plan, "buckets");
    size_t count = gs_json_count(buckets);
    shot->buckets = calloc(count ? count : 1, sizeof *shot->buckets);
    if (!shot->buckets) return;
    shot->num_buckets = (int)count;
    for (size_t i = 0; i < count; i++) {
        const gs_json *bucket = gs_json_at(buckets, i), *tensors = gs_json_get(bucket, "tensors");
        shot->buckets[i] = (gs_bucket_shot){gs_json_double_or(bucket, "bytes", 0),
                                            gs_json_double_or(bucket, "num_tensors", (double)gs_json_count(tensors))};
        shot->num_elements += count_elements(bucket, tensors);
    }
}

static void take_member(gs_member_shot *shot, const gs_member *member, int64_t now_ns) {
    snprintf(shot->worker, sizeof shot->worker, "%s", member->worker);
    snprintf(shot->host, sizeof shot->host, "%s", member->host);
    snprintf(shot->device, sizeof shot->device, "%s", gs_device_word(member->is_on_gpu));
    snprintf(shot->device_uuid, sizeof shot->device_uuid, "%s", member->device_uuid);
    shot->is_up = member->stream.call && member->stage != GS_MEMBER_EXITED;
    shot->silent_seconds = gs_seconds_of(now_ns - member->heard_ns);
    shot->rss_bytes = (double)member->rss_bytes;
}

static void take_members(gs_job_shot *shot, const gs_run *run, int first, int most) {
    int64_t now_ns = gs_now_ns();
    for (int i = first; i < first + most && i < shot->num_members && i < run->num_members; i++) {
        take_member(&shot->members[i], &run->members[i], now_ns);
        shot->waiting += run->phase < GS_RUN_TRAINING && run->members[i].stage != GS_MEMBER_LAUNCHED;
    }
}

bool gs_job_shot_take_ranks(gs_job_shot *shot, const gs_job *job, int most) {
    int first = shot->num_taken;
    shot->num_taken += most;
    bool are_all = gs_job_metrics_copy_some(shot->metrics, job->sight->metrics, first, most);
    if (job->run) take_members(shot, job->run, first, most);
    return are_all && shot->num_taken >= shot->num_members;
}

gs_job_shot *gs_job_shot_begin(const gs_job *job) {
    const gs_job_documents *documents = &job->sight->documents;
    gs_job_shot *shot = calloc(1, sizeof *shot);
    if (!shot) return NULL;
    shot->metrics = gs_job_metrics_copy_begin(job->sight->metrics);
    if (!shot->metrics) {
        free(shot);
        return NULL;
    }
    int64_t wall_ms = gs_wall_ms();
    snprintf(shot->id, sizeof shot->id, "%s", job->id_text);
    snprintf(shot->name, sizeof shot->name, "%s", job->spec.name);
    copy_kind(shot->model, documents->spec, "model");
    copy_kind(shot->optimizer, documents->spec, "optimizer");
    gs_job_spec_hook_name(shot->hook, sizeof shot->hook, &job->spec);
    shot->state = gs_sight_state(job);
    shot->created_ms = job->created_ms;
    shot->started_ms = job->started_ms;
    shot->ended_ms = job->ended_ms;
    shot->wall_ms = wall_ms;
    shot->generation = job->generation;
    shot->world_min = (double)job->spec.world.min;
    shot->world_max = (double)job->spec.world.max;
    shot->step = (double)job->step;
    shot->lost_steps = (double)job->lost_steps;
    shot->target_steps = (double)job->spec.steps.target;
    shot->forming_seconds = seconds_in(job, GS_JOB_STARTING, wall_ms);
    shot->recovering_seconds = seconds_in(job, GS_JOB_RECOVERING, wall_ms);
    shot->queued_seconds = seconds_in(job, GS_JOB_QUEUED, wall_ms);
    shot->rebuilds_ready_order = gs_json_double_or(documents->plan_rebuilds, "ready_order", 0);
    shot->rebuilds_link = gs_json_double_or(documents->plan_rebuilds, "link", 0);
    shot->link = job->observed_link.model;
    for (size_t b = 0; b < job->offers.num_buckets; b++) shot->buckets_by_offer[job->offers.buckets[b].chosen]++;
    shot->worst_pair = gs_link_worst_pair(&job->observed_link);
    shot->rebuilds_operator = gs_json_double_or(documents->plan_rebuilds, "operator", 0);
    take_buckets(shot, documents->plan);
    shot->saves = job->sight->saves;
    shot->ranks_shown = job->sight->ranks_shown;
    shot->members = job->run ? calloc((size_t)job->run->num_members + 1, sizeof *shot->members) : NULL;
    shot->control_path_degraded = job->run ? job->run->control.num_degraded : 0;
    shot->num_members = shot->members ? job->run->num_members : 0;
    return shot;
}

void gs_job_shots_release(gs_job_shot *shots) {
    while (shots) {
        gs_job_shot *next = shots->next;
        gs_job_metrics_destroy(shots->metrics);
        free(shots->buckets);
        free(shots->members);
        free(shots);
        shots = next;
    }
}
