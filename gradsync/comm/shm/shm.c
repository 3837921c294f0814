// Collectives in memory that the ranks of a host share: the default.
//
// A collective goes through four points: posted by the owner; published, when its input is where
// others may read it; processed, when all have arrived and this rank has done its share; finished,
// when all that it waits for is done. A rank that runs ahead publishes and leaves: whoever comes
// later finds the others' part done. Movement happens in the owner's post, progress and wait, or,
// where a core is spare, on a thread of its own (the moving thread either way).
//
// After an abort a rank may still be inside one block of a slice, storing into its peers' arenas. A
// new communicator over the same arenas is safe once every rank of the old one has left it or has
// ended; who evicts a frozen rank must end its process.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "core/strbuf.h"
#include "core/thread.h"
#include "gradsync/comm/comm_backend.h"
#include "gradsync/comm/shm/comm_thread.h"
#include "gradsync/comm/shm/handshake.h"
#include "gradsync/comm/shm/lives.h"
#include "gradsync/comm/shm/mover.h"
#include "gradsync/comm/shm/post.h"
#include "gradsync/comm/shm/segment.h"
#include "gradsync/comm/shm/waiter.h"

#define SPIN_POLLS 500
#define SPIN_POLLS_OVERSUBSCRIBED 50
// The clock costs as much as a small collective's bytes: it is read once for several.
#define MOVES_PER_CHECK 16
#define MOST_RANKS_SHOWN 16  // in a message; a gs_comm_failure has all
_Static_assert(GS_SHM_MAX_RANKS <= 64, "the missing of an abort are one word");

typedef struct shm_work {
    // The owner's, before `posted` counts it.
    gs_collective collective;
    _Atomic int64_t posted_ns;
    // The moving thread's.
    gs_shm_algorithm algorithm;
    int flat_slot;
    _Atomic int64_t all_arrived_ns, started_ns, finished_ns;
} shm_work;

typedef struct shm_comm {
    gs_shm_segment segment;
    gs_comm_thread *thread;    // NULL: the owner moves
    gs_device *thread_device;  // of the moving thread when it is not the owner
    int spin_polls;
    gs_futex_event finished_event;  // for the owner, where another thread moves
    _Atomic uint64_t posted;        // owner
    _Atomic uint64_t finished;
    atomic_bool failed;
    gs_status failure;  // valid once failed
    atomic_bool leaving, left;  // the owner wants to; the moving thread's life has ended
    pthread_mutex_t late_lock;
    gs_comm_failure late;  // by late_lock: of the owner's last wait whose deadline passed
    // The moving thread's.
    gs_shm_mover mover;
    uint64_t published, processed;
    uint64_t all_done;  // every rank has processed all up to here, as last seen
    int num_arrived;    // ranks known to have published processed + 1
    bool owes_notice;   // something was stored that a sleeping peer may wait for
    uint64_t num_flats;
    uint64_t flat_users[GS_SHM_FLAT_SLOTS];  // the last collective in each slot
    gs_comm_failure cause;  // of the error that move_posts found; kind none: of its own
    shm_work works[GS_SHM_MAX_POSTED];
} shm_comm;

static shm_work *work_of(shm_comm *shm, uint64_t sequence) {
    return &shm->works[sequence % GS_SHM_MAX_POSTED];
}

static void stamp(_Atomic int64_t *at_ns) {
    atomic_store_explicit(at_ns, gs_now_ns(), memory_order_relaxed);
}

static uint64_t finished_of(const shm_comm *shm) {
    return atomic_load_explicit(&shm->finished, memory_order_acquire);
}

static uint64_t finished_of_shm(const void *backend, int lane) {
    (void)lane;
    return finished_of(backend);
}

// What a peer says to have processed; 0 when that cannot be: nobody gets through a collective to
// which this rank did not come.
static uint64_t done_of(const shm_comm *shm, int rank) {
    uint64_t done =
        atomic_load_explicit(&shm->segment.controls[rank]->done.value, memory_order_acquire);
    return done <= atomic_load_explicit(&shm->posted, memory_order_acquire) ? done : 0;
}

