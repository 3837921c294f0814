// How an NCCL communicator comes up: what ranks must have in common is compared before the library
// is asked, because it would only hang; then the unique id, the communicator, a proof that it adds,
// and the arena's registration. Every step has the caller's deadline, and every verdict is common.
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "gradsync/comm/nccl/memory.h"
#include "gradsync/comm/nccl/state.h"

// Each failed attempt may leave a thread and a descriptor of the library behind, for the life of
// the process.
#define MOST_FAILED_ATTEMPTS 200
#define MOST_CTAS 32  // more than the library takes by itself brings nothing
#define GROUP_DIVISOR 4  // this part of the multiprocessors is for communicators of a group
#define ROOMY 128        // multiprocessors, of which the library leaves so many by itself
static _Atomic int num_failed_attempts;  // the process's, like what it counts

// What a rank says of itself.
typedef struct peer_info {
    gs_nccl_id id;  // rank 0's, of this communicator: a secret
    int32_t version;
    int32_t has_windows, has_registration;  // of memory of the library that lies in an arena
    int32_t registers_own, owns_windows;    // staging and tree memory too; which is the library's
    int32_t num_multiprocessors;
    int32_t warms_arena;                    // rank 0's counts
    int32_t least_ctas, most_ctas;          // GRADSYNC_NCCL_MIN_CTAS, _MAX_CTAS; rank 0's count
    uint64_t arena_bytes;                   // 0: none
    char uuid[48];                          // of the GPU
    char host_id[64];                       // NCCL_HOSTID; "" when unset
} peer_info;
_Static_assert(sizeof(peer_info) <= GS_STAGE_PAYLOAD_BYTES, "what a rank says is one round");

// All that will ever be needed: a step makes nothing.
static gs_status make_events(gs_nccl_comm *nccl) {
    GS_TRY(gs_event_create(&nccl->anchor, nccl->device, true));
    GS_TRY(gs_event_create(&nccl->next_anchor, nccl->device, true));
    return gs_ok();
}

static gs_status make_lane(gs_nccl_lane *lane, gs_device *device) {
    GS_TRY(gs_stream_create(&lane->stream, device, GS_STREAM_HIGH));
    for (size_t i = 0; i < GS_NCCL_MAX_LAUNCHES; i++) {
        GS_TRY(gs_event_create(&lane->launches[i].started, device, true));
        GS_TRY(gs_event_create(&lane->launches[i].finished, device, true));
    }
    for (size_t i = 0; i < GS_NCCL_MAX_POSTED; i++)
        GS_TRY(gs_event_create(&lane->works[i].ready, device, false));
    return gs_nccl_make_staging(lane);
}

static gs_status make_own_part(gs_nccl_comm *nccl) {
    if (gs_device_is_host(nccl->device))
        return gs_error(GS_UNAVAILABLE, "keeps its gradients on %s", gs_device_name(nccl->device));
    if (atomic_load(&num_failed_attempts) >= MOST_FAILED_ATTEMPTS)
        return gs_error(GS_RESOURCE_EXHAUSTED,
                        "%d NCCL communicators failed to come up in this process: start a new one",
                        MOST_FAILED_ATTEMPTS);
    GS_TRY(gs_nccl_library_open(&nccl->library));
    if (nccl->num_lanes > 1 && !gs_nccl_has_split(nccl->library))
        return gs_error(GS_UNIMPLEMENTED, "%d lanes want NCCL 2.18 or later", nccl->num_lanes);
    GS_TRY(gs_stream_create(&nccl->entry, nccl->device, GS_STREAM_HIGH));
    GS_TRY(make_events(nccl));
    for (int i = 0; i < nccl->num_lanes; i++) GS_TRY(make_lane(&nccl->lanes[i], nccl->device));
    return gs_ok();
}

// GRADSYNC_NCCL_WINDOWS=0, GRADSYNC_NCCL_REGISTRATION=0: without, on whichever rank it is said. For
// libraries where a call that fails leaves its error in the communicator, so that nothing else can
// be tried with it.
static bool is_wanted(const char *variable) {
    const char *value = getenv(variable);
    return !value || strcmp(value, "0") != 0;
}

