// Who may talk to us. On loopback no token is asked for, so the two doors that a web browser opens
// there are closed: a foreign name that resolves to us (DNS rebinding) and a foreign page.
#ifndef API_HTTP_AUTH_H
#define API_HTTP_AUTH_H

#include <stdbool.h>

// `host`: the Host header, with or without a port; NULL is refused. True: localhost, 127.x.y.z,
// [::1].
bool gs_auth_host_is_local(const char *host);
// `origin`: the Origin header; NULL (no browser, or its own page) is fine. "null" is foreign.
bool gs_auth_origin_is_local(const char *origin);

#endif
