// Collectives between ranks that share no memory: other containers, other hosts.
//
// Each rank has a connection to every other (mesh.h), and a thread that moves: the owner posts and
// waits, and all else happens there, whether the owner computes or not. How elements travel is
// course.h's.
//
// The first error ends the communicator on all ranks, with one reason: who finds it out tells the
// others. What a peer says arrives in the order it was said, so a rank that came through a
// collective and then left, or died, fails nobody who needs nothing more of it.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/thread.h"
#include "gradsync/comm/backends.h"
#include "gradsync/comm/net/lane.h"
#include "gradsync/comm/net/mesh.h"
#include "gradsync/comm/net/transport.h"
#include "gradsync/comm/waiter.h"

#define MOST_RANKS GS_REDUCE_MAX_INPUTS  // that the kernels add at once
#define SPIN_POLLS 100
#define SPIN_NS (50 * INT64_C(1000))  // the moving thread, after something moved
#define SLEEP_MS 1000
#define FLUSH_MS 1
#define FAREWELL_SECONDS 2.0  // for what was said last to reach the others

typedef struct peer_state {
    bool has_left;  // in peace
    bool is_gone;   // nothing comes any more
    int error;      // why: 0, it closed its connection; else an errno
    gs_net_failure said;
} peer_state;

typedef struct net_comm {
    gs_net_party party;
    gs_net_mesh mesh;
    gs_net_receiver receiver;
    gs_thread *thread;
    gs_futex_event finished_event;  // for the owner
    gs_interrupt interrupt;
    atomic_bool sleeps;  // the moving thread does, or is about to
    atomic_bool abort_asked, failed;
    atomic_bool leaving, left;
    // Of the moving thread:
    int64_t moved_ns;
    bool has_said_bye;
    bool has_heard;
    gs_net_failure heard;  // the first of a peer
    // The moving thread takes it for each of its steps; others to look at what it has, and for:
    pthread_mutex_t lock;
    gs_status asked;        // by abort
    gs_comm_failure told;   // with it
    gs_status failure;      // valid once failed
    gs_comm_failure cause;  // likewise
    gs_comm_failure late;   // of the owner's last wait whose deadline passed
    peer_state *peers;      // by rank
    int num_lanes;
    gs_net_lane lanes[];
} net_comm;

static bool has_failed(const net_comm *net) {
    return atomic_load_explicit(&net->failed, memory_order_acquire);
}

static gs_status tell(net_comm *net, gs_net_kind kind, const void *body, size_t bytes) {
    gs_net_header header = {
        .kind = (uint8_t)kind, .input = (uint16_t)net->party.rank, .bytes = bytes};
    for (int i = 0; i < net->party.world_size; i++) {
        if (i != net->party.rank && !net->peers[i].is_gone)
            GS_TRY(gs_net_transport_send(net->party.transport, i, &header, body, NULL));
    }
    return gs_ok();
}

// The moving thread, under the lock, as all up to run_thread. From here on no buffer of a
// collective is touched.
static void fail_comm(net_comm *net, gs_status status, const gs_comm_failure *cause) {
    if (has_failed(net)) return;
    net->failure = status;
    net->cause = *cause;
    gs_net_transport_abort(net->party.transport);
    gs_net_failure said = {.status = status, .failure = *cause};
    // A rank that has no memory left for the words hangs up, which ends the others too.
    (void)tell(net, GS_NET_FAILURE, &said, sizeof said).code;
    atomic_store_explicit(&net->failed, true, memory_order_release);
}

static void fail_lane(net_comm *net, gs_net_lane *lane, gs_status status) {
    gs_comm_failure cause = lane->cause;
    if (!cause.kind) {
        cause = (gs_comm_failure){.kind = GS_COMM_FAILURE_DEVICE,
                                  .reporter = net->party.rank,
                                  .lane = lane->number,
                                  .sequence = gs_net_lane_finished(lane) + 1,
                                  .bucket = -1};
        gs_comm_failure_accuse(&cause, net->party.rank);
    }
    fail_comm(net, status, &cause);
}

