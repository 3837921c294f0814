#include "api/http/api_metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SERIES = 1024 };

struct gs_api_metrics {
    gs_metrics *registry;
    gs_metric *in_flight, *streams, *dropped, *audit_lost, *coordinator_up;
};

static const gs_metric_family requests = {"gradsync_http_requests_total",
                                          "HTTP requests answered.",
                                          GS_COUNTER,
                                          {"method", "route", "code"},
                                          NULL,
                                          0};
static const gs_metric_family duration = {
    "gradsync_http_request_duration_seconds",
    "Time from the request line to the answer, streams excluded.",
    GS_HISTOGRAM,
    {"method", "route"},
    gs_http_bounds,
    sizeof gs_http_bounds / sizeof(double)};
static const gs_metric_family in_flight = {
    "gradsync_http_requests_in_flight", "HTTP requests being answered.", GS_GAUGE, {NULL}, NULL, 0};
static const gs_metric_family refused = {"gradsync_http_refused_total",
                                         "HTTP requests refused by a limit or a check, by reason.",
                                         GS_COUNTER,
                                         {"reason"},
                                         NULL,
                                         0};
static const gs_metric_family streams = {
    "gradsync_sse_clients", "Open event streams and log followers.", GS_GAUGE, {NULL}, NULL, 0};
static const gs_metric_family dropped = {"gradsync_sse_dropped_events_total",
                                         "Events that slow stream clients missed.",
                                         GS_COUNTER,
                                         {NULL},
                                         NULL,
                                         0};
static const gs_metric_family audit_lost = {"gradsync_audit_lost_total",
                                            "Lines of the audit file that could not be written.",
                                            GS_COUNTER,
                                            {NULL},
                                            NULL,
                                            0};
static const gs_metric_family coordinator_up = {"gradsync_coordinator_up",
                                                "1 when the coordinator answered this scrape.",
                                                GS_GAUGE,
                                                {NULL},
                                                NULL,
                                                0};

gs_api_metrics *gs_api_metrics_create(void) {
    gs_api_metrics *metrics = calloc(1, sizeof *metrics);
    if (!metrics) return NULL;
    metrics->registry = gs_metrics_create(MAX_SERIES);
    if (!metrics->registry) {
        free(metrics);
        return NULL;
    }
    const char *const none[1] = {NULL};
    metrics->in_flight = gs_metrics_series(metrics->registry, &in_flight, none);
    metrics->streams = gs_metrics_series(metrics->registry, &streams, none);
    metrics->dropped = gs_metrics_series(metrics->registry, &dropped, none);
    metrics->audit_lost = gs_metrics_series(metrics->registry, &audit_lost, none);
    metrics->coordinator_up = gs_metrics_series(metrics->registry, &coordinator_up, none);
    return metrics;
}

void gs_api_metrics_destroy(gs_api_metrics *metrics) {
    if (!metrics) return;
    gs_metrics_destroy(metrics->registry);
    free(metrics);
}

gs_metrics *gs_api_metrics_registry(gs_api_metrics *metrics) {
    return metrics->registry;
}

void gs_api_metrics_begin(gs_api_metrics *metrics) {
    gs_metric_add(metrics->in_flight, 1);
}

// Labels come from closed sets: a client may send any word as a verb.
static const char *known_verb(const char *verb) {
    static const char *const verbs[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (strcmp(verbs[i], verb) == 0) return verbs[i];
    return "other";
}

void gs_api_metrics_finish(gs_api_metrics *metrics, const char *verb, const char *route, int code,
                           double seconds) {
    char code_text[16];
    snprintf(code_text, sizeof code_text, "%d", code);
    const char *const labels[] = {known_verb(verb), route, code_text};
    gs_metric_add(metrics->in_flight, -1);
    gs_metric_add(gs_metrics_series(metrics->registry, &requests, labels), 1);
    if (seconds >= 0)
        gs_metric_observe(gs_metrics_series(metrics->registry, &duration, labels), seconds);
}

void gs_api_metrics_refuse(gs_api_metrics *metrics, const char *reason) {
    const char *const labels[] = {reason};
    gs_metric_add(gs_metrics_series(metrics->registry, &refused, labels), 1);
}

void gs_api_metrics_add_stream(gs_api_metrics *metrics, int change) {
    gs_metric_add(metrics->streams, change);
}

void gs_api_metrics_add_dropped(gs_api_metrics *metrics, uint64_t events) {
    gs_metric_add(metrics->dropped, (double)events);
}

void gs_api_metrics_set_audit_lost(gs_api_metrics *metrics, uint64_t lines) {
    gs_metric_set(metrics->audit_lost, (double)lines);
}

void gs_api_metrics_set_coordinator_up(gs_api_metrics *metrics, bool up) {
    gs_metric_set(metrics->coordinator_up, up ? 1 : 0);
}