// 0: unset, or no number of blocks.
static int32_t read_ctas(const char *variable) {
    const char *value = getenv(variable);
    long ctas = value ? strtol(value, NULL, 10) : 0;
    return ctas >= 1 && ctas <= MOST_CTAS ? (int32_t)ctas : 0;
}

static gs_status fill_info(peer_info *mine, const gs_nccl_comm *nccl) {
    gs_device_facts facts;
    const char *name = gs_device_name(nccl->device), *host_id = getenv("NCCL_HOSTID");
    const char *colon = strchr(name, ':');
    GS_TRY(gs_cuda_device_facts(&facts, colon ? (int)strtol(colon + 1, NULL, 10) : 0));
    mine->version = gs_nccl_library_version(nccl->library);
    mine->num_multiprocessors = facts.num_multiprocessors;
    const char *warms = getenv("GRADSYNC_NCCL_WARM_ARENA");
    mine->warms_arena = warms && strcmp(warms, "1") == 0;
    mine->least_ctas = read_ctas("GRADSYNC_NCCL_MIN_CTAS");
    mine->most_ctas = read_ctas("GRADSYNC_NCCL_MAX_CTAS");
    mine->has_registration =
        gs_nccl_has_registration(nccl->library) && is_wanted("GRADSYNC_NCCL_REGISTRATION");
    mine->has_windows = gs_nccl_has_windows(nccl->library) && is_wanted("GRADSYNC_NCCL_WINDOWS") &&
                        nccl->arena && gs_arena_is_from(nccl->arena, &gs_nccl_memory);
    mine->registers_own = gs_nccl_registers_own();
    mine->owns_windows = gs_nccl_has_windows(nccl->library);
    for (int i = 0; i < nccl->num_lanes; i++) mine->owns_windows &= nccl->lanes[i].own_ctx != NULL;
    if (nccl->arena && gs_arena_fd(nccl->arena) < 0)
        mine->arena_bytes = gs_arena_bytes(nccl->arena);
    snprintf(mine->uuid, sizeof mine->uuid, "%s", facts.uuid);
    snprintf(mine->host_id, sizeof mine->host_id, "%s", host_id ? host_id : "");
    return nccl->rank == 0 ? gs_nccl_make_id(nccl->library, &mine->id) : gs_ok();
}

static gs_status compare_peers(peer_info *all, int world_size) {
    for (int i = 0; i < world_size; i++) {
        all[i].uuid[sizeof all[i].uuid - 1] = all[i].host_id[sizeof all[i].host_id - 1] = '\0';
    }
    for (int i = 1; i < world_size; i++) {
        if (all[i].version != all[0].version)
            return gs_error(GS_FAILED_PRECONDITION, "rank %d has NCCL %d.%d.%d, rank 0 %d.%d.%d", i,
                            all[i].version / 10000, all[i].version / 100 % 100,
                            all[i].version % 100, all[0].version / 10000,
                            all[0].version / 100 % 100, all[0].version % 100);
        for (int k = 0; k < i; k++) {
            // The library takes ranks with different host ids for ranks of different machines.
            if (strcmp(all[i].uuid, all[k].uuid) == 0 &&
                strcmp(all[i].host_id, all[k].host_id) == 0)
                return gs_error(GS_FAILED_PRECONDITION,
                                "ranks %d and %d have the same GPU, %s: NCCL wants one for each", k,
                                i, all[i].uuid);
        }
    }
    return gs_ok();
}

static bool all_may(const peer_info *all, int world_size, bool windows) {
    for (int i = 0; i < world_size; i++) {
        if (windows ? !all[i].has_windows : !all[i].has_registration) return false;
        if (!all[i].arena_bytes || (windows && all[i].arena_bytes != all[0].arena_bytes))
            return false;
    }
    return true;
}

// Staging and tree memory: as large on all ranks that there are several of.
static gs_nccl_manner own_manner(const peer_info *all, int world_size) {
    gs_nccl_manner manner = {.windows = true, .registers = true, .how = "not registered"};
    for (int i = 0; i < world_size; i++) {
        manner.windows &= all[i].registers_own && all[i].owns_windows;
        manner.registers &= all[i].registers_own && all[i].has_registration;
    }
    return manner;
}

