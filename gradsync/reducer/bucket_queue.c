#include "gradsync/reducer/bucket_queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "gradsync/bucket/main_grad.h"
#include "gradsync/comm/work_stream.h"

#define MOST_POSTED (1024 - GS_MOST_TAIL_POSTS)  // in a lane of a communicator

static gs_bucket *bucket_at(const gs_bucket_queue *queue, size_t index) {
    return &queue->options.layout->buckets[index];
}

static size_t num_buckets(const gs_bucket_queue *queue) {
    return queue->options.layout->plan.num_buckets;
}

static int64_t step_of(const gs_bucket_queue *queue) {
    return queue->options.tally->step.step;
}

static gs_set_hook *hook_of(const gs_bucket_queue *queue, const gs_bucket *bucket) {
    return &queue->options.hooks->hooks[bucket->hook];
}

size_t gs_bucket_queue_most(int most_posts) {
    size_t most = MOST_POSTED / (size_t)most_posts;
    return most < GS_MAX_BUCKETS_IN_FLIGHT ? most : GS_MAX_BUCKETS_IN_FLIGHT;
}

gs_status gs_bucket_queue_init(gs_bucket_queue *queue, const gs_bucket_queue_options *options) {
    const gs_hook_set_needs *needs = &options->hooks->needs;
    *queue = (gs_bucket_queue){.options = *options,
                               .posts_ahead = !gs_device_is_host(options->device),
                               .most_in_flight = gs_bucket_queue_most(needs->most_posts),
                               .max_phases = needs->num_phases};
    if (queue->max_phases == 1) return gs_ok();
    queue->phases = calloc(options->layout->num_params * (size_t)queue->max_phases,
                           sizeof *queue->phases);
    if (queue->phases) return gs_ok();
    *queue = (gs_bucket_queue){0};
    return gs_error(GS_RESOURCE_EXHAUSTED, "bucket queue: out of memory");
}

// Of the buckets from `first` on that have been launched, some went to other ranks.
static bool has_sent(const gs_bucket_queue *queue, size_t first) {
    for (size_t b = first; b < queue->next_run[0]; b++) {
        if (bucket_at(queue, b)->travels) return true;
    }
    return false;
}

bool gs_bucket_queue_is_untouched(const gs_bucket_queue *queue) {
    return !queue->adds && !has_sent(queue, 0);
}

// What is in flight reads the buckets and the tree's arrays: it ends before they do.
static void end_flights(gs_bucket_queue *queue, const char *reason) {
    if (has_sent(queue, queue->next_done)) gs_comm_let_go(queue->options.comm, reason);
}

void gs_bucket_queue_release(gs_bucket_queue *queue, const char *reason) {
    if (!queue || !queue->options.hooks) return;
    end_flights(queue, reason);
    free(queue->phases);
    *queue = (gs_bucket_queue){0};
}

static void rewind_buckets(gs_bucket_queue *queue) {
    queue->first_filling = queue->next_done = 0;
    memset(queue->next_run, 0, sizeof queue->next_run);
}

void gs_bucket_queue_begin(gs_bucket_queue *queue) {
    rewind_buckets(queue);
    queue->adds = false;
    queue->is_last_pass = true;
    queue->owner_ns = queue->encode_ns = queue->decode_ns = queue->window_wait_ns = 0;
    queue->num_out_of_turn = 0;
    if (queue->phases)
        memset(queue->phases, 0,
               num_buckets(queue) * (size_t)queue->max_phases * sizeof *queue->phases);
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
                            .comm = options->comm,
                            .device = options->device,
                            .data = gs_grad_layout_bucket(layout, 0, bucket),
                            .dtype = bucket->dtype,
                            .count = bucket->grad_count,
                            .reserved_count = bucket->reserved_count,
                            .scale = step->scale,
                            .tree = options->tree,
                            .part_stride_bytes = options->tree ? layout->slot_bytes : 0,
                            .params = options->hooks->buckets[index].params,
                            .num_params = bucket->num_params,
                            .grad_unit = step->grad_unit,
                            .mean_ranks = step->mean_ranks};
}

gs_status gs_bucket_queue_blame(const gs_bucket_queue *queue, gs_status status, const char *what) {
    if (!status.code) return status;
    gs_comm_failure failure;
    gs_comm_explain(queue->options.comm, &failure);
    if (gs_comm_failure_may_be(&failure, status.code)) return status;  // between ranks: said already
    return gs_status_prefix(status, "rank %d, step %lld: %s", gs_comm_rank(queue->options.comm),
                            (long long)step_of(queue), what);
}

