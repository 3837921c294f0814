// Collectives between ranks that share no memory: other containers, other hosts.
//
// Each rank has a connection to every other (mesh.h), and a thread that moves (mover.h): the owner
// posts and waits, and all else happens there, whether the owner computes or not. How elements
// travel is course.h's.
//
// The first error ends the communicator on all ranks, with one reason: who finds it out tells the
// others. What a peer says arrives in the order it was said, so a rank that came through a
// collective and then left, or died, fails nobody who needs nothing more of it.
#include "gradsync/comm/net/net.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/digest.h"
#include "gradsync/comm/backends.h"
#include "gradsync/comm/net/mover.h"
#include "gradsync/comm/waiter.h"

#define SPIN_POLLS 100
#define FAREWELL_SECONDS 2.0  // for what was said last to reach the others

_Static_assert(GS_NET_MOST_RANKS <= GS_REDUCE_MAX_INPUTS, "as many as the kernels add at once");

typedef struct net_comm {
    int rank, world_size, num_lanes;
    gs_net_mesh mesh;
    gs_net_mover *mover;
    gs_net_shares *shares;  // owned: all that were ever said, the last one first
    gs_interrupt interrupt;
    pthread_mutex_t lock;
    gs_comm_failure late;  // of the owner's last wait whose deadline passed; under the lock
} net_comm;

static uint64_t finished_in(const net_comm *net, int lane) {
    return gs_net_lane_finished(gs_net_mover_lane(net->mover, lane));
}

static gs_status post_net(void *backend, int lane, uint64_t sequence,
                          const gs_collective *collective) {
    net_comm *net = backend;
    gs_net_end end;
    if (gs_net_mover_end_asked(net->mover) || gs_net_mover_has_ended(net->mover)) {
        gs_net_mover_end(net->mover, &end);
        return end.status;
    }
    if (collective) gs_net_mover_post(net->mover, lane, sequence, collective);
    return gs_ok();
}

// What is waited for: its name, and what is known of it where the moving thread had begun it.
static gs_comm_failure name_first(net_comm *net, int lane, gs_net_standing *standing, char *name,
                                  size_t name_bytes) {
    uint64_t sequence = finished_in(net, lane) + 1;
    *standing = gs_net_mover_standing(net->mover, lane);
    gs_comm_failure failure = {.kind = GS_COMM_FAILURE_TIMEOUT,
                               .reporter = net->rank,
                               .lane = lane,
                               .sequence = sequence,
                               .bucket = -1};
    if (standing->sequence != sequence) {
        *standing = (gs_net_standing){0};
        gs_work_name(name, name_bytes, (gs_work){sequence, lane});
        return failure;
    }
    gs_collective_name(name, name_bytes, sequence, &standing->collective);
    failure.step = standing->collective.step;
    failure.bucket = standing->collective.bucket;
    return failure;
}

static gs_status explain_deadline(net_comm *net, int lane, int64_t waited_ns) {
    gs_net_standing standing;
    int missing[GS_NET_MOST_RANKS], num_missing = 0;
    double seconds = gs_seconds_of(waited_ns);
    char name[64], text[128];
    gs_comm_failure late = name_first(net, lane, &standing, name, sizeof name);
    for (int i = 0; i < net->world_size; i++) {
        if (!(standing.blamed & gs_net_rank_bit(i))) continue;
        gs_comm_failure_accuse(&late, i);
        missing[num_missing++] = i;
    }
    pthread_mutex_lock(&net->lock);
    net->late = late;
    pthread_mutex_unlock(&net->lock);
    if (!num_missing)
        return gs_error(GS_DEADLINE_EXCEEDED, "%s: not %s within %.1f s", name,
                        standing.sequence ? "finished" : "begun", seconds);
    gs_backends_list_ranks(text, sizeof text, missing, num_missing);
    return gs_error(GS_DEADLINE_EXCEEDED, "%s: %s %s did not %s within %.1f s", name,
                    num_missing == 1 ? "rank" : "ranks", text,
                    standing.has_arrived ? "finish" : "arrive", seconds);
}

static gs_status say_interrupted(net_comm *net, int lane) {
    gs_net_standing standing;
    char name[64];
    (void)name_first(net, lane, &standing, name, sizeof name);
    return gs_error(GS_CANCELLED, "%s: the wait was interrupted", name);
}

