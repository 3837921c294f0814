// What the API counts about itself: requests, streams, refusals. Thread-safe.
#ifndef API_HTTP_API_METRICS_H
#define API_HTTP_API_METRICS_H

#include <stdint.h>

#include "core/metrics.h"

typedef struct gs_api_metrics gs_api_metrics;

gs_api_metrics *gs_api_metrics_create(void);  // NULL: out of memory
void gs_api_metrics_destroy(gs_api_metrics *metrics);
gs_metrics *gs_api_metrics_registry(gs_api_metrics *metrics);

void gs_api_metrics_begin(gs_api_metrics *metrics);
//   verb      as sent; unknown ones are counted as "other"
//   route     the template, "unmatched" when there is none
//   seconds   below 0: a stream, which has no duration worth a histogram
void gs_api_metrics_finish(gs_api_metrics *metrics, const char *verb, const char *route, int code,
                           double seconds);
void gs_api_metrics_refuse(gs_api_metrics *metrics, const char *reason);
void gs_api_metrics_add_stream(gs_api_metrics *metrics, int change);
void gs_api_metrics_add_dropped(gs_api_metrics *metrics, uint64_t events);
void gs_api_metrics_set_audit_lost(gs_api_metrics *metrics, uint64_t lines);
void gs_api_metrics_set_coordinator_up(gs_api_metrics *metrics, bool up);

#endif
