#include "core/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const code_names[GS_NUM_CODES] = {
    [GS_OK] = "OK",
    [GS_CANCELLED] = "CANCELLED",
    [GS_UNKNOWN] = "UNKNOWN",
    [GS_INVALID_ARGUMENT] = "INVALID_ARGUMENT",
    [GS_DEADLINE_EXCEEDED] = "DEADLINE_EXCEEDED",
    [GS_NOT_FOUND] = "NOT_FOUND",
    [GS_ALREADY_EXISTS] = "ALREADY_EXISTS",
    [GS_PERMISSION_DENIED] = "PERMISSION_DENIED",
    [GS_RESOURCE_EXHAUSTED] = "RESOURCE_EXHAUSTED",
    [GS_FAILED_PRECONDITION] = "FAILED_PRECONDITION",
    [GS_ABORTED] = "ABORTED",
    [GS_OUT_OF_RANGE] = "OUT_OF_RANGE",
    [GS_UNIMPLEMENTED] = "UNIMPLEMENTED",
    [GS_INTERNAL] = "INTERNAL",
    [GS_UNAVAILABLE] = "UNAVAILABLE",
    [GS_DATA_LOSS] = "DATA_LOSS",
    [GS_UNAUTHENTICATED] = "UNAUTHENTICATED",
};

// Cuts what does not fit.
static void append_text(char *text, size_t text_bytes, const char *more) {
    size_t used = strlen(text), left = text_bytes - 1 - used, more_len = strlen(more);
    if (more_len > left) more_len = left;
    memcpy(text + used, more, more_len);
    text[used + more_len] = '\0';
}

gs_status gs_ok(void) {
    gs_status status;
    status.code = GS_OK;
    status.message[0] = '\0';
    return status;
}

gs_status gs_error(gs_code code, const char *format, ...) {
    gs_status status;
    status.code = code;
    va_list args;
    va_start(args, format);
    vsnprintf(status.message, sizeof status.message, format, args);
    va_end(args);
    return status;
}

gs_status gs_status_prefix(gs_status status, const char *format, ...) {
    if (!status.code) return status;
    char context[sizeof status.message];
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    gs_status prefixed;
    prefixed.code = status.code;
    size_t used = strlen(context);
    memcpy(prefixed.message, context, used + 1);
    append_text(prefixed.message, sizeof prefixed.message, ": ");
    append_text(prefixed.message, sizeof prefixed.message, status.message);
    return prefixed;
}

static gs_code code_of_errno(int error_number) {
    switch (error_number) {
    case 0: return GS_OK;
    case ENOENT: return GS_NOT_FOUND;
    case EEXIST: return GS_ALREADY_EXISTS;
    case EACCES:
    case EPERM:
    case EROFS: return GS_PERMISSION_DENIED;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
    case EDQUOT: return GS_RESOURCE_EXHAUSTED;
    case EINVAL:
    case ENAMETOOLONG:
    case ENOTDIR:
    case EISDIR:
    case ELOOP: return GS_INVALID_ARGUMENT;
    case EADDRINUSE:
    case EBUSY: return GS_FAILED_PRECONDITION;
    case ETIMEDOUT: return GS_DEADLINE_EXCEEDED;
    case EIO: return GS_DATA_LOSS;
    case EAGAIN:
    case EINTR:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EHOSTUNREACH: return GS_UNAVAILABLE;
    default: return GS_UNKNOWN;
    }
}

gs_status gs_error_from_errno(int error_number, const char *format, ...) {
    gs_status status;
    status.code = code_of_errno(error_number);
    va_list args;
    va_start(args, format);
    vsnprintf(status.message, sizeof status.message, format, args);
    va_end(args);
    size_t used = strlen(status.message);
    char text[96];
    // The GNU strerror_r returns the text; it may or may not be in our buffer.
    const char *reason = strerror_r(error_number, text, sizeof text);
    snprintf(status.message + used, sizeof status.message - used, ": %s", reason);
    return status;
}

const char *gs_code_name(gs_code code) {
    if ((unsigned)code >= GS_NUM_CODES) return "UNKNOWN";
    return code_names[code];
}