// Of a phase; -1: of its last word.
static gs_status blame_hook(const gs_bucket_queue *queue, size_t index, int phase,
                            gs_status status) {
    const gs_set_hook *hook = hook_of(queue, bucket_at(queue, index));
    char what[96], where[24] = "";
    if (phase >= 0 && hook->needs.num_phases > 1)
        snprintf(where, sizeof where, ", phase %d", phase);
    snprintf(what, sizeof what, "bucket %zu: hook \"%.*s\"%s", index, GS_HOOK_NAME_LEN - 1,
             hook->choice.hook->name, where);
    return gs_bucket_queue_blame(queue, status, what);
}

static void take_work(const gs_bucket_queue *queue, size_t index, const gs_hook_work *work) {
    gs_bucket *bucket = bucket_at(queue, index);
    bucket->phases_run = work->phase + 1;
    bucket->work = work->last;
    bucket->is_elsewhere = bucket->was_elsewhere = work->is_elsewhere;
    bucket->times.wire_bytes += work->wire_bytes;
    if (!work->algorithm || work->largest_bytes < bucket->most_sent) return;
    bucket->times.algorithm = work->algorithm;
    bucket->most_sent = work->largest_bytes;
}

static gs_status check_work(const gs_set_hook *hook, const gs_hook_work *work) {
    if (work->is_elsewhere && work->phase + 1 < hook->needs.num_phases)
        return gs_error(GS_FAILED_PRECONDITION, "phase %d of %d is elsewhere, only the last may be",
                        work->phase, hook->needs.num_phases);
    return gs_ok();
}

// The next phase of a bucket.
static gs_status run_hook(gs_bucket_queue *queue, size_t index) {
    gs_bucket *bucket = bucket_at(queue, index);
    gs_set_hook *hook = hook_of(queue, bucket);
    gs_hook_bucket view = view_for_hook(queue, index);
    gs_hook_work work = {.phase = bucket->phases_run,
                         .lane = bucket->phases_run,
                         .most_posts = hook->needs.most_posts};
    int64_t posted_ns = gs_now_ns();
    if (work.phase == 0) bucket->times.posted_ns = posted_ns;
    if (queue->phases)
        queue->phases[index * (size_t)queue->max_phases + (size_t)work.phase].posted_ns = posted_ns;
    gs_status status = hook->choice.hook->run(hook->state, &view, &work);
    queue->encode_ns += gs_now_ns() - posted_ns - work.posting_ns;
    if (!status.code) status = check_work(hook, &work);
    take_work(queue, index, &work);
    return status.code ? blame_hook(queue, index, work.phase, status) : status;
}

static void fill_with_zeros(const gs_bucket_queue *queue, gs_bucket *bucket) {
    gs_work_stream on = bucket->travels ? gs_work_stream_before_post(queue->options.comm)
                                        : gs_work_stream_of(queue->options.device);
    gs_main_grad_zero(gs_grad_layout_bucket(queue->options.layout, 0, bucket), bucket->dtype,
                      bucket->grad_count, on);
    bucket->is_open = true;
}

static gs_status launch_bucket(gs_bucket_queue *queue, size_t index) {
    gs_bucket *bucket = bucket_at(queue, index);
    if (!bucket->is_open) fill_with_zeros(queue, bucket);
    if (bucket->rests) bucket->times.ready_ns = gs_now_ns();
    bucket->state = GS_BUCKET_IN_FLIGHT;
    // Counted before the hook runs: one that fails may have posted something.
    queue->next_run[0] = index + 1;
    bucket->times.algorithm = "none";
    if (!bucket->travels) return gs_ok();
    GS_FAILPOINT("reducer.launch");
    gs_bucket_tally_write(queue->options.tally, index,
                          gs_work_stream_beside_compute(queue->options.comm));
    return run_hook(queue, index);
}

static bool may_go(const gs_bucket_queue *queue, size_t index) {
    const gs_bucket *bucket = bucket_at(queue, index);
    return bucket->state == GS_BUCKET_READY &&
           (bucket->is_open || gs_bucket_queue_is_free(queue, index));
}

static gs_status launch_ready_buckets(gs_bucket_queue *queue) {
    while (queue->next_run[0] < num_buckets(queue) && may_go(queue, queue->next_run[0]) &&
           queue->next_run[0] - queue->next_done < queue->most_in_flight)
        GS_TRY(launch_bucket(queue, queue->next_run[0]));
    return gs_ok();
}

