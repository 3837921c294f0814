#include "kernels/backend.h"

void gs_stream_init(gs_stream *stream, const gs_device_backend *backend) {
    *stream = (gs_stream){.backend = backend};
    pthread_mutex_init(&stream->lock, NULL);
}

void gs_stream_release(gs_stream *stream) {
    pthread_mutex_destroy(&stream->lock);
}
