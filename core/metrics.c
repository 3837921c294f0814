#include "core/metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"

const double gs_reduce_bounds[16] = {0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
                                     0.025,   0.05,   0.1,     0.25,   0.5,   1,      2.5,   10};
const double gs_step_bounds[15] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                   0.5,   1,      2.5,   5,    10,    30,   60};
const double gs_checkpoint_bounds[12] = {0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600};
const double gs_http_bounds[8] = {0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5};

struct gs_metric {
    const gs_metric_family *family;
    char *label_values[GS_METRIC_MAX_LABELS];  // owned
    size_t num_labels;
    gs_metric *next_in_bucket;
    uint64_t number;  // grows with each series that is made
    _Atomic double value;  // counter, gauge; the sum of a histogram
    _Atomic uint64_t counts[GS_METRIC_MAX_BOUNDS + 1];
};

struct gs_metrics {
    pthread_mutex_t lock;  // guards the tables below; values are atomics
    gs_metric **series;    // in order of making
    size_t num_series, max_series;
    uint64_t num_made;
    gs_metric **buckets;  // by hash of family and label values
    size_t num_buckets;
    _Atomic uint64_t dropped;
};

static void free_series(gs_metric *metric) {
    for (size_t i = 0; i < metric->num_labels; i++) free(metric->label_values[i]);
    free(metric);
}

static size_t count_labels(const gs_metric_family *family) {
    size_t count = 0;
    while (count < GS_METRIC_MAX_LABELS && family->labels[count]) count++;
    return count;
}

static size_t hash_series(const gs_metrics *metrics, const gs_metric_family *family,
                          const char *const *label_values, size_t num_labels) {
    uint64_t hash = gs_hash64(&family, sizeof family, 0);
    for (size_t i = 0; i < num_labels; i++) {
        hash = gs_hash64(label_values[i], strlen(label_values[i]) + 1, hash);
    }
    return (size_t)(hash % metrics->num_buckets);
}

gs_metrics *gs_metrics_create(size_t max_series) {
    gs_metrics *metrics = calloc(1, sizeof *metrics);
    if (!metrics) return NULL;
    metrics->max_series = max_series;
    metrics->num_buckets = max_series + max_series / 2 + 1;
    metrics->series = calloc(max_series ? max_series : 1, sizeof(gs_metric *));
    metrics->buckets = calloc(metrics->num_buckets, sizeof(gs_metric *));
    if (!metrics->series || !metrics->buckets) {
        free(metrics->series);
        free(metrics->buckets);
        free(metrics);
        return NULL;
    }
    pthread_mutex_init(&metrics->lock, NULL);
    return metrics;
}

void gs_metrics_destroy(gs_metrics *metrics) {
    if (!metrics) return;
    for (size_t i = 0; i < metrics->num_series; i++) free_series(metrics->series[i]);
    free(metrics->series);
    free(metrics->buckets);
    pthread_mutex_destroy(&metrics->lock);
    free(metrics);
}

static gs_metric *find_series(const gs_metrics *metrics, size_t bucket,
                              const gs_metric_family *family, const char *const *label_values,
                              size_t num_labels) {
    for (gs_metric *metric = metrics->buckets[bucket]; metric; metric = metric->next_in_bucket) {
        if (metric->family != family) continue;
        size_t same = 0;
        while (same < num_labels && !strcmp(metric->label_values[same], label_values[same])) same++;
        if (same == num_labels) return metric;
    }
    return NULL;
}

static gs_metric *make_series(const gs_metric_family *family, const char *const *label_values,
                              size_t num_labels) {
    gs_metric *metric = calloc(1, sizeof *metric);
    if (!metric) return NULL;
    metric->family = family;
    for (; metric->num_labels < num_labels; metric->num_labels++) {
        char *value = strdup(label_values[metric->num_labels]);
        if (!value) {
            free_series(metric);
            return NULL;
        }
        metric->label_values[metric->num_labels] = value;
    }
    return metric;
}

gs_metric *gs_metrics_series(gs_metrics *metrics, const gs_metric_family *family,
                             const char *const *label_values) {
    size_t num_labels = count_labels(family);
    size_t bucket = hash_series(metrics, family, label_values, num_labels);
    pthread_mutex_lock(&metrics->lock);
    gs_metric *metric = find_series(metrics, bucket, family, label_values, num_labels);
    if (!metric && metrics->num_series < metrics->max_series) {
        metric = make_series(family, label_values, num_labels);
        if (metric) {
            metric->number = ++metrics->num_made;
            metric->next_in_bucket = metrics->buckets[bucket];
            metrics->buckets[bucket] = metric;
            metrics->series[metrics->num_series++] = metric;
        }
    }
    pthread_mutex_unlock(&metrics->lock);
    if (!metric) atomic_fetch_add(&metrics->dropped, 1);
    return metric;
}

uint64_t gs_metrics_dropped_count(const gs_metrics *metrics) {
    return atomic_load(&metrics->dropped);
}

static bool carries_label(const gs_metric *metric, const char *label, const char *value) {
    for (size_t i = 0; i < metric->num_labels; i++) {
        if (!strcmp(metric->family->labels[i], label)) return !strcmp(metric->label_values[i], value);
    }
    return false;
}

