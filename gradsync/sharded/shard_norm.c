#include "gradsync/sharded/shard_norm.h"

#include <math.h>
#include <stdlib.h>

#include "gradsync/bucket/grad_norm.h"
#include "gradsync/bucket/grad_squares.h"

// Lists of what is owned here and has a gradient.
typedef struct own_list {
    void **grads;
    size_t *counts;
    size_t num_grads;
} own_list;

static void release(own_list *list) {
    free(list->grads);
    free(list->counts);
}

//   in_norm  only what counts
static gs_status make_list(own_list *list, const gs_shard_grads *own, bool in_norm) {
    *list = (own_list){.grads = calloc(own->num_segments + 1, sizeof *list->grads),
                       .counts = calloc(own->num_segments + 1, sizeof *list->counts)};
    if (!list->grads || !list->counts) {
        release(list);
        return gs_error(GS_RESOURCE_EXHAUSTED, "norm: out of memory");
    }
    for (size_t i = 0; i < own->num_segments; i++) {
        if (!own->grads[i] || (in_norm && own->counts && !own->counts[own->segments[i].tensor]))
            continue;
        list->grads[list->num_grads] = own->grads[i];
        list->counts[list->num_grads++] = own->segments[i].count;
    }
    return gs_ok();
}

static gs_grad_list view(const own_list *list) {
    return (gs_grad_list){list->grads, list->counts, list->num_grads};
}

// Whoever cannot go on tells the others, which wait.
static gs_status give_up(gs_comm *comm, gs_status status) {
    status = gs_status_prefix(status, "rank %d", gs_comm_rank(comm));
    gs_comm_abort(comm, status.message);
    return status;
}

gs_status gs_shard_norm(double *norm, const gs_shard_grads *own, double p, gs_comm *comm,
                        gs_deadline deadline) {
    own_list list;
    *norm = (double)NAN;
    if (!(p > 0)) return give_up(comm, gs_error(GS_INVALID_ARGUMENT, "norm: p is %g", p));
    gs_status status = make_list(&list, own, true);
    if (status.code) return give_up(comm, status);
    const gs_grad_list counted = view(&list);
    double mine = list.num_grads ? gs_grad_list_norm(&counted, p, own->device) : 0;
    release(&list);
    return gs_grad_norm_across(norm, mine, p, comm, deadline);
}

gs_status gs_shard_clip(double *norm, const gs_shard_grads *own, double p, double max_norm,
                        gs_comm *comm, gs_deadline deadline) {
    own_list list;
    GS_TRY(gs_shard_norm(norm, own, p, comm, deadline));
    if (!isfinite(*norm)) return gs_ok();
    gs_status status = make_list(&list, own, false);
    if (status.code) return give_up(comm, status);
    const gs_grad_list all = view(&list);
    gs_grad_list_clip(&all, *norm, max_norm, own->device);
    release(&list);
    return gs_ok();
}

// One of the lists that is not finite, with squares that a device could not take or that are not
// finite either.
static bool is_nonfinite(const own_list *list, gs_device *device) {
    bool found = false;
    double squares;
    for (size_t i = 0; i < list->num_grads && !found; i++)
        found = !gs_grad_squares(&squares, list->grads[i], list->counts[i], device);
    return found;
}

gs_status gs_shard_nonfinite(bool *nonfinite, const gs_shard_grads *own, gs_comm *comm,
                             gs_deadline deadline) {
    own_list list;
    *nonfinite = true;
    gs_status status = make_list(&list, own, false);
    if (status.code) return give_up(comm, status);
    double mine = is_nonfinite(&list, own->device) ? 1 : 0, any = 1;
    release(&list);
    GS_TRY(gs_comm_run(comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = &mine,
                                        .recv = &any,
                                        .count = 1,
                                        .dtype = GS_FP64,
                                        .op = GS_OP_MAX,
                                        .step = -1,
                                        .bucket = -1},
                       deadline));
    *nonfinite = any != 0;
    return gs_ok();
}
