// Collectives in memory that the ranks of a host share: the default.
//
// What happens to a collective is lane.h's. Movement happens in the owner's post, progress and
// wait, or, where a core is spare, on a thread of its own (the moving thread either way), in all
// lanes by turns.
//
// After an abort a rank may still be inside one block of a slice, storing into its peers' arenas. A
// new communicator over the same arenas is safe once every rank of the old one has left it or has
// ended; who evicts a frozen rank must end its process.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/thread.h"
#include "gradsync/comm/backends.h"
#include "gradsync/comm/shm/comm_thread.h"
#include "gradsync/comm/shm/handshake.h"
#include "gradsync/comm/shm/lane.h"
#include "gradsync/comm/shm/lives.h"
#include "gradsync/comm/shm/segment.h"
#include "gradsync/comm/waiter.h"

#define SPIN_POLLS 500
#define LOOK_NS (2 * GS_NS_PER_MS)
#define SPIN_POLLS_OVERSUBSCRIBED 50
// The clock costs as much as a small collective's bytes: it is read once for several.
#define MOVES_PER_CHECK 16
_Static_assert(GS_SHM_MAX_RANKS <= 64, "the missing of an abort are one word");

typedef struct shm_comm {
    gs_shm_segment segment;
    gs_comm_thread *thread;    // NULL: the owner moves
    gs_device *thread_device;  // of the moving thread when it is not the owner
    int spin_polls;
    gs_futex_event finished_event;  // for the owner, where another thread moves
    int64_t looked_ns;              // owner; at who is alive, by the last progress
    atomic_bool failed;
    gs_status failure;  // valid once failed
    atomic_bool leaving, left;  // the owner wants to; the moving thread's life has ended
    gs_interrupt interrupt;
    pthread_mutex_t late_lock;
    gs_comm_failure late;  // by late_lock: of the owner's last wait whose deadline passed
    int num_lanes;
    gs_shm_lane lanes[];
} shm_comm;

static uint64_t finished_of_shm(const void *backend, int lane) {
    const shm_comm *shm = backend;
    return gs_shm_lane_finished(&shm->lanes[lane]);
}

// The first error ends the communicator on all ranks, with one reason.
static void fail_comm(shm_comm *shm, gs_status status, const gs_comm_failure *failure) {
    gs_shm_abort(&shm->segment, status, failure);
    shm->failure = gs_shm_abort_reason(&shm->segment);
    atomic_store_explicit(&shm->failed, true, memory_order_release);
    gs_futex_event_notify(&shm->finished_event);
}

static void fail_lane(shm_comm *shm, const gs_shm_lane *lane, gs_status status) {
    gs_comm_failure cause = gs_shm_lane_cause(lane);
    fail_comm(shm, status, &cause);
}

// Whoever aborted has said why.
static void see_abort(shm_comm *shm) {
    fail_comm(shm, gs_shm_abort_reason(&shm->segment), &(gs_comm_failure){0});
}

static bool has_failed(const shm_comm *shm) {
    return atomic_load_explicit(&shm->failed, memory_order_acquire);
}

// Moves what can be moved now, lanes by turns; true: something did.
static bool advance(shm_comm *shm) {
    gs_shm_moves moves = {.more = true};
    while (moves.more && !has_failed(shm)) {
        moves.more = false;
        if (gs_shm_aborted(&shm->segment)) see_abort(shm);
        for (int i = 0; i < shm->num_lanes && !has_failed(shm); i++) {
            gs_status status = gs_shm_lane_move(&shm->lanes[i], &moves);
            if (status.code) fail_lane(shm, &shm->lanes[i], status);
        }
    }
    // In this order: what is finished was posted by an owner who knows whether there is a thread.
    if (moves.finished && shm->thread) gs_futex_event_notify(&shm->finished_event);
    gs_shm_give_notice(&shm->segment);
    return moves.moved;
}

// All that are gone are accused, in one kind; damage first, for it may look like anything else.
static void accuse_lost(shm_comm *shm, const gs_shm_lane *lane, uint64_t sequence,
                        const gs_shm_health *health) {
    static const char *const fates[] = {[GS_SHM_LEFT] = "left the communicator",
                                        [GS_SHM_DEAD] = "died",
                                        [GS_SHM_DAMAGED] = "damaged its control block"};
    int first = -1;
    bool damaged = false;
    for (int i = 0; i < shm->segment.world_size; i++) damaged |= health[i] == GS_SHM_DAMAGED;
    gs_comm_failure lost = gs_shm_lane_failure(
        lane, sequence, damaged ? GS_COMM_FAILURE_DAMAGED : GS_COMM_FAILURE_PEER_LOST);
    for (int i = 0; i < shm->segment.world_size; i++) {
        if (health[i] == GS_SHM_ALIVE || damaged != (health[i] == GS_SHM_DAMAGED)) continue;
        gs_comm_failure_accuse(&lost, i);
        if (first < 0) first = i;
    }
    char name[64];
    gs_collective_name(name, sizeof name, sequence, gs_shm_lane_collective(lane, sequence));
    fail_comm(shm, gs_error(GS_ABORTED, "%s: rank %d %s", name, first, fates[health[first]]),
              &lost);
}

