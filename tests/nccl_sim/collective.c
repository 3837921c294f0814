// What a collective does when its turn on the stream has come: everybody's bytes to everybody who needs them,
// through sockets that never block, one look at a time. It ends when all is there, or by an abort. When a
// peer is gone the communicator says so, and the stream stays where it is, as a spinning kernel would.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "core/dtype.h"
#include "tests/cuda_sim/machine.h"
#include "tests/nccl_sim/orders.h"
#include "tests/nccl_sim/sim_comm.h"

// Before the bytes: what must be equal on both sides.
typedef struct header {
    uint64_t sequence, bytes, count;
    int32_t kind, dtype, op, root;
} header;

typedef struct lane {
    header sends, receives;
    unsigned char *out, *in;  // owned
    size_t out_done, in_done;  // header included
} lane;

typedef struct operation {
    struct ncclComm *comm;
    sim_call call;
    uint64_t sequence;
    bool is_resident;  // its blocks have multiprocessors
    bool begun, stuck;
    int64_t end_ns;  // not before
    lane lanes[NCCL_SIM_MAX_RANKS];
} operation;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

size_t sim_type_bytes(ncclDataType_t dtype) {
    switch (dtype) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    default:
        return 4;
    }
}

static float read_half(const void *at, size_t i, ncclDataType_t dtype) {
    uint16_t bits = ((const uint16_t *)at)[i];
    return dtype == ncclFloat16 ? gs_fp16_to_fp32(bits) : gs_bf16_to_fp32(bits);
}

static void write_half(void *at, size_t i, ncclDataType_t dtype, float value) {
    ((uint16_t *)at)[i] = dtype == ncclFloat16 ? gs_fp32_to_fp16(value) : gs_fp32_to_bf16(value);
}

#define PICK(x, y, sum) \
    (op == ncclMax ? ((x) > (y) ? (x) : (y)) : op == ncclMin ? ((x) < (y) ? (x) : (y)) : (sum))
// Sums of integers wrap around (digests are added), and are formed in `wide` for that.
#define COMBINE_AS(type, wide)                                                                     \
    for (size_t i = 0; i < count; i++) {                                                           \
        type x = ((const type *)a)[i], y = ((const type *)b)[i];                                   \
        ((type *)result)[i] = PICK(x, y, (type)((wide)x + (wide)y));                               \
    }                                                                                              \
    break

void sim_combine(void *result, const void *a, const void *b, size_t count, ncclDataType_t dtype,
                 ncclRedOp_t op) {
    switch (dtype) {
    case ncclFloat32:
        COMBINE_AS(float, float);
    case ncclFloat64:
        COMBINE_AS(double, double);
    case ncclInt32:
        COMBINE_AS(int32_t, uint32_t);
    case ncclInt64:
        COMBINE_AS(int64_t, uint64_t);
    default:
        for (size_t i = 0; i < count; i++) {
            float x = read_half(a, i, dtype), y = read_half(b, i, dtype);
            write_half(result, i, dtype, PICK(x, y, x + y));
        }
    }
}

// Bytes for `peer`, packed into fresh memory.
static size_t pack(const operation *run, int peer, unsigned char **out) {
    const sim_call *call = &run->call;
    size_t bytes = call->count * sim_type_bytes(call->dtype), offset = 0;
    int rank = run->comm->rank;
    *out = NULL;
    if (call->kind == SIM_POINT_TO_POINT) {
        bytes = 0;
        for (size_t i = 0; i < call->num_transfers; i++)
            if (call->transfers[i].sends && call->transfers[i].peer == peer)
                bytes += call->transfers[i].bytes;
        *out = malloc(bytes + 1);
        for (size_t i = 0; i < call->num_transfers && *out; i++) {
            const sim_transfer *one = &call->transfers[i];
            if (!one->sends || one->peer != peer) continue;
            memcpy(*out + offset, one->data, one->bytes);
            offset += one->bytes;
        }
        return bytes;
    }
    if ((call->kind == SIM_REDUCE && call->root != peer) ||
        (call->kind == SIM_BROADCAST && call->root != rank))
        return 0;
    if (call->kind == SIM_REDUCE_SCATTER) offset = bytes * (size_t)peer;
    *out = malloc(bytes + 1);
    if (*out && bytes) memcpy(*out, (const unsigned char *)call->send + offset, bytes);
    return bytes;
}

static size_t expected_from(const operation *run, int peer) {
    const sim_call *call = &run->call;
    size_t bytes = call->count * sim_type_bytes(call->dtype);
    if (call->kind == SIM_POINT_TO_POINT) {
        bytes = 0;
        for (size_t i = 0; i < call->num_transfers; i++)
            if (!call->transfers[i].sends && call->transfers[i].peer == peer)
                bytes += call->transfers[i].bytes;
        return bytes;
    }
    if (call->kind == SIM_REDUCE && call->root != run->comm->rank) return 0;
    if (call->kind == SIM_BROADCAST && call->root != peer) return 0;
    return bytes;
}

