#include "coordinator/observe/reports/job_metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/reports/series.h"

#define NUM_SERIES 8
#define MAX_COMPARED_RANKS 1024  // a rank takes some 10 KiB of steps
static const char *const series_names[NUM_SERIES] = {
    "loss",          "grad_norm",     "lr",        "step_seconds", "tokens_per_second",
    "comm_exposed_seconds", "overlap_ratio", "eval_loss",
};

typedef struct gs_rank_metrics {
    gs_json *report;  // owned; the last one
    const gs_json *finished;  // borrowed; its totals of former generations
    double wait_seconds, lag_seconds;
    int64_t lag_step, last_arrivals;
} gs_rank_metrics;

struct gs_job_metrics {
    int num_ranks;
    gs_rank_metrics *ranks;  // owned
    gs_json *finished;       // owned; totals of ranks of former generations, by number
    gs_histogram finished_steps, finished_reduces, finished_queues;
    gs_stragglers *stragglers;  // owned; of this generation
    double finished_straggler_seconds;
    gs_series series[NUM_SERIES];
    double eval_loss;
    bool eval_known;
};

gs_job_metrics *gs_job_metrics_create(void) {
    gs_job_metrics *metrics = calloc(1, sizeof *metrics);
    if (metrics) metrics->finished = gs_json_new_object();
    return metrics;
}

static void release_ranks(gs_job_metrics *metrics) {
    for (int i = 0; i < metrics->num_ranks; i++) gs_json_release(metrics->ranks[i].report);
    free(metrics->ranks);
    metrics->ranks = NULL;
    metrics->num_ranks = 0;
}

void gs_job_metrics_destroy(gs_job_metrics *metrics) {
    if (!metrics) return;
    release_ranks(metrics);
    gs_stragglers_destroy(metrics->stragglers);
    gs_json_release(metrics->finished);
    for (int i = 0; i < NUM_SERIES; i++) gs_series_release(&metrics->series[i]);
    free(metrics);
}

static void add_histogram(gs_histogram *sum, const gs_json *object) {
    const gs_json *counts = gs_json_get(object, "counts");
    for (size_t i = 0; i < gs_json_count(counts) && i <= GS_METRIC_MAX_BOUNDS; i++) {
        int64_t count = 0;
        if (gs_json_int(&count, gs_json_at(counts, i)) && count > 0) {
            sum->counts[i] += (uint64_t)count;
        }
    }
    double total = gs_json_double_or(object, "sum", 0);
    if (isfinite(total)) sum->sum += total;
}

// "steps", or "phases/forward".
static double total_of(const gs_json *report, const char *name) {
    const gs_json *totals = gs_json_get(report, "totals");
    if (!strncmp(name, "phases/", 7)) {
        totals = gs_json_get(totals, "phases");
        name += 7;
    }
    double value = gs_json_double_or(totals, name, 0);
    return isfinite(value) ? value : 0;
}

typedef struct gs_fold {
    gs_json *finished;  // of one rank
    const char *prefix;
} gs_fold;

static bool fold_total(void *ctx, const char *key, const gs_json *value) {
    gs_fold *fold = ctx;
    double number = 0;
    if (gs_json_type_of(value) == GS_JSON_OBJECT) {
        gs_fold inner = {fold->finished, "phases/"};
        gs_json_each(value, fold_total, &inner);
        return true;
    }
    char name[80];
    snprintf(name, sizeof name, "%s%s", fold->prefix, key);
    if (gs_json_double(&number, value) && isfinite(number)) {
        gs_json_set_double(fold->finished, name,
                           gs_json_double_or(fold->finished, name, 0) + number);
    }
    return true;
}