static const char *fate_of(const peer_state *peer, char *text, size_t text_bytes) {
    if (peer->has_left) return "left the communicator";
    if (!peer->error || peer->error == ECONNRESET || peer->error == EPIPE) return "died";
    snprintf(text, text_bytes, "cannot be reached any more: %s", strerror(peer->error));
    return text;
}

// All that are gone and that a collective waits for are accused.
static void check_gone(net_comm *net, gs_net_lane *lane) {
    const gs_net_work *work = gs_net_lane_first(lane);
    int first = -1;
    if (!work) return;
    gs_comm_failure lost = gs_net_work_failure(work, GS_COMM_FAILURE_PEER_LOST);
    for (int i = 0; i < net->party.world_size; i++) {
        if (!net->peers[i].is_gone || !gs_net_work_waits_for(work, i)) continue;
        gs_comm_failure_accuse(&lost, i);
        if (first < 0) first = i;
    }
    if (first < 0) return;
    char name[64], fate[96];
    gs_collective_name(name, sizeof name, work->sequence, &work->collective);
    fail_comm(net,
              gs_error(GS_ABORTED, "%s: rank %d %s", name, first,
                       fate_of(&net->peers[first], fate, sizeof fate)),
              &lost);
}

static gs_status place_message(void *ctx, int peer, const gs_net_header *header, void **body) {
    net_comm *net = ctx;
    gs_status status = gs_ok();
    pthread_mutex_lock(&net->lock);
    if (header->kind == GS_NET_FAILURE && header->bytes == sizeof net->peers[peer].said) {
        *body = &net->peers[peer].said;
    } else if (header->kind >= GS_NET_CLAIM && header->kind <= GS_NET_RESULT &&
               header->lane < net->num_lanes && !has_failed(net)) {
        status = gs_net_lane_place(&net->lanes[header->lane], peer, header, body);
        if (status.code) fail_lane(net, &net->lanes[header->lane], status);
    } else if (header->kind != GS_NET_BYE || header->bytes) {
        gs_comm_failure cause = {
            .kind = GS_COMM_FAILURE_DAMAGED, .reporter = net->party.rank, .bucket = -1};
        gs_comm_failure_accuse(&cause, peer);
        status = gs_error(GS_DATA_LOSS, "rank %d sent what is no message", peer);
        fail_comm(net, status, &cause);
    }
    pthread_mutex_unlock(&net->lock);
    return status;
}

// It counts behind all that came before it.
static void hear_failure(net_comm *net, int peer) {
    if (net->has_heard) return;
    net->has_heard = true;
    net->heard = net->peers[peer].said;
    gs_net_failure_sanitize(&net->heard, net->party.world_size, net->num_lanes);
}

static gs_status take_message(void *ctx, int peer, const gs_net_header *header) {
    net_comm *net = ctx;
    gs_status status = gs_ok();
    pthread_mutex_lock(&net->lock);
    if (header->kind == GS_NET_FAILURE) {
        hear_failure(net, peer);
    } else if (header->kind == GS_NET_BYE) {
        net->peers[peer].has_left = true;
    } else if (!has_failed(net)) {
        status = gs_net_lane_came(&net->lanes[header->lane], peer, header);
        if (status.code) fail_lane(net, &net->lanes[header->lane], status);
    }
    pthread_mutex_unlock(&net->lock);
    return status;
}

static gs_status note_gone(void *ctx, int peer, int error) {
    net_comm *net = ctx;
    pthread_mutex_lock(&net->lock);
    net->peers[peer].is_gone = true;
    net->peers[peer].error = error;
    pthread_mutex_unlock(&net->lock);
    return gs_ok();
}

static bool is_idle(const net_comm *net) {
    for (int i = 0; i < net->num_lanes; i++) {
        if (gs_net_lane_has_work(&net->lanes[i])) return false;
    }
    return true;
}

