// Counters, gauges and histograms of one process, and their snapshot.
//
// A registry holds families; a family holds series, one for each combination of label values. Updates
// are atomic and take no lock; making a series takes the registry's lock once, so callers keep the
// pointer. Names follow gradsync_<noun>_<unit>; labels come from closed sets.
#ifndef CORE_METRICS_H
#define CORE_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define GS_METRIC_MAX_LABELS 6
#define GS_METRIC_MAX_BOUNDS 20

typedef enum gs_metric_type { GS_COUNTER = 0, GS_GAUGE, GS_HISTOGRAM } gs_metric_type;

typedef struct gs_metric_family {  // constant tables describe families
    const char *name, *help;
    gs_metric_type type;
    const char *labels[GS_METRIC_MAX_LABELS];  // names; NULL ends the list
    const double *bounds;                      // of histograms: ascending upper bounds
    size_t num_bounds;
} gs_metric_family;

extern const double gs_reduce_bounds[16];      // seconds: reduce duration and its kin
extern const double gs_step_bounds[15];        // seconds: a step
extern const double gs_checkpoint_bounds[12];  // seconds: checkpoint, rendezvous, recovery
extern const double gs_http_bounds[8];         // seconds: HTTP, plan build

typedef struct gs_metrics gs_metrics;  // the registry
typedef struct gs_metric gs_metric;    // one series, owned by the registry

gs_metrics *gs_metrics_create(size_t max_series);  // NULL: out of memory
void gs_metrics_destroy(gs_metrics *metrics);

// The series of `family` with these label values (in the family's order), made when new. NULL when
// the registry is full: the refusal is counted, and updates of NULL do nothing.
gs_metric *gs_metrics_series(gs_metrics *metrics, const gs_metric_family *family,
                             const char *const *label_values);
uint64_t gs_metrics_dropped_count(const gs_metrics *metrics);
// Removes every series whose label `label` has this value (a job that is gone). Pointers to them die.
void gs_metrics_forget(gs_metrics *metrics, const char *label, const char *value);

void gs_metric_add(gs_metric *metric, double amount);  // counters (amount >= 0) and gauges
void gs_metric_set(gs_metric *metric, double value);   // gauges; counters that mirror a total
void gs_metric_observe(gs_metric *metric, double value);
double gs_metric_value(const gs_metric *metric);

// Histograms as plain numbers, for merging reports of many ranks.
typedef struct gs_histogram {
    uint64_t counts[GS_METRIC_MAX_BOUNDS + 1];  // not cumulative; the last is above all bounds
    double sum;
} gs_histogram;
void gs_histogram_observe(gs_histogram *histogram, const double *bounds, size_t num_bounds,
                          double value);
void gs_metric_set_histogram(gs_metric *metric, const gs_histogram *histogram);

// Calls `visit` for every series, families together and in order of first use; values are read once.
typedef struct gs_metric_sample {
    const gs_metric_family *family;
    const char *const *label_values;
    double value;            // counter, gauge
    gs_histogram histogram;  // histogram
} gs_metric_sample;
void gs_metrics_visit(gs_metrics *metrics, void (*visit)(void *ctx, const gs_metric_sample *sample),
                      void *ctx);
// A few at a time, in order of making: at most `count` series after *cursor (0 at first). False when
// none is left. Series may be made and forgotten between the calls: none comes twice or is left out.
bool gs_metrics_visit_some(gs_metrics *metrics, uint64_t *cursor, size_t count,
                           void (*visit)(void *ctx, const gs_metric_sample *sample), void *ctx);

#endif
