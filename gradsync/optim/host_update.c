#include "gradsync/optim/host_update.h"

#include <stdlib.h>

#define NUM_PIECES 2
// Of parameters, and as many of gradients.
#define PIECE_ELEMENTS (GS_HOST_UPDATE_PIECES_BYTES / NUM_PIECES / 2 / sizeof(float))
#define DEVICE_SECONDS 60.0
#define POLL_NS 20000

typedef struct piece {
    float *params, *grads;  // pinned; one memory
    gs_event *event;        // they are here
} piece;

struct gs_host_update {
    gs_device *device;  // borrowed
    gs_device *host;    // owned: threads and kernels
    piece pieces[NUM_PIECES];
};

static gs_status make_piece(piece *at, gs_device *device) {
    void *memory;
    GS_TRY(gs_device_alloc_pinned(device, &memory, 2 * PIECE_ELEMENTS * sizeof(float)));
    at->params = memory;
    at->grads = at->params + PIECE_ELEMENTS;
    return gs_event_create(&at->event, device, false);
}

gs_status gs_host_update_create(gs_host_update **out, gs_device *device, int num_threads) {
    gs_host_update *update = calloc(1, sizeof *update);
    if (!update) return gs_error(GS_RESOURCE_EXHAUSTED, "updates on the host: out of memory");
    update->device = device;
    gs_status status =
        gs_device_open(&update->host, "cpu", &(gs_device_options){.num_threads = num_threads});
    for (int i = 0; i < NUM_PIECES && !status.code; i++)
        status = make_piece(&update->pieces[i], device);
    if (status.code) {
        gs_host_update_destroy(update);
        return gs_status_prefix(status, "updates on the host");
    }
    *out = update;
    return gs_ok();
}

void gs_host_update_destroy(gs_host_update *update) {
    if (!update) return;
    for (int i = 0; i < NUM_PIECES; i++) {
        gs_event_destroy(update->pieces[i].event);
        if (update->pieces[i].params)
            gs_device_free_pinned(update->device, update->pieces[i].params);
    }
    if (update->host) gs_device_close(update->host);
    free(update);
}

static size_t count_from(const gs_host_update_run *run, size_t first) {
    return run->count - first < PIECE_ELEMENTS ? run->count - first : PIECE_ELEMENTS;
}

// Behind the last copy out of the piece, which the stream was given before.
static void fetch(gs_host_update *update, piece *to, const gs_host_update_run *run, size_t first,
                  bool is_direct) {
    const gs_kernels *k = gs_device_kernels(update->device);
    gs_stream *stream = gs_device_stream(update->device);
    size_t bytes = count_from(run, first) * sizeof(float);
    k->copy(stream, to->grads, run->grad + first, bytes);
    if (!is_direct) k->copy(stream, to->params, run->param + first, bytes);
    gs_event_record(to->event, stream);
}

static gs_status await(const piece *at) {
    gs_deadline deadline = gs_deadline_in_seconds(DEVICE_SECONDS);
    for (bool done = false, is_late;;) {
        is_late = gs_deadline_passed(deadline);
        GS_TRY(gs_event_query(at->event, &done));
        if (done) return gs_ok();
        if (is_late)
            return gs_error(GS_DEADLINE_EXCEEDED,
                            "updates on the host: the device does not answer");
        gs_sleep_ns(POLL_NS);
    }
}

gs_status gs_host_update_all(gs_host_update *update, const gs_host_update_run *run) {
    const gs_kernels *k = gs_device_kernels(update->device);
    gs_stream *stream = gs_device_stream(update->device);
    bool is_direct = !gs_device_is_device_memory(update->device, run->param);
    size_t num_parts = (run->count + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
    if (num_parts) fetch(update, &update->pieces[0], run, 0, is_direct);
    for (size_t i = 0; i < num_parts; i++) {
        const piece *at = &update->pieces[i % NUM_PIECES];
        size_t first = i * PIECE_ELEMENTS, count = count_from(run, first);
        float *param = is_direct ? run->param + first : at->params;
        if (i + 1 < num_parts)
            fetch(update, &update->pieces[(i + 1) % NUM_PIECES], run, first + count, is_direct);
        GS_TRY(await(at));
        run->update(run->ctx, update->host, first, count, param, at->grads);
        if (!is_direct) k->copy(stream, run->param + first, param, count * sizeof(float));
    }
    return gs_ok();
}
