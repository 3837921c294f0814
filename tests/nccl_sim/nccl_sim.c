// A stand-in of libnccl.so.2: the calls that gradsync uses, between processes of one host, on the streams of
// the software CUDA machine; and it obeys orders to fail (orders.h). Where the real library is strict or
// strange, so is this one: calls while one is in progress are refused, each launch of a non-blocking
// communicator has a thread, aborts and destroys do not come back when told so, sums run in an order of
// its own, a rank that dies is a closed connection while the stream spins.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/nccl_sim/orders.h"
#include "tests/nccl_sim/sim_comm.h"

#define VISIBLE __attribute__((visibility("default")))
#define DEFAULT_VERSION 22809
#define DEFAULT_BLOCKS 32

// Of the group that the calling thread is in.
static _Thread_local int group_depth;
static _Thread_local struct ncclComm *group_comm;
static _Thread_local char last_error[160];

static void pause_ms(long ms) {
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void hang(void) {
    for (;;) pause_ms(1000);
}

static _Atomic uint64_t num_calls_of[16];

// What the test wants this call to return.
static ncclResult_t ordered_result(const char *call, int number) {
    char name[64];
    long value;
    uint64_t count = atomic_fetch_add(&num_calls_of[number], 1) + 1;
    snprintf(name, sizeof name, "fail.%s", call);
    return nccl_sim_ordered(name, count, &value) ? (ncclResult_t)value : ncclSuccess;
}

#define OBEY(call, number)                                                                         \
    do {                                                                                           \
        ncclResult_t ordered = ordered_result(call, number);                                       \
        if (ordered != ncclSuccess) {                                                              \
            snprintf(last_error, sizeof last_error, "ordered by the test");                        \
            return ordered;                                                                        \
        }                                                                                          \
    } while (0)

void sim_fail(struct ncclComm *comm, ncclResult_t result, const char *why) {
    pthread_mutex_lock(&comm->lock);
    snprintf(comm->why, sizeof comm->why, "%s", why);
    pthread_mutex_unlock(&comm->lock);
    atomic_store(&comm->state, (int)result);
}

void sim_comm_release(struct ncclComm *comm) {
    if (atomic_fetch_sub(&comm->references, 1) != 1) return;
    for (int i = 0; i < comm->num_ranks; i++)
        if (comm->sockets[i] >= 0) close(comm->sockets[i]);
    for (size_t i = 0; i < sizeof comm->registrations / sizeof *comm->registrations; i++)
        free(comm->registrations[i]);
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}

static void *add_registration(struct ncclComm *comm) {
    for (size_t i = 0; i < sizeof comm->registrations / sizeof *comm->registrations; i++)
        if (!comm->registrations[i]) return comm->registrations[i] = malloc(1);
    return NULL;
}

static ncclResult_t drop_registration(struct ncclComm *comm, void *registration) {
    for (size_t i = 0; i < sizeof comm->registrations / sizeof *comm->registrations; i++) {
        if (!registration || comm->registrations[i] != registration) continue;
        free(registration);
        comm->registrations[i] = NULL;
        return ncclSuccess;
    }
    return ncclInvalidArgument;
}

static void join_thread(struct ncclComm *comm) {
    if (comm->has_thread) pthread_join(comm->thread, NULL);
    comm->has_thread = false;
}

static void settle_slowly(const struct ncclComm *comm) {
    long ms;
    if (!nccl_sim_ordered("settle", 0, &ms)) return;
    for (long i = 0; i < ms && !atomic_load(&comm->aborted); i++) pause_ms(1);
}

// An error that came in the meantime stays.
static void end_progress(struct ncclComm *comm, ncclResult_t result) {
    int expected = ncclInProgress;
    atomic_compare_exchange_strong(&comm->state, &expected, (int)result);
}

// An error that was found is what every later call returns.
static ncclResult_t check_idle(struct ncclComm *comm, const char *call) {
    ncclResult_t state = (ncclResult_t)atomic_load(&comm->state);
    if (state == ncclSuccess) return state;
    snprintf(last_error, sizeof last_error,
             "%s: Attempt to use communicator before the previous operation returned ncclSuccess",
             call);
    return state == ncclInProgress ? ncclInvalidArgument : state;
}

static ncclResult_t start_thread(struct ncclComm *comm, void *(*run)(void *)) {
    int expected = ncclSuccess;
    join_thread(comm);
    if (!atomic_compare_exchange_strong(&comm->state, &expected, ncclInProgress))
        return (ncclResult_t)expected;  // found meanwhile
    if (pthread_create(&comm->thread, NULL, run, comm)) return ncclSystemError;
    comm->has_thread = true;
    if (!comm->blocking) return ncclInProgress;
    join_thread(comm);
    return (ncclResult_t)atomic_load(&comm->state);
}

VISIBLE ncclResult_t ncclGetVersion(int *version) {
    long value = DEFAULT_VERSION;
    nccl_sim_ordered("version", 0, &value);
    *version = (int)value;
    return ncclSuccess;
}

VISIBLE const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (unsigned)result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

VISIBLE const char *ncclGetLastError(ncclComm_t comm) {
    if (!comm) return last_error;
    pthread_mutex_lock(&comm->lock);
    if (comm->why[0]) snprintf(last_error, sizeof last_error, "%s", comm->why);
    pthread_mutex_unlock(&comm->lock);
    return last_error;
}

VISIBLE ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    OBEY("ncclGetUniqueId", 0);
    return nccl_sim_make_id(id);
}

