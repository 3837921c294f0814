#include "gradsync/reducer/reducer_pass.h"

#include <stdio.h>
#include <string.h>

#include "core/failpoint.h"
#include "gradsync/bucket/main_grad.h"
#include "gradsync/comm/work_stream.h"

// Gradients that may become ready before earlier buckets are moved on. Asking costs some 50 ns: in
// models of small tensors not at each of them.
#define PROGRESS_BYTES ((size_t)64 << 10)

#define WINDOW_SECONDS 30.0

// Sample counts that a float holds exactly: the factor of a weighted gradient is one.
#define MAX_FACTOR_SAMPLES (INT64_C(1) << 24)

static gs_bucket *bucket_of(const gs_reducer *reducer, size_t param) {
    return &reducer->layout.buckets[reducer->layout.bucket_of[param]];
}

// Where the last arithmetic on a bucket's gradients goes: right before it travels. One that stays
// is read by the compute stream alone.
static gs_work_stream stream_to_travel(const gs_reducer *reducer, const gs_bucket *bucket) {
    return bucket->travels ? gs_work_stream_before_post(reducer->comm)
                           : gs_work_stream_of(reducer->options.device);
}

static gs_work_stream stream_of_pass(const gs_reducer *reducer, const gs_bucket *bucket) {
    return reducer->pass.reduces ? stream_to_travel(reducer, bucket)
                                 : gs_work_stream_of(reducer->options.device);
}

// Adds a complete shard's gradient to the partial sums below it, along the tree.
static void merge_slots(gs_reducer *reducer, const gs_bucket *bucket) {
    const gs_shard_step *step =
        &reducer->shard_steps[reducer->passes_run / reducer->options.passes_per_shard];
    for (int i = 0; i < step->merges; i++) {
        int right_slot = step->slot - i;
        gs_main_grad_add(gs_grad_layout_bucket(&reducer->layout, right_slot - 1, bucket),
                         gs_grad_layout_bucket(&reducer->layout, right_slot, bucket), bucket->dtype,
                         bucket->grad_count, stream_of_pass(reducer, bucket));
    }
}

// What the marks of a GPU's members have left to be done at once.
static void copy_bucket_in(gs_reducer *reducer, size_t index) {
    if (!reducer->copies.table.device) return;
    int64_t begin_ns = gs_now_ns();
    gs_bucket *bucket = &reducer->layout.buckets[index];
    gs_grad_copies_bucket_in(&reducer->copies, &reducer->layout, reducer->slot, index,
                             stream_of_pass(reducer, bucket));
    bucket->times.copy_in_ns += gs_now_ns() - begin_ns;
}

// All members are final.
static gs_status complete_bucket(gs_reducer *reducer, size_t index) {
    if (reducer->copies.tensors) copy_bucket_in(reducer, index);
    merge_slots(reducer, &reducer->layout.buckets[index]);
    if (!reducer->pass.reduces && !reducer->open_marks) return gs_ok();
    reducer->bytes_since_progress = 0;
    return gs_bucket_queue_push(&reducer->queue, index);
}

static gs_status check_samples(const gs_reducer *reducer, int64_t samples) {
    bool weighs = reducer->options.op == GS_SAMPLE_MEAN;
    int64_t most = GS_MAX_STEP_SAMPLES - reducer->samples;
    if (weighs && most > MAX_FACTOR_SAMPLES) most = MAX_FACTOR_SAMPLES;
    if (samples >= 0 && samples <= most) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION,
                    "rank %d, step %lld: samples of a pass: %lld, %s%lld, of a step at most %lld",
                    reducer->options.shards.rank, (long long)reducer->step, (long long)samples,
                    weighs ? "weighted at most " : "left ", (long long)most,
                    (long long)GS_MAX_STEP_SAMPLES);
}

