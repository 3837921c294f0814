#include "gradsync/comm/comm.h"

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

struct gs_comm {
    const gs_comm_backend *backend;
    void *state;  // the backend's
    gs_device *device;
    int rank, world_size;
    uint32_t generation;
    int num_lanes;
    pid_t owner;  // a child that was forked leaves it alone
    // Per lane: given to the backend, which may have refused the last; owner's thread.
    uint64_t posted[GS_COMM_MAX_LANES];
    int *world_ranks;    // owned; of the group's
    bool is_renumbered;  // some rank is another in the world
    char group[40];
    uint64_t seen[GS_COMM_MAX_LANES];  // finished, at the last return of gs_comm_wait_moved
    char reason[192];
    // What other ranks may do to the arena: any thread's.
    gs_arena *arena;  // borrowed; NULL: none, or nobody else is there
    atomic_int use;
    gs_comm_failure lingering;  // of the last gs_comm_wait_ended; owner's thread
    gs_interrupt interrupt;     // of gs_comm_wait_moved; a backend's waits have their own
};

// Of an arena: ranks write into it by agreement; somewhere an abort was heard and somewhere not yet; all
// have left.
enum { USE_AGREED, USE_DISTURBED, USE_OVER };

static const gs_comm_backend *const backends[] = {
    &gs_comm_self,
    &gs_comm_shm,
#ifdef GRADSYNC_CUDA
    &gs_comm_nccl,
#endif
};

// What `auto` tries for several ranks, in this order. Each comes to one verdict on all ranks, so
// the next is tried by all. A backend between hosts goes behind shm.
static const gs_comm_backend *const automatic_on_host[] = {&gs_comm_shm, NULL};
static const gs_comm_backend *const automatic_on_gpu[] = {
#ifdef GRADSYNC_CUDA
    &gs_comm_nccl,
#endif
    NULL,
};

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

// One for all or for none: who alone could not open its part takes the others along.
static gs_status open_backend(gs_comm *comm, const gs_comm_backend *backend,
                              const gs_comm_options *options, gs_stages *stages) {
    comm->backend = backend;
    gs_status mine = backend->create(&comm->state, options, stages, comm->reason,
                                     sizeof comm->reason, stages->deadline);
    gs_status status = gs_stages_settle(stages, backend->name, mine);
    if (status.code && !mine.code) backend->destroy(comm->state);
    return status;
}