VISIBLE ncclResult_t ncclMemAlloc(void **memory, size_t bytes) {
    OBEY("ncclMemAlloc", 1);
    return cudaMalloc(memory, bytes) ? ncclUnhandledCudaError : ncclSuccess;
}

VISIBLE ncclResult_t ncclMemFree(void *memory) {
    return cudaFree(memory) ? ncclUnhandledCudaError : ncclSuccess;
}

static void *run_init(void *ctx) {
    struct ncclComm *comm = ctx;
    struct cudaDeviceProp properties;
    nccl_sim_card mine = {.rank = comm->rank, .num_ranks = comm->num_ranks};
    const char *host_id = getenv("NCCL_HOSTID");
    char why[160];
    snprintf(mine.host_id, sizeof mine.host_id, "%s", host_id ? host_id : "");
    ncclGetVersion(&mine.version);
    if (cudaSetDevice(comm->device) || cudaGetDeviceProperties(&properties, comm->device)) {
        end_progress(comm, ncclUnhandledCudaError);
        return NULL;
    }
    memcpy(mine.device, properties.uuid.bytes, sizeof mine.device);
    while (nccl_sim_ordered("hang.init", 0, NULL) && !atomic_load(&comm->aborted)) pause_ms(1);
    settle_slowly(comm);
    ncclResult_t result = nccl_sim_connect(comm->sockets, comm->cards, &mine, &comm->id,
                                           &comm->aborted, why, sizeof why);
    if (result != ncclSuccess) {
        sim_fail(comm, result, why);
        return NULL;
    }
    comm->can_window = true;
    for (int i = 0; i < comm->num_ranks; i++)
        comm->can_window &= strcmp(comm->cards[i].host_id, mine.host_id) == 0;
    comm->can_window |= nccl_sim_ordered("windows", 0, NULL);
    comm->can_window &= !nccl_sim_ordered("no-windows", 0, NULL);
    end_progress(comm, ncclSuccess);
    return NULL;
}

// A kernel holds its multiprocessors until it ends, and waits until there are as many.
static ncclResult_t count_blocks(struct ncclComm *comm, const ncclConfig_t *config) {
    struct cudaDeviceProp properties;
    if (cudaGetDevice(&comm->device) || cudaGetDeviceProperties(&properties, comm->device))
        return ncclUnhandledCudaError;
    comm->num_blocks = config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? DEFAULT_BLOCKS : config->maxCTAs;
    if (comm->num_blocks > properties.multiProcessorCount)
        comm->num_blocks = properties.multiProcessorCount;
    return ncclSuccess;
}