static gs_status check_may_open(const gs_reducer *reducer, int64_t samples) {
    if (reducer->failed.code) return reducer->failed;
    if (reducer->phase == GS_REDUCER_IDLE)
        return gs_reducer_misuse(reducer, "a pass needs an open step");
    if (reducer->phase == GS_REDUCER_PASS)
        return gs_reducer_misuse(reducer, "a pass is open, end it first");
    if (!reducer->active)
        return gs_reducer_misuse(reducer, "this rank has no data in this step and runs no pass");
    if (reducer->passes_run == reducer->num_passes)
        return gs_reducer_misuse(reducer, "all passes of the step have been run");
    return check_samples(reducer, samples);
}

static void describe_pass(gs_reducer *reducer, int64_t samples) {
    const gs_reducer_options *options = &reducer->options;
    const gs_logical_shards *shards = &options->shards;
    int own_shard = reducer->passes_run / options->passes_per_shard;
    int in_shard = reducer->passes_run % options->passes_per_shard;
    bool opens_window = in_shard == 0 && (shards->exact || own_shard == 0);
    reducer->slot = reducer->shard_steps[own_shard].slot;
    reducer->pass = (gs_reducer_pass){
        .grads = reducer->copies.tensors ? reducer->copies.grads
                                         : gs_grad_layout_grads(&reducer->layout, reducer->slot),
        .accumulate = !opens_window && !reducer->open_marks,
        .shard = gs_logical_shards_first(shards, shards->rank) + own_shard,
        .pass = in_shard,
        .reduces = reducer->passes_run == reducer->num_passes - 1,
        .grad_factor = options->op == GS_SAMPLE_MEAN ? (float)samples : 1};
    reducer->closes = reducer->pass.reduces || reducer->open_marks ||
                      (shards->exact && in_shard == options->passes_per_shard - 1);
    reducer->defers = reducer->graph.on && !(reducer->graph.known && reducer->pass.reduces);
    reducer->settled_unused = false;
    if (opens_window && reducer->copies.tensors) gs_grad_copies_begin_window(&reducer->copies);
}

static gs_deadline window_deadline(const gs_reducer *reducer) {
    double seconds = reducer->options.windows.wait_seconds;
    return gs_deadline_in_seconds(seconds > 0 ? seconds : WINDOW_SECONDS);
}

static gs_status blame_number(const gs_reducer *reducer, size_t param) {
    return gs_error(GS_FAILED_PRECONDITION, "rank %d, step %lld: there is no parameter %zu",
                    reducer->options.shards.rank, (long long)reducer->step, param);
}

static void copy_in(gs_reducer *reducer, size_t param) {
    int64_t begin_ns = gs_now_ns();
    gs_grad_copies_in(&reducer->copies, &reducer->layout, reducer->slot, param,
                      reducer->options.device);
    gs_bucket *bucket = &reducer->layout.buckets[reducer->layout.bucket_of[param]];
    bucket->times.copy_in_ns += gs_now_ns() - begin_ns;
}

// The parameter takes no part in this pass: zero where the pass was to overwrite. A tensor of the
// caller's counts when an earlier pass of the window wrote it, and not when it is an old one.
static void settle_absent(gs_reducer *reducer, size_t param) {
    bool separate = reducer->copies.tensors != NULL;
    const gs_bucket *bucket = bucket_of(reducer, param);
    if (bucket->in_window && !bucket->is_open) return;  // zeroed when it is, or travels as zeros
    if (separate && !reducer->closes) return;
    if (separate && reducer->copies.written[param])
        copy_in(reducer, param);
    else if (separate || !reducer->pass.accumulate)
        gs_main_grad_zero(gs_grad_layout_grads(&reducer->layout, reducer->slot)[param],
                          reducer->layout.dtypes[param], reducer->layout.counts[param],
                          stream_of_pass(reducer, bucket));
}

