// The latest report of each rank of a job, its totals and its series. Loop thread.
#ifndef COORDINATOR_OBSERVE_REPORTS_JOB_METRICS_H
#define COORDINATOR_OBSERVE_REPORTS_JOB_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/observe/reports/stragglers.h"
#include "core/metrics.h"
#include "core/status.h"
#include "rpc/json/json.h"
#include "rpc/schema/step_report.h"

typedef struct gs_job_metrics gs_job_metrics;

gs_job_metrics *gs_job_metrics_create(void);  // NULL: out of memory
void gs_job_metrics_destroy(gs_job_metrics *metrics);
// Without curves, waits and the buckets of ranks above 0: what another thread shows. Ranks have said nothing until they are
// copied, some at a time: true when that was all. NULL: out of memory.
gs_job_metrics *gs_job_metrics_copy_begin(const gs_job_metrics *from);
bool gs_job_metrics_copy_some(gs_job_metrics *copy, const gs_job_metrics *from, int first, int most);
// A new generation: reports of the old one are kept as totals, ranks start anew.
void gs_job_metrics_begin_generation(gs_job_metrics *metrics, int world_size);
// Curves from entries that were written down, one a line.
void gs_job_metrics_draw_lines(gs_job_metrics *metrics, const char *text);
// What was drawn earlier comes before what is drawn: steps that were redone are those of now.
void gs_job_metrics_put_before(gs_job_metrics *metrics, gs_job_metrics *earlier);

double gs_job_metrics_step_seconds(const gs_job_metrics *metrics);  // 0: not known
gs_json *gs_job_metrics_latest(const gs_job_metrics *metrics);      // NULL: nothing yet
// Of the last steps that ranks told of: {payload_bytes, wire_bytes, compression_ratio} of all ranks, and where a hook
// says it {elements, elements_sent} of one rank, {error_feedback_norm} over all ranks. NULL: nothing yet.
gs_json *gs_job_metrics_reduction(const gs_job_metrics *metrics);
double gs_job_metrics_lag_seconds(const gs_job_metrics *metrics, int rank);
const gs_step_report *gs_job_metrics_report(const gs_job_metrics *metrics, int rank);  // NULL: none
int gs_job_metrics_world_size(const gs_job_metrics *metrics);
// Of all generations so far; from GS_REPORT_FIRST_TOTAL on.
double gs_job_metrics_total(const gs_job_metrics *metrics, int rank, gs_report_value total);
void gs_job_metrics_histogram(const gs_job_metrics *metrics, gs_histogram *histogram, gs_report_histogram_kind which);
double gs_job_metrics_eval_loss(const gs_job_metrics *metrics, bool *known);
int64_t gs_job_metrics_last_arrivals(const gs_job_metrics *metrics, int rank);
const gs_stragglers *gs_job_metrics_stragglers(const gs_job_metrics *metrics);  // NULL: not known yet
// Seconds that others waited for flagged ranks, of all generations so far.
double gs_job_metrics_straggler_seconds(const gs_job_metrics *metrics);

// What writes entries of curves down as they are drawn. Borrows the entry.
typedef struct gs_metrics_record {
    void (*write)(void *ctx, const gs_json *entry);
    void *ctx;
} gs_metrics_record;

// A report of a rank, of which a copy is kept in place of the one before.
void gs_job_metrics_take(gs_job_metrics *metrics, int rank, int world_size, const gs_step_report *report,
                         const gs_metrics_record *record);
gs_json *gs_job_metrics_totals_to_view(const gs_job_metrics *metrics);           // the caller's
gs_json *gs_job_metrics_rank_to_view(const gs_job_metrics *metrics, int rank);  // the caller's; NULL: it has told nothing

typedef struct gs_series_wish {
    const gs_json *names;  // NULL or empty: all
    int64_t from_step, to_step;
    size_t max_points;
} gs_series_wish;
// [{name, points}…]. INVALID_ARGUMENT: there is no such series.
GS_NODISCARD gs_status gs_job_metrics_series(gs_json **out, const gs_job_metrics *metrics, const gs_series_wish *wish);

#endif
