#include "gradsync/comm/comm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "gradsync/comm/backends.h"
#include "gradsync/comm/introduction.h"
#include "gradsync/comm/stages.h"
#include "gradsync/comm/waiter.h"

#define MAX_IN_FLIGHT 1024
#define SPIN_POLLS 50  // of several communicators at a time
#define MOST_RANKS_SHOWN 4
#define POLL_NS (GS_NS_PER_MS / 10)
#define LETTING_GO_SECONDS 10  // a moving thread leaves an aborted collective within one block

// A communicator and its parts (gs_comm_split): the end of one is that of all. Made and left by the
// owner's thread; any thread may end it.
typedef struct comm_family {
    pthread_mutex_t lock;
    gs_comm *first;  // by `sibling`
    bool ended;
    gs_comm_failure cause;  // of the first that failed, its accused by their numbers in the world;
                            // kind none: it was told to end
} comm_family;

struct gs_comm {
    const gs_comm_backend *backend;
    void *state;  // the backend's
    gs_device *device;
    int rank, world_size;
    uint32_t generation;
    int num_lanes;
    gs_collective_site site;  // of the above
    pid_t owner;              // a child that was forked leaves it alone
    // Per lane: given to the backend, which may have refused the last; owner's thread.
    uint64_t posted[GS_COMM_MAX_LANES];
    int *world_ranks;    // owned; of the group's
    bool is_renumbered;  // some rank is another in the world
    char group[40];
    char data_address[48];             // for its parts
    uint64_t seen[GS_COMM_MAX_LANES];  // finished, at the last return of gs_comm_wait_moved
    char reason[192];
    // What other ranks may do to the arena: any thread's.
    gs_arena *arena;  // borrowed; NULL: none, or nobody else is there
    atomic_int use;
    gs_comm_failure lingering;  // of the last gs_comm_wait_ended; owner's thread
    gs_interrupt interrupt;     // of gs_comm_wait_moved; a backend's waits have their own
    comm_family *family;
    gs_comm *sibling;
    bool is_part;
    gs_comm_options made_with;  // for its parts: without what was for the call
};

// Of an arena: ranks write into it by agreement; somewhere an abort was heard and somewhere not
// yet; all have left.
enum { USE_AGREED, USE_DISTURBED, USE_OVER };

static const gs_comm_backend *const backends[] = {
    &gs_comm_self,
    &gs_comm_shm,
    &gs_comm_net,
    &gs_comm_hosts,
#ifdef GRADSYNC_CUDA
    &gs_comm_nccl,
#endif
};

// What `auto` tries for several ranks, in this order. Each comes to one verdict on all ranks, so
// the next is tried by all.
static const gs_comm_backend *const automatic_on_host[] = {&gs_comm_shm, &gs_comm_hosts,
                                                         &gs_comm_net, NULL};
static const gs_comm_backend *const automatic_on_gpu[] = {
#ifdef GRADSYNC_CUDA
    &gs_comm_nccl,
#endif
    NULL,
};

static const gs_backend_facts *const facts[] = {&gs_comm_net_facts, &gs_comm_hosts_facts};

static gs_status check_options(const gs_comm_options *options) {
    if (options->rank < 0 || options->rank >= options->world_size)
        return gs_error(GS_INVALID_ARGUMENT, "rank %d is not below the world size %d",
                        options->rank, options->world_size);
    if (options->num_lanes < 0 || options->num_lanes > GS_COMM_MAX_LANES)
        return gs_error(GS_INVALID_ARGUMENT, "a communicator has 1 to %d lanes, not %d",
                        GS_COMM_MAX_LANES, options->num_lanes);
    if (!options->device) return gs_error(GS_INVALID_ARGUMENT, "a communicator needs a device");
    if (options->arena && gs_arena_is_disturbed(options->arena))
        return gs_error(GS_FAILED_PRECONDITION,
                        "ranks of an aborted communicator may still write into the arena: "
                        "gs_comm_wait_ended was not called, or did not succeed");
    return options->own_backend ? gs_comm_backend_check(options->own_backend) : gs_ok();
}

