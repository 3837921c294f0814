#include "coordinator/observe/reports/job_metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/reports/series.h"

#define NUM_SERIES 8
static const char *const series_names[NUM_SERIES] = {
    "loss",          "grad_norm",     "lr",        "step_seconds", "tokens_per_second",
    "comm_exposed_seconds", "overlap_ratio", "eval_loss",
};

typedef struct gs_rank_metrics {
    gs_step_report report;      // the last one, without waits and history
    gs_report_bucket *buckets;  // owned; of that
    size_t max_buckets;
    bool has_report;
    double lag_seconds;
    int64_t last_arrivals;
} gs_rank_metrics;

// By the number of a value less GS_REPORT_FIRST_TOTAL.
typedef struct gs_finished_totals {
    double values[GS_NUM_REPORT_TOTALS];
} gs_finished_totals;

struct gs_job_metrics {
    int num_ranks;
    gs_rank_metrics *ranks;        // owned
    gs_finished_totals *finished;  // owned; of ranks of former generations, by number
    int num_finished;
    gs_histogram finished_histograms[GS_NUM_REPORT_HISTOGRAMS];
    gs_stragglers *stragglers;  // owned; of this generation
    double finished_straggler_seconds;
    gs_series series[NUM_SERIES];
    double eval_loss;
    bool eval_known;
};

gs_job_metrics *gs_job_metrics_create(void) { return calloc(1, sizeof(gs_job_metrics)); }

static void release_ranks(gs_job_metrics *metrics) {
    for (int i = 0; i < metrics->num_ranks; i++) free(metrics->ranks[i].buckets);
    free(metrics->ranks);
    metrics->ranks = NULL;
    metrics->num_ranks = 0;
}

void gs_job_metrics_destroy(gs_job_metrics *metrics) {
    if (!metrics) return;
    release_ranks(metrics);
    gs_stragglers_destroy(metrics->stragglers);
    free(metrics->finished);
    for (int i = 0; i < NUM_SERIES; i++) gs_series_release(&metrics->series[i]);
    free(metrics);
}

static void *copy_of(const void *from, size_t bytes) {
    void *copy = from && bytes ? malloc(bytes) : NULL;
    return copy ? memcpy(copy, from, bytes) : NULL;
}

// Buckets of rank 0 alone: nobody is shown others'.
static void copy_rank(gs_job_metrics *copy, const gs_job_metrics *from, int i) {
    gs_rank_metrics *rank = &copy->ranks[i];
    *rank = from->ranks[i];
    size_t bytes = rank->report.num_buckets * sizeof *rank->buckets;
    rank->buckets = i == 0 ? copy_of(rank->buckets, bytes) : NULL;
    rank->report.buckets = rank->buckets;
    if (!rank->buckets) rank->report.num_buckets = 0;
}

// Those that both have, of the ones from `first` on.
static int end_of(int first, int most, int of_copy, int of_other) {
    int end = of_copy < of_other ? of_copy : of_other;
    return end - first < most ? end : first + most;
}

bool gs_job_metrics_copy_some(gs_job_metrics *copy, const gs_job_metrics *from, int first, int most) {
    int end = end_of(first, most, copy->num_ranks, from->num_ranks);
    for (int i = first; i < end; i++) copy_rank(copy, from, i);
    end = end_of(first, most, copy->num_finished, from->num_finished);
    for (int i = first; i < end; i++) copy->finished[i] = from->finished[i];
    return first + most >= copy->num_ranks && first + most >= copy->num_finished;
}

gs_job_metrics *gs_job_metrics_copy_begin(const gs_job_metrics *from) {
    gs_job_metrics *copy = gs_job_metrics_create();
    if (!copy) return NULL;
    copy->ranks = from->num_ranks ? calloc((size_t)from->num_ranks, sizeof *copy->ranks) : NULL;
    copy->num_ranks = copy->ranks ? from->num_ranks : 0;
    copy->finished = from->num_finished ? calloc((size_t)from->num_finished, sizeof *copy->finished) : NULL;
    copy->num_finished = copy->finished ? from->num_finished : 0;
    memcpy(copy->finished_histograms, from->finished_histograms, sizeof copy->finished_histograms);
    copy->stragglers = gs_stragglers_copy_views(from->stragglers);
    copy->finished_straggler_seconds = from->finished_straggler_seconds;
    copy->eval_loss = from->eval_loss;
    copy->eval_known = from->eval_known;
    return copy;
}