static void note_phase(const gs_bucket_queue *queue, size_t index, int phase,
                       const gs_work_times *moved) {
    if (!queue->phases) return;
    gs_phase_times *times = &queue->phases[index * (size_t)queue->max_phases + (size_t)phase];
    times->started_ns = moved->started_ns;
    times->finished_ns = moved->finished_ns;
    if (queue->posts_ahead && moved->started_ns) times->posted_ns = moved->started_ns;
}

// A phase is done: the first one tells when the bucket started, the last one when it ended.
static void note_times(const gs_bucket_queue *queue, size_t index) {
    gs_bucket *bucket = bucket_at(queue, index);
    gs_work_times moved;
    if (!bucket->work.sequence || !gs_comm_times(queue->options.comm, bucket->work, &moved)) return;
    gs_bucket_times *times = &bucket->times;
    note_phase(queue, index, bucket->phases_run - 1, &moved);
    times->finished_ns = moved.finished_ns;
    if (times->started_ns) return;
    times->all_arrived_ns = moved.all_arrived_ns;
    times->started_ns = moved.started_ns;
    // The host posts long before a GPU comes to it: that is no waiting for other ranks.
    if (queue->posts_ahead && moved.started_ns) times->posted_ns = moved.started_ns;
}

static bool has_more_phases(const gs_bucket_queue *queue, const gs_bucket *bucket) {
    return bucket->phases_run < hook_of(queue, bucket)->needs.num_phases;
}

// What its last phase started is done, as far as can be seen without waiting.
static bool phase_is_done(const gs_bucket_queue *queue, const gs_bucket *bucket) {
    return !bucket->is_elsewhere &&
           (!bucket->work.sequence || gs_comm_done(queue->options.comm, bucket->work));
}

static gs_status run_next_phase(gs_bucket_queue *queue, size_t index) {
    note_times(queue, index);
    GS_FAILPOINT("reducer.phase");
    return run_hook(queue, index);
}

// Leads as many buckets as can go into phase `phase`, in order.
static gs_status advance_phase(gs_bucket_queue *queue, int phase) {
    size_t *next = &queue->next_run[phase];
    for (; *next < queue->next_run[phase - 1]; ++*next) {
        gs_bucket *bucket = bucket_at(queue, *next);
        if (!bucket->travels || hook_of(queue, bucket)->needs.num_phases <= phase) continue;
        if (!phase_is_done(queue, bucket)) return gs_ok();
        GS_TRY(run_next_phase(queue, *next));
    }
    return gs_ok();
}

// The hook's last word.
static gs_status finish_hook(gs_bucket_queue *queue, size_t index, gs_deadline deadline) {
    gs_bucket *bucket = bucket_at(queue, index);
    gs_set_hook *hook = hook_of(queue, bucket);
    gs_hook_bucket view = view_for_hook(queue, index);
    gs_hook_result result = {0};
    int64_t begin_ns = gs_now_ns();
    gs_status status = hook->choice.hook->finish(hook->state, &view, &result, deadline);
    // What is elsewhere is waited for there.
    if (!bucket->was_elsewhere) queue->decode_ns += gs_now_ns() - begin_ns;
    if (!status.code && bucket->result.is_apart && !result.is_partial)
        status = gs_error(GS_FAILED_PRECONDITION,
                          "leaves a whole result in a window, which goes to another bucket");
    if (!status.code && result.is_partial)
        status = gs_bucket_tally_hold(queue->options.tally, index, result.segments,
                                      result.num_segments);
    if (!status.code && result.is_own) status = gs_bucket_tally_own(queue->options.tally);
    return status.code ? blame_hook(queue, index, -1, status) : status;
}

// A reduced bucket: what the hook leaves in it, then what it says.
static gs_status harvest_bucket(gs_bucket_queue *queue, size_t index, gs_deadline deadline) {
    gs_bucket *bucket = bucket_at(queue, index);
    if (bucket->travels) {
        note_times(queue, index);
        GS_TRY(finish_hook(queue, index, deadline));
    }
    if (!bucket->rests)
        gs_grad_layout_keep(queue->options.layout, bucket, queue->adds,
                            gs_work_stream_of(queue->options.device));
    if (queue->is_last_pass) GS_TRY(gs_bucket_tally_take(queue->options.tally, index));
    bucket->state = GS_BUCKET_DONE;
    queue->next_done = index + 1;
    if (queue->options.finished && queue->is_last_pass && !bucket->rests)
        queue->options.finished(queue->options.finished_ctx, index);
    return gs_ok();
}

