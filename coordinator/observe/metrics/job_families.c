#include "coordinator/observe/metrics/job_families.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/reports/job_metrics.h"

#define MAX_BUCKETS 64

#define JOB_FAMILY(id, text, kind, ...)                                                            \
    static const gs_metric_family id = {                                                           \
        .name = #id, .help = text, .type = kind, .labels = {"job_id", ##__VA_ARGS__}}
#define JOB_HISTOGRAM(id, text, ladder, ...)                                                       \
    static const gs_metric_family id = {.name = #id,                                               \
                                        .help = text,                                              \
                                        .type = GS_HISTOGRAM,                                      \
                                        .labels = {"job_id", ##__VA_ARGS__},                       \
                                        .bounds = ladder,                                          \
                                        .num_bounds = sizeof ladder / sizeof ladder[0]}

JOB_FAMILY(gradsync_job_info, "What the job is; always 1.", GS_GAUGE, "name", "model", "optimizer",
           "hook", "sharding");
JOB_FAMILY(gradsync_job_state, "1 for the present state, 0 for the others.", GS_GAUGE, "state");
JOB_FAMILY(gradsync_job_created_timestamp_seconds, "When the job was submitted.", GS_GAUGE);
JOB_FAMILY(gradsync_job_start_timestamp_seconds, "When its ranks were first started.", GS_GAUGE);
JOB_FAMILY(gradsync_job_generation, "Membership generation.", GS_GAUGE);
JOB_FAMILY(gradsync_job_world_size, "Ranks of the present generation.", GS_GAUGE);
JOB_FAMILY(gradsync_job_world_size_min, "Fewest ranks it runs with.", GS_GAUGE);
JOB_FAMILY(gradsync_job_world_size_max, "Most ranks it runs with.", GS_GAUGE);
JOB_FAMILY(gradsync_job_waiting_workers, "Ranks that have joined and have not started.", GS_GAUGE);
JOB_FAMILY(gradsync_job_control_path_degraded, "Ranks that are not heard while their generation steps.", GS_GAUGE);
JOB_FAMILY(gradsync_job_step, "Committed step.", GS_GAUGE);
JOB_FAMILY(gradsync_job_lost_steps_total, "Steps that were taken again after failures.", GS_COUNTER);
JOB_FAMILY(gradsync_job_target_steps, "Step at which the job ends.", GS_GAUGE);
JOB_FAMILY(gradsync_job_steps_total, "Steps committed by the trainers seen.", GS_COUNTER);
JOB_FAMILY(gradsync_job_tokens_total, "Tokens in committed steps.", GS_COUNTER);
JOB_FAMILY(gradsync_job_samples_total, "Samples in committed steps.", GS_COUNTER);
JOB_FAMILY(gradsync_job_loss, "Loss of the last step.", GS_GAUGE);
JOB_FAMILY(gradsync_job_eval_loss, "Loss of the last evaluation.", GS_GAUGE);
JOB_FAMILY(gradsync_job_learning_rate, "Learning rate of the last step.", GS_GAUGE);
JOB_FAMILY(gradsync_job_grad_norm, "Gradient norm of the last step.", GS_GAUGE);
JOB_FAMILY(gradsync_job_loss_scale, "Loss scale of the last step; precision fp16 only.", GS_GAUGE);
JOB_FAMILY(gradsync_job_buckets, "Buckets of the plan.", GS_GAUGE);
JOB_FAMILY(gradsync_job_parameters, "Elements of all parameters.", GS_GAUGE);
JOB_FAMILY(gradsync_job_skipped_steps_total, "Steps without an update.", GS_COUNTER, "reason");
JOB_FAMILY(gradsync_hook_buckets, "Buckets that hook auto sends in this way.", GS_GAUGE, "hook");
JOB_FAMILY(gradsync_plan_rebuilds_total, "Plans that replaced another.", GS_COUNTER, "reason");
JOB_FAMILY(gradsync_job_link_start_seconds, "Between hosts: what a collective takes beside its bytes.", GS_GAUGE);
JOB_FAMILY(gradsync_job_link_bytes_per_second, "Between hosts: bytes of a collective by the time they take.", GS_GAUGE);
JOB_FAMILY(gradsync_job_link_latency_seconds, "Of the slowest pair of ranks, there and back.", GS_GAUGE);
JOB_FAMILY(gradsync_job_link_slowest_bytes_per_second, "What the slowest pair of ranks was seen to deliver.", GS_GAUGE);
JOB_FAMILY(gradsync_step_phase_seconds_total, "Where the time of steps went.", GS_COUNTER, "rank",
           "phase");
JOB_HISTOGRAM(gradsync_step_duration_seconds, "Duration of steps.", gs_step_bounds);
JOB_HISTOGRAM(gradsync_reduce_duration_seconds, "Launch to completion of reductions.",
              gs_reduce_bounds, "op", "bucket");
JOB_FAMILY(gradsync_reduce_payload_bytes_total, "Bytes reduced, before compression.", GS_COUNTER,
           "rank", "op");
JOB_FAMILY(gradsync_reduce_wire_bytes_total, "Bytes really sent.", GS_COUNTER, "rank", "op");
JOB_FAMILY(gradsync_reduce_algorithm_bandwidth_bytes_per_second,
           "Bytes of a bucket by its time from post to end, of the rank that came last to it.", GS_GAUGE, "bucket");
JOB_FAMILY(gradsync_reduce_bus_bandwidth_bytes_per_second,
           "The same times 2(n-1)/n.", GS_GAUGE, "bucket");
JOB_FAMILY(gradsync_comm_busy_seconds_total, "Time with a collective in flight.", GS_COUNTER, "rank");
JOB_FAMILY(gradsync_comm_exposed_seconds_total,
           "Time with a collective in flight and compute idle.", GS_COUNTER, "rank");
JOB_FAMILY(gradsync_comm_overlap_ratio, "1 - exposed / busy of the last step.", GS_GAUGE, "rank");
JOB_FAMILY(gradsync_bucket_bytes, "Bytes of a bucket.", GS_GAUGE, "bucket");
JOB_FAMILY(gradsync_bucket_tensors, "Tensors of a bucket.", GS_GAUGE, "bucket");
JOB_FAMILY(gradsync_bucket_plan_position, "Planned order.", GS_GAUGE, "bucket");
JOB_FAMILY(gradsync_bucket_ready_offset_seconds, "Ready time since backward began, last step.",
           GS_GAUGE, "bucket");
JOB_FAMILY(gradsync_bucket_order_mismatches_total, "Steps whose order was not the planned one.",
           GS_COUNTER);
JOB_FAMILY(gradsync_rank_wait_seconds_total, "Time from bucket ready to its first byte.", GS_COUNTER,
           "rank");
JOB_FAMILY(gradsync_rank_straggler, "1 while the rank is flagged as a straggler.", GS_GAUGE, "rank");
JOB_FAMILY(gradsync_job_whatif_step_seconds, "Step time without what flagged ranks add.", GS_GAUGE);
JOB_FAMILY(gradsync_job_unused_parameters, "Parameters that no rank used in the last step.", GS_GAUGE);
JOB_FAMILY(gradsync_job_unused_parameter_bytes, "Bytes of their gradients.", GS_GAUGE);
JOB_FAMILY(gradsync_job_goodput_ratio, "Time in committed steps by time since the start.", GS_GAUGE);
JOB_FAMILY(gradsync_job_lost_seconds_total, "Time that was not spent in steps.", GS_COUNTER, "cause");
JOB_FAMILY(gradsync_grad_copy_seconds_total, "Time spent copying gradients into buckets and out.",
           GS_COUNTER, "rank", "direction");
JOB_HISTOGRAM(gradsync_reduce_queue_seconds, "Bucket ready to launch.", gs_reduce_bounds);
JOB_FAMILY(gradsync_bucket_ready_position, "Observed order, last step.", GS_GAUGE, "bucket");
JOB_FAMILY(gradsync_rank_lag_seconds, "Largest wait of all ranks minus the own.", GS_GAUGE, "rank");
JOB_FAMILY(gradsync_rank_last_arrivals_total, "Compared steps in which the rank waited least.", GS_COUNTER,
           "rank");
JOB_FAMILY(gradsync_compression_ratio, "Payload by wire bytes, last step.", GS_GAUGE);
JOB_FAMILY(gradsync_error_feedback_norm, "L2 norm of what a rank has yet to add.", GS_GAUGE, "rank");
JOB_FAMILY(gradsync_hook_seconds_total, "Time in communication hooks, without posting.", GS_COUNTER,
           "rank", "phase");
JOB_FAMILY(gradsync_non_finite_gradients_total, "Values that were not finite.", GS_COUNTER, "rank");
JOB_FAMILY(gradsync_worker_info, "Where a rank runs; always 1.", GS_GAUGE, "rank", "worker_id",
           "host", "device", "device_uuid");
JOB_FAMILY(gradsync_worker_up, "1 while the rank is connected.", GS_GAUGE, "rank");
JOB_FAMILY(gradsync_worker_last_heartbeat_timestamp_seconds, "When a rank was last heard.", GS_GAUGE,
           "rank");
JOB_FAMILY(gradsync_worker_resident_memory_bytes, "Resident memory of a rank.", GS_GAUGE, "rank");
JOB_HISTOGRAM(gradsync_checkpoint_duration_seconds, "Duration of checkpoints.", gs_checkpoint_bounds,
              "operation");
JOB_FAMILY(gradsync_checkpoint_bytes, "Size of the last checkpoint.", GS_GAUGE);
JOB_FAMILY(gradsync_checkpoint_last_success_timestamp_seconds, "When the last one was saved.",
           GS_GAUGE);
JOB_FAMILY(gradsync_checkpoint_last_success_step, "Step of the last one.", GS_GAUGE);
JOB_FAMILY(gradsync_checkpoint_last_verified_timestamp_seconds, "When one was last verified.",
           GS_GAUGE);
JOB_FAMILY(gradsync_checkpoint_failures_total, "Checkpoints that failed.", GS_COUNTER, "cause");

// What is left of the families of ranks where there are many.
JOB_FAMILY(gradsync_ranks_lag_seconds, "Lag of the ranks.", GS_GAUGE, "stat");
JOB_FAMILY(gradsync_ranks_wait_seconds, "Time that ranks waited for others so far.", GS_GAUGE, "stat");
JOB_FAMILY(gradsync_ranks_comm_busy_seconds, "Time with a collective in flight so far.", GS_GAUGE,
           "stat");
JOB_FAMILY(gradsync_ranks_comm_exposed_seconds, "Exposed communication of ranks so far.", GS_GAUGE,
           "stat");
JOB_FAMILY(gradsync_ranks_comm_overlap_ratio, "Overlap of the last step.", GS_GAUGE, "stat");
JOB_FAMILY(gradsync_ranks_silence_seconds, "Time since a rank was last heard.", GS_GAUGE, "stat");
JOB_FAMILY(gradsync_ranks_resident_memory_bytes, "Resident memory of the ranks.", GS_GAUGE, "stat");

typedef struct gs_job_page {
    gs_page_text *text;
    const gs_job_shot *job;
} gs_job_page;

static void set_all(const gs_job_page *page, const gs_metric_family *family, const char *const *labels, double value) {
    gs_page_text_add(page->text, &(gs_metric_sample){.family = family, .label_values = labels, .value = value});
}

static void set_two(const gs_job_page *page, const gs_metric_family *family, const char *a, const char *b,
                    double value) {
    set_all(page, family, (const char *[]){page->job->id, a, b}, value);
}

static void set(const gs_job_page *page, const gs_metric_family *family, double value) {
    set_two(page, family, NULL, NULL, value);
}

static void set_one(const gs_job_page *page, const gs_metric_family *family, const char *label,
                    double value) {
    set_two(page, family, label, NULL, value);
}

static void set_histogram(const gs_job_page *page, const gs_metric_family *family, const char *a, const char *b,
                          const gs_histogram *histogram) {
    gs_page_text_add(page->text, &(gs_metric_sample){.family = family,
                                                     .label_values = (const char *[]){page->job->id, a, b},
                                                     .value = histogram->sum,
                                                     .histogram = *histogram});
}

static void refresh_identity(const gs_job_page *page) {
    const gs_job_shot *job = page->job;
    set_all(page, &gradsync_job_info,
            (const char *[]){job->id, job->name, job->model, job->optimizer, job->hook, "none"}, 1);
    for (int i = 0; i < GS_NUM_JOB_STATES; i++)
        set_one(page, &gradsync_job_state, gs_job_state_name((gs_job_state)i), (int)job->state == i ? 1 : 0);
    set(page, &gradsync_job_created_timestamp_seconds, (double)job->created_ms / 1000);
    set(page, &gradsync_job_start_timestamp_seconds, (double)job->started_ms / 1000);
    set(page, &gradsync_job_generation, job->generation);
    set(page, &gradsync_job_world_size, job->num_members);
    set(page, &gradsync_job_world_size_min, job->world_min);
    set(page, &gradsync_job_world_size_max, job->world_max);
    set(page, &gradsync_job_waiting_workers, job->waiting);
    set(page, &gradsync_job_control_path_degraded, job->control_path_degraded);
    set(page, &gradsync_job_step, job->step);
    set(page, &gradsync_job_lost_steps_total, job->lost_steps);
    set(page, &gradsync_job_target_steps, job->target_steps);
}

static void refresh_work(const gs_job_page *page) {
    const gs_job_metrics *metrics = page->job->metrics;
    set(page, &gradsync_job_steps_total, gs_job_metrics_total(metrics, 0, GS_REPORT_ALL_STEPS));
    set(page, &gradsync_job_tokens_total, gs_job_metrics_total(metrics, 0, GS_REPORT_ALL_TOKENS));
    set(page, &gradsync_job_samples_total, gs_job_metrics_total(metrics, 0, GS_REPORT_ALL_SAMPLES));
    set_one(page, &gradsync_job_skipped_steps_total, "non_finite",
            gs_job_metrics_total(metrics, 0, GS_REPORT_ALL_SKIPPED_STEPS));
    set(page, &gradsync_bucket_order_mismatches_total,
        gs_job_metrics_total(metrics, 0, GS_REPORT_ALL_ORDER_MISMATCHES));
    set_one(page, &gradsync_plan_rebuilds_total, "ready_order", page->job->rebuilds_ready_order);
    set_one(page, &gradsync_plan_rebuilds_total, "link", page->job->rebuilds_link);
    set_one(page, &gradsync_plan_rebuilds_total, "operator", page->job->rebuilds_operator);
    const gs_step_report *report = gs_job_metrics_report(metrics, 0);
    if (report) {
        set(page, &gradsync_job_loss, gs_step_report_get(report, GS_REPORT_LOSS, NAN));
        set(page, &gradsync_job_learning_rate, gs_step_report_get(report, GS_REPORT_LR, NAN));
        set(page, &gradsync_job_grad_norm, gs_step_report_get(report, GS_REPORT_GRAD_NORM, NAN));
        double loss_scale = gs_step_report_get(report, GS_REPORT_LOSS_SCALE, 0);
        if (loss_scale > 0) set(page, &gradsync_job_loss_scale, loss_scale);
    }
    bool known = false;
    double eval_loss = gs_job_metrics_eval_loss(metrics, &known);
    if (known) set(page, &gradsync_job_eval_loss, eval_loss);
}

static void refresh_offers(const gs_job_page *page) {
    int total = 0;
    for (int kind = 0; kind < GS_NUM_OFFERS; kind++) total += page->job->buckets_by_offer[kind];
    for (int kind = 0; kind < GS_NUM_OFFERS && total; kind++)
        set_one(page, &gradsync_hook_buckets, gs_offer_words[kind], page->job->buckets_by_offer[kind]);
}

static void refresh_link(const gs_job_page *page) {
    const gs_link_model *link = &page->job->link;
    const gs_link_pair *worst = &page->job->worst_pair;
    if (!gs_link_model_is_known(link)) return;
    set(page, &gradsync_job_link_start_seconds, link->cost.start_seconds);
    set(page, &gradsync_job_link_bytes_per_second, 1 / link->cost.byte_seconds);
    if (worst->latency_seconds > 0) set(page, &gradsync_job_link_latency_seconds, worst->latency_seconds);
    if (worst->bytes_per_second > 0) set(page, &gradsync_job_link_slowest_bytes_per_second, worst->bytes_per_second);
}

static void refresh_histograms(const gs_job_page *page) {
    const gs_job_metrics *metrics = page->job->metrics;
    gs_histogram histogram;
    gs_job_metrics_histogram(metrics, &histogram, GS_REPORT_STEPS);
    set_histogram(page, &gradsync_step_duration_seconds, NULL, NULL, &histogram);
    gs_job_metrics_histogram(metrics, &histogram, GS_REPORT_REDUCES);
    set_histogram(page, &gradsync_reduce_duration_seconds, "allreduce", "all", &histogram);
    gs_job_metrics_histogram(metrics, &histogram, GS_REPORT_QUEUES);
    set_histogram(page, &gradsync_reduce_queue_seconds, NULL, NULL, &histogram);
}

// Causes that this version does not know are there, at 0.
static void refresh_losses(const gs_job_page *page) {
    const gs_job_shot *job = page->job;
    const gs_job_metrics *metrics = job->metrics;
    const struct {
        const char *cause;
        double seconds;
    } losses[] = {{"forming", job->forming_seconds},
                  {"regroup", job->recovering_seconds},
                  {"waiting", job->queued_seconds},
                  {"checkpoint", gs_job_metrics_total(metrics, 0, GS_REPORT_ALL_CHECKPOINT)},
                  {"straggler", gs_job_metrics_straggler_seconds(metrics)},
                  {"redo", 0},
                  {"heal", 0}};
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        set_one(page, &gradsync_job_lost_seconds_total, losses[i].cause, losses[i].seconds);
    }
    int64_t end_ms = gs_job_state_terminal(job->state) ? job->ended_ms : job->wall_ms;
    double since_start = (double)(end_ms - job->started_ms) / 1000;
    double in_steps = gs_job_metrics_total(metrics, 0, GS_REPORT_ALL_STEP_SECONDS);
    double ratio = job->started_ms > 0 && since_start > 0 ? in_steps / since_start : 0;
    set(page, &gradsync_job_goodput_ratio, ratio < 1 ? ratio : 1);
    set(page, &gradsync_job_whatif_step_seconds,
        gs_stragglers_whatif_step_seconds(gs_job_metrics_stragglers(metrics)));
    const gs_step_report *report = gs_job_metrics_report(metrics, 0);
    set(page, &gradsync_job_unused_parameters, gs_step_report_get(report, GS_REPORT_UNUSED_PARAMETERS, 0));
    set(page, &gradsync_job_unused_parameter_bytes, gs_step_report_get(report, GS_REPORT_UNUSED_BYTES, 0));
}

// Among the names of buckets; the last is "other".
static int place_of(const gs_report_bucket *bucket) {
    return bucket->index >= 0 && bucket->index < MAX_BUCKETS ? bucket->index : MAX_BUCKETS;
}

// A rank counts from its own post: who waited for others shows less than was moved, who came last all of it.
static void take_bandwidths(double algbw[MAX_BUCKETS + 1], double busbw[MAX_BUCKETS + 1], const gs_step_report *report) {
    for (size_t i = 0; report && i < report->num_buckets; i++) {
        const gs_report_bucket *bucket = &report->buckets[i];
        int place = place_of(bucket);
        if (isfinite(bucket->algbw) && bucket->algbw > algbw[place]) algbw[place] = bucket->algbw;
        if (isfinite(bucket->busbw) && bucket->busbw > busbw[place]) busbw[place] = bucket->busbw;
    }
}

static void refresh_buckets(const gs_job_page *page) {
    int count = page->job->num_buckets;
    double other_bytes = 0, other_tensors = 0;
    for (int i = 0; i < count; i++) {
        const gs_bucket_shot *bucket = &page->job->buckets[i];
        if (i >= MAX_BUCKETS) {
            other_bytes += bucket->bytes;
            other_tensors += bucket->tensors;
            continue;
        }
        char name[24];
        snprintf(name, sizeof name, "%d", i);
        set_one(page, &gradsync_bucket_bytes, name, bucket->bytes);
        set_one(page, &gradsync_bucket_tensors, name, bucket->tensors);
        set_one(page, &gradsync_bucket_plan_position, name, i);
    }
    if (count > MAX_BUCKETS) {
        set_one(page, &gradsync_bucket_bytes, "other", other_bytes);
        set_one(page, &gradsync_bucket_tensors, "other", other_tensors);
    }
    set(page, &gradsync_job_buckets, count);
    set(page, &gradsync_job_parameters, page->job->num_elements);
    const gs_step_report *reported = gs_job_metrics_report(page->job->metrics, 0);
    bool is_shown[MAX_BUCKETS + 1] = {false};
    double algbw[MAX_BUCKETS + 1] = {0}, busbw[MAX_BUCKETS + 1] = {0};
    for (int rank = 0; rank < gs_job_metrics_world_size(page->job->metrics); rank++)
        take_bandwidths(algbw, busbw, gs_job_metrics_report(page->job->metrics, rank));
    for (size_t i = 0; reported && i < reported->num_buckets; i++) {
        const gs_report_bucket *bucket = &reported->buckets[i];
        int place = place_of(bucket);
        // A page that says one series twice is no page: the first row counts, whatever a rank tells.
        if (is_shown[place]) continue;
        is_shown[place] = true;
        char name[24] = "other";
        if (place < MAX_BUCKETS) snprintf(name, sizeof name, "%d", place);
        set_one(page, &gradsync_bucket_ready_offset_seconds, name, bucket->ready);
        if (bucket->ready_position >= 0)
            set_one(page, &gradsync_bucket_ready_position, name, bucket->ready_position);
        set_one(page, &gradsync_reduce_algorithm_bandwidth_bytes_per_second, name, algbw[place]);
        set_one(page, &gradsync_reduce_bus_bandwidth_bytes_per_second, name, busbw[place]);
    }
}

static void refresh_rank(const gs_job_page *page, int rank) {
    static const char *const phases[] = {"data",         "forward",   "backward",
                                         "comm_exposed", "optimizer", "checkpoint"};
    const gs_job_metrics *metrics = page->job->metrics;
    char name[16];
    snprintf(name, sizeof name, "%d", rank);
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        set_two(page, &gradsync_step_phase_seconds_total, name, phases[i], gs_job_metrics_total(metrics, rank, (gs_report_value)(GS_REPORT_ALL_DATA + i)));
    }
    set_two(page, &gradsync_reduce_payload_bytes_total, name, "allreduce", gs_job_metrics_total(metrics, rank, GS_REPORT_ALL_PAYLOAD_BYTES));
    set_two(page, &gradsync_reduce_wire_bytes_total, name, "allreduce", gs_job_metrics_total(metrics, rank, GS_REPORT_ALL_WIRE_BYTES));
    set_one(page, &gradsync_comm_busy_seconds_total, name,
            gs_job_metrics_total(metrics, rank, GS_REPORT_ALL_COMM_BUSY));
    set_one(page, &gradsync_comm_exposed_seconds_total, name,
            gs_job_metrics_total(metrics, rank, GS_REPORT_ALL_COMM_EXPOSED));
    set_one(page, &gradsync_rank_wait_seconds_total, name,
            gs_job_metrics_total(metrics, rank, GS_REPORT_ALL_WAIT));
    set_one(page, &gradsync_non_finite_gradients_total, name,
            gs_job_metrics_total(metrics, rank, GS_REPORT_ALL_NONFINITE));
    set_two(page, &gradsync_grad_copy_seconds_total, name, "in", gs_job_metrics_total(metrics, rank, GS_REPORT_ALL_COPY_IN));
    set_two(page, &gradsync_grad_copy_seconds_total, name, "out", gs_job_metrics_total(metrics, rank, GS_REPORT_ALL_COPY_OUT));
    set_two(page, &gradsync_hook_seconds_total, name, "encode", gs_job_metrics_total(metrics, rank, GS_REPORT_ALL_ENCODE));
    set_two(page, &gradsync_hook_seconds_total, name, "decode", gs_job_metrics_total(metrics, rank, GS_REPORT_ALL_DECODE));
    const gs_step_report *report = gs_job_metrics_report(metrics, rank);
    if (gs_step_report_knows(report, GS_REPORT_ERROR_FEEDBACK_NORM))
        set_one(page, &gradsync_error_feedback_norm, name, report->values[GS_REPORT_ERROR_FEEDBACK_NORM]);
    set_one(page, &gradsync_rank_straggler, name,
            gs_stragglers_view(gs_job_metrics_stragglers(metrics), rank).flagged);
    set_one(page, &gradsync_rank_lag_seconds, name, gs_job_metrics_lag_seconds(metrics, rank));
    set_one(page, &gradsync_rank_last_arrivals_total, name,
            (double)gs_job_metrics_last_arrivals(metrics, rank));
    set_one(page, &gradsync_comm_overlap_ratio, name,
            gs_step_report_get(gs_job_metrics_report(metrics, rank), GS_REPORT_OVERLAP_RATIO, 0));
}

