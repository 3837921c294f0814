#include "rpc/schema/step_report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MOST_WHOLE 9007199254740992.0  // up to here every whole number is a double

typedef enum value_kind { REAL = 0, WHOLE, FLAG } value_kind;

static const struct {
    const char *path;
    value_kind kind;
} values[GS_NUM_REPORT_VALUES] = {
#define ROW(name, member, kind) {member, kind},
    GS_STEP_REPORT_VALUES(ROW)
#undef ROW
};

static const char *const histogram_names[GS_NUM_REPORT_HISTOGRAMS] = {"step_histogram", "reduce_histogram",
                                                                      "queue_histogram"};
static const char *const point_names[GS_NUM_REPORT_POINTS] = {
    "loss", "grad_norm", "lr", "step_seconds", "tokens_per_second", "comm_exposed_seconds", "overlap_ratio"};

// Whatever a peer says, a whole number is one that an int64_t and every JSON reader keep exactly.
static double fit(value_kind kind, double value) {
    if (kind == FLAG) return value != 0;
    if (kind == REAL) return value;
    return value > MOST_WHOLE ? MOST_WHOLE : value > 0 ? floor(value) : 0;
}

void gs_step_report_set(gs_step_report *report, gs_report_value which, double value) {
    value = fit(values[which].kind, value);
    report->values[which] = value;
    report->known |= UINT64_C(1) << which;
}

bool gs_step_report_knows(const gs_step_report *report, gs_report_value which) {
    return report && report->known >> which & 1;
}

double gs_step_report_get(const gs_step_report *report, gs_report_value which, double fallback) {
    return gs_step_report_knows(report, which) ? report->values[which] : fallback;
}

static void set_value(gs_json *object, const char *key, value_kind kind, double value) {
    if (kind == FLAG) gs_json_set_bool(object, key, value != 0);
    else if (kind == WHOLE) gs_json_set_int(object, key, (int64_t)value);
    else gs_json_set_double(object, key, value);
}

// The object that a path ends in, made where it is not there; *key is the last name.
static gs_json *object_at(gs_json *root, const char *path, const char **key) {
    const char *slash;
    gs_json *object = root;
    while ((slash = strchr(path, '/'))) {
        char name[24];
        snprintf(name, sizeof name, "%.*s", (int)(slash - path), path);
        const gs_json *inner = gs_json_get(object, name);
        if (!inner) {
            gs_json_set(object, name, gs_json_new_object());
            inner = gs_json_get(object, name);
        }
        object = (gs_json *)(uintptr_t)inner;
        path = slash + 1;
    }
    *key = path;
    return object;
}

static gs_json *histogram_to_json(const gs_histogram *histogram, size_t num_bins) {
    gs_json *out = gs_json_new_object(), *counts = gs_json_new_array();
    for (size_t i = 0; i < num_bins; i++) gs_json_push(counts, gs_json_new_int((int64_t)histogram->counts[i]));
    gs_json_set(out, "counts", counts);
    gs_json_set_double(out, "sum", histogram->sum);
    return out;
}

gs_json *gs_report_bucket_to_json(const gs_report_bucket *bucket) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "index", bucket->index);
    gs_json_set_int(out, "bytes", (int64_t)bucket->bytes);
    gs_json_set_string(out, "algorithm", bucket->algorithm);
    gs_json_set_double(out, "ready_seconds", bucket->ready);
    if (bucket->travelled) {
        gs_json_set_double(out, "launched_seconds", bucket->launched);
        gs_json_set_double(out, "arrived_seconds", bucket->arrived);
        gs_json_set_double(out, "finished_seconds", bucket->finished);
    }
    gs_json_set_double(out, "algbw_bytes_per_second", bucket->algbw);
    gs_json_set_double(out, "busbw_bytes_per_second", bucket->busbw);
    if (bucket->ready_position >= 0) gs_json_set_int(out, "ready_position", bucket->ready_position);
    return out;
}

gs_json *gs_report_step_to_json(const gs_report_step *step) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "step", step->step);
    for (int i = 0; i < GS_NUM_REPORT_POINTS; i++) {
        if (step->known >> i & 1) gs_json_set_double(out, point_names[i], step->points[i]);
    }
    return out;
}

static gs_json *waits_to_json(const gs_report_waits *waits) {
    const double seconds[] = {waits->compute, waits->wait, waits->transfer, waits->data, waits->step_seconds};
    gs_json *row = gs_json_new_array();
    gs_json_push(row, gs_json_new_int(waits->step));
    for (size_t i = 0; i < sizeof seconds / sizeof seconds[0]; i++) gs_json_push(row, gs_json_new_double(seconds[i]));
    return row;
}

gs_json *gs_step_report_to_json(const gs_step_report *report) {
    gs_json *out = gs_json_new_object(), *buckets = gs_json_new_array();
    gs_json_set_int(out, "generation", report->generation);
    gs_json_set_int(out, "rank", report->rank);
    gs_json_set_int(out, "step", report->step);
    for (int i = 0; i < GS_NUM_REPORT_VALUES; i++) {
        if (!gs_step_report_knows(report, (gs_report_value)i)) continue;
        const char *key;
        gs_json *object = object_at(out, values[i].path, &key);
        set_value(object, key, values[i].kind, report->values[i]);
    }
    for (size_t i = 0; i < report->num_buckets; i++) gs_json_push(buckets, gs_report_bucket_to_json(&report->buckets[i]));
    gs_json_set(out, "buckets", buckets);
    for (int i = 0; i < GS_NUM_REPORT_HISTOGRAMS; i++) {
        if (report->num_bins[i])
            gs_json_set(out, histogram_names[i], histogram_to_json(&report->histograms[i], report->num_bins[i]));
    }
    gs_json *waits = report->num_waits ? gs_json_new_array() : NULL;
    for (size_t i = 0; i < report->num_waits; i++) gs_json_push(waits, waits_to_json(&report->waits[i]));
    gs_json_set(out, "waits", waits);
    gs_json *history = report->num_history ? gs_json_new_array() : NULL;
    for (size_t i = 0; i < report->num_history; i++) gs_json_push(history, gs_report_step_to_json(&report->history[i]));
    gs_json_set(out, "history", history);
    return out;
}

