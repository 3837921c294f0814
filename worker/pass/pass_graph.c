#include "worker/pass/pass_graph.h"

#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/log.h"
#include "kernels/kernel_times.h"

#define MAX_ENTRIES 16
#define WAIT_SECONDS 120.0
#define CLEAR_SECONDS 10.0

typedef struct graph_mark {
    size_t param;
    bool is_skipped;
    gs_event *point;  // behind its gradient; borrowed from the entry; NULL: the end of the pass
} graph_mark;

// A pass that was seen.
typedef struct entry {
    gs_digest key;
    uint64_t used;  // when it ran last; 0: the entry is free
    bool is_plain;  // it could not be captured
    gs_graph *forward, *backward;  // owned; NULL: not captured yet
    graph_mark *marks;             // owned
    size_t num_marks;
    gs_event **events;  // owned, one for each bucket
    size_t num_events;
} entry;

struct gs_pass_graphs {
    gs_pass_graphs_options options;
    gs_stream *stream;
    entry entries[MAX_ENTRIES];
    uint64_t now;
    bool has_warned;
    gs_pass_graph_counts counts;
};

// What is written down while a pass is captured.
typedef struct recording {
    entry *into;
    gs_stream *stream;
    const gs_pass_marks *marks;
    size_t *bucket_of;  // owned; of each parameter
    size_t *left;       // owned; marks that each bucket still waits for
    size_t first_open;  // marks from here on have no point yet
} recording;

gs_status gs_pass_graphs_create(gs_pass_graphs **out, const gs_pass_graphs_options *options) {
    *out = NULL;
    const char *wanted = getenv("GRADSYNC_GRAPHS");
    if (!gs_device_has_graphs(options->device) || (wanted && strcmp(wanted, "0") == 0))
        return gs_ok();
    gs_pass_graphs *graphs = calloc(1, sizeof *graphs);
    if (!graphs) return gs_error(GS_RESOURCE_EXHAUSTED, "graphs: out of memory");
    graphs->options = *options;
    graphs->stream = gs_device_stream(options->device);
    *out = graphs;
    return gs_ok();
}

static void release_capture(entry *at) {
    gs_graph_destroy(at->forward);
    gs_graph_destroy(at->backward);
    at->forward = at->backward = NULL;
    for (size_t i = 0; at->events && i < at->num_events; i++) gs_event_destroy(at->events[i]);
    free(at->events);
    free(at->marks);
    at->events = NULL;
    at->marks = NULL;
    at->num_events = at->num_marks = 0;
}

// Graphs that still run are not destroyed under way.
gs_status gs_pass_graphs_clear(gs_pass_graphs *graphs) {
    if (!graphs) return gs_ok();
    gs_status status = gs_ok();
    if (graphs->counts.launched)
        status = gs_stream_wait(graphs->stream, gs_deadline_in_seconds(CLEAR_SECONDS));
    for (int i = 0; i < MAX_ENTRIES; i++) {
        release_capture(&graphs->entries[i]);
        graphs->entries[i] = (entry){0};
    }
    return status;
}

void gs_pass_graphs_destroy(gs_pass_graphs *graphs) {
    gs_status status = gs_pass_graphs_clear(graphs);
    if (status.code) gs_log_debug("graphs are dropped", "reason=\"%s\"", status.message);
    free(graphs);
}

gs_pass_graph_counts gs_pass_graphs_count(const gs_pass_graphs *graphs) {
    return graphs ? graphs->counts : (gs_pass_graph_counts){0};
}

static gs_digest digest_list(const void *pointers, size_t count) {
    return pointers ? gs_digest_of(pointers, count * sizeof(void *)) : (gs_digest){0};
}

