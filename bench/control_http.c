#include "bench/control_http.h"

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int open_http(const control_http *http) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)http->port)};
    inet_pton(AF_INET, http->host, &address.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_sec = 20};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

static int ask(const control_http *http, const char *method, const char *path, const char *body, size_t length,
               gs_strbuf *response) {
    char head[512], data[65536];
    gs_strbuf_clear(response);
    int fd = open_http(http);
    if (fd < 0) return 0;
    int head_bytes = snprintf(head, sizeof head,
                              "%s %s HTTP/1.1\r\nHost: %s:%d\r\nContent-Type: application/json\r\n"
                              "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                              method, path, http->host, http->port, length);
    bool sent = send(fd, head, (size_t)head_bytes, MSG_NOSIGNAL) == head_bytes &&
                send(fd, body, strlen(body), MSG_NOSIGNAL) == (ssize_t)strlen(body);
    ssize_t bytes;
    while (sent && (bytes = recv(fd, data, sizeof data, 0)) > 0) gs_strbuf_add(response, data, (size_t)bytes);
    close(fd);
    return response->len > 12 ? atoi(response->text + 9) : 0;
}

int control_http_request(const control_http *http, const char *method, const char *path, const char *body,
                         gs_strbuf *response) {
    return ask(http, method, path, body, strlen(body), response);
}

int control_http_offer(const control_http *http, const char *path, size_t bytes, gs_strbuf *response) {
    return ask(http, "POST", path, "", bytes, response);
}
