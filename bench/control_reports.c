#include "bench/control_reports.h"

#include <stdlib.h>

#include "core/clock.h"
#include "rpc/schema/step_record.h"
#include "worker/telemetry/telemetry.h"

// Of a GPT-2 with 124 million parameters in buckets of 25 MiB.
#define NUM_BUCKETS 20
#define BUCKET_BYTES (25u << 20)
#define STEP_NS (1000 * GS_NS_PER_MS)

struct control_reports {
    gs_telemetry telemetry;
    gs_bucket_times buckets[NUM_BUCKETS];
    gs_reduce_stats stats;
    gs_step_report report;  // of which each rank's differs in some numbers
    gs_report_waits waits[GS_REPORT_MAX_WAITS];
    gs_report_step history[GS_REPORT_MAX_HISTORY];
    uint8_t record[GS_STEP_RECORD_MAX_BYTES];
};

// Each bucket is ready 20 ms behind the one before and takes 9 ms.
static void fill_step(control_reports *reports, int64_t step) {
    int64_t begin_ns = (step + 1) * STEP_NS;
    for (int i = 0; i < NUM_BUCKETS; i++) {
        int64_t ready_ns = begin_ns + (int64_t)(20 * (i + 1)) * GS_NS_PER_MS + 12345 * i;
        reports->buckets[i] = (gs_bucket_times){.ready_ns = ready_ns,
                                                .posted_ns = ready_ns + 54321,
                                                .all_arrived_ns = ready_ns + 1234567,
                                                .started_ns = ready_ns + 1234567,
                                                .finished_ns = ready_ns + 10234567,
                                                .bytes = BUCKET_BYTES,
                                                .wire_bytes = BUCKET_BYTES,
                                                .algorithm = "direct"};
    }
    reports->stats = (gs_reduce_stats){.step = step,
                                       .begin_ns = begin_ns,
                                       .backward_begin_ns = begin_ns,
                                       .backward_end_ns = begin_ns + 410 * GS_NS_PER_MS,
                                       .busy_ns = 183456789,
                                       .exposed_ns = 11234567,
                                       .wait_ns = 23456789,
                                       .num_buckets = NUM_BUCKETS,
                                       .buckets = reports->buckets};
}

control_reports *control_reports_create(void) {
    control_reports *reports = calloc(1, sizeof *reports);
    if (!reports) return NULL;
    gs_telemetry_init(&reports->telemetry, 1, 0, 64);
    for (int64_t step = 0; step < GS_REPORT_MAX_WAITS; step++) {
        fill_step(reports, step);
        gs_step_facts facts = {.step = step,
                               .loss = 2.3456789012345,
                               .grad_norm = 1.2345678901234,
                               .lr = 0.00029876543210987,
                               .samples = 64,
                               .positions = 1024,
                               .phases = {0.0123456789, 0.2987654321, 0.4123456789, 0.0112345678,
                                          0.0987654321, 0.0012345678},
                               .stats = &reports->stats};
        gs_telemetry_observe(&reports->telemetry, &facts, STEP_NS - 1234567);
    }
    reports->report = gs_telemetry_report(&reports->telemetry, true);
    for (int i = 0; i < GS_REPORT_MAX_HISTORY; i++) reports->history[i] = reports->report.history[0];
    reports->report.waits = reports->waits;
    reports->report.history = reports->history;
    return reports;
}

void control_reports_destroy(control_reports *reports) { free(reports); }

// One rank waits for nobody; which one changes.
static void fill_waits(control_reports *reports, const control_place *place) {
    gs_step_report *report = &reports->report;
    int64_t first = place->step > GS_REPORT_MAX_WAITS ? place->step - GS_REPORT_MAX_WAITS : 0;
    report->num_waits = (size_t)(place->step - first);
    for (int64_t step = first; step < place->step; step++) {
        double wait = 0.01 + 0.0001234567 * (double)((place->rank * 7 + step) % 64);
        reports->waits[step - first] = (gs_report_waits){step, 0.41234567, wait, 0.18345679, 0.0123456789, 0.998765433};
    }
}

static void fill_history(control_reports *reports, const control_place *place) {
    int64_t count = place->rank == 0 ? place->step - place->told_step : 0;
    if (count > GS_REPORT_MAX_HISTORY) count = GS_REPORT_MAX_HISTORY;
    reports->report.num_history = (size_t)count;
    for (int64_t i = 0; i < count; i++) reports->history[i].step = place->step - count + 1 + i;
}

const void *control_reports_make(control_reports *reports, size_t *bytes, const control_place *place) {
    reports->report.generation = place->generation;
    reports->report.rank = place->rank;
    reports->report.step = place->step;
    gs_step_report_set(&reports->report, GS_REPORT_ALL_STEPS, (double)place->step);
    fill_waits(reports, place);
    fill_history(reports, place);
    *bytes = gs_step_record_pack(reports->record, &reports->report);
    return reports->record;
}