// What was said last still goes out, so that nobody takes a rank that leaves for one that died.
static void leave(net_comm *net) {
    gs_comm_failure nobody = {.kind = GS_COMM_FAILURE_NONE, .reporter = -1, .bucket = -1};
    if (!net->has_said_bye) {
        net->has_said_bye = true;
        if (!has_failed(net)) {
            if (!is_idle(net)) gs_net_transport_abort(net->party.transport);
            net->failure =
                gs_error(GS_ABORTED, "rank %d has left the communicator", net->party.rank);
            net->cause = nobody;
            atomic_store_explicit(&net->failed, true, memory_order_release);
        }
        (void)tell(net, GS_NET_BYE, NULL, 0).code;
    }
    if (!gs_net_transport_is_flushed(net->party.transport)) return;
    for (int i = 0; i < net->party.world_size; i++)
        gs_net_transport_hang_up(net->party.transport, i);
    atomic_store(&net->left, true);
}

// Everything that can be done without a word from others. True: something was.
//   received  when others were last listened to, something came: there may be more, such as
//   another's end
static bool advance(net_comm *net, bool received) {
    bool moved = false;
    if (atomic_load(&net->abort_asked)) fail_comm(net, net->asked, &net->told);
    for (int i = 0; i < net->num_lanes && !has_failed(net); i++) {
        gs_status status = gs_net_lane_move(&net->lanes[i], &moved);
        if (status.code) fail_lane(net, &net->lanes[i], status);
    }
    if (net->has_heard) fail_comm(net, net->heard.status, &net->heard.failure);
    for (int i = 0; i < net->num_lanes && !has_failed(net) && !moved && !received; i++)
        check_gone(net, &net->lanes[i]);
    if (atomic_load(&net->leaving) && !atomic_load(&net->left)) leave(net);
    return moved;
}

static bool has_orders(const net_comm *net) {
    for (int i = 0; i < net->num_lanes && !has_failed(net); i++) {
        if (gs_net_lane_has_posts(&net->lanes[i])) return true;
    }
    return (atomic_load(&net->abort_asked) && !has_failed(net)) ||
           (atomic_load(&net->leaving) && !net->has_said_bye);
}

// How long to sleep at most. Ranks answer each other within microseconds where they are up to it.
static int choose_timeout(net_comm *net, bool moved) {
    int64_t now_ns = gs_now_ns();
    if (moved) net->moved_ns = now_ns;
    if (moved) return 0;
    if (!has_failed(net) && !is_idle(net) && now_ns - net->moved_ns < SPIN_NS) {
        sched_yield();
        return 0;
    }
    if (net->has_said_bye) return atomic_load(&net->left) ? SLEEP_MS : FLUSH_MS;
    return SLEEP_MS;
}

static void run_thread(void *ctx, const atomic_bool *stopping) {
    net_comm *net = ctx;
    bool received = false;
    while (!atomic_load(stopping)) {
        pthread_mutex_lock(&net->lock);
        uint64_t before = 0, after = 0;
        bool had_failed = has_failed(net), had_left = atomic_load(&net->left);
        for (int i = 0; i < net->num_lanes; i++) before += gs_net_lane_finished(&net->lanes[i]);
        bool moved = advance(net, received) || received;
        for (int i = 0; i < net->num_lanes; i++) after += gs_net_lane_finished(&net->lanes[i]);
        bool tells =
            after != before || has_failed(net) != had_failed || atomic_load(&net->left) != had_left;
        pthread_mutex_unlock(&net->lock);
        if (tells) gs_futex_event_notify(&net->finished_event);
        int timeout_ms = choose_timeout(net, moved);
        if (timeout_ms > 0) {
            atomic_store(&net->sleeps, true);
            if (has_orders(net) || atomic_load(stopping)) timeout_ms = 0;
        }
        bool had_failed_before = has_failed(net);
        gs_status status = gs_net_transport_wait(net->party.transport, timeout_ms, &received);
        atomic_store(&net->sleeps, false);
        pthread_mutex_lock(&net->lock);
        if (status.code) fail_lane(net, &net->lanes[0], status);  // whatever was not said yet
        pthread_mutex_unlock(&net->lock);
        if (has_failed(net) != had_failed_before) gs_futex_event_notify(&net->finished_event);
    }
}

