#include "coordinator/observe/rank_reports.h"

#include "coordinator/observe/curves.h"
#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/recall.h"
#include "coordinator/observe/views/page.h"
#include "coordinator/observe/watch.h"

typedef struct drawing {
    gs_observer *observer;
    gs_job *job;
} drawing;

static void write_entry(void *ctx, const gs_json *entry) {
    const drawing *it = ctx;
    gs_curves_note(it->observer, it->job, entry);
}

static void publish_step(gs_observer *observer, gs_job *job, const gs_step_report *report) {
    if (gs_watched(observer, job, GS_TOPIC_STEP)) {
        gs_json *data = gs_job_metrics_latest(job->sight->metrics);
        if (data) {
            gs_json_set_string(data, "job", job->id_text);
            gs_json_set_int(data, "target_steps", job->spec.steps.target);
            gs_json_set_int(data, "world_size", job->world_size);
        }
        gs_watch_publish(observer, job, GS_TOPIC_STEP, data);
    }
    if (gs_watched(observer, job, GS_TOPIC_BUCKETS) && report->num_buckets > 0) {
        gs_json *data = gs_json_new_object(), *buckets = gs_json_new_array();
        for (size_t i = 0; i < report->num_buckets; i++)
            gs_json_push(buckets, gs_report_bucket_to_json(&report->buckets[i]));
        gs_json_set_string(data, "job", job->id_text);
        gs_json_set_int(data, "step", report->step);
        gs_json_set_int(data, "rank", report->rank);
        gs_json_set_double(data, "backward_seconds", gs_step_report_get(report, GS_REPORT_BACKWARD_SECONDS, 0));
        gs_json_set(data, "buckets", buckets);
        gs_watch_publish(observer, job, GS_TOPIC_BUCKETS, data);
    }
}

void gs_rank_reports_keep(gs_observer *observer, const gs_member *member, const gs_step_report *report) {
    gs_job *job = member->job;
    gs_job_metrics *metrics = gs_sight_own_metrics(observer, job);
    if (!metrics) return;
    drawing drawn = {observer, job};
    gs_job_metrics_take(metrics, member->rank, job->run ? job->run->num_members : 0, report,
                        &(gs_metrics_record){write_entry, &drawn});
}

void gs_rank_reports_tell(gs_observer *observer, const gs_member *member, const gs_step_report *report) {
    if (member->rank == 0) publish_step(observer, member->job, report);
}

// Ranks that have told something, from `first` on.
static void set_ranks(gs_json *body, gs_page *page, const gs_job_metrics *metrics, int first) {
    int last = -1, count = gs_job_metrics_world_size(metrics);
    bool more = false;
    for (int rank = first; rank < count && !more; rank++) {
        gs_json *report = gs_job_metrics_rank_to_view(metrics, rank);
        if (!report) continue;
        more = !gs_page_add(page, report);
        if (!more) last = rank;
    }
    gs_json_set(body, "ranks", gs_page_end(page));
    if (more) gs_page_set_last(body, last);
}

void gs_get_job_metrics(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    (void)peer;
    gs_job *job = NULL;
    gs_json *body = NULL;
    gs_page page = {0};
    int first = 0;
    gs_status status = gs_observer_find_job(ctx, &job, &body, request);
    if (!status.code) status = gs_page_read_first(&first, request);
    if (!status.code) status = gs_page_begin(&page, request, GS_PAGE_MAX_ITEMS);
    if (!status.code) {
        body = gs_json_new_object();
        gs_json_set_string(body, "job", job->id_text);
        gs_json_set_int(body, "step", job->step);
        gs_json_set_int(body, "world_size", job->world_size);
        gs_json_set(body, "totals", gs_job_metrics_totals_to_view(job->sight->metrics));
        set_ranks(body, &page, job->sight->metrics, first);
    }
    gs_rpc_reply(call, status, body);
}

void gs_get_job_series(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    (void)peer;
    gs_job *job = NULL;
    gs_json *body = NULL, *curves = NULL;
    gs_status status = gs_observer_find_job(ctx, &job, &body, request);
    if (!status.code && gs_recall_curves(ctx, job, gs_get_job_series, call, request)) return;
    int64_t max_points = gs_json_int_or(request, "max_points", 500);
    gs_series_wish wish = {.names = gs_json_get(request, "names"),
                           .from_step = gs_json_int_or(request, "from_step", 0),
                           .to_step = gs_json_int_or(request, "to_step", INT64_MAX),
                           .max_points = max_points < 2 ? 2 : (size_t)max_points};
    if (!status.code) status = gs_job_metrics_series(&curves, job->sight->metrics, &wish);
    if (!status.code) {
        body = gs_json_new_object();
        gs_json_set(body, "series", curves);
    }
    gs_rpc_reply(call, status, body);
}
