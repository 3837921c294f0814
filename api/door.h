// An address at which the API is served, and what is asked there of each request: framing, names, a route, a role. Where
// several are open at once they share what is behind them.
#ifndef API_DOOR_H
#define API_DOOR_H

#include <stdbool.h>
#include <stdint.h>

#include "api/http/hosts.h"
#include "api/http/http_server.h"
#include "api/routes/route_call.h"
#include "rpc/keys/audit.h"

typedef struct gs_door gs_door;

typedef enum gs_door_kind {
    GS_DOOR_OF_TOKENS = 0,  // who asks shows a token, where tokens are asked for
    GS_DOOR_OF_FILE,        // a Unix socket: whoever may open it may do everything
    GS_DOOR_OF_READERS      // whoever reaches it may read, and nothing else is there
} gs_door_kind;

typedef struct gs_door_options {
    gs_door_kind kind;
    const gs_api_services *services;  // copied: what they point to is borrowed until close
    gs_audit *audit;                  // borrowed until close; may be NULL
    const char *address, *allow_host;
    bool on_loopback;
    struct gs_tls *tls;  // borrowed until close; NULL: nothing is encrypted
    int64_t request_ms;
    unsigned max_connections, max_per_address;
} gs_door_options;

GS_NODISCARD gs_status gs_door_open(gs_door **out, const gs_door_options *options);
const char *gs_door_address(const gs_door *door);
void gs_door_close(gs_door *door);  // waits for requests in flight; NULL is fine

#endif