static ncclResult_t make_comm(struct ncclComm **out, int num_ranks, int rank,
                              const ncclConfig_t *config) {
    if (config->magic != 0xcafebeef || config->maxCTAs == 0) return ncclInvalidArgument;
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (!comm) return ncclSystemError;
    comm->references = 1;
    comm->rank = rank;
    comm->num_ranks = num_ranks;
    comm->blocking = config->blocking != 0;
    for (int i = 0; i < num_ranks; i++) comm->sockets[i] = -1;
    pthread_mutex_init(&comm->lock, NULL);
    ncclResult_t result = count_blocks(comm, config);
    if (result == ncclSuccess)
        *out = comm;
    else
        sim_comm_release(comm);
    return result;
}

VISIBLE ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int num_ranks, ncclUniqueId id,
                                            int rank, ncclConfig_t *config) {
    OBEY("ncclCommInitRankConfig", 2);
    if (num_ranks < 1 || num_ranks > NCCL_SIM_MAX_RANKS || rank < 0 || rank >= num_ranks)
        return ncclInvalidArgument;
    struct ncclComm *comm;
    ncclResult_t result = make_comm(&comm, num_ranks, rank, config);
    if (result != ncclSuccess) return result;
    comm->id = id;
    *out = comm;
    return start_thread(comm, run_init);
}

// Whoever asks gets the child when all is done, and nothing when it fails.
static void *run_split(void *ctx) {
    struct ncclComm *parent = ctx, *child = parent->child;
    bool met = parent->rank != 0 || nccl_sim_make_id(&child->id) == ncclSuccess;
    settle_slowly(parent);
    met = met && nccl_sim_share_id(parent->sockets, parent->rank, parent->num_ranks, &child->id,
                                   &child->aborted);
    if (met) {
        atomic_store(&child->state, ncclInProgress);
        run_init(child);
    }
    ncclResult_t result = met ? (ncclResult_t)atomic_load(&child->state) : ncclRemoteError;
    pthread_mutex_lock(&parent->lock);
    parent->child = NULL;
    pthread_mutex_unlock(&parent->lock);
    if (result == ncclSuccess) {
        *parent->child_out = child;
        end_progress(parent, ncclSuccess);
    } else {
        sim_fail(parent, result, child->why[0] ? child->why : "ranks could not split");
        sim_comm_release(child);
    }
    return NULL;
}

VISIBLE ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out,
                                   ncclConfig_t *config) {
    OBEY("ncclCommSplit", 15);
    ncclResult_t result = check_idle(parent, "ncclCommSplit");
    if (result != ncclSuccess) return result;
    // The stand-in has no more than gradsync asks for: all ranks again, in the same order.
    if (color != 0 || key != parent->rank) return ncclInvalidArgument;
    if (atomic_load(&parent->executed) != atomic_load(&parent->enqueued)) return ncclInvalidUsage;
    result = make_comm(&parent->child, parent->num_ranks, parent->rank, config);
    if (result != ncclSuccess) return result;
    parent->child_out = out;
    return start_thread(parent, run_split);
}

VISIBLE ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    OBEY("ncclCommGetAsyncError", 3);
    *error = (ncclResult_t)atomic_load(&comm->state);
    return ncclSuccess;
}

static void *run_finalize(void *ctx) {
    struct ncclComm *comm = ctx;
    settle_slowly(comm);
    while (atomic_load(&comm->executed) != atomic_load(&comm->enqueued) &&
           !atomic_load(&comm->aborted))
        pause_ms(1);
    end_progress(comm, ncclSuccess);
    return NULL;
}

VISIBLE ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    OBEY("ncclCommFinalize", 4);
    ncclResult_t result = check_idle(comm, "ncclCommFinalize");
    return result != ncclSuccess ? result : start_thread(comm, run_finalize);
}