static bool begin(operation *run) {
    struct ncclComm *comm = run->comm;
    const sim_call *call = &run->call;
    long value;
    run->begun = true;
    if (nccl_sim_ordered("async", run->sequence, &value)) {
        sim_fail(comm, (ncclResult_t)value, "ordered by the test");
        run->stuck = true;
    }
    if (nccl_sim_ordered("hang.collective", run->sequence, NULL)) run->stuck = true;
    if (run->stuck) return true;
    for (int peer = 0; peer < comm->num_ranks; peer++) {
        lane *one = &run->lanes[peer];
        size_t bytes = pack(run, peer, &one->out), expected = expected_from(run, peer);
        one->sends = (header){.sequence = run->sequence,
                              .bytes = bytes,
                              .count = call->count,
                              .kind = (int32_t)call->kind,
                              .dtype = (int32_t)call->dtype,
                              .op = (int32_t)call->op,
                              .root = call->root};
        one->in = malloc(expected + 1);
        if (!one->in || (bytes && !one->out)) return false;
    }
    return true;
}

// True when all of it went or came. The header lies before the bytes.
static bool move_bytes(int fd, void *head, void *body, size_t body_bytes, size_t *done, bool sends,
                       bool *gone) {
    while (*done < sizeof(header) + body_bytes) {
        bool in_head = *done < sizeof(header);
        unsigned char *at = in_head ? (unsigned char *)head + *done
                                    : (unsigned char *)body + (*done - sizeof(header));
        size_t left = in_head ? sizeof(header) - *done : sizeof(header) + body_bytes - *done;
        ssize_t moved = sends ? send(fd, at, left, MSG_DONTWAIT | MSG_NOSIGNAL)
                              : recv(fd, at, left, MSG_DONTWAIT);
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0 && errno == EAGAIN) return false;
        if (moved <= 0) {
            *gone = true;
            return false;
        }
        *done += (size_t)moved;
        if (!sends && *done == sizeof(header)) return body_bytes == 0;  // to be looked at first
    }
    return true;
}

static bool fits(const header *theirs, const header *mine, size_t expected) {
    return theirs->sequence == mine->sequence && theirs->kind == mine->kind &&
           theirs->bytes == expected && theirs->count == mine->count &&
           theirs->dtype == mine->dtype && theirs->op == mine->op && theirs->root == mine->root;
}

static bool move_lane(operation *run, int peer) {
    struct ncclComm *comm = run->comm;
    lane *one = &run->lanes[peer];
    bool gone = false;
    size_t expected = expected_from(run, peer);
    bool sent = move_bytes(comm->sockets[peer], &one->sends, one->out, one->sends.bytes,
                           &one->out_done, true, &gone);
    bool was_head = one->in_done < sizeof(header);
    bool received = move_bytes(comm->sockets[peer], &one->receives, one->in, expected,
                               &one->in_done, false, &gone);
    if (was_head && one->in_done >= sizeof(header) && !fits(&one->receives, &one->sends, expected)) {
        sim_fail(comm, ncclInternalError, "ranks call different collectives");
        run->stuck = true;
        return false;
    }
    if (!received && !gone && one->in_done >= sizeof(header))
        received = move_bytes(comm->sockets[peer], &one->receives, one->in, expected, &one->in_done,
                              false, &gone);
    // A peer that is through may close behind its last byte.
    if (gone) {
        if (received && sent) return true;
        char why[80];
        snprintf(why, sizeof why, "connection closed by rank %d", peer);
        sim_fail(comm, ncclRemoteError, why);
        run->stuck = true;
    }
    return sent && received;
}

static const unsigned char *own_part(const operation *run) {
    const sim_call *call = &run->call;
    size_t bytes = call->count * sim_type_bytes(call->dtype);
    return (const unsigned char *)call->send +
           (call->kind == SIM_REDUCE_SCATTER ? bytes * (size_t)run->comm->rank : 0);
}

// In the order of a ring that ends at rank 0: another one than ours.
static void reduce(const operation *run, void *result) {
    const sim_call *call = &run->call;
    int num_ranks = run->comm->num_ranks;
    size_t bytes = call->count * sim_type_bytes(call->dtype);
    for (int k = 1; k <= num_ranks; k++) {
        int rank = k % num_ranks;
        const void *part = rank == run->comm->rank ? (const void *)own_part(run)
                                                   : (const void *)run->lanes[rank].in;
        if (k == 1)
            memcpy(result, part, bytes);
        else
            sim_combine(result, result, part, call->count, call->dtype, call->op);
    }
}

