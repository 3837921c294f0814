// Two levels for hosts with several ranks each: shared memory inside a host, the network between.
//
// It is made of other backends (level.h): one of shared memory for each host, one net for each
// column across the hosts, and one net of all ranks, which carries what two levels are no gain for,
// and every failure. How elements travel is lane.h's.
//
// Whoever waits here moves; while the owner computes, a thread does. The first error ends all
// levels on all ranks, with one reason: what ends one of them alone names nobody outside of it, so
// it is told on the net of all, and who hears of an end elsewhere looks there for why.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/thread.h"
#include "gradsync/comm/backends.h"
#include "gradsync/comm/hosts/causes.h"
#include "gradsync/comm/hosts/founding.h"
#include "gradsync/comm/hosts/lane.h"
#include "gradsync/comm/hosts/roll.h"
#include "gradsync/comm/net/net.h"
#include "gradsync/comm/waiter.h"

#define SPIN_POLLS 50
#define IDLE_NS GS_NS_PER_SEC
#define GRACE_NS (5 * GS_NS_PER_SEC)  // between the end of a level and word of why, on a busy machine
#define STILLNESS_SECONDS 10.0
#define FAREWELL_SECONDS 2.0
#define WORD_NS (20 * GS_NS_PER_MS)  // that a call waits for who moves, behind its own deadline at most once
#define TRY_NS (100 * INT64_C(1000))
#define MOST_EVENTS 4

typedef struct hosts_shares {
    struct hosts_shares *next;
    uint16_t of[GS_HOSTS_MOST_RANKS];  // by rank
} hosts_shares;

typedef struct hosts_comm {
    gs_hosts_party party;
    gs_hosts_founding founding;  // of party
    gs_device *device, *thread_device;
    gs_thread *thread;
    bool has_thread;                // else the owner moves; from create to destroy
    gs_futex_event orders;          // for the thread
    gs_futex_event finished_event;  // for who waits while the thread moves
    gs_interrupt interrupt;
    atomic_bool owner_moves;  // it waits: the thread stands by
    atomic_bool failed, abort_asked;
    pthread_mutex_t lock;  // of who moves
    gs_status failure;     // valid once failed
    gs_comm_failure cause;
    int64_t ended_ns;      // a level was ended by somebody, who says why on the net of all; 0: none was
    gs_status ended;
    pthread_mutex_t words_lock;
    gs_status asked;       // by abort
    gs_comm_failure told;  // with it
    gs_comm_failure late;  // of the owner's last wait whose deadline passed
    gs_hosts_roll roll;
    gs_hosts_causes causes;
    hosts_shares *shares;    // owned: all that were ever said, which collectives may still go by
    const uint16_t *shared;  // the owner's: of what is posted from here on; NULL: equal ones
    int num_lanes;
    gs_hosts_lane lanes[];
} hosts_comm;

static bool has_failed(const hosts_comm *hosts) {
    return atomic_load_explicit(&hosts->failed, memory_order_acquire);
}

static void end_levels(hosts_comm *hosts, gs_status status, const gs_comm_failure *cause) {
    // In this order: who sees the end of another level finds the cause on its way.
    if (hosts->party.all.backend)
        gs_net_abort_because(hosts->party.all.state, status, cause);
    gs_hosts_level_abort(&hosts->party.column, status.message);
    gs_hosts_level_abort(&hosts->party.host, status.message);
}

// Who moves, as all up to run_thread. No buffer of a collective is touched by it any more.
static void fail_comm(hosts_comm *hosts, gs_status status, const gs_comm_failure *cause) {
    if (has_failed(hosts)) return;
    hosts->failure = status;
    hosts->cause = *cause;
    end_levels(hosts, status, cause);
    atomic_store_explicit(&hosts->failed, true, memory_order_release);
    gs_futex_event_notify(&hosts->finished_event);
}

static void note_end(hosts_comm *hosts, gs_hosts_level *level, gs_status status) {
    gs_comm_failure cause = {.kind = GS_COMM_FAILURE_DEVICE,
                             .reporter = hosts->party.rank,
                             .bucket = -1};
    if (!level || !level->backend) {
        gs_comm_failure_accuse(&cause, hosts->party.rank);
        fail_comm(hosts, status, &cause);
        return;
    }
    gs_hosts_level_explain(level, &cause);
    bool says_why = cause.kind && cause.kind != GS_COMM_FAILURE_ABORTED;
    if (!says_why && level != &hosts->party.all) {
        if (!hosts->ended_ns) hosts->ended_ns = gs_now_ns(), hosts->ended = status;
        return;
    }
    status = gs_hosts_causes_relate(&hosts->causes, level, status, &cause);
    fail_comm(hosts, status, &cause);
}