// All that the model and its marks are given, in one struct without holes that matter: it is cleared first.
static gs_digest make_key(const gs_pass_graphs *graphs, const gs_pass_run *run) {
    const gs_model_pass *pass = run->pass;
    struct {
        gs_batch batch;
        gs_digest params, buffers, next_buffers, grads, finished;
        const void *sync, *sparse, *loss_sum;
        float grad_factor;
        int training, accumulate;
    } key;
    const gs_pass_graphs_options *options = &graphs->options;
    memset(&key, 0, sizeof key);
    key.batch.rows = pass->batch->rows;
    key.batch.positions = pass->batch->positions;
    key.batch.row_features = pass->batch->row_features;
    key.batch.tokens = pass->batch->tokens;
    key.batch.features = pass->batch->features;
    key.batch.targets = pass->batch->targets;
    key.params = digest_list(pass->params, options->num_params);
    key.buffers = digest_list(pass->buffers, options->num_buffers);
    key.next_buffers = digest_list(pass->next_buffers, options->num_buffers);
    key.grads = digest_list(pass->grads, options->num_params);
    key.finished = digest_list(run->marks->finished, options->num_params);
    key.sync = pass->sync;
    key.sparse = pass->sparse;
    key.loss_sum = pass->loss_sum;
    key.grad_factor = pass->grad_factor;
    key.training = pass->training;
    key.accumulate = pass->accumulate;
    return gs_digest_of(&key, sizeof key);
}

// The entry of this pass; *is_new: it was made now, in place of the one that rested longest.
static entry *find_entry(gs_pass_graphs *graphs, gs_digest key, bool *is_new) {
    entry *oldest = &graphs->entries[0];
    *is_new = false;
    for (int i = 0; i < MAX_ENTRIES; i++) {
        entry *at = &graphs->entries[i];
        if (at->used && gs_digest_equal(at->key, key)) return at;
        if (at->used < oldest->used) oldest = at;
    }
    *is_new = true;
    return oldest;
}

static void mark_ready_now(void *ctx, size_t param) {
    const gs_pass_marks *marks = ctx;
    if (marks->finish) marks->finish(marks->finish_ctx, param);
    marks->ready(marks->ctx, param);
}

static void mark_skipped_now(void *ctx, size_t param) {
    const gs_pass_marks *marks = ctx;
    if (marks->skipped) marks->skipped(marks->ctx, param);
}

static gs_status run_plainly(const gs_pass_run *run) {
    gs_pass_marks marks = *run->marks;
    run->pass->ready = mark_ready_now;
    run->pass->skipped = mark_skipped_now;
    run->pass->ready_ctx = run->pass->skipped_ctx = &marks;
    GS_TRY(run->model->ops->forward(run->model->state, run->pass));
    GS_TRY(run->turn(run->turn_ctx, false));
    GS_TRY(run->model->ops->backward(run->model->state, run->pass));
    return run->turn(run->turn_ctx, true);
}

// Behind the last gradient of a bucket: an event, which is the point of all marks since the last one.
static void record_mark(recording *rec, size_t param, bool is_skipped) {
    entry *into = rec->into;
    into->marks[into->num_marks++] = (graph_mark){.param = param, .is_skipped = is_skipped};
    if (!rec->bucket_of) return;
    size_t bucket = rec->bucket_of[param];
    if (--rec->left[bucket] > 0) return;
    gs_event_record(into->events[bucket], rec->stream);
    for (; rec->first_open < into->num_marks; rec->first_open++)
        into->marks[rec->first_open].point = into->events[bucket];
}

static void record_ready(void *ctx, size_t param) {
    recording *rec = ctx;
    if (rec->marks->finish) rec->marks->finish(rec->marks->finish_ctx, param);
    record_mark(rec, param, false);
}

static void record_skipped(void *ctx, size_t param) {
    record_mark(ctx, param, true);
}

static gs_status note_buckets(recording *rec, const gs_bucket_plan *plan, size_t num_params) {
    rec->bucket_of = calloc(num_params + 1, sizeof *rec->bucket_of);
    rec->left = calloc(plan->num_buckets + 1, sizeof *rec->left);
    if (!rec->bucket_of || !rec->left) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t b = 0; b < plan->num_buckets; b++) {
        const gs_plan_bucket *bucket = &plan->buckets[b];
        rec->left[b] = bucket->num_params;
        for (size_t i = 0; i < bucket->num_params; i++)
            rec->bucket_of[plan->params[bucket->first + i]] = b;
    }
    return gs_ok();
}

static gs_status make_events(entry *into, size_t count, gs_device *device) {
    into->events = calloc(count + 1, sizeof *into->events);
    if (!into->events) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    into->num_events = count;
    for (size_t i = 0; i < count; i++) GS_TRY(gs_event_create(&into->events[i], device, false));
    return gs_ok();
}

static gs_status capture_half(gs_graph **out, gs_stream *stream, const gs_pass_run *run,
                              gs_status (*half)(void *model, gs_model_pass *pass)) {
    GS_TRY(gs_graph_begin(stream));
    gs_status status = half(run->model->state, run->pass);
    gs_graph *graph = NULL;
    gs_status ended = gs_graph_end(&graph, stream);
    if (!status.code) status = ended;
    if (status.code) gs_graph_destroy(graph);
    else *out = graph;
    return status;
}