static void refresh_member(const gs_job_page *page, int rank) {
    const gs_member_shot *member = &page->job->members[rank];
    char name[16];
    snprintf(name, sizeof name, "%d", rank);
    set_all(page, &gradsync_worker_info,
            (const char *[]){page->job->id, name, member->worker, member->host, member->device, member->device_uuid}, 1);
    set_one(page, &gradsync_worker_up, name, member->is_up);
    set_one(page, &gradsync_worker_last_heartbeat_timestamp_seconds, name,
            (double)page->job->wall_ms / 1000 - member->silent_seconds);
    set_one(page, &gradsync_worker_resident_memory_bytes, name, member->rss_bytes);
}

static void refresh_checkpoints(const gs_job_page *page) {
    const gs_save_facts *facts = &page->job->saves;
    set_histogram(page, &gradsync_checkpoint_duration_seconds, "save", NULL, &facts->save_seconds);
    set_one(page, &gradsync_checkpoint_failures_total, "space", (double)facts->failures_space);
    set_one(page, &gradsync_checkpoint_failures_total, "io", (double)facts->failures_io);
    set_one(page, &gradsync_checkpoint_failures_total, "digest", (double)facts->failures_digest);
    set_one(page, &gradsync_checkpoint_failures_total, "deadline", (double)facts->failures_deadline);
    set_one(page, &gradsync_checkpoint_failures_total, "residuals", (double)facts->failures_residuals);
    set(page, &gradsync_checkpoint_bytes, (double)facts->last_bytes);
    set(page, &gradsync_checkpoint_last_success_timestamp_seconds,
        (double)facts->last_success_ms / 1000);
    set(page, &gradsync_checkpoint_last_success_step, (double)facts->last_success_step);
    set(page, &gradsync_checkpoint_last_verified_timestamp_seconds,
        (double)facts->last_verified_ms / 1000);
}

