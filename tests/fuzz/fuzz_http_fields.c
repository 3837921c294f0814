// Whatever the fields of a request's head say, each by itself: what is made of it is bounded, is what the text says, and is the
// same where the same is said in another way. The first byte names the field; the rest is its text.
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/access/secret.h"
#include "api/access/sessions.h"
#include "api/http/early_head.h"
#include "api/http/hosts.h"
#include "api/http/router.h"
#include "api/live/event_hub.h"
#include "api/live/sse.h"
#include "api/routes/routes.h"
#include "core/strbuf.h"
#include "tests/fuzz/fuzz.h"

static void require(bool holds) {
    if (!holds) abort();
}

// printf into a text that the caller releases.
static char *joined(const char *before, const char *text, const char *behind) {
    gs_strbuf out = {0};
    gs_strbuf_printf(&out, "%s%s%s", before, text, behind);
    char *whole = gs_strbuf_take(&out);
    require(whole != NULL);
    return whole;
}

#define ALLOWED "example.org,ci.example.org:9000,[2001:db8::1]:443"
enum { PORT = 8470 };

static bool lets_in(const gs_hosts *hosts, const char *host) {
    return gs_hosts_check_host(hosts, host, PORT).code == GS_OK;
}

// Of a server at 127.0.0.1 that ALLOWED was given to, told without its reader: is one of the names that may be, in whatever case.
static bool is_familiar(const char *host) {
    size_t len = *host == '[' ? strcspn(host, "]") : strcspn(host, ":");
    if (*host == '[') return true;  // an address has many spellings
    if (len > 0 && host[len - 1] == '.') len--;
    if (len > 4 && strncmp(host, "127.", 4) == 0) return strspn(host, "0123456789.") >= len;
    static const char *const names[] = {"localhost", "example.org", "ci.example.org"};
    for (size_t i = 0; i < 3; i++)
        if (strlen(names[i]) == len && strncasecmp(names[i], host, len) == 0) return true;
    return false;
}

static void check_host(const char *host) {
    static gs_hosts *near, *far;
    if (!near) {
        require(!gs_hosts_create(&near, "127.0.0.1:8470", true, ALLOWED).code);
        require(!gs_hosts_create(&far, "0.0.0.0:8470", false, ALLOWED).code);
    }
    char *louder = joined("", host, ""), *page = joined("http://", host, "");
    for (char *c = louder; *c; c++) *c = (char)toupper((unsigned char)*c);
    bool is_let_in = lets_in(near, host);
    require(is_let_in == lets_in(near, louder) && lets_in(far, host) == lets_in(far, louder));
    if (is_let_in) {
        require(lets_in(far, host) && is_familiar(host));
        require(!gs_hosts_check_origin(page, host).code);
        bool is_other = strncasecmp(host, "elsewhere.example", 17) != 0;
        require(!is_other || gs_hosts_check_origin("http://elsewhere.example", host).code);
    }
    // A page's own origin, however it is read, is not another's.
    require(!gs_hosts_check_origin(host, "localhost").code == !gs_hosts_check_origin(host, "LOCALHOST.").code);
    gs_hosts *hosts = NULL;
    const char *mark = strrchr(host, ':');
    if (gs_hosts_create(&hosts, "127.0.0.1:8470", true, host).code) {
        require(!hosts);
    } else if (*host && !strchr(host, ',')) {
        // What an operator may allow is let in when it is asked for, and has a port that there can be.
        require(gs_hosts_check_host(hosts, host, 80).code == GS_OK);
        require(!mark || strchr(mark, ']') || strtoull(mark + 1, NULL, 10) <= 65535);
    }
    gs_hosts_destroy(hosts);
    free(louder);
    free(page);
}

static void check_cookies(const char *cookies) {
    static const char *const names[] = {GS_SESSION_COOKIE, GS_SESSION_COOKIE_TLS};
    for (size_t i = 0; i < 2; i++) {
        char secret[GS_SECRET_TEXT_BYTES], again[GS_SECRET_TEXT_BYTES], pair[96];
        gs_session_of_cookies(secret, cookies, names[i]);
        require(memchr(secret, '\0', sizeof secret) != NULL);
        char *behind_others = joined("a=b; c; ", cookies, ";d=gradsync"), *doubled = joined("", cookies, ";");
        gs_session_of_cookies(again, behind_others, names[i]);
        require(strcmp(secret, again) == 0);
        snprintf(pair, sizeof pair, "%s=%s", names[i], secret);
        const char *at = strstr(cookies, pair);
        while (at && at[strlen(pair)] && !strchr("; \t", at[strlen(pair)])) at = strstr(at + 1, pair);
        require(!*secret || at);  // whole, or not at all
        free(doubled);
        doubled = joined(pair, "; ", cookies);
        gs_session_of_cookies(again, doubled, names[i]);
        require(!*secret || !*again);  // nobody can say which
        free(doubled);
        free(behind_others);
    }
}

