// Waiting that never hands itself over: to the library, the driver, or a rank that does not come. And the
// way out: whatever may never return runs on a thread that this one does not wait for longer than 5 s.
#include <stdio.h>
#include <stdlib.h>

#include "core/log.h"
#include "core/thread.h"
#include "gradsync/comm/comm.h"
#include "gradsync/comm/nccl/state.h"

#define SPIN_POLLS 200
#define LOOK_NS (2 * INT64_C(1000000))
#define SHORTEST_SLEEP_NS (20 * INT64_C(1000))
#define LONGEST_SLEEP_NS (200 * INT64_C(1000))
#define LEAVE_SECONDS 5.0     // for all of it
#define LONG_SECONDS 1.0      // from then on the log says that it takes long
#define FINALIZE_SECONDS 2.0  // all ranks leave together, or not at all

static void pause_polling(int *polls, int64_t *sleep_ns) {
    if (++*polls < SPIN_POLLS) return;
    gs_sleep_ns(*sleep_ns);
    *sleep_ns *= 2;
    if (*sleep_ns > LONGEST_SLEEP_NS) *sleep_ns = LONGEST_SLEEP_NS;
}

void gs_nccl_fail(gs_nccl_comm *nccl, gs_status status, const gs_comm_failure *cause) {
    pthread_mutex_lock(&nccl->lock);
    if (!atomic_load(&nccl->failed)) {
        nccl->failure = status;
        nccl->cause = *cause;
    }
    atomic_store_explicit(&nccl->failed, true, memory_order_release);
    pthread_mutex_unlock(&nccl->lock);
}

