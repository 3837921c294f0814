// Bodies of answers. One that succeeded is the reply itself; one that failed is
// {"message": sentence, "details": object?}.
#ifndef RPC_WIRE_RPC_ERROR_H
#define RPC_WIRE_RPC_ERROR_H

#include <stddef.h>

#include "core/status.h"
#include "rpc/json/json.h"

// The text is the caller's (free()), NULL when the body is empty. Takes `body`. An answer that is
// too large, or cannot be made, becomes an error itself: *code changes.
char *gs_rpc_answer_encode(size_t *bytes, gs_code *code, const char *message, gs_json *body);
// The status that was sent; *reply (`reply` may be NULL) is the reply, or the details, or NULL.
GS_NODISCARD gs_status gs_rpc_answer_decode(gs_json **reply, gs_code code, const char *body,
                                            size_t body_bytes);

#endif
