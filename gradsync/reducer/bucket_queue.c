#include "gradsync/reducer/bucket_queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "gradsync/bucket/bucket.h"
#include "gradsync/bucket/main_grad.h"

static gs_bucket *bucket_at(const gs_bucket_queue *queue, size_t index) {
    return &queue->options.layout->buckets[index];
}

static size_t num_buckets(const gs_bucket_queue *queue) {
    return queue->options.layout->plan.num_buckets;
}

// What a GPU's buckets say comes through it; NULL: the host reads them itself.
static const gs_bucket_mirror *mirror_of(const gs_bucket_queue *queue) {
    const gs_bucket_mirror *mirror = &queue->options.layout->mirror;
    return mirror->device ? mirror : NULL;
}

gs_status gs_bucket_queue_init(gs_bucket_queue *queue, const gs_bucket_queue_options *options) {
    size_t num_params = options->layout->num_params;
    *queue = (gs_bucket_queue){.options = *options};
    queue->used = calloc(num_params, sizeof *queue->used);
    queue->used_anywhere = calloc(num_params, sizeof *queue->used_anywhere);
    const gs_bucket_mirror *mirror = mirror_of(queue);
    queue->squares = mirror ? mirror->squares : calloc(num_params, sizeof *queue->squares);
    if (!queue->used || !queue->used_anywhere || !queue->squares)
        return gs_error(GS_RESOURCE_EXHAUSTED, "bucket queue: out of memory");
    return options->hook->create(&queue->hook_state, options->comm);
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
    free(queue->used);
    free(queue->used_anywhere);
    if (!mirror_of(queue)) free(queue->squares);
    *queue = (gs_bucket_queue){0};
}

void gs_bucket_queue_begin(gs_bucket_queue *queue, const gs_queue_step *step) {
    size_t num_params = queue->options.layout->num_params;
    queue->step = *step;
    queue->first_filling = queue->next_launch = queue->next_done = 0;
    queue->samples = 0;
    queue->total_samples = -1;
    queue->owner_ns = 0;
    queue->num_out_of_turn = 0;
    queue->has_read = false;
    memset(queue->used, 0, num_params);
    memset(queue->used_anywhere, 0, num_params);
}

