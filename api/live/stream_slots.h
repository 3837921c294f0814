// Open streams of a server, log followers included, and their limit. Beyond a sixteenth of them a holder gets another one only where
// more are free than he has: so the first who wants many has half of them, two together two thirds or three quarters, and who comes
// with none finds some. Thread-safe.
#ifndef API_LIVE_STREAM_SLOTS_H
#define API_LIVE_STREAM_SLOTS_H

#include <stdbool.h>

#include "api/http/api_metrics.h"

typedef struct gs_stream_slots gs_stream_slots;
gs_stream_slots *gs_stream_slots_create(int max_streams, gs_api_metrics *metrics);
void gs_stream_slots_destroy(gs_stream_slots *slots);
// holder: whose it is, "" for nobody's in particular. False: all are taken, or all that he may have.
enum { GS_STREAM_HOLDER_BYTES = 48 };
bool gs_stream_slots_take(gs_stream_slots *slots, const char *holder);
void gs_stream_slots_give(gs_stream_slots *slots, const char *holder);
int gs_stream_slots_taken(gs_stream_slots *slots);

#endif