static void look_for_why(hosts_comm *hosts) {
    if (gs_now_ns() - hosts->ended_ns < GRACE_NS) return;
    gs_comm_failure nobody = {.kind = GS_COMM_FAILURE_ABORTED, .reporter = -1, .bucket = -1};
    fail_comm(hosts, hosts->ended, &nobody);
}

static void progress_levels(hosts_comm *hosts) {
    gs_hosts_level *levels[] = {&hosts->party.all, &hosts->party.host, &hosts->party.column};
    for (int i = 0; i < 3 && !has_failed(hosts); i++) {
        if (i > 0 && hosts->ended_ns) break;
        gs_status status = gs_hosts_level_progress(levels[i]);
        if (status.code) note_end(hosts, levels[i], status);
    }
    if (hosts->ended_ns && !has_failed(hosts)) look_for_why(hosts);
}

static void see_abort(hosts_comm *hosts) {
    pthread_mutex_lock(&hosts->words_lock);
    gs_status asked = hosts->asked;
    gs_comm_failure told = hosts->told;
    pthread_mutex_unlock(&hosts->words_lock);
    fail_comm(hosts, asked, &told);
}

// Everything that can be done now. True: something was.
static bool advance(hosts_comm *hosts, gs_device *device) {
    bool any = false, moved = true;
    while (moved && !has_failed(hosts)) {
        moved = false;
        if (atomic_load(&hosts->abort_asked)) see_abort(hosts);
        progress_levels(hosts);
        for (int i = 0; i < hosts->num_lanes && !has_failed(hosts) && !hosts->ended_ns; i++) {
            gs_hosts_level *at = NULL;
            gs_status status = gs_hosts_lane_move(&hosts->lanes[i], device, &moved, &at);
            if (status.code) note_end(hosts, at, status);
        }
        any |= moved;
    }
    return any;
}

static bool is_idle(const hosts_comm *hosts) {
    for (int i = 0; i < hosts->num_lanes; i++)
        if (gs_hosts_lane_has_work(&hosts->lanes[i])) return false;
    return true;
}

static void call_roll(hosts_comm *hosts) {
    int64_t now_ns = gs_now_ns();
    for (int i = 0; i < hosts->num_lanes && !has_failed(hosts); i++) {
        gs_comm_failure cause;
        gs_status status =
            gs_hosts_roll_call(&hosts->roll, &hosts->party, &hosts->lanes[i], now_ns, &cause);
        if (status.code) fail_comm(hosts, status, &cause);
    }
}

static int add_event(gs_hosts_level *level, gs_futex_event **events, int count) {
    gs_futex_event *event = NULL;
    if (!level || !level->backend || level->backend->events(level->state, &event, 1) < 1)
        return count;
    for (int i = 0; i < count; i++)
        if (events[i] == event) return count;
    events[count] = event;
    return count + 1;
}

// What the first of each lane waits for.
static int list_events(hosts_comm *hosts, gs_futex_event **events) {
    int count = 0, inner;
    uint64_t sequence;
    for (int i = 0; i < hosts->num_lanes && !has_failed(hosts); i++)
        count = add_event(gs_hosts_lane_awaited(&hosts->lanes[i], &inner, &sequence), events, count);
    return count;
}

// False: by then somebody else still moved. He may be held up, in a long sum or in a kernel that does not answer.
static bool take_moving(hosts_comm *hosts, gs_deadline deadline) {
    for (int i = 0; pthread_mutex_trylock(&hosts->lock); i++) {
        if (gs_deadline_passed(deadline)) return false;
        // The thread steps aside as soon as it sees that the owner waits.
        if (i < SPIN_POLLS)
            sched_yield();
        else
            gs_sleep_ns(TRY_NS);
    }
    return true;
}

// Under the lock.
static void list_awaited(hosts_comm *hosts, gs_waiter *waiter, gs_futex_event **events) {
    if (waiter->armed || waiter->polls) return;
    waiter->num_events = list_events(hosts, events);
    waiter->events = events;
}

// The thread: until something may have moved, or for a while.
static bool pause_moving(hosts_comm *hosts, gs_waiter *waiter, gs_futex_event **events,
                         gs_deadline deadline) {
    pthread_mutex_lock(&hosts->lock);
    list_awaited(hosts, waiter, events);
    pthread_mutex_unlock(&hosts->lock);
    return gs_waiter_pause(waiter, deadline);
}

