#include "worker/state/device_copy.h"

#include <stdlib.h>

#include "core/memory.h"
#include "kernels/event_wait.h"

#define NUM_PIECES 2
#define PIECE_BYTES (GS_DEVICE_COPY_PIECES_BYTES / NUM_PIECES)
#define PART_BOUNDARY_BYTES ((size_t)64)
// Of one run's bytes in one piece.
#define MAX_PARTS 256
#define COPY_SECONDS 120.0

// Bytes of consecutive runs, one part for each, on its way through one pinned piece of memory.
typedef struct piece {
    char *memory;     // pinned; owned by the device
    gs_event *event;  // its copies are done
    const void *parts[MAX_PARTS];  // where the host finds each
    size_t part_bytes[MAX_PARTS];
    int num_parts;
} piece;

struct gs_device_copy {
    gs_device *device;
    gs_stream *stream;  // owned
    piece pieces[NUM_PIECES];
    // Of the read that is under way.
    const gs_copy_run *runs;
    size_t num_runs, next_run, next_byte;
    int first, num_filled;  // pieces that wait to be taken
};

static gs_status make_piece(gs_device_copy *copy, piece *at) {
    void *memory;
    GS_TRY(gs_device_alloc_pinned(copy->device, &memory, PIECE_BYTES));
    at->memory = memory;
    return gs_event_create(&at->event, copy->device, false);
}

gs_status gs_device_copy_create(gs_device_copy **out, gs_device *device) {
    gs_device_copy *copy = calloc(1, sizeof *copy);
    if (!copy) return gs_error(GS_RESOURCE_EXHAUSTED, "device copy: out of memory");
    copy->device = device;
    gs_status status = gs_ok();
    if (!gs_device_is_host(device)) {
        status = gs_stream_create(&copy->stream, device, GS_STREAM_NORMAL);
        for (int i = 0; i < NUM_PIECES && !status.code; i++)
            status = make_piece(copy, &copy->pieces[i]);
    }
    if (status.code) {
        gs_device_copy_destroy(copy);
        return gs_status_prefix(status, "device copy");
    }
    *out = copy;
    return gs_ok();
}

void gs_device_copy_destroy(gs_device_copy *copy) {
    if (!copy) return;
    gs_stream_destroy(copy->stream);
    for (int i = 0; i < NUM_PIECES; i++) {
        gs_event_destroy(copy->pieces[i].event);
        gs_device_free_pinned(copy->device, copy->pieces[i].memory);
    }
    free(copy);
}

static bool is_direct(const gs_device_copy *copy, const gs_copy_run *run) {
    return run->is_on_host || !run->bytes || (gs_device_is_host(copy->device) && run->data);
}

static void enqueue_read(gs_device_copy *copy, void *to, const gs_copy_run *part) {
    const gs_kernels *k = gs_device_kernels(copy->device);
    if (part->data)
        k->copy(copy->stream, to, part->data, part->bytes);
    else
        k->join_master(copy->stream, to, part->value, part->remainder, part->bytes / sizeof(float));
}

static void enqueue_write(gs_device_copy *copy, const gs_copy_run *part, const void *from) {
    const gs_kernels *k = gs_device_kernels(copy->device);
    if (part->data)
        k->copy(copy->stream, part->data, from, part->bytes);
    else
        k->split_master(copy->stream, part->value, part->remainder, from, part->bytes / sizeof(float));
}

// The next part of the transfer, at most `room` bytes of one run.
static gs_copy_run take_part(gs_device_copy *copy, size_t room) {
    const gs_copy_run *run = &copy->runs[copy->next_run];
    size_t bytes = run->bytes - copy->next_byte;
    if (bytes > room && !run->is_on_host) bytes = room;
    gs_copy_run part = gs_copy_run_part(run, copy->next_byte, bytes);
    copy->next_byte += bytes;
    if (copy->next_byte == run->bytes) {
        copy->next_run++;
        copy->next_byte = 0;
    }
    return part;
}

