// Waiting that never hands itself over: to the library, the driver, or a rank that does not come. And the
// way out: whatever may never return runs on a thread that this one does not wait for longer than 5 s.
#include <stdio.h>
#include <stdlib.h>

#include "core/log.h"
#include "core/thread.h"
#include "gradsync/comm/comm.h"
#include "gradsync/comm/nccl/state.h"

#define SPIN_POLLS 200
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

gs_status gs_nccl_settle(gs_nccl_comm *nccl, const char *call, gs_deadline deadline) {
    int64_t began_ns = gs_now_ns(), sleep_ns = SHORTEST_SLEEP_NS;
    int polls = 0;
    bool in_progress = true;
    for (;;) {
        GS_TRY(gs_nccl_query(nccl->library, nccl->handle, &in_progress));
        if (!in_progress) return gs_ok();
        GS_TRY(gs_nccl_check(nccl));
        if (gs_deadline_passed(deadline))
            return gs_error(GS_DEADLINE_EXCEEDED,
                            "%s did not end within %.1f s; NCCL does not say which rank is missing",
                            call,
                            (double)(gs_now_ns() - began_ns) / (double)GS_NS_PER_SEC);
        pause_polling(&polls, &sleep_ns);
    }
}

static uint64_t finished_of(const gs_nccl_comm *nccl) {
    return atomic_load_explicit(&nccl->finished, memory_order_acquire);
}

static gs_comm_failure failure_of(gs_nccl_comm *nccl, gs_comm_failure_kind kind) {
    uint64_t sequence = finished_of(nccl) + 1;
    gs_comm_failure failure = {.kind = kind, .reporter = nccl->rank, .bucket = -1};
    if (sequence > nccl->posted) return failure;
    const gs_collective *collective = &gs_nccl_work_of(nccl, sequence)->collective;
    failure.lane = collective->lane;
    failure.sequence = sequence;
    failure.step = collective->step;
    failure.bucket = collective->bucket;
    return failure;
}

gs_comm_failure gs_nccl_cause_of(gs_nccl_comm *nccl, gs_code code) {
    if (code == GS_ABORTED || code == GS_UNAVAILABLE)
        return failure_of(nccl, GS_COMM_FAILURE_PEER_LOST);
    if (code == GS_FAILED_PRECONDITION) return failure_of(nccl, GS_COMM_FAILURE_MISMATCH);
    gs_comm_failure failure = failure_of(nccl, GS_COMM_FAILURE_DEVICE);
    gs_comm_failure_accuse(&failure, nccl->rank);
    return failure;
}

// What can be known here: whether the own input was there. Who is missing the library does not say.
static gs_status explain_deadline(gs_nccl_comm *nccl, int64_t waited_ns) {
    uint64_t sequence = finished_of(nccl) + 1;
    gs_nccl_work *work = gs_nccl_work_of(nccl, sequence);
    double seconds = (double)waited_ns / (double)GS_NS_PER_SEC;
    bool ready = true;
    char name[64];
    gs_collective_name(name, sizeof name, sequence, &work->collective);
    if (work->follows) GS_TRY(gs_event_query(work->ready, &ready));
    nccl->late = failure_of(nccl, GS_COMM_FAILURE_TIMEOUT);
    if (!ready) gs_comm_failure_accuse(&nccl->late, nccl->rank);
    if (!ready)
        return gs_error(GS_DEADLINE_EXCEEDED,
                        "%s: rank %d itself had no input for it within %.1f s: work before it on the "
                        "device is not done",
                        name, nccl->rank, seconds);
    return gs_error(GS_DEADLINE_EXCEEDED,
                    "%s: not finished within %.1f s; rank %d has %s it; NCCL does not say which rank "
                    "did not arrive",
                    name, seconds, nccl->rank, work->num_launched ? "started" : "not started");
}

// The library may know of an error while its kernels go on waiting.
static gs_status look_behind(gs_nccl_comm *nccl) {
    bool in_progress;
    return gs_nccl_query(nccl->library, nccl->handle, &in_progress);
}

