#include "worker/agent/shared_place.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/thread.h"
#include "rpc/checkpoint/place_mark.h"

#define LOOK_NS (5 * GS_NS_PER_SEC)
#define TURN_NS (50 * GS_NS_PER_MS)
#define STOP_SECONDS 0.5
#define SILENT_NS (5 * GS_NS_PER_SEC)

typedef struct wanted_mark {
    char directory[1024], cluster[48];
    uint64_t life;
} wanted_mark;

struct gs_shared_place {
    gs_thread *thread;
    pthread_mutex_t lock;
    wanted_mark wanted;
    gs_place_sight sight;
    bool is_set;
    int64_t next_ns, begun_ns;  // begun 0: nobody looks
    atomic_bool is_looking;
};

static gs_place_sight look(const wanted_mark *wanted) {
    const char *directory = wanted->directory;
    gs_place_sight sight = {.state = "same", .free_bytes = -1};
    uint64_t found = 0;
    struct statvfs space;
    snprintf(sight.path, sizeof sight.path, "%s", directory);
    gs_status status = gs_place_mark_read(&found, directory, wanted->cluster);
    if (status.code == GS_NOT_FOUND) sight.state = "missing";
    else if (status.code) sight.state = "unreadable";
    else if (found != wanted->life) sight.state = "other";
    if (status.code) snprintf(sight.detail, sizeof sight.detail, "%s", status.message);
    sight.is_writable = access(directory, W_OK | X_OK) == 0;
    if (statvfs(directory, &space) == 0) sight.free_bytes = (int64_t)((uint64_t)space.f_bavail * space.f_frsize);
    return sight;
}

static bool take_due(gs_shared_place *place, wanted_mark *wanted) {
    int64_t now_ns = gs_now_ns();
    pthread_mutex_lock(&place->lock);
    bool is_due = place->is_set && now_ns >= place->next_ns;
    if (is_due) {
        *wanted = place->wanted;
        place->next_ns = now_ns + LOOK_NS;
        place->begun_ns = now_ns;
    }
    pthread_mutex_unlock(&place->lock);
    return is_due;
}

static bool is_same(const wanted_mark *a, const wanted_mark *b) {
    return a->life == b->life && strcmp(a->directory, b->directory) == 0 && strcmp(a->cluster, b->cluster) == 0;
}

// Nothing is kept of a look that was for another mark than the one wanted now.
static void keep(gs_shared_place *place, const wanted_mark *wanted, const gs_place_sight *seen) {
    pthread_mutex_lock(&place->lock);
    if (is_same(&place->wanted, wanted)) {
        int64_t num_looks = place->sight.num_looks + 1;
        place->sight = *seen;
        place->sight.num_looks = num_looks;
    }
    place->begun_ns = 0;
    pthread_mutex_unlock(&place->lock);
}

static void run(void *ctx, const atomic_bool *stopping) {
    gs_shared_place *place = ctx;
    wanted_mark wanted;
    while (!atomic_load(stopping)) {
        if (!take_due(place, &wanted)) {
            gs_sleep_ns(TURN_NS);
            continue;
        }
        atomic_store(&place->is_looking, true);
        gs_place_sight seen = look(&wanted);
        keep(place, &wanted, &seen);
        atomic_store(&place->is_looking, false);
    }
}

gs_status gs_shared_place_start(gs_shared_place **out) {
    gs_shared_place *place = calloc(1, sizeof *place);
    if (!place) return gs_error(GS_RESOURCE_EXHAUSTED, "shared place: out of memory");
    place->sight = (gs_place_sight){.state = "unknown", .free_bytes = -1};
    pthread_mutex_init(&place->lock, NULL);
    gs_status status = gs_thread_start(&place->thread, "gs-place", run, place);
    if (status.code) {
        gs_shared_place_stop(place);
        return status;
    }
    *out = place;
    return gs_ok();
}

// A look that hangs ends with the process: nobody who leaves waits for a disk.
void gs_shared_place_stop(gs_shared_place *place) {
    if (!place) return;
    gs_thread_ask_to_stop(place->thread);
    gs_deadline patience = gs_deadline_in_seconds(STOP_SECONDS);
    while (atomic_load(&place->is_looking) && !gs_deadline_passed(patience)) gs_sleep_ns(TURN_NS / 10);
    if (atomic_load(&place->is_looking)) return;
    gs_thread_stop(place->thread);
    pthread_mutex_destroy(&place->lock);
    free(place);
}

void gs_shared_place_set(gs_shared_place *place, const char *directory, const char *cluster, uint64_t life) {
    wanted_mark wanted = {.life = life};
    snprintf(wanted.directory, sizeof wanted.directory, "%s", directory);
    snprintf(wanted.cluster, sizeof wanted.cluster, "%s", cluster);
    pthread_mutex_lock(&place->lock);
    bool is_new = !place->is_set || !is_same(&place->wanted, &wanted);
    place->wanted = wanted;
    if (is_new) {
        place->sight.state = "unknown";
        place->next_ns = 0;
    }
    place->is_set = true;
    pthread_mutex_unlock(&place->lock);
}

bool gs_place_sight_is_apart(const gs_place_sight *sight) {
    return strcmp(sight->state, "missing") == 0 || strcmp(sight->state, "other") == 0;
}

gs_place_sight gs_shared_place_sight(gs_shared_place *place) {
    pthread_mutex_lock(&place->lock);
    gs_place_sight sight = place->sight;
    snprintf(sight.path, sizeof sight.path, "%s", place->wanted.directory);
    if (place->begun_ns && gs_now_ns() - place->begun_ns >= SILENT_NS) sight.state = "silent";
    pthread_mutex_unlock(&place->lock);
    return sight;
}

gs_place_sight gs_shared_place_look(gs_shared_place *place, double seconds) {
    gs_deadline deadline = gs_deadline_in_seconds(seconds);
    pthread_mutex_lock(&place->lock);
    int64_t before = place->sight.num_looks + (place->begun_ns ? 1 : 0);
    place->next_ns = 0;
    pthread_mutex_unlock(&place->lock);
    gs_place_sight sight = gs_shared_place_sight(place);
    while (sight.num_looks <= before && !gs_deadline_passed(deadline)) {
        gs_sleep_ns(TURN_NS / 5);
        sight = gs_shared_place_sight(place);
    }
    if (sight.num_looks <= before) sight.state = "silent";
    return sight;
}