gs_status gs_nccl_failure(gs_nccl_comm *nccl) {
    if (!atomic_load_explicit(&nccl->failed, memory_order_acquire)) return gs_ok();
    pthread_mutex_lock(&nccl->lock);
    gs_status status = nccl->failure;
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

gs_status gs_nccl_check(const gs_nccl_comm *nccl) {
    const gs_comm_options *options = nccl->options;
    if (!options || !options->check) return gs_ok();
    return options->check(options->check_ctx);
}

gs_status gs_nccl_settle(const gs_nccl_lane *lane, const char *call, gs_deadline deadline) {
    int64_t began_ns = gs_now_ns(), sleep_ns = SHORTEST_SLEEP_NS;
    int polls = 0;
    bool in_progress = true;
    for (;;) {
        GS_TRY(gs_nccl_query(lane->comm->library, lane->handle, &in_progress));
        if (!in_progress) return gs_ok();
        GS_TRY(gs_nccl_check(lane->comm));
        if (gs_deadline_passed(deadline))
            return gs_error(GS_DEADLINE_EXCEEDED,
                            "%s did not end within %.1f s; NCCL does not say which rank is missing",
                            call,
                            (double)(gs_now_ns() - began_ns) / (double)GS_NS_PER_SEC);
        pause_polling(&polls, &sleep_ns);
    }
}

static gs_comm_failure failure_of(gs_nccl_lane *lane, gs_comm_failure_kind kind) {
    uint64_t sequence = gs_nccl_finished(lane) + 1;
    gs_comm_failure failure = {.kind = kind, .reporter = lane->comm->rank, .bucket = -1};
    if (sequence > lane->posted) return failure;
    const gs_collective *collective = &gs_nccl_work_of(lane, sequence)->collective;
    failure.lane = collective->lane;
    failure.sequence = sequence;
    failure.step = collective->step;
    failure.bucket = collective->bucket;
    return failure;
}

gs_comm_failure gs_nccl_cause_of(gs_nccl_lane *lane, gs_code code) {
    if (code == GS_ABORTED || code == GS_UNAVAILABLE)
        return failure_of(lane, GS_COMM_FAILURE_PEER_LOST);
    if (code == GS_FAILED_PRECONDITION) return failure_of(lane, GS_COMM_FAILURE_MISMATCH);
    gs_comm_failure failure = failure_of(lane, GS_COMM_FAILURE_DEVICE);
    gs_comm_failure_accuse(&failure, lane->comm->rank);
    return failure;
}

// What can be known here: whether the own input was there. Who is missing the library does not say.
static gs_status explain_deadline(gs_nccl_lane *lane, int64_t waited_ns) {
    uint64_t sequence = gs_nccl_finished(lane) + 1;
    gs_nccl_work *work = gs_nccl_work_of(lane, sequence);
    double seconds = (double)waited_ns / (double)GS_NS_PER_SEC;
    bool ready = true;
    char name[64];
    gs_collective_name(name, sizeof name, sequence, &work->collective);
    if (work->follows) GS_TRY(gs_event_query(work->ready, &ready));
    lane->comm->late = failure_of(lane, GS_COMM_FAILURE_TIMEOUT);
    if (!ready) gs_comm_failure_accuse(&lane->comm->late, lane->comm->rank);
    if (!ready)
        return gs_error(GS_DEADLINE_EXCEEDED,
                        "%s: rank %d itself had no input for it within %.1f s: work before it on the "
                        "device is not done",
                        name, lane->comm->rank, seconds);
    return gs_error(GS_DEADLINE_EXCEEDED,
                    "%s: not finished within %.1f s; rank %d has %s it; NCCL does not say which rank "
                    "did not arrive",
                    name, seconds, lane->comm->rank, work->num_launched ? "started" : "not started");
}

// The library may know of an error while its kernels go on waiting.
static gs_status look_behind(const gs_nccl_lane *lane) {
    bool in_progress;
    return gs_nccl_query(lane->comm->library, lane->handle, &in_progress);
}

// The failure of the collective that is waited for, with its name before it.
static gs_status name_failure(gs_nccl_lane *lane, gs_status status) {
    uint64_t sequence = gs_nccl_finished(lane) + 1;
    char name[64];
    if (sequence > lane->posted) return gs_status_prefix(status, "rank %d", lane->comm->rank);
    gs_collective_name(name, sizeof name, sequence, &gs_nccl_work_of(lane, sequence)->collective);
    return gs_status_prefix(status, "%s: rank %d", name, lane->comm->rank);
}

static gs_status wait_once(gs_nccl_comm *nccl, bool looks) {
    gs_nccl_lane *at;
    gs_status status = gs_nccl_failure(nccl);
    if (status.code) return status;
    status = gs_nccl_advance(nccl, &at);
    for (int i = 0; i < nccl->num_lanes && !status.code && looks; i++) {
        at = &nccl->lanes[i];
        status = look_behind(at);
    }
    if (!status.code) return status;
    gs_comm_failure cause = gs_nccl_cause_of(at, status.code);
    gs_nccl_fail(nccl, name_failure(at, status), &cause);
    return gs_nccl_failure(nccl);
}

gs_status gs_nccl_progress(gs_nccl_comm *nccl) {
    int64_t now_ns = gs_now_ns();
    bool looks = now_ns - nccl->looked_ns >= LOOK_NS;
    if (looks) nccl->looked_ns = now_ns;
    return wait_once(nccl, looks);
}

static bool all_finished(const gs_nccl_comm *nccl) {
    for (int i = 0; i < nccl->num_lanes; i++) {
        if (gs_nccl_finished(&nccl->lanes[i]) != nccl->lanes[i].posted) return false;
    }
    return true;
}

static gs_status say_interrupted(const gs_nccl_lane *lane, uint64_t sequence) {
    char name[48];
    gs_work_name(name, sizeof name, (gs_work){sequence, (int)(lane - lane->comm->lanes)});
    return gs_error(GS_CANCELLED, "%s: the wait was interrupted", name);
}

gs_status gs_nccl_wait(gs_nccl_comm *nccl, gs_nccl_lane *lane, uint64_t sequence,
                       gs_deadline deadline) {
    int64_t began_ns = gs_now_ns(), sleep_ns = SHORTEST_SLEEP_NS;
    int polls = 0;
    for (;;) {
        if (gs_nccl_finished(lane) >= sequence) break;
        gs_status status = wait_once(nccl, polls % 16 == 15 || polls >= SPIN_POLLS);
        if (status.code) {
            gs_nccl_leave(nccl);
            return status;
        }
        if (gs_nccl_finished(lane) >= sequence) break;
        if (gs_deadline_passed(deadline)) return explain_deadline(lane, gs_now_ns() - began_ns);
        if (polls >= SPIN_POLLS && gs_interrupt_check(&nccl->interrupt, gs_now_ns()))
            return say_interrupted(lane, sequence);
        pause_polling(&polls, &sleep_ns);
    }
    // All that was enqueued on it lies before a collective that is finished.
    return all_finished(nccl) ? gs_stream_wait(nccl->entry, deadline) : gs_ok();
}

// The calls that leave, each on a thread of its own: one communicator's may wait for another's kernels, which end
// when that one's has begun.
typedef struct leaving leaving;
typedef struct leaving_lane {
    leaving *all;
    gs_nccl_handle *handle;
    gs_thread *thread;
    gs_status status;
} leaving_lane;

struct leaving {
    gs_nccl_comm *nccl;  // for tools that look for leaks: what hangs in the call has it all
    const gs_nccl_library *library;
    bool aborts;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int num_left;  // by lock: that have not returned
    leaving_lane lanes[GS_COMM_MAX_LANES];
};

static void run_leaving(void *ctx, const atomic_bool *stopping) {
    leaving_lane *one = ctx;
    leaving *all = one->all;
    (void)stopping;
    gs_status status = all->aborts ? gs_nccl_abort(all->library, one->handle)
                                   : gs_nccl_destroy(all->library, one->handle);
    pthread_mutex_lock(&all->lock);
    one->status = status;
    all->num_left--;
    pthread_cond_signal(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

static const gs_nccl_lane *find_pending(const gs_nccl_comm *nccl) {
    for (int i = 0; i < nccl->num_lanes; i++) {
        if (gs_nccl_finished(&nccl->lanes[i]) != nccl->lanes[i].posted) return &nccl->lanes[i];
    }
    return NULL;
}

// The oldest collective that is not finished in the first lane that has one, for the log: what this rank hangs in.
static void describe_pending(char *text, size_t text_bytes, const gs_nccl_comm *nccl) {
    const gs_nccl_lane *lane = find_pending(nccl);
    if (!lane) {
        snprintf(text, text_bytes, "pending=0");
        return;
    }
    uint64_t sequence = gs_nccl_finished(lane) + 1;
    const gs_nccl_work *work = &lane->works[sequence % GS_NCCL_MAX_POSTED];
    snprintf(text, text_bytes,
             "pending=%llu lane=%d sequence=%llu kind=%s step=%lld bucket=%d count=%zu started=%s",
             (unsigned long long)(lane->posted - sequence + 1), work->collective.lane,
             (unsigned long long)sequence, gs_collective_kind_name(work->collective.kind),
             (long long)work->collective.step, work->collective.bucket, work->collective.count,
             work->num_launched ? "yes" : "no");
}

// Kernels that never end hold memory, connections and the device: only the end of the process frees
// them, and that is the host's to decide.
static void give_up(gs_nccl_comm *nccl, const char *what) {
    char pending[176], reason[96];
    describe_pending(pending, sizeof pending, nccl);
    gs_log_error("a communicator cannot be left", "rank=%d call=%s seconds=%.0f %s", nccl->rank,
                 what, LEAVE_SECONDS, pending);
    nccl->is_leaked = true;
    snprintf(reason, sizeof reason, "rank %d: %s did not end within %.0f s", nccl->rank, what,
             LEAVE_SECONDS);
    if (nccl->abort_hung) nccl->abort_hung(nccl->abort_hung_ctx, reason);
}

static void say_slow(gs_nccl_comm *nccl, const char *what) {
    char pending[176];
    describe_pending(pending, sizeof pending, nccl);
    gs_log_warn("leaving a communicator takes long", "rank=%d call=%s seconds=%.0f limit_seconds=%.0f %s",
                nccl->rank, what, LONG_SECONDS, LEAVE_SECONDS, pending);
}

// Whether all had returned by then. The lock is held.
static bool wait_leaving(leaving *all, gs_deadline deadline) {
    while (all->num_left && gs_cond_wait(&all->changed, &all->lock, deadline)) {
    }
    return !all->num_left;
}

static bool start_leaving(leaving *all) {
    for (int i = 0; i < all->nccl->num_lanes; i++) {
        leaving_lane *one = &all->lanes[i];
        *one = (leaving_lane){.all = all, .handle = all->nccl->lanes[i].handle};
        if (!one->handle) continue;
        all->num_left++;
        if (gs_thread_start(&one->thread, "nccl-leave", run_leaving, one).code) return false;
    }
    return true;
}

static void call_with_deadline(gs_nccl_comm *nccl, bool aborts, gs_deadline deadline) {
    leaving *all = calloc(1, sizeof *all);
    const char *what = aborts ? "ncclCommAbort" : "ncclCommDestroy";
    if (!all) {
        give_up(nccl, what);
        return;
    }
    *all = (leaving){.nccl = nccl, .library = nccl->library, .aborts = aborts};
    pthread_mutex_init(&all->lock, NULL);
    gs_cond_init(&all->changed);
    pthread_mutex_lock(&all->lock);
    bool started = start_leaving(all);
    bool done = started && wait_leaving(all, gs_deadline_in_seconds(LONG_SECONDS));
    if (started && !done) {
        say_slow(nccl, what);
        done = wait_leaving(all, deadline);
    }
    pthread_mutex_unlock(&all->lock);
    if (!done) {
        give_up(nccl, what);
        return;  // a thread that hangs in the call still has it
    }
    for (int i = 0; i < nccl->num_lanes; i++) {
        if (all->lanes[i].thread) gs_thread_stop(all->lanes[i].thread);
        if (all->lanes[i].status.code)
            gs_log_warn("leaving a communicator failed", "rank=%d lane=%d error=\"%s\"",
                        nccl->rank, i, all->lanes[i].status.message);
    }
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

// Kernels leave when they see the abort; what was enqueued behind them still runs.
static void drain_stream(gs_nccl_comm *nccl, gs_stream *stream, gs_deadline deadline) {
    bool done = false;
    int polls = 0;
    int64_t sleep_ns = SHORTEST_SLEEP_NS;
    if (!nccl->next_anchor || !stream) return;
    gs_event_record(nccl->next_anchor, stream);
    while (!done) {
        // A device that answers with errors runs nothing any more.
        if (gs_event_query(nccl->next_anchor, &done).code) return;
        if (done) return;
        if (gs_deadline_passed(deadline)) {
            give_up(nccl, "the stream");
            return;
        }
        pause_polling(&polls, &sleep_ns);
    }
}

gs_status gs_nccl_deregister_region(gs_nccl_lane *lane, gs_nccl_region *region, gs_deadline deadline) {
    void *window = region->window, *registration = region->registration;
    region->window = region->registration = NULL;
    if (window) {
        GS_TRY(gs_nccl_deregister_window(lane->comm->library, lane->handle, window));
        GS_TRY(gs_nccl_settle(lane, "ncclCommWindowDeregister", deadline));
    }
    return registration ? gs_nccl_deregister(lane->comm->library, lane->handle, registration) : gs_ok();
}

static gs_status finalize_lane(gs_nccl_lane *lane, gs_deadline deadline) {
    GS_TRY(gs_nccl_deregister_region(lane, &lane->arena, deadline));
    GS_TRY(gs_nccl_deregister_region(lane, &lane->own, deadline));
    GS_TRY(gs_nccl_finalize(lane->comm->library, lane->handle));
    return gs_nccl_settle(lane, "ncclCommFinalize", deadline);
}

static gs_status finalize(gs_nccl_comm *nccl) {
    gs_deadline deadline = gs_deadline_in_seconds(FINALIZE_SECONDS);
    for (int i = nccl->num_lanes - 1; i >= 0; i--)
        GS_TRY(finalize_lane(&nccl->lanes[i], deadline));
    return gs_ok();
}

static bool may_finalize(const gs_nccl_comm *nccl) {
    bool may = all_finished(nccl) && !atomic_load(&nccl->failed);
    for (int i = 0; i < nccl->num_lanes; i++)
        may &= nccl->lanes[i].handle && !nccl->lanes[i].launching;
    return may;
}

void gs_nccl_leave(gs_nccl_comm *nccl) {
    if (!nccl->lanes[0].handle) return;
    gs_deadline deadline = gs_deadline_in_seconds(LEAVE_SECONDS);
    bool clean = may_finalize(nccl) && !finalize(nccl).code;
    call_with_deadline(nccl, !clean, deadline);
    for (int i = 0; i < nccl->num_lanes; i++) {
        gs_nccl_lane *lane = &nccl->lanes[i];
        lane->handle = NULL;
        lane->arena.window = lane->arena.registration = NULL;
        lane->own.window = lane->own.registration = NULL;
        if (!nccl->is_leaked) drain_stream(nccl, lane->stream, deadline);
    }
}