// The parameter's gradient is final: one member less that its bucket waits for.
static inline gs_status settle(gs_reducer *reducer, size_t param) {
    size_t bucket = reducer->layout.bucket_of[param];
    if (--reducer->layout.buckets[bucket].num_pending == 0) return complete_bucket(reducer, bucket);
    reducer->bytes_since_progress += reducer->layout.counts[param] * sizeof(float);
    if (reducer->bytes_since_progress < PROGRESS_BYTES) return gs_ok();
    reducer->bytes_since_progress = 0;
    return gs_bucket_queue_progress(&reducer->queue);
}

// This pass will not use the parameter. What a static graph knows to be unused is settled together.
static gs_status leave_out(gs_reducer *reducer, size_t param) {
    reducer->unused_marks[param] = reducer->serial;
    reducer->num_seen++;
    if ((reducer->graph.known && reducer->pass.reduces) || bucket_of(reducer, param)->rests)
        return gs_ok();
    settle_absent(reducer, param);
    bool defers = reducer->defers && !bucket_of(reducer, param)->in_window;
    return reducer->closes && !defers ? settle(reducer, param) : gs_ok();
}

// In a bucket of others that train, zeros travel for it.
static gs_status settle_frozen(gs_reducer *reducer) {
    for (size_t i = 0; i < reducer->trains.num_frozen; i++)
        GS_TRY(leave_out(reducer, reducer->trains.frozen[i]));
    return gs_ok();
}

gs_status gs_pass_open(gs_reducer *reducer, gs_reducer_pass *pass, int64_t samples) {
    GS_TRY(check_may_open(reducer, samples));
    reducer->samples += samples;
    describe_pass(reducer, samples);
    // With windows the buckets of each pass travel, and their results add up.
    if (reducer->open_marks)
        GS_TRY(gs_bucket_queue_begin_pass(&reducer->queue, reducer->passes_run == 0,
                                          reducer->pass.reduces, window_deadline(reducer)));
    if (++reducer->serial == 0) {
        memset(reducer->marks, 0, reducer->layout.num_params * sizeof *reducer->marks);
        memset(reducer->unused_marks, 0,
               reducer->layout.num_params * sizeof *reducer->unused_marks);
        if (reducer->open_marks)
            memset(reducer->open_marks, 0,
                   reducer->layout.num_params * sizeof *reducer->open_marks);
        reducer->serial = 1;
    }
    reducer->num_seen = 0;
    reducer->bytes_since_progress = 0;
    if (reducer->closes) {
        for (size_t b = 0; b < reducer->layout.plan.num_buckets; b++)
            gs_bucket_reset(&reducer->layout.buckets[b]);
    }
    if (reducer->pass.reduces) {
        reducer->tally.samples = reducer->samples;
        gs_ready_order_begin(&reducer->order);
        if (reducer->graph.on) gs_static_graph_begin_pass(&reducer->graph);
    }
    GS_TRY(settle_frozen(reducer));
    reducer->phase = GS_REDUCER_PASS;
    *pass = reducer->pass;
    return gs_ok();
}

static inline void note_ready(gs_reducer *reducer, size_t param) {
    gs_ready_order_add(&reducer->order, param);
    if (reducer->record.times_params)
        gs_reducer_record_mark(&reducer->record, param, reducer->stats.backward_begin_ns);
}

// On the stream of the collectives a GPU's point is right even where a graph was launched as a
// whole; all that is posted comes later anyway.
static void note_backward(gs_reducer *reducer) {
    reducer->stats.backward_begin_ns = gs_now_ns();
    if (reducer->points.device)
        gs_step_points_take(&reducer->points, GS_POINT_BACKWARD,
                            gs_work_stream_before_post(reducer->comm).stream);
}

// The first mark of a parameter in this pass. Where marks are counted already it is ready at the
// last.
static inline void note_mark(gs_reducer *reducer, size_t param) {
    reducer->marks[param] = reducer->serial;
    reducer->tally.used[param] = 1;
    reducer->num_seen++;
    if (reducer->copies.tensors) reducer->copies.written[param] = 1;
    if (!reducer->pass.reduces) return;
    if (!reducer->stats.backward_begin_ns) note_backward(reducer);
    if (!reducer->graph.known) note_ready(reducer, param);
}

