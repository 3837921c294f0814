#include "kernels/device.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "kernels/backend.h"

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
        return gs_error(GS_UNIMPLEMENTED, "device %s: this build has no CUDA", name);
    }
    return gs_error(GS_INVALID_ARGUMENT, "device '%s' is neither \"cpu\" nor \"cuda:N\"", name);
}

gs_status gs_device_open(gs_device **out, const char *name, const gs_device_options *options) {
    static const gs_device_options defaults = {0};
    const gs_device_backend *backend;
    int ordinal;
    GS_TRY(find_backend(&backend, &ordinal, name));

    gs_device *device;
    GS_TRY(backend->open(&device, ordinal, options ? options : &defaults));
    device->backend = backend;
    snprintf(device->name, sizeof device->name, "%s", name);
    *out = device;
    return gs_ok();
}

void gs_device_close(gs_device *device) {
    if (device) device->backend->close(device);
}

const char *gs_device_name(const gs_device *device) {
    return device->name;
}

int gs_device_num_threads(const gs_device *device) {
    return device->num_threads;
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

void gs_stream_init(gs_stream *stream, const gs_device_backend *backend) {
    *stream = (gs_stream){.backend = backend};
    pthread_mutex_init(&stream->lock, NULL);
}

void gs_stream_release(gs_stream *stream) {
    pthread_mutex_destroy(&stream->lock);
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

void gs_stream_fail(gs_stream *stream, gs_status status) {
    if (status.code == GS_OK) return;
    pthread_mutex_lock(&stream->lock);
    if (stream->error.code == GS_OK) stream->error = status;
    pthread_mutex_unlock(&stream->lock);
}
