#include "kernels/kernel_times.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/device.h"
#include "kernels/event_wait.h"
#include "kernels/launch_notes.h"

int64_t gs_kernel_times_step_of(const gs_device *device) {
    return device->notes ? device->notes->step : -1;
}

bool gs_kernel_times_running(const gs_device *device) {
    return device->notes && atomic_load(&device->notes->is_running);
}

gs_status gs_kernel_times_begin(gs_device *device) {
    gs_launch_notes *times = device->notes;
    if (!times)
        return gs_error(GS_FAILED_PRECONDITION, "device %s was opened without GRADSYNC_KERNEL_TIMES", gs_device_name(device));
    gs_launch_notes_drop(times);
    GS_TRY(gs_event_create(&times->begin, device, true));
    GS_TRY(gs_event_create(&times->end, device, true));
    gs_event_record(times->begin, gs_device_stream(device));
    atomic_store(&times->is_running, true);
    return gs_ok();
}

static bool is_same_shape(const gs_launch_shape *a, const gs_launch_shape *b) {
    return a->form == b->form && a->transpose_a == b->transpose_a && a->transpose_b == b->transpose_b &&
           a->adds == b->adds && a->epilogue == b->epilogue && memcmp(a->sizes, b->sizes, sizeof a->sizes) == 0;
}

static bool is_of(const gs_launch_note *note, const gs_launch_note *other) {
    return note->dtype == other->dtype && strcmp(note->kernel, other->kernel) == 0 &&
           is_same_shape(&note->cost.shape, &other->cost.shape);
}

static void describe_shape(char *text, size_t text_bytes, const gs_launch_shape *shape) {
    static const char *const epilogues[] = {"", " bias", " bias_gelu", " dgelu"};
    const size_t known = sizeof epilogues / sizeof *epilogues, *sizes = shape->sizes;
    text[0] = '\0';
    if (shape->form == GS_LAUNCH_PRODUCT)
        snprintf(text, text_bytes, "m=%zu n=%zu k=%zu %c%c%s%s", sizes[0], sizes[1], sizes[2],
                 shape->transpose_a ? 't' : 'n', shape->transpose_b ? 't' : 'n', shape->adds ? " adds" : "",
                 (size_t)shape->epilogue < known ? epilogues[shape->epilogue] : " epilogue");
    else if (shape->form == GS_LAUNCH_ATTENTION)
        snprintf(text, text_bytes, "batch=%zu positions=%zu heads=%zu channels=%zu", sizes[0], sizes[1], sizes[2],
                 sizes[3]);
}

// One row for all launches that are one kernel's: `first` has the note that each row began with.
static gs_kernel_time *find_row(gs_kernel_table *out, size_t *first, const gs_launch_note *notes, size_t note) {
    for (size_t i = 0; i < out->num_rows; i++)
        if (is_of(&notes[first[i]], &notes[note])) return &out->rows[i];
    gs_kernel_time *row = &out->rows[out->num_rows];
    first[out->num_rows++] = note;
    *row = (gs_kernel_time){.kernel = notes[note].kernel, .dtype = notes[note].dtype};
    describe_shape(row->shape, sizeof row->shape, &notes[note].cost.shape);
    return row;
}

static gs_status add_up(gs_kernel_table *out, size_t *first, const gs_launch_notes *times, gs_deadline deadline) {
    for (size_t i = 0; i < times->num_notes; i++) {
        const gs_launch_note *note = &times->notes[i];
        gs_kernel_time *row = find_row(out, first, times->notes, i);
        int64_t ns;
        GS_TRY(gs_event_wait(note->to, note->kernel, deadline));
        GS_TRY(gs_event_elapsed(note->from, note->to, &ns));
        row->calls++;
        row->ns += ns;
        row->bytes += note->cost.bytes;
        row->flops += note->cost.flops;
        out->ns += ns;
    }
    return gs_event_elapsed(times->begin, times->end, &out->span_ns);
}

static int compare_rows(const void *a, const void *b) {
    const gs_kernel_time *left = a, *right = b;
    if (left->ns != right->ns) return left->ns > right->ns ? -1 : 1;
    return strcmp(left->kernel, right->kernel);
}

static gs_status read_notes(gs_kernel_table *out, const gs_launch_notes *times, gs_deadline deadline) {
    if (times->error.code) return times->error;
    out->rows = calloc(times->num_notes + 1, sizeof *out->rows);
    size_t *first = calloc(times->num_notes + 1, sizeof *first);
    gs_status status = out->rows && first ? add_up(out, first, times, deadline)
                                          : gs_error(GS_RESOURCE_EXHAUSTED, "times of kernels: out of memory");
    free(first);
    if (!status.code) qsort(out->rows, out->num_rows, sizeof *out->rows, compare_rows);
    return status;
}

gs_status gs_kernel_times_end(gs_kernel_table *out, gs_device *device, gs_deadline deadline) {
    gs_launch_notes *times = device->notes;
    *out = (gs_kernel_table){0};
    if (!gs_kernel_times_running(device))
        return gs_error(GS_FAILED_PRECONDITION, "device %s: nobody has begun to time kernels", gs_device_name(device));
    gs_event_record(times->end, gs_device_stream(device));
    bool have_ended = gs_launch_notes_stop(times, deadline);
    gs_status status = gs_stream_wait(gs_device_stream(device), deadline);
    if (!have_ended && !status.code)
        status = gs_error(GS_DEADLINE_EXCEEDED, "times of kernels: a launch did not end in time");
    if (!status.code) status = read_notes(out, times, deadline);
    gs_launch_notes_drop(times);
    if (status.code) gs_kernel_table_release(out);
    return status;
}

void gs_kernel_table_release(gs_kernel_table *table) {
    free(table->rows);
    *table = (gs_kernel_table){0};
}
