#include "bench/kept_http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/gnutls.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define PATIENCE_SECONDS 20
#define ROOM (1 << 20)

struct kept_http {
    int fd, port;
    char host[64], authorization[256];
    gnutls_session_t session;  // NULL: open
    gnutls_certificate_credentials_t credentials;
    char *answer;
};

static gs_status shake_hands(kept_http *http) {
    bool is_set = gnutls_certificate_allocate_credentials(&http->credentials) == 0 && gnutls_init(&http->session, GNUTLS_CLIENT) == 0 &&
                  gnutls_set_default_priority(http->session) == 0 &&
                  gnutls_credentials_set(http->session, GNUTLS_CRD_CERTIFICATE, http->credentials) == 0;
    if (!is_set) return gs_error(GS_INTERNAL, "tls: no session");
    gnutls_transport_set_int(http->session, http->fd);
    int result;
    do result = gnutls_handshake(http->session);
    while (result == GNUTLS_E_INTERRUPTED || result == GNUTLS_E_AGAIN);
    return result == 0 ? gs_ok() : gs_error(GS_UNAVAILABLE, "tls: %s", gnutls_strerror(result));
}

static gs_status connect_it(kept_http *http) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)http->port)};
    struct timeval patience = {.tv_sec = PATIENCE_SECONDS};
    int on = 1;
    if (inet_pton(AF_INET, http->host, &address.sin_addr) != 1) return gs_error(GS_INVALID_ARGUMENT, "host: %s", http->host);
    http->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (http->fd < 0) return gs_error_from_errno(errno, "socket");
    setsockopt(http->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(http->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(http->fd, (struct sockaddr *)&address, sizeof address) != 0) return gs_error_from_errno(errno, "connect");
    return gs_ok();
}

gs_status kept_http_open(kept_http **out, const char *host, int port, bool is_tls, const char *token) {
    kept_http *http = calloc(1, sizeof *http);
    if (!http) return gs_error(GS_RESOURCE_EXHAUSTED, "http: out of memory");
    http->fd = -1;
    http->port = port;
    snprintf(http->host, sizeof http->host, "%s", host);
    if (token) snprintf(http->authorization, sizeof http->authorization, "Authorization: Bearer %s\r\n", token);
    http->answer = malloc(ROOM);
    gs_status status = http->answer ? connect_it(http) : gs_error(GS_RESOURCE_EXHAUSTED, "http: out of memory");
    if (!status.code && is_tls) status = shake_hands(http);
    if (status.code) kept_http_close(http);
    else *out = http;
    return status;
}

void kept_http_close(kept_http *http) {
    if (!http) return;
    if (http->session) gnutls_deinit(http->session);
    if (http->credentials) gnutls_certificate_free_credentials(http->credentials);
    if (http->fd >= 0) close(http->fd);
    free(http->answer);
    free(http);
}

static bool put(kept_http *http, const char *data, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        ssize_t sent = http->session ? gnutls_record_send(http->session, data + at, bytes - at) : send(http->fd, data + at, bytes - at, MSG_NOSIGNAL);
        if (sent <= 0 && sent != GNUTLS_E_INTERRUPTED) return false;
        if (sent > 0) at += (size_t)sent;
    }
    return true;
}

static ssize_t take(kept_http *http, char *into, size_t room) {
    ssize_t bytes;
    if (!http->session) return recv(http->fd, into, room, 0);
    // What a server says about later sessions is not an answer.
    do bytes = gnutls_record_recv(http->session, into, room);
    while (bytes == GNUTLS_E_INTERRUPTED || bytes == GNUTLS_E_AGAIN);
    return bytes;
}

int kept_http_ask(kept_http *http, const char *method, const char *path, const char *body) {
    char request[4096];
    int length = snprintf(request, sizeof request, "%s %s HTTP/1.1\r\nHost: %s:%d\r\n%sContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                          method, path, http->host, http->port, http->authorization, strlen(body), body);
    if (length >= (int)sizeof request || !put(http, request, (size_t)length)) return 0;
    size_t have = 0, whole = 0;
    while (!whole || have < whole) {
        ssize_t bytes = have + 1 < ROOM ? take(http, http->answer + have, ROOM - 1 - have) : 0;
        if (bytes <= 0) return 0;
        have += (size_t)bytes;
        http->answer[have] = '\0';
        const char *end = whole ? NULL : strstr(http->answer, "\r\n\r\n"), *says = end ? strcasestr(http->answer, "\r\nContent-Length:") : NULL;
        if (end && !says) return 0;
        if (end) whole = (size_t)(end + 4 - http->answer) + strtoul(says + strlen("\r\nContent-Length:"), NULL, 10);
    }
    return atoi(http->answer + strlen("HTTP/1.1 "));
}