// The failure of the collective that is waited for, with its name before it.
static gs_status name_failure(gs_nccl_comm *nccl, gs_status status) {
    uint64_t sequence = finished_of(nccl) + 1;
    char name[64];
    if (sequence > nccl->posted) return gs_status_prefix(status, "rank %d", nccl->rank);
    gs_collective_name(name, sizeof name, sequence, &gs_nccl_work_of(nccl, sequence)->collective);
    return gs_status_prefix(status, "%s: rank %d", name, nccl->rank);
}

static gs_status wait_once(gs_nccl_comm *nccl, bool looks) {
    gs_status status = gs_nccl_failure(nccl);
    if (status.code) return status;
    status = gs_nccl_advance(nccl);
    if (!status.code && looks) status = look_behind(nccl);
    if (!status.code) return status;
    gs_comm_failure cause = gs_nccl_cause_of(nccl, status.code);
    gs_nccl_fail(nccl, name_failure(nccl, status), &cause);
    return gs_nccl_failure(nccl);
}

gs_status gs_nccl_wait(gs_nccl_comm *nccl, uint64_t sequence, gs_deadline deadline) {
    int64_t began_ns = gs_now_ns(), sleep_ns = SHORTEST_SLEEP_NS;
    int polls = 0;
    for (;;) {
        if (finished_of(nccl) >= sequence) break;
        gs_status status = wait_once(nccl, polls % 16 == 15 || polls >= SPIN_POLLS);
        if (status.code) {
            gs_nccl_leave(nccl);
            return status;
        }
        if (finished_of(nccl) >= sequence) break;
        if (gs_deadline_passed(deadline)) return explain_deadline(nccl, gs_now_ns() - began_ns);
        if (polls >= SPIN_POLLS && gs_interrupt_check(&nccl->interrupt, gs_now_ns()))
            return gs_error(GS_CANCELLED, "collective %llu: the wait was interrupted",
                            (unsigned long long)sequence);
        pause_polling(&polls, &sleep_ns);
    }
    // All that was enqueued on it lies before a collective that is finished.
    return nccl->posted == sequence ? gs_stream_wait(nccl->entry, deadline) : gs_ok();
}

// The call that leaves, on a thread of its own.
typedef struct leaving {
    gs_nccl_comm *nccl;  // for tools that look for leaks: what hangs in the call has it all
    const gs_nccl_library *library;
    gs_nccl_handle *handle;
    bool aborts;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    gs_status status;
} leaving;

static void run_leaving(void *ctx, const atomic_bool *stopping) {
    leaving *one = ctx;
    (void)stopping;
    gs_status status = one->aborts ? gs_nccl_abort(one->library, one->handle)
                                   : gs_nccl_destroy(one->library, one->handle);
    pthread_mutex_lock(&one->lock);
    one->status = status;
    one->done = true;
    pthread_cond_signal(&one->changed);
    pthread_mutex_unlock(&one->lock);
}

// The oldest collective that is not finished, for the log: what this rank hangs in.
static void describe_pending(char *text, size_t text_bytes, gs_nccl_comm *nccl) {
    uint64_t sequence = finished_of(nccl) + 1;
    if (sequence > nccl->posted) {
        snprintf(text, text_bytes, "pending=0");
        return;
    }
    const gs_nccl_work *work = gs_nccl_work_of(nccl, sequence);
    snprintf(text, text_bytes,
             "pending=%llu sequence=%llu kind=%s step=%lld bucket=%d count=%zu started=%s",
             (unsigned long long)(nccl->posted - finished_of(nccl)), (unsigned long long)sequence,
             gs_collective_kind_name(work->collective.kind), (long long)work->collective.step,
             work->collective.bucket, work->collective.count, work->num_launched ? "yes" : "no");
}

// Kernels that never end hold memory, connections and the device: only the end of the process frees
// them, and that is the host's to decide.
static void give_up(gs_nccl_comm *nccl, const char *what) {
    char pending[160], reason[96];
    describe_pending(pending, sizeof pending, nccl);
    gs_log_error("a communicator cannot be left", "rank=%d call=%s seconds=%.0f %s", nccl->rank,
                 what, LEAVE_SECONDS, pending);
    nccl->is_leaked = true;
    snprintf(reason, sizeof reason, "rank %d: %s did not end within %.0f s", nccl->rank, what,
             LEAVE_SECONDS);
    if (nccl->abort_hung) nccl->abort_hung(nccl->abort_hung_ctx, reason);
}