static void move_beside_owner(hosts_comm *hosts, const atomic_bool *stopping) {
    gs_futex_event *events[MOST_EVENTS];
    gs_waiter waiter = {.spin_polls = 1};
    gs_deadline never = gs_deadline_in_ns(GS_DEADLINE_MAX_NS);
    while (!atomic_load(stopping) && !atomic_load(&hosts->owner_moves) && !is_idle(hosts) &&
           !has_failed(hosts)) {
        pthread_mutex_lock(&hosts->lock);
        bool moved = advance(hosts, hosts->thread_device);
        pthread_mutex_unlock(&hosts->lock);
        if (moved) {
            gs_futex_event_notify(&hosts->finished_event);
            gs_waiter_reset(&waiter);
        } else if (pause_moving(hosts, &waiter, events, never)) {
            pthread_mutex_lock(&hosts->lock);
            call_roll(hosts);
            pthread_mutex_unlock(&hosts->lock);
        }
    }
    gs_waiter_reset(&waiter);
}

static void run_thread(void *ctx, const atomic_bool *stopping) {
    hosts_comm *hosts = ctx;
    gs_waiter waiter = {.event = &hosts->orders, .spin_polls = 1, .sleep_ns = IDLE_NS};
    gs_deadline never = gs_deadline_in_ns(GS_DEADLINE_MAX_NS);
    while (!atomic_load(stopping)) {
        if (is_idle(hosts) || has_failed(hosts) || atomic_load(&hosts->owner_moves)) {
            gs_waiter_pause(&waiter, never);
            continue;
        }
        gs_waiter_reset(&waiter);
        move_beside_owner(hosts, stopping);
    }
    gs_waiter_reset(&waiter);
}

static void wake_thread(hosts_comm *hosts) {
    if (hosts->has_thread) gs_futex_event_notify(&hosts->orders);
}

static gs_status failure_of(hosts_comm *hosts) {
    if (has_failed(hosts)) return hosts->failure;
    pthread_mutex_lock(&hosts->words_lock);
    gs_status asked = hosts->asked;
    pthread_mutex_unlock(&hosts->words_lock);
    return asked;
}

static gs_status post_hosts(void *backend, int lane, uint64_t sequence,
                            const gs_collective *collective) {
    hosts_comm *hosts = backend;
    if (has_failed(hosts) || atomic_load(&hosts->abort_asked)) return failure_of(hosts);
    if (collective) 
        gs_hosts_lane_post(&hosts->lanes[lane], sequence, collective, hosts->shared);
    // The thread holds it while it moves, and looks for posts behind that.
    if (pthread_mutex_trylock(&hosts->lock) == 0) {
        (void)advance(hosts, hosts->device);
        pthread_mutex_unlock(&hosts->lock);
    }
    if (!is_idle(hosts)) wake_thread(hosts);
    return has_failed(hosts) ? hosts->failure : gs_ok();
}

static gs_status say_interrupted(hosts_comm *hosts, gs_hosts_lane *lane) {
    char name[64];
    gs_work_name(name, sizeof name, (gs_work){gs_hosts_lane_finished(lane) + 1, lane->number});
    if (take_moving(hosts, (gs_deadline){0})) {
        const gs_hosts_work *work = gs_hosts_lane_first(lane);
        if (work)
            gs_collective_name(name, sizeof name, gs_hosts_lane_finished(lane) + 1, &work->collective);
        pthread_mutex_unlock(&hosts->lock);
    }
    return gs_error(GS_CANCELLED, "%s: the wait was interrupted", name);
}

// Nothing of this rank moves behind it, and the levels are still. DEADLINE_EXCEEDED: they are not.
static gs_status end_wait(hosts_comm *hosts, gs_deadline deadline) {
    deadline = gs_deadline_min(deadline, gs_deadline_in_seconds(STILLNESS_SECONDS));
    if (take_moving(hosts, deadline)) {
        gs_status still = gs_hosts_level_await_stillness(&hosts->party.all, deadline);
        if (!still.code) still = gs_hosts_level_await_stillness(&hosts->party.column, deadline);
        pthread_mutex_unlock(&hosts->lock);
        if (!still.code) return hosts->failure;
    }
    return gs_error(GS_DEADLINE_EXCEEDED, "still moves after: %s", hosts->failure.message);
}

