#include "coordinator/store/record/checkpoint_record.h"

#include <stdio.h>
#include <string.h>

static gs_json *describe(const gs_checkpoint *item, bool is_verified) {
    gs_json *json = gs_json_new_object();
    gs_json_set_int(json, "step", item->step);
    gs_json_set_string(json, "directory", item->directory);
    gs_json_set_int(json, "bytes", item->bytes);
    gs_json_set_time(json, "created_at", item->created_ms);
    gs_json_set_bool(json, "verified", is_verified);
    gs_json_set_int(json, "world_size", item->world_size);
    gs_json_set_int(json, "parts", item->parts);
    gs_json_set_string(json, "digest", item->digest);
    gs_json_set_string(json, "reason", item->reason);
    gs_json_set_double(json, "seconds", item->seconds);
    return json;
}

gs_json *gs_checkpoint_to_view(const gs_checkpoint *checkpoint) {
    return describe(checkpoint, checkpoint->state >= GS_CHECKPOINT_GOOD);
}

gs_status gs_checkpoint_to_record(char **text, const gs_checkpoint *checkpoint) {
    gs_json *row = describe(checkpoint, true);
    gs_json_set_int(row, "created_ms", checkpoint->created_ms);
    gs_json_set_bool(row, "deleting", checkpoint->state == GS_CHECKPOINT_DELETING);
    gs_status status = gs_json_encode(text, NULL, row, false);
    gs_json_release(row);
    return status;
}

gs_status gs_checkpoint_from_record(gs_checkpoint *checkpoint, const char *text) {
    gs_json *body = NULL;
    GS_TRY(gs_json_parse(&body, text, strlen(text)));
    snprintf(checkpoint->digest, sizeof checkpoint->digest, "%s", gs_json_string_or(body, "digest", ""));
    snprintf(checkpoint->reason, sizeof checkpoint->reason, "%s", gs_json_string_or(body, "reason", ""));
    checkpoint->step = gs_json_int_or(body, "step", 0);
    checkpoint->bytes = gs_json_int_or(body, "bytes", 0);
    checkpoint->seconds = gs_json_double_or(body, "seconds", 0);
    checkpoint->world_size = gs_json_int_or(body, "world_size", 0);
    checkpoint->parts = gs_json_int_or(body, "parts", 1);
    checkpoint->created_ms = gs_json_int_or(body, "created_ms", 0);
    checkpoint->state = gs_json_bool_or(body, "deleting", false) ? GS_CHECKPOINT_DELETING : GS_CHECKPOINT_GOOD;
    gs_json_release(body);
    return gs_ok();
}