// Whether every rank has processed `sequence`. Looks at the others only when it has to.
static bool all_have_done(shm_comm *shm, uint64_t sequence) {
    if (shm->all_done >= sequence) return true;
    uint64_t least = shm->processed;
    for (int i = 0; i < shm->segment.world_size && least >= sequence; i++) {
        if (i == shm->segment.rank) continue;
        uint64_t done = done_of(shm, i);
        if (done < least) least = done;
    }
    if (least < sequence) return false;
    shm->all_done = least;
    return true;
}

// A post and a slot may be written anew once everybody is through with their last use.
static bool may_publish(shm_comm *shm, uint64_t sequence, const shm_work *work) {
    if (sequence > GS_SHM_MAX_POSTED && !all_have_done(shm, sequence - GS_SHM_MAX_POSTED))
        return false;
    return work->algorithm != GS_SHM_FLAT ||
           all_have_done(shm, shm->flat_users[shm->num_flats % GS_SHM_FLAT_SLOTS]);
}

static gs_status publish_posts(shm_comm *shm, bool *moved) {
    uint64_t posted = atomic_load_explicit(&shm->posted, memory_order_acquire);
    if (shm->published == posted) return gs_ok();
    while (shm->published < posted) {
        uint64_t sequence = shm->published + 1;
        shm_work *work = work_of(shm, sequence);
        work->algorithm = gs_shm_choose_early(&shm->segment, &work->collective);
        if (!may_publish(shm, sequence, work)) break;
        GS_FAILPOINT("comm.publish");
        if (work->algorithm == GS_SHM_FLAT) {
            work->flat_slot = (int)(shm->num_flats++ % GS_SHM_FLAT_SLOTS);
            shm->flat_users[work->flat_slot] = sequence;
            gs_shm_copy_to_flat(&shm->mover, &work->collective, work->flat_slot);
        }
        gs_shm_fill_post(&shm->segment, sequence, &work->collective, work->algorithm);
        gs_shm_post *post = &shm->segment.own->posts[sequence % GS_SHM_MAX_POSTED];
        atomic_store_explicit(&post->sequence, sequence, memory_order_release);
        shm->published = sequence;
        shm->owes_notice = true;
        *moved = true;
    }
    return gs_ok();
}

// A notice costs a fence, which waits for the stores before it: so it is given once for several
// stores, and not before the first look at the peers; but always before time is spent here.
static void give_notice(shm_comm *shm) {
    if (!shm->owes_notice) return;
    shm->owes_notice = false;
    gs_futex_event_notify(&shm->segment.common->event);
}

static bool all_have_arrived(shm_comm *shm, uint64_t sequence) {
    while (shm->num_arrived < shm->segment.world_size) {
        if (!gs_shm_has_arrived(&shm->segment, shm->num_arrived, sequence)) return false;
        shm->num_arrived++;
    }
    return true;
}

// Of the collective, with nobody accused.
static gs_comm_failure failure_of(shm_comm *shm, gs_comm_failure_kind kind, uint64_t sequence) {
    const gs_collective *collective = &work_of(shm, sequence)->collective;
    return (gs_comm_failure){.kind = kind,
                             .reporter = shm->segment.rank,
                             .lane = collective->lane,
                             .sequence = sequence,
                             .step = collective->step,
                             .bucket = collective->bucket};
}

// The first look at a collective for which all have come.
static gs_status start_work(shm_comm *shm, uint64_t sequence, shm_work *work) {
    int64_t now_ns = gs_now_ns();
    atomic_store_explicit(&work->all_arrived_ns, now_ns, memory_order_relaxed);
    shm->cause = failure_of(shm, GS_COMM_FAILURE_NONE, sequence);
    GS_TRY(gs_shm_check_posts(&shm->segment, sequence, &work->collective, work->algorithm,
                              shm->mover.places, &shm->cause));
    if (work->algorithm == GS_SHM_UNDECIDED)
        work->algorithm = gs_shm_choose_late(&shm->segment, shm->mover.places, &work->collective);
    atomic_store_explicit(&work->started_ns, now_ns, memory_order_relaxed);
    return gs_ok();
}

