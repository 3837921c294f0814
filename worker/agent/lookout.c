#include "worker/agent/lookout.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/boot_clock.h"
#include "core/clock.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "core/random.h"
#include "core/thread.h"
#include "rpc/checkpoint/fence.h"
#include "rpc/checkpoint/life_sign.h"

#define MAX_PLACES 256
#define TURN_NS (100 * GS_NS_PER_MS)
#define ALONE_EVERY_NS GS_LIFE_SIGN_EVERY_NS
#define SHARED_EVERY_NS (10 * GS_NS_PER_SEC)  // whether the fence is theirs is known: only that the disk is there
#define STOP_SECONDS 2.0

typedef struct place {
    char job[24], cluster[GS_CLUSTER_ID_LEN], directory[PATH_MAX];
    uint32_t generation;  // 0: free
    bool is_alone, is_wanted;
    int num_looks;
    int64_t next_ns;
    gs_lookout_sight sight;
} place;

struct gs_lookout {
    gs_thread *thread;
    atomic_bool is_looking;
    int64_t number;  // of the last sign; the thread's own
    pthread_mutex_t lock;  // of what follows
    place places[MAX_PLACES];
};

static place *find(gs_lookout *lookout, const char *job, uint32_t generation) {
    for (int i = 0; i < MAX_PLACES; i++) {
        place *at = &lookout->places[i];
        if (at->generation == generation && !strcmp(at->job, job)) return at;
    }
    return NULL;
}

static place *add(gs_lookout *lookout, const gs_lookout_place *wanted) {
    for (int i = 0; i < MAX_PLACES; i++) {
        place *at = &lookout->places[i];
        if (at->generation) continue;
        *at = (place){.generation = wanted->generation};
        snprintf(at->job, sizeof at->job, "%s", wanted->job);
        snprintf(at->cluster, sizeof at->cluster, "%s", wanted->cluster);
        snprintf(at->directory, sizeof at->directory, "%s", wanted->directory);
        return at;
    }
    return NULL;
}

gs_lookout_sight gs_lookout_ask(gs_lookout *lookout, const gs_lookout_place *wanted, bool alone) {
    gs_lookout_sight sight = {0};
    if (!wanted->generation || !*wanted->cluster || !*wanted->directory) return sight;
    pthread_mutex_lock(&lookout->lock);
    place *at = find(lookout, wanted->job, wanted->generation);
    if (!at) at = add(lookout, wanted);
    if (at) {
        at->is_wanted = true;
        if (alone && !at->is_alone) at->next_ns = 0;
        at->is_alone = alone;
        sight = at->sight;
    }
    pthread_mutex_unlock(&lookout->lock);
    return sight;
}

void gs_lookout_forget_unasked(gs_lookout *lookout) {
    pthread_mutex_lock(&lookout->lock);
    for (int i = 0; i < MAX_PLACES; i++) {
        place *at = &lookout->places[i];
        if (!at->is_wanted) at->generation = 0;
        at->is_wanted = false;
    }
    pthread_mutex_unlock(&lookout->lock);
}

bool gs_lookout_holds(const gs_lookout_sight *sight, bool is_held, int64_t alone_since_ns, int64_t now_ns) {
    int64_t seen_ns = sight->seen_ns > alone_since_ns ? sight->seen_ns : alone_since_ns;
    if (is_held) return now_ns - sight->seen_ns >= GS_LIFE_UNSEEN_NS;
    return sight->is_shared && now_ns - seen_ns >= GS_LIFE_UNSEEN_NS;
}

bool gs_lookout_leads(const gs_lookout_sight *sight, int64_t woke_ns, int64_t now_ns) {
    if (!woke_ns) return true;
    return sight->is_shared ? sight->seen_ns >= woke_ns : now_ns - woke_ns >= GS_LIFE_UNSEEN_NS;
}

// Ranks raise their fence when they begin: it is looked for soon, then less often.
static int64_t pause_after(const place *at) {
    if (at->is_alone) return ALONE_EVERY_NS;
    int64_t ns = ALONE_EVERY_NS << (at->num_looks < 4 ? at->num_looks : 4);
    return at->sight.is_shared || ns > SHARED_EVERY_NS ? SHARED_EVERY_NS : ns;
}