static gs_status join_family(gs_comm *comm, gs_comm *whole) {
    comm_family *family = whole ? whole->family : calloc(1, sizeof *family);
    if (!family) return gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    if (!whole) pthread_mutex_init(&family->lock, NULL);
    comm->is_part = whole != NULL;
    comm->family = family;
    pthread_mutex_lock(&family->lock);
    comm->sibling = family->first;
    family->first = comm;
    bool ended = family->ended;
    pthread_mutex_unlock(&family->lock);
    // From elsewhere, while this one was made.
    if (ended)
        comm->backend->abort(comm->state, "the communicator that it is a part of was aborted");
    return gs_ok();
}

static void leave_family(gs_comm *comm) {
    comm_family *family = comm->family;
    pthread_mutex_lock(&family->lock);
    gs_comm **link = &family->first;
    while (*link != comm) link = &(*link)->sibling;
    *link = comm->sibling;
    bool is_last = !family->first;
    pthread_mutex_unlock(&family->lock);
    if (!is_last) return;
    pthread_mutex_destroy(&family->lock);
    free(family);
}

// One for all or for none: who alone could not open its part takes the others along.
static gs_status open_backend(gs_comm *comm, const gs_comm_backend *backend,
                              const gs_comm_options *options, gs_stages *stages) {
    comm->backend = backend;
    *options->unreached = (gs_comm_failure){.reporter = -1, .bucket = -1};
    gs_status mine = backend->create(&comm->state, options, stages, comm->reason,
                                     sizeof comm->reason, stages->deadline);
    gs_status status = gs_stages_settle(stages, backend->name, mine);
    if (status.code && !mine.code) backend->destroy(comm->state);
    return status;
}

// Why the first choice is not it stands behind why this one is.
static void explain_choice(gs_comm *comm, const char *refused) {
    size_t used = strlen(comm->reason);
    snprintf(comm->reason + used, sizeof comm->reason - used, "; not %s", refused);
}

static gs_status open_automatic(gs_comm *comm, const gs_comm_options *options, gs_stages *stages) {
    if (options->world_size == 1) return open_backend(comm, &gs_comm_self, options, stages);
    const gs_comm_backend *const *list =
        gs_device_is_host(options->device) ? automatic_on_host : automatic_on_gpu;
    gs_status status = gs_error(GS_UNAVAILABLE, "no backend for several ranks on %s",
                                gs_device_name(options->device));
    char refused[sizeof comm->reason] = "";
    for (; *list; list++) {
        status = open_backend(comm, *list, options, stages);
        if (!status.code && refused[0]) explain_choice(comm, refused);
        if (status.code != GS_UNAVAILABLE) return status;
        if (!refused[0])
            snprintf(refused, sizeof refused, "%s: %s", (*list)->name, status.message);
        status = gs_status_prefix(status, "no backend fits: %s", (*list)->name);
    }
    return status;
}

static gs_status open_requested(gs_comm *comm, const gs_comm_options *options, gs_stages *stages) {
    const char *name = gs_introduction_backend(options);
    if (options->own_backend) return open_backend(comm, options->own_backend, options, stages);
    if (strcmp(name, "auto") == 0) return open_automatic(comm, options, stages);
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        if (strcmp(backends[i]->name, name) == 0)
            return open_backend(comm, backends[i], options, stages);
    }
    if (strcmp(name, "nccl") == 0)
        return gs_stages_settle(stages, name,
                                gs_error(GS_UNIMPLEMENTED, "backend nccl: this build has no CUDA"));
    return gs_error(GS_INVALID_ARGUMENT, "backend \"%s\" is none of auto, self, shm, net, hosts, nccl",
                    name);
}

// What creation waits for besides the exchange ends when the host says so.
static gs_status check_interrupt(void *ctx) {
    const gs_comm_options *options = ctx;
    if (!options->interrupt(options->interrupt_ctx)) return gs_ok();
    return gs_error(GS_CANCELLED, "the creation of a communicator was interrupted");
}

