// One HTTP connection that is kept, open or over TLS, for a request behind the other.
#ifndef BENCH_KEPT_HTTP_H
#define BENCH_KEPT_HTTP_H

#include <stdbool.h>

#include "core/status.h"

typedef struct kept_http kept_http;

// `token`: NULL is none. The server's certificate is not looked at: the handshake is not what is measured.
GS_NODISCARD gs_status kept_http_open(kept_http **out, const char *host, int port, bool is_tls, const char *token);
void kept_http_close(kept_http *http);  // NULL is fine
// The status of the answer, whose body is read and thrown away; 0: none came, and the connection is of no more use.
int kept_http_ask(kept_http *http, const char *method, const char *path, const char *body);

#endif