static gs_status conclude_wait(hosts_comm *hosts, gs_hosts_lane *lane, uint64_t sequence,
                               int64_t waited_ns, gs_deadline deadline) {
    gs_comm_failure late;
    if (gs_hosts_lane_finished(lane) >= sequence) return gs_ok();
    if (has_failed(hosts)) return end_wait(hosts, deadline);
    gs_status status;
    if (take_moving(hosts, gs_deadline_in_ns(WORD_NS))) {
        status = gs_hosts_causes_say_late(&hosts->causes, lane, waited_ns, &late);
        pthread_mutex_unlock(&hosts->lock);
    } else {
        status = gs_hosts_causes_say_held_up(&hosts->causes, lane, waited_ns, &late);
    }
    if (gs_hosts_lane_finished(lane) >= sequence) return gs_ok();
    pthread_mutex_lock(&hosts->words_lock);
    hosts->late = late;
    pthread_mutex_unlock(&hosts->words_lock);
    return status;
}

static gs_status wait_moving(hosts_comm *hosts, gs_hosts_lane *lane, uint64_t sequence,
                             gs_deadline deadline) {
    gs_futex_event *events[MOST_EVENTS];
    gs_waiter waiter = {.spin_polls = SPIN_POLLS};
    int64_t began_ns = gs_now_ns(), now_ns = began_ns;
    bool interrupted = false;
    for (;;) {
        // In pieces: an interrupt ends a wait for who is held up, too.
        bool moves = take_moving(hosts, gs_deadline_min(deadline, gs_deadline_in_ns(WORD_NS))), moved = false;
        if (moves) {
            moved = advance(hosts, hosts->device);
            if (!moved) list_awaited(hosts, &waiter, events);
            pthread_mutex_unlock(&hosts->lock);
        }
        if (gs_hosts_lane_finished(lane) >= sequence || has_failed(hosts)) break;
        bool looks = true;
        if (moved)
            gs_waiter_reset(&waiter);
        else if (moves)
            looks = gs_waiter_pause(&waiter, deadline);
        if (!looks) continue;
        now_ns = gs_now_ns();
        interrupted = gs_interrupt_check(&hosts->interrupt, now_ns) &&
                      !atomic_load(&hosts->abort_asked);
        if (interrupted || now_ns >= deadline.at_ns) break;
        if (!take_moving(hosts, (gs_deadline){0})) continue;
        call_roll(hosts);
        pthread_mutex_unlock(&hosts->lock);
    }
    gs_waiter_reset(&waiter);
    if (interrupted && gs_hosts_lane_finished(lane) < sequence) return say_interrupted(hosts, lane);
    return conclude_wait(hosts, lane, sequence, now_ns - began_ns, deadline);
}

static gs_status wait_hosts(void *backend, int number, uint64_t sequence, gs_deadline deadline) {
    hosts_comm *hosts = backend;
    gs_hosts_lane *lane = &hosts->lanes[number];
    if (gs_hosts_lane_finished(lane) >= sequence && !atomic_load(&hosts->abort_asked))
        return gs_ok();
    atomic_store(&hosts->owner_moves, true);
    gs_status status = wait_moving(hosts, lane, sequence, deadline);
    atomic_store(&hosts->owner_moves, false);
    if (!is_idle(hosts)) wake_thread(hosts);
    return status;
}

// What the owner waited for in vain, unless it came after all; under words_lock.
static gs_comm_failure late_of(const hosts_comm *hosts) {
    const gs_comm_failure *late = &hosts->late;
    return late->kind && late->sequence > gs_hosts_lane_finished(&hosts->lanes[late->lane])
               ? *late
               : (gs_comm_failure){0};
}

// Who aborts because nobody came says so to the others.
static void abort_hosts(void *backend, const char *reason) {
    hosts_comm *hosts = backend;
    pthread_mutex_lock(&hosts->words_lock);
    if (!atomic_load(&hosts->abort_asked)) {
        hosts->asked = gs_error(GS_ABORTED, "%s", reason);
        hosts->told = late_of(hosts);
        if (!hosts->told.kind)
            hosts->told = (gs_comm_failure){
                .kind = GS_COMM_FAILURE_ABORTED, .reporter = hosts->party.rank, .bucket = -1};
        atomic_store(&hosts->abort_asked, true);
    }
    gs_status asked = hosts->asked;
    gs_comm_failure told = hosts->told;
    pthread_mutex_unlock(&hosts->words_lock);
    end_levels(hosts, asked, &told);
    wake_thread(hosts);
    gs_futex_event_notify(&hosts->finished_event);
}