// Totals of a trainer count from its own start: what the old ones counted is kept beside.
static void fold_rank(gs_job_metrics *metrics, int rank) {
    const gs_json *report = metrics->ranks[rank].report;
    if (!report) return;
    char key[16];
    snprintf(key, sizeof key, "%d", rank);
    gs_json *finished = gs_json_get(metrics->finished, key)
                            ? gs_json_copy(gs_json_get(metrics->finished, key))
                            : gs_json_new_object();
    gs_fold fold = {finished, ""};
    gs_json_each(gs_json_get(report, "totals"), fold_total, &fold);
    gs_json_set(metrics->finished, key, finished);
    add_histogram(&metrics->finished_steps, gs_json_get(report, "step_histogram"));
    add_histogram(&metrics->finished_reduces, gs_json_get(report, "reduce_histogram"));
    add_histogram(&metrics->finished_queues, gs_json_get(report, "queue_histogram"));
}

void gs_job_metrics_begin_generation(gs_job_metrics *metrics, int world_size) {
    for (int i = 0; i < metrics->num_ranks; i++) fold_rank(metrics, i);
    metrics->finished_straggler_seconds = gs_job_metrics_straggler_seconds(metrics);
    gs_stragglers_destroy(metrics->stragglers);
    // Of one rank, or of very many, nobody is told apart.
    metrics->stragglers = world_size > 1 && world_size <= MAX_COMPARED_RANKS
                              ? gs_stragglers_create(world_size)
                              : NULL;
    release_ranks(metrics);
    metrics->ranks = calloc((size_t)world_size, sizeof *metrics->ranks);
    if (!metrics->ranks) return;
    metrics->num_ranks = world_size;
    for (int i = 0; i < world_size; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        metrics->ranks[i].finished = gs_json_get(metrics->finished, key);
    }
}

static const gs_rank_metrics *rank_of(const gs_job_metrics *metrics, int rank) {
    return rank >= 0 && rank < metrics->num_ranks ? &metrics->ranks[rank] : NULL;
}

const gs_json *gs_job_metrics_report(const gs_job_metrics *metrics, int rank) {
    const gs_rank_metrics *of_rank = rank_of(metrics, rank);
    return of_rank ? of_rank->report : NULL;
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

double gs_job_metrics_step_seconds(const gs_job_metrics *metrics) {
    double seconds = gs_json_double_or(gs_job_metrics_report(metrics, 0), "step_seconds", 0);
    return isfinite(seconds) ? seconds : 0;
}

double gs_job_metrics_total(const gs_job_metrics *metrics, int rank, const char *name) {
    const gs_rank_metrics *of_rank = rank_of(metrics, rank);
    if (!of_rank) return 0;
    double finished = of_rank->finished ? gs_json_double_or(of_rank->finished, name, 0) : 0;
    return finished + total_of(of_rank->report, name);
}

void gs_job_metrics_histogram(const gs_job_metrics *metrics, gs_histogram *histogram,
                              const char *name) {
    *histogram = !strcmp(name, "step_histogram")    ? metrics->finished_steps
                 : !strcmp(name, "queue_histogram") ? metrics->finished_queues
                                                    : metrics->finished_reduces;
    for (int i = 0; i < metrics->num_ranks; i++) {
        add_histogram(histogram, gs_json_get(metrics->ranks[i].report, name));
    }
}

double gs_job_metrics_eval_loss(const gs_job_metrics *metrics, bool *known) {
    *known = metrics->eval_known;
    return metrics->eval_loss;
}

static void copy_member(gs_json *view, const char *key, const gs_json *report, const char *from) {
    const gs_json *value = gs_json_get(report, from);
    if (value) gs_json_set(view, key, gs_json_copy(value));
}

gs_json *gs_job_metrics_latest(const gs_job_metrics *metrics) {
    const gs_json *report = gs_job_metrics_report(metrics, 0);
    if (!report) return NULL;
    gs_json *latest = gs_json_new_object();
    static const char *const members[] = {"step",         "loss", "grad_norm", "lr", "step_seconds",
                                          "tokens_per_second", "comm_exposed_seconds", "loss_scale"};
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        copy_member(latest, members[i], report, members[i]);
    }
    copy_member(latest, "comm_overlap_ratio", report, "overlap_ratio");
    int slowest = 0;
    for (int i = 1; i < metrics->num_ranks; i++) {
        if (gs_job_metrics_lag_seconds(metrics, i) > gs_job_metrics_lag_seconds(metrics, slowest)) {
            slowest = i;
        }
    }
    if (metrics->num_ranks > 1) {
        gs_json_set_int(latest, "slowest_rank", slowest);
        gs_json_set_double(latest, "slowest_rank_lag_seconds",
                           gs_job_metrics_lag_seconds(metrics, slowest));
        gs_json_set_bool(latest, "slowest_rank_is_straggler",
                         gs_stragglers_view(metrics->stragglers, slowest).flagged);
    }
    if (metrics->eval_known) gs_json_set_double(latest, "eval_loss", metrics->eval_loss);
    return latest;
}