static gs_status make_comm(gs_comm **out, const gs_comm_options *options) {
    GS_TRY(check_options(options));
    gs_comm *comm = calloc(1, sizeof *comm);
    if (comm) comm->world_ranks = calloc((size_t)options->world_size, sizeof *comm->world_ranks);
    if (!comm || !comm->world_ranks) {
        free(comm);
        return gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    }
    comm->rank = options->rank;
    comm->world_size = options->world_size;
    comm->num_lanes = options->num_lanes ? options->num_lanes : 1;
    comm->generation = options->generation;
    comm->device = options->device;
    comm->owner = getpid();
    comm->interrupt = (gs_interrupt){.ask = options->interrupt, .ctx = options->interrupt_ctx};
    if (options->world_size > 1) comm->arena = options->arena;
    comm->made_with = *options;
    comm->made_with.exchange = NULL;
    comm->made_with.exchange_ctx = comm->made_with.check_ctx = NULL;
    comm->made_with.check = NULL;
    comm->made_with.ranks = NULL;
    comm->made_with.group = NULL;
    comm->made_with.unreached = NULL;
    snprintf(comm->data_address, sizeof comm->data_address, "%s",
             options->data_address ? options->data_address : "");
    comm->made_with.data_address = comm->data_address;
    snprintf(comm->group, sizeof comm->group, "%s", options->group ? options->group : "");
    for (int i = 0; i < comm->world_size; i++) {
        comm->world_ranks[i] = options->ranks ? options->ranks[i] : i;
        comm->is_renumbered |= comm->world_ranks[i] != i;
    }
    *out = comm;
    return gs_ok();
}

static void free_comm(gs_comm *comm) {
    if (comm) free(comm->world_ranks);
    free(comm);
}

static gs_status create_comm(gs_comm **out, const gs_comm_options *options, gs_comm *whole,
                             gs_deadline deadline) {
    if (options->unreached) *options->unreached = (gs_comm_failure){.reporter = -1, .bucket = -1};
    GS_TRY(gs_introduction_check(options));
    gs_stages stages;
    gs_comm *comm = NULL;
    gs_comm_options all = *options;
    gs_comm_failure unreached = {.reporter = -1, .bucket = -1};
    all.unreached = &unreached;
    if (!all.check && all.interrupt) all.check = check_interrupt, all.check_ctx = &all;
    if (!all.num_lanes) all.num_lanes = 1;
    gs_stages_init(&stages, &all, deadline);
    gs_status status = gs_introduce(&stages, &all, make_comm(&comm, options));
    if (!status.code) status = open_requested(comm, &all, &stages);
    gs_stages_release(&stages);
    if (!status.code) {
        status = join_family(comm, whole);
        if (status.code) comm->backend->destroy(comm->state);
    }
    if (status.code) {
        if (options->unreached) *options->unreached = unreached;
        free_comm(comm);
        return status;
    }
    comm->site = (gs_collective_site){comm->backend, comm->rank, comm->world_size, comm->num_lanes};
    *out = comm;
    return gs_ok();
}

gs_status gs_comm_create_part(gs_comm **out, gs_comm *whole, const gs_comm_options *options,
                              gs_deadline deadline) {
    return create_comm(out, options, whole, deadline);
}

const gs_comm_options *gs_comm_made_with(const gs_comm *comm) {
    return &comm->made_with;
}

gs_status gs_comm_create_sized(gs_comm **out, const gs_comm_options *options, size_t options_bytes,
                               gs_deadline deadline) {
    gs_comm_options known;
    GS_TRY(gs_options_take(&known, sizeof known, options, options_bytes, "gs_comm_options"));
    return create_comm(out, &known, NULL, deadline);
}

// The child of a fork has the handle and none of the threads, and the memory that it shares is its
// parent's life: it lets both be, and what it leaks ends with it.
static bool is_owner(const gs_comm *comm) {
    return comm->owner == getpid();
}

