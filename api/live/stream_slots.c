#include "api/live/stream_slots.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEW = 16 };  // this part of all streams anybody may have

typedef struct holding {
    char holder[GS_STREAM_HOLDER_BYTES];
    int count;  // 0: this place is free
} holding;

struct gs_stream_slots {
    gs_api_metrics *metrics;
    int max_streams;
    pthread_mutex_t lock;  // what follows
    int taken;
    holding holdings[];  // max_streams
};

gs_stream_slots *gs_stream_slots_create(int max_streams, gs_api_metrics *metrics) {
    gs_stream_slots *slots = calloc(1, sizeof *slots + (size_t)max_streams * sizeof *slots->holdings);
    if (!slots) return NULL;
    slots->max_streams = max_streams;
    slots->metrics = metrics;
    pthread_mutex_init(&slots->lock, NULL);
    return slots;
}

void gs_stream_slots_destroy(gs_stream_slots *slots) {
    if (!slots) return;
    pthread_mutex_destroy(&slots->lock);
    free(slots);
}

// His, or a free one: there is one for each stream. Nobody's in particular: NULL.
static holding *find(gs_stream_slots *slots, const char *holder) {
    holding *unused = NULL;
    if (!*holder) return NULL;
    for (holding *it = slots->holdings; it < slots->holdings + slots->max_streams; it++) {
        if (it->count > 0 && strncmp(it->holder, holder, sizeof it->holder - 1) == 0) return it;
        if (it->count == 0) unused = it;
    }
    if (unused) snprintf(unused->holder, sizeof unused->holder, "%s", holder);
    return unused;
}

bool gs_stream_slots_take(gs_stream_slots *slots, const char *holder) {
    pthread_mutex_lock(&slots->lock);
    int num_free = slots->max_streams - slots->taken;
    bool is_free = num_free > 0;
    holding *his = is_free ? find(slots, holder) : NULL;
    if (his && his->count >= num_free && his->count >= slots->max_streams / FEW) is_free = false;
    if (is_free) slots->taken++;
    if (is_free && his) his->count++;
    pthread_mutex_unlock(&slots->lock);
    if (is_free) gs_api_metrics_add_stream(slots->metrics, 1);
    return is_free;
}

void gs_stream_slots_give(gs_stream_slots *slots, const char *holder) {
    gs_api_metrics_add_stream(slots->metrics, -1);
    pthread_mutex_lock(&slots->lock);
    holding *his = find(slots, holder);
    if (his) his->count--;
    slots->taken--;
    pthread_mutex_unlock(&slots->lock);
}

int gs_stream_slots_taken(gs_stream_slots *slots) {
    pthread_mutex_lock(&slots->lock);
    int taken = slots->taken;
    pthread_mutex_unlock(&slots->lock);
    return taken;
}