static void add_histogram(gs_histogram *sum, const gs_histogram *part) {
    for (size_t i = 0; i <= GS_METRIC_MAX_BOUNDS; i++) sum->counts[i] += part->counts[i];
    if (isfinite(part->sum)) sum->sum += part->sum;
}

static bool make_finished(gs_job_metrics *metrics, int num_ranks) {
    if (num_ranks <= metrics->num_finished) return true;
    gs_finished_totals *grown = realloc(metrics->finished, (size_t)num_ranks * sizeof *grown);
    if (!grown) return false;
    memset(grown + metrics->num_finished, 0, (size_t)(num_ranks - metrics->num_finished) * sizeof *grown);
    metrics->finished = grown;
    metrics->num_finished = num_ranks;
    return true;
}

// Totals of a trainer count from its own start: what the old ones counted is kept beside.
static void fold_rank(gs_job_metrics *metrics, int rank) {
    const gs_step_report *report = &metrics->ranks[rank].report;
    for (int i = 0; i < GS_NUM_REPORT_TOTALS; i++) {
        double value = report->values[GS_REPORT_FIRST_TOTAL + i];
        if (isfinite(value)) metrics->finished[rank].values[i] += value;
    }
    for (int i = 0; i < GS_NUM_REPORT_HISTOGRAMS; i++)
        add_histogram(&metrics->finished_histograms[i], &report->histograms[i]);
}

void gs_job_metrics_begin_generation(gs_job_metrics *metrics, int world_size) {
    if (make_finished(metrics, metrics->num_ranks)) {
        for (int i = 0; i < metrics->num_ranks; i++) fold_rank(metrics, i);
    }
    metrics->finished_straggler_seconds = gs_job_metrics_straggler_seconds(metrics);
    gs_stragglers_destroy(metrics->stragglers);
    // Of one rank nobody is told apart.
    metrics->stragglers = world_size > 1 ? gs_stragglers_create(world_size) : NULL;
    release_ranks(metrics);
    metrics->ranks = calloc((size_t)world_size, sizeof *metrics->ranks);
    if (metrics->ranks) metrics->num_ranks = world_size;
}

static const gs_rank_metrics *rank_of(const gs_job_metrics *metrics, int rank) {
    return rank >= 0 && rank < metrics->num_ranks ? &metrics->ranks[rank] : NULL;
}

const gs_step_report *gs_job_metrics_report(const gs_job_metrics *metrics, int rank) {
    const gs_rank_metrics *of_rank = rank_of(metrics, rank);
    return of_rank && of_rank->has_report ? &of_rank->report : NULL;
}

int gs_job_metrics_world_size(const gs_job_metrics *metrics) { return metrics->num_ranks; }

const gs_stragglers *gs_job_metrics_stragglers(const gs_job_metrics *metrics) {
    return metrics->stragglers;
}

double gs_job_metrics_straggler_seconds(const gs_job_metrics *metrics) {
    double sum = metrics->finished_straggler_seconds;
    for (int i = 0; i < metrics->num_ranks; i++) {
        sum += gs_stragglers_view(metrics->stragglers, i).lost_seconds;
    }
    return sum;
}

// Reports of old trainers have no steps to compare.
static bool compares_steps(const gs_job_metrics *metrics) {
    return gs_stragglers_num_compared(metrics->stragglers) > 0;
}

double gs_job_metrics_lag_seconds(const gs_job_metrics *metrics, int rank) {
    const gs_rank_metrics *of_rank = rank_of(metrics, rank);
    if (of_rank && compares_steps(metrics))
        return gs_stragglers_view(metrics->stragglers, rank).lag_seconds;
    return of_rank ? of_rank->lag_seconds : 0;
}