static gs_status capture(gs_pass_graphs *graphs, entry *into, const gs_pass_run *run) {
    recording rec = {.into = into, .stream = graphs->stream, .marks = run->marks};
    size_t num_params = graphs->options.num_params;
    gs_status status = gs_ok();
    into->marks = calloc(2 * num_params + 1, sizeof *into->marks);
    if (!into->marks) status = gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    if (!status.code && run->plan) status = note_buckets(&rec, run->plan, num_params);
    if (!status.code && run->plan)
        status = make_events(into, run->plan->num_buckets, graphs->options.device);
    run->pass->ready = record_ready;
    run->pass->skipped = record_skipped;
    run->pass->ready_ctx = run->pass->skipped_ctx = &rec;
    const gs_model_ops *ops = run->model->ops;
    if (!status.code) status = capture_half(&into->forward, graphs->stream, run, ops->forward);
    if (!status.code) status = capture_half(&into->backward, graphs->stream, run, ops->backward);
    free(rec.bucket_of);
    free(rec.left);
    return status;
}

// The host's half of a pass whose device half runs or is to run.
static void walk_marks(const entry *at, gs_stream *stream, const gs_pass_marks *marks) {
    for (size_t i = 0; i < at->num_marks; i++) {
        const graph_mark *mark = &at->marks[i];
        gs_stream_set_point(stream, mark->point);
        if (!mark->is_skipped) marks->ready(marks->ctx, mark->param);
        else if (marks->skipped) marks->skipped(marks->ctx, mark->param);
    }
    gs_stream_set_point(stream, NULL);
}

static gs_status launch(gs_pass_graphs *graphs, const entry *at, const gs_pass_run *run) {
    GS_TRY(gs_graph_launch(at->forward, graphs->stream));
    GS_TRY(run->turn(run->turn_ctx, false));
    GS_TRY(gs_graph_launch(at->backward, graphs->stream));
    graphs->counts.launched++;
    walk_marks(at, graphs->stream, run->marks);
    return run->turn(run->turn_ctx, true);
}

// What a capture that failed left on the stream is taken off it: nothing of it has run.
static void give_up_capture(gs_pass_graphs *graphs, entry *at, gs_status why) {
    release_capture(at);
    at->is_plain = true;
    graphs->counts.failed++;
    gs_status left = gs_stream_wait(graphs->stream, gs_deadline_in_seconds(WAIT_SECONDS));
    if (graphs->has_warned) return;
    graphs->has_warned = true;
    gs_log_warn("passes run without graphs", "device=%s reason=\"%s\" stream=\"%s\"",
                gs_device_name(graphs->options.device), why.message, left.message);
}

gs_status gs_pass_graphs_run(gs_pass_graphs *graphs, const gs_pass_run *run) {
    const gs_model_ops *ops = run->model->ops;
    // What other ranks or the host have a part in is not the device's alone.
    bool is_alone = !run->pass->sync && !run->pass->sparse && !run->pass->writes;
    if (!graphs || !is_alone || !ops->repeats || !ops->repeats(run->model->state, run->pass))
        return run_plainly(run);
    if (gs_kernel_times_running(graphs->options.device)) {
        graphs->counts.plain++;
        return run_plainly(run);
    }
    bool is_new;
    gs_digest key = make_key(graphs, run);
    entry *at = find_entry(graphs, key, &is_new);
    if (is_new) {
        // A graph that still runs is not destroyed under it.
        if (at->forward)
            GS_TRY(gs_stream_wait(graphs->stream, gs_deadline_in_seconds(WAIT_SECONDS)));
        release_capture(at);
        *at = (entry){.key = key};
    }
    at->used = ++graphs->now;
    if (!is_new && !at->forward && !at->is_plain) {
        // What went wrong before is no matter of the capture.
        GS_TRY(gs_stream_wait(graphs->stream, gs_deadline_in_seconds(WAIT_SECONDS)));
        gs_status status = capture(graphs, at, run);
        if (status.code) give_up_capture(graphs, at, status);
        else graphs->counts.captured++;
    }
    if (at->forward) return launch(graphs, at, run);
    graphs->counts.plain++;
    return run_plainly(run);
}