static gs_status process_work(shm_comm *shm, uint64_t sequence, shm_work *work, bool *moved,
                              bool *complete) {
    *complete = true;
    if (!atomic_load_explicit(&work->started_ns, memory_order_relaxed)) {
        GS_TRY(start_work(shm, sequence, work));
        *moved = true;
    }
    switch (work->algorithm) {
    case GS_SHM_FLAT:
        gs_shm_run_flat(&shm->mover, &work->collective, work->flat_slot);
        break;
    case GS_SHM_DIRECT:
        give_notice(shm);
        GS_TRY(gs_shm_run_direct(&shm->mover, &work->collective));
        break;
    case GS_SHM_PIPELINE: {
        bool chunk_moved;
        give_notice(shm);
        GS_TRY(gs_shm_run_pipeline(&shm->mover, &work->collective, &chunk_moved, complete));
        *moved |= chunk_moved;
        break;
    }
    default:
        break;
    }
    return gs_ok();
}

static gs_status process_posts(shm_comm *shm, bool *moved) {
    while (shm->processed < shm->published) {
        uint64_t sequence = shm->processed + 1;
        if (!all_have_arrived(shm, sequence)) break;
        bool complete;
        GS_TRY(process_work(shm, sequence, work_of(shm, sequence), moved, &complete));
        if (!complete) break;
        GS_FAILPOINT("comm.done");
        atomic_store_explicit(&shm->segment.own->done.value, sequence, memory_order_release);
        shm->owes_notice = true;
        shm->processed = sequence;
        shm->num_arrived = 0;
        gs_shm_prefetch_for_write(&shm->segment.own->posts[(sequence + 1) % GS_SHM_MAX_POSTED]);
        *moved = true;
    }
    return gs_ok();
}

static void finish_posts(shm_comm *shm, bool *moved) {
    uint64_t finished = atomic_load_explicit(&shm->finished, memory_order_relaxed);
    uint64_t before = finished;
    while (finished < shm->processed) {
        shm_work *work = work_of(shm, finished + 1);
        // Only direct writes into this rank's memory from outside.
        if (work->algorithm == GS_SHM_DIRECT && !all_have_done(shm, finished + 1)) break;
        stamp(&work->finished_ns);
        finished++;
    }
    if (finished == before) return;
    *moved = true;
    atomic_store_explicit(&shm->finished, finished, memory_order_release);
    if (shm->thread) gs_futex_event_notify(&shm->finished_event);
}

static gs_status move_posts(shm_comm *shm, bool *moved) {
    if (gs_shm_aborted(&shm->segment)) return gs_shm_abort_reason(&shm->segment);
    GS_TRY(publish_posts(shm, moved));
    GS_TRY(process_posts(shm, moved));
    finish_posts(shm, moved);
    give_notice(shm);
    return gs_ok();
}

// The first error ends the communicator on all ranks, with one reason.
static void fail_comm(shm_comm *shm, gs_status status, const gs_comm_failure *failure) {
    gs_shm_abort(&shm->segment, status, failure);
    shm->failure = gs_shm_abort_reason(&shm->segment);
    atomic_store_explicit(&shm->failed, true, memory_order_release);
    gs_futex_event_notify(&shm->finished_event);
}

static bool has_failed(const shm_comm *shm) {
    return atomic_load_explicit(&shm->failed, memory_order_acquire);
}

// An error that is not between ranks is this one's: its device does not do what it is told.
static void fail_moving(shm_comm *shm, gs_status status) {
    gs_comm_failure cause = shm->cause;
    if (!cause.kind) {
        cause = failure_of(shm, GS_COMM_FAILURE_DEVICE, shm->processed + 1);
        gs_comm_failure_accuse(&cause, shm->segment.rank);
    }
    fail_comm(shm, status, &cause);
}

// Moves what can be moved now; true: something did.
static bool advance(shm_comm *shm) {
    bool moved = false;
    if (has_failed(shm)) return false;
    gs_status status = move_posts(shm, &moved);
    if (status.code) fail_moving(shm, status);
    return moved;
}

