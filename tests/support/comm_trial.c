#include "tests/support/comm_trial.h"

#include "tests/support/comm_rank.h"

comm_trial comm_trial_make(gs_collective_kind kind, gs_dtype dtype, size_t count, int world_size,
                           int root, uint64_t seed) {
    size_t all = count * (size_t)world_size;
    return (comm_trial){.collective = {.kind = kind,
                                       .dtype = dtype,
                                       .count = count,
                                       .root = root,
                                       .step = (int64_t)seed,
                                       .bucket = -1},
                        .seed = seed,
                        .send_count = kind == GS_REDUCE_SCATTER ? all : count,
                        .recv_count = kind == GS_ALLGATHER ? all : count};
}

void comm_trial_place(comm_trial *one, unsigned char *send, unsigned char *recv, int rank) {
    size_t own = one->collective.count * gs_dtype_bytes(one->collective.dtype) * (size_t)rank;
    one->collective.send = send;
    one->collective.recv = recv ? recv : send;
    if (!recv && one->collective.kind == GS_REDUCE_SCATTER) one->collective.recv = send + own;
    if (!recv && one->collective.kind == GS_ALLGATHER) one->collective.send = send + own;
    fill_pattern((void *)(uintptr_t)one->collective.send, one->collective.dtype, one->send_count,
                 one->seed, rank, 0);
}

gs_status comm_trial_check(const comm_trial *one, int rank, int world_size) {
    const gs_collective *c = &one->collective;
    const unsigned char *recv = c->recv;
    size_t bytes = c->count * gs_dtype_bytes(c->dtype);
    switch (c->kind) {
    case GS_REDUCE:
        if (rank != c->root) return gs_ok();
        return check_pattern(recv, c->dtype, c->count, one->seed, -1, world_size, 0);
    case GS_ALLREDUCE:
        return check_pattern(recv, c->dtype, c->count, one->seed, -1, world_size, 0);
    case GS_REDUCE_SCATTER:
        return check_pattern(recv, c->dtype, c->count, one->seed, -1, world_size,
                             c->count * (size_t)rank);
    case GS_ALLGATHER:
        for (int i = 0; i < world_size; i++)
            GS_TRY(check_pattern(recv + (size_t)i * bytes, c->dtype, c->count, one->seed, i,
                                 world_size, 0));
        return gs_ok();
    default:
        return check_pattern(recv, c->dtype, c->count, one->seed, c->root, world_size, 0);
    }
}
