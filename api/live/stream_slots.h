// Open streams of a server, log followers included, and their limit. Thread-safe.
#ifndef API_LIVE_STREAM_SLOTS_H
#define API_LIVE_STREAM_SLOTS_H

#include <stdbool.h>

#include "api/http/api_metrics.h"

typedef struct gs_stream_slots gs_stream_slots;
gs_stream_slots *gs_stream_slots_create(int max_streams, gs_api_metrics *metrics);
void gs_stream_slots_destroy(gs_stream_slots *slots);
bool gs_stream_slots_take(gs_stream_slots *slots);  // false: all are taken
void gs_stream_slots_give(gs_stream_slots *slots);
int gs_stream_slots_taken(gs_stream_slots *slots);

#endif