static gs_status settle_unused(gs_reducer *reducer) {
    reducer->settled_unused = true;
    for (size_t i = 0; i < reducer->graph.num_unused; i++) {
        size_t param = reducer->graph.unused[i];
        if (bucket_of(reducer, param)->rests) continue;
        settle_absent(reducer, param);
        GS_TRY(settle(reducer, param));
    }
    return gs_ok();
}

static gs_status blame_count(const gs_reducer *reducer, size_t param) {
    const gs_static_graph *graph = &reducer->graph;
    if (!graph->used[param])
        return gs_reducer_blame(reducer, param,
                                "is used, but was not in the first step: the static graph changed");
    if (!reducer->tally.used[param])
        return gs_reducer_blame(reducer, param,
                                "is not used, but was in the first step: the static graph changed");
    char what[128];
    snprintf(what, sizeof what,
             "marked ready %u times, in the first step %u times: the static graph changed",
             graph->num_marked[param], graph->counts[param]);
    return gs_reducer_blame(reducer, param, what);
}

// Where marks are not counted yet a window cannot wait for the last one: the first is it.
static gs_status mark_in_window(gs_reducer *reducer, size_t param) {
    if (reducer->graph.num_marked[param] == 1) return settle(reducer, param);
    return gs_reducer_blame(
        reducer, param,
        "marked ready twice in the first step of a static graph, and its bucket "
        "is in a window: it has to open early");
}

static gs_status mark_counted(gs_reducer *reducer, size_t param) {
    gs_static_graph *graph = &reducer->graph;
    if (graph->known && !graph->used[param]) return blame_count(reducer, param);
    if (reducer->marks[param] != reducer->serial) note_mark(reducer, param);
    if (!reducer->pass.reduces) return gs_ok();
    if (graph->known && !reducer->settled_unused) GS_TRY(settle_unused(reducer));
    gs_static_mark mark = gs_static_graph_mark(graph, param);
    if (mark == GS_MARK_EXTRA) return blame_count(reducer, param);
    if (!graph->known && bucket_of(reducer, param)->in_window)
        return mark_in_window(reducer, param);
    if (mark == GS_MARK_WAITS) return gs_ok();
    note_ready(reducer, param);
    if (reducer->copies.tensors) copy_in(reducer, param);
    return settle(reducer, param);
}

static bool is_absent(const gs_reducer *reducer, size_t param) {
    return reducer->unused_marks[param] == reducer->serial ||
           (reducer->settled_unused && !reducer->graph.counts[param]);
}

// What this rank itself has yet to finish before the window of a bucket can be free.
static gs_status check_turn(const gs_reducer *reducer, size_t param) {
    size_t before = bucket_of(reducer, param)->before;
    for (size_t b = reducer->queue.first_filling; b <= before; b++) {
        const gs_bucket *bucket = &reducer->layout.buckets[b];
        if (bucket->state != GS_BUCKET_FILLING) continue;
        size_t i = 0;
        while (i + 1 < bucket->num_params && gs_pass_saw(reducer, bucket->params[i])) i++;
        size_t open = bucket->params[i];
        char what[224];
        snprintf(what, sizeof what,
                 "is written, but its window is that of bucket %zu, and parameter %zu \"%.60s\" of "
                 "bucket %zu is not final: write in the order of the plan, or let one open early",
                 before, open, reducer->layout.params[open].name, b);
        return gs_reducer_blame(reducer, param, what);
    }
    return gs_ok();
}

