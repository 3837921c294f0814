#include "rpc/keys/credential.h"

#include <stdio.h>
#include <string.h>

#include "core/random.h"

bool gs_credential_counts(gs_credential_times times, int64_t now_ms) {
    return !times.revoked_ms && (!times.expires_ms || now_ms < times.expires_ms);
}

int64_t gs_credential_ended_ms(gs_credential_times times) {
    if (!times.revoked_ms) return times.expires_ms;
    return times.expires_ms && times.expires_ms < times.revoked_ms ? times.expires_ms : times.revoked_ms;
}

size_t gs_credential_earliest_ended(size_t count, gs_credential_times (*times_of)(const void *ctx, size_t index), const void *ctx,
                                    int64_t now_ms) {
    size_t earliest = count;
    int64_t earliest_ms = 0;
    for (size_t i = 0; i < count; i++) {
        gs_credential_times times = times_of(ctx, i);
        int64_t ended_ms = gs_credential_ended_ms(times);
        if (gs_credential_counts(times, now_ms) || (earliest < count && ended_ms >= earliest_ms)) continue;
        earliest = i;
        earliest_ms = ended_ms;
    }
    return earliest;
}

void gs_credential_draw_id(char id[GS_CREDENTIAL_ID_BYTES], char kind) {
    snprintf(id, GS_CREDENTIAL_ID_BYTES, "%c-%08x", kind, (unsigned)gs_random_from_system());
}

bool gs_credential_looks_like_id(const char *name, char kind) {
    return name[0] == kind && name[1] == '-' && strlen(name) == 10 && strspn(name + 2, "0123456789abcdef") == 8;
}

gs_status gs_credential_file_decode(void *stored, const gs_field *fields, const gs_json *file) {
    gs_field_errors errors = {0};
    gs_status status = gs_fields_decode(stored, fields, file, &errors);
    if (status.code != GS_INVALID_ARGUMENT || errors.count == 0) return status;
    return gs_error(GS_INVALID_ARGUMENT, "%s %s", errors.items[0].pointer, errors.items[0].message);
}

gs_json *gs_credential_file_encode(const void *stored, const gs_field *fields) {
    gs_json *file = gs_fields_encode(stored, fields);
    gs_json_remove(file, "digest");
    return file;
}

void gs_credential_view(gs_json *view, gs_credential_times times, int64_t now_ms) {
    gs_json_set_string(view, "state", times.revoked_ms ? "revoked" : gs_credential_counts(times, now_ms) ? "valid" : "expired");
    gs_json_set_time(view, "created_at", times.created_ms);
    if (times.expires_ms) gs_json_set_time(view, "expires_at", times.expires_ms);
    if (times.revoked_ms) gs_json_set_time(view, "revoked_at", times.revoked_ms);
}