// Who keeps `sequence` from being finished: ranks that did not arrive, else those that did not do
// their share.
static int list_missing(const shm_comm *shm, uint64_t sequence, int *missing, bool *arrived) {
    const gs_shm_segment *segment = &shm->segment;
    int num_missing = 0;
    *arrived = false;
    for (int i = 0; i < segment->world_size; i++) {
        if (i != segment->rank && !gs_shm_has_arrived(segment, i, sequence))
            missing[num_missing++] = i;
    }
    if (num_missing) return num_missing;
    *arrived = true;
    for (int i = 0; i < segment->world_size; i++) {
        if (i != segment->rank && done_of(shm, i) < sequence) missing[num_missing++] = i;
    }
    return num_missing;
}

// The moving thread: how it stands with a rank that `sequence` waits for.
static gs_shm_health check_rank(shm_comm *shm, int rank, uint64_t sequence) {
    gs_shm_health health = gs_shm_check_life(&shm->segment, rank);
    uint64_t done = atomic_load(&shm->segment.controls[rank]->done.value);
    bool plausible = done <= atomic_load(&shm->posted) &&
                     gs_shm_post_is_plausible(&shm->segment, rank, sequence) &&
                     gs_shm_chunks_are_plausible(&shm->mover, rank);
    return health == GS_SHM_ALIVE && !plausible ? GS_SHM_DAMAGED : health;
}

// All that are gone are accused, in one kind; damage first, for it may look like anything else.
static void accuse_lost(shm_comm *shm, uint64_t sequence, const gs_shm_health *health) {
    static const char *const fates[] = {[GS_SHM_LEFT] = "left the communicator",
                                        [GS_SHM_DEAD] = "died",
                                        [GS_SHM_DAMAGED] = "damaged its control block"};
    int first = -1;
    bool damaged = false;
    for (int i = 0; i < shm->segment.world_size; i++) damaged |= health[i] == GS_SHM_DAMAGED;
    gs_comm_failure lost = failure_of(
        shm, damaged ? GS_COMM_FAILURE_DAMAGED : GS_COMM_FAILURE_PEER_LOST, sequence);
    for (int i = 0; i < shm->segment.world_size; i++) {
        if (health[i] == GS_SHM_ALIVE || damaged != (health[i] == GS_SHM_DAMAGED)) continue;
        gs_comm_failure_accuse(&lost, i);
        if (first < 0) first = i;
    }
    char name[64];
    gs_collective_name(name, sizeof name, sequence, &work_of(shm, sequence)->collective);
    fail_comm(shm, gs_error(GS_ABORTED, "%s: rank %d %s", name, first, fates[health[first]]), &lost);
}

// Looks whether those that are waited for still live. A rank may have done its share and left
// since the last look, so it is blamed only when nothing has moved since.
static void check_missing(shm_comm *shm) {
    gs_shm_health health[GS_SHM_MAX_RANKS] = {0};
    bool all_alive = true;
    int missing[GS_SHM_MAX_RANKS];
    bool arrived;
    uint64_t sequence = finished_of(shm) + 1;
    if (sequence > atomic_load_explicit(&shm->posted, memory_order_acquire)) return;
    int num_missing = list_missing(shm, sequence, missing, &arrived);
    for (int i = 0; i < num_missing; i++) {
        health[missing[i]] = check_rank(shm, missing[i], sequence);
        all_alive &= health[missing[i]] == GS_SHM_ALIVE;
    }
    if (all_alive || advance(shm) || has_failed(shm)) return;
    accuse_lost(shm, sequence, health);
}

// "3", "1, 2 and 7", "0, 1, 2, 3, 4, 5, 6, 7 and 40 more".
static void list_ranks(char *text, size_t text_bytes, const int *ranks, int count) {
    int shown = count <= MOST_RANKS_SHOWN ? count : MOST_RANKS_SHOWN;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < shown; i++) {
        const char *before = i == 0 ? "" : i == count - 1 ? " and " : ", ";
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%d", before, ranks[i]);
    }
    if (shown < count) snprintf(text + used, text_bytes - used, " and %d more", count - shown);
}