static void wake_thread(net_comm *net) {
    if (atomic_exchange(&net->sleeps, false)) gs_net_transport_wake(net->party.transport);
}

static gs_status failure_of(net_comm *net) {
    pthread_mutex_lock(&net->lock);
    gs_status status = has_failed(net) ? net->failure : net->asked;
    pthread_mutex_unlock(&net->lock);
    return status;
}

static gs_status post_net(void *backend, int lane, uint64_t sequence,
                          const gs_collective *collective) {
    net_comm *net = backend;
    if (has_failed(net) || atomic_load(&net->abort_asked)) return failure_of(net);
    if (!collective) return gs_ok();
    gs_net_lane_post(&net->lanes[lane], sequence, collective);
    wake_thread(net);
    return gs_ok();
}

// Those that did not come; else those of whom something is missing.
static int list_missing(const net_comm *net, const gs_net_work *work, int *missing, bool *arrived) {
    int num_missing = 0;
    *arrived = gs_net_work_is_claimed(work);
    for (int i = 0; i < net->party.world_size; i++) {
        if (i == net->party.rank) continue;
        if (*arrived ? gs_net_work_waits_for(work, i) : !work->sides[i].has_claimed)
            missing[num_missing++] = i;
    }
    return num_missing;
}

// Under the lock.
static gs_status explain_deadline(net_comm *net, gs_net_lane *lane, int64_t waited_ns) {
    const gs_net_work *work = gs_net_lane_first(lane);
    double seconds = gs_seconds_of(waited_ns);
    int missing[MOST_RANKS], num_missing = 0;
    bool arrived = false;
    char name[64], text[128];
    if (!work) {
        uint64_t sequence = gs_net_lane_finished(lane) + 1;
        net->late = (gs_comm_failure){.kind = GS_COMM_FAILURE_TIMEOUT,
                                      .reporter = net->party.rank,
                                      .lane = lane->number,
                                      .sequence = sequence,
                                      .bucket = -1};
        gs_work_name(name, sizeof name, (gs_work){sequence, lane->number});
        return gs_error(GS_DEADLINE_EXCEEDED, "%s: not begun within %.1f s", name, seconds);
    }
    gs_collective_name(name, sizeof name, work->sequence, &work->collective);
    num_missing = list_missing(net, work, missing, &arrived);
    net->late = gs_net_work_failure(work, GS_COMM_FAILURE_TIMEOUT);
    for (int i = 0; i < num_missing; i++) gs_comm_failure_accuse(&net->late, missing[i]);
    if (!num_missing)
        return gs_error(GS_DEADLINE_EXCEEDED, "%s: not finished within %.1f s", name, seconds);
    gs_backends_list_ranks(text, sizeof text, missing, num_missing);
    return gs_error(GS_DEADLINE_EXCEEDED, "%s: %s %s did not %s within %.1f s", name,
                    num_missing == 1 ? "rank" : "ranks", text, arrived ? "finish" : "arrive",
                    seconds);
}

static gs_status say_interrupted(net_comm *net, gs_net_lane *lane) {
    char name[64];
    pthread_mutex_lock(&net->lock);
    const gs_net_work *work = gs_net_lane_first(lane);
    if (work)
        gs_collective_name(name, sizeof name, work->sequence, &work->collective);
    else
        gs_work_name(name, sizeof name, (gs_work){gs_net_lane_finished(lane) + 1, lane->number});
    pthread_mutex_unlock(&net->lock);
    return gs_error(GS_CANCELLED, "%s: the wait was interrupted", name);
}

