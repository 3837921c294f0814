// Post-local SGD: from a step on ranks average gradients with those of their host alone, or with
// nobody, and their parameters with all others now and then, after the update.
//
//   step < start_step    as the plain hook
//   from then on         reserved elements: of all ranks │ gradients: mean over this rank's part of
//   them
//
// A part is the ranks of a host (local_ranks 0), or so many neighbours, the last one perhaps fewer.
// One of a single rank has no collective; one of all ranks never leaves the first phase. Parts are
// made when a plan is.
#include <stdlib.h>

#include "gradsync/bucket/main_grad.h"
#include "gradsync/hooks/hook_calls.h"

// `period` is for who averages parameters: the hook itself has no use for it, and ranks compare it
// with the rest.
static const gs_hook_option options[] = {
    {.name = "start_step", .fallback = 1000, .least = 0, .most = 0x1p53, .is_whole = true},
    {.name = "period", .fallback = 4, .least = 1, .most = 0x1p53, .is_whole = true},
    {.name = "local_ranks", .fallback = 0, .least = 0, .most = GS_COMM_MAX_RANKS, .is_whole = true},
};

typedef struct local_sgd {
    int64_t start_step;
    int local_ranks;
    gs_dtype wire_dtype;
    bool sends_copy;
    gs_comm *part;   // NULL: one rank
    int part_ranks;  // in it
    bool is_all;     // they are all there are
    gs_work *works;  // of each bucket, in the part
    void **wires;    // of each bucket: room for its gradients in the wire dtype, or NULL
    int num_open;    // posted there and not waited for
} local_sgd;

// A GPU's library sends the 16 bits, and needs memory for them; the host rounds while it reduces.
static bool sends_copy(const gs_hook_setup *setup) {
    return setup->wire_dtype && (!setup->device || !gs_device_is_host(setup->device));
}

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    GS_TRY(gs_hook_check_own(setup));
    *needs = (gs_hook_needs){.num_phases = 1, .most_posts = 2};
    if (sends_copy(setup))
        needs->bucket_bytes = gs_hook_most_bytes(setup, gs_dtype_bytes(setup->wire_dtype));
    return gs_ok();
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    local_sgd *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->start_step = (int64_t)gs_hook_option_value(setup->choice, "start_step");
    self->local_ranks = (int)gs_hook_option_value(setup->choice, "local_ranks");
    self->wire_dtype = setup->wire_dtype;
    self->sends_copy = sends_copy(setup);
    *state = self;
    return gs_ok();
}

static gs_status alloc_buckets(local_sgd *self, const gs_hook_plan *plan) {
    free(self->works);
    free(self->wires);
    self->works = calloc(plan->num_buckets, sizeof *self->works);
    self->wires = calloc(plan->num_buckets, sizeof *self->wires);
    if (!self->works || !self->wires) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t b = 0; b < plan->num_buckets && self->sends_copy; b++) {
        const gs_hook_layout *bucket = &plan->buckets[b];
        if (bucket->hook == plan->hook)
            GS_TRY(gs_hook_place(&self->wires[b], plan,
                                 bucket->count * gs_dtype_bytes(self->wire_dtype)));
    }
    return gs_ok();
}

static gs_status make_part(local_sgd *self, const gs_hook_plan *plan) {
    int world_size = gs_comm_world_size(plan->comm), neighbours = self->local_ranks;
    gs_comm_destroy(self->part);
    self->part = NULL;
    self->part_ranks = 1;
    self->num_open = 0;
    if (neighbours == 0) {
        GS_TRY(gs_comm_split(&self->part, plan->comm,
                             &(gs_comm_split_options){.by_host = true, .name = "local_sgd"},
                             plan->deadline));
    } else if (neighbours > 1 && neighbours < world_size) {
        int color = gs_comm_rank(plan->comm) / neighbours;
        GS_TRY(gs_comm_split(&self->part, plan->comm,
                             &(gs_comm_split_options){.color = color, .name = "local_sgd"},
                             plan->deadline));
    } else if (neighbours > 1) {
        self->part_ranks = world_size;
    }
    if (self->part) self->part_ranks = gs_comm_world_size(self->part);
    self->is_all = self->part_ranks == world_size;
    return gs_ok();
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    local_sgd *self = state;
    gs_status status = alloc_buckets(self, plan);
    // The others are at it.
    if (status.code) gs_comm_abort(plan->comm, status.message);
    GS_TRY(status);
    return make_part(self, plan);
}

