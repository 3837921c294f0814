#include "kernels/launch_notes.h"

#include <stdlib.h>

#include "kernels/backend.h"

#define DROP_SECONDS 10.0
#define POLL_NS 20000

static gs_status grow(gs_launch_notes *notes) {
    if (notes->num_notes < notes->max_notes) return gs_ok();
    size_t wanted = notes->max_notes ? 2 * notes->max_notes : 1024;
    gs_launch_note *grown = realloc(notes->notes, wanted * sizeof *grown);
    if (!grown) return gs_error(GS_RESOURCE_EXHAUSTED, "times of kernels: out of memory");
    notes->notes = grown;
    notes->max_notes = wanted;
    return gs_ok();
}

static void destroy_event(gs_event *event) {
    if (event) event->backend->event_destroy(event);
}

static gs_status add_note(gs_launch_notes *notes, gs_launch_note *note) {
    gs_device *device = notes->device;
    GS_TRY(grow(notes));
    GS_TRY(device->backend->event_create(&note->from, device, true));
    gs_status status = device->backend->event_create(&note->to, device, true);
    if (status.code) {
        destroy_event(note->from);
        return status;
    }
    notes->notes[notes->num_notes++] = *note;
    atomic_fetch_add(&notes->num_open, 1);
    return gs_ok();
}

gs_event *gs_launch_notes_add(gs_launch_notes *notes, gs_stream *stream, const char *kernel, gs_dtype dtype,
                              const gs_launch_cost *cost) {
    gs_launch_note note = {.kernel = kernel, .dtype = dtype, .cost = *cost};
    pthread_mutex_lock(&notes->lock);
    bool is_noted = atomic_load(&notes->is_running);
    if (is_noted && !notes->error.code) notes->error = add_note(notes, &note);
    is_noted = is_noted && !notes->error.code;
    pthread_mutex_unlock(&notes->lock);
    if (!is_noted) return NULL;
    stream->backend->event_record(note.from, stream);
    return note.to;
}

void gs_launch_notes_end(gs_launch_notes *notes, gs_event *end, gs_stream *stream) {
    if (!end) return;
    stream->backend->event_record(end, stream);
    atomic_fetch_sub(&notes->num_open, 1);
}

bool gs_launch_notes_stop(gs_launch_notes *notes, gs_deadline deadline) {
    pthread_mutex_lock(&notes->lock);
    atomic_store(&notes->is_running, false);
    pthread_mutex_unlock(&notes->lock);
    while (atomic_load(&notes->num_open)) {
        if (gs_deadline_passed(deadline)) return false;
        gs_sleep_ns(POLL_NS);
    }
    return true;
}

void gs_launch_notes_drop(gs_launch_notes *notes) {
    if (!notes) return;
    // A launch that does not end keeps its events: they are left to the end of the process.
    if (!gs_launch_notes_stop(notes, gs_deadline_in_seconds(DROP_SECONDS))) notes->num_notes = 0;
    for (size_t i = 0; i < notes->num_notes; i++) {
        destroy_event(notes->notes[i].from);
        destroy_event(notes->notes[i].to);
    }
    free(notes->notes);
    notes->notes = NULL;
    notes->num_notes = notes->max_notes = 0;
    destroy_event(notes->begin);
    destroy_event(notes->end);
    notes->begin = notes->end = NULL;
    notes->error = (gs_status){0};
}

void gs_launch_notes_destroy(gs_launch_notes *notes) {
    if (!notes) return;
    pthread_mutex_destroy(&notes->lock);
    free(notes);
}