// False when nothing is left to read.
static bool fill_piece(gs_device_copy *copy) {
    if (copy->next_run == copy->num_runs) return false;
    piece *at = &copy->pieces[(copy->first + copy->num_filled) % NUM_PIECES];
    size_t used = 0;
    at->num_parts = 0;
    while (copy->next_run < copy->num_runs && used < PIECE_BYTES && at->num_parts < MAX_PARTS) {
        gs_copy_run part = take_part(copy, PIECE_BYTES - used);
        at->part_bytes[at->num_parts] = part.bytes;
        at->parts[at->num_parts] = part.data;
        if (!is_direct(copy, &part)) {
            at->parts[at->num_parts] = at->memory + used;
            enqueue_read(copy, at->memory + used, &part);
            used += gs_round_up(part.bytes, PART_BOUNDARY_BYTES);
        }
        at->num_parts++;
    }
    if (at->event) gs_event_record(at->event, copy->stream);
    copy->num_filled++;
    return true;
}

void gs_device_copy_begin_read(gs_device_copy *copy, const gs_copy_run *runs, size_t num_runs) {
    copy->runs = runs;
    copy->num_runs = num_runs;
    copy->next_run = copy->next_byte = 0;
    copy->first = copy->num_filled = 0;
    if (copy->stream) gs_stream_follow(copy->stream, gs_device_stream(copy->device));
    while (copy->num_filled < NUM_PIECES && fill_piece(copy)) {
    }
}

static gs_status end_piece(gs_device_copy *copy, gs_copy_take take, void *ctx) {
    const piece *at = &copy->pieces[copy->first];
    if (at->event)
        GS_TRY(gs_event_wait(at->event, "copy to the host", gs_deadline_in_seconds(COPY_SECONDS)));
    for (int i = 0; i < at->num_parts; i++) take(ctx, at->parts[i], at->part_bytes[i]);
    copy->first = (copy->first + 1) % NUM_PIECES;
    copy->num_filled--;
    return gs_ok();
}

gs_status gs_device_copy_end_read(gs_device_copy *copy, gs_copy_take take, void *ctx) {
    while (copy->num_filled) {
        GS_TRY(end_piece(copy, take, ctx));
        fill_piece(copy);
    }
    if (!copy->stream) return gs_ok();
    // What failed on the stream (a launch) did not stop the events behind it.
    return gs_stream_wait(copy->stream, gs_deadline_in_seconds(COPY_SECONDS));
}

gs_status gs_device_copy_read(gs_device_copy *copy, const gs_copy_run *runs, size_t num_runs,
                              gs_copy_take take, void *ctx) {
    gs_device_copy_begin_read(copy, runs, num_runs);
    return gs_device_copy_end_read(copy, take, ctx);
}

// A piece is filled anew when the copies out of it are done: an event that was never recorded is.
static gs_status write_piece(gs_device_copy *copy, piece *at, gs_copy_fill fill, void *ctx) {
    if (at->event)
        GS_TRY(gs_event_wait(at->event, "copy from the host", gs_deadline_in_seconds(COPY_SECONDS)));
    size_t used = 0;
    while (copy->next_run < copy->num_runs && used < PIECE_BYTES) {
        gs_copy_run part = take_part(copy, PIECE_BYTES - used);
        if (is_direct(copy, &part)) {
            fill(ctx, part.data, part.bytes);
            continue;
        }
        fill(ctx, at->memory + used, part.bytes);
        enqueue_write(copy, &part, at->memory + used);
        used += gs_round_up(part.bytes, PART_BOUNDARY_BYTES);
    }
    if (at->event) gs_event_record(at->event, copy->stream);
    return gs_ok();
}

gs_status gs_device_copy_write(gs_device_copy *copy, const gs_copy_run *runs, size_t num_runs,
                               gs_copy_fill fill, void *ctx) {
    copy->runs = runs;
    copy->num_runs = num_runs;
    copy->next_run = copy->next_byte = 0;
    if (copy->stream) gs_stream_follow(copy->stream, gs_device_stream(copy->device));
    for (int i = 0; copy->next_run < num_runs; i = (i + 1) % NUM_PIECES)
        GS_TRY(write_piece(copy, &copy->pieces[i], fill, ctx));
    if (!copy->stream) return gs_ok();
    return gs_stream_wait(copy->stream, gs_deadline_in_seconds(COPY_SECONDS));
}