VISIBLE ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (nccl_sim_ordered("hang.destroy", 0, NULL)) hang();
    join_thread(comm);
    sim_comm_release(comm);
    return ncclSuccess;
}

VISIBLE ncclResult_t ncclCommAbort(ncclComm_t comm) {
    atomic_store(&comm->aborted, true);
    pthread_mutex_lock(&comm->lock);
    if (comm->child) atomic_store(&comm->child->aborted, true);
    pthread_mutex_unlock(&comm->lock);
    long slow_ms = 0;
    if (nccl_sim_ordered("hang.abort", 0, NULL)) hang();
    if (nccl_sim_ordered("slow.abort", 0, &slow_ms)) pause_ms(slow_ms);
    join_thread(comm);
    // Peers see the connections go, whatever still waits on the stream.
    for (int i = 0; i < comm->num_ranks; i++)
        if (comm->sockets[i] >= 0) nccl_sim_hang_up(comm->sockets[i]);
    sim_comm_release(comm);
    return ncclSuccess;
}

static void *run_launch(void *ctx) {
    struct ncclComm *comm = ctx;
    ncclResult_t result = cudaSetDevice(comm->device) ? ncclUnhandledCudaError : ncclSuccess;
    settle_slowly(comm);
    for (size_t i = 0; i < comm->num_calls; i++)
        if (sim_enqueue(comm, &comm->calls[i])) result = ncclUnhandledCudaError;
    end_progress(comm, result);
    return NULL;
}

static ncclResult_t launch(struct ncclComm *comm) {
    if (comm->num_calls == 0) return ncclSuccess;
    return start_thread(comm, run_launch);
}

static ncclResult_t add_call(struct ncclComm *comm, const char *name, const sim_call *call) {
    ncclResult_t result = check_idle(comm, name);
    if (result != ncclSuccess) return result;
    if (group_depth == 0 || group_comm != comm) comm->num_calls = 0;
    if (group_depth && group_comm && group_comm != comm) return ncclInvalidUsage;
    if (comm->num_calls == sizeof comm->calls / sizeof *comm->calls) return ncclInternalError;
    group_comm = group_depth ? comm : NULL;
    comm->calls[comm->num_calls++] = *call;
    return group_depth ? ncclSuccess : launch(comm);
}

VISIBLE ncclResult_t ncclGroupStart(void) {
    if (group_depth++ == 0) group_comm = NULL;
    return ncclSuccess;
}

VISIBLE ncclResult_t ncclGroupEnd(void) {
    struct ncclComm *comm = group_comm;
    if (group_depth == 0) return ncclInvalidUsage;
    if (--group_depth) return ncclSuccess;
    group_comm = NULL;
    OBEY("ncclGroupEnd", 5);
    return comm ? launch(comm) : ncclSuccess;
}

VISIBLE ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                                   ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    OBEY("ncclAllReduce", 6);
    return add_call(comm, "ncclAllReduce",
                    &(sim_call){.kind = SIM_ALLREDUCE,
                                .send = send,
                                .recv = recv,
                                .count = count,
                                .dtype = dtype,
                                .op = op,
                                .stream = stream});
}

VISIBLE ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                                ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
    OBEY("ncclReduce", 7);
    return add_call(comm, "ncclReduce",
                    &(sim_call){.kind = SIM_REDUCE,
                                .send = send,
                                .recv = recv,
                                .count = count,
                                .dtype = dtype,
                                .op = op,
                                .root = root,
                                .stream = stream});
}

VISIBLE ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count,
                                       ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,
                                       cudaStream_t stream) {
    OBEY("ncclReduceScatter", 8);
    return add_call(comm, "ncclReduceScatter",
                    &(sim_call){.kind = SIM_REDUCE_SCATTER,
                                .send = send,
                                .recv = recv,
                                .count = count,
                                .dtype = dtype,
                                .op = op,
                                .stream = stream});
}