static void note_disturbed(gs_comm *comm) {
    int agreed = USE_AGREED;
    if (atomic_compare_exchange_strong(&comm->use, &agreed, USE_DISTURBED) && comm->arena)
        gs_arena_note_disturbed(comm->arena);
}

static bool is_idle(const gs_comm *comm) {
    for (int i = 0; i < comm->num_lanes; i++) {
        if (comm->backend->finished(comm->state, i) < comm->posted[i]) return false;
    }
    return true;
}

// All but the one that calls: whatever its ranks wait for would not come.
static void end_family(gs_comm *comm, const char *reason, const gs_comm_failure *cause) {
    comm_family *family = comm->family;
    pthread_mutex_lock(&family->lock);
    if (!family->ended && cause) family->cause = *cause;
    for (gs_comm *one = family->first; one && !family->ended; one = one->sibling) {
        if (one == comm) continue;
        note_disturbed(one);
        one->backend->abort(one->state, reason);
    }
    family->ended = true;
    pthread_mutex_unlock(&family->lock);
}

static void destroy_comm(gs_comm *comm) {
    // Who comes to what is in flight here does its share of it, in this rank's arena too.
    if (!is_idle(comm)) note_disturbed(comm);
    leave_family(comm);
    comm->backend->destroy(comm->state);
    free_comm(comm);
}

int gs_comm_rank(const gs_comm *comm) {
    return comm->rank;
}

int gs_comm_world_size(const gs_comm *comm) {
    return comm->world_size;
}

int gs_comm_world_rank(const gs_comm *comm, int rank) {
    return rank >= 0 && rank < comm->world_size ? comm->world_ranks[rank] : -1;
}

int gs_comm_num_lanes(const gs_comm *comm) {
    return comm->num_lanes;
}

uint32_t gs_comm_generation(const gs_comm *comm) {
    return comm->generation;
}

gs_device *gs_comm_device(const gs_comm *comm) {
    return comm->device;
}

const char *gs_comm_backend_name(const gs_comm *comm) {
    return comm->backend->name;
}

const char *gs_comm_backend_reason(const gs_comm *comm) {
    return comm->reason;
}

gs_stream *gs_comm_stream(const gs_comm *comm) {
    return comm->backend->stream ? comm->backend->stream(comm->state) : NULL;
}

bool gs_comm_moves_alone(const gs_comm *comm) {
    if (comm->backend->moves_alone) return comm->backend->moves_alone(comm->state);
    return gs_comm_stream(comm) != NULL;
}

static const gs_backend_facts *facts_of(const gs_comm *comm) {
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (facts[i]->backend == comm->backend) return facts[i];
    return NULL;
}

bool gs_comm_peer_link(const gs_comm *comm, int peer, gs_comm_link *out) {
    const gs_backend_facts *known = facts_of(comm);
    return known && known->peer_link(comm->state, peer, out);
}

bool gs_comm_shares(const gs_comm *comm) {
    return facts_of(comm) != NULL;
}

gs_status gs_comm_share(gs_comm *comm, const uint16_t *shares) {
    const gs_backend_facts *known = facts_of(comm);
    uint32_t whole = 0;
    for (int i = 0; i < comm->world_size; i++) whole += shares[i];
    if (!whole) return gs_error(GS_INVALID_ARGUMENT, "shares: somebody has to add");
    if (!known)
        return gs_error(GS_UNIMPLEMENTED, "ranks of %s have no parts", comm->backend->name);
    return known->share(comm->state, shares);
}

const char *gs_comm_algorithm(const gs_comm *comm, const gs_collective *collective) {
    return comm->backend->algorithm(comm->state, collective);
}

static void explain_own(gs_comm *comm, gs_comm_failure *out) {
    *out = comm->lingering;
    if (out->kind) return;
    *out = (gs_comm_failure){.reporter = -1, .bucket = -1};
    comm->backend->explain(comm->state, out);
}