static void store_transfers(const operation *run) {
    const sim_call *call = &run->call;
    size_t taken[NCCL_SIM_MAX_RANKS] = {0};
    for (size_t i = 0; i < call->num_transfers; i++) {
        const sim_transfer *one = &call->transfers[i];
        if (one->sends) continue;
        memcpy(one->data, run->lanes[one->peer].in + taken[one->peer], one->bytes);
        taken[one->peer] += one->bytes;
    }
}

static bool store_result(const operation *run) {
    const sim_call *call = &run->call;
    const struct ncclComm *comm = run->comm;
    size_t bytes = call->count * sim_type_bytes(call->dtype);
    unsigned char *recv = call->recv, *result = NULL;
    switch (call->kind) {
    case SIM_POINT_TO_POINT:
        store_transfers(run);
        return true;
    case SIM_ALLGATHER:
        for (int i = 0; i < comm->num_ranks; i++)
            memmove(recv + (size_t)i * bytes, i == comm->rank ? call->send : run->lanes[i].in,
                    bytes);
        break;
    case SIM_BROADCAST:
        if (call->root != comm->rank) memcpy(recv, run->lanes[call->root].in, bytes);
        else if (recv != call->send) memmove(recv, call->send, bytes);
        break;
    default:
        if (call->kind == SIM_REDUCE && call->root != comm->rank) return true;
        result = malloc(bytes + 1);
        if (!result) return false;
        reduce(run, result);
        memcpy(recv, result, bytes);
        free(result);
    }
    if (bytes && nccl_sim_ordered("wrong", run->sequence, NULL)) recv[bytes - 1] ^= 0x11;
    return true;
}

static gs_sim_progress finish(operation *run) {
    long late_ms;
    if (!run->end_ns) {
        if (!store_result(run)) return GS_SIM_FAILED;
        run->end_ns = now_ns();
        if (nccl_sim_ordered("late", run->sequence, &late_ms)) run->end_ns += late_ms * 1000000;
    }
    if (now_ns() < run->end_ns) return GS_SIM_AGAIN;
    atomic_store(&run->comm->executed, run->sequence);
    return GS_SIM_DONE;
}

static atomic_int num_resident;  // blocks of kernels, of the process as of its device

static bool take_place(operation *run) {
    struct cudaDeviceProp properties;
    int resident = atomic_load(&num_resident), blocks = run->comm->num_blocks;
    if (run->is_resident) return true;
    if (cudaGetDeviceProperties(&properties, run->comm->device)) return false;
    do {
        if (resident && resident + blocks > properties.multiProcessorCount) return false;
    } while (!atomic_compare_exchange_weak(&num_resident, &resident, resident + blocks));
    return run->is_resident = true;
}

static gs_sim_progress poll_operation(void *ctx) {
    operation *run = ctx;
    struct ncclComm *comm = run->comm;
    if (atomic_load(&comm->aborted)) return GS_SIM_DONE;  // a kernel that sees the flag leaves
    if (run->end_ns) return finish(run);
    if (atomic_load(&comm->executed) + 1 != run->sequence) return GS_SIM_AGAIN;
    if (!take_place(run)) return GS_SIM_AGAIN;
    if (!run->begun && !begin(run)) return GS_SIM_FAILED;
    bool complete = !run->stuck;
    for (int peer = 0; peer < comm->num_ranks && !run->stuck; peer++) {
        if (peer != comm->rank) complete &= move_lane(run, peer);
    }
    return complete && !run->stuck ? finish(run) : GS_SIM_AGAIN;
}

static void drop_operation(void *ctx) {
    operation *run = ctx;
    for (int i = 0; i < run->comm->num_ranks; i++) {
        free(run->lanes[i].out);
        free(run->lanes[i].in);
    }
    free(run->call.transfers);
    if (run->is_resident) atomic_fetch_sub(&num_resident, run->comm->num_blocks);
    sim_comm_release(run->comm);
    free(run);
}

cudaError_t sim_enqueue(struct ncclComm *comm, const sim_call *call) {
    operation *run = calloc(1, sizeof *run);
    if (!run) return cudaErrorMemoryAllocation;
    atomic_fetch_add(&comm->references, 1);
    *run = (operation){
        .comm = comm, .call = *call, .sequence = atomic_fetch_add(&comm->enqueued, 1) + 1};
    gs_sim_work work = {
        .name = "NCCL", .poll = poll_operation, .drop = drop_operation, .ctx = run};
    return gs_sim_enqueue(call->stream, &work);
}
