// The plain hook: one all-reduce for each bucket, in place, the scale folded into it.
#include "gradsync/hooks/comm_hook.h"

static gs_status create(void **state, gs_comm *comm) {
    (void)comm;
    *state = NULL;
    return gs_ok();
}

static gs_status run(void *state, gs_comm *comm, const gs_hook_bucket *bucket, gs_work *work,
                     uint64_t *wire_bytes) {
    (void)state;
    size_t count = bucket->count + bucket->reserved_count;
    *wire_bytes = count * gs_dtype_bytes(bucket->dtype);
    return gs_comm_post(comm, work,
                        &(gs_collective){.kind = GS_ALLREDUCE,
                                         .send = bucket->data,
                                         .recv = bucket->data,
                                         .count = count,
                                         .dtype = bucket->dtype,
                                         .op = GS_OP_SUM,
                                         .scale = bucket->scale,
                                         .tree = bucket->tree,
                                         .part_stride_bytes = bucket->part_stride_bytes,
                                         .step = bucket->step,
                                         .num_active = bucket->num_active,
                                         .bucket = bucket->index});
}

static gs_status finish(void *state, const gs_hook_bucket *bucket) {
    (void)state;
    (void)bucket;
    return gs_ok();
}

static void destroy(void *state) {
    (void)state;
}

const gs_comm_hook gs_hook_allreduce = {
    .name = "allreduce", .create = create, .run = run, .finish = finish, .destroy = destroy};
