#include "rpc/wire/rpc_error.h"

#include <stdlib.h>
#include <string.h>

#include "rpc/wire/frame.h"

static gs_json *make_error_body(const char *message, gs_json *details) {
    gs_json *object = gs_json_new_object();
    gs_json_set_string(object, "message", message);
    gs_json_set(object, "details", details);
    return object;
}

char *gs_rpc_answer_encode(size_t *bytes, gs_code *code, const char *message, gs_json *body) {
    char *text = NULL;
    *bytes = 0;
    if (*code) body = make_error_body(message, body);
    if (!body) return NULL;
    gs_status status = gs_json_encode(&text, bytes, body, false);
    gs_json_release(body);
    if (!status.code && *bytes <= GS_FRAME_MAX_BODY_BYTES) return text;
    free(text);
    text = NULL;
    static const char fallback[] = "{\"message\":\"the answer is too large\"}";
    *code = GS_RESOURCE_EXHAUSTED;
    text = strdup(fallback);
    *bytes = text ? sizeof fallback - 1 : 0;
    return text;
}

gs_status gs_rpc_answer_decode(gs_json **reply, gs_code code, const char *body, size_t body_bytes) {
    if (reply) *reply = NULL;
    if (!body_bytes) return code ? gs_error(code, "%s", gs_code_name(code)) : gs_ok();
    gs_json *parsed = NULL;
    gs_status status = gs_json_parse(&parsed, body, body_bytes);
    if (status.code) return gs_error(GS_DATA_LOSS, "the answer is no JSON: %.200s", status.message);
    if (!code) {
        if (reply) *reply = parsed;
        else gs_json_release(parsed);
        return gs_ok();
    }
    status = gs_error(code, "%s", gs_json_string_or(parsed, "message", gs_code_name(code)));
    if (reply && gs_json_get(parsed, "details")) {
        *reply = gs_json_retain((gs_json *)(uintptr_t)gs_json_get(parsed, "details"));
    }
    gs_json_release(parsed);
    return status;
}
