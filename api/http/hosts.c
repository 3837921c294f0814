#include "api/http/hosts.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { MAX_NAME_LEN = 253, NO_PORT = -1, HTTP_PORT = 80, HTTPS_PORT = 443 };

// NAME[:PORT], each host in one spelling.
typedef struct authority {
    char host[MAX_NAME_LEN + 1];  // lower case; an IPv6 address without brackets
    int family;                   // AF_INET, AF_INET6; AF_UNSPEC: a name
    int port;                     // or NO_PORT
} authority;

struct gs_hosts {
    bool on_loopback, is_https;
    authority own[2];  // the machine's name, the one that we listen on; "" when there is none
    size_t num_allowed;
    authority allowed[];
};

static bool read_port(int *port, const char *text, size_t len) {
    *port = NO_PORT;
    if (len == 0) return true;
    if (len > 5 || strspn(text, "0123456789") < len) return false;
    *port = atoi(text);
    return *port <= 65535;
}

static bool read_ip(authority *out, int family) {
    unsigned char bytes[sizeof(struct in6_addr)];
    if (inet_pton(family, out->host, bytes) != 1) return false;
    out->family = family;
    return inet_ntop(family, bytes, out->host, sizeof out->host) != NULL;
}

static bool read_name(authority *out) {
    size_t len = strlen(out->host);
    if (len > 0 && out->host[len - 1] == '.') out->host[--len] = '\0';
    if (len == 0 || out->host[0] == '.' || strstr(out->host, "..") || out->host[len - 1] == '.')
        return false;
    return strspn(out->host, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == len;
}

static bool read_authority(authority *out, const char *text, size_t len) {
    *out = (authority){.family = AF_UNSPEC, .port = NO_PORT};
    bool bracketed = len > 0 && text[0] == '[';
    const char *mark = memchr(text, bracketed ? ']' : ':', len);
    size_t host_len = mark ? (size_t)(mark - text) : len;
    if (bracketed) {
        if (!mark) return false;
        text++, host_len--, len -= 2;  // without the brackets
    }
    if (host_len > MAX_NAME_LEN) return false;
    for (size_t i = 0; i < host_len; i++) out->host[i] = (char)tolower((unsigned char)text[i]);
    const char *rest = text + host_len + bracketed;
    if (len > host_len && (*rest != ':' || !read_port(&out->port, rest + 1, len - host_len - 1)))
        return false;
    if (bracketed) return read_ip(out, AF_INET6);
    return read_ip(out, AF_INET) || read_name(out);
}

static bool is_loopback(const authority *asked) {
    return strcmp(asked->host, asked->family == AF_INET6 ? "::1" : "localhost") == 0 ||
           (asked->family == AF_INET && strncmp(asked->host, "127.", 4) == 0);
}

static size_t count_entries(const char *allowed) {
    size_t count = *allowed != '\0';
    for (const char *c = allowed; *c; c++) count += *c == ',';
    return count;
}

static gs_status read_allowed(gs_hosts *hosts, const char *allowed) {
    while (*allowed) {
        size_t len = strcspn(allowed, ",");
        if (!read_authority(&hosts->allowed[hosts->num_allowed++], allowed, len))
            return gs_error(GS_INVALID_ARGUMENT,
                            "--allow-host: '%.*s' is not NAME, NAME:PORT or [IPV6]:PORT",
                            (int)(len < 100 ? len : 100), allowed);
        allowed += len + (allowed[len] == ',');
    }
    return gs_ok();
}

gs_status gs_hosts_create(gs_hosts **out, const char *listen, bool on_loopback,
                          const char *allowed) {
    if (!allowed) allowed = "";
    gs_hosts *hosts = calloc(1, sizeof *hosts + count_entries(allowed) * sizeof *hosts->allowed);
    if (!hosts) return gs_error(GS_RESOURCE_EXHAUSTED, "hosts: out of memory");
    hosts->on_loopback = on_loopback;
    char machine[MAX_NAME_LEN + 1] = "";
    if (!on_loopback && gethostname(machine, sizeof machine - 1) == 0 &&
        !read_authority(&hosts->own[0], machine, strlen(machine)))
        hosts->own[0] = (authority){0};
    if (!on_loopback && !read_authority(&hosts->own[1], listen, strlen(listen)))
        hosts->own[1] = (authority){0};
    gs_status status = read_allowed(hosts, allowed);
    if (status.code) {
        gs_hosts_destroy(hosts);
        return status;
    }
    *out = hosts;
    return gs_ok();
}

void gs_hosts_serve_https(gs_hosts *hosts) {
    hosts->is_https = true;
}

void gs_hosts_destroy(gs_hosts *hosts) {
    free(hosts);
}

static bool is_own(const gs_hosts *hosts, const authority *asked) {
    if (is_loopback(asked)) return true;
    if (hosts->on_loopback) return false;
    if (asked->family != AF_UNSPEC) return true;
    return strcmp(asked->host, hosts->own[0].host) == 0 ||
           strcmp(asked->host, hosts->own[1].host) == 0;
}

static bool is_allowed(const gs_hosts *hosts, const authority *asked, int asked_port) {
    for (size_t i = 0; i < hosts->num_allowed; i++) {
        const authority *entry = &hosts->allowed[i];
        if (strcmp(entry->host, asked->host) == 0 &&
            (entry->port == NO_PORT || entry->port == asked_port))
            return true;
    }
    return false;
}

gs_status gs_hosts_check_host(const gs_hosts *hosts, const char *host, int port) {
    if (!host) return gs_error(GS_PERMISSION_DENIED, "there is no Host header");
    authority asked;
    if (!read_authority(&asked, host, strlen(host)))
        return gs_error(GS_PERMISSION_DENIED, "Host is not NAME, NAME:PORT or [IPV6]:PORT");
    int asked_port = asked.port != NO_PORT ? asked.port : hosts->is_https ? HTTPS_PORT : HTTP_PORT;
    if ((asked_port == port && is_own(hosts, &asked)) || is_allowed(hosts, &asked, asked_port))
        return gs_ok();
    const char *format = asked.family == AF_INET6 ? "[%.60s]:%d" : "%.60s:%d";
    char name[80];
    snprintf(name, sizeof name, format, asked.host, asked_port);
    return gs_error(GS_PERMISSION_DENIED,
                    "Host names %s, and this server does not go by it; --allow-host %s, given to "
                    "the server, allows it",
                    name, name);
}

gs_status gs_hosts_check_origin(const char *origin, const char *host) {
    if (!origin) return gs_ok();
    bool is_https = strncasecmp(origin, "https://", 8) == 0;
    bool is_http = strncasecmp(origin, "http://", 7) == 0;
    const char *text = is_https ? origin + 8 : is_http ? origin + 7 : "";
    authority page, asked;
    if (!read_authority(&page, text, strlen(text)))
        return gs_error(GS_PERMISSION_DENIED, "Origin is no page of a web server");
    int scheme_port = is_https ? HTTPS_PORT : HTTP_PORT;
    if (page.port == NO_PORT) page.port = scheme_port;
    if (host && read_authority(&asked, host, strlen(host)) &&
        (asked.port == NO_PORT ? scheme_port : asked.port) == page.port &&
        strcmp(asked.host, page.host) == 0)
        return gs_ok();
    return gs_error(GS_PERMISSION_DENIED,
                    "Origin names another host or port than Host; only this server's own pages "
                    "may call it, and a proxy in front has to pass Host on as it came");
}

gs_status gs_hosts_check_site(const char *site) {
    if (!site || strcmp(site, "same-origin") == 0 || strcmp(site, "none") == 0) return gs_ok();
    return gs_error(GS_PERMISSION_DENIED, "a page of another origin asks (Sec-Fetch-Site is %.20s)", site);
}
