#include "worker/data_address.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct addrinfo *look_up(const char *host, const char *port, int flags) {
    struct addrinfo hints = {.ai_flags = flags, .ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    return getaddrinfo(host, port, &hints, &found) ? NULL : found;
}

bool gs_data_address_is_sound(const char *text) {
    struct addrinfo *found =
        strlen(text) < GS_DATA_ADDRESS_LEN ? look_up(text, NULL, AI_NUMERICHOST) : NULL;
    if (found) freeaddrinfo(found);
    return found != NULL;
}

// "tcp://HOST:PORT", HOST in brackets where it has colons.
static bool split_endpoint(char *host, size_t host_bytes, const char **port, const char *endpoint) {
    const char *first = strstr(endpoint, "://");
    const char *colon = strrchr(endpoint, ':');
    if (!first || strncmp(endpoint, "tcp", 3) != 0 || colon < first + 3) return false;
    first += 3;
    size_t len = (size_t)(colon - first);
    if (len >= 2 && first[0] == '[' && colon[-1] == ']') first++, len -= 2;
    if (len >= host_bytes) return false;
    memcpy(host, first, len);
    host[len] = '\0';
    *port = colon + 1;
    return true;
}

// A datagram socket that is connected has chosen a route, and has sent nothing.
static bool find_source(char *text, const struct addrinfo *to) {
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    bool found = connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
                 getsockname(fd, (struct sockaddr *)&own, &bytes) == 0 &&
                 getnameinfo((struct sockaddr *)&own, bytes, text, GS_DATA_ADDRESS_LEN, NULL, 0,
                             NI_NUMERICHOST) == 0;
    close(fd);
    return found;
}

void gs_data_address_find(char text[GS_DATA_ADDRESS_LEN], const char *configured,
                          const char *coordinator) {
    char host[256];
    const char *port;
    snprintf(text, GS_DATA_ADDRESS_LEN, "%s", configured);
    if (text[0] || !split_endpoint(host, sizeof host, &port, coordinator)) return;
    struct addrinfo *found = look_up(host, port, 0);
    if (!found || !find_source(text, found)) text[0] = '\0';
    if (found) freeaddrinfo(found);
}
