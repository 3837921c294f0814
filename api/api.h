// The HTTP API as something to host: the coordinator starts it in its own process, gradsync-api
// alone.
//
// It reaches the coordinator only through an RPC channel (inproc or tcp) and holds no state worth
// saving, so it may be stopped and started at any time.
#ifndef API_API_H
#define API_API_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/client/rpc_client.h"
#include "rpc/keys/audit.h"

typedef struct gs_api gs_api;

typedef struct gs_api_options {
    const char *http_address;     // "127.0.0.1:8470" (also when NULL); port 0 picks one
    gs_rpc_context *context;      // borrowed until gs_api_stop has returned
    const char *rpc_key;          // a key file, read anew for each connection; NULL, "": no key is shown there
    const char *rpc_endpoint;     // where the coordinator listens: "inproc://…", "tcp://…"
    const char *checkpoints_dir;  // borrowed for the call; may be NULL
    // The file of tokens (api/access/token_store.h), borrowed for the call; NULL: there are none. Another address
    // than a loopback one asks everybody for a token; that asks as soon as one was made, or when it is required.
    const char *tokens_path;
    gs_audit *audit;  // of who changed what (rpc/keys/audit.h), borrowed until gs_api_stop has returned; NULL: there is none
    bool require_token;
    bool insecure_no_auth;  // nobody is asked, wherever it is served, unless a token is required; nothing is encrypted
    // A second address, where everybody may read what a viewer may, and nothing else is there; NULL: none.
    const char *http_readonly;
    const char *tls_cert, *tls_key;  // files in PEM, read again when they change; NULL: nothing is encrypted
    bool insecure_no_tls;   // serve another address than a loopback one unencrypted (a proxy in front encrypts)
    const char *allow_host;    // names in Host besides our own: api/http/hosts.h; may be NULL
    int64_t request_ms;        // a request must have arrived within this; 0: 10 s
    int64_t answer_ms;         // what the coordinator is asked must be answered within this, except a measurement of hosts; 0: 10 s
    unsigned max_per_address;  // connections; 0: 128
} gs_api_options;

// Returns when requests are served; the coordinator may come later (calls answer 503 until then).
// INVALID_ARGUMENT: a bad address. FAILED_PRECONDITION: the address is in use, or is not a loopback
// one.
GS_NODISCARD gs_status gs_api_start(gs_api **out, const gs_api_options *options);
// The address that it really has: "127.0.0.1:8470". Valid until stop.
const char *gs_api_address(const gs_api *api);
const char *gs_api_readonly_address(const gs_api *api);  // the same of the second one; NULL: there is none
// Ends open streams, waits for requests in flight (at most as long as an answer may take), closes. NULL is fine.
void gs_api_stop(gs_api *api);

#endif