int64_t gs_job_metrics_last_arrivals(const gs_job_metrics *metrics, int rank) {
    const gs_rank_metrics *of_rank = rank_of(metrics, rank);
    if (of_rank && compares_steps(metrics))
        return gs_stragglers_view(metrics->stragglers, rank).last_arrivals;
    return of_rank ? of_rank->last_arrivals : 0;
}

static double finite_or_0(double value) { return isfinite(value) ? value : 0; }

double gs_job_metrics_step_seconds(const gs_job_metrics *metrics) {
    return finite_or_0(gs_step_report_get(gs_job_metrics_report(metrics, 0), GS_REPORT_STEP_SECONDS, 0));
}

double gs_job_metrics_total(const gs_job_metrics *metrics, int rank, gs_report_value total) {
    const gs_rank_metrics *of_rank = rank_of(metrics, rank);
    if (!of_rank) return 0;
    double finished = rank < metrics->num_finished ? metrics->finished[rank].values[total - GS_REPORT_FIRST_TOTAL] : 0;
    return finished + finite_or_0(of_rank->report.values[total]);
}

void gs_job_metrics_histogram(const gs_job_metrics *metrics, gs_histogram *histogram,
                              gs_report_histogram_kind which) {
    *histogram = metrics->finished_histograms[which];
    for (int i = 0; i < metrics->num_ranks; i++) add_histogram(histogram, &metrics->ranks[i].report.histograms[which]);
}

double gs_job_metrics_eval_loss(const gs_job_metrics *metrics, bool *known) {
    *known = metrics->eval_known;
    return metrics->eval_loss;
}

static void set_known(gs_json *view, const char *key, const gs_step_report *report, gs_report_value which) {
    if (gs_step_report_knows(report, which)) gs_json_set_double(view, key, report->values[which]);
}

static void set_slowest(gs_json *latest, const gs_job_metrics *metrics) {
    int slowest = 0;
    for (int i = 1; i < metrics->num_ranks; i++) {
        if (gs_job_metrics_lag_seconds(metrics, i) > gs_job_metrics_lag_seconds(metrics, slowest)) slowest = i;
    }
    gs_json_set_int(latest, "slowest_rank", slowest);
    gs_json_set_double(latest, "slowest_rank_lag_seconds", gs_job_metrics_lag_seconds(metrics, slowest));
    gs_json_set_bool(latest, "slowest_rank_is_straggler", gs_stragglers_view(metrics->stragglers, slowest).flagged);
}

gs_json *gs_job_metrics_latest(const gs_job_metrics *metrics) {
    const gs_step_report *report = gs_job_metrics_report(metrics, 0);
    if (!report) return NULL;
    gs_json *latest = gs_json_new_object();
    if (report->step >= 0) gs_json_set_int(latest, "step", report->step);
    set_known(latest, "loss", report, GS_REPORT_LOSS);
    set_known(latest, "grad_norm", report, GS_REPORT_GRAD_NORM);
    set_known(latest, "lr", report, GS_REPORT_LR);
    set_known(latest, "step_seconds", report, GS_REPORT_STEP_SECONDS);
    set_known(latest, "tokens_per_second", report, GS_REPORT_TOKENS_PER_SECOND);
    set_known(latest, "comm_exposed_seconds", report, GS_REPORT_COMM_EXPOSED_SECONDS);
    set_known(latest, "loss_scale", report, GS_REPORT_LOSS_SCALE);
    set_known(latest, "comm_overlap_ratio", report, GS_REPORT_OVERLAP_RATIO);
    if (metrics->num_ranks > 1) set_slowest(latest, metrics);
    if (metrics->eval_known) gs_json_set_double(latest, "eval_loss", metrics->eval_loss);
    return latest;
}

// A whole number that every JSON reader keeps exact.
static int64_t to_whole(double value) {
    const double most = 9007199254740992.0;
    return value > most ? (int64_t)most : value > 0 ? (int64_t)value : 0;
}