static void explain_hosts(void *backend, gs_comm_failure *out) {
    hosts_comm *hosts = backend;
    pthread_mutex_lock(&hosts->words_lock);
    gs_comm_failure late = late_of(hosts);
    if (late.kind)
        *out = late;
    else if (has_failed(hosts))
        *out = hosts->cause;
    else if (atomic_load(&hosts->abort_asked))
        *out = hosts->told;
    pthread_mutex_unlock(&hosts->words_lock);
}

static void stop_thread(hosts_comm *hosts) {
    if (!hosts->thread) return;
    gs_thread_ask_to_stop(hosts->thread);
    gs_futex_event_notify(&hosts->orders);
    gs_thread_stop(hosts->thread);
    hosts->thread = NULL;
}

static void leave_level(gs_hosts_level *level, gs_deadline deadline) {
    gs_comm_failure nobody = {0};
    if (level->backend)
        (void)level->backend->wait_ended(level->state, &nobody, deadline).code;
}

// Nobody else writes into this rank's arena, so nobody lingers there; what others still need of the
// slots they see for as long as they look.
static gs_status wait_hosts_ended(void *backend, gs_comm_failure *lingering, gs_deadline deadline) {
    hosts_comm *hosts = backend;
    (void)lingering;
    deadline = gs_deadline_min(deadline, gs_deadline_in_seconds(FAREWELL_SECONDS));
    stop_thread(hosts);
    leave_level(&hosts->party.column, deadline);
    leave_level(&hosts->party.all, deadline);
    leave_level(&hosts->party.host, (gs_deadline){0});
    return gs_ok();
}

static uint64_t finished_of_hosts(const void *backend, int lane) {
    return gs_hosts_lane_finished(&((const hosts_comm *)backend)->lanes[lane]);
}

static bool times_of_hosts(const void *backend, int lane, uint64_t sequence, gs_work_times *times) {
    const hosts_comm *hosts = backend;
    const gs_hosts_lane *one = &hosts->lanes[lane];
    const gs_hosts_work *work = &one->works[sequence % GS_HOSTS_MAX_POSTED];
    const gs_hosts_level *all = &hosts->party.all;
    *times = gs_hosts_lane_times(one, sequence);
    if (work->is_composed || gs_hosts_lane_finished(one) < sequence) return true;
    return all->backend->times(all->state, lane, work->sequence_of_all, times);
}

static const char *algorithm_of_hosts(const void *backend, const gs_collective *collective) {
    const hosts_comm *hosts = backend;
    const gs_hosts_level *all = &hosts->party.all;
    if (!gs_hosts_is_composed(collective)) return all->backend->algorithm(all->state, collective);
    return gs_hosts_is_small(&hosts->party, collective) ? "leaders" : "levels";
}

static gs_stream *stream_of_hosts(const void *backend) {
    (void)backend;
    return NULL;
}

static int events_of_hosts(void *backend, gs_futex_event **events, int max) {
    hosts_comm *hosts = backend;
    gs_futex_event *all[MOST_EVENTS] = {&hosts->finished_event};
    int count = add_event(&hosts->party.all, all, 1);
    count = add_event(&hosts->party.host, all, count);
    count = add_event(&hosts->party.column, all, count);
    for (int i = 0; i < count && i < max; i++) events[i] = all[i];
    return count;
}

static bool moves_alone_on_hosts(const void *backend) {
    return ((const hosts_comm *)backend)->has_thread;
}

static void destroy_hosts(void *backend) {
    hosts_comm *hosts = backend;
    if (!hosts) return;
    stop_thread(hosts);
    gs_hosts_founding_leave(&hosts->party);
    for (int i = 0; i < hosts->num_lanes; i++) gs_hosts_lane_close(&hosts->lanes[i]);
    gs_hosts_founding_release(&hosts->founding);
    while (hosts->shares) {
        hosts_shares *next = hosts->shares->next;
        free(hosts->shares);
        hosts->shares = next;
    }
    gs_device_close(hosts->thread_device);
    pthread_mutex_destroy(&hosts->words_lock);
    pthread_mutex_destroy(&hosts->lock);
    free(hosts);
}

static gs_status open_lanes(hosts_comm *hosts, const gs_comm_options *options, gs_stages *stages,
                            gs_deadline deadline) {
    GS_TRY(gs_hosts_founding_open(&hosts->founding, &hosts->party, hosts->num_lanes, options, stages,
                                  deadline));
    for (int i = 0; i < hosts->num_lanes; i++)
        GS_TRY(gs_hosts_lane_open(&hosts->lanes[i], &hosts->party, i));
    return gs_ok();
}