static gs_status explain_deadline(shm_comm *shm, int64_t waited_ns) {
    int missing[GS_SHM_MAX_RANKS];
    bool arrived;
    uint64_t sequence = finished_of(shm) + 1;
    int num_missing = list_missing(shm, sequence, missing, &arrived);
    char name[64], text[128];
    gs_collective_name(name, sizeof name, sequence, &work_of(shm, sequence)->collective);
    list_ranks(text, sizeof text, missing, num_missing);
    pthread_mutex_lock(&shm->late_lock);
    shm->late = failure_of(shm, GS_COMM_FAILURE_TIMEOUT, sequence);
    for (int i = 0; i < num_missing; i++) gs_comm_failure_accuse(&shm->late, missing[i]);
    pthread_mutex_unlock(&shm->late_lock);
    double seconds = (double)waited_ns / (double)GS_NS_PER_SEC;
    if (num_missing == 0)
        return gs_error(GS_DEADLINE_EXCEEDED, "%s: not finished within %.1f s", name, seconds);
    return gs_error(GS_DEADLINE_EXCEEDED, "%s: %s %s did not %s within %.1f s", name,
                    num_missing == 1 ? "rank" : "ranks", text, arrived ? "finish" : "arrive",
                    seconds);
}

static gs_status wait_shm(void *backend, int lane, uint64_t sequence, gs_deadline deadline) {
    (void)lane;
    shm_comm *shm = backend;
    gs_futex_event *event = shm->thread ? &shm->finished_event : &shm->segment.common->event;
    gs_waiter waiter = {.event = event, .spin_polls = shm->spin_polls};
    bool moved = !shm->thread && advance(shm);
    int moves = 0;
    if (finished_of(shm) >= sequence) return gs_ok();
    int64_t began_ns = gs_now_ns(), now_ns = began_ns;
    while (now_ns < deadline.at_ns && finished_of(shm) < sequence && !has_failed(shm)) {
        if (moved) {
            gs_waiter_reset(&waiter);
            // Whoever always finds something to move never pauses.
            if (++moves % MOVES_PER_CHECK == 0) now_ns = gs_now_ns();
        } else if (gs_waiter_pause(&waiter, deadline)) {
            if (!shm->thread) check_missing(shm);
            now_ns = gs_now_ns();
        }
        moved = !shm->thread && advance(shm);
    }
    gs_waiter_reset(&waiter);
    if (finished_of(shm) >= sequence) return gs_ok();
    if (has_failed(shm)) return shm->failure;
    gs_status late = explain_deadline(shm, now_ns - began_ns);
    // Another thread moves: it may have come to the end while this one looked for the culprit.
    return finished_of(shm) >= sequence ? gs_ok() : late;
}

// It sleeps on the one event when idle, on the other when it waits for peers.
static void wake_thread(shm_comm *shm) {
    gs_comm_thread_kick(shm->thread);
    gs_futex_event_notify(&shm->segment.common->event);
}

static gs_status post_shm(void *backend, int lane, uint64_t sequence,
                          const gs_collective *collective) {
    (void)lane;
    shm_comm *shm = backend;
    if (gs_shm_aborted(&shm->segment)) {
        // A peer's abort is unknown to an idle thread, and a wait ends when the moving thread
        // knows.
        if (shm->thread) wake_thread(shm);
        return gs_shm_abort_reason(&shm->segment);
    }
    if (collective) {
        shm_work *work = work_of(shm, sequence);
        work->collective = *collective;
        stamp(&work->posted_ns);
        atomic_store_explicit(&work->all_arrived_ns, 0, memory_order_relaxed);
        atomic_store_explicit(&work->started_ns, 0, memory_order_relaxed);
        atomic_store_explicit(&work->finished_ns, 0, memory_order_relaxed);
        atomic_store_explicit(&shm->posted, sequence, memory_order_release);
    }
    if (shm->thread) {
        wake_thread(shm);
    } else {
        advance(shm);
    }
    return has_failed(shm) ? shm->failure : gs_ok();
}

// What the owner waited for in vain, unless it came after all.
static gs_comm_failure late_of(shm_comm *shm) {
    pthread_mutex_lock(&shm->late_lock);
    gs_comm_failure late = shm->late;
    pthread_mutex_unlock(&shm->late_lock);
    return late.sequence > finished_of(shm) ? late : (gs_comm_failure){0};
}