// Of one value in the last report of each rank; negative when none has it.
static double sum_last(const gs_job_metrics *metrics, gs_report_value which, double power) {
    double sum = -1;
    for (int i = 0; i < metrics->num_ranks; i++) {
        double value = gs_step_report_get(&metrics->ranks[i].report, which, NAN);
        if (isfinite(value)) sum = (sum < 0 ? 0 : sum) + pow(value, power);
    }
    return sum;
}

gs_json *gs_job_metrics_reduction(const gs_job_metrics *metrics) {
    const gs_step_report *report = gs_job_metrics_report(metrics, 0);
    double payload = sum_last(metrics, GS_REPORT_PAYLOAD_BYTES, 1), wire = sum_last(metrics, GS_REPORT_WIRE_BYTES, 1);
    if (payload < 0 || wire < 0) return NULL;
    gs_json *reduction = gs_json_new_object();
    gs_json_set_int(reduction, "payload_bytes", to_whole(payload));
    gs_json_set_int(reduction, "wire_bytes", to_whole(wire));
    if (wire > 0) gs_json_set_double(reduction, "compression_ratio", payload / wire);
    if (gs_step_report_knows(report, GS_REPORT_ELEMENTS)) {
        gs_json_set_int(reduction, "elements", to_whole(report->values[GS_REPORT_ELEMENTS]));
        gs_json_set_int(reduction, "elements_sent", to_whole(report->values[GS_REPORT_ELEMENTS_SENT]));
    }
    double squares = sum_last(metrics, GS_REPORT_ERROR_FEEDBACK_NORM, 2);
    if (squares >= 0) gs_json_set_double(reduction, "error_feedback_norm", sqrt(squares));
    return reduction;
}

static double wait_of(const gs_rank_metrics *rank) { return finite_or_0(rank->report.values[GS_REPORT_WAIT_SECONDS]); }

// Lag is the largest wait minus the own one, as a moving average: clocks are never compared.
static void update_lags(gs_job_metrics *metrics) {
    double largest = 0;
    int least_rank = 0;
    for (int i = 0; i < metrics->num_ranks; i++) {
        const gs_rank_metrics *rank = &metrics->ranks[i];
        if (!rank->has_report) return;
        if (wait_of(rank) > largest) largest = wait_of(rank);
        if (wait_of(rank) < wait_of(&metrics->ranks[least_rank])) least_rank = i;
    }
    for (int i = 0; i < metrics->num_ranks; i++) {
        gs_rank_metrics *rank = &metrics->ranks[i];
        rank->lag_seconds += 0.2 * (largest - wait_of(rank) - rank->lag_seconds);
    }
    if (metrics->num_ranks > 1) metrics->ranks[least_rank].last_arrivals++;
}

static void compare_waits(gs_job_metrics *metrics, int rank, const gs_step_report *report) {
    for (size_t i = 0; i < report->num_waits; i++) {
        const gs_report_waits *waits = &report->waits[i];
        const gs_straggler_sample sample = {waits->compute, waits->wait, waits->transfer, waits->data,
                                            waits->step_seconds};
        gs_stragglers_add(metrics->stragglers, rank, waits->step, &sample);
    }
}

static void draw_entry(gs_job_metrics *metrics, const gs_json *entry) {
    int64_t step = gs_json_int_or(entry, "step", -1);
    if (step < 0) return;
    for (int i = 0; i < NUM_SERIES; i++) {
        const gs_json *value = gs_json_get(entry, series_names[i]);
        if (value) gs_series_add(&metrics->series[i], step, gs_json_double_or(entry, series_names[i], NAN));
    }
    if (gs_json_get(entry, "eval_loss")) {
        metrics->eval_loss = gs_json_double_or(entry, "eval_loss", NAN);
        metrics->eval_known = true;
    }
}

// An entry that is drawn is passed on, to be written down.
static void record_entry(gs_job_metrics *metrics, const gs_json *entry, const gs_metrics_record *record) {
    draw_entry(metrics, entry);
    record->write(record->ctx, entry);
}

