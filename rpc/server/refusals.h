// Refusals at the control port for the audit: one line for each key and minute, however often it knocks. The first is told at once,
// what follows within the minute as one line with a count. Of one thread. {0} with an audit is ready; of none nothing is told.
//
// Who draws a new key each time has as many as he likes: of the keys that no room is left for in a minute the number alone is told.
#ifndef RPC_SERVER_REFUSALS_H
#define RPC_SERVER_REFUSALS_H

#include <stddef.h>
#include <stdint.h>

#include "rpc/keys/audit.h"
#include "rpc/keys/key_file.h"

enum { GS_REFUSALS_MOST = 32, GS_REFUSALS_WHO_BYTES = 24, GS_REFUSALS_FROM_BYTES = 64 };

typedef struct gs_refusal {
    char who[GS_REFUSALS_WHO_BYTES];  // the id of a key; the begin of one that nobody knows; "": none was shown
    char name[GS_KEY_NAME_BYTES], from[GS_REFUSALS_FROM_BYTES];
    const char *role;    // constant, as the next two; "": nobody knows
    const char *what;    // a method, or "connect"
    const char *result;  // "PERMISSION_DENIED", "unknown", "revoked"
} gs_refusal;

typedef struct gs_refusals {
    gs_audit *audit;  // borrowed; NULL: none
    struct gs_refusals_item {
        gs_refusal facts;  // of the last one
        int64_t since_ns;
        uint64_t num_untold;
    } items[GS_REFUSALS_MOST];
    size_t count;
    uint64_t num_others;  // of those for whom there was no room
    int64_t others_since_ns;
} gs_refusals;

void gs_refusals_note(gs_refusals *refusals, const gs_refusal *facts, int64_t now_ns);
// What a minute has collected; now and then, and with INT64_MAX at the end.
void gs_refusals_tell(gs_refusals *refusals, int64_t now_ns);

#endif