// Of gradients, over the whole communicator or a part of it.
static gs_collective sum_of(const local_sgd *self, const gs_hook_bucket *bucket, double scale) {
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = bucket->data,
                         .recv = bucket->data,
                         .count = bucket->count,
                         .dtype = bucket->dtype,
                         .op = GS_OP_SUM,
                         .scale = scale,
                         .step = bucket->step,
                         .bucket = bucket->index};
    if (!self->wire_dtype) return sum;
    sum.scale = 1;
    sum.wire_dtype = self->wire_dtype;
    sum.wire_scale = (float)scale;
    sum.wire = self->wires[bucket->index];
    return sum;
}

static gs_status run_plain(const local_sgd *self, const gs_hook_bucket *bucket,
                           gs_hook_work *work) {
    gs_collective sum = sum_of(self, bucket, bucket->scale);
    if (!self->wire_dtype) {
        sum.count += bucket->reserved_count;
        return gs_hook_post(work, bucket, &sum);
    }
    if (bucket->reserved_count) GS_TRY(gs_hook_post_reserved(work, bucket));
    return bucket->count ? gs_hook_post(work, bucket, &sum) : gs_ok();
}

static bool is_local(const local_sgd *self, const gs_hook_bucket *bucket) {
    return bucket->step >= self->start_step && !self->is_all && bucket->count;
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    local_sgd *self = state;
    if (!is_local(self, bucket)) return run_plain(self, bucket, work);
    if (bucket->num_active < gs_comm_world_size(bucket->comm))
        return gs_error(GS_FAILED_PRECONDITION,
                        "%d of %d ranks have data, but ranks that train by "
                        "themselves need their own",
                        bucket->num_active, gs_comm_world_size(bucket->comm));
    if (bucket->reserved_count) GS_TRY(gs_hook_post_reserved(work, bucket));
    if (self->part_ranks == 1) return gs_ok();
    gs_collective sum = sum_of(self, bucket, gs_hook_scale_for(bucket, self->part_ranks));
    // Gradients may have been copied there.
    if (gs_comm_stream(bucket->comm))
        gs_stream_follow(gs_comm_stream(self->part), gs_comm_stream(bucket->comm));
    GS_TRY(gs_comm_post(self->part, &self->works[bucket->index], &sum));
    self->num_open++;
    work->is_elsewhere = true;
    work->algorithm = gs_comm_algorithm(self->part, &sum);
    work->largest_bytes = gs_collective_sent_bytes(&sum);
    work->wire_bytes += work->largest_bytes;
    return gs_ok();
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    local_sgd *self = state;
    if (!is_local(self, bucket)) return gs_ok();
    result->is_own = true;
    if (self->part_ranks == 1) {
        gs_main_grad_scale(bucket->data, gs_hook_scale_for(bucket, 1), bucket->dtype, bucket->count,
                           gs_work_stream_of(bucket->device));
        return gs_ok();
    }
    GS_TRY(gs_comm_wait(self->part, self->works[bucket->index], deadline));
    self->num_open--;
    return gs_ok();
}

static void rollback(void *state) {
    local_sgd *self = state;
    if (self->num_open) gs_comm_let_go(self->part, "the step was given up");
    self->num_open = 0;
}

static void destroy(void *state) {
    local_sgd *self = state;
    rollback(self);
    gs_comm_destroy(self->part);
    free(self->works);
    free(self->wires);
    free(self);
}

const gs_comm_hook gs_hook_local_sgd = {.name = "local_sgd",
                                        .options = options,
                                        .num_options = sizeof options / sizeof options[0],
                                        .measure = measure,
                                        .create = create,
                                        .on_plan = on_plan,
                                        .run = run,
                                        .finish = finish,
                                        .commit = gs_hook_decide_nothing,
                                        .rollback = rollback,
                                        .tensor = gs_hook_no_tensor,
                                        .loaded = gs_hook_load_nothing,
                                        .destroy = destroy};