static void take_history(gs_job_metrics *metrics, const gs_step_report *report, const gs_metrics_record *record) {
    for (size_t i = 0; i < report->num_history; i++) {
        gs_json *entry = gs_report_step_to_json(&report->history[i]);
        record_entry(metrics, entry, record);
        gs_json_release(entry);
    }
    if (!gs_step_report_knows(report, GS_REPORT_EVAL_STEP)) return;
    const gs_series *drawn = &metrics->series[NUM_SERIES - 1];
    int64_t step = to_whole(report->values[GS_REPORT_EVAL_STEP]);
    if (drawn->count > 0 && drawn->points[drawn->count - 1].step == step) return;
    gs_json *entry = gs_json_new_object();
    gs_json_set_int(entry, "step", step);
    gs_json_set_double(entry, "eval_loss", gs_step_report_get(report, GS_REPORT_EVAL_LOSS, NAN));
    set_known(entry, "eval_accuracy", report, GS_REPORT_EVAL_ACCURACY);
    record_entry(metrics, entry, record);
    gs_json_release(entry);
}

static void keep_buckets(gs_rank_metrics *of_rank, const gs_step_report *report) {
    of_rank->report.buckets = of_rank->buckets;
    of_rank->report.num_buckets = 0;
    if (report->num_buckets > of_rank->max_buckets) {
        gs_report_bucket *grown = realloc(of_rank->buckets, report->num_buckets * sizeof *grown);
        if (!grown) return;
        of_rank->buckets = grown;
        of_rank->max_buckets = report->num_buckets;
    }
    if (report->num_buckets) memcpy(of_rank->buckets, report->buckets, report->num_buckets * sizeof *report->buckets);
    of_rank->report.buckets = of_rank->buckets;
    of_rank->report.num_buckets = report->num_buckets;
}

void gs_job_metrics_take(gs_job_metrics *metrics, int rank, int world_size, const gs_step_report *report,
                         const gs_metrics_record *record) {
    if (rank >= metrics->num_ranks) gs_job_metrics_begin_generation(metrics, world_size);
    if (rank < 0 || rank >= metrics->num_ranks) return;
    gs_rank_metrics *of_rank = &metrics->ranks[rank];
    of_rank->report = *report;
    of_rank->has_report = true;
    keep_buckets(of_rank, report);
    of_rank->report.waits = NULL;
    of_rank->report.history = NULL;
    of_rank->report.num_waits = of_rank->report.num_history = 0;
    compare_waits(metrics, rank, report);
    if (rank != 0) return;
    if (!compares_steps(metrics)) update_lags(metrics);
    take_history(metrics, report, record);
}

gs_json *gs_job_metrics_totals_to_view(const gs_job_metrics *metrics) {
    static const struct {
        const char *name;
        gs_report_value total;
        bool summed;  // else the same on every rank
    } rows[] = {{"steps", GS_REPORT_ALL_STEPS, false},
                {"tokens", GS_REPORT_ALL_TOKENS, false},
                {"samples", GS_REPORT_ALL_SAMPLES, false},
                {"skipped_steps", GS_REPORT_ALL_SKIPPED_STEPS, false},
                {"payload_bytes", GS_REPORT_ALL_PAYLOAD_BYTES, true},
                {"wire_bytes", GS_REPORT_ALL_WIRE_BYTES, true},
                {"order_mismatches", GS_REPORT_ALL_ORDER_MISMATCHES, true},
                {"nonfinite", GS_REPORT_ALL_NONFINITE, true}};
    gs_json *totals = gs_json_new_object();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double sum = 0;
        int count = rows[i].summed ? metrics->num_ranks : 1;
        for (int rank = 0; rank < count; rank++) sum += gs_job_metrics_total(metrics, rank, rows[i].total);
        gs_json_set_int(totals, rows[i].name, to_whole(sum));
    }
    return totals;
}

