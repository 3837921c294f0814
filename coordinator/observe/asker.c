#include "coordinator/observe/asker.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/observe/events.h"

#define MOST_BYTES 128

// A token's name, and its id in brackets.
static bool is_name(const char *text) {
    size_t span = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._- ()");
    return span > 0 && span < MOST_BYTES && !text[span];
}

const char *gs_asker_name(const gs_rpc_peer *peer, const gs_json *request) {
    const char *who = gs_json_string_or(request, "principal", "");
    return gs_rpc_caller_speaks_for_others(&peer->caller) && is_name(who) ? who : "";
}

void gs_asker_note(gs_observer *observer, const gs_rpc_peer *peer, const gs_json *request, const char *what) {
    const char *who = gs_asker_name(peer, request), *key = peer->caller.is_known ? peer->caller.name : "";
    char message[400];
    if (!*who && !*key) return;
    bool both = *who && *key;
    snprintf(message, sizeof message, "%s was asked for by %s%s%s", what, *who ? who : key, both ? " through " : "", both ? key : "");
    gs_events_note(observer, GS_SEVERITY_INFO, "Requested", message);
}