static gs_status wait_net(void *backend, int number, uint64_t sequence, gs_deadline deadline) {
    net_comm *net = backend;
    gs_net_lane *lane = &net->lanes[number];
    gs_waiter waiter = {.event = &net->finished_event, .spin_polls = SPIN_POLLS};
    if (gs_net_lane_finished(lane) >= sequence) return gs_ok();
    int64_t began_ns = gs_now_ns(), now_ns = began_ns;
    while (now_ns < deadline.at_ns && gs_net_lane_finished(lane) < sequence && !has_failed(net)) {
        if (!gs_waiter_pause(&waiter, deadline)) continue;
        now_ns = gs_now_ns();
        if (!gs_interrupt_check(&net->interrupt, now_ns) || atomic_load(&net->abort_asked))
            continue;
        gs_waiter_reset(&waiter);
        return gs_net_lane_finished(lane) >= sequence ? gs_ok() : say_interrupted(net, lane);
    }
    gs_waiter_reset(&waiter);
    if (gs_net_lane_finished(lane) >= sequence) return gs_ok();
    gs_status status;
    pthread_mutex_lock(&net->lock);
    if (gs_net_lane_finished(lane) >= sequence)
        status = gs_ok();
    else
        status = has_failed(net) ? net->failure : explain_deadline(net, lane, now_ns - began_ns);
    pthread_mutex_unlock(&net->lock);
    return status;
}

// What the owner waited for in vain, unless it came after all; under the lock.
static gs_comm_failure late_of(const net_comm *net) {
    const gs_comm_failure *late = &net->late;
    return late->kind && late->sequence > gs_net_lane_finished(&net->lanes[late->lane])
               ? *late
               : (gs_comm_failure){0};
}

// Who aborts because nobody came says so to the others.
static void abort_net(void *backend, const char *reason) {
    net_comm *net = backend;
    pthread_mutex_lock(&net->lock);
    if (!atomic_load(&net->abort_asked)) {
        net->asked = gs_error(GS_ABORTED, "%s", reason);
        net->told = late_of(net);
        if (!net->told.kind)
            net->told = (gs_comm_failure){
                .kind = GS_COMM_FAILURE_ABORTED, .reporter = net->party.rank, .bucket = -1};
        atomic_store(&net->abort_asked, true);
    }
    pthread_mutex_unlock(&net->lock);
    wake_thread(net);
}

static void explain_net(void *backend, gs_comm_failure *out) {
    net_comm *net = backend;
    pthread_mutex_lock(&net->lock);
    gs_comm_failure late = late_of(net);
    if (late.kind)
        *out = late;
    else if (has_failed(net))
        *out = net->cause;
    else if (atomic_load(&net->abort_asked))
        *out = net->told;
    pthread_mutex_unlock(&net->lock);
}

// Nobody but this rank's thread writes into its memory, so nobody lingers: what is waited for, but
// not for long, is that the others hear its last word.
static gs_status wait_net_ended(void *backend, gs_comm_failure *lingering, gs_deadline deadline) {
    net_comm *net = backend;
    (void)lingering;
    gs_waiter waiter = {.event = &net->finished_event, .spin_polls = SPIN_POLLS};
    deadline = gs_deadline_min(deadline, gs_deadline_in_seconds(FAREWELL_SECONDS));
    atomic_store(&net->leaving, true);
    wake_thread(net);
    while (!atomic_load(&net->left) && !gs_deadline_passed(deadline))
        gs_waiter_pause(&waiter, deadline);
    gs_waiter_reset(&waiter);
    return gs_ok();
}

static uint64_t finished_of_net(const void *backend, int lane) {
    return gs_net_lane_finished(&((const net_comm *)backend)->lanes[lane]);
}

static bool times_of_net(const void *backend, int lane, uint64_t sequence, gs_work_times *times) {
    *times = gs_net_lane_times(&((const net_comm *)backend)->lanes[lane], sequence);
    return true;
}

static const char *algorithm_of_net(const void *backend, const gs_collective *collective) {
    const net_comm *net = backend;
    gs_net_course course = gs_net_course_of(collective, net->party.rank, net->party.world_size);
    if (collective->kind == GS_BARRIER || !collective->count) return "none";
    return course.is_small ? "flat" : "owners";
}

static gs_stream *stream_of_net(const void *backend) {
    (void)backend;
    return NULL;
}

static int events_of_net(void *backend, gs_futex_event **events, int max) {
    if (max > 0) events[0] = &((net_comm *)backend)->finished_event;
    return 1;
}

static bool moves_alone_on_net(const void *backend) {
    (void)backend;
    return true;
}