// A whole number that every JSON reader keeps exact.
static int64_t to_whole(double value) {
    const double most = 9007199254740992.0;
    return value > most ? (int64_t)most : value > 0 ? (int64_t)value : 0;
}

// Of what `name` says in the last report of each rank; negative when none does.
static double sum_last(const gs_job_metrics *metrics, const char *name, double power) {
    double sum = -1;
    for (int i = 0; i < metrics->num_ranks; i++) {
        double value = gs_json_double_or(metrics->ranks[i].report, name, NAN);
        if (isfinite(value)) sum = (sum < 0 ? 0 : sum) + pow(value, power);
    }
    return sum;
}

gs_json *gs_job_metrics_reduction(const gs_job_metrics *metrics) {
    const gs_json *report = gs_job_metrics_report(metrics, 0);
    double payload = sum_last(metrics, "payload_bytes", 1), wire = sum_last(metrics, "wire_bytes", 1);
    if (payload < 0 || wire < 0) return NULL;
    gs_json *reduction = gs_json_new_object();
    gs_json_set_int(reduction, "payload_bytes", to_whole(payload));
    gs_json_set_int(reduction, "wire_bytes", to_whole(wire));
    if (wire > 0) gs_json_set_double(reduction, "compression_ratio", payload / wire);
    copy_member(reduction, "elements", report, "elements");
    copy_member(reduction, "elements_sent", report, "elements_sent");
    double squares = sum_last(metrics, "error_feedback_norm", 2);
    if (squares >= 0) gs_json_set_double(reduction, "error_feedback_norm", sqrt(squares));
    return reduction;
}

// Lag is the largest wait minus the own one, as a moving average: clocks are never compared.
static void update_lags(gs_job_metrics *metrics) {
    double largest = 0;
    int least_rank = 0;
    for (int i = 0; i < metrics->num_ranks; i++) {
        if (!metrics->ranks[i].report) return;
        if (metrics->ranks[i].wait_seconds > largest) largest = metrics->ranks[i].wait_seconds;
        if (metrics->ranks[i].wait_seconds < metrics->ranks[least_rank].wait_seconds) least_rank = i;
    }
    for (int i = 0; i < metrics->num_ranks; i++) {
        gs_rank_metrics *rank = &metrics->ranks[i];
        rank->lag_seconds += 0.2 * (largest - rank->wait_seconds - rank->lag_seconds);
    }
    if (metrics->num_ranks > 1) metrics->ranks[least_rank].last_arrivals++;
}

static bool read_waits(gs_straggler_sample *sample, int64_t *step, const gs_json *row) {
    return gs_json_int(step, gs_json_at(row, 0)) &&
           gs_json_double(&sample->compute, gs_json_at(row, 1)) &&
           gs_json_double(&sample->wait, gs_json_at(row, 2)) &&
           gs_json_double(&sample->transfer, gs_json_at(row, 3)) &&
           gs_json_double(&sample->data, gs_json_at(row, 4)) &&
           gs_json_double(&sample->step_seconds, gs_json_at(row, 5)) && isfinite(sample->compute) &&
           isfinite(sample->wait) && isfinite(sample->transfer) && isfinite(sample->data) &&
           isfinite(sample->step_seconds);
}