VISIBLE ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                                   ncclComm_t comm, cudaStream_t stream) {
    OBEY("ncclAllGather", 9);
    return add_call(comm, "ncclAllGather",
                    &(sim_call){.kind = SIM_ALLGATHER,
                                .send = send,
                                .recv = recv,
                                .count = count,
                                .dtype = dtype,
                                .stream = stream});
}

VISIBLE ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                                   int root, ncclComm_t comm, cudaStream_t stream) {
    OBEY("ncclBroadcast", 10);
    return add_call(comm, "ncclBroadcast",
                    &(sim_call){.kind = SIM_BROADCAST,
                                .send = send,
                                .recv = recv,
                                .count = count,
                                .dtype = dtype,
                                .root = root,
                                .stream = stream});
}

// All sends and receives of a group are one operation.
static ncclResult_t add_transfer(struct ncclComm *comm, const char *name, sim_transfer transfer,
                                 cudaStream_t stream) {
    sim_call *last = comm->num_calls ? &comm->calls[comm->num_calls - 1] : NULL;
    bool joins = group_depth && group_comm == comm && last && last->kind == SIM_POINT_TO_POINT;
    if (!joins) {
        ncclResult_t result = ncclInvalidUsage;  // alone it could wait for itself
        if (group_depth)
            result = add_call(comm, name, &(sim_call){.kind = SIM_POINT_TO_POINT,
                                                      .dtype = ncclUint8,
                                                      .stream = stream});
        if (result != ncclSuccess) return result;
        last = &comm->calls[comm->num_calls - 1];
    }
    sim_transfer *grown =
        realloc(last->transfers, (last->num_transfers + 1) * sizeof *last->transfers);
    if (!grown) return ncclSystemError;
    last->transfers = grown;
    last->transfers[last->num_transfers++] = transfer;
    return ncclSuccess;
}

VISIBLE ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t dtype, int peer,
                              ncclComm_t comm, cudaStream_t stream) {
    OBEY("ncclSend", 11);
    return add_transfer(comm, "ncclSend",
                        (sim_transfer){.data = (void *)(uintptr_t)send,
                                       .bytes = count * sim_type_bytes(dtype),
                                       .peer = peer,
                                       .sends = true},
                        stream);
}

VISIBLE ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t dtype, int peer,
                              ncclComm_t comm, cudaStream_t stream) {
    OBEY("ncclRecv", 12);
    return add_transfer(
        comm, "ncclRecv",
        (sim_transfer){.data = recv, .bytes = count * sim_type_bytes(dtype), .peer = peer}, stream);
}

static bool is_device_memory(const void *memory) {
    struct cudaPointerAttributes facts;
    return cudaPointerGetAttributes(&facts, memory) == cudaSuccess &&
           facts.type == cudaMemoryTypeDevice;
}

VISIBLE ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t bytes,
                                      void **handle) {
    OBEY("ncclCommRegister", 13);
    (void)bytes;
    ncclResult_t result = check_idle(comm, "ncclCommRegister");
    if (result != ncclSuccess) return result;
    if (!is_device_memory(memory)) return ncclInvalidArgument;
    *handle = add_registration(comm);
    return ncclSuccess;
}

VISIBLE ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
    ncclResult_t result = check_idle(comm, "ncclCommDeregister");
    return result != ncclSuccess ? result : drop_registration(comm, handle);
}

VISIBLE ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes,
                                            ncclWindow_t *window, int flags) {
    OBEY("ncclCommWindowRegister", 14);
    (void)flags;
    (void)bytes;
    ncclResult_t result = check_idle(comm, "ncclCommWindowRegister");
    if (result != ncclSuccess) return result;
    if (!is_device_memory(memory)) return ncclInvalidArgument;
    *window = comm->can_window ? add_registration(comm) : NULL;
    comm->num_calls = 0;
    return start_thread(comm, run_launch);
}

VISIBLE ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
    ncclResult_t result = check_idle(comm, "ncclCommWindowDeregister");
    return result != ncclSuccess ? result : drop_registration(comm, window);
}