// Members that this pass has left out already are zero, and so is what lies between members.
static gs_status open_bucket(gs_reducer *reducer, size_t param) {
    gs_grad_layout *layout = &reducer->layout;
    gs_bucket *bucket = bucket_of(reducer, param);
    if (!gs_bucket_queue_is_free(&reducer->queue, layout->bucket_of[param])) {
        GS_TRY(check_turn(reducer, param));
        GS_TRY(gs_bucket_queue_await_place(&reducer->queue, layout->bucket_of[param],
                                           window_deadline(reducer)));
    }
    bucket->is_open = true;
    if (layout->device)
        gs_main_grad_zero(gs_grad_layout_bucket(layout, 0, bucket), bucket->dtype,
                          bucket->grad_count, gs_work_stream_of(layout->device));
    else
        gs_bucket_clear_padding(bucket, gs_grad_layout_slot(layout, 0), layout->params);
    for (size_t i = 0; i < bucket->num_params; i++)
        if (is_absent(reducer, bucket->params[i])) settle_absent(reducer, bucket->params[i]);
    return gs_ok();
}

gs_status gs_pass_open_grad(gs_reducer *reducer, size_t param) {
    if (reducer->failed.code) return reducer->failed;
    if (!reducer->open_marks) return gs_ok();
    if (param >= reducer->layout.num_params) return blame_number(reducer, param);
    if (reducer->phase != GS_REDUCER_PASS)
        return gs_reducer_blame(reducer, param, "is written outside a pass");
    if (gs_trainability_is_frozen(&reducer->trains, param))
        return gs_reducer_blame(reducer, param, "is written, but it is frozen on all ranks");
    const gs_bucket *bucket = bucket_of(reducer, param);
    if (bucket->state != GS_BUCKET_FILLING || reducer->unused_marks[param] == reducer->serial ||
        (reducer->marks[param] == reducer->serial && !reducer->graph.on))
        return gs_reducer_blame(reducer, param, "is written after it was final");
    if (!bucket->is_open) GS_TRY(open_bucket(reducer, param));
    reducer->open_marks[param] = reducer->serial;
    return gs_ok();
}

gs_status gs_pass_mark_ready(gs_reducer *reducer, size_t param) {
    if (reducer->failed.code) return reducer->failed;
    GS_FAILPOINT("reducer.mark_ready");
    if (param >= reducer->layout.num_params) return blame_number(reducer, param);
    if (reducer->phase != GS_REDUCER_PASS)
        return gs_reducer_blame(reducer, param, "marked ready outside a pass");
    if (gs_trainability_is_frozen(&reducer->trains, param))
        return gs_reducer_blame(reducer, param, "marked ready, but it is frozen on all ranks");
    if (reducer->unused_marks[param] == reducer->serial)
        return gs_reducer_blame(reducer, param, "marked ready after it was marked unused");
    if (reducer->open_marks && reducer->open_marks[param] != reducer->serial)
        return gs_reducer_blame(reducer, param,
                                "marked ready, but nobody said that it would be written "
                                "(gs_reducer_open_grad), and its place may be others'");
    if (reducer->graph.on) return mark_counted(reducer, param);
    if (reducer->marks[param] == reducer->serial)
        return gs_reducer_blame(reducer, param,
                                "marked ready twice in one pass; only a static graph may do that");
    note_mark(reducer, param);
    if (!reducer->closes) return gs_ok();
    if (reducer->copies.tensors) copy_in(reducer, param);
    return settle(reducer, param);
}

gs_status gs_pass_mark_unused(gs_reducer *reducer, size_t param) {
    const gs_static_graph *graph = &reducer->graph;
    if (reducer->failed.code) return reducer->failed;
    if (param >= reducer->layout.num_params) return blame_number(reducer, param);
    if (reducer->phase != GS_REDUCER_PASS)
        return gs_reducer_blame(reducer, param, "marked unused outside a pass");
    if (gs_trainability_is_frozen(&reducer->trains, param)) return gs_ok();  // nobody expects it
    if (reducer->marks[param] == reducer->serial)
        return gs_reducer_blame(reducer, param, "marked unused after it was marked ready");
    if (reducer->unused_marks[param] == reducer->serial)
        return gs_reducer_blame(reducer, param, "marked unused twice in one pass");
    bool counted = graph->known && reducer->pass.reduces;
    if (counted && graph->counts[param])
        return gs_reducer_blame(
            reducer, param,
            "marked unused, but was used in the first step: the static graph changed");
    return leave_out(reducer, param);
}

