// Raw HTTP/1.1 for tests: what goes over the wire is what the test wrote.
#ifndef TESTS_SUPPORT_HTTP_H
#define TESTS_SUPPORT_HTTP_H

#include <stdbool.h>

#include "core/strbuf.h"

typedef struct gs_wire {
    int fd;
    gs_strbuf received;
    bool closed;  // by the other side
} gs_wire;

// Aborts the test when it cannot connect. address: "127.0.0.1:1234"
void gs_wire_open(gs_wire *wire, const char *address);
void gs_wire_close(gs_wire *wire);
void gs_wire_send(gs_wire *wire, const char *text);  // also when the other side has closed
// Reads until `text` has come; false when the other side closed or 20 s passed first.
bool gs_wire_wait(gs_wire *wire, const char *text);
bool gs_wire_wait_close(gs_wire *wire);

typedef struct gs_wire_response {
    int status;
    char headers[4096];
    char *body;  // without chunk framing
} gs_wire_response;

// One exchange on a connection of its own. The request line and headers end with an empty line;
// "Host" and "Connection: close" are added unless `raw`.
gs_wire_response gs_wire_exchange(const char *address, const char *request, const char *body,
                                  bool raw);
void gs_wire_response_release(gs_wire_response *response);
// Into text of 512 bytes; false when there is no such header.
bool gs_wire_header(const gs_wire_response *response, const char *name, char text[512]);

#endif
