#include "api/http/auth.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>
#include <arpa/inet.h>

bool gs_auth_host_is_local(const char *host) {
    if (!host) return false;
    size_t len = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    if (len > strlen(host)) return false;
    const char *port = host + len;
    if (*port == ':' && strspn(port + 1, "0123456789") != strlen(port + 1)) return false;
    if (*port != '\0' && *port != ':') return false;
    if (len == 9 && strncasecmp(host, "localhost", 9) == 0) return true;
    if (len == 5 && strncmp(host, "[::1]", 5) == 0) return true;

    char text[16];
    if (len >= sizeof text) return false;
    memcpy(text, host, len);
    text[len] = '\0';
    struct in_addr address;
    return inet_pton(AF_INET, text, &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

bool gs_auth_origin_is_local(const char *origin) {
    if (!origin) return true;
    if (strncasecmp(origin, "http://", 7) == 0) return gs_auth_host_is_local(origin + 7);
    if (strncasecmp(origin, "https://", 8) == 0) return gs_auth_host_is_local(origin + 8);
    return false;
}