static gs_hook_bucket view_for_hook(const gs_bucket_queue *queue, size_t index) {
    const gs_bucket *bucket = bucket_at(queue, index);
    const gs_bucket_queue_options *options = &queue->options;
    const gs_grad_layout *layout = options->layout;
    return (gs_hook_bucket){.index = (int)index,
                            .num_buckets = (int)num_buckets(queue),
                            .is_last = bucket->is_last,
                            .step = queue->step.step,
                            .num_active = queue->step.num_active,
                            .data = gs_grad_layout_bucket(layout, 0, bucket),
                            .dtype = bucket->dtype,
                            .count = bucket->grad_count,
                            .reserved_count = bucket->reserved_count,
                            .scale = queue->step.scale,
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
    if (!status.code || status.code == GS_ABORTED || strstr(status.message, "rank ")) return status;
    return gs_status_prefix(status, "rank %d, step %lld: %s", gs_comm_rank(queue->options.comm),
                            (long long)queue->step.step, what);
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

static void write_reserved(const gs_bucket_queue *queue, size_t index) {
    const gs_grad_layout *layout = queue->options.layout;
    const gs_bucket *bucket = bucket_at(queue, index);
    const gs_bucket_mirror *mirror = mirror_of(queue);
    void *reserved = mirror ? mirror->out + mirror->offset_bytes[index]
                            : gs_bucket_reserved_at(bucket, gs_grad_layout_slot(layout, 0));
    gs_bucket_write_reserved(bucket, reserved,
                             &(gs_bucket_share){.used = queue->used,
                                                .samples = queue->samples,
                                                .active = queue->step.active});
    if (mirror)
        gs_bucket_mirror_send(mirror, layout, index,
                              gs_work_stream_beside_compute(queue->options.comm));
}

static gs_status launch_bucket(gs_bucket_queue *queue, size_t index) {
    gs_bucket *bucket = bucket_at(queue, index);
    bucket->state = GS_BUCKET_IN_FLIGHT;
    // Counted before the hook runs: one that fails may have posted something.
    queue->next_launch = index + 1;
    bucket->times.algorithm = "none";
    if (!bucket->travels) return gs_ok();
    GS_FAILPOINT("reducer.launch");
    write_reserved(queue, index);
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
    if (mirror_of(queue) && moved.started_ns) bucket->times.posted_ns = moved.started_ns;
}

static gs_status check_reserved(const gs_bucket_queue *queue, size_t index,
                                const gs_bucket_reserved *sums) {
    long long step = (long long)queue->step.step;
    int world_size = gs_comm_world_size(queue->options.comm);
    if (sums->samples < 0)
        return gs_error(GS_DATA_LOSS, "step %lld: bucket %zu: its samples are no count", step,
                        index);
    if (sums->samples > GS_MAX_STEP_SAMPLES)
        return gs_error(GS_FAILED_PRECONDITION,
                        "step %lld: %lld samples of all ranks, of a step at most %lld", step,
                        (long long)sums->samples, (long long)GS_MAX_STEP_SAMPLES);
    if (sums->num_ranks != world_size)
        return gs_error(GS_DATA_LOSS, "step %lld: bucket %zu: %lld ranks are in the sum of %d",
                        step, index, (long long)sums->num_ranks, world_size);
    if (sums->num_active != queue->step.num_active)
        return gs_error(GS_FAILED_PRECONDITION,
                        "step %lld: bucket %zu: %lld ranks had data, %d were announced", step,
                        index, (long long)sums->num_active, queue->step.num_active);
    if (queue->total_samples >= 0 && sums->samples != queue->total_samples)
        return gs_error(GS_DATA_LOSS,
                        "step %lld: bucket %zu: carries %lld samples, earlier ones %lld", step,
                        index, (long long)sums->samples, (long long)queue->total_samples);
    if (queue->options.sample_mean && !sums->samples)
        return gs_error(GS_FAILED_PRECONDITION,
                        "step %lld: no rank has samples, there is no mean over them", step);
    return gs_ok();
}

// Divides the sums of a sample mean by what the scale has not yet taken out.
static void divide_bucket(const gs_bucket_queue *queue, size_t index) {
    const gs_bucket *bucket = bucket_at(queue, index);
    gs_main_grad_scale(gs_grad_layout_bucket(queue->options.layout, 0, bucket),
                       1.0 / ((double)queue->total_samples * queue->step.scale), bucket->dtype,
                       bucket->grad_count, gs_work_stream_of(queue->options.device));
}

// What a reduced bucket says.
static gs_status read_reserved(gs_bucket_queue *queue, size_t index, const void *reserved) {
    gs_bucket_reserved sums;
    gs_bucket_read_reserved(&sums, queue->used_anywhere, bucket_at(queue, index), reserved,
                            queue->step.scale);
    GS_TRY(check_reserved(queue, index, &sums));
    queue->total_samples = sums.samples;
    return gs_ok();
}

void gs_bucket_queue_measure(gs_bucket_queue *queue, size_t param) {
    const gs_grad_layout *layout = queue->options.layout;
    const gs_bucket_mirror *mirror = mirror_of(queue);
    if (mirror)
        gs_bucket_mirror_measure_param(mirror, param);
    else
        gs_main_grad_squares(&queue->squares[param], gs_grad_layout_grads(layout, 0)[param],
                             layout->dtypes[param], layout->counts[param], queue->options.device);
}

// The host reads a bucket while it is in cache.
static gs_status read_bucket(gs_bucket_queue *queue, size_t index) {
    const gs_bucket *bucket = bucket_at(queue, index);
    if (bucket->travels) {
        char *slot = gs_grad_layout_slot(queue->options.layout, 0);
        GS_TRY(read_reserved(queue, index, gs_bucket_reserved_at(bucket, slot)));
        if (queue->options.sample_mean) divide_bucket(queue, index);
    }
    for (size_t i = 0; i < bucket->num_params; i++)
        gs_bucket_queue_measure(queue, bucket->params[i]);
    return gs_ok();
}

// A GPU is asked what it will say when all of them have been asked.
static void ask_bucket(gs_bucket_queue *queue, size_t index) {
    const gs_bucket_mirror *mirror = mirror_of(queue);
    if (bucket_at(queue, index)->travels)
        gs_bucket_mirror_fetch(mirror, queue->options.layout, index);
    if (!queue->options.sample_mean) gs_bucket_mirror_measure(mirror, index);
}

// A reduced bucket: the hook's last word, the reserved elements, squares.
static gs_status harvest_bucket(gs_bucket_queue *queue, size_t index) {
    gs_bucket *bucket = bucket_at(queue, index);
    if (bucket->travels) {
        note_times(queue, bucket);
        gs_hook_bucket view = view_for_hook(queue, index);
        gs_status status = queue->options.hook->finish(queue->hook_state, &view);
        if (status.code) return blame_hook(queue, index, status);
    }
    if (mirror_of(queue))
        ask_bucket(queue, index);
    else
        GS_TRY(read_bucket(queue, index));
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

// What came back of all buckets.
static gs_status read_mirror(gs_bucket_queue *queue) {
    const gs_bucket_mirror *mirror = mirror_of(queue);
    for (size_t b = 0; b < num_buckets(queue); b++) {
        if (bucket_at(queue, b)->travels)
            GS_TRY(read_reserved(queue, b, mirror->in + mirror->offset_bytes[b]));
    }
    queue->has_read = true;
    return gs_ok();
}

static gs_status divide_asked(gs_bucket_queue *queue, gs_deadline deadline) {
    GS_TRY(gs_stream_wait(gs_device_stream(queue->options.device), deadline));
    GS_TRY(read_mirror(queue));
    for (size_t b = 0; b < num_buckets(queue); b++) {
        if (bucket_at(queue, b)->travels) divide_bucket(queue, b);
        gs_bucket_mirror_measure(mirror_of(queue), b);
    }
    return gs_ok();
}

gs_status gs_bucket_queue_finish(gs_bucket_queue *queue, gs_deadline deadline) {
    while (queue->next_done < num_buckets(queue)) {
        size_t next = queue->next_done;
        if (next == queue->next_launch)
            return gs_error(GS_INTERNAL, "step %lld: bucket %zu was never complete",
                            (long long)queue->step.step, next);
        if (bucket_at(queue, next)->travels)
            GS_TRY(gs_comm_wait(queue->options.comm, bucket_at(queue, next)->work, deadline));
        GS_TRY(harvest_bucket(queue, next));
        GS_TRY(launch_ready_buckets(queue));
    }
    return queue->options.sample_mean && mirror_of(queue) ? divide_asked(queue, deadline) : gs_ok();
}

gs_status gs_bucket_queue_read(gs_bucket_queue *queue, gs_deadline deadline) {
    const gs_bucket_mirror *mirror = mirror_of(queue);
    GS_TRY(gs_stream_wait(gs_device_stream(queue->options.device), deadline));
    if (!mirror) return gs_ok();
    if (!queue->has_read) GS_TRY(read_mirror(queue));
    return gs_bucket_mirror_settle(mirror, queue->options.layout, deadline);
}