// As on net: what comes from other hosts comes whether this rank computes or not.
static gs_status start_moving(hosts_comm *hosts, const gs_comm_options *options) {
    if (options->helper == GS_HELPER_OFF) return gs_ok();
    GS_TRY(gs_device_open(&hosts->thread_device, "cpu", &(gs_device_options){.num_threads = 1}));
    hosts->has_thread = true;
    return gs_thread_start(&hosts->thread, "hosts", run_thread, hosts);
}

static gs_status create_hosts(void **out, const gs_comm_options *options, gs_stages *stages,
                              char *reason, size_t reason_bytes, gs_deadline deadline) {
    size_t bytes = sizeof(hosts_comm) + (size_t)options->num_lanes * sizeof(gs_hosts_lane);
    hosts_comm *hosts = gs_alloc_aligned(bytes, _Alignof(hosts_comm));
    if (!hosts) return gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    hosts->party.rank = options->rank;
    hosts->party.generation = options->generation;
    hosts->num_lanes = options->num_lanes;
    hosts->causes = (gs_hosts_causes){.party = &hosts->party, .roll = &hosts->roll, .lanes = hosts->lanes,
                                      .num_lanes = options->num_lanes};
    hosts->device = options->device;
    hosts->interrupt = (gs_interrupt){.ask = options->interrupt, .ctx = options->interrupt_ctx};
    pthread_mutex_init(&hosts->lock, NULL);
    pthread_mutex_init(&hosts->words_lock, NULL);
    gs_status status = open_lanes(hosts, options, stages, deadline);
    if (!status.code) status = start_moving(hosts, options);
    if (status.code) {
        snprintf(reason, reason_bytes, "%s", status.message);
        destroy_hosts(hosts);
        return status;
    }
    char sizes[128];
    gs_hosts_topology_describe(&hosts->party.topology, sizes, sizeof sizes);
    snprintf(reason, reason_bytes,
             "%d hosts of %.60s ranks: shared memory inside each, TCP between them",
             hosts->party.topology.num_hosts, sizes);
    *out = hosts;
    return gs_ok();
}

const gs_comm_backend gs_comm_hosts = {.name = "hosts",
                                       .wire = GS_WIRE_NONE,
                                       .create = create_hosts,
                                       .post = post_hosts,
                                       .wait = wait_hosts,
                                       .abort = abort_hosts,
                                       .wait_ended = wait_hosts_ended,
                                       .destroy = destroy_hosts,
                                       .finished = finished_of_hosts,
                                       .times = times_of_hosts,
                                       .algorithm = algorithm_of_hosts,
                                       .stream = stream_of_hosts,
                                       .explain = explain_hosts,
                                       .events = events_of_hosts,
                                       .moves_alone = moves_alone_on_hosts};

// The connection of the column carries what is large; ranks of one host have none that counts.
static bool peer_link_of_hosts(const void *backend, int peer, gs_comm_link *out) {
    const gs_hosts_party *party = &((const hosts_comm *)backend)->party;
    const gs_hosts_topology *topology = &party->topology;
    if (topology->host_of[peer] == topology->host_of[party->rank]) return false;
    for (int i = 0; party->column.backend && i < party->column.world_size; i++) {
        if (party->column.ranks[i] == peer)
            return gs_comm_net_facts.peer_link(party->column.state, i, out);
    }
    return gs_comm_net_facts.peer_link(party->all.state, peer, out);
}

static gs_status share_hosts(void *backend, const uint16_t *shares) {
    hosts_comm *hosts = backend;
    size_t bytes = (size_t)hosts->party.topology.world_size * sizeof *shares;
    hosts_shares *known = hosts->shares;
    bool is_even = !memcmp(shares, shares + 1, bytes - sizeof *shares);
    while (known && memcmp(known->of, shares, bytes)) known = known->next;
    if (!is_even && !known) {
        known = calloc(1, sizeof *known);
        if (!known) return gs_error(GS_RESOURCE_EXHAUSTED, "shares of ranks: out of memory");
        memcpy(known->of, shares, bytes);
        known->next = hosts->shares;
        hosts->shares = known;
    }
    hosts->shared = is_even ? NULL : known->of;
    return gs_ok();
}

const gs_backend_facts gs_comm_hosts_facts = {.backend = &gs_comm_hosts,
                                              .peer_link = peer_link_of_hosts,
                                              .share = share_hosts};