// Kernels of all lanes have to fit on the device together, and those of a group (gs_comm_split) beside those of the
// world: one that waits for its peers stays until they have come, and would keep another from starting for which they
// wait. Each block has a multiprocessor. 0: as the library likes.
static int most_ctas_of(const gs_nccl_comm *nccl, const peer_info *peers) {
    int least = peers[0].num_multiprocessors;
    for (int i = 1; i < nccl->world_size; i++) {
        if (peers[i].num_multiprocessors < least) least = peers[i].num_multiprocessors;
    }
    bool is_group = nccl->options->group && *nccl->options->group;
    if (least <= 0 || (nccl->num_lanes == 1 && !is_group && least >= ROOMY)) return 0;
    int room = is_group ? least / GROUP_DIVISOR : least - least / GROUP_DIVISOR;
    int most = room / nccl->num_lanes;
    return most < 1 ? 1 : most > MOST_CTAS ? MOST_CTAS : most;
}

// What rank 0's environment asks for, as far as all kernels still fit: products beside them have the rest.
static gs_nccl_ctas ctas_of(const gs_nccl_comm *nccl, const peer_info *peers) {
    const int fit = most_ctas_of(nccl, peers), asked = peers[0].most_ctas;
    gs_nccl_ctas ctas = {.least = peers[0].least_ctas, .most = asked && (!fit || asked < fit) ? asked : fit};
    if (ctas.most && ctas.least > ctas.most) ctas.least = ctas.most;
    return ctas;
}

static gs_status connect_ranks(gs_nccl_comm *nccl, const gs_nccl_id *id, gs_nccl_ctas ctas,
                               gs_deadline deadline) {
    gs_nccl_lane *lane = &nccl->lanes[0];
    gs_status status = gs_nccl_begin_init(nccl->library, &lane->handle, id, nccl->rank,
                                          nccl->world_size, ctas);
    if (!status.code) status = gs_nccl_settle(lane, "ncclCommInitRankConfig", deadline);
    return gs_status_prefix(status, "NCCL communicator");
}

static gs_status split_off(gs_nccl_lane *parent, gs_nccl_lane *lane, gs_nccl_ctas ctas,
                           gs_deadline deadline) {
    const gs_nccl_comm *nccl = lane->comm;
    GS_TRY(gs_nccl_begin_split(nccl->library, parent->handle, &lane->handle, nccl->rank, ctas));
    GS_TRY(gs_nccl_settle(parent, "ncclCommSplit", deadline));
    if (!lane->handle) return gs_error(GS_INTERNAL, "ncclCommSplit gave no communicator");
    return gs_nccl_settle(lane, "ncclCommSplit", deadline);
}

static gs_status wait_event(const gs_nccl_lane *lane, gs_event *event, const char *what,
                            gs_deadline deadline) {
    bool done = false, in_progress;
    for (;;) {
        GS_TRY(gs_event_query(event, &done));
        if (done) return gs_ok();
        GS_TRY(gs_nccl_query(lane->comm->library, lane->handle, &in_progress));
        GS_TRY(gs_nccl_check(lane->comm));
        if (gs_deadline_passed(deadline))
            return gs_error(
                GS_DEADLINE_EXCEEDED,
                "%s did not end in time; NCCL does not say which rank is missing", what);
        gs_sleep_ns(20000);
    }
}

// Each rank gives its number plus one, so that the sum is known.
static gs_status add_and_check(gs_nccl_lane *lane, size_t count, gs_deadline deadline) {
    const gs_nccl_comm *nccl = lane->comm;
    const gs_kernels *kernels = gs_device_kernels(nccl->device);
    gs_nccl_target target = gs_nccl_target_of(lane);
    float *data = (float *)(void *)lane->staging, *seen = (float *)(void *)lane->pinned;
    float sum = (float)nccl->world_size * (float)(nccl->world_size + 1) / 2;
    kernels->fill(lane->stream, data, (float)(nccl->rank + 1), count);
    GS_TRY(gs_nccl_allreduce(&target, data, data, count, GS_FP32, GS_OP_SUM));
    GS_TRY(gs_nccl_settle(lane, "the first all-reduce", deadline));
    kernels->copy(lane->stream, seen, data, count * sizeof *data);
    gs_event_record(nccl->next_anchor, lane->stream);
    GS_TRY(wait_event(lane, nccl->next_anchor, "the first all-reduce", deadline));
    GS_TRY(gs_stream_wait(lane->stream, deadline));
    for (size_t i = 0; i < count; i++) {
        if (seen[i] != sum)
            return gs_error(GS_DATA_LOSS, "the first all-reduce of %zu elements gave %g, not %g",
                            count, (double)seen[i], (double)sum);
    }
    return gs_ok();
}

