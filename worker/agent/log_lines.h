// Bytes from a pipe → lines of bounded length. A longer one comes out in pieces; each but the last ends
// with a mark.
#ifndef WORKER_AGENT_LOG_LINES_H
#define WORKER_AGENT_LOG_LINES_H

#include <stddef.h>

#include "core/status.h"

#define GS_LOG_LINE_BYTES 65536  // of a piece, mark included
#define GS_LOG_LINE_MARK " [continues]"

// Where a piece of `text` may end: `at`, or near it where nothing is cut that belongs together. Above 0.
typedef size_t (*gs_log_line_cut)(void *ctx, const char *text, size_t bytes, size_t at);

typedef struct gs_log_lines {
    char *text;  // owned; made by the first byte
    size_t bytes;
    size_t hold;          // so much is kept back behind a piece, for `cut` to see; set before the first byte
    gs_log_line_cut cut;  // gets the sink's ctx; NULL: anywhere
} gs_log_lines;  // {0} is empty

typedef void (*gs_log_line_sink)(void *ctx, const char *text, size_t bytes);

// Calls `sink` for each line that `data` completes, without its end ("\n" or "\r\n").
void gs_log_lines_add(gs_log_lines *lines, const char *data, size_t bytes, gs_log_line_sink sink,
                      void *ctx);
// What is left without an end; releases the memory.
void gs_log_lines_finish(gs_log_lines *lines, gs_log_line_sink sink, void *ctx);

#endif