static gs_status wait_net(void *backend, int lane, uint64_t sequence, gs_deadline deadline) {
    net_comm *net = backend;
    gs_net_end end;
    gs_waiter waiter = {.event = gs_net_mover_event(net->mover), .spin_polls = SPIN_POLLS};
    if (finished_in(net, lane) >= sequence) return gs_ok();
    int64_t began_ns = gs_now_ns(), now_ns = began_ns;
    while (now_ns < deadline.at_ns && finished_in(net, lane) < sequence &&
           !gs_net_mover_has_ended(net->mover)) {
        if (!gs_waiter_pause(&waiter, deadline)) continue;
        now_ns = gs_now_ns();
        if (!gs_interrupt_check(&net->interrupt, now_ns) || gs_net_mover_end_asked(net->mover))
            continue;
        gs_waiter_reset(&waiter);
        return finished_in(net, lane) >= sequence ? gs_ok() : say_interrupted(net, lane);
    }
    gs_waiter_reset(&waiter);
    bool has_ended = gs_net_mover_has_ended(net->mover);
    if (finished_in(net, lane) >= sequence) return gs_ok();
    if (!has_ended) return explain_deadline(net, lane, now_ns - began_ns);
    gs_net_mover_end(net->mover, &end);
    return end.status;
}

// What the owner waited for in vain, unless it came after all.
static gs_comm_failure late_of(net_comm *net) {
    pthread_mutex_lock(&net->lock);
    gs_comm_failure late = net->late;
    pthread_mutex_unlock(&net->lock);
    bool is_late = late.kind && late.sequence > finished_in(net, late.lane);
    return is_late ? late : (gs_comm_failure){0};
}

void gs_net_abort_because(void *backend, gs_status status, const gs_comm_failure *failure) {
    net_comm *net = backend;
    gs_net_mover_ask_end(net->mover, &(gs_net_end){status, *failure});
}

// Who aborts because nobody came says so to the others.
static void abort_net(void *backend, const char *reason) {
    net_comm *net = backend;
    gs_comm_failure told = late_of(net);
    if (!told.kind)
        told =
            (gs_comm_failure){.kind = GS_COMM_FAILURE_ABORTED, .reporter = net->rank, .bucket = -1};
    gs_net_abort_because(net, gs_error(GS_ABORTED, "%s", reason), &told);
}

static void explain_net(void *backend, gs_comm_failure *out) {
    net_comm *net = backend;
    gs_net_end end;
    gs_comm_failure late = late_of(net);
    if (late.kind)
        *out = late;
    else if (gs_net_mover_end(net->mover, &end))
        *out = end.failure;
}

// Nobody but this rank's thread writes into its memory, so nobody lingers: what is waited for, but
// not for long, is that the others hear its last word.
static gs_status wait_net_ended(void *backend, gs_comm_failure *lingering, gs_deadline deadline) {
    net_comm *net = backend;
    (void)lingering;
    gs_waiter waiter = {.event = gs_net_mover_event(net->mover), .spin_polls = SPIN_POLLS};
    deadline = gs_deadline_min(deadline, gs_deadline_in_seconds(FAREWELL_SECONDS));
    gs_net_mover_leave(net->mover);
    while (!gs_net_mover_has_left(net->mover) && !gs_deadline_passed(deadline))
        gs_waiter_pause(&waiter, deadline);
    gs_waiter_reset(&waiter);
    return gs_ok();
}

void gs_net_say_here(void *backend, int lane, uint64_t sequence, uint32_t word) {
    gs_net_presence here = {.sequence = sequence, .word = word};
    gs_net_mover_say_here(((net_comm *)backend)->mover, lane, here);
}

gs_net_presence gs_net_was_here(const void *backend, int rank, int lane) {
    return gs_net_mover_was_here(((const net_comm *)backend)->mover, rank, lane);
}

static gs_net_shares *make_shares(const uint16_t *shares, int world_size) {
    gs_net_shares *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    for (int i = 0; i < world_size; i++) made->before[i + 1] = made->before[i] + shares[i];
    uint64_t digest = gs_hash64(shares, (size_t)world_size * sizeof *shares, 0);
    made->digest = (uint16_t)(digest % UINT16_MAX + 1);
    return made;
}

static bool are_shares(const gs_net_shares *known, const uint16_t *shares, int world_size) {
    for (int i = 0; i < world_size; i++)
        if (known->before[i + 1] - known->before[i] != shares[i]) return false;
    return true;
}

