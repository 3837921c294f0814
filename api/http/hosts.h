// Under which names this server may be asked. Nobody shows credentials, so the two ways into it
// that a web browser offers to any page are closed: a foreign name that was made to resolve to our
// address (DNS rebinding), and a request of a page from another origin.
//
// Host has to be one of:
//   * localhost, 127.x.y.z or [::1], with the port that we listen on;
//   * unless we listen on a loopback address: any IP address (a rebound page has a name), this
//     machine's own name, and the name that we were told to listen on; with that port;
//   * what --allow-host gives: NAME with any port, NAME:PORT with that one.
// Origin, where there is one, has to be the page's that Host names: same host, same port.
//
// Where a browser says by Sec-Fetch-Site whose page asks, only this server's own may change anything, also where it
// says nothing of an Origin.
//
// Upper and lower case, a full stop at a name's end and the spelling of an IPv6 address make no
// difference. A missing port is 80; for Origin it is the scheme's.
#ifndef API_HTTP_HOSTS_H
#define API_HTTP_HOSTS_H

#include <stdbool.h>

#include "core/status.h"

typedef struct gs_hosts gs_hosts;  // immutable: any thread

// listen: the address as it was given, "0.0.0.0:8470". allowed: "NAME[:PORT],…"; may be NULL.
// INVALID_ARGUMENT names the entry that is none.
GS_NODISCARD gs_status gs_hosts_create(gs_hosts **out, const char *listen, bool on_loopback,
                                       const char *allowed);
// A missing port in Host is then 443.
void gs_hosts_serve_https(gs_hosts *hosts);
void gs_hosts_destroy(gs_hosts *hosts);

// All return PERMISSION_DENIED with a message for whoever asked. `host`, `origin` and `site` are headers,
// NULL when absent; `port` is the one that we listen on.
GS_NODISCARD gs_status gs_hosts_check_host(const gs_hosts *hosts, const char *host, int port);
GS_NODISCARD gs_status gs_hosts_check_origin(const char *origin, const char *host);
GS_NODISCARD gs_status gs_hosts_check_site(const char *site);

#endif