static bool is_reduced(const gs_bucket_queue *queue, const gs_bucket *bucket) {
    return !bucket->travels || (!has_more_phases(queue, bucket) && phase_is_done(queue, bucket));
}

static gs_status advance(gs_bucket_queue *queue) {
    for (int phase = 1; phase < queue->max_phases; phase++) GS_TRY(advance_phase(queue, phase));
    while (queue->next_done < queue->next_run[0] &&
           is_reduced(queue, bucket_at(queue, queue->next_done)))
        GS_TRY(harvest_bucket(queue, queue->next_done, (gs_deadline){0}));
    return launch_ready_buckets(queue);
}

static void pass_filled(gs_bucket_queue *queue) {
    while (queue->first_filling < num_buckets(queue) &&
           bucket_at(queue, queue->first_filling)->state != GS_BUCKET_FILLING)
        queue->first_filling++;
}

gs_status gs_bucket_queue_push(gs_bucket_queue *queue, size_t index) {
    gs_bucket *bucket = bucket_at(queue, index);
    int64_t begin_ns = gs_now_ns();
    // Those are counted that an earlier one was still to be filled for.
    pass_filled(queue);
    if (index != queue->first_filling) queue->num_out_of_turn++;
    bucket->state = GS_BUCKET_READY;
    bucket->times.ready_ns = begin_ns;
    pass_filled(queue);
    GS_TRY(advance(queue));
    queue->owner_ns += gs_now_ns() - begin_ns;
    return gs_ok();
}

gs_status gs_bucket_queue_progress(gs_bucket_queue *queue) {
    if (queue->next_done == queue->next_run[0]) return gs_ok();
    int64_t begin_ns = gs_now_ns();
    GS_TRY(gs_comm_progress(queue->options.comm));
    GS_TRY(advance(queue));
    queue->owner_ns += gs_now_ns() - begin_ns;
    return gs_ok();
}

// Until the phase that a bucket is in is done. What is elsewhere the hook waits for itself.
static gs_status await_phase(gs_bucket_queue *queue, gs_bucket *bucket, gs_deadline deadline) {
    bucket->is_elsewhere = false;
    if (!bucket->work.sequence) return gs_ok();
    return gs_comm_wait(queue->options.comm, bucket->work, deadline);
}

// A phase of the next bucket, or all that is left of it.
static gs_status finish_next(gs_bucket_queue *queue, gs_deadline deadline) {
    size_t next = queue->next_done;
    gs_bucket *bucket = bucket_at(queue, next);
    // Nothing was pushed yet that would have moved the first ones on: they rest.
    if (next == queue->next_run[0]) GS_TRY(launch_ready_buckets(queue));
    if (next == queue->next_run[0])
        return gs_error(GS_INTERNAL, "step %lld: bucket %zu was never complete",
                        (long long)step_of(queue), next);
    if (bucket->travels) GS_TRY(await_phase(queue, bucket, deadline));
    if (is_reduced(queue, bucket)) GS_TRY(harvest_bucket(queue, next, deadline));
    return advance(queue);
}

gs_status gs_bucket_queue_await_place(gs_bucket_queue *queue, size_t index, gs_deadline deadline) {
    int64_t begin_ns = gs_now_ns();
    while (!gs_bucket_queue_is_free(queue, index)) GS_TRY(finish_next(queue, deadline));
    queue->window_wait_ns += gs_now_ns() - begin_ns;
    return gs_ok();
}

static gs_status finish_all(gs_bucket_queue *queue, gs_deadline deadline) {
    while (queue->next_done < num_buckets(queue)) GS_TRY(finish_next(queue, deadline));
    return gs_ok();
}

gs_status gs_bucket_queue_begin_pass(gs_bucket_queue *queue, bool is_first, bool is_last,
                                     gs_deadline deadline) {
    int64_t begin_ns = gs_now_ns();
    if (!is_first) {
        GS_TRY(finish_all(queue, deadline));
        rewind_buckets(queue);
        queue->window_wait_ns += gs_now_ns() - begin_ns;
    }
    queue->adds = !is_first;
    queue->is_last_pass = is_last;
    return gs_ok();
}

gs_status gs_bucket_queue_finish(gs_bucket_queue *queue, gs_deadline deadline) {
    GS_TRY(finish_all(queue, deadline));
    return gs_bucket_tally_close(queue->options.tally, deadline);
}