static void to_world_ranks(const gs_comm *comm, gs_comm_failure *failure) {
    gs_comm_failure named = *failure;
    memset(named.accused, 0, sizeof named.accused);
    for (int i = 0; i < comm->world_size; i++) {
        if (gs_comm_failure_names(failure, i)) gs_comm_failure_accuse(&named, comm->world_ranks[i]);
    }
    named.reporter = gs_comm_world_rank(comm, failure->reporter);
    *failure = named;
}

static void from_world_ranks(const gs_comm *comm, gs_comm_failure *failure) {
    gs_comm_failure named = *failure;
    memset(named.accused, 0, sizeof named.accused);
    named.reporter = -1;
    for (int i = 0; i < comm->world_size; i++) {
        if (gs_comm_failure_names(failure, comm->world_ranks[i])) gs_comm_failure_accuse(&named, i);
        if (failure->reporter == comm->world_ranks[i]) named.reporter = i;
    }
    *failure = named;
}

// The accused are a group's ranks: the world knows them by other numbers.
static gs_status name_world(gs_comm *comm, gs_status status) {
    gs_comm_failure failure;
    char list[64];
    size_t used = 0;
    int shown = 0;
    if (!status.code || !comm->is_renumbered) return status;
    gs_comm_explain(comm, &failure);
    for (int i = 0; i < comm->world_size && shown < MOST_RANKS_SHOWN; i++) {
        if (!gs_comm_failure_names(&failure, i)) continue;
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", shown++ ? ", " : "",
                                 comm->world_ranks[i]);
    }
    if (!shown || !gs_comm_failure_may_be(&failure, status.code)) return status;
    return gs_status_prefix(status, "group %s, world rank%s %s", comm->group, shown > 1 ? "s" : "",
                            list);
}

// An error of a backend is the communicator's end; a deadline that passed, and an interrupt, are
// not. Callers make a status that is ok anew: to copy one that was just written is a good part of a
// small collective's time.
static gs_status note_error(gs_comm *comm, gs_status status) {
    if (status.code == GS_DEADLINE_EXCEEDED || status.code == GS_CANCELLED)
        return name_world(comm, status);
    gs_comm_failure cause;
    note_disturbed(comm);
    explain_own(comm, &cause);
    to_world_ranks(comm, &cause);
    end_family(comm, status.message, &cause);
    return name_world(comm, status);
}

gs_status gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective) {
    GS_TRY(gs_collective_check(collective, &comm->site));
    int lane = collective->lane;
    uint64_t sequence = comm->posted[lane] + 1;
    if (sequence - comm->backend->finished(comm->state, lane) > MAX_IN_FLIGHT) {
        GS_TRY(gs_comm_progress(comm));
        if (sequence - comm->backend->finished(comm->state, lane) > MAX_IN_FLIGHT)
            return gs_error(GS_RESOURCE_EXHAUSTED, "%d collectives are in flight", MAX_IN_FLIGHT);
    }
    comm->posted[lane] = sequence;
    *work = (gs_work){.sequence = sequence, .lane = lane};
    gs_status status = comm->backend->post(comm->state, lane, sequence, collective);
    if (status.code) return note_error(comm, status);
    return gs_ok();
}

static bool was_posted(const gs_comm *comm, gs_work work) {
    return work.lane >= 0 && work.lane < comm->num_lanes &&
           work.sequence <= comm->posted[work.lane];
}

gs_status gs_comm_wait(gs_comm *comm, gs_work work, gs_deadline deadline) {
    char name[48];
    if (!was_posted(comm, work)) {
        gs_work_name(name, sizeof name, work);
        return gs_error(GS_FAILED_PRECONDITION, "%s was not posted", name);
    }
    gs_status status = comm->backend->wait(comm->state, work.lane, work.sequence, deadline);
    if (status.code) return note_error(comm, status);
    return gs_ok();
}

bool gs_comm_done(const gs_comm *comm, gs_work work) {
    return was_posted(comm, work) &&
           comm->backend->finished(comm->state, work.lane) >= work.sequence;
}

