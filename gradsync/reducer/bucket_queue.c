#include "gradsync/reducer/bucket_queue.h"

#include <stdio.h>

#include "core/failpoint.h"
#include "gradsync/comm/work_stream.h"

static gs_bucket *bucket_at(const gs_bucket_queue *queue, size_t index) {
    return &queue->options.layout->buckets[index];
}

static size_t num_buckets(const gs_bucket_queue *queue) {
    return queue->options.layout->plan.num_buckets;
}

static int64_t step_of(const gs_bucket_queue *queue) {
    return queue->options.tally->step.step;
}

gs_status gs_bucket_queue_init(gs_bucket_queue *queue, const gs_bucket_queue_options *options) {
    *queue =
        (gs_bucket_queue){.options = *options, .posts_ahead = !gs_device_is_host(options->device)};
    gs_status status = options->hook->create(&queue->hook_state, options->comm);
    if (status.code) *queue = (gs_bucket_queue){0};  // there is nothing to destroy
    return status;
}

// What is in flight reads the buckets and the tree's arrays: it ends before they do.
static void end_flights(gs_bucket_queue *queue, const char *reason) {
    bool in_flight = false;
    for (size_t b = queue->next_done; b < queue->next_launch; b++)
        in_flight |= bucket_at(queue, b)->travels;
    if (in_flight) gs_comm_let_go(queue->options.comm, reason);
}

void gs_bucket_queue_release(gs_bucket_queue *queue, const char *reason) {
    if (!queue || !queue->options.hook) return;
    end_flights(queue, reason);
    queue->options.hook->destroy(queue->hook_state);
    *queue = (gs_bucket_queue){0};
}

void gs_bucket_queue_begin(gs_bucket_queue *queue) {
    queue->first_filling = queue->next_launch = queue->next_done = 0;
    queue->owner_ns = 0;
    queue->num_out_of_turn = 0;
}

static gs_hook_bucket view_for_hook(const gs_bucket_queue *queue, size_t index) {
    const gs_bucket *bucket = bucket_at(queue, index);
    const gs_bucket_queue_options *options = &queue->options;
    const gs_grad_layout *layout = options->layout;
    const gs_bucket_step *step = &options->tally->step;
    return (gs_hook_bucket){.index = (int)index,
                            .num_buckets = (int)num_buckets(queue),
                            .is_last = bucket->is_last,
                            .step = step->step,
                            .num_active = step->num_active,
                            .data = gs_grad_layout_bucket(layout, 0, bucket),
                            .dtype = bucket->dtype,
                            .count = bucket->grad_count,
                            .reserved_count = bucket->reserved_count,
                            .scale = step->scale,
                            .tree = options->tree,
                            .part_stride_bytes = options->tree ? layout->slot_bytes : 0,
                            .wire = gs_grad_layout_wire(layout, bucket),
                            .wire_dtype = options->wire_dtype,
                            .device = options->device};
}

static const char *algorithm_for(const gs_bucket_queue *queue, const gs_hook_bucket *view) {
    return gs_comm_algorithm(queue->options.comm,
                             &(gs_collective){.kind = GS_ALLREDUCE,
                                              .send = view->data,
                                              .recv = view->data,
                                              .count = view->count + view->reserved_count,
                                              .dtype = view->dtype,
                                              .tree = view->tree,
                                              .part_stride_bytes = view->part_stride_bytes});
}

gs_status gs_bucket_queue_blame(const gs_bucket_queue *queue, gs_status status, const char *what) {
    if (!status.code) return status;
    gs_comm_failure failure;
    gs_comm_explain(queue->options.comm, &failure);
    if (gs_comm_failure_may_be(&failure, status.code)) return status;  // between ranks: said already
    return gs_status_prefix(status, "rank %d, step %lld: %s", gs_comm_rank(queue->options.comm),
                            (long long)step_of(queue), what);
}

static gs_status blame_hook(const gs_bucket_queue *queue, size_t index, gs_status status) {
    char what[96];
    snprintf(what, sizeof what, "bucket %zu: hook \"%.48s\"", index, queue->options.hook->name);
    return gs_bucket_queue_blame(queue, status, what);
}

