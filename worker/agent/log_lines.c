#include "worker/agent/log_lines.h"

#include <stdlib.h>
#include <string.h>

#define MARK_BYTES (sizeof GS_LOG_LINE_MARK - 1)
#define PIECE_BYTES (GS_LOG_LINE_BYTES - MARK_BYTES)

// A piece of what is longer than one, and what is behind it moves to the front.
static void end_piece(gs_log_lines *lines, gs_log_line_sink sink, void *ctx) {
    char behind[MARK_BYTES];
    size_t end = lines->cut ? lines->cut(ctx, lines->text, lines->bytes, PIECE_BYTES) : PIECE_BYTES;
    size_t left = lines->bytes - end, saved = left < MARK_BYTES ? left : MARK_BYTES;
    memcpy(behind, lines->text + end, saved);
    memcpy(lines->text + end, GS_LOG_LINE_MARK, MARK_BYTES);
    sink(ctx, lines->text, end + MARK_BYTES);
    memcpy(lines->text + end, behind, saved);
    memmove(lines->text, lines->text + end, left);
    lines->bytes = left;
}

static void end_line(gs_log_lines *lines, gs_log_line_sink sink, void *ctx) {
    while (lines->bytes > PIECE_BYTES) end_piece(lines, sink, ctx);
    size_t bytes = lines->bytes;
    if (bytes && lines->text[bytes - 1] == '\r') bytes--;
    lines->bytes = 0;
    sink(ctx, lines->text, bytes);
}

void gs_log_lines_add(gs_log_lines *lines, const char *data, size_t bytes, gs_log_line_sink sink,
                      void *ctx) {
    size_t most = PIECE_BYTES + lines->hold;
    if (!lines->text) lines->text = malloc(most + MARK_BYTES);
    if (!lines->text) return;
    while (bytes) {
        const char *newline = memchr(data, '\n', bytes);
        size_t piece = newline ? (size_t)(newline - data) : bytes;
        size_t room = most - lines->bytes;
        if (piece > room) {
            memcpy(lines->text + lines->bytes, data, room);
            lines->bytes += room;
            data += room;
            bytes -= room;
            end_piece(lines, sink, ctx);
            continue;
        }
        memcpy(lines->text + lines->bytes, data, piece);
        lines->bytes += piece;
        data += piece;
        bytes -= piece;
        if (!newline) break;
        data++;
        bytes--;
        end_line(lines, sink, ctx);
    }
}

void gs_log_lines_finish(gs_log_lines *lines, gs_log_line_sink sink, void *ctx) {
    if (lines->bytes) end_line(lines, sink, ctx);
    free(lines->text);
    *lines = (gs_log_lines){0};
}
