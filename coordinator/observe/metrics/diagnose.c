// GetJobDiagnosis: gathers what is known of a job, and lets diagnosis.h judge it.
#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/job_view.h"
#include "coordinator/observe/metrics/diagnose.h"

#include <math.h>
#include <string.h>

#include "coordinator/observe/metrics/diagnosis.h"
#include "coordinator/observe/recall.h"
#include "coordinator/observe/reports/job_metrics.h"
#include "core/clock.h"
#include "rpc/schema/job_plan.h"

#define MAX_BUCKETS 64  // that a report has
#define MAX_RANKS 1024  // that are looked at one by one

static void gather_failure(gs_diagnosis_facts *facts, const gs_job *job) {
    const gs_json *first = gs_json_get(job->sight->documents.failure, "first");
    facts->failed_once = job->sight->documents.failure != NULL;
    facts->failure = (gs_diagnosis_failure){
        .message = gs_json_string_or(job->sight->documents.failure, "message", NULL),
        .hint = gs_json_string_or(job->sight->documents.failure, "hint", NULL),
        .class = gs_json_string_or(job->sight->documents.failure, "class", NULL),
        .host = gs_json_string_or(first, "host", NULL),
        .kind = gs_json_string_or(first, "kind", NULL),
        .accused = gs_json_get(first, "accused"),
        .reporter = gs_json_int_or(first, "reporter", -1),
        .rank = gs_json_int_or(first, "rank", -1),
        .step = gs_json_int_or(first, "step", job->step),
        .restarts = job->restarts};
}

// Mean over ranks of a total, for each step.
static double mean_of(const gs_job_metrics *metrics, gs_report_value total, double steps) {
    int num_ranks = gs_job_metrics_world_size(metrics);
    double sum = 0;
    for (int i = 0; i < num_ranks; i++) sum += gs_job_metrics_total(metrics, i, total);
    return num_ranks > 0 && steps > 0 ? sum / num_ranks / steps : 0;
}

static void gather_times(gs_diagnosis_facts *facts, const gs_job *job) {
    const gs_job_metrics *metrics = job->sight->metrics;
    double steps = gs_job_metrics_total(metrics, 0, GS_REPORT_ALL_STEPS);
    facts->steps = (int64_t)steps;
    facts->world_size = gs_job_metrics_world_size(metrics);
    facts->step_seconds = mean_of(metrics, GS_REPORT_ALL_STEP_SECONDS, steps);
    facts->data = mean_of(metrics, GS_REPORT_ALL_DATA, steps);
    facts->forward = mean_of(metrics, GS_REPORT_ALL_FORWARD, steps);
    facts->backward = mean_of(metrics, GS_REPORT_ALL_BACKWARD, steps);
    facts->exposed = mean_of(metrics, GS_REPORT_ALL_EXPOSED, steps);
    facts->optimizer = mean_of(metrics, GS_REPORT_ALL_OPTIMIZER, steps);
    facts->waiting = mean_of(metrics, GS_REPORT_ALL_BLOCKED, steps);
    facts->copies = mean_of(metrics, GS_REPORT_ALL_COPY_IN, steps) + mean_of(metrics, GS_REPORT_ALL_COPY_OUT, steps);
    // Only rank 0 saves, and the others wait for it in the next step.
    facts->checkpoint = steps > 0 ? gs_job_metrics_total(metrics, 0, GS_REPORT_ALL_CHECKPOINT) / steps : 0;
    facts->step_seconds += facts->checkpoint;
    facts->order_mismatches = (int64_t)gs_job_metrics_total(metrics, 0, GS_REPORT_ALL_ORDER_MISMATCHES);
    facts->skipped_steps = (int64_t)gs_job_metrics_total(metrics, 0, GS_REPORT_ALL_SKIPPED_STEPS);
}