static void say_slow(gs_nccl_comm *nccl, const char *what) {
    char pending[160];
    describe_pending(pending, sizeof pending, nccl);
    gs_log_warn("leaving a communicator takes long", "rank=%d call=%s seconds=%.0f limit_seconds=%.0f %s",
                nccl->rank, what, LONG_SECONDS, LEAVE_SECONDS, pending);
}

// Whether it was done by then. The lock is held.
static bool wait_leaving(leaving *one, gs_deadline deadline) {
    while (!one->done && gs_cond_wait(&one->changed, &one->lock, deadline)) {
    }
    return one->done;
}

static void call_with_deadline(gs_nccl_comm *nccl, bool aborts, gs_deadline deadline) {
    gs_thread *thread = NULL;
    const char *what = aborts ? "ncclCommAbort" : "ncclCommDestroy";
    leaving *one = calloc(1, sizeof *one);
    if (!one) {
        give_up(nccl, what);
        return;
    }
    *one =
        (leaving){.nccl = nccl, .library = nccl->library, .handle = nccl->handle, .aborts = aborts};
    pthread_mutex_init(&one->lock, NULL);
    gs_cond_init(&one->changed);
    bool done = false;
    if (!gs_thread_start(&thread, "nccl-leave", run_leaving, one).code) {
        pthread_mutex_lock(&one->lock);
        done = wait_leaving(one, gs_deadline_in_seconds(LONG_SECONDS));
        if (!done) {
            say_slow(nccl, what);
            done = wait_leaving(one, deadline);
        }
        pthread_mutex_unlock(&one->lock);
    }
    if (!done) {
        give_up(nccl, what);
        return;  // a thread that hangs in the call still has it
    }
    gs_thread_stop(thread);
    if (one->status.code)
        gs_log_warn("leaving a communicator failed", "rank=%d error=\"%s\"", nccl->rank,
                    one->status.message);
    pthread_cond_destroy(&one->changed);
    pthread_mutex_destroy(&one->lock);
    free(one);
}

// Kernels leave when they see the abort; what was enqueued behind them still runs.
static void drain_stream(gs_nccl_comm *nccl, gs_deadline deadline) {
    bool done = false;
    int polls = 0;
    int64_t sleep_ns = SHORTEST_SLEEP_NS;
    if (!nccl->next_anchor) return;
    gs_event_record(nccl->next_anchor, nccl->stream);
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

static gs_status finalize(gs_nccl_comm *nccl) {
    gs_deadline deadline = gs_deadline_in_seconds(FINALIZE_SECONDS);
    if (nccl->window) {
        GS_TRY(gs_nccl_deregister_window(nccl->library, nccl->handle, nccl->window));
        GS_TRY(gs_nccl_settle(nccl, "ncclCommWindowDeregister", deadline));
    }
    if (nccl->registration)
        GS_TRY(gs_nccl_deregister(nccl->library, nccl->handle, nccl->registration));
    nccl->window = nccl->registration = NULL;
    GS_TRY(gs_nccl_finalize(nccl->library, nccl->handle));
    return gs_nccl_settle(nccl, "ncclCommFinalize", deadline);
}

void gs_nccl_leave(gs_nccl_comm *nccl) {
    if (!nccl->handle) return;
    gs_deadline deadline = gs_deadline_in_seconds(LEAVE_SECONDS);
    bool is_idle = finished_of(nccl) == nccl->posted && !nccl->launching;
    bool clean = is_idle && !atomic_load(&nccl->failed) && !finalize(nccl).code;
    call_with_deadline(nccl, !clean, deadline);
    nccl->handle = NULL;
    nccl->window = nccl->registration = NULL;
    if (!nccl->is_leaked) drain_stream(nccl, deadline);
}