static void unlink_series(gs_metrics *metrics, gs_metric *metric) {
    size_t bucket = hash_series(metrics, metric->family,
                                (const char *const *)metric->label_values, metric->num_labels);
    gs_metric **link = &metrics->buckets[bucket];
    while (*link != metric) link = &(*link)->next_in_bucket;
    *link = metric->next_in_bucket;
}

void gs_metrics_forget(gs_metrics *metrics, const char *label, const char *value) {
    pthread_mutex_lock(&metrics->lock);
    size_t kept = 0;
    for (size_t i = 0; i < metrics->num_series; i++) {
        gs_metric *metric = metrics->series[i];
        if (!carries_label(metric, label, value)) {
            metrics->series[kept++] = metric;
            continue;
        }
        unlink_series(metrics, metric);
        free_series(metric);
    }
    metrics->num_series = kept;
    pthread_mutex_unlock(&metrics->lock);
}

static void add_atomically(_Atomic double *value, double amount) {
    double old = atomic_load_explicit(value, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(value, &old, old + amount, memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
}

void gs_metric_add(gs_metric *metric, double amount) {
    if (metric) add_atomically(&metric->value, amount);
}

void gs_metric_set(gs_metric *metric, double value) {
    if (metric) atomic_store_explicit(&metric->value, value, memory_order_relaxed);
}

// The first bound that is not below the value; a value that is no number counts as above all.
static size_t find_bin(const double *bounds, size_t num_bounds, double value) {
    size_t bin = 0;
    while (bin < num_bounds && !(value <= bounds[bin])) bin++;
    return bin;
}

void gs_metric_observe(gs_metric *metric, double value) {
    if (!metric) return;
    size_t bin = find_bin(metric->family->bounds, metric->family->num_bounds, value);
    atomic_fetch_add_explicit(&metric->counts[bin], 1, memory_order_relaxed);
    add_atomically(&metric->value, value);
}

double gs_metric_value(const gs_metric *metric) {
    return metric ? atomic_load_explicit(&metric->value, memory_order_relaxed) : 0;
}

void gs_histogram_observe(gs_histogram *histogram, const double *bounds, size_t num_bounds,
                          double value) {
    histogram->counts[find_bin(bounds, num_bounds, value)]++;
    histogram->sum += value;
}

void gs_metric_set_histogram(gs_metric *metric, const gs_histogram *histogram) {
    if (!metric) return;
    for (size_t i = 0; i <= GS_METRIC_MAX_BOUNDS; i++) {
        atomic_store_explicit(&metric->counts[i], histogram->counts[i], memory_order_relaxed);
    }
    gs_metric_set(metric, histogram->sum);
}

static void visit_series(const gs_metric *metric,
                         void (*visit)(void *ctx, const gs_metric_sample *sample), void *ctx) {
    gs_metric_sample sample = {.family = metric->family,
                               .label_values = (const char *const *)metric->label_values,
                               .value = gs_metric_value(metric)};
    if (metric->family->type == GS_HISTOGRAM) {
        sample.histogram.sum = sample.value;
        for (size_t i = 0; i <= metric->family->num_bounds; i++) {
            sample.histogram.counts[i] =
                atomic_load_explicit(&metric->counts[i], memory_order_relaxed);
        }
    }
    visit(ctx, &sample);
}

void gs_metrics_visit(gs_metrics *metrics, void (*visit)(void *ctx, const gs_metric_sample *sample),
                      void *ctx) {
    pthread_mutex_lock(&metrics->lock);
    size_t count = metrics->num_series;
    gs_metric **pending = malloc((count ? count : 1) * sizeof *pending);
    if (pending) memcpy(pending, metrics->series, count * sizeof *pending);
    // One pass for each family, over what is left: families are few, series many.
    while (pending && count > 0) {
        const gs_metric_family *family = pending[0]->family;
        size_t left = 0;
        for (size_t i = 0; i < count; i++) {
            if (pending[i]->family == family) visit_series(pending[i], visit, ctx);
            else pending[left++] = pending[i];
        }
        count = left;
    }
    free(pending);
    pthread_mutex_unlock(&metrics->lock);
}

// Index of the first series made after number `cursor`.
static size_t find_after(const gs_metrics *metrics, uint64_t cursor) {
    size_t low = 0, high = metrics->num_series;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (metrics->series[middle]->number <= cursor) low = middle + 1;
        else high = middle;
    }
    return low;
}

bool gs_metrics_visit_some(gs_metrics *metrics, uint64_t *cursor, size_t count,
                           void (*visit)(void *ctx, const gs_metric_sample *sample), void *ctx) {
    pthread_mutex_lock(&metrics->lock);
    size_t index = find_after(metrics, *cursor);
    for (; count > 0 && index < metrics->num_series; count--, index++) {
        visit_series(metrics->series[index], visit, ctx);
        *cursor = metrics->series[index]->number;
    }
    bool left = index < metrics->num_series;
    pthread_mutex_unlock(&metrics->lock);
    return left;
}
