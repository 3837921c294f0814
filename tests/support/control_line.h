// The control port's bytes: a line between a worker and the coordinator that remembers what the worker said, and peers that
// say what they like, down to the frames of ZeroMQ.
#ifndef TESTS_SUPPORT_CONTROL_LINE_H
#define TESTS_SUPPORT_CONTROL_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rpc/wire/frame.h"

// Between a worker and the coordinator: all that goes through is passed on.
typedef struct gs_control_line gs_control_line;

gs_control_line *gs_control_line_open(const char *coordinator);  // "tcp://127.0.0.1:8471"; aborts the test where it cannot
const char *gs_control_line_endpoint(const gs_control_line *line);
void gs_control_line_close(gs_control_line *line);

// Messages that went to the coordinator so far, in order: of all connections, one after the other.
typedef struct gs_said {
    gs_frame frame;
    uint8_t header[GS_FRAME_HEADER_BYTES];
    uint8_t *body;
    size_t body_bytes;
    int connection;
} gs_said;

typedef struct gs_said_list {
    gs_said *items;  // owned
    size_t count;
    int num_connections;
} gs_said_list;

gs_said_list gs_control_line_said(gs_control_line *line);
void gs_said_list_release(gs_said_list *list);
const gs_said *gs_said_find(const gs_said_list *list, gs_method method);  // the first; NULL: it was never said

// A peer that speaks ZeroMQ's protocol well, and ours as the test likes. What it hears is thrown away.
typedef struct gs_stranger {
    int fd;
} gs_stranger;

bool gs_stranger_open(gs_stranger *stranger, const char *coordinator);  // false: refused
void gs_stranger_close(gs_stranger *stranger);
// Two frames; false when the other end has closed.
bool gs_stranger_say(gs_stranger *stranger, const void *header, size_t header_bytes, const void *body, size_t body_bytes);
bool gs_stranger_say_frame(gs_stranger *stranger, const gs_frame *frame, const char *body);
bool gs_stranger_send(gs_stranger *stranger, const void *bytes, size_t count);  // as they are
bool gs_stranger_is_cut(gs_stranger *stranger, int64_t within_ns);              // the other end closes within

#endif