static void set_straggler(gs_json *report, const gs_job_metrics *metrics, int rank) {
    gs_straggler_view view = gs_stragglers_view(metrics->stragglers, rank);
    gs_json_set_double(report, "lag_seconds", gs_job_metrics_lag_seconds(metrics, rank));
    if (!compares_steps(metrics)) return;
    gs_json_set_double(report, "share_of_steps_last", view.share_last);
    gs_json_set_double(report, "compute_ratio", view.compute_ratio);
    gs_json_set_bool(report, "straggler", view.flagged);
    if (view.flagged) gs_json_set_string(report, "straggler_phase", view.phase);
}

gs_json *gs_job_metrics_rank_to_view(const gs_job_metrics *metrics, int rank) {
    if (!metrics->ranks[rank].has_report) return NULL;
    gs_json *report = gs_step_report_to_json(&metrics->ranks[rank].report);
    gs_json_set_int(report, "rank", rank);
    set_straggler(report, metrics, rank);
    return report;
}

static gs_json *series_to_json(const gs_series *series, int64_t from, int64_t to, size_t max_points) {
    size_t begin = 0, end = series->count;
    while (begin < end && series->points[begin].step < from) begin++;
    while (end > begin && series->points[end - 1].step > to) end--;
    gs_json *points = gs_json_new_array();
    size_t count = end - begin;
    gs_series_point *thin = malloc((count ? count : 1) * sizeof *thin);
    if (thin) count = gs_series_thin(thin, series->points ? series->points + begin : thin, count, max_points);
    for (size_t i = 0; thin && i < count; i++) {
        gs_json *point = gs_json_new_array();
        gs_json_push(point, gs_json_new_int(thin[i].step));
        gs_json_push(point, gs_json_new_double(thin[i].value));
        gs_json_push(points, point);
    }
    free(thin);
    return points;
}

static int find_series(const char *name) {
    for (int i = 0; i < NUM_SERIES; i++) {
        if (name && !strcmp(name, series_names[i])) return i;
    }
    return -1;
}

static gs_json *curve_of(const gs_job_metrics *metrics, const char *name, const gs_series_wish *wish) {
    int index = find_series(name);
    if (index < 0) return NULL;
    gs_json *curve = gs_json_new_object();
    gs_json_set_string(curve, "name", name);
    gs_json_set(curve, "points", series_to_json(&metrics->series[index], wish->from_step, wish->to_step,
                                                wish->max_points));
    return curve;
}

gs_status gs_job_metrics_series(gs_json **out, const gs_job_metrics *metrics, const gs_series_wish *wish) {
    size_t named = gs_json_count(wish->names), count = named ? named : NUM_SERIES;
    gs_json *list = gs_json_new_array();
    for (size_t i = 0; i < count; i++) {
        const char *name = named ? gs_json_string(gs_json_at(wish->names, i)) : series_names[i];
        gs_json *curve = curve_of(metrics, name, wish);
        if (!curve) {
            gs_json_release(list);
            return gs_error(GS_INVALID_ARGUMENT, "names: there is no series \"%s\"", name ? name : "?");
        }
        gs_json_push(list, curve);
    }
    *out = list;
    return gs_ok();
}

void gs_job_metrics_draw_lines(gs_job_metrics *metrics, const char *text) {
    for (const char *line = text, *next; *line; line = next) {
        size_t length = strcspn(line, "\n");
        next = line + length + (line[length] == '\n');
        gs_json *entry = NULL;
        gs_status status = gs_json_parse(&entry, line, length);
        if (status.code) continue;  // a line cut by a crash
        draw_entry(metrics, entry);
        gs_json_release(entry);
    }
}

void gs_job_metrics_put_before(gs_job_metrics *metrics, gs_job_metrics *earlier) {
    for (int i = 0; i < NUM_SERIES; i++) {
        gs_series *series = &metrics->series[i], *before = &earlier->series[i], later = *series;
        *series = *before;
        *before = later;
        for (size_t k = 0; k < later.count; k++) gs_series_add(series, later.points[k].step, later.points[k].value);
    }
    if (metrics->eval_known || !earlier->eval_known) return;
    metrics->eval_loss = earlier->eval_loss;
    metrics->eval_known = true;
}