// Who aborts because nobody came says so to the others.
static void abort_shm(void *backend, const char *reason) {
    shm_comm *shm = backend;
    gs_comm_failure late = late_of(shm), told = {.kind = GS_COMM_FAILURE_ABORTED,
                                                 .reporter = shm->segment.rank,
                                                 .bucket = -1};
    gs_shm_abort(&shm->segment, gs_error(GS_ABORTED, "%s", reason), late.kind ? &late : &told);
    if (shm->thread) wake_thread(shm);
}

static void explain_shm(void *backend, gs_comm_failure *out) {
    shm_comm *shm = backend;
    gs_comm_failure late = late_of(shm);
    if (late.kind)
        *out = late;
    else
        gs_shm_abort_failure(&shm->segment, out);
}

static bool times_of_shm(const void *backend, int lane, uint64_t sequence, gs_work_times *times) {
    (void)lane;
    const shm_comm *shm = backend;
    const shm_work *work = &shm->works[sequence % GS_SHM_MAX_POSTED];
    *times = (gs_work_times){
        .posted_ns = atomic_load_explicit(&work->posted_ns, memory_order_relaxed),
        .all_arrived_ns = atomic_load_explicit(&work->all_arrived_ns, memory_order_relaxed),
        .started_ns = atomic_load_explicit(&work->started_ns, memory_order_relaxed),
        .finished_ns = atomic_load_explicit(&work->finished_ns, memory_order_relaxed)};
    return true;
}

static const char *algorithm_of_shm(const void *backend, const gs_collective *collective) {
    const shm_comm *shm = backend;
    static const char *const names[] = {[GS_SHM_UNDECIDED] = "undecided",
                                        [GS_SHM_NONE] = "none",
                                        [GS_SHM_FLAT] = "flat",
                                        [GS_SHM_DIRECT] = "direct",
                                        [GS_SHM_PIPELINE] = "pipeline"};
    gs_shm_algorithm algorithm = gs_shm_choose_early(&shm->segment, collective);
    if (algorithm == GS_SHM_UNDECIDED)
        algorithm =
            gs_shm_lies_in_arena(&shm->segment, collective) ? GS_SHM_DIRECT : GS_SHM_PIPELINE;
    return names[algorithm];
}

static gs_status enter_thread(void *ctx) {
    shm_comm *shm = ctx;
    return gs_shm_begin_life(&shm->segment);
}

// An abort is work, too: it is not over for the owner before the moving thread has taken note of
// it.
static bool has_work(void *ctx) {
    shm_comm *shm = ctx;
    if (atomic_load(&shm->leaving)) return !atomic_load(&shm->left);
    return !has_failed(shm) &&
           (atomic_load_explicit(&shm->posted, memory_order_acquire) != finished_of(shm) ||
            gs_shm_aborted(&shm->segment));
}

// The moving thread: stores nothing from here on.
static void leave(shm_comm *shm) {
    if (!has_failed(shm)) {
        shm->failure = gs_error(GS_ABORTED, "rank %d has left the communicator", shm->segment.rank);
        atomic_store_explicit(&shm->failed, true, memory_order_release);
    }
    gs_shm_end_life(&shm->segment);
    atomic_store(&shm->left, true);
    gs_futex_event_notify(&shm->finished_event);
}

static void serve_posts(void *ctx, const atomic_bool *stopping) {
    shm_comm *shm = ctx;
    gs_waiter waiter = {.event = &shm->segment.common->event, .spin_polls = shm->spin_polls};
    gs_deadline never = gs_deadline_in_ns(GS_DEADLINE_MAX_NS);
    while (!atomic_load(stopping) && has_work(shm)) {
        if (atomic_load(&shm->leaving))
            leave(shm);
        else if (advance(shm))
            gs_waiter_reset(&waiter);
        else if (gs_waiter_pause(&waiter, never))
            check_missing(shm);
    }
    gs_waiter_reset(&waiter);
}

static void leave_thread(void *ctx) {
    shm_comm *shm = ctx;
    if (!atomic_load(&shm->left)) leave(shm);
}

static const gs_comm_thread_ops thread_ops = {enter_thread, has_work, serve_posts, leave_thread};

