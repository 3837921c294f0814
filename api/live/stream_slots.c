#include "api/live/stream_slots.h"

#include <stdatomic.h>
#include <stdlib.h>

struct gs_stream_slots {
    atomic_int taken;
    int max_streams;
    gs_api_metrics *metrics;
};

gs_stream_slots *gs_stream_slots_create(int max_streams, gs_api_metrics *metrics) {
    gs_stream_slots *slots = calloc(1, sizeof *slots);
    if (!slots) return NULL;
    slots->max_streams = max_streams;
    slots->metrics = metrics;
    return slots;
}

void gs_stream_slots_destroy(gs_stream_slots *slots) {
    free(slots);
}

bool gs_stream_slots_take(gs_stream_slots *slots) {
    if (atomic_fetch_add(&slots->taken, 1) >= slots->max_streams) {
        atomic_fetch_sub(&slots->taken, 1);
        return false;
    }
    gs_api_metrics_add_stream(slots->metrics, 1);
    return true;
}

void gs_stream_slots_give(gs_stream_slots *slots) {
    gs_api_metrics_add_stream(slots->metrics, -1);
    atomic_fetch_sub(&slots->taken, 1);
}

int gs_stream_slots_taken(gs_stream_slots *slots) {
    return atomic_load(&slots->taken);
}
