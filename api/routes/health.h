// What the coordinator says of itself, for /readyz. Who is nobody in particular may ask as often as he likes: he gets an answer that is
// a moment old, and many who ask at once wait for one. Any thread.
#ifndef API_ROUTES_HEALTH_H
#define API_ROUTES_HEALTH_H

#include "core/status.h"
#include "rpc/client/rpc_client.h"
#include "rpc/json/json.h"

typedef struct gs_health gs_health;

gs_health *gs_health_create(void);  // NULL: out of memory
void gs_health_destroy(gs_health *health);  // NULL is fine
// *out is the caller's; NULL where it does not answer, which the status says.
GS_NODISCARD gs_status gs_health_ask(gs_json **out, gs_rpc_client *client);
// The same, at most 200 ms old.
GS_NODISCARD gs_status gs_health_recall(gs_health *health, gs_json **out, gs_rpc_client *client);

#endif
