// GetJobDiagnosis: gathers what is known of a job, and lets diagnosis.h judge it.
#include "coordinator/observe/job_sight.h"
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
static double mean_of(const gs_job_metrics *metrics, const char *name, double steps) {
    int num_ranks = gs_job_metrics_world_size(metrics);
    double sum = 0;
    for (int i = 0; i < num_ranks; i++) sum += gs_job_metrics_total(metrics, i, name);
    return num_ranks > 0 && steps > 0 ? sum / num_ranks / steps : 0;
}

static void gather_times(gs_diagnosis_facts *facts, const gs_job *job) {
    const gs_job_metrics *metrics = job->sight->metrics;
    double steps = gs_job_metrics_total(metrics, 0, "steps");
    facts->steps = (int64_t)steps;
    facts->world_size = gs_job_metrics_world_size(metrics);
    facts->step_seconds = mean_of(metrics, "step_seconds", steps);
    facts->data = mean_of(metrics, "phases/data", steps);
    facts->forward = mean_of(metrics, "phases/forward", steps);
    facts->backward = mean_of(metrics, "phases/backward", steps);
    facts->exposed = mean_of(metrics, "phases/comm_exposed", steps);
    facts->optimizer = mean_of(metrics, "phases/optimizer", steps);
    facts->waiting = mean_of(metrics, "blocked_seconds", steps);
    facts->copies = mean_of(metrics, "copy_in_seconds", steps) + mean_of(metrics, "copy_out_seconds", steps);
    // Only rank 0 saves, and the others wait for it in the next step.
    facts->checkpoint = steps > 0 ? gs_job_metrics_total(metrics, 0, "phases/checkpoint") / steps : 0;
    facts->step_seconds += facts->checkpoint;
    facts->order_mismatches = (int64_t)gs_job_metrics_total(metrics, 0, "order_mismatches");
    facts->skipped_steps = (int64_t)gs_job_metrics_total(metrics, 0, "skipped_steps");
}

static void gather_last_step(gs_diagnosis_facts *facts, gs_diagnosis_bucket *buckets, const gs_job *job) {
    const gs_json *report = gs_job_metrics_report(job->sight->metrics, 0);
    const gs_json *rows = gs_json_get(report, "buckets");
    facts->overlap_ratio = gs_json_double_or(report, "overlap_ratio", 0);
    facts->backward_seconds = gs_json_double_or(report, "backward_seconds", 0);
    facts->loss = gs_json_double_or(report, "loss", 0);
    facts->loss_scale = gs_json_double_or(report, "loss_scale", 0);
    facts->unused_parameters = gs_json_int_or(report, "unused_parameters", 0);
    facts->unused_bytes = gs_json_int_or(report, "unused_bytes", 0);
    facts->could_be_static = facts->steps > 1;
    for (int i = 0; i < gs_job_metrics_world_size(job->sight->metrics); i++) {
        const gs_json *of_rank = gs_job_metrics_report(job->sight->metrics, i);
        if (!gs_json_bool_or(of_rank, "could_be_static", false)) facts->could_be_static = false;
    }
    for (size_t i = 0; i < gs_json_count(rows) && i < MAX_BUCKETS; i++) {
        const gs_json *row = gs_json_at(rows, i);
        if (!gs_json_get(row, "launched_seconds")) continue;  // it stayed at home
        buckets[facts->num_buckets++] =
            (gs_diagnosis_bucket){.index = gs_json_int_or(row, "index", -1),
                                  .bytes = gs_json_int_or(row, "bytes", 0),
                                  .ready = gs_json_double_or(row, "ready_seconds", 0),
                                  .launched = gs_json_double_or(row, "launched_seconds", 0),
                                  .finished = gs_json_double_or(row, "finished_seconds", 0)};
    }
    facts->buckets = buckets;
}

static gs_json *diagnose(const gs_job *job) {
    gs_diagnosis_bucket buckets[MAX_BUCKETS];
    gs_straggler_view ranks[MAX_RANKS];
    gs_diagnosis_facts facts = {.state = job->state,
                                .reason = job->reason,
                                .message = job->message,
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
    gs_json_set_string(out, "state", gs_job_state_name(job->state));
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
