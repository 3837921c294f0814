#include "api/http/request_fields.h"

#include <stdlib.h>

enum { MAX_TENSORS = 16384, MAX_LIMITS = 64 };

#define MAX_COUNT 9007199254740992.0  // 2^53: up to here every JSON reader counts exactly

static const char *const stop_modes[] = {"graceful", "now", NULL};
static const char *const stop_outcomes[] = {"cancelled", "succeeded", NULL};

const gs_field gs_stop_request_fields[] = {
    {.name = "mode",
     .type = GS_FIELD_ENUM,
     .offset = offsetof(gs_stop_request, mode),
     .words = stop_modes,
     .default_value = "\"graceful\"",
     .help = "graceful finishes the step and saves; now ends the ranks at once."},
    {.name = "outcome",
     .type = GS_FIELD_ENUM,
     .offset = offsetof(gs_stop_request, outcome),
     .words = stop_outcomes,
     .default_value = "\"cancelled\"",
     .help = "The state that the job ends in."},
    {.name = "grace_seconds",
     .type = GS_FIELD_DOUBLE,
     .offset = offsetof(gs_stop_request, grace_seconds),
     .has_range = true,
     .least = 0,
     .most = 3600,
     .default_value = "30",
     .help = "How long ranks may take before they are killed."},
    {0}};

static const char *const token_roles[] = {"metrics", "viewer", "operator", "admin", NULL};

const gs_field gs_token_request_fields[] = {
    {.name = "name",
     .type = GS_FIELD_STRING,
     .offset = offsetof(gs_token_request, name),
     .capacity = sizeof(((gs_token_request *)0)->name),
     .required = true,
     .pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$",
     .help = "What people call it; of one token at a time."},
    {.name = "role",
     .type = GS_FIELD_ENUM,
     .offset = offsetof(gs_token_request, role),
     .words = token_roles,
     .required = true,
     .help = "metrics reads /metrics alone, viewer reads all, operator changes jobs too, admin also says who may."},
    {.name = "expires_in_seconds",
     .type = GS_FIELD_DOUBLE,
     .offset = offsetof(gs_token_request, expires_in_seconds),
     .has_range = true,
     .least = 0,
     .most = 315360000,
     .default_value = "0",
     .help = "How long it counts, ten years at most; 0: until it is revoked."},
    {0}};

typedef struct preview_tensor {
    char name[192];
    int64_t elements;
    int dtype;
    char device[32];
} preview_tensor;

typedef struct preview_request {
    preview_tensor tensors[MAX_TENSORS];
    int num_tensors;
    int64_t limits_bytes[MAX_LIMITS];
    int num_limits;
    bool reverse;
} preview_request;

static const char *const dtypes[] = {"fp32", "fp64", "fp16", "bf16", NULL};

static const gs_field tensor_fields[] = {
    {.name = "name",
     .type = GS_FIELD_STRING,
     .offset = offsetof(preview_tensor, name),
     .capacity = sizeof(((preview_tensor *)0)->name),
     .default_value = "\"\"",
     .help = "What the parameter is called."},
    {.name = "elements",
     .type = GS_FIELD_INT,
     .offset = offsetof(preview_tensor, elements),
     .required = true,
     .has_range = true,
     .least = 0,
     .most = MAX_COUNT,
     .help = "Number of elements."},
    {.name = "dtype",
     .type = GS_FIELD_ENUM,
     .offset = offsetof(preview_tensor, dtype),
     .words = dtypes,
     .default_value = "\"fp32\"",
     .help = "Element type."},
    {.name = "device",
     .type = GS_FIELD_STRING,
     .offset = offsetof(preview_tensor, device),
     .capacity = sizeof(((preview_tensor *)0)->device),
     .default_value = "\"cpu\"",
     .help = "Tensors on different devices never share a bucket."},
    {0}};

const gs_field gs_preview_request_fields[] = {
    {.name = "tensors",
     .type = GS_FIELD_OBJECTS,
     .offset = offsetof(preview_request, tensors),
     .capacity = MAX_TENSORS,
     .element_bytes = sizeof(preview_tensor),
     .count_offset = offsetof(preview_request, num_tensors),
     .required = true,
     .fields = tensor_fields,
     .help = "The parameters in registration order."},
    {.name = "limits_bytes",
     .type = GS_FIELD_INTS,
     .offset = offsetof(preview_request, limits_bytes),
     .capacity = MAX_LIMITS,
     .fewest = 1,
     .element_bytes = sizeof(int64_t),
     .count_offset = offsetof(preview_request, num_limits),
     .required = true,
     .has_range = true,
     .least = 0,
     .most = MAX_COUNT,
     .help = "Size limits of the first, second … bucket; the last one is for all that follow."},
    {.name = "reverse",
     .type = GS_FIELD_BOOL,
     .offset = offsetof(preview_request, reverse),
     .default_value = "false",
     .help = "Assign from the last tensor to the first."},
    {0}};

gs_status gs_preview_request_check(gs_json **request, const gs_json *body,
                                   gs_field_errors *errors) {
    *request = NULL;
    preview_request *preview = calloc(1, sizeof *preview);
    if (!preview) return gs_error(GS_RESOURCE_EXHAUSTED, "plan preview: out of memory");
    gs_status status = gs_fields_decode(preview, gs_preview_request_fields, body, errors);
    const gs_json *limits = gs_json_get(body, "limits_bytes");
    if (gs_json_type_of(limits) == GS_JSON_ARRAY && gs_json_count(limits) == 0) {
        gs_field_errors_add(errors, "/limits_bytes", "too_short", NULL,
                            "must have at least one limit");
        status = gs_error(GS_INVALID_ARGUMENT, "%d problem%s found", errors->count,
                          errors->count == 1 ? "" : "s");
    }
    if (!status.code) *request = gs_fields_encode(preview, gs_preview_request_fields);
    // The encoder leaves empty lists out; no tensors are a plan without buckets.
    if (*request && !gs_json_get(*request, "tensors"))
        gs_json_set(*request, "tensors", gs_json_new_array());
    free(preview);
    return status;
}
