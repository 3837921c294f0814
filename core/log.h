// One event, one logfmt line: `ts level msg key=value …`, to a sink that the host chooses.
//
// The default sink is standard error from `info` up. Safe from any thread. The library logs through
// its host's sink; it never prints. Levels: error, someone must act; warn, we coped; info, life
// cycle and never per step; debug, anything.
#ifndef CORE_LOG_H
#define CORE_LOG_H

#include <stddef.h>

#include "core/abi.h"
#include "core/status.h"

GS_BEGIN_DECLS

typedef enum gs_log_level {
    GS_LOG_DEBUG = 0,
    GS_LOG_INFO,
    GS_LOG_WARN,
    GS_LOG_ERROR,
    GS_LOG_OFF
} gs_log_level;

typedef void (*gs_log_sink)(void *ctx, gs_log_level level, const char *line);

// `line` has no newline, nor any other control character, and is valid during the call. NULL puts the default sink back.
void gs_log_set_sink(gs_log_sink sink, void *ctx);
void gs_log_set_level(gs_log_level least);
bool gs_log_enabled(gs_log_level level);
const char *gs_log_level_name(gs_log_level level);
// False when there is no such level.
bool gs_log_level_from_name(gs_log_level *level, const char *name);

// `event` is a constant sentence; the format yields `key=value key="two words"` pairs, or "".
void gs_log(gs_log_level level, const char *event, const char *format, ...) GS_PRINTF(3, 4);

#define gs_log_debug(event, ...)                                                                   \
    do {                                                                                           \
        if (gs_log_enabled(GS_LOG_DEBUG)) gs_log(GS_LOG_DEBUG, event, __VA_ARGS__);                \
    } while (0)
#define gs_log_info(event, ...) gs_log(GS_LOG_INFO, event, __VA_ARGS__)
#define gs_log_warn(event, ...) gs_log(GS_LOG_WARN, event, __VA_ARGS__)
#define gs_log_error(event, ...) gs_log(GS_LOG_ERROR, event, __VA_ARGS__)

// A value for the right of `=`: quoted and escaped into `text` where it must be. Returns `text`.
const char *gs_log_quote(char *text, size_t text_bytes, const char *value);

GS_END_DECLS

#endif