static const gs_json *look_up(const gs_json *root, const char *path) {
    const char *slash;
    while ((slash = strchr(path, '/'))) {
        char name[24];
        snprintf(name, sizeof name, "%.*s", (int)(slash - path), path);
        root = gs_json_get(root, name);
        path = slash + 1;
    }
    return gs_json_get(root, path);
}

static void read_histogram(gs_step_report *report, int which, const gs_json *object) {
    const gs_json *counts = gs_json_get(object, "counts");
    size_t num_bins = gs_json_count(counts);
    gs_histogram *histogram = &report->histograms[which];
    if (num_bins > GS_METRIC_MAX_BOUNDS + 1) num_bins = GS_METRIC_MAX_BOUNDS + 1;
    report->num_bins[which] = (uint8_t)num_bins;
    for (size_t i = 0; i < num_bins; i++) {
        int64_t count = 0;
        if (gs_json_int(&count, gs_json_at(counts, i)) && count > 0) histogram->counts[i] = (uint64_t)count;
    }
    histogram->sum = gs_json_double_or(object, "sum", 0);
}

static int32_t small_or(const gs_json *object, const char *key, int32_t fallback) {
    int64_t value = gs_json_int_or(object, key, fallback);
    return value >= 0 && value <= INT32_MAX ? (int32_t)value : fallback;
}

static void read_bucket(gs_report_bucket *out, const gs_json *row) {
    int64_t bytes = gs_json_int_or(row, "bytes", 0);
    *out = (gs_report_bucket){.index = small_or(row, "index", -1),
                              .ready_position = small_or(row, "ready_position", -1),
                              .bytes = bytes > 0 ? (uint64_t)bytes : 0,
                              .travelled = gs_json_get(row, "launched_seconds") != NULL,
                              .ready = gs_json_double_or(row, "ready_seconds", 0),
                              .launched = gs_json_double_or(row, "launched_seconds", 0),
                              .arrived = gs_json_double_or(row, "arrived_seconds", 0),
                              .finished = gs_json_double_or(row, "finished_seconds", 0),
                              .algbw = gs_json_double_or(row, "algbw_bytes_per_second", 0),
                              .busbw = gs_json_double_or(row, "busbw_bytes_per_second", 0)};
    snprintf(out->algorithm, sizeof out->algorithm, "%s", gs_json_string_or(row, "algorithm", "none"));
}

static bool read_waits(gs_report_waits *out, const gs_json *row) {
    return gs_json_int(&out->step, gs_json_at(row, 0)) && gs_json_double(&out->compute, gs_json_at(row, 1)) &&
           gs_json_double(&out->wait, gs_json_at(row, 2)) && gs_json_double(&out->transfer, gs_json_at(row, 3)) &&
           gs_json_double(&out->data, gs_json_at(row, 4)) && gs_json_double(&out->step_seconds, gs_json_at(row, 5));
}

static bool read_step(gs_report_step *out, const gs_json *row) {
    *out = (gs_report_step){0};
    for (int i = 0; i < GS_NUM_REPORT_POINTS; i++) {
        if (gs_json_double(&out->points[i], gs_json_get(row, point_names[i]))) out->known |= UINT64_C(1) << i;
    }
    return gs_json_int(&out->step, gs_json_get(row, "step")) && out->step >= 0;
}

static void read_rows(gs_step_report *report, gs_report_rows *rows, const gs_json *step) {
    const gs_json *buckets = gs_json_get(step, "buckets"), *waits = gs_json_get(step, "waits"),
                  *history = gs_json_get(step, "history");
    for (size_t i = 0; i < gs_json_count(buckets) && i < GS_REPORT_MAX_BUCKETS; i++)
        read_bucket(&rows->buckets[report->num_buckets++], gs_json_at(buckets, i));
    for (size_t i = 0; i < gs_json_count(waits) && i < GS_REPORT_MAX_WAITS; i++)
        report->num_waits += read_waits(&rows->waits[report->num_waits], gs_json_at(waits, i));
    for (size_t i = 0; i < gs_json_count(history) && i < GS_REPORT_MAX_HISTORY; i++)
        report->num_history += read_step(&rows->history[report->num_history], gs_json_at(history, i));
    report->buckets = rows->buckets;
    report->waits = rows->waits;
    report->history = rows->history;
}

void gs_step_report_from_json(gs_step_report *report, gs_report_rows *rows, const gs_json *step) {
    *report = (gs_step_report){.generation = gs_json_int_or(step, "generation", -1),
                               .rank = gs_json_int_or(step, "rank", -1),
                               .step = gs_json_int_or(step, "step", -1)};
    for (int i = 0; i < GS_NUM_REPORT_VALUES; i++) {
        const gs_json *member = look_up(step, values[i].path);
        double value = 0;
        bool told = values[i].kind == FLAG ? gs_json_type_of(member) == GS_JSON_BOOL : gs_json_double(&value, member);
        if (values[i].kind == FLAG) value = gs_json_is_true(member);
        if (told) gs_step_report_set(report, (gs_report_value)i, value);
    }
    for (int i = 0; i < GS_NUM_REPORT_HISTOGRAMS; i++) read_histogram(report, i, gs_json_get(step, histogram_names[i]));
    read_rows(report, rows, step);
}
