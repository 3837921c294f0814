// HTTP as the benchmark's clients speak it: a connection for each request.
#ifndef BENCH_CONTROL_HTTP_H
#define BENCH_CONTROL_HTTP_H

#include "core/strbuf.h"

typedef struct control_http {
    char host[64];
    int port;
} control_http;

// The status, and the whole response in `response`; 0 when there was none.
int control_http_request(const control_http *http, const char *method, const char *path, const char *body,
                         gs_strbuf *response);
// Asks to send more than is taken, and waits for the refusal.
int control_http_offer(const control_http *http, const char *path, size_t bytes, gs_strbuf *response);

#endif