static gs_status open_automatic(gs_comm *comm, const gs_comm_options *options, gs_stages *stages) {
    if (options->world_size == 1) return open_backend(comm, &gs_comm_self, options, stages);
    const gs_comm_backend *const *list =
        gs_device_is_host(options->device) ? automatic_on_host : automatic_on_gpu;
    gs_status status = gs_error(GS_UNAVAILABLE, "no backend for several ranks on %s",
                                gs_device_name(options->device));
    for (; *list; list++) {
        status = open_backend(comm, *list, options, stages);
        if (status.code != GS_UNAVAILABLE) return status;
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
        return gs_stages_settle(
            stages, name, gs_error(GS_UNIMPLEMENTED, "backend nccl: this build has no CUDA"));
    return gs_error(GS_INVALID_ARGUMENT, "backend \"%s\" is none of auto, self, shm, nccl", name);
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

static gs_status create_comm(gs_comm **out, const gs_comm_options *options, gs_deadline deadline) {
    GS_TRY(gs_introduction_check(options));
    gs_stages stages;
    gs_comm *comm = NULL;
    gs_comm_options all = *options;
    if (!all.check && all.interrupt) all.check = check_interrupt, all.check_ctx = &all;
    if (!all.num_lanes) all.num_lanes = 1;
    gs_stages_init(&stages, &all, deadline);
    gs_status status = gs_introduce(&stages, &all, make_comm(&comm, options));
    if (!status.code) status = open_requested(comm, &all, &stages);
    gs_stages_release(&stages);
    if (status.code) {
        free_comm(comm);
        return status;
    }
    *out = comm;
    return gs_ok();
}

gs_status gs_comm_create_sized(gs_comm **out, const gs_comm_options *options, size_t options_bytes,
                               gs_deadline deadline) {
    gs_comm_options known;
    GS_TRY(gs_options_take(&known, sizeof known, options, options_bytes, "gs_comm_options"));
    return create_comm(out, &known, deadline);
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

void gs_comm_destroy(gs_comm *comm) {
    if (!comm || !is_owner(comm)) return;
    // Who comes to what is in flight here does its share of it, in this rank's arena too.
    if (!is_idle(comm)) note_disturbed(comm);
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

const char *gs_comm_algorithm(const gs_comm *comm, const gs_collective *collective) {
    return comm->backend->algorithm(comm->state, collective);
}

static bool may_scale(gs_dtype dtype) {
    return dtype == GS_FP32 || dtype == GS_FP64 || dtype == GS_FP16 || dtype == GS_BF16;
}

static gs_status check_numbers(const gs_comm *comm, const gs_collective *collective) {
    bool has_root = collective->kind == GS_REDUCE || collective->kind == GS_BROADCAST;
    size_t bytes;
    if (collective->lane < 0 || collective->lane >= comm->num_lanes)
        return gs_error(GS_INVALID_ARGUMENT, "lane %d of a communicator with %d", collective->lane,
                        comm->num_lanes);
    if (collective->kind <= GS_COLLECTIVE_UNSET || collective->kind > GS_BARRIER)
        return gs_error(GS_INVALID_ARGUMENT, "collective of unknown kind %d", collective->kind);
    if (collective->kind == GS_BARRIER) return gs_ok();
    if (gs_dtype_bytes(collective->dtype) == 0)
        return gs_error(GS_INVALID_ARGUMENT, "collective of unknown dtype %d", collective->dtype);
    if ((uintptr_t)collective->send % gs_dtype_bytes(collective->dtype) ||
        (uintptr_t)collective->recv % gs_dtype_bytes(collective->dtype))
        return gs_error(GS_INVALID_ARGUMENT, "buffer does not lie on a boundary of %s",
                        gs_dtype_name(collective->dtype));
    if (!gs_bytes_of(&bytes, collective->count, gs_dtype_bytes(collective->dtype)) ||
        !gs_bytes_of(&bytes, bytes, (size_t)comm->world_size))
        return gs_error(GS_INVALID_ARGUMENT, "count %zu is too large", collective->count);
    if (has_root && (collective->root < 0 || collective->root >= comm->world_size))
        return gs_error(GS_INVALID_ARGUMENT, "root %d is no rank of %d", collective->root,
                        comm->world_size);
    if (!gs_collective_reduces(collective)) return gs_ok();
    if (collective->op < GS_OP_SUM || collective->op > GS_OP_MIN)
        return gs_error(GS_INVALID_ARGUMENT, "reduction by unknown op %d", collective->op);
    if (collective->dtype == GS_U8)
        return gs_error(GS_INVALID_ARGUMENT, "dtype u8 cannot be reduced");
    if (collective->scale != 0 && collective->scale != 1 && !may_scale(collective->dtype))
        return gs_error(GS_INVALID_ARGUMENT, "dtype %s cannot be scaled",
                        gs_dtype_name(collective->dtype));
    return gs_ok();
}

static gs_status check_wire(const gs_comm *comm, const gs_collective *collective) {
    static const char *const ops[] = {"sum", "max", "min"};
    gs_dtype wire = collective->wire_dtype;
    if (!wire && collective->wire_scale != 0 && collective->wire_scale != 1)
        return gs_error(GS_INVALID_ARGUMENT, "a wire scale of %g, but no wire dtype",
                        (double)collective->wire_scale);
    if (!wire && collective->wire_scale_after)
        return gs_error(GS_INVALID_ARGUMENT, "a wire scale after the cast, but no wire dtype");
    if (!wire) return gs_ok();
    if (wire != GS_FP16 && wire != GS_BF16)
        return gs_error(GS_INVALID_ARGUMENT, "wire dtype %s has not 16 bits", gs_dtype_name(wire));
    if (collective->tree)
        return gs_error(GS_INVALID_ARGUMENT, "a wire dtype is for plain sums, not along a tree");
    if (collective->kind != GS_ALLREDUCE || collective->op != GS_OP_SUM ||
        (collective->dtype != GS_FP32 && collective->dtype != GS_FP64))
        return gs_error(GS_INVALID_ARGUMENT,
                        "a wire dtype is for all-reduces that sum fp32 or fp64, not for %s of %s",
                        collective->kind == GS_ALLREDUCE ? ops[collective->op]
                                                         : gs_collective_kind_name(collective->kind),
                        gs_dtype_name(collective->dtype));
    if (comm->backend->wire == GS_WIRE_REFUSED)
        return gs_error(GS_UNIMPLEMENTED, "backend %s has no wire dtypes", comm->backend->name);
    if (comm->backend->wire != GS_WIRE_COPY || !collective->count) return gs_ok();
    if (!collective->wire || (uintptr_t)collective->wire % gs_dtype_bytes(wire))
        return gs_error(GS_INVALID_ARGUMENT, "backend %s needs memory for what it sends as %s",
                        comm->backend->name, gs_dtype_name(wire));
    return gs_ok();
}

static gs_status check_tree(const gs_comm *comm, const gs_collective *collective) {
    const gs_reduce_tree *tree = collective->tree;
    if (collective->kind != GS_ALLREDUCE)
        return gs_error(GS_INVALID_ARGUMENT, "only an all-reduce can follow a tree");
    if (tree->num_inputs < 1 || tree->num_inputs > GS_REDUCE_MAX_INPUTS)
        return gs_error(GS_INVALID_ARGUMENT, "tree of %d inputs, at most %d", tree->num_inputs,
                        GS_REDUCE_MAX_INPUTS);
    int depth = 0;
    for (int i = 0; i < tree->num_inputs; i++) {
        if (tree->rank[i] < 0 || tree->rank[i] >= comm->world_size)
            return gs_error(GS_INVALID_ARGUMENT, "tree input %d is of rank %d of %d", i,
                            tree->rank[i], comm->world_size);
        if (tree->part[i] < 0 || tree->part[i] >= GS_REDUCE_MAX_INPUTS)
            return gs_error(GS_INVALID_ARGUMENT, "tree input %d is part %d", i, tree->part[i]);
        depth += 1 - tree->merges[i];
        if (depth < 1) return gs_error(GS_INVALID_ARGUMENT, "tree merges too much at input %d", i);
    }
    if (depth != 1) return gs_error(GS_INVALID_ARGUMENT, "tree leaves %d sums", depth);
    return gs_ok();
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    uintptr_t a_first = (uintptr_t)a, b_first = (uintptr_t)b;
    return a && b && a_bytes && b_bytes && a_first < b_first + b_bytes &&
           b_first < a_first + a_bytes;
}

static gs_status check_tree_buffers(const gs_comm *comm, const gs_collective *collective,
                                    size_t bytes) {
    for (int i = 0; i < collective->tree->num_inputs; i++) {
        if (collective->tree->rank[i] != comm->rank) continue;
        if (!collective->send) return gs_error(GS_INVALID_ARGUMENT, "send buffer is missing");
        size_t part = (size_t)collective->tree->part[i], offset, end;
        if (!gs_bytes_of(&offset, part, collective->part_stride_bytes) ||
            __builtin_add_overflow(offset, bytes, &end) ||
            __builtin_add_overflow((uintptr_t)collective->send, end, &end) ||
            offset % gs_dtype_bytes(collective->dtype))
            return gs_error(GS_INVALID_ARGUMENT, "part %zu of stride %zu bytes lies nowhere", part,
                            collective->part_stride_bytes);
        const unsigned char *at = (const unsigned char *)collective->send + offset;
        if (overlap(at, bytes, collective->recv, bytes) && (part != 0 || at != collective->recv))
            return gs_error(GS_INVALID_ARGUMENT, "receive buffer overlaps part %zu", part);
    }
    return gs_ok();
}

// In place is where a rank's own result goes over its own input, byte by byte; any other overlap
// would be overwritten before others have read it.
static gs_status check_buffers(const gs_comm *comm, const gs_collective *collective) {
    size_t bytes = collective->count * gs_dtype_bytes(collective->dtype);
    size_t all_bytes = bytes * (size_t)comm->world_size, own = bytes * (size_t)comm->rank;
    if (collective->kind == GS_BARRIER || bytes == 0) return gs_ok();
    bool is_root = collective->root == comm->rank;
    bool sends = collective->kind != GS_BROADCAST || is_root;
    bool receives = collective->kind != GS_REDUCE || is_root;
    if (receives && !collective->recv)
        return gs_error(GS_INVALID_ARGUMENT, "receive buffer is missing");
    if (collective->tree) return check_tree_buffers(comm, collective, bytes);
    if (sends && !collective->send) return gs_error(GS_INVALID_ARGUMENT, "send buffer is missing");
    if (!sends || !receives) return gs_ok();

    if (comm->backend->wire == GS_WIRE_COPY && collective->wire_dtype &&
        (overlap(collective->wire, gs_collective_sent_bytes(collective), collective->send, bytes) ||
         overlap(collective->wire, gs_collective_sent_bytes(collective), collective->recv, bytes)))
        return gs_error(GS_INVALID_ARGUMENT, "memory for what is sent overlaps a buffer");
    const unsigned char *send = collective->send, *recv = collective->recv;
    size_t send_bytes = collective->kind == GS_REDUCE_SCATTER ? all_bytes : bytes;
    size_t recv_bytes = collective->kind == GS_ALLGATHER ? all_bytes : bytes;
    if (!overlap(send, send_bytes, recv, recv_bytes)) return gs_ok();
    if (collective->kind == GS_REDUCE_SCATTER && recv == send + own) return gs_ok();
    if (collective->kind == GS_ALLGATHER && send == recv + own) return gs_ok();
    if (send_bytes == recv_bytes && send == recv) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "send and receive buffers overlap, but not in place");
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

// An error of a backend is the communicator's end; a deadline that passed, and an interrupt, are not. Callers
// make a status that is ok anew: to copy one that was just written is a good part of a small collective's time.
static gs_status note_error(gs_comm *comm, gs_status status) {
    if (status.code != GS_DEADLINE_EXCEEDED && status.code != GS_CANCELLED) note_disturbed(comm);
    return name_world(comm, status);
}

gs_status gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective) {
    GS_TRY(check_numbers(comm, collective));
    GS_TRY(check_wire(comm, collective));
    if (collective->tree) GS_TRY(check_tree(comm, collective));
    GS_TRY(check_buffers(comm, collective));
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
            return gs_error(GS_CANCELLED, "the wait for %d communicators was interrupted", num_comms);
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
    *out = comm->lingering;
    if (out->kind) return;
    *out = (gs_comm_failure){.reporter = -1, .bucket = -1};
    comm->backend->explain(comm->state, out);
}

const void *gs_comm_peer_arena(const gs_comm *comm, int rank, size_t *bytes) {
    *bytes = 0;
    if (rank < 0 || rank >= comm->world_size || !comm->backend->peer_arena) return NULL;
    return comm->backend->peer_arena(comm->state, rank, bytes);
}

void gs_comm_abort(gs_comm *comm, const char *reason) {
    if (!is_owner(comm)) return;
    note_disturbed(comm);
    comm->backend->abort(comm->state, reason);
}

void gs_comm_let_go(gs_comm *comm, const char *reason) {
    if (!is_owner(comm)) return;
    gs_comm_abort(comm, reason);
    gs_deadline deadline = gs_deadline_in_seconds(LETTING_GO_SECONDS);
    gs_status ended = gs_ok();
    for (int i = 0; i < comm->num_lanes && ended.code != GS_DEADLINE_EXCEEDED; i++)
        ended = comm->backend->wait(comm->state, i, comm->posted[i], deadline);
    // Whoever reads of memory that changed by itself has to find this above it.
    if (ended.code == GS_DEADLINE_EXCEEDED)
        gs_log_error("a communicator still moves after an abort",
                     "rank=%d backend=%s seconds=%d reason=\"%s\"", comm->rank, comm->backend->name,
                     LETTING_GO_SECONDS, ended.message);
}

gs_status gs_comm_wait_ended(gs_comm *comm, gs_deadline deadline) {
    if (!is_idle(comm)) gs_comm_let_go(comm, "a rank has left the communicator");
    comm->lingering = (gs_comm_failure){0};
    gs_comm_failure lingering = {
        .kind = GS_COMM_FAILURE_TIMEOUT, .reporter = comm->rank, .bucket = -1};
    gs_status status = comm->backend->wait_ended(comm->state, &lingering, deadline);
    if (status.code) {
        note_disturbed(comm);
        if (status.code == GS_DEADLINE_EXCEEDED) comm->lingering = lingering;
        return gs_status_prefix(status, "generation %u", comm->generation);
    }
    bool was_disturbed = atomic_exchange(&comm->use, USE_OVER) == USE_DISTURBED;
    if (was_disturbed && comm->arena) gs_arena_note_calm(comm->arena);
    return gs_ok();
}

#ifndef GRADSYNC_CUDA
bool gs_nccl_version(char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "this build has no CUDA");
    return false;
}
#endif