// The one that is due for longest, as a copy: where looks take long, each has its turn.
static bool take_due(gs_lookout *lookout, place *due) {
    int64_t now_ns = gs_now_ns();
    place *first = NULL;
    pthread_mutex_lock(&lookout->lock);
    for (int i = 0; i < MAX_PLACES; i++) {
        place *at = &lookout->places[i];
        if (at->generation && now_ns >= at->next_ns && (!first || at->next_ns < first->next_ns)) first = at;
    }
    if (first) {
        first->next_ns = now_ns + pause_after(first);
        first->num_looks++;
        *due = *first;
    }
    pthread_mutex_unlock(&lookout->lock);
    return first != NULL;
}

// That they may go on is read, and needs no disk that takes a sign: one that is full stops nobody. A file system whose clients
// remember what directories hold looks again when it has changed one, as the sign of the turn before has.
static void look(place *at) {
    const gs_fence mine = {at->cluster, at->generation};
    gs_lookout_sight *sight = &at->sight;
    GS_FAILPOINT_VOID("lookout.look");
    int64_t begun_ns = gs_boot_ns();
    bool stands = false;
    gs_status status = gs_fence_check(at->directory, &mine);
    sight->is_over = status.code == GS_FAILED_PRECONDITION;
    if (!status.code) status = gs_fence_stands(&stands, at->directory, &mine);
    sight->is_shared |= stands;
    // Where there is no fence any more, it is another directory.
    if (!status.code && stands) sight->seen_ns = begun_ns;
    sight->is_known = true;
    if (status.code && at->is_alone)
        gs_log_debug("a fence is not seen", "job=%s reason=\"%s\"", at->job, status.message);
}

static void leave_sign(gs_lookout *lookout, const place *at) {
    const gs_fence mine = {at->cluster, at->generation};
    if (!at->is_alone || !at->sight.is_shared || at->sight.is_over) return;
    gs_status status = gs_life_sign_leave(at->directory, &mine, ++lookout->number);
    if (status.code) gs_log_debug("no sign of life left", "job=%s reason=\"%s\"", at->job, status.message);
}

static void keep(gs_lookout *lookout, const place *seen) {
    pthread_mutex_lock(&lookout->lock);
    place *at = find(lookout, seen->job, seen->generation);
    if (at) at->sight = seen->sight;
    pthread_mutex_unlock(&lookout->lock);
}

static void run(void *ctx, const atomic_bool *stopping) {
    gs_lookout *lookout = ctx;
    place due;
    while (!atomic_load(stopping)) {
        if (!take_due(lookout, &due)) {
            gs_sleep_ns(TURN_NS);
            continue;
        }
        atomic_store(&lookout->is_looking, true);
        look(&due);
        keep(lookout, &due);
        leave_sign(lookout, &due);
        atomic_store(&lookout->is_looking, false);
    }
}

gs_status gs_lookout_start(gs_lookout **out) {
    gs_lookout *lookout = calloc(1, sizeof *lookout);
    if (!lookout) return gs_error(GS_RESOURCE_EXHAUSTED, "lookout: out of memory");
    // Signs of an agent that took this one's place differ from its own.
    lookout->number = (int64_t)(gs_random_from_system() >> 16);
    pthread_mutex_init(&lookout->lock, NULL);
    gs_status status = gs_thread_start(&lookout->thread, "gs-lookout", run, lookout);
    if (status.code) {
        gs_lookout_stop(lookout);
        return status;
    }
    *out = lookout;
    return gs_ok();
}

// A look that hangs ends with the process: nobody who leaves waits for a disk.
void gs_lookout_stop(gs_lookout *lookout) {
    if (!lookout) return;
    gs_thread_ask_to_stop(lookout->thread);
    gs_deadline patience = gs_deadline_in_seconds(STOP_SECONDS);
    while (atomic_load(&lookout->is_looking) && !gs_deadline_passed(patience)) gs_sleep_ns(TURN_NS / 10);
    if (atomic_load(&lookout->is_looking)) return;
    gs_thread_stop(lookout->thread);
    pthread_mutex_destroy(&lookout->lock);
    free(lookout);
}
