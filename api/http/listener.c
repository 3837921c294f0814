#include "api/http/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
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

const char *gs_http_unix_path(const char *address) {
    return strncmp(address, "unix:", 5) == 0 ? address + 5 : NULL;
}

gs_status gs_http_address_check(bool *on_loopback, const char *address) {
    const char *path = gs_http_unix_path(address);
    if (path && (*path != '/' || strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path))
        return gs_error(GS_INVALID_ARGUMENT, "http address '%s' is not unix: and an absolute path of at most 107 bytes", address);
    *on_loopback = true;
    if (path) return gs_ok();
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

void gs_http_peer_format(char text[GS_HTTP_PEER_LEN], int fd) {
    struct sockaddr_storage peer = {0};
    socklen_t bytes = sizeof peer, cred_bytes = sizeof(struct ucred);
    struct ucred user;
    char host[INET6_ADDRSTRLEN] = "?";
    snprintf(text, GS_HTTP_PEER_LEN, "?");
    if (getpeername(fd, (struct sockaddr *)&peer, &bytes) != 0) return;
    if (peer.ss_family == AF_UNIX && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &cred_bytes) == 0) {
        snprintf(text, GS_HTTP_PEER_LEN, "unix uid=%u pid=%d", (unsigned)user.uid, (int)user.pid);
    } else if (peer.ss_family == AF_INET) {
        const struct sockaddr_in *four = (const void *)&peer;
        inet_ntop(AF_INET, &four->sin_addr, host, sizeof host);
        snprintf(text, GS_HTTP_PEER_LEN, "%s:%u", host, (unsigned)ntohs(four->sin_port));
    } else if (peer.ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const void *)&peer;
        bool is_mapped = IN6_IS_ADDR_V4MAPPED(&six->sin6_addr);
        if (is_mapped) inet_ntop(AF_INET, &six->sin6_addr.s6_addr[12], host, sizeof host);
        else inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof host);
        snprintf(text, GS_HTTP_PEER_LEN, is_mapped ? "%s:%u" : "[%s]:%u", host, (unsigned)ntohs(six->sin6_port));
    }
}

bool gs_http_neighbourhood_of(gs_http_neighbourhood *out, int fd) {
    struct sockaddr_storage peer = {0};
    socklen_t bytes = sizeof peer;
    *out = (gs_http_neighbourhood){0};
    if (getpeername(fd, (struct sockaddr *)&peer, &bytes) != 0 || peer.ss_family == AF_UNIX) return false;
    const struct sockaddr_in *four = (const void *)&peer;
    const struct sockaddr_in6 *six = (const void *)&peer;
    bool is_six = peer.ss_family == AF_INET6, is_mapped = is_six && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr);
    const uint8_t *address = !is_six ? (const uint8_t *)&four->sin_addr : six->sin6_addr.s6_addr + (is_mapped ? 12 : 0);
    bool is_four = !is_six || is_mapped;
    out->bytes[15] = is_four ? 4 : 6;
    bool is_own = is_four ? address[0] == 127 : IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
    if (!is_own) memcpy(out->bytes, address, is_four ? 4 : 8);
    return true;
}

void gs_http_peer_neighbourhood(char text[GS_HTTP_PEER_LEN], const char *peer) {
    char host[INET6_ADDRSTRLEN], network[INET6_ADDRSTRLEN];
    struct in6_addr six;
    const char *port = strrchr(peer, ':');
    text[0] = '\0';
    if (!port || strncmp(peer, "unix ", 5) == 0) return;
    bool is_six = *peer == '[' && port[-1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(port - peer) - (is_six ? 2 : 0), peer + is_six);
    snprintf(text, GS_HTTP_PEER_LEN, "%s", host);
    if (!is_six || inet_pton(AF_INET6, host, &six) != 1 || IN6_IS_ADDR_LOOPBACK(&six)) return;
    memset(six.s6_addr + 8, 0, 8);
    if (inet_ntop(AF_INET6, &six, network, sizeof network)) snprintf(text, GS_HTTP_PEER_LEN, "%s/64", network);
}

gs_socket_mark gs_socket_mark_of(const char *path) {
    struct stat facts;
    if (lstat(path, &facts) != 0 || !S_ISSOCK(facts.st_mode)) return (gs_socket_mark){0};
    return (gs_socket_mark){facts.st_dev, facts.st_ino};
}

void gs_socket_remove(const char *path, gs_socket_mark mark) {
    gs_socket_mark now = gs_socket_mark_of(path);
    if (mark.inode && now.device == mark.device && now.inode == mark.inode) unlink(path);
}

// Somebody listens there: true. What a server left that was killed is removed.
static bool is_taken(const struct sockaddr_un *at) {
    struct stat facts;
    if (lstat(at->sun_path, &facts) != 0) return false;
    if (!S_ISSOCK(facts.st_mode)) return true;  // nothing of ours
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool is_left = fd >= 0 && connect(fd, (const struct sockaddr *)at, sizeof *at) != 0 && errno == ECONNREFUSED;
    if (fd >= 0) close(fd);
    return !is_left || unlink(at->sun_path) != 0;
}

static gs_status open_unix(int *out, char bound[GS_HTTP_ADDRESS_LEN], const char *path) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    if (is_taken(&at)) return gs_error(GS_UNAVAILABLE, "http address unix:%s is in use", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return gs_error_from_errno(errno, "http address unix:%s", path);
    // Before it has a name: what is bound takes the mode of the socket.
    if (fchmod(fd, 0600) != 0 || bind(fd, (const struct sockaddr *)&at, sizeof at) != 0 || listen(fd, SOMAXCONN) != 0) {
        gs_status status = gs_error_from_errno(errno, "http address unix:%s", path);
        close(fd);
        return status;
    }
    snprintf(bound, GS_HTTP_ADDRESS_LEN, "unix:%s", path);
    *out = fd;
    return gs_ok();
}

gs_status gs_listener_open(int *out, char bound[GS_HTTP_ADDRESS_LEN], const char *address) {
    if (gs_http_unix_path(address)) return open_unix(out, bound, gs_http_unix_path(address));
    struct addrinfo *found = resolve_address(address);
    if (!found) return gs_error(GS_INVALID_ARGUMENT, "http address '%s' is not HOST:PORT", address);
    int one = 1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    gs_status status = gs_ok();
    if (fd < 0) {
        status = gs_error_from_errno(errno, "http address %s", address);
    } else if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
               bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
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
