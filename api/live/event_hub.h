// One subscription for each watched job, shared by all who look at it: events in a ring, read by
// position.
//
// A hub's thread follows the coordinator's Watch stream, also across restarts of the coordinator
// (then the ring gets a "reset"). It lives while somebody looks and a minute longer, so that a
// client that comes back finds what it missed.
#ifndef API_LIVE_EVENT_HUB_H
#define API_LIVE_EVENT_HUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "rpc/client/rpc_client.h"

typedef struct gs_event_hubs gs_event_hubs;  // all of a server; thread-safe
typedef struct gs_event_hub gs_event_hub;    // of one job

typedef struct gs_hub_event {
    char id[48];  // "<coordinator epoch>-<sequence>"
    char name[16];
    char *data;  // JSON text; the reader's (free())
} gs_hub_event;

typedef enum gs_hub_outcome {
    GS_HUB_EVENT = 0,
    GS_HUB_NOTHING,  // the deadline passed
    GS_HUB_END,      // nothing will come any more
    GS_HUB_STOPPING  // the server goes away
} gs_hub_outcome;

GS_NODISCARD gs_status gs_event_hubs_create(gs_event_hubs **out, gs_rpc_client *client);
void gs_event_hubs_stop(gs_event_hubs *hubs);  // readers get GS_HUB_STOPPING from now on
bool gs_event_hubs_stopping(gs_event_hubs *hubs);
void gs_event_hubs_destroy(gs_event_hubs *hubs);  // after all readers have left; NULL is fine

// job: full id, or "" for the whole cluster. RESOURCE_EXHAUSTED: too many. The hub is the caller's
// until gs_event_hub_leave. Waits until it is subscribed or the deadline passes; both are fine.
GS_NODISCARD gs_status gs_event_hubs_join(gs_event_hub **out, gs_event_hubs *hubs, const char *job,
                                          gs_deadline deadline);
void gs_event_hub_leave(gs_event_hub *hub);

// Where new events will go, and the id of the last one.
uint64_t gs_event_hub_position(gs_event_hub *hub, char last_id[48]);
// "<coordinator epoch>-<sequence>", as it is written and not otherwise.
bool gs_event_id_parse(uint32_t *epoch, uint64_t *sequence, const char *id);
// The position after event `id`; false when the ring no longer has what follows it, or never had.
bool gs_event_hub_resume(gs_event_hub *hub, uint64_t *position, const char *id);
bool gs_event_hub_at_end(gs_event_hub *hub, uint64_t position);

// The event at *position, which moves on. *num_dropped: events that were overwritten before.
gs_hub_outcome gs_event_hub_next(gs_event_hub *hub, gs_hub_event *event, uint64_t *position,
                                 uint64_t *num_dropped, gs_deadline deadline);

#endif