static gs_status run_hook(const gs_bucket_queue *queue, size_t index) {
    gs_bucket *bucket = bucket_at(queue, index);
    gs_hook_bucket view = view_for_hook(queue, index);
    bucket->times.posted_ns = gs_now_ns();
    bucket->times.algorithm = algorithm_for(queue, &view);
    gs_status status = queue->options.hook->run(queue->hook_state, queue->options.comm, &view,
                                                &bucket->work, &bucket->times.wire_bytes);
    if (!status.code && !bucket->work.sequence)
        status = gs_error(GS_FAILED_PRECONDITION, "left no work to wait for");
    return status.code ? blame_hook(queue, index, status) : status;
}

static gs_status launch_bucket(gs_bucket_queue *queue, size_t index) {
    gs_bucket *bucket = bucket_at(queue, index);
    bucket->state = GS_BUCKET_IN_FLIGHT;
    // Counted before the hook runs: one that fails may have posted something.
    queue->next_launch = index + 1;
    bucket->times.algorithm = "none";
    if (!bucket->travels) return gs_ok();
    GS_FAILPOINT("reducer.launch");
    gs_bucket_tally_write(queue->options.tally, index,
                          gs_work_stream_beside_compute(queue->options.comm));
    return run_hook(queue, index);
}

static gs_status launch_ready_buckets(gs_bucket_queue *queue) {
    while (queue->next_launch < num_buckets(queue) &&
           bucket_at(queue, queue->next_launch)->state == GS_BUCKET_READY &&
           queue->next_launch - queue->next_done < GS_MAX_BUCKETS_IN_FLIGHT)
        GS_TRY(launch_bucket(queue, queue->next_launch));
    return gs_ok();
}

static void note_times(const gs_bucket_queue *queue, gs_bucket *bucket) {
    gs_work_times moved;
    if (!gs_comm_times(queue->options.comm, bucket->work, &moved)) return;
    bucket->times.all_arrived_ns = moved.all_arrived_ns;
    bucket->times.started_ns = moved.started_ns;
    bucket->times.finished_ns = moved.finished_ns;
    // The host posts long before a GPU comes to it: that is no waiting for other ranks.
    if (queue->posts_ahead && moved.started_ns) bucket->times.posted_ns = moved.started_ns;
}

// A reduced bucket: the hook's last word, then what the bucket says.
static gs_status harvest_bucket(gs_bucket_queue *queue, size_t index) {
    gs_bucket *bucket = bucket_at(queue, index);
    if (bucket->travels) {
        note_times(queue, bucket);
        gs_hook_bucket view = view_for_hook(queue, index);
        gs_status status = queue->options.hook->finish(queue->hook_state, &view);
        if (status.code) return blame_hook(queue, index, status);
    }
    GS_TRY(gs_bucket_tally_take(queue->options.tally, index));
    bucket->state = GS_BUCKET_DONE;
    queue->next_done = index + 1;
    return gs_ok();
}

static gs_status advance(gs_bucket_queue *queue) {
    while (queue->next_done < queue->next_launch &&
           (!bucket_at(queue, queue->next_done)->travels ||
            gs_comm_done(queue->options.comm, bucket_at(queue, queue->next_done)->work)))
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

gs_status gs_bucket_queue_finish(gs_bucket_queue *queue, gs_deadline deadline) {
    while (queue->next_done < num_buckets(queue)) {
        size_t next = queue->next_done;
        if (next == queue->next_launch)
            return gs_error(GS_INTERNAL, "step %lld: bucket %zu was never complete",
                            (long long)step_of(queue), next);
        if (bucket_at(queue, next)->travels)
            GS_TRY(gs_comm_wait(queue->options.comm, bucket_at(queue, next)->work, deadline));
        GS_TRY(harvest_bucket(queue, next));
        GS_TRY(launch_ready_buckets(queue));
    }
    return gs_bucket_tally_close(queue->options.tally, deadline);
}
