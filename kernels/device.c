#include "kernels/device.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/options.h"
#include "kernels/backend.h"
#include "kernels/half.h"
#include "kernels/launch_notes.h"
#include "kernels/timed_table.h"

static bool parse_cuda_ordinal(const char *name, int *ordinal) {
    if (strncmp(name, "cuda:", 5) != 0 || !isdigit((unsigned char)name[5])) return false;
    int value = 0;
    for (const char *digit = name + 5; *digit; digit++) {
        if (!isdigit((unsigned char)*digit) || value > 999) return false;
        value = value * 10 + (*digit - '0');
    }
    *ordinal = value;
    return true;
}

static gs_status find_backend(const gs_device_backend **backend, int *ordinal, const char *name) {
    *ordinal = 0;
    if (strcmp(name, "cpu") == 0) {
        *backend = &gs_cpu_backend;
        return gs_ok();
    }
    if (parse_cuda_ordinal(name, ordinal)) {
#ifdef GRADSYNC_CUDA
        *backend = &gs_cuda_backend;
        return gs_ok();
#else
        return gs_error(GS_UNIMPLEMENTED, "device %s: this build has no CUDA", name);
#endif
    }
    return gs_error(GS_INVALID_ARGUMENT, "device '%s' is neither \"cpu\" nor \"cuda:N\"", name);
}

gs_status gs_device_open_sized(gs_device **out, const char *name, const gs_device_options *options,
                               size_t options_bytes) {
    gs_device_options known = {0};
    const gs_device_backend *backend;
    int ordinal;
    if (options)
        GS_TRY(gs_options_take(&known, sizeof known, options, options_bytes, "gs_device_options"));
    GS_TRY(find_backend(&backend, &ordinal, name));

    gs_device *device;
    GS_TRY(backend->open(&device, ordinal, &known));
    device->backend = backend;
    device->owner = getpid();
    snprintf(device->name, sizeof device->name, "%s", name);
    gs_status status = gs_timed_table_attach(device);
    if (status.code) {
        backend->close(device);
        return status;
    }
    *out = device;
    return gs_ok();
}

void gs_device_close(gs_device *device) {
    // A forked child has none of its threads.
    if (!device || device->owner != getpid()) return;
    gs_launch_notes *notes = device->notes;
    gs_launch_notes_drop(notes);
    device->backend->close(device);
    gs_launch_notes_destroy(notes);
}

const char *gs_device_name(const gs_device *device) {
    return device->name;
}

int gs_device_num_threads(const gs_device *device) {
    return device->num_threads;
}

bool gs_device_is_host(const gs_device *device) {
    return device->is_host;
}

const gs_half_kernels *gs_device_half_kernels(const gs_device *device, gs_dtype dtype) {
    if (dtype == GS_BF16) return device->half_kernels[0];
    return dtype == GS_FP16 ? device->half_kernels[1] : NULL;
}

const gs_kernels *gs_device_kernels(const gs_device *device) {
    return device->kernels;
}

gs_stream *gs_device_stream(gs_device *device) {
    return device->stream;
}

gs_status gs_device_alloc(gs_device *device, void **memory, size_t bytes) {
    return device->backend->alloc(device, memory, bytes);
}

void gs_device_free(gs_device *device, void *memory) {
    if (memory) device->backend->free(device, memory);
}

gs_status gs_device_upload(gs_device *device, void *to, const void *host, size_t bytes) {
    if (bytes == 0) return gs_ok();
    return device->backend->copy(device, to, host, bytes, GS_COPY_TO_DEVICE);
}

gs_status gs_device_download(gs_device *device, void *host, const void *from, size_t bytes) {
    if (bytes == 0) return gs_ok();
    return device->backend->copy(device, host, from, bytes, GS_COPY_TO_HOST);
}

void gs_device_arithmetic(const gs_device *device, char *text, size_t text_bytes) {
    device->backend->arithmetic(device, text, text_bytes);
}

void gs_device_limit(const gs_device *device, char *text, size_t text_bytes) {
    device->backend->limit(device, text, text_bytes);
}

gs_status gs_stream_wait(gs_stream *stream, gs_deadline deadline) {
    gs_status waited = stream->backend->wait(stream, deadline);
    pthread_mutex_lock(&stream->lock);
    gs_status error = stream->error;
    // A wait that timed out has not seen the end of the work: what stuck so far stays.
    if (waited.code == GS_OK) stream->error = (gs_status){0};
    pthread_mutex_unlock(&stream->lock);
    return error.code ? error : waited;
}

gs_status gs_stream_take_error(gs_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    gs_status error = stream->error;
    stream->error = (gs_status){0};
    pthread_mutex_unlock(&stream->lock);
    return error;
}

void gs_stream_fail(gs_stream *stream, gs_status status) {
    if (status.code == GS_OK) return;
    pthread_mutex_lock(&stream->lock);
    if (stream->error.code == GS_OK) stream->error = status;
    pthread_mutex_unlock(&stream->lock);
}