// Beside the threads that compute, on every rank: who takes the core of one of them keeps all of
// them waiting for that one at the end of each kernel.
static bool has_spare_core(const gs_comm_options *options, int ranks_on_host, int cores) {
    int busy = gs_device_num_threads(options->device);
    return cores >= ranks_on_host * (busy + 1) && gs_usable_cores() >= busy + 1;
}

static gs_status start_moving(shm_comm *shm, const gs_comm_options *options) {
    int ranks_on_host = options->ranks_on_host ? options->ranks_on_host : options->world_size;
    int cores = shm->segment.num_cores;
    bool helps = options->helper == GS_HELPER_ON || (options->helper == GS_HELPER_AUTO &&
                                                     has_spare_core(options, ranks_on_host, cores));
    int threads = helps ? 2 * ranks_on_host : ranks_on_host;
    shm->spin_polls = cores >= threads ? SPIN_POLLS : SPIN_POLLS_OVERSUBSCRIBED;
    shm->mover = (gs_shm_mover){.segment = &shm->segment, .device = options->device};
    if (!helps) return gs_shm_begin_life(&shm->segment);
    // A device belongs to one thread, so the moving thread has its own.
    GS_TRY(gs_device_open(&shm->thread_device, "cpu", &(gs_device_options){.num_threads = 1}));
    shm->mover.device = shm->thread_device;
    return gs_comm_thread_start(&shm->thread, &thread_ops, shm);
}

// The thread stays, for an abort from elsewhere may be about to wake it.
static void wait_until_left(shm_comm *shm) {
    if (!shm->thread) {
        if (!atomic_load(&shm->left)) leave(shm);
        return;
    }
    gs_waiter waiter = {.event = &shm->finished_event};
    gs_deadline never = gs_deadline_in_ns(GS_DEADLINE_MAX_NS);
    atomic_store(&shm->leaving, true);
    wake_thread(shm);
    while (!atomic_load(&shm->left)) gs_waiter_pause(&waiter, never);
    gs_waiter_reset(&waiter);
}

static gs_status wait_shm_ended(void *backend, gs_comm_failure *lingering, gs_deadline deadline) {
    shm_comm *shm = backend;
    wait_until_left(shm);
    return gs_shm_wait_lives_ended(&shm->segment, lingering, deadline);
}

static void destroy_shm(void *backend) {
    shm_comm *shm = backend;
    if (!shm) return;
    if (shm->thread) gs_comm_thread_stop(shm->thread);
    // Where a thread moved, of the lives that the owner has taken.
    if (shm->segment.common && shm->segment.own) gs_shm_end_life(&shm->segment);
    gs_shm_unmap(&shm->segment);
    gs_device_close(shm->thread_device);
    pthread_mutex_destroy(&shm->late_lock);
    free(shm);
}

static gs_status create_shm(void **out, const gs_comm_options *options, char *reason,
                            size_t reason_bytes, gs_deadline deadline) {
    if (options->num_lanes > 1)
        return gs_error(GS_UNIMPLEMENTED, "backend shm has one lane, not %d", options->num_lanes);
    shm_comm *shm = aligned_alloc(_Alignof(shm_comm), sizeof *shm);
    if (!shm) return gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    memset(shm, 0, sizeof *shm);
    pthread_mutex_init(&shm->late_lock, NULL);
    gs_status status = gs_shm_handshake(&shm->segment, options, deadline);
    if (!status.code)
        status = gs_shm_agree(options, "shm/alive", start_moving(shm, options), deadline);
    if (status.code) {
        snprintf(reason, reason_bytes, "%s", status.message);
        destroy_shm(shm);
        return status;
    }
    snprintf(reason, reason_bytes, "all %d ranks share the memory of one host",
             options->world_size);
    *out = shm;
    return gs_ok();
}

const gs_comm_backend gs_comm_shm = {.name = "shm",
                                     .wire = GS_WIRE_NONE,
                                     .create = create_shm,
                                     .post = post_shm,
                                     .wait = wait_shm,
                                     .abort = abort_shm,
                                     .wait_ended = wait_shm_ended,
                                     .destroy = destroy_shm,
                                     .finished = finished_of_shm,
                                     .times = times_of_shm,
                                     .algorithm = algorithm_of_shm,
                                     .explain = explain_shm};