static void destroy_net(void *backend) {
    net_comm *net = backend;
    if (!net) return;
    if (net->thread && !atomic_load(&net->left))
        (void)wait_net_ended(net, NULL, gs_deadline_in_seconds(FAREWELL_SECONDS)).code;
    if (net->thread) {
        gs_thread_ask_to_stop(net->thread);
        gs_net_transport_wake(net->party.transport);
        gs_thread_stop(net->thread);
    }
    // What was on its way counts in its collective.
    gs_net_transport_destroy(net->party.transport);
    for (int i = 0; i < net->num_lanes; i++) gs_net_lane_close(&net->lanes[i]);
    gs_net_store_release(&net->party.store);
    gs_net_mesh_release(&net->mesh);
    gs_device_close(net->party.device);
    pthread_mutex_destroy(&net->lock);
    free(net->peers);
    free(net);
}

static gs_status start_moving(net_comm *net) {
    net->receiver = (gs_net_receiver){net, place_message, take_message, note_gone};
    GS_TRY(gs_net_transport_create(&net->party.transport, &net->mesh));
    gs_net_transport_receive(net->party.transport, &net->receiver);
    // A device belongs to one thread, so the moving thread has its own.
    GS_TRY(gs_device_open(&net->party.device, "cpu", &(gs_device_options){.num_threads = 1}));
    for (int i = 0; i < net->num_lanes; i++) gs_net_lane_open(&net->lanes[i], &net->party, i);
    return gs_thread_start(&net->thread, "net", run_thread, net);
}

static gs_status check_fit(const gs_comm_options *options) {
    if (!gs_device_is_host(options->device))
        return gs_error(GS_UNAVAILABLE, "net moves memory of the host, not of %s",
                        gs_device_name(options->device));
    if (options->world_size > MOST_RANKS)
        return gs_error(GS_UNAVAILABLE, "net serves at most %d ranks, not %d", MOST_RANKS,
                        options->world_size);
    return gs_ok();
}

static gs_status create_net(void **out, const gs_comm_options *options, gs_stages *stages,
                            char *reason, size_t reason_bytes, gs_deadline deadline) {
    size_t bytes = sizeof(net_comm) + (size_t)options->num_lanes * sizeof(gs_net_lane);
    gs_status status = check_fit(options);
    net_comm *net = status.code ? NULL : gs_alloc_aligned(bytes, _Alignof(net_comm));
    if (!status.code && !net)
        status = gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    if (status.code) {
        snprintf(reason, reason_bytes, "%s", status.message);
        return status;
    }
    net->party = (gs_net_party){.rank = options->rank,
                                .world_size = options->world_size,
                                .generation = options->generation};
    net->num_lanes = options->num_lanes;
    net->interrupt = (gs_interrupt){.ask = options->interrupt, .ctx = options->interrupt_ctx};
    pthread_mutex_init(&net->lock, NULL);
    net->peers = calloc((size_t)options->world_size, sizeof *net->peers);
    if (!net->peers) status = gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    if (!status.code) status = gs_net_mesh_form(&net->mesh, options, stages, deadline);
    if (!status.code) status = start_moving(net);
    if (status.code) {
        snprintf(reason, reason_bytes, "%s", status.message);
        destroy_net(net);
        return status;
    }
    snprintf(reason, reason_bytes, "ranks reach each other over TCP, this one at %s",
             net->mesh.places[options->rank]);
    *out = net;
    return gs_ok();
}

const gs_comm_backend gs_comm_net = {.name = "net",
                                     .wire = GS_WIRE_NONE,
                                     .create = create_net,
                                     .post = post_net,
                                     .wait = wait_net,
                                     .abort = abort_net,
                                     .wait_ended = wait_net_ended,
                                     .destroy = destroy_net,
                                     .finished = finished_of_net,
                                     .times = times_of_net,
                                     .algorithm = algorithm_of_net,
                                     .stream = stream_of_net,
                                     .explain = explain_net,
                                     .events = events_of_net,
                                     .moves_alone = moves_alone_on_net};