// Connections are made at first use, and small and large collectives use different ones.
static gs_status warm_up(gs_nccl_lane *lane, gs_deadline deadline) {
    size_t largest = GS_NCCL_NUM_SLOTS * GS_NCCL_SLOT_BYTES / sizeof(float);
    GS_TRY(add_and_check(lane, 1, deadline));
    return add_and_check(lane, largest, deadline);
}

static gs_status split_lanes(gs_nccl_comm *nccl, gs_nccl_ctas ctas, gs_deadline deadline) {
    for (int i = 1; i < nccl->num_lanes; i++)
        GS_TRY(gs_status_prefix(split_off(&nccl->lanes[0], &nccl->lanes[i], ctas, deadline), "lane %d", i));
    return gs_ok();
}

static gs_status warm_lanes(gs_nccl_comm *nccl, gs_deadline deadline) {
    GS_TRY(warm_up(&nccl->lanes[0], deadline));
    for (int i = 1; i < nccl->num_lanes; i++)
        GS_TRY(gs_status_prefix(warm_up(&nccl->lanes[i], deadline), "lane %d", i));
    return gs_ok();
}

static gs_status register_arena(gs_nccl_lane *lane, gs_stages *stages, const peer_info *peers,
                                const char **how, gs_deadline deadline) {
    const gs_nccl_comm *nccl = lane->comm;
    gs_nccl_manner manner = {.windows = all_may(peers, nccl->world_size, true),
                             .registers = all_may(peers, nccl->world_size, false)};
    lane->arena.name = "arena";
    if (nccl->arena) {
        lane->arena.memory = gs_arena_data(nccl->arena);
        lane->arena.bytes = gs_arena_bytes(nccl->arena);
    }
    gs_status status = gs_nccl_register_region(lane, &lane->arena, stages, &manner, deadline);
    *how = manner.how;
    return status;
}

// The same in the arena, whose paths are others: at its head, which is put back behind it. What a survivor still has
// to apply lies there, so rank 0's GRADSYNC_NCCL_WARM_ARENA=1 asks for it.
static gs_status warm_arena(gs_nccl_lane *lane, const peer_info *peers, gs_deadline deadline) {
    const gs_nccl_comm *nccl = lane->comm;
    const gs_kernels *kernels = gs_device_kernels(nccl->device);
    gs_nccl_target target = gs_nccl_target_of(lane);
    size_t bytes = GS_NCCL_NUM_SLOTS * GS_NCCL_SLOT_BYTES;
    if (!peers[0].warms_arena || (!lane->arena.window && !lane->arena.registration)) return gs_ok();
    for (int i = 0; i < nccl->world_size; i++)
        if (peers[i].arena_bytes < bytes) bytes = (size_t)peers[i].arena_bytes;
    void *head = gs_arena_data(nccl->arena);
    bytes -= bytes % sizeof(float);
    if (!bytes) return gs_ok();
    gs_stream_follow(lane->stream, gs_device_stream(nccl->device));
    kernels->copy(lane->stream, lane->staging, head, bytes);
    GS_TRY(gs_nccl_allreduce(&target, head, head, bytes / sizeof(float), GS_FP32, GS_OP_SUM));
    GS_TRY(gs_nccl_settle(lane, "the arena's first all-reduce", deadline));
    kernels->copy(lane->stream, head, lane->staging, bytes);
    gs_event_record(nccl->next_anchor, lane->stream);
    GS_TRY(wait_event(lane, nccl->next_anchor, "the arena's first all-reduce", deadline));
    return gs_stream_wait(lane->stream, deadline);
}

// Peers that wait for this rank inside the library see its connections close, and come to hear why.
static void abandon(gs_nccl_comm *nccl, gs_status why) {
    gs_nccl_fail(nccl, why, &(gs_comm_failure){.reporter = nccl->rank, .bucket = -1});
    gs_nccl_leave(nccl);
}

