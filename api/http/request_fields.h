// Field tables of the request bodies that the API itself checks.
#ifndef API_HTTP_REQUEST_FIELDS_H
#define API_HTTP_REQUEST_FIELDS_H

#include "core/status.h"
#include "rpc/schema/fields.h"

typedef struct gs_stop_request {
    int mode, outcome;
    double grace_seconds;
} gs_stop_request;
extern const gs_field gs_stop_request_fields[];

typedef struct gs_token_request {
    char name[64];
    int role;  // position in "metrics", "viewer", "operator", "admin"
    double expires_in_seconds;
} gs_token_request;
extern const gs_field gs_token_request_fields[];

extern const gs_field gs_preview_request_fields[];
// Checks a plan preview; *request is the body with its defaults (the caller's).
GS_NODISCARD gs_status gs_preview_request_check(gs_json **request, const gs_json *body,
                                                gs_field_errors *errors);

#endif