static gs_status check_from(const gs_reducer *reducer, size_t param, gs_dtype dtype) {
    if (param >= reducer->layout.num_params || reducer->phase != GS_REDUCER_PASS ||
        gs_pass_saw(reducer, param))
        return gs_ok();  // the mark says what is wrong
    if (reducer->copies.tensors)
        return gs_reducer_blame(reducer, param,
                                "is marked from memory, but its gradient is a separate tensor");
    if (reducer->layout.params[param].sparse)
        return gs_reducer_blame(reducer, param, "is marked from memory, but its gradient is rows");
    bool is_float = dtype == GS_FP32 || dtype == GS_FP64 || dtype == GS_FP16 || dtype == GS_BF16;
    return is_float ? gs_ok()
                    : gs_reducer_blame(reducer, param, "is marked from memory of no float type");
}

// In pieces through memory of this thread: what is added is cast first, and scaled.
static gs_status add_from(gs_reducer *reducer, size_t param, const void *data, gs_dtype dtype) {
    enum { PIECE = 1024 };
    double piece[PIECE];
    gs_device *device = reducer->options.device;
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *stream = gs_device_stream(device);
    gs_dtype main = reducer->layout.dtypes[param];
    char *grad = gs_grad_layout_grads(&reducer->layout, reducer->slot)[param];
    size_t count = reducer->layout.counts[param];
    if (!gs_device_is_host(device))
        return gs_reducer_blame(
            reducer, param, "is marked from memory in a pass that adds, which a GPU does not do");
    for (size_t at = 0; at < count; at += PIECE) {
        size_t num = count - at < PIECE ? count - at : PIECE;
        kernels->cast(stream, piece, main, (const char *)data + at * gs_dtype_bytes(dtype), dtype,
                      reducer->pass.grad_factor, num);
        gs_main_grad_add(grad + at * gs_dtype_bytes(main), piece, main, num,
                         gs_work_stream_of(device));
    }
    return gs_ok();
}

static gs_status copy_from(gs_reducer *reducer, size_t param, const void *data, gs_dtype dtype) {
    gs_device *device = reducer->options.device;
    const gs_kernels *kernels = gs_device_kernels(device);
    void *grad = gs_grad_layout_grads(&reducer->layout, reducer->slot)[param];
    size_t count = reducer->layout.counts[param];
    if (data == grad) return gs_ok();
    GS_TRY(gs_pass_open_grad(reducer, param));
    if (!count) return gs_ok();
    bool is_again = reducer->marks[param] == reducer->serial;
    if (reducer->pass.accumulate && is_again)
        return gs_reducer_blame(reducer, param, "is marked from memory again in a pass that adds");
    if (reducer->pass.accumulate) return add_from(reducer, param, data, dtype);
    if (dtype == reducer->layout.dtypes[param] && reducer->pass.grad_factor == 1)
        kernels->copy(gs_device_stream(device), grad, data, count * gs_dtype_bytes(dtype));
    else
        kernels->cast(gs_device_stream(device), grad, reducer->layout.dtypes[param], data, dtype,
                      reducer->pass.grad_factor, count);
    return gs_ok();
}

gs_status gs_pass_mark_from(gs_reducer *reducer, size_t param, const void *data, gs_dtype dtype) {
    if (reducer->failed.code) return reducer->failed;
    if (!data) return gs_pass_mark_unused(reducer, param);
    GS_TRY(check_from(reducer, param, dtype));
    bool writes = param < reducer->layout.num_params && reducer->phase == GS_REDUCER_PASS &&
                  (!gs_pass_saw(reducer, param) || reducer->graph.on);
    if (writes) GS_TRY(copy_from(reducer, param, data, dtype));
    return gs_pass_mark_ready(reducer, param);
}