gs_status gs_comm_progress(gs_comm *comm) {
    gs_status status = comm->backend->post(comm->state, 0, 0, NULL);
    if (status.code) return note_error(comm, status);
    return gs_ok();
}

int gs_comm_events(gs_comm *comm, gs_futex_event **events, int max) {
    return comm->backend->events ? comm->backend->events(comm->state, events, max) : 0;
}

// Whether a collective has ended that the owner may not have seen.
static bool has_moved(gs_comm *comm) {
    bool moved = false;
    for (int i = 0; i < comm->num_lanes; i++) {
        uint64_t finished = comm->backend->finished(comm->state, i);
        moved |= finished != comm->seen[i];
        comm->seen[i] = finished;
    }
    return moved;
}

// What to sleep on for all of them; where one cannot say, for a moment only.
static gs_waiter make_waiter(gs_comm *const *comms, int num_comms, gs_futex_event **events) {
    gs_waiter waiter = {.events = events, .spin_polls = SPIN_POLLS};
    for (int i = 0; i < num_comms; i++) {
        int room = GS_WAITER_MOST_EVENTS - waiter.num_events;
        int count = gs_comm_events(comms[i], events + waiter.num_events, room);
        if (count < 1 || count > room) waiter.sleep_ns = POLL_NS;
        if (count > 0) waiter.num_events += count < room ? count : room;
    }
    return waiter;
}

// Nothing has moved, and time has passed.
static gs_status end_wait_moved(gs_comm *const *comms, int num_comms, gs_deadline deadline) {
    int64_t now_ns = gs_now_ns();
    for (int i = 0; i < num_comms; i++) {
        if (gs_interrupt_check(&comms[i]->interrupt, now_ns))
            return gs_error(GS_CANCELLED, "the wait for %d communicators was interrupted",
                            num_comms);
    }
    if (now_ns < deadline.at_ns) return gs_ok();
    return gs_error(GS_DEADLINE_EXCEEDED, "nothing moved on %d communicators", num_comms);
}

gs_status gs_comm_wait_moved(gs_comm *const *comms, int num_comms, gs_deadline deadline) {
    if (num_comms < 1) return gs_error(GS_INVALID_ARGUMENT, "no communicator to wait for");
    gs_futex_event *events[GS_WAITER_MOST_EVENTS];
    gs_waiter waiter = make_waiter(comms, num_comms, events);
    gs_status status = gs_ok();
    bool moved = false;
    while (!moved && !status.code) {
        for (int i = 0; i < num_comms && !status.code; i++) {
            status = gs_comm_progress(comms[i]);
            moved |= has_moved(comms[i]);
        }
        if (moved || status.code) break;
        if (gs_waiter_pause(&waiter, deadline)) status = end_wait_moved(comms, num_comms, deadline);
    }
    gs_waiter_reset(&waiter);
    return status;
}

bool gs_comm_times(const gs_comm *comm, gs_work work, gs_work_times *times) {
    if (work.sequence == 0 || !was_posted(comm, work) ||
        comm->posted[work.lane] - work.sequence >= MAX_IN_FLIGHT)
        return false;
    return comm->backend->times(comm->state, work.lane, work.sequence, times);
}

static gs_status post_and_wait(gs_comm *comm, const gs_collective *collective,
                               gs_deadline deadline) {
    gs_work work;
    GS_TRY(gs_comm_post(comm, &work, collective));
    return gs_comm_wait(comm, work, deadline);
}

gs_status gs_comm_run(gs_comm *comm, const gs_collective *collective, gs_deadline deadline) {
    gs_status status = post_and_wait(comm, collective, deadline);
    if (!status.code) return gs_ok();
    gs_comm_let_go(comm, status.message);
    return status;
}

void gs_comm_explain(gs_comm *comm, gs_comm_failure *out) {
    explain_own(comm, out);
    if (out->kind && out->kind != GS_COMM_FAILURE_ABORTED) return;
    // It ended because another of its family did.
    pthread_mutex_lock(&comm->family->lock);
    gs_comm_failure cause = comm->family->cause;
    pthread_mutex_unlock(&comm->family->lock);
    if (!cause.kind) return;
    from_world_ranks(comm, &cause);
    *out = cause;
}

