#include "tests/support/http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"

enum { PATIENCE_MS = 20000 };

void gs_wire_open(gs_wire *wire, const char *address) {
    *wire = (gs_wire){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    struct sockaddr_in to = {.sin_family = AF_INET};
    to.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (wire->fd < 0 || connect(wire->fd, (struct sockaddr *)&to, sizeof to) != 0) {
        perror(address);
        abort();
    }
}

void gs_wire_close(gs_wire *wire) {
    if (wire->fd >= 0) close(wire->fd);
    gs_strbuf_release(&wire->received);
    *wire = (gs_wire){.fd = -1};
}

void gs_wire_send(gs_wire *wire, const char *text) {
    size_t left = strlen(text);
    while (left > 0) {
        ssize_t sent = send(wire->fd, text, left, MSG_NOSIGNAL);
        if (sent <= 0) return;
        text += sent;
        left -= (size_t)sent;
    }
}

// False at the end of the connection or of our patience.
static bool receive_more(gs_wire *wire, gs_deadline deadline) {
    char block[8192];
    struct pollfd ready = {.fd = wire->fd, .events = POLLIN};
    if (wire->closed || poll(&ready, 1, gs_deadline_left_ms(deadline)) <= 0) return false;
    ssize_t got = recv(wire->fd, block, sizeof block, 0);
    if (got <= 0) {
        wire->closed = true;
        return false;
    }
    gs_strbuf_add(&wire->received, block, (size_t)got);
    return true;
}

bool gs_wire_wait(gs_wire *wire, const char *text) {
    gs_deadline deadline = gs_deadline_in_ms(PATIENCE_MS);
    while (!strstr(gs_strbuf_text(&wire->received), text))
        if (!receive_more(wire, deadline)) return strstr(gs_strbuf_text(&wire->received), text);
    return true;
}

bool gs_wire_wait_close(gs_wire *wire) {
    gs_deadline deadline = gs_deadline_in_ms(PATIENCE_MS);
    while (receive_more(wire, deadline)) continue;
    return wire->closed;
}

static char *join_chunks(const char *text) {
    gs_strbuf body = {0};
    for (;;) {
        char *end;
        size_t bytes = strtoul(text, &end, 16);
        if (end == text || bytes == 0) break;
        text = strchr(end, '\n');
        if (!text || strlen(text + 1) < bytes) break;
        gs_strbuf_add(&body, text + 1, bytes);
        text += 1 + bytes + 2;
    }
    char *joined = gs_strbuf_take(&body);
    return joined ? joined : strdup("");
}

gs_wire_response gs_wire_exchange(const char *address, const char *request, const char *body,
                                  bool raw) {
    gs_wire wire;
    gs_wire_response response = {0};
    gs_wire_open(&wire, address);
    if (raw) {
        gs_wire_send(&wire, request);
    } else {
        size_t line_len = strcspn(request, "\n") + 1;
        gs_strbuf text = {0};
        gs_strbuf_add(&text, request, line_len);
        gs_strbuf_printf(&text, "Host: %s\r\nConnection: close\r\n", address);
        if (body) gs_strbuf_printf(&text, "Content-Length: %zu\r\n", strlen(body));
        gs_strbuf_puts(&text, request + line_len);
        gs_wire_send(&wire, gs_strbuf_text(&text));
        gs_strbuf_release(&text);
    }
    if (body) gs_wire_send(&wire, body);
    gs_wire_wait_close(&wire);
    const char *text = gs_strbuf_text(&wire.received);
    const char *end = strstr(text, "\r\n\r\n");
    if (end) {
        sscanf(text, "HTTP/1.1 %d", &response.status);
        snprintf(response.headers, sizeof response.headers, "%.*s\r\n", (int)(end - text), text);
        char encoding[512];
        bool chunked = gs_wire_header(&response, "Transfer-Encoding", encoding);
        response.body = chunked ? join_chunks(end + 4) : strdup(end + 4);
    } else {
        response.body = strdup("");
    }
    gs_wire_close(&wire);
    return response;
}

void gs_wire_response_release(gs_wire_response *response) {
    free(response->body);
    *response = (gs_wire_response){0};
}

bool gs_wire_header(const gs_wire_response *response, const char *name, char text[512]) {
    size_t name_len = strlen(name);
    for (const char *line = response->headers; line && *line;
         line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncasecmp(line, name, name_len) != 0 || line[name_len] != ':') continue;
        const char *value = line + name_len + 1 + strspn(line + name_len + 1, " ");
        snprintf(text, 512, "%.*s", (int)strcspn(value, "\r\n"), value);
        return true;
    }
    return false;
}