static void gather_last_step(gs_diagnosis_facts *facts, gs_diagnosis_bucket *buckets, const gs_job *job) {
    const gs_job_metrics *metrics = job->sight->metrics;
    const gs_step_report *report = gs_job_metrics_report(metrics, 0);
    facts->overlap_ratio = gs_step_report_get(report, GS_REPORT_OVERLAP_RATIO, 0);
    facts->backward_seconds = gs_step_report_get(report, GS_REPORT_BACKWARD_SECONDS, 0);
    facts->loss = gs_step_report_get(report, GS_REPORT_LOSS, 0);
    facts->loss_scale = gs_step_report_get(report, GS_REPORT_LOSS_SCALE, 0);
    facts->unused_parameters = (int64_t)gs_step_report_get(report, GS_REPORT_UNUSED_PARAMETERS, 0);
    facts->unused_bytes = (int64_t)gs_step_report_get(report, GS_REPORT_UNUSED_BYTES, 0);
    facts->could_be_static = facts->steps > 1;
    for (int i = 0; i < gs_job_metrics_world_size(metrics); i++) {
        if (gs_step_report_get(gs_job_metrics_report(metrics, i), GS_REPORT_COULD_BE_STATIC, 0) == 0)
            facts->could_be_static = false;
    }
    for (size_t i = 0; report && i < report->num_buckets && i < MAX_BUCKETS; i++) {
        const gs_report_bucket *row = &report->buckets[i];
        if (!row->travelled) continue;  // it stayed at home
        buckets[facts->num_buckets++] = (gs_diagnosis_bucket){.index = row->index,
                                                              .bytes = (int64_t)row->bytes,
                                                              .ready = row->ready,
                                                              .launched = row->launched,
                                                              .finished = row->finished};
    }
    facts->buckets = buckets;
}

static gs_json *diagnose(const gs_job *job) {
    gs_diagnosis_bucket buckets[MAX_BUCKETS];
    gs_straggler_view ranks[MAX_RANKS];
    char message[GS_SHOWN_MESSAGE_LEN];
    gs_job_show_message(message, sizeof message, job);
    gs_diagnosis_facts facts = {.state = gs_sight_state(job),
                                .reason = gs_job_shown_reason(job),
                                .message = message,
                                .plan_revision = job->plan.revision,
                                .rebuild_after_steps = job->spec.reducer.rebuild_after_steps,
                                .plan_is_fixed = gs_job_plan_is_fixed(&job->spec),
                                .static_graph = job->spec.reducer.static_graph};
    bool queued = !job->run && job->slots_needed > 0 && !gs_job_state_terminal(job->state);
    if (queued) {
        facts.slots_needed = job->slots_needed;
        facts.slots_free = job->slots_free;
        facts.waiting_seconds = (double)(gs_wall_ms() - job->waiting_since_ms) / 1000;
    }
    gather_failure(&facts, job);
    gather_times(&facts, job);
    gather_last_step(&facts, buckets, job);
    const gs_save_facts *saves = &job->sight->saves;
    facts.checkpoint_failures =
        (int64_t)(saves->failures_space + saves->failures_io + saves->failures_digest +
                  saves->failures_deadline + saves->failures_residuals);
    const gs_stragglers *stragglers = gs_job_metrics_stragglers(job->sight->metrics);
    facts.num_ranks = facts.world_size < MAX_RANKS ? facts.world_size : MAX_RANKS;
    for (int i = 0; i < facts.num_ranks; i++) ranks[i] = gs_stragglers_view(stragglers, i);
    facts.ranks = ranks;
    facts.whatif_step_seconds = gs_stragglers_whatif_step_seconds(stragglers);
    facts.num_spikes = gs_stragglers_num_spikes(stragglers);
    gs_json *out = gs_diagnose(&facts);
    gs_json_set_string(out, "job", job->id_text);
    gs_json_set_string(out, "state", gs_job_state_name(facts.state));
    gs_json_set_int(out, "step", job->step);
    return out;
}

void gs_get_job_diagnosis(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                          const gs_json *request) {
    (void)peer;
    gs_job *job = NULL;
    gs_json *details = NULL;
    gs_status status = gs_observer_find_job(ctx, &job, &details, request);
    if (!status.code && gs_recall_record(ctx, job, gs_get_job_diagnosis, call, request)) return;
    gs_rpc_reply(call, status, status.code ? details : diagnose(job));
}
