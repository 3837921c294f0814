#include "gradsync/bucket_queue.h"

#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "gradsync/bucket.h"
#include "gradsync/grad_norm.h"

#define MAX_IN_FLIGHT 512      // buckets; a communicator takes 1024 collectives
#define LETTING_GO_SECONDS 10  // a moving thread leaves an aborted collective within one block

static gs_bucket *bucket_at(const gs_bucket_queue *queue, size_t index) {
    return &queue->options.layout->buckets[index];
}

static size_t num_buckets(const gs_bucket_queue *queue) {
    return queue->options.layout->plan.num_buckets;
}

gs_status gs_bucket_queue_init(gs_bucket_queue *queue, const gs_bucket_queue_options *options) {
    size_t num_params = options->layout->num_params;
    *queue = (gs_bucket_queue){.options = *options};
    queue->used = calloc(num_params, sizeof *queue->used);
    queue->used_anywhere = calloc(num_params, sizeof *queue->used_anywhere);
    queue->squares = calloc(num_params, sizeof *queue->squares);
    if (!queue->used || !queue->used_anywhere || !queue->squares)
        return gs_error(GS_RESOURCE_EXHAUSTED, "bucket queue: out of memory");
    return options->hook->create(&queue->hook_state, options->comm);
}

// What is in flight reads the buckets and the tree's arrays: it ends before they do.
static void end_flights(gs_bucket_queue *queue) {
    size_t last = queue->next_launch;
    while (last > queue->next_done && !bucket_at(queue, last - 1)->work.sequence) last--;
    if (last == queue->next_done) return;
    gs_comm_abort(queue->options.comm, "the reducer was destroyed within a step");
    gs_status ended = gs_comm_wait(queue->options.comm, bucket_at(queue, last - 1)->work,
                                   gs_deadline_in_seconds(LETTING_GO_SECONDS));
    (void)ended;
}

void gs_bucket_queue_release(gs_bucket_queue *queue) {
    if (!queue || !queue->options.hook) return;
    end_flights(queue);
    queue->options.hook->destroy(queue->hook_state);
    free(queue->used);
    free(queue->used_anywhere);
    free(queue->squares);
    *queue = (gs_bucket_queue){0};
}

void gs_bucket_queue_begin(gs_bucket_queue *queue, int64_t step) {
    size_t num_params = queue->options.layout->num_params;
    queue->step = step;
    queue->first_filling = queue->next_launch = queue->next_done = 0;
    queue->sealed = false;
    queue->samples = queue->total_samples = 0;
    queue->finite = true;
    queue->owner_ns = 0;
    queue->num_out_of_turn = 0;
    memset(queue->used, 0, num_params);
    memset(queue->used_anywhere, 0, num_params);
}

static gs_hook_bucket view_for_hook(const gs_bucket_queue *queue, size_t index) {
    const gs_bucket *bucket = bucket_at(queue, index);
    const gs_grad_layout *layout = queue->options.layout;
    return (gs_hook_bucket){.index = (int)index,
                            .num_buckets = (int)num_buckets(queue),
                            .step = queue->step,
                            .data = gs_grad_layout_bucket(layout, 0, bucket),
                            .count = bucket->grad_count,
                            .reserved_count = bucket->reserved_count,
                            .scale = queue->options.scale,
                            .tree = queue->options.tree,
                            .part_stride_bytes = queue->options.tree ? layout->slot_bytes : 0};
}

static const char *algorithm_for(const gs_bucket_queue *queue, const gs_hook_bucket *view) {
    return gs_comm_algorithm(queue->options.comm,
                             &(gs_collective){.kind = GS_ALLREDUCE,
                                              .send = view->data,
                                              .recv = view->data,
                                              .count = view->count + view->reserved_count,
                                              .dtype = GS_FP32,
                                              .tree = view->tree,
                                              .part_stride_bytes = view->part_stride_bytes});
}

static gs_status launch_bucket(gs_bucket_queue *queue, size_t index) {
    GS_FAILPOINT("reducer.launch");
    gs_bucket *bucket = bucket_at(queue, index);
    gs_bucket_write_reserved(bucket, gs_grad_layout_slot(queue->options.layout, 0), queue->used,
                             queue->sealed ? queue->samples : 0);
    gs_hook_bucket view = view_for_hook(queue, index);
    bucket->state = GS_BUCKET_IN_FLIGHT;
    bucket->times.posted_ns = gs_now_ns();
    bucket->times.algorithm = algorithm_for(queue, &view);
    // Counted before the hook runs: one that fails may have posted something.
    queue->next_launch = index + 1;
    return queue->options.hook->run(queue->hook_state, queue->options.comm, &view, &bucket->work,
                                    &bucket->times.wire_bytes);
}