static void refresh_compression(const gs_job_page *page) {
    gs_json *reduction = gs_job_metrics_reduction(page->job->metrics);
    set(page, &gradsync_compression_ratio, gs_json_double_or(reduction, "compression_ratio", 1));
    gs_json_release(reduction);
}

// Ranks that a smaller generation no longer has are down, not forgotten.
static void show_gone_ranks(const gs_job_page *page, int members) {
    for (int i = members; i < page->job->ranks_shown; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        set_one(page, &gradsync_worker_up, name, 0);
    }
}

typedef struct gs_rank_quantity {
    const gs_metric_family *family;
    gs_report_value total;  // LOSS: of the function below
} gs_rank_quantity;

static const gs_rank_quantity quantities[] = {
    {&gradsync_ranks_wait_seconds, GS_REPORT_ALL_WAIT},
    {&gradsync_ranks_comm_busy_seconds, GS_REPORT_ALL_COMM_BUSY},
    {&gradsync_ranks_comm_exposed_seconds, GS_REPORT_ALL_COMM_EXPOSED},
    {&gradsync_ranks_lag_seconds, GS_REPORT_LOSS},
    {&gradsync_ranks_comm_overlap_ratio, GS_REPORT_LOSS},
    {&gradsync_ranks_silence_seconds, GS_REPORT_LOSS},
    {&gradsync_ranks_resident_memory_bytes, GS_REPORT_LOSS},
};
#define NUM_QUANTITIES (int)(sizeof quantities / sizeof quantities[0])

