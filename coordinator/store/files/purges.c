#include "coordinator/store/files/purges.h"

#include <pthread.h>
#include <stdlib.h>

#include "coordinator/model/memory.h"

typedef enum phase { OWED, ASKED, BEGUN, HELD } phase;

typedef struct purge {
    uint64_t job;
    int64_t at_ns;  // of OWED
    phase is;
} purge;

struct gs_purges {
    pthread_mutex_t lock;  // guards items
    purge *items;          // owned; of each job one
    size_t count, reserved;
    atomic_bool stopping;
};

gs_purges *gs_purges_create(void) {
    gs_purges *purges = gs_model_alloc(1, sizeof *purges);
    pthread_mutex_init(&purges->lock, NULL);
    return purges;
}

void gs_purges_destroy(gs_purges *purges) {
    if (!purges) return;
    pthread_mutex_destroy(&purges->lock);
    free(purges->items);
    free(purges);
}

static purge *find(const gs_purges *purges, uint64_t job) {
    for (size_t i = 0; i < purges->count; i++)
        if (purges->items[i].job == job) return &purges->items[i];
    return NULL;
}

static void drop(gs_purges *purges, purge *item) { *item = purges->items[--purges->count]; }

void gs_purges_owe(gs_purges *purges, uint64_t job, int64_t at_ns) {
    pthread_mutex_lock(&purges->lock);
    purge *item = find(purges, job);
    if (!item) {
        purges->items = gs_model_grow(purges->items, purges->count, &purges->reserved, sizeof *purges->items);
        item = &purges->items[purges->count++];
        *item = (purge){.job = job};
    }
    if (item->is != HELD) *item = (purge){job, at_ns, OWED};
    pthread_mutex_unlock(&purges->lock);
}

bool gs_purges_are_full(gs_purges *purges) {
    pthread_mutex_lock(&purges->lock);
    bool are_full = purges->count >= GS_MAX_OWED_PURGES;
    pthread_mutex_unlock(&purges->lock);
    return are_full;
}

bool gs_purges_next(gs_purges *purges, uint64_t *job, int64_t now_ns) {
    bool is_any = false;
    pthread_mutex_lock(&purges->lock);
    for (size_t i = 0; i < purges->count && !is_any; i++) {
        purge *item = &purges->items[i];
        if (item->is != OWED || item->at_ns > now_ns) continue;
        *job = item->job;
        item->is = ASKED;
        is_any = true;
    }
    pthread_mutex_unlock(&purges->lock);
    return is_any;
}

void gs_purges_forget(gs_purges *purges, uint64_t job) {
    pthread_mutex_lock(&purges->lock);
    purge *item = find(purges, job);
    if (item) drop(purges, item);
    pthread_mutex_unlock(&purges->lock);
}

bool gs_purges_begin(gs_purges *purges, uint64_t job) {
    pthread_mutex_lock(&purges->lock);
    purge *item = find(purges, job);
    bool begins = item && item->is == ASKED && !atomic_load(&purges->stopping);
    if (begins) item->is = BEGUN;
    pthread_mutex_unlock(&purges->lock);
    return begins;
}

bool gs_purges_hold(gs_purges *purges, uint64_t job) {
    pthread_mutex_lock(&purges->lock);
    purge *item = find(purges, job);
    bool holds = !item || item->is != BEGUN;
    if (item && holds) item->is = HELD;
    pthread_mutex_unlock(&purges->lock);
    return holds;
}

void gs_purges_release(gs_purges *purges, uint64_t job, bool is_recorded, int64_t at_ns) {
    pthread_mutex_lock(&purges->lock);
    purge *item = find(purges, job);
    // Recorded, it is in nobody's way any more, whatever was to be tried again since.
    if (item && is_recorded && item->is != BEGUN) drop(purges, item);
    else if (item && item->is == HELD) *item = (purge){job, at_ns, OWED};
    pthread_mutex_unlock(&purges->lock);
}

void gs_purges_stop(gs_purges *purges) { atomic_store(&purges->stopping, true); }

const atomic_bool *gs_purges_stopping(const gs_purges *purges) { return &purges->stopping; }
