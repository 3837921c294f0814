// A communicator of the stand-in, shared by its files.
#ifndef TESTS_NCCL_SIM_SIM_COMM_H
#define TESTS_NCCL_SIM_SIM_COMM_H

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/nccl_sim/mesh.h"

typedef enum sim_kind {
    SIM_ALLREDUCE = 1,
    SIM_REDUCE,
    SIM_REDUCE_SCATTER,
    SIM_ALLGATHER,
    SIM_BROADCAST,
    SIM_POINT_TO_POINT
} sim_kind;

// One send or receive of a group.
typedef struct sim_transfer {
    void *data;
    size_t bytes;
    int peer;
    bool sends;
} sim_transfer;

typedef struct sim_call {
    sim_kind kind;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t dtype;
    ncclRedOp_t op;
    int root;
    cudaStream_t stream;
    sim_transfer *transfers;  // SIM_POINT_TO_POINT; owned
    size_t num_transfers;
} sim_call;

struct ncclComm {
    atomic_int references;  // the user's, and one for each operation on a stream
    int rank, num_ranks, device;
    int num_blocks;  // of each kernel
    bool blocking, connected, can_window;
    int sockets[NCCL_SIM_MAX_RANKS];
    nccl_sim_card cards[NCCL_SIM_MAX_RANKS];
    ncclUniqueId id;
    atomic_bool aborted;
    _Atomic int state;  // ncclResult_t: what is in progress, or how it ended
    _Atomic uint64_t enqueued, executed;
    pthread_t thread;  // of initialisation, of the last launch, of finalize
    bool has_thread;
    pthread_mutex_t lock;  // of `why` and `child`
    char why[160];
    struct ncclComm *child, **child_out;  // while it is split
    void *registrations[64];  // freed with the communicator at the latest
    // Of the thread:
    sim_call calls[128];
    size_t num_calls;
};

void sim_comm_release(struct ncclComm *comm);
void sim_fail(struct ncclComm *comm, ncclResult_t result, const char *why);
size_t sim_type_bytes(ncclDataType_t dtype);
// result = a op b, element by element, rounded to the type at once.
void sim_combine(void *result, const void *a, const void *b, size_t count, ncclDataType_t dtype,
                 ncclRedOp_t op);
// Gives the call to its stream; takes its transfers.
cudaError_t sim_enqueue(struct ncclComm *comm, const sim_call *call);

#endif