// Looks whether those that the lane waits for still live. A rank may have done its share and left
// since the last look, so it is blamed only when nothing has moved since, in any lane. True: there
// is no more to say.
static bool check_missing_of(shm_comm *shm, gs_shm_lane *lane) {
    gs_shm_health health[GS_SHM_MAX_RANKS] = {0};
    bool all_alive = true;
    int missing[GS_SHM_MAX_RANKS];
    bool arrived;
    uint64_t sequence = gs_shm_lane_finished(lane) + 1;
    int num_missing = gs_shm_lane_list_missing(lane, sequence, missing, &arrived);
    for (int i = 0; i < num_missing; i++) {
        health[missing[i]] = gs_shm_lane_check_rank(lane, missing[i], sequence);
        all_alive &= health[missing[i]] == GS_SHM_ALIVE;
    }
    if (all_alive) return false;
    if (!advance(shm) && !has_failed(shm)) accuse_lost(shm, lane, sequence, health);
    return true;
}

static void check_missing(shm_comm *shm) {
    for (int i = 0; i < shm->num_lanes && !has_failed(shm); i++) {
        if (gs_shm_lane_has_work(&shm->lanes[i]) && check_missing_of(shm, &shm->lanes[i])) return;
    }
}

static gs_status explain_deadline(const gs_shm_lane *lane, int64_t waited_ns,
                                  gs_comm_failure *late) {
    int missing[GS_SHM_MAX_RANKS];
    bool arrived;
    uint64_t sequence = gs_shm_lane_finished(lane) + 1;
    int num_missing = gs_shm_lane_list_missing(lane, sequence, missing, &arrived);
    char name[64], text[128];
    gs_collective_name(name, sizeof name, sequence, gs_shm_lane_collective(lane, sequence));
    gs_backends_list_ranks(text, sizeof text, missing, num_missing);
    *late = gs_shm_lane_failure(lane, sequence, GS_COMM_FAILURE_TIMEOUT);
    for (int i = 0; i < num_missing; i++) gs_comm_failure_accuse(late, missing[i]);
    double seconds = (double)waited_ns / (double)GS_NS_PER_SEC;
    if (num_missing == 0)
        return gs_error(GS_DEADLINE_EXCEEDED, "%s: not finished within %.1f s", name, seconds);
    return gs_error(GS_DEADLINE_EXCEEDED, "%s: %s %s did not %s within %.1f s", name,
                    num_missing == 1 ? "rank" : "ranks", text, arrived ? "finish" : "arrive",
                    seconds);
}

static gs_status say_interrupted(const gs_shm_lane *lane) {
    char name[64];
    uint64_t sequence = gs_shm_lane_finished(lane) + 1;
    gs_collective_name(name, sizeof name, sequence, gs_shm_lane_collective(lane, sequence));
    return gs_error(GS_CANCELLED, "%s: the wait was interrupted", name);
}

static gs_status wait_shm(void *backend, int number, uint64_t sequence, gs_deadline deadline) {
    shm_comm *shm = backend;
    const gs_shm_lane *lane = &shm->lanes[number];
    gs_futex_event *event = shm->thread ? &shm->finished_event : &shm->segment.common->event;
    gs_waiter waiter = {.event = event, .spin_polls = shm->spin_polls};
    bool moved = !shm->thread && advance(shm);
    int moves = 0;
    if (gs_shm_lane_finished(lane) >= sequence) return gs_ok();
    int64_t began_ns = gs_now_ns(), now_ns = began_ns;
    while (now_ns < deadline.at_ns && gs_shm_lane_finished(lane) < sequence && !has_failed(shm)) {
        if (moved) {
            gs_waiter_reset(&waiter);
            // Whoever always finds something to move never pauses.
            if (++moves % MOVES_PER_CHECK == 0) now_ns = gs_now_ns();
        } else if (gs_waiter_pause(&waiter, deadline)) {
            if (!shm->thread) check_missing(shm);
            now_ns = gs_now_ns();
        }
        if (gs_interrupt_check(&shm->interrupt, now_ns) && !gs_shm_aborted(&shm->segment)) {
            gs_waiter_reset(&waiter);
            return gs_shm_lane_finished(lane) >= sequence ? gs_ok() : say_interrupted(lane);
        }
        moved = !shm->thread && advance(shm);
    }
    gs_waiter_reset(&waiter);
    if (gs_shm_lane_finished(lane) >= sequence) return gs_ok();
    if (has_failed(shm)) return shm->failure;
    gs_comm_failure late;
    gs_status status = explain_deadline(lane, now_ns - began_ns, &late);
    // Another thread moves: it may have come to the end while this one looked for the culprit.
    if (gs_shm_lane_finished(lane) >= sequence) return gs_ok();
    pthread_mutex_lock(&shm->late_lock);
    shm->late = late;
    pthread_mutex_unlock(&shm->late_lock);
    return status;
}