void *gs_comm_peer_arena(const gs_comm *comm, int rank, size_t *bytes) {
    *bytes = 0;
    if (rank < 0 || rank >= comm->world_size || !comm->backend->peer_arena) return NULL;
    return comm->backend->peer_arena(comm->state, rank, bytes);
}

void gs_comm_abort(gs_comm *comm, const char *reason) {
    if (!is_owner(comm)) return;
    note_disturbed(comm);
    comm->backend->abort(comm->state, reason);
    end_family(comm, reason, NULL);
}

static void await_stillness(gs_comm *comm, gs_deadline deadline) {
    gs_status ended = gs_ok();
    for (int i = 0; i < comm->num_lanes && ended.code != GS_DEADLINE_EXCEEDED; i++)
        ended = comm->backend->wait(comm->state, i, comm->posted[i], deadline);
    // Whoever reads of memory that changed by itself has to find this above it.
    if (ended.code == GS_DEADLINE_EXCEEDED)
        gs_log_error("a communicator still moves after an abort",
                     "rank=%d backend=%s seconds=%d reason=\"%s\"", comm->rank, comm->backend->name,
                     LETTING_GO_SECONDS, ended.message);
}

void gs_comm_let_go(gs_comm *comm, const char *reason) {
    if (!is_owner(comm)) return;
    gs_comm_abort(comm, reason);
    gs_deadline deadline = gs_deadline_in_seconds(LETTING_GO_SECONDS);
    for (gs_comm *one = comm->family->first; one; one = one->sibling)
        await_stillness(one, deadline);
}

// `told` is what the caller was asked to end; it gets who lingers in `comm`.
static gs_status end_one(gs_comm *comm, gs_comm *told, gs_deadline deadline) {
    if (!is_idle(comm)) gs_comm_let_go(comm, "a rank has left the communicator");
    gs_comm_failure lingering = {
        .kind = GS_COMM_FAILURE_TIMEOUT, .reporter = comm->rank, .bucket = -1};
    gs_status status = comm->backend->wait_ended(comm->state, &lingering, deadline);
    if (status.code) {
        note_disturbed(comm);
        if (status.code == GS_DEADLINE_EXCEEDED && told) {
            to_world_ranks(comm, &lingering);
            from_world_ranks(told, &lingering);
            told->lingering = lingering;
        }
        return gs_status_prefix(status, "generation %u", comm->generation);
    }
    bool was_disturbed = atomic_exchange(&comm->use, USE_OVER) == USE_DISTURBED;
    if (was_disturbed && comm->arena) gs_arena_note_calm(comm->arena);
    return gs_ok();
}

gs_status gs_comm_wait_ended(gs_comm *comm, gs_deadline deadline) {
    comm->lingering = (gs_comm_failure){0};
    // All are left before one is waited for: peers come to them in orders of their own.
    for (gs_comm *one = comm->family->first; one && !comm->is_part; one = one->sibling) {
        if (one != comm) (void)end_one(one, NULL, (gs_deadline){0}).code;
    }
    GS_TRY(end_one(comm, comm, deadline));
    for (gs_comm *one = comm->family->first; one && !comm->is_part; one = one->sibling) {
        if (one != comm) GS_TRY(end_one(one, comm, deadline));
    }
    return gs_ok();
}

void gs_comm_destroy(gs_comm *comm) {
    if (!comm || !is_owner(comm)) return;
    // Whoever waits until the ranks of this one have ended waits for those of its parts, too.
    for (gs_comm *one = comm->family->first; one && !comm->is_part; one = one->sibling) {
        if (one != comm) (void)end_one(one, NULL, (gs_deadline){0}).code;
    }
    destroy_comm(comm);
}

#ifndef GRADSYNC_CUDA
bool gs_nccl_version(char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "this build has no CUDA");
    return false;
}
#endif
