// Growing text: log lines, Prometheus, server-sent events. Always NUL-terminated.
//
// A failed allocation sticks: later calls do nothing, gs_strbuf_failed says so, and the text ends
// where memory did. So a page is written without a check on each line.
#ifndef CORE_STRBUF_H
#define CORE_STRBUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/abi.h"
#include "core/status.h"

GS_BEGIN_DECLS

typedef struct gs_strbuf {
    char *text;      // owned; NULL until the first write
    size_t len;      // without the NUL
    size_t reserved_bytes;
    bool failed;
} gs_strbuf;  // {0} is empty

void gs_strbuf_release(gs_strbuf *buf);
void gs_strbuf_clear(gs_strbuf *buf);  // keeps the memory
void gs_strbuf_add(gs_strbuf *buf, const void *data, size_t bytes);
void gs_strbuf_puts(gs_strbuf *buf, const char *text);
void gs_strbuf_putc(gs_strbuf *buf, char c);
void gs_strbuf_printf(gs_strbuf *buf, const char *format, ...) GS_PRINTF(2, 3);
const char *gs_strbuf_text(const gs_strbuf *buf);  // "" when empty
bool gs_strbuf_failed(const gs_strbuf *buf);
char *gs_strbuf_take(gs_strbuf *buf);  // the caller takes the text (free()); NULL on failure

GS_END_DECLS

#endif