// It sleeps on the one event when idle, on the other when it waits for peers.
static void wake_thread(shm_comm *shm) {
    gs_comm_thread_kick(shm->thread);
    gs_futex_event_notify(&shm->segment.common->event);
}

// For who only moves, and never waits here: the dead wake nobody.
static void look_around(shm_comm *shm) {
    int64_t now_ns = gs_now_ns();
    if (now_ns - shm->looked_ns < LOOK_NS) return;
    shm->looked_ns = now_ns;
    check_missing(shm);
}

static gs_status post_shm(void *backend, int lane, uint64_t sequence,
                          const gs_collective *collective) {
    shm_comm *shm = backend;
    if (gs_shm_aborted(&shm->segment)) {
        // A peer's abort is unknown to an idle thread, and a wait ends when the moving thread
        // knows.
        if (shm->thread) wake_thread(shm);
        return gs_shm_abort_reason(&shm->segment);
    }
    if (collective) gs_shm_lane_post(&shm->lanes[lane], sequence, collective);
    if (shm->thread) {
        wake_thread(shm);
    } else if (!advance(shm) && !collective) {
        look_around(shm);
    }
    return has_failed(shm) ? shm->failure : gs_ok();
}

// Peers notify the one; where a thread of its own moves, it notifies the other.
static int events_of_shm(void *backend, gs_futex_event **events, int max) {
    shm_comm *shm = backend;
    if (max > 0) events[0] = shm->thread ? &shm->finished_event : &shm->segment.common->event;
    return 1;
}

// What the owner waited for in vain, unless it came after all.
static gs_comm_failure late_of(shm_comm *shm) {
    pthread_mutex_lock(&shm->late_lock);
    gs_comm_failure late = shm->late;
    pthread_mutex_unlock(&shm->late_lock);
    return late.sequence > gs_shm_lane_finished(&shm->lanes[late.lane]) ? late
                                                                        : (gs_comm_failure){0};
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
    const shm_comm *shm = backend;
    *times = gs_shm_lane_times(&shm->lanes[lane], sequence);
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
    if (has_failed(shm)) return false;
    for (int i = 0; i < shm->num_lanes; i++) {
        if (gs_shm_lane_has_work(&shm->lanes[i])) return true;
    }
    return gs_shm_aborted(&shm->segment);
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
    // A device belongs to one thread, so the moving thread has its own.
    if (helps)
        GS_TRY(gs_device_open(&shm->thread_device, "cpu", &(gs_device_options){.num_threads = 1}));
    gs_device *device = helps ? shm->thread_device : options->device;
    for (int i = 0; i < shm->num_lanes; i++)
        gs_shm_lane_open(&shm->lanes[i], &shm->segment, i, device);
    if (!helps) return gs_shm_begin_life(&shm->segment);
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
    return gs_shm_wait_lives_ended(&shm->segment, lingering, &shm->interrupt, deadline);
}

static void *peer_arena_of_shm(const void *backend, int rank, size_t *bytes) {
    const gs_shm_segment *segment = &((const shm_comm *)backend)->segment;
    *bytes = segment->arenas[rank] ? segment->arena_bytes[rank] : 0;
    return segment->arenas[rank];
}

static bool moves_alone_on_shm(const void *backend) {
    return ((const shm_comm *)backend)->thread != NULL;
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

static gs_status create_shm(void **out, const gs_comm_options *options, gs_stages *stages,
                            char *reason, size_t reason_bytes, gs_deadline deadline) {
    size_t bytes = sizeof(shm_comm) + (size_t)options->num_lanes * sizeof(gs_shm_lane);
    bytes = gs_round_up(bytes, _Alignof(shm_comm));
    shm_comm *shm = aligned_alloc(_Alignof(shm_comm), bytes);
    if (!shm) return gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    memset(shm, 0, bytes);
    shm->num_lanes = options->num_lanes;
    shm->interrupt = (gs_interrupt){.ask = options->interrupt, .ctx = options->interrupt_ctx};
    pthread_mutex_init(&shm->late_lock, NULL);
    gs_status status = gs_shm_handshake(&shm->segment, options, stages, deadline);
    if (!status.code) status = start_moving(shm, options);
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
                                     .explain = explain_shm,
                                     .events = events_of_shm,
                                     .peer_arena = peer_arena_of_shm,
                                     .moves_alone = moves_alone_on_shm};