static double quantity_of(const gs_job_page *page, const gs_rank_quantity *quantity, int rank) {
    const gs_job_metrics *metrics = page->job->metrics;
    if (quantity->total) return gs_job_metrics_total(metrics, rank, quantity->total);
    if (quantity->family == &gradsync_ranks_lag_seconds) {
        return gs_job_metrics_lag_seconds(metrics, rank);
    }
    if (quantity->family == &gradsync_ranks_comm_overlap_ratio) {
        double ratio = gs_step_report_get(gs_job_metrics_report(metrics, rank), GS_REPORT_OVERLAP_RATIO, 0);
        return isfinite(ratio) ? ratio : 0;
    }
    if (rank >= page->job->num_members) return 0;
    const gs_member_shot *member = &page->job->members[rank];
    return quantity->family == &gradsync_ranks_resident_memory_bytes ? member->rss_bytes : member->silent_seconds;
}

static int compare_doubles(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static void refresh_quantity(const gs_job_page *page, const gs_rank_quantity *quantity, int ranks) {
    double *values = malloc((size_t)ranks * sizeof *values);
    if (!values) return;
    for (int i = 0; i < ranks; i++) values[i] = quantity_of(page, quantity, i);
    qsort(values, (size_t)ranks, sizeof *values, compare_doubles);
    double median = (values[(ranks - 1) / 2] + values[ranks / 2]) / 2;
    set_one(page, quantity->family, "max", values[ranks - 1]);
    set_one(page, quantity->family, "median", median);
    free(values);
}

int gs_job_families_ranks(const gs_job_shot *job) {
    int reported = gs_job_metrics_world_size(job->metrics);
    return reported > job->num_members ? reported : job->num_members;
}

static void refresh_ranks(const gs_job_page *page, int ranks) {
    int reported = gs_job_metrics_world_size(page->job->metrics), members = page->job->num_members;
    for (int i = 0; i < ranks; i++) {
        if (i < reported) refresh_rank(page, i);
        if (i < members) refresh_member(page, i);
    }
    show_gone_ranks(page, members);
}

void gs_job_families_write(gs_page_text *text, const gs_job_shot *job) {
    const gs_job_page page = {text, job};
    int ranks = gs_job_families_ranks(job);
    refresh_identity(&page);
    refresh_work(&page);
    refresh_link(&page);
    refresh_offers(&page);
    refresh_histograms(&page);
    refresh_buckets(&page);
    refresh_losses(&page);
    refresh_checkpoints(&page);
    refresh_compression(&page);
    if (job->shows_ranks) refresh_ranks(&page, ranks);
    for (int i = 0; !job->shows_ranks && ranks > 0 && i < NUM_QUANTITIES; i++)
        refresh_quantity(&page, &quantities[i], ranks);
}
