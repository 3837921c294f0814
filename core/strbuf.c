#include "core/strbuf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool make_room(gs_strbuf *buf, size_t bytes) {
    if (buf->failed) return false;
    if (bytes < buf->reserved_bytes - buf->len && buf->text) return true;
    size_t wanted = buf->reserved_bytes ? buf->reserved_bytes * 2 : 128;
    while (wanted - buf->len <= bytes) {
        if (wanted > (size_t)1 << 40) {
            buf->failed = true;
            return false;
        }
        wanted *= 2;
    }
    char *text = realloc(buf->text, wanted);
    if (!text) {
        buf->failed = true;
        return false;
    }
    buf->text = text;
    buf->reserved_bytes = wanted;
    return true;
}

void gs_strbuf_release(gs_strbuf *buf) {
    free(buf->text);
    *buf = (gs_strbuf){0};
}

void gs_strbuf_clear(gs_strbuf *buf) {
    buf->len = 0;
    buf->failed = false;
    if (buf->text) buf->text[0] = '\0';
}

void gs_strbuf_add(gs_strbuf *buf, const void *data, size_t bytes) {
    if (!make_room(buf, bytes)) return;
    if (bytes) memcpy(buf->text + buf->len, data, bytes);
    buf->len += bytes;
    buf->text[buf->len] = '\0';
}

void gs_strbuf_puts(gs_strbuf *buf, const char *text) { gs_strbuf_add(buf, text, strlen(text)); }

void gs_strbuf_putc(gs_strbuf *buf, char c) { gs_strbuf_add(buf, &c, 1); }

void gs_strbuf_printf(gs_strbuf *buf, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int needed = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (needed < 0) buf->failed = true;
    else if (make_room(buf, (size_t)needed)) {
        vsnprintf(buf->text + buf->len, (size_t)needed + 1, format, again);
        buf->len += (size_t)needed;
    }
    va_end(again);
}

const char *gs_strbuf_text(const gs_strbuf *buf) { return buf->text ? buf->text : ""; }

bool gs_strbuf_failed(const gs_strbuf *buf) { return buf->failed; }

char *gs_strbuf_take(gs_strbuf *buf) {
    if (!buf->text) gs_strbuf_add(buf, "", 0);
    char *text = buf->failed ? NULL : buf->text;
    if (!text) free(buf->text);
    *buf = (gs_strbuf){0};
    return text;
}