static void compare_waits(gs_job_metrics *metrics, int rank, const gs_json *waits) {
    for (size_t i = 0; i < gs_json_count(waits); i++) {
        gs_straggler_sample sample;
        int64_t step;
        if (read_waits(&sample, &step, gs_json_at(waits, i))) {
            gs_stragglers_add(metrics->stragglers, rank, step, &sample);
        }
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

static void take_history(gs_job_metrics *metrics, const gs_json *report, const gs_metrics_record *record) {
    const gs_json *history = gs_json_get(report, "history");
    for (size_t i = 0; i < gs_json_count(history); i++) record_entry(metrics, gs_json_at(history, i), record);
    const gs_json *eval = gs_json_get(report, "eval");
    if (!eval) return;
    const gs_series *drawn = &metrics->series[NUM_SERIES - 1];
    int64_t step = gs_json_int_or(eval, "step", 0);
    if (drawn->count > 0 && drawn->points[drawn->count - 1].step == step) return;
    gs_json *entry = gs_json_new_object();
    gs_json_set_int(entry, "step", step);
    gs_json_set_double(entry, "eval_loss", gs_json_double_or(eval, "loss", NAN));
    copy_member(entry, "eval_accuracy", eval, "accuracy");
    record_entry(metrics, entry, record);
    gs_json_release(entry);
}

void gs_job_metrics_take(gs_job_metrics *metrics, int rank, int world_size, const gs_json *report,
                         const gs_metrics_record *record) {
    if (rank >= metrics->num_ranks) gs_job_metrics_begin_generation(metrics, world_size);
    if (rank < 0 || rank >= metrics->num_ranks) return;
    gs_rank_metrics *of_rank = &metrics->ranks[rank];
    gs_json_release(of_rank->report);
    of_rank->report = gs_json_retain((gs_json *)(uintptr_t)report);
    double wait_seconds = gs_json_double_or(report, "wait_seconds", 0);
    of_rank->wait_seconds = isfinite(wait_seconds) ? wait_seconds : 0;
    compare_waits(metrics, rank, gs_json_get(report, "waits"));
    if (rank != 0) return;
    if (!compares_steps(metrics)) update_lags(metrics);
    take_history(metrics, report, record);
}

static gs_json *sum_totals(const gs_job_metrics *metrics) {
    static const char *const names[] = {"steps", "tokens", "samples", "skipped_steps"};
    static const char *const summed[] = {"payload_bytes", "wire_bytes", "order_mismatches", "nonfinite"};
    gs_json *totals = gs_json_new_object();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {  // the same on every rank
        gs_json_set_int(totals, names[i], to_whole(gs_job_metrics_total(metrics, 0, names[i])));
    }
    for (size_t i = 0; i < sizeof summed / sizeof summed[0]; i++) {
        double sum = 0;
        for (int rank = 0; rank < metrics->num_ranks; rank++) {
            sum += gs_job_metrics_total(metrics, rank, summed[i]);
        }
        gs_json_set_int(totals, summed[i], to_whole(sum));
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

gs_json *gs_job_metrics_to_view(const gs_job_metrics *metrics) {
    gs_json *ranks = gs_json_new_array();
    for (int i = 0; i < metrics->num_ranks; i++) {
        if (!metrics->ranks[i].report) continue;
        gs_json *report = gs_json_copy(metrics->ranks[i].report);
        gs_json_remove(report, "history");
        gs_json_set_int(report, "rank", i);
        gs_json_remove(report, "waits");
        set_straggler(report, metrics, i);
        gs_json_push(ranks, report);
    }
    gs_json *view = gs_json_new_object();
    gs_json_set(view, "totals", sum_totals(metrics));
    gs_json_set(view, "ranks", ranks);
    return view;
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
