#include "api/http/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool split_address(char host[64], char port[16], const char *address) {
    const char *colon = strrchr(address, ':');
    if (!colon || !colon[1] || strlen(colon + 1) >= 16) return false;
    size_t host_len = (size_t)(colon - address);
    if (host_len >= 2 && address[0] == '[' && address[host_len - 1] == ']') {
        address++;
        host_len -= 2;
    } else if (memchr(address, ':', host_len)) {
        return false;
    }
    if (host_len == 0 || host_len >= 64) return false;
    memcpy(host, address, host_len);
    host[host_len] = '\0';
    strcpy(port, colon + 1);
    return strspn(port, "0123456789") == strlen(port) && atol(port) <= 65535;
}

static bool is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) {
        uint32_t ip = ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr);
        return ip >> 24 == 127;
    }
    return address->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

static struct addrinfo *resolve_address(const char *address) {
    char host[64], port[16];
    if (!split_address(host, port, address)) return NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    return getaddrinfo(host, port, &hints, &found) == 0 ? found : NULL;
}

gs_status gs_http_address_check(bool *on_loopback, const char *address) {
    struct addrinfo *found = resolve_address(address);
    if (!found) return gs_error(GS_INVALID_ARGUMENT, "http address '%s' is not HOST:PORT", address);
    *on_loopback = is_loopback(found->ai_addr);
    freeaddrinfo(found);
    return gs_ok();
}

static void format_bound_address(char text[GS_HTTP_ADDRESS_LEN], int fd) {
    struct sockaddr_storage bound = {0};
    socklen_t bound_bytes = sizeof bound;
    char host[INET6_ADDRSTRLEN] = "?";
    unsigned port = 0;
    if (getsockname(fd, (struct sockaddr *)&bound, &bound_bytes) == 0) {
        if (bound.ss_family == AF_INET6) {
            const struct sockaddr_in6 *six = (const void *)&bound;
            inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof host);
            port = ntohs(six->sin6_port);
        } else {
            const struct sockaddr_in *four = (const void *)&bound;
            inet_ntop(AF_INET, &four->sin_addr, host, sizeof host);
            port = ntohs(four->sin_port);
        }
    }
    const char *format = bound.ss_family == AF_INET6 ? "[%s]:%u" : "%s:%u";
    snprintf(text, GS_HTTP_ADDRESS_LEN, format, host, port);
}

gs_status gs_listener_open(int *out, char bound[GS_HTTP_ADDRESS_LEN], const char *address) {
    struct addrinfo *found = resolve_address(address);
    if (!found) return gs_error(GS_INVALID_ARGUMENT, "http address '%s' is not HOST:PORT", address);
    int one = 1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    gs_status status = gs_ok();
    if (fd < 0) {
        status = gs_error_from_errno(errno, "http address %s", address);
    } else if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
               bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 511) != 0) {
        status = errno == EADDRINUSE
                     ? gs_error(GS_UNAVAILABLE, "http address %s is in use", address)
                     : gs_error_from_errno(errno, "http address %s", address);
        close(fd);
    } else {
        format_bound_address(bound, fd);
        *out = fd;
    }
    freeaddrinfo(found);
    return status;
}
