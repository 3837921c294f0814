#include "gradsync/replicas/replica_group.h"

#include <stdlib.h>

#include "core/thread.h"

gs_status gs_replica_group_init(gs_replica_group *group, const gs_reducer_options *whole,
                                int num_replicas) {
    size_t num_params = whole->num_params;
    *group = (gs_replica_group){
        .whole = *whole, .num_replicas = num_replicas, .exact = whole->shards.exact};
    if (!whole->passes_per_shard) group->whole.passes_per_shard = 1;
    pthread_mutex_init(&group->lock, NULL);
    gs_cond_init(&group->moved);
    const gs_grad_layout_shape shape = {.params = whole->params, .num_params = num_params};
    GS_TRY(gs_grad_layout_init(&group->layout, &shape, NULL));
    group->whole.params = group->layout.params;
    group->order_marks = calloc(num_params, sizeof *group->order_marks);
    group->num_incomplete = calloc(num_params, sizeof *group->num_incomplete);
    group->summed = calloc(num_params, sizeof *group->summed);
    group->each = calloc((size_t)num_replicas, sizeof *group->each);
    if (group->order_marks && group->num_incomplete && group->summed && group->each) return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "replicas: out of memory");
}

void gs_replica_group_release(gs_replica_group *group) {
    if (!group->num_replicas) return;
    gs_ready_order_release(&group->order);
    gs_grad_layout_release(&group->layout);
    free(group->order_marks);
    free(group->num_incomplete);
    free(group->summed);
    free(group->each);
    pthread_cond_destroy(&group->moved);
    pthread_mutex_destroy(&group->lock);
}

gs_status gs_replica_group_error(gs_replica_group *group) {
    pthread_mutex_lock(&group->lock);
    gs_status status = group->error;
    pthread_mutex_unlock(&group->lock);
    return status;
}

gs_status gs_replica_group_fail(gs_replica_group *group, gs_status status, bool *is_first) {
    pthread_mutex_lock(&group->lock);
    *is_first = !group->error.code;
    if (*is_first) group->error = status;
    status = group->error;
    atomic_store(&group->failed, true);
    pthread_cond_broadcast(&group->moved);
    pthread_mutex_unlock(&group->lock);
    return status;
}