// How the arena is registered, and staging with the tree's memory; "" where nobody asked for that.
typedef struct registered {
    const char *arena, *own;
} registered;

// Before the first collective, which warms what comes of it.
static gs_status register_own(gs_nccl_comm *nccl, gs_stages *stages, gs_nccl_manner *manner,
                              gs_deadline deadline) {
    for (int i = 0; i < nccl->num_lanes; i++)
        GS_TRY(gs_nccl_register_region(&nccl->lanes[i], &nccl->lanes[i].own, stages, manner, deadline));
    return gs_ok();
}

static gs_status bring_up(gs_nccl_comm *nccl, gs_stages *stages, const peer_info *peers,
                          registered *how, gs_deadline deadline) {
    gs_nccl_library_log(nccl->library);
    const gs_nccl_ctas ctas = ctas_of(nccl, peers);
    gs_status connected = connect_ranks(nccl, &peers[0].id, ctas, deadline);
    GS_TRY(gs_stages_meet(stages, "NCCL communicator", connected, NULL, NULL, 0));
    gs_status opened = split_lanes(nccl, ctas, deadline);
    gs_nccl_manner own = own_manner(peers, nccl->world_size);
    if (own.windows || own.registers) {
        if (opened.code) abandon(nccl, opened);
        GS_TRY(gs_stages_meet(stages, "NCCL lanes", opened, NULL, NULL, 0));
        GS_TRY(register_own(nccl, stages, &own, deadline));
    }
    if (peers[0].registers_own) how->own = own.how;
    if (!opened.code) opened = warm_lanes(nccl, deadline);
    if (opened.code) abandon(nccl, opened);
    GS_TRY(gs_stages_meet(stages, "NCCL", opened, NULL, NULL, 0));
    for (int i = 0; i < nccl->num_lanes; i++)
        GS_TRY(register_arena(&nccl->lanes[i], stages, peers, &how->arena, deadline));
    gs_status warmed = gs_ok();
    for (int i = 0; i < nccl->num_lanes && !warmed.code; i++)
        warmed = warm_arena(&nccl->lanes[i], peers, deadline);
    if (warmed.code) abandon(nccl, warmed);
    GS_TRY(gs_stages_meet(stages, "NCCL arena", warmed, NULL, NULL, 0));
    GS_TRY(gs_nccl_anchor_clock(nccl, deadline));
    if (nccl->anchor_ns) return gs_ok();
    return gs_error(GS_DEADLINE_EXCEEDED, "%s did not come to an event in time",
                    gs_device_name(nccl->device));
}

gs_status gs_nccl_open(gs_nccl_comm *nccl, gs_stages *stages, char *reason, size_t reason_bytes,
                       gs_deadline deadline) {
    size_t peers_bytes = (size_t)nccl->world_size * sizeof(peer_info);
    peer_info mine = {0}, *peers = calloc(1, peers_bytes);
    if (!peers) return gs_error(GS_RESOURCE_EXHAUSTED, "NCCL: out of memory");
    gs_status able = make_own_part(nccl);
    if (!able.code) able = fill_info(&mine, nccl);
    gs_status status = gs_stages_meet(stages, "NCCL", able, peers, &mine, sizeof mine);
    if (!status.code)
        status = gs_stages_conclude(stages, compare_peers(peers, nccl->world_size));
    registered how = {.arena = "", .own = ""};
    if (!status.code) status = bring_up(nccl, stages, peers, &how, deadline);
    if (status.code && !able.code) atomic_fetch_add(&num_failed_attempts, 1);
    int version = peers[0].version;
    explicit_bzero(peers, peers_bytes);
    explicit_bzero(&mine, sizeof mine);
    free(peers);
    if (status.code)
        snprintf(reason, reason_bytes, "%s", status.message);
    else
        snprintf(reason, reason_bytes, "all %d ranks have a GPU; NCCL %d.%d.%d, arena %s%s%s",
                 nccl->world_size, version / 10000, version / 100 % 100, version % 100, how.arena,
                 *how.own ? ", staging " : "", how.own);
    return status;
}
