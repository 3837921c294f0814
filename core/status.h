// What a call came to: a code and one sentence, passed by value.
//
// The codes are gRPC's, so one status travels unchanged from a kernel launch through RPC to HTTP.
// Nothing to free, nothing thread-local. Messages: lower case, what and which, no full stop.
#ifndef CORE_STATUS_H
#define CORE_STATUS_H

#include <stdbool.h>

#include "core/abi.h"

GS_BEGIN_DECLS

#if defined(__GNUC__)
#define GS_NODISCARD __attribute__((warn_unused_result))
#define GS_PRINTF(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#else
#define GS_NODISCARD
#define GS_PRINTF(format_at, args_at)
#endif

typedef enum gs_code {
    GS_OK = 0,
    GS_CANCELLED = 1,
    GS_UNKNOWN = 2,
    GS_INVALID_ARGUMENT = 3,   // you asked wrongly
    GS_DEADLINE_EXCEEDED = 4,  // the message says who did not come
    GS_NOT_FOUND = 5,
    GS_ALREADY_EXISTS = 6,
    GS_PERMISSION_DENIED = 7,
    GS_RESOURCE_EXHAUSTED = 8,
    GS_FAILED_PRECONDITION = 9,  // not now
    GS_ABORTED = 10,             // the generation ended, rejoin
    GS_OUT_OF_RANGE = 11,
    GS_UNIMPLEMENTED = 12,
    GS_INTERNAL = 13,     // our bug
    GS_UNAVAILABLE = 14,  // try again
    GS_DATA_LOSS = 15,    // bytes are wrong
    GS_UNAUTHENTICATED = 16,
    GS_NUM_CODES = 17
} gs_code;

typedef struct gs_status {
    gs_code code;
    char message[252];  // empty when ok; cut, never overrun
} gs_status;

GS_NODISCARD gs_status gs_ok(void);
GS_NODISCARD gs_status gs_error(gs_code code, const char *format, ...) GS_PRINTF(2, 3);

// The same code with "context: " put before the message. Ok stays ok.
GS_NODISCARD gs_status gs_status_prefix(gs_status status, const char *format, ...) GS_PRINTF(2, 3);

// A status for `error_number` (an errno value): ENOENT is NOT_FOUND, ENOSPC and ENOMEM are
// RESOURCE_EXHAUSTED, and so on; the text is "what: strerror".
GS_NODISCARD gs_status gs_error_from_errno(int error_number, const char *format, ...)
    GS_PRINTF(2, 3);

const char *gs_code_name(gs_code code);  // "INVALID_ARGUMENT"; "UNKNOWN" outside the table

#define GS_TRY(expression)                                                                         \
    do {                                                                                           \
        gs_status gs_try_status = (expression);                                                    \
        if (gs_try_status.code) return gs_try_status;                                              \
    } while (0)

GS_END_DECLS

#endif