bool gs_stream_has_failed(gs_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    bool failed = stream->error.code != GS_OK;
    pthread_mutex_unlock(&stream->lock);
    return failed;
}

bool gs_stream_refuses_factor(gs_stream *stream, const char *kernel) {
    if (!stream->factor) return false;
    gs_stream_fail(stream, gs_error(GS_INVALID_ARGUMENT, "%s: takes no factor of the stream's", kernel));
    return true;
}

// Where the backend has no streams of its own all work is done when a launcher returns: a stream is the
// compute stream's twin, events are always done.

bool gs_device_is_lost(gs_device *device) {
    return device->backend->is_lost && device->backend->is_lost(device);
}

bool gs_device_is_device_memory(gs_device *device, const void *memory) {
    return device->backend->is_device_memory && device->backend->is_device_memory(device, memory);
}

gs_status gs_device_alloc_pinned(gs_device *device, void **memory, size_t bytes) {
    if (device->backend->alloc_pinned) return device->backend->alloc_pinned(device, memory, bytes);
    return gs_device_alloc(device, memory, bytes);
}

void gs_device_free_pinned(gs_device *device, void *memory) {
    if (!memory) return;
    if (device->backend->free_pinned)
        device->backend->free_pinned(device, memory);
    else
        gs_device_free(device, memory);
}

gs_status gs_stream_create(gs_stream **out, gs_device *device, gs_stream_priority priority) {
    GS_TRY(device->backend->stream_create(out, device, priority));
    (*out)->notes = device->notes;
    return gs_ok();
}

void gs_stream_destroy(gs_stream *stream) {
    if (stream) stream->backend->stream_destroy(stream);
}

void *gs_stream_native(gs_stream *stream) {
    return stream->backend->stream_native ? stream->backend->stream_native(stream) : NULL;
}

void gs_stream_follow(gs_stream *follower, gs_stream *leader) {
    if (leader->point)
        gs_stream_wait_event(follower, leader->point);
    else if (leader->backend->follow && follower != leader)
        leader->backend->follow(follower, leader);
}

void gs_stream_set_point(gs_stream *stream, gs_event *event) {
    stream->point = event;
}

void gs_stream_set_factor(gs_stream *stream, const gs_grad_factor *factor) {
    stream->factor = factor;
}

gs_status gs_event_create(gs_event **out, gs_device *device, bool timed) {
    return device->backend->event_create(out, device, timed);
}

gs_status gs_event_elapsed(const gs_event *from, const gs_event *to, int64_t *ns) {
    return from->backend->event_elapsed(from, to, ns);
}

void gs_event_destroy(gs_event *event) {
    if (event) event->backend->event_destroy(event);
}

void gs_event_record(gs_event *event, gs_stream *stream) {
    if (event->backend->event_record) event->backend->event_record(event, stream);
}

gs_status gs_event_query(gs_event *event, bool *done) {
    *done = true;
    return event->backend->event_query ? event->backend->event_query(event, done) : gs_ok();
}

void gs_stream_wait_event(gs_stream *stream, gs_event *event) {
    if (stream->backend->wait_event) stream->backend->wait_event(stream, event);
}

bool gs_device_has_graphs(const gs_device *device) {
    return device->backend->graph_begin != NULL;
}

gs_status gs_graph_begin(gs_stream *stream) {
    if (stream->backend->graph_begin) return stream->backend->graph_begin(stream);
    return gs_error(GS_UNIMPLEMENTED, "%s devices have no graphs", stream->backend->name);
}

gs_status gs_graph_end(gs_graph **out, gs_stream *stream) {
    if (stream->backend->graph_end) return stream->backend->graph_end(out, stream);
    return gs_error(GS_UNIMPLEMENTED, "%s devices have no graphs", stream->backend->name);
}

gs_status gs_graph_launch(gs_graph *graph, gs_stream *stream) {
    return graph->backend->graph_launch(graph, stream);
}

void gs_graph_destroy(gs_graph *graph) {
    if (graph) graph->backend->graph_destroy(graph);
}

void gs_stream_for_each(gs_stream *stream, size_t num_items, void (*body)(void *ctx, size_t item),
                        void *ctx) {
    if (stream->backend->for_each)
        stream->backend->for_each(stream, num_items, body, ctx);
    else
        gs_stream_fail(stream, gs_error(GS_FAILED_PRECONDITION,
                                        "for_each: a stream of %s runs no code of the host",
                                        stream->backend->name));
}

#ifndef GRADSYNC_CUDA
int gs_cuda_device_count(char *why, size_t why_bytes) {
    snprintf(why, why_bytes, "this build has no CUDA");
    return 0;
}

gs_status gs_cuda_device_facts(gs_device_facts *facts, int ordinal) {
    *facts = (gs_device_facts){0};
    return gs_error(GS_UNIMPLEMENTED, "device cuda:%d: this build has no CUDA", ordinal);
}
#endif