// What is still open of a bucket when the pass ends.
static gs_status close_bucket(gs_reducer *reducer, size_t index) {
    gs_bucket *bucket = &reducer->layout.buckets[index];
    if (bucket->rests || (reducer->closes && !bucket->num_pending)) return gs_ok();
    for (size_t i = 0; i < bucket->num_params; i++) {
        size_t param = bucket->params[i];
        if (reducer->unused_marks[param] == reducer->serial) continue;
        if (reducer->marks[param] != reducer->serial)
            settle_absent(reducer, param);
        else if (reducer->closes && reducer->defers && reducer->copies.tensors)
            copy_in(reducer, param);
    }
    if (!reducer->closes) return gs_ok();
    bucket->num_pending = 0;
    return complete_bucket(reducer, index);
}

static gs_status check_promise(const gs_reducer *reducer) {
    const gs_static_graph *graph = &reducer->graph;
    if (!graph->known || !reducer->pass.reduces) return gs_ok();
    size_t broken = gs_static_graph_find_broken(graph, reducer->tally.used);
    return broken < graph->num_params ? blame_count(reducer, broken) : gs_ok();
}

gs_status gs_pass_close(gs_reducer *reducer) {
    if (reducer->failed.code) return reducer->failed;
    if (reducer->phase != GS_REDUCER_PASS) return gs_reducer_misuse(reducer, "no pass is open");
    GS_TRY(check_promise(reducer));
    bool counted = reducer->graph.known && reducer->pass.reduces;
    if (counted && !reducer->settled_unused) GS_TRY(settle_unused(reducer));  // nothing was marked
    bool has_open = reducer->num_seen < reducer->layout.num_params || reducer->defers;
    for (size_t b = 0; b < reducer->layout.plan.num_buckets && has_open; b++)
        GS_TRY(close_bucket(reducer, b));
    if (reducer->pass.reduces) {
        gs_ready_order_finish(&reducer->order, &reducer->layout.plan, reducer->marks,
                              reducer->serial);
        gs_reduce_stats *stats = &reducer->stats;
        stats->backward_end_ns = gs_now_ns();
        if (reducer->points.device)
            gs_step_points_take(&reducer->points, GS_POINT_BACKWARD_END,
                                gs_device_stream(reducer->options.device));
        if (!stats->backward_begin_ns) stats->backward_begin_ns = stats->backward_end_ns;
    }
    reducer->passes_run++;
    reducer->phase = GS_REDUCER_OPEN;
    return gs_ok();
}

static gs_status post_zeros(gs_reducer *reducer) {
    gs_grad_layout *layout = &reducer->layout;
    for (size_t b = 0; b < layout->plan.num_buckets; b++) gs_bucket_reset(&layout->buckets[b]);
    for (size_t b = 0; b < layout->plan.num_buckets; b++) {
        gs_bucket *bucket = &layout->buckets[b];
        if (bucket->rests) continue;
        bucket->is_open = false;  // zeros travel
        bucket->num_pending = 0;
        GS_TRY(gs_bucket_queue_push(&reducer->queue, b));
    }
    return gs_ok();
}

gs_status gs_pass_shadow(gs_reducer *reducer) {
    reducer->stats.backward_begin_ns = reducer->stats.backward_end_ns = gs_now_ns();
    // With windows the buckets of each pass travel: those of others, too.
    for (int pass = 0; pass < reducer->num_passes && reducer->open_marks; pass++) {
        GS_TRY(gs_bucket_queue_begin_pass(&reducer->queue, pass == 0,
                                          pass == reducer->num_passes - 1,
                                          window_deadline(reducer)));
        GS_TRY(post_zeros(reducer));
    }
    if (!reducer->open_marks) GS_TRY(post_zeros(reducer));
    reducer->passes_run = reducer->num_passes;
    return gs_ok();
}