static void check_accept(const char *accept) {
    static const char *const offers[] = {"application/json", "text/event-stream", "text/plain"};
    int best = gs_accept_best(accept, offers, 3);
    require(best >= -1 && best < 3);
    for (int i = 0; i < 3; i++) {
        // How much one is liked is nothing that the others are asked about.
        bool is_liked = gs_accept_best(accept, &offers[i], 1) == 0;
        require(is_liked || best != i);
        require(!is_liked || best >= 0);
        // Who refuses it first gets it last, whatever he says behind that.
        char *refused = joined(offers[i], ";q=0,", accept);
        require(gs_accept_best(refused, &offers[i], 1) == -1);
        free(refused);
    }
}

static void check_mask(const char *text) {
    char *masked = joined("", text, ""), *again;
    gs_secret_mask(masked);
    require(strlen(masked) == strlen(text));
    for (size_t i = 0; text[i]; i++) require(masked[i] == text[i] || masked[i] == '*');
    for (const char *at = masked; (at = strstr(at, "gs_")); at += 3)
        require(strspn(at + 3, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") < 21 || strstr(at + 3, "gs_"));
    again = joined("", masked, "");
    gs_secret_mask(again);
    require(strcmp(masked, again) == 0);
    free(masked);
    free(again);
}

// What is found when some of it has come stands when more has.
static void check_early_head(const uint8_t *data, size_t bytes) {
    static const char *const names[] = {"Authorization", "Cookie"};
    static gs_early_head head;
    for (size_t n = 0; n < 2; n++) {
        char value[64], first[64] = "";
        bool was_found = false;
        memcpy(head.text, data, bytes < sizeof head.text ? bytes : sizeof head.text);
        for (head.bytes = 0; head.bytes <= bytes && head.bytes <= sizeof head.text; head.bytes++) {
            bool is_found = gs_early_head_find(&head, value, sizeof value, names[n]);
            require(is_found || !was_found);
            if (!is_found) continue;
            require(strlen(value) < sizeof value && memmem(head.text, head.bytes, value, strlen(value)));
            require(!was_found || strcmp(value, first) == 0);
            strcpy(first, value);
            was_found = true;
        }
    }
}

static void check_event_id(const char *id) {
    uint32_t epoch;
    uint64_t sequence;
    char again[48];
    if (!gs_event_id_parse(&epoch, &sequence, id)) return;
    snprintf(again, sizeof again, "%llu-%llu", (unsigned long long)epoch, (unsigned long long)sequence);
    require(strcmp(again, id) == 0);
}

// Read as a browser does: lines of one event, whose data has a line break between them.
static void check_event(const char *data) {
    gs_strbuf out = {0}, seen = {0};
    gs_sse_write_event(&out, "1-2", "step", data);
    const char *text = gs_strbuf_text(&out);
    require(strncmp(text, "id: 1-2\nevent: step\n", 20) == 0 && !strchr(text, '\r'));
    int num_lines = 0;
    for (const char *line = text + 20; *line != '\n'; line = strchr(line, '\n') + 1) {
        require(strncmp(line, "data: ", 6) == 0);
        if (num_lines++) gs_strbuf_putc(&seen, '\n');
        gs_strbuf_add(&seen, line + 6, strcspn(line + 6, "\n"));
    }
    require(strcmp(strrchr(text, '\n') - 1, "\n\n") == 0 && strstr(text, "\n\n") == text + strlen(text) - 2);
    const char *from = data;
    for (const char *c = gs_strbuf_text(&seen); *c || *from; c++, from++) {
        if (*from == '\r' && *c == '\n') from += from[1] == '\n';
        else require(*from == *c);
    }
    gs_strbuf_release(&out);
    gs_strbuf_release(&seen);
}

// A path that a row of the table takes is what the row says, with its parameters in it.
static void check_path(const char *path) {
    static const char *const verbs[] = {"GET", "HEAD", "POST", "DELETE", "PUT"};
    static gs_route_match matches[5];
    for (size_t v = 0; v < 5; v++) {
        gs_route_match *match = &matches[v];
        gs_route_find(match, gs_routes, gs_num_routes, verbs[v], path);
        require(match->path_known == (*match->allow != '\0') && match->path_known == matches[0].path_known);
        if (!match->route) continue;
        gs_strbuf again = {0};
        for (const char *c = match->route->path; *c; c++) {
            size_t len = strcspn(c, "}");
            char name[16];
            if (*c != '{') {
                gs_strbuf_putc(&again, *c);
                continue;
            }
            snprintf(name, sizeof name, "%.*s", (int)len - 1, c + 1);
            require(*gs_route_param(match, name) && !strchr(gs_route_param(match, name), '/'));
            gs_strbuf_puts(&again, gs_route_param(match, name));
            c += len;
        }
        require(strcmp(gs_strbuf_text(&again), path) == 0 && strstr(match->allow, verbs[v]));
        gs_strbuf_release(&again);
    }
    require(matches[0].route == matches[1].route);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 1) return 0;
    char *text = malloc(bytes);
    require(text != NULL);
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = '\0';
    switch (data[0]) {
    case 'h': check_host(text); break;
    case 'c': check_cookies(text); break;
    case 'a': check_accept(text); break;
    case 'm': check_mask(text); break;
    case 'e': check_early_head(data + 1, bytes - 1); break;
    case 'i': check_event_id(text); break;
    case 's': check_event(text); break;
    case 'p': check_path(text); break;
    }
    free(text);
    return 0;
}