// Collectives that were posted may still go by earlier ones, so none is forgotten: there are few.
gs_status gs_net_share(void *backend, const uint16_t *shares) {
    net_comm *net = backend;
    const gs_net_shares *known = net->shares;
    bool is_even = true;
    for (int i = 0; i < net->world_size; i++) is_even &= shares[i] == shares[0];
    while (known && !are_shares(known, shares, net->world_size)) known = known->next;
    if (!is_even && !known) {
        gs_net_shares *made = make_shares(shares, net->world_size);
        if (!made) return gs_error(GS_RESOURCE_EXHAUSTED, "shares of ranks: out of memory");
        made->next = net->shares;
        known = net->shares = made;
    }
    gs_net_mover_share(net->mover, is_even ? NULL : known);
    return gs_ok();
}

static bool peer_link_of_net(const void *backend, int peer, gs_comm_link *out) {
    const net_comm *net = backend;
    if (peer < 0 || peer >= net->world_size || peer == net->rank) return false;
    gs_net_mover_link(net->mover, peer, out);
    return true;
}

static uint64_t finished_of_net(const void *backend, int lane) {
    return finished_in(backend, lane);
}

static bool times_of_net(const void *backend, int lane, uint64_t sequence, gs_work_times *times) {
    *times =
        gs_net_lane_times(gs_net_mover_lane(((const net_comm *)backend)->mover, lane), sequence);
    return true;
}

static const char *algorithm_of_net(const void *backend, const gs_collective *collective) {
    const net_comm *net = backend;
    gs_net_course course = gs_net_course_of(collective, net->rank, net->world_size);
    if (collective->kind == GS_BARRIER || !collective->count) return "none";
    return course.is_small ? "flat" : "owners";
}

static gs_stream *stream_of_net(const void *backend) {
    (void)backend;
    return NULL;
}

static int events_of_net(void *backend, gs_futex_event **events, int max) {
    if (max > 0) events[0] = gs_net_mover_event(((net_comm *)backend)->mover);
    return 1;
}

static bool moves_alone_on_net(const void *backend) {
    (void)backend;
    return true;
}

static void destroy_net(void *backend) {
    net_comm *net = backend;
    if (!net) return;
    if (net->mover && !gs_net_mover_has_left(net->mover))
        (void)wait_net_ended(net, NULL, gs_deadline_in_seconds(FAREWELL_SECONDS)).code;
    gs_net_mover_stop(net->mover);
    gs_net_mesh_release(&net->mesh);
    while (net->shares) {
        gs_net_shares *next = net->shares->next;
        free(net->shares);
        net->shares = next;
    }
    pthread_mutex_destroy(&net->lock);
    free(net);
}

static gs_status check_fit(const gs_comm_options *options) {
    if (!gs_device_is_host(options->device))
        return gs_error(GS_UNAVAILABLE, "net moves memory of the host, not of %s",
                        gs_device_name(options->device));
    if (options->world_size > GS_NET_MOST_RANKS)
        return gs_error(GS_UNAVAILABLE, "net serves at most %d ranks, not %d", GS_NET_MOST_RANKS,
                        options->world_size);
    return gs_ok();
}

static gs_status create_net(void **out, const gs_comm_options *options, gs_stages *stages,
                            char *reason, size_t reason_bytes, gs_deadline deadline) {
    gs_status status = check_fit(options);
    net_comm *net = status.code ? NULL : calloc(1, sizeof *net);
    if (!status.code && !net)
        status = gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    if (status.code) {
        snprintf(reason, reason_bytes, "%s", status.message);
        return status;
    }
    net->rank = options->rank;
    net->world_size = options->world_size;
    net->num_lanes = options->num_lanes;
    net->interrupt = (gs_interrupt){.ask = options->interrupt, .ctx = options->interrupt_ctx};
    pthread_mutex_init(&net->lock, NULL);
    status = gs_net_mesh_form(&net->mesh, options, stages, deadline);
    if (!status.code)
        status = gs_net_mover_start(&net->mover, &net->mesh, net->rank, net->num_lanes,
                                    options->generation);
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

const gs_backend_facts gs_comm_net_facts = {.backend = &gs_comm_net, .peer_link = peer_link_of_net, .share = gs_net_share};