static gs_status launch_ready_buckets(gs_bucket_queue *queue) {
    while (queue->next_launch < num_buckets(queue) &&
           bucket_at(queue, queue->next_launch)->state == GS_BUCKET_READY &&
           queue->next_launch - queue->next_done < MAX_IN_FLIGHT &&
           (queue->sealed || queue->next_launch + 1 < num_buckets(queue)))
        GS_TRY(launch_bucket(queue, queue->next_launch));
    return gs_ok();
}

static void note_times(const gs_bucket_queue *queue, gs_bucket *bucket) {
    gs_work_times moved;
    if (!gs_comm_times(queue->options.comm, bucket->work, &moved)) return;
    bucket->times.all_arrived_ns = moved.all_arrived_ns;
    bucket->times.started_ns = moved.started_ns;
    bucket->times.finished_ns = moved.finished_ns;
}

static gs_status read_reserved(gs_bucket_queue *queue, size_t index) {
    gs_bucket_reserved sums;
    gs_bucket_read_reserved(&sums, queue->used_anywhere, bucket_at(queue, index),
                            gs_grad_layout_slot(queue->options.layout, 0), queue->options.scale);
    int world_size = gs_comm_world_size(queue->options.comm);
    if (sums.samples < 0)
        return gs_error(GS_DATA_LOSS, "step %lld: bucket %zu: its samples are no count",
                        (long long)queue->step, index);
    if (sums.num_ranks != world_size)
        return gs_error(GS_DATA_LOSS, "step %lld: bucket %zu: %lld ranks are in the sum of %d",
                        (long long)queue->step, index, (long long)sums.num_ranks, world_size);
    queue->total_samples += sums.samples;
    return gs_ok();
}

// A reduced bucket: the hook's last word, the reserved elements, squares while it is in cache.
static gs_status harvest_bucket(gs_bucket_queue *queue, size_t index) {
    gs_bucket *bucket = bucket_at(queue, index);
    const gs_grad_layout *layout = queue->options.layout;
    note_times(queue, bucket);
    gs_hook_bucket view = view_for_hook(queue, index);
    GS_TRY(queue->options.hook->finish(queue->hook_state, &view));
    GS_TRY(read_reserved(queue, index));
    float *const *grads = gs_grad_layout_grads(layout, 0);
    for (size_t i = 0; i < bucket->num_params; i++) {
        size_t param = bucket->params[i];
        if (!gs_grad_squares(&queue->squares[param], grads[param], layout->counts[param],
                             queue->options.device))
            queue->finite = false;
    }
    bucket->state = GS_BUCKET_DONE;
    queue->next_done = index + 1;
    return gs_ok();
}

static gs_status advance(gs_bucket_queue *queue) {
    while (queue->next_done < queue->next_launch &&
           gs_comm_done(queue->options.comm, bucket_at(queue, queue->next_done)->work))
        GS_TRY(harvest_bucket(queue, queue->next_done));
    return launch_ready_buckets(queue);
}

// Counts the buckets that an earlier one was still to be filled for.
static void note_turn(gs_bucket_queue *queue, size_t index) {
    if (index != queue->first_filling) queue->num_out_of_turn++;
    while (queue->first_filling < num_buckets(queue) &&
           bucket_at(queue, queue->first_filling)->state != GS_BUCKET_FILLING)
        queue->first_filling++;
}

gs_status gs_bucket_queue_push(gs_bucket_queue *queue, size_t index) {
    gs_bucket *bucket = bucket_at(queue, index);
    int64_t begin_ns = gs_now_ns();
    bucket->state = GS_BUCKET_READY;
    bucket->times.ready_ns = begin_ns;
    note_turn(queue, index);
    GS_TRY(advance(queue));
    queue->owner_ns += gs_now_ns() - begin_ns;
    return gs_ok();
}

gs_status gs_bucket_queue_progress(gs_bucket_queue *queue) {
    if (queue->next_done == queue->next_launch) return gs_ok();
    int64_t begin_ns = gs_now_ns();
    GS_TRY(gs_comm_progress(queue->options.comm));
    GS_TRY(advance(queue));
    queue->owner_ns += gs_now_ns() - begin_ns;
    return gs_ok();
}

gs_status gs_bucket_queue_seal(gs_bucket_queue *queue, int64_t samples) {
    int64_t begin_ns = gs_now_ns();
    queue->sealed = true;
    queue->samples = samples;
    GS_TRY(launch_ready_buckets(queue));
    queue->owner_ns += gs_now_ns() - begin_ns;
    return gs_ok();
}

gs_status gs_bucket_queue_finish(gs_bucket_queue *queue, gs_deadline deadline) {
    while (queue->next_done < num_buckets(queue)) {
        size_t next = queue->next_done;
        GS_TRY(gs_comm_wait(queue->options.comm, bucket_at(queue, next)->work, deadline));
        GS_TRY(harvest_bucket(queue, next));
        GS_TRY(launch_ready_buckets(queue));
    }
    return gs_ok();
}
