// Every operation of /openapi.json, with every kind of token: what the document says of a route is what the server
// does, and a route that is added is in here without a line.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/access/token_list.h"
#include "core/clock.h"
#include "rpc/json/sealed_json.h"
#include "tests/support/http.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/api/fake_coordinator.h"

enum { NUM_ROLES = 4, EXPIRED = NUM_ROLES, REVOKED, UNKNOWN, NUM_SECRETS };
static const gs_role roles[NUM_ROLES] = {GS_ROLE_METRICS, GS_ROLE_VIEWER, GS_ROLE_OPERATOR, GS_ROLE_ADMIN};

typedef struct guarded {
    char *dir, secrets[NUM_SECRETS][GS_SECRET_TEXT_BYTES];
    fake_coordinator *fake;
} guarded;

static void must(gs_status status) {
    if (status.code) fail_msg("%s", status.message);
}

static void write_tokens(guarded *here, const char *path) {
    static const char *const names[] = {"metrics", "viewer", "operator", "admin", "expired", "revoked"};
    int64_t now_ms = gs_wall_ms();
    gs_token_list list = {0};
    for (int i = 0; i < NUM_SECRETS; i++) {
        must(gs_secret_draw(here->secrets[i]));
        if (i == UNKNOWN) continue;
        gs_token token = {.role = i < NUM_ROLES ? roles[i] : GS_ROLE_ADMIN,
                          .created_ms = now_ms - 10000,
                          .expires_ms = i == EXPIRED ? now_ms - 1000 : 0,
                          .revoked_ms = i == REVOKED ? now_ms - 1000 : 0};
        snprintf(token.name, sizeof token.name, "%s", names[i]);
        assert_true(gs_secret_hash_of(&token.hash, here->secrets[i], strlen(here->secrets[i])));
        must(gs_token_list_add(&list, &token, now_ms));
    }
    uint64_t bytes;
    gs_digest digest;
    must(gs_sealed_json_write(gs_token_list_encode(&list), path, &bytes, &digest));
    gs_token_list_release(&list);
}

static int start(void **state) {
    guarded *here = calloc(1, sizeof *here);
    here->dir = gs_temp_dir_make();
    char path[512];
    snprintf(path, sizeof path, "%s/tokens.json", here->dir);
    write_tokens(here, path);
    here->fake = fake_start_with_tokens(path, true);
    for (int method = GS_CREATE_JOB; method < GS_NUM_METHODS; method++)
        fake_answer(here->fake, (gs_method)method, GS_OK, "",
                    "{\"ended\":true,\"end\":true,\"ready\":true,\"records\":[]}");
    *state = here;
    return 0;
}

static int stop(void **state) {
    guarded *here = *state;
    fake_stop(here->fake);
    gs_temp_dir_remove(here->dir);
    free(here);
    return 0;
}

typedef struct operation {
    guarded *here;
    char verb[16], path[128];  // to ask with
    bool has_body;
    gs_role needed;
    char role[16];
    int num_seen, num_open;
} operation;

static gs_wire_response ask(const operation *of, const char *verb, const char *secret) {
    char request[1024], header[128] = "";
    if (secret) snprintf(header, sizeof header, "Authorization: Bearer %s\r\n", secret);
    snprintf(request, sizeof request, "%s %s HTTP/1.1\r\n%s%s\r\n", verb, of->path, header,
             of->has_body ? "Content-Type: application/json\r\n" : "");
    return gs_wire_exchange(fake_address(of->here->fake), request, of->has_body ? "{}" : NULL, false);
}

static void refused(const operation *of, const char *secret, int status, const char *part) {
    gs_wire_response response = ask(of, of->verb, secret);
    char challenge[512] = "";
    if (response.status != status || !strstr(response.body, part))
        fail_msg("%s %s: %d in place of %d: %s", of->verb, of->path, response.status, status, response.body);
    bool is_challenged = gs_wire_header(&response, "WWW-Authenticate", challenge);
    assert_int_equal(is_challenged, status == 401);
    if (status == 401) assert_int_equal(strstr(challenge, "invalid_token") != NULL, secret != NULL);
    gs_wire_response_release(&response);
}

// Streams do not end; HEAD goes as far as they are admitted.
static void admitted(const operation *of, const char *secret) {
    gs_wire_response response = ask(of, strcmp(of->verb, "GET") == 0 ? "HEAD" : of->verb, secret);
    if (response.status == 401 || response.status == 403 || response.status == 0)
        fail_msg("%s %s: %d: %s", of->verb, of->path, response.status, response.body);
    gs_wire_response_release(&response);
}

static void check_operation(const operation *of) {
    const guarded *here = of->here;
    char needs[64];
    snprintf(needs, sizeof needs, "needs %s", of->role);
    refused(of, NULL, 401, "has none");
    refused(of, "gs_short", 401, "43 characters");
    refused(of, here->secrets[UNKNOWN], 401, "did not give out");
    refused(of, here->secrets[EXPIRED], 401, "expired at");
    refused(of, here->secrets[REVOKED], 401, "was revoked at");
    for (int i = 0; i < NUM_ROLES; i++)
        if (roles[i] < of->needed) refused(of, here->secrets[i], 403, needs);
        else admitted(of, here->secrets[i]);
}

static bool read_role(operation *of, const gs_json *description) {
    snprintf(of->role, sizeof of->role, "%s", gs_json_string_or(description, "x-role", ""));
    bool is_guarded = gs_json_count(gs_json_get(description, "security")) > 0;
    for (int i = 0; i < NUM_ROLES; i++)
        if (strcmp(of->role, gs_token_role_name(roles[i])) == 0) {
            of->needed = roles[i];
            assert_true(is_guarded);
            return true;
        }
    assert_string_equal(of->role, "none");
    assert_false(is_guarded);
    return false;
}

// At the second address nobody is asked, and whatever changes something, or is not for viewers, is not there.
static void check_readers_door(const operation *of, const char *verb, bool is_for_readers) {
    char request[512];
    snprintf(request, sizeof request, "%s %s HTTP/1.1\r\n\r\n", verb, of->path);
    gs_wire_response response = gs_wire_exchange(fake_readonly_address(of->here->fake), request, NULL, false);
    bool is_refused = response.status == 403 && (strcmp(verb, "HEAD") == 0 || strstr(response.body, "\"code\":\"read_only\""));
    if (is_refused == is_for_readers || response.status == 401 || response.status == 0)
        fail_msg("%s %s to read: %d %s", verb, of->path, response.status, response.body);
    gs_wire_response_release(&response);
}

static bool visit_verb(void *ctx, const char *verb, const gs_json *description) {
    operation *of = ctx;
    snprintf(of->verb, sizeof of->verb, "%s", verb);
    for (char *c = of->verb; *c; c++) *c = (char)(*c - 'a' + 'A');
    of->has_body = gs_json_get(description, "requestBody") != NULL;
    of->num_seen++;
    if (!read_role(of, description)) {
        of->num_open++;
        assert_string_equal(of->verb, "GET");
        assert_int_not_equal(strncmp(of->path, "/v1", 3), 0);
        refused(of, of->here->secrets[REVOKED], strstr(of->path, "problems") ? 404 : 200, "");
        return true;
    }
    const char *name = gs_json_string_or(description, "operationId", "");
    bool changes_nothing = strcmp(of->verb, "GET") == 0 || strcmp(name, "previewPlan") == 0 || strcmp(of->path, "/v1/session") == 0;
    if (!changes_nothing) assert_true(of->needed >= GS_ROLE_OPERATOR);
    check_operation(of);
    bool reads = strcmp(of->verb, "GET") == 0;
    check_readers_door(of, reads ? "HEAD" : of->verb, reads && of->needed <= GS_ROLE_VIEWER);
    return true;
}

static bool visit_path(void *ctx, const char *path, const gs_json *verbs) {
    operation *of = ctx;
    size_t used = 0;
    while (*path && used < sizeof of->path - 16) {
        if (*path != '{') {
            of->path[used++] = *path++;
            continue;
        }
        used += (size_t)snprintf(of->path + used, sizeof of->path - used, "nobody");
        path += strcspn(path, "}") + 1;
    }
    of->path[used] = '\0';
    gs_json_each(verbs, visit_verb, of);
    return true;
}

static void every_operation_takes_whom_its_document_says(void **state) {
    guarded *here = *state;
    gs_wire_response response = gs_wire_exchange(fake_address(here->fake), "GET /openapi.json HTTP/1.1\r\n\r\n", NULL, false);
    assert_int_equal(response.status, 200);
    gs_json *document = NULL;
    must(gs_json_parse(&document, response.body, strlen(response.body)));
    operation of = {.here = here};
    gs_json_each(gs_json_get(document, "paths"), visit_path, &of);
    assert_true(of.num_seen >= 35);
    assert_int_equal(of.num_open, 5);  // livez, readyz, healthz, openapi.json, problems: a sixth is a decision
    gs_json_release(document);
    gs_wire_response_release(&response);
}

static void nobody_sends_a_body_before_he_is_known(void **state) {
    guarded *here = *state;
    char request[512];
    const char *const heads[] = {"Content-Length: 1000000", "Transfer-Encoding: chunked"};
    for (int i = 0; i < 4; i++) {
        gs_wire wire;
        gs_wire_open(&wire, fake_address(here->fake));
        char token[128] = "";
        if (i >= 2) snprintf(token, sizeof token, "Authorization: Bearer %s\r\n", here->secrets[1]);
        snprintf(request, sizeof request, "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%s%s\r\n\r\n",
                 token, heads[i % 2]);
        gs_wire_send(&wire, request);
        assert_true(gs_wire_wait(&wire, i < 2 ? "HTTP/1.1 401" : "HTTP/1.1 403"));
        assert_true(gs_wire_wait_close(&wire));
        gs_wire_close(&wire);
    }
}

static void two_tokens_are_none(void **state) {
    guarded *here = *state;
    char request[512];
    snprintf(request, sizeof request, "GET /v1/jobs HTTP/1.1\r\nAuthorization: Bearer %s\r\nAuthorization: Bearer %s\r\n\r\n",
             here->secrets[3], here->secrets[UNKNOWN]);
    gs_wire_response response = gs_wire_exchange(fake_address(here->fake), request, NULL, false);
    assert_int_equal(response.status, 400);
    gs_wire_response_release(&response);
}

// A token in the path or the query is in everybody's logs.
static void tokens_elsewhere_than_in_the_header_count_for_nothing(void **state) {
    guarded *here = *state;
    operation of = {.here = here, .verb = "GET"};
    snprintf(of.path, sizeof of.path, "/v1/jobs?token=%s", here->secrets[3]);
    refused(&of, NULL, 401, "has none");
    snprintf(of.path, sizeof of.path, "/v1/jobs?access_token=%s", here->secrets[3]);
    refused(&of, NULL, 401, "has none");
}

static void a_token_is_shown_once_and_no_hash_ever(void **state) {
    guarded *here = *state;
    char request[512];
    snprintf(request, sizeof request, "POST /v1/tokens HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n\r\n", here->secrets[3]);
    gs_wire_response response = gs_wire_exchange(fake_address(here->fake), request,
        "{\"name\":\"ci\",\"role\":\"viewer\",\"expires_in_seconds\":60}", false);
    assert_int_equal(response.status, 201);
    gs_json *made = NULL;
    must(gs_json_parse(&made, response.body, strlen(response.body)));
    char secret[GS_SECRET_TEXT_BYTES];
    snprintf(secret, sizeof secret, "%s", gs_json_string_or(made, "token", ""));
    assert_non_null(gs_json_get(made, "expires_at"));
    gs_json_release(made);
    gs_wire_response_release(&response);

    operation of = {.here = here, .verb = "GET", .path = "/v1/whoami"};
    response = ask(&of, "GET", secret);
    assert_non_null(strstr(response.body, "\"name\":\"ci\""));
    gs_wire_response_release(&response);
    snprintf(of.path, sizeof of.path, "/v1/tokens");
    response = ask(&of, "GET", here->secrets[3]);
    assert_non_null(strstr(response.body, "\"name\":\"ci\""));
    assert_null(strstr(response.body, "hash"));
    assert_null(strstr(response.body, "gs_"));
    gs_wire_response_release(&response);

    snprintf(of.path, sizeof of.path, "/v1/tokens/ci");
    response = ask(&of, "DELETE", here->secrets[3]);
    assert_int_equal(response.status, 204);
    gs_wire_response_release(&response);
    snprintf(of.path, sizeof of.path, "/v1/whoami");
    refused(&of, secret, 401, "was revoked at");
}

static void end_token(guarded *here, int which) {
    char request[512];
    snprintf(request, sizeof request, "DELETE /v1/tokens/%s HTTP/1.1\r\nAuthorization: Bearer %s\r\n\r\n",
             gs_token_role_name(roles[which]), here->secrets[3]);
    gs_wire_response response = gs_wire_exchange(fake_address(here->fake), request, NULL, false);
    assert_int_equal(response.status, 204);
    gs_wire_response_release(&response);
}

// "gradsync=…", of a session of one of the tokens.
static void begin_session(const guarded *here, int which, char cookie[128]) {
    char request[512], header[512];
    snprintf(request, sizeof request, "POST /v1/session HTTP/1.1\r\nAuthorization: Bearer %s\r\n\r\n", here->secrets[which]);
    gs_wire_response response = gs_wire_exchange(fake_address(here->fake), request, NULL, false);
    assert_int_equal(response.status, 204);
    assert_true(gs_wire_header(&response, "Set-Cookie", header));
    assert_non_null(strstr(header, "; Path=/; HttpOnly; SameSite=Strict; Max-Age="));
    assert_int_equal(strncmp(header, "gradsync=gs_", 12), 0);
    snprintf(cookie, 128, "%.*s", (int)strcspn(header, ";"), header);
    gs_wire_response_release(&response);
}

// Of a request with these headers: its status, and a part of its answer.
static void answered(const guarded *here, const char *line, const char *headers, int status, const char *part) {
    char request[1024];
    snprintf(request, sizeof request, "%s HTTP/1.1\r\n%s\r\n", line, headers);
    gs_wire_response response = gs_wire_exchange(fake_address(here->fake), request, NULL, false);
    if (response.status != status || !strstr(response.body, part))
        fail_msg("%s with %s: %d in place of %d: %s", line, headers, response.status, status, response.body);
    gs_wire_response_release(&response);
}

static void a_session_may_what_its_token_may_and_no_page_of_others_uses_it(void **state) {
    guarded *here = *state;
    char cookie[128], headers[512];
    begin_session(here, 2, cookie);
    snprintf(headers, sizeof headers, "Cookie: theme=dark; %s\r\n", cookie);
    answered(here, "GET /v1/jobs", headers, 200, "");
    answered(here, "GET /v1/whoami", headers, 200, "\"session\":true");
    answered(here, "GET /v1/tokens", headers, 403, "needs admin");
    answered(here, "POST /v1/jobs/j/stop", headers, 403, "\"code\":\"forgery\"");
    answered(here, "DELETE /v1/jobs/j", headers, 403, "\"code\":\"forgery\"");
    assert_int_equal(fake_num_calls(here->fake, GS_STOP_JOB) + fake_num_calls(here->fake, GS_DELETE_JOB), 0);
    snprintf(headers, sizeof headers, "Cookie: %s\r\nX-Gradsync-CSRF: 1\r\n", cookie);
    answered(here, "POST /v1/jobs/j/stop", headers, 202, "");
    snprintf(headers, sizeof headers, "Cookie: %s\r\nX-Gradsync-CSRF: 1\r\nOrigin: http://localhost:1\r\n", cookie);
    answered(here, "POST /v1/jobs/j/stop", headers, 403, "\"code\":\"bad_origin\"");
    snprintf(headers, sizeof headers, "Cookie: %s\r\nX-Gradsync-CSRF: 1\r\nSec-Fetch-Site: same-site\r\n", cookie);
    answered(here, "POST /v1/jobs/j/stop", headers, 403, "\"code\":\"bad_origin\"");
    snprintf(headers, sizeof headers, "Cookie: %s\r\nX-Gradsync-CSRF: 1\r\n", cookie);
    answered(here, "POST /v1/session", headers, 409, "begins with a token");
}

static void a_session_ends_with_its_token_and_by_logging_out(void **state) {
    guarded *here = *state;
    char cookie[128], other[128], headers[512];
    begin_session(here, 1, cookie);
    begin_session(here, 1, other);
    snprintf(headers, sizeof headers, "Cookie: %s\r\nX-Gradsync-CSRF: 1\r\n", cookie);
    answered(here, "DELETE /v1/session", headers, 204, "");
    answered(here, "GET /v1/jobs", headers, 401, "session has ended");
    snprintf(headers, sizeof headers, "Cookie: %s\r\n", other);
    answered(here, "GET /v1/jobs", headers, 200, "");
    end_token(here, 1);
    answered(here, "GET /v1/jobs", headers, 401, "was revoked at");
}

static void the_streams_of_a_session_end_with_it_and_others_go_on(void **state) {
    guarded *here = *state;
    char cookie[128], other[128], headers[512], request[600];
    gs_wire ended, staying;
    fake_answer(here->fake, GS_GET_JOB, GS_OK, "", "{\"id\":\"j-1\"}");
    begin_session(here, 1, cookie);
    begin_session(here, 1, other);
    for (int i = 0; i < 2; i++) {
        gs_wire *wire = i ? &staying : &ended;
        gs_wire_open(wire, fake_address(here->fake));
        snprintf(request, sizeof request, "GET /v1/jobs/j-1/stream HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nCookie: %s\r\n\r\n", i ? other : cookie);
        gs_wire_send(wire, request);
        assert_true(gs_wire_wait(wire, "event: snapshot"));
    }
    snprintf(headers, sizeof headers, "Cookie: %s\r\nX-Gradsync-CSRF: 1\r\n", cookie);
    answered(here, "DELETE /v1/session", headers, 204, "");
    assert_true(gs_wire_wait(&ended, "event: end\ndata: {\"reason\":\"unauthenticated\"}"));
    fake_watch_item(here->fake, "{\"event\":\"event\",\"sequence\":11,\"data\":{\"reason\":\"Still\"}}");
    assert_true(gs_wire_wait(&staying, "Still"));
    assert_null(strstr(gs_strbuf_text(&staying.received), "unauthenticated"));
    gs_wire_close(&ended);
    gs_wire_close(&staying);
}

// The connection of the browser is encrypted, though ours is not.
static void behind_a_proxy_a_cookie_is_for_encrypted_connections(void **state) {
    guarded *here = *state;
    char path[512], request[512], header[512], cookie[128];
    snprintf(path, sizeof path, "%s/tokens.json", here->dir);
    guarded proxied = *here;
    proxied.fake = fake_start_behind_proxy(path);
    fake_answer(proxied.fake, GS_LIST_JOBS, GS_OK, "", "{\"items\":[]}");
    snprintf(request, sizeof request, "POST /v1/session HTTP/1.1\r\nAuthorization: Bearer %s\r\n\r\n", here->secrets[2]);
    gs_wire_response response = gs_wire_exchange(fake_address(proxied.fake), request, NULL, false);
    assert_int_equal(response.status, 204);
    assert_true(gs_wire_header(&response, "Set-Cookie", header));
    assert_int_equal(strncmp(header, "__Host-gradsync=gs_", 19), 0);
    assert_non_null(strstr(header, "; Secure"));
    snprintf(cookie, sizeof cookie, "%.*s", (int)strcspn(header, ";"), header);
    gs_wire_response_release(&response);
    snprintf(request, sizeof request, "Cookie: %s\r\n", cookie);
    answered(&proxied, "GET /v1/jobs", request, 200, "");
    fake_stop(proxied.fake);
}

// As other changes, of which each costs a line of the audit.
static void sessions_are_among_a_tokens_changes(void **state) {
    guarded *here = *state;
    gs_wire wire;
    char request[256];
    snprintf(request, sizeof request, "DELETE /v1/session HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", here->secrets[1]);
    gs_wire_open(&wire, fake_address(here->fake));
    for (int i = 0; i < 2000 && !strstr(gs_strbuf_text(&wire.received), "rate_limited"); i++) {
        gs_strbuf_clear(&wire.received);
        gs_wire_send(&wire, request);
        assert_true(gs_wire_wait(&wire, "\r\n\r\n"));
    }
    assert_non_null(strstr(gs_strbuf_text(&wire.received), " 429 "));
    gs_wire_close(&wire);
}

static void what_is_no_session_is_none(void **state) {
    guarded *here = *state;
    char cookie[128], headers[512];
    begin_session(here, 1, cookie);
    snprintf(headers, sizeof headers, "Cookie: gradsync=%s\r\n", here->secrets[3]);  // a token is no cookie
    answered(here, "GET /v1/jobs", headers, 401, "session has ended");
    snprintf(headers, sizeof headers, "Authorization: Bearer %s\r\n", strchr(cookie, '=') + 1);  // nor the other way round
    answered(here, "GET /v1/jobs", headers, 401, "did not give out");
    snprintf(headers, sizeof headers, "Cookie: %s; %s\r\n", cookie, cookie);
    answered(here, "GET /v1/jobs", headers, 401, "has none");
    snprintf(headers, sizeof headers, "Cookie: %s\r\nCookie: a=b\r\n", cookie);
    answered(here, "GET /v1/jobs", headers, 400, "twice");
    snprintf(headers, sizeof headers, "Cookie: %s\r\nAuthorization: Bearer %s\r\n", cookie, here->secrets[REVOKED]);
    answered(here, "GET /v1/jobs", headers, 401, "was revoked at");  // what is shown counts, not what is sent beside it
}

// Of the lowest role, and from the same address: he begins a request on each connection that he may have, and does not end it.
static void a_token_that_holds_all_places_shuts_no_administrator_out(void **state) {
    guarded *here = *state;
    enum { PLACES = 512 };  // of an address, at this API
    static gs_wire wires[PLACES];
    char request[256];
    snprintf(request, sizeof request, "GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", here->secrets[0]);
    for (int i = 0; i < PLACES; i++) {
        gs_wire_open(&wires[i], fake_address(here->fake));
        gs_wire_send(&wires[i], request);
        assert_true(gs_wire_wait(&wires[i], "\"metrics\""));
        gs_wire_send(&wires[i], "GET /v1/whoami HTTP/1.1\r\nHost: local");
    }
    snprintf(request, sizeof request, "Authorization: Bearer %s\r\n", here->secrets[3]);
    for (int i = 0; i < 6; i++) answered(here, "GET /v1/tokens", request, 200, "\"items\"");
    for (int i = 0; i < PLACES; i++) gs_wire_close(&wires[i]);
}

static gs_wire_response read_at(const char *address, const char *line, const char *secret) {
    char request[512], header[128] = "";
    if (secret) snprintf(header, sizeof header, "Authorization: Bearer %s\r\n", secret);
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\n%s\r\n", line, header);
    return gs_wire_exchange(address, request, NULL, false);
}

static void expect_at(const char *address, const char *line, const char *secret, int status, const char *part, const char *never) {
    gs_wire_response response = read_at(address, line, secret);
    if (response.status != status || !strstr(response.body, part)) fail_msg("%s: %d in place of %d: %s", line, response.status, status, response.body);
    if (never && strstr(response.body, never)) fail_msg("%s tells %s: %s", line, never, response.body);
    gs_wire_response_release(&response);
}

static void what_is_wrong_inside_is_told_to_those_who_may_look(void **state) {
    guarded *here = *state;
    const char *address = fake_address(here->fake), *readers = fake_readonly_address(here->fake);
    fake_answer(here->fake, GS_GET_HEALTH, GS_OK, "",
                "{\"ready\":false,\"checks\":[{\"name\":\"control\",\"ok\":true,\"detail\":\"tcp://inside\"},"
                "{\"name\":\"store\",\"ok\":false,\"detail\":\"/inside/db\"}]}");
    expect_at(address, "/readyz?verbose", NULL, 503, "[+]control ok\n[-]store failed\n", "inside");
    expect_at(address, "/readyz", NULL, 503, "\"detail\":\"store\"", "inside");
    expect_at(address, "/healthz?verbose", here->secrets[0], 503, "[-]store failed\n", "inside");
    expect_at(address, "/readyz?verbose", here->secrets[REVOKED], 503, "[-]store failed\n", "inside");
    for (int i = 1; i < NUM_ROLES; i++) {
        expect_at(address, "/readyz?verbose", here->secrets[i], 503, "[+]control ok: tcp://inside\n[-]store failed: /inside/db\n", NULL);
        expect_at(address, "/readyz", here->secrets[i], 503, "store: /inside/db", NULL);
    }
    expect_at(readers, "/readyz?verbose", NULL, 503, "[-]store failed: /inside/db\n", NULL);
    fake_answer(here->fake, GS_GET_HEALTH, GS_INTERNAL, "inside", NULL);
    gs_sleep_ns(300 * GS_NS_PER_MS);
    expect_at(address, "/readyz?verbose", NULL, 503, "[-]coordinator failed\n", "inside");
    expect_at(address, "/readyz?verbose", here->secrets[1], 503, "[-]coordinator GetHealth: inside\n", NULL);
}

static void who_is_nobody_makes_the_coordinator_answer_five_times_a_second(void **state) {
    guarded *here = *state;
    enum { ASKS = 60 };
    fake_answer(here->fake, GS_GET_HEALTH, GS_OK, "", "{\"ready\":true}");
    gs_sleep_ns(300 * GS_NS_PER_MS);
    int64_t begin_ns = gs_now_ns();
    for (int i = 0; i < ASKS; i++) expect_at(i % 2 ? fake_address(here->fake) : fake_readonly_address(here->fake), "/readyz", NULL, 200, "ok", NULL);
    int most = 1 + (int)(5 * gs_seconds_since(begin_ns));
    int num_asked = fake_num_calls(here->fake, GS_GET_HEALTH);
    if (num_asked < 1 || num_asked > most) fail_msg("%d in place of at most %d", num_asked, most);
    for (int i = 0; i < 10; i++) expect_at(fake_address(here->fake), "/readyz", here->secrets[1], 200, "ok", NULL);
    assert_int_equal(fake_num_calls(here->fake, GS_GET_HEALTH), num_asked + 10);
}

static void begin_read(gs_wire *wire, const char *address, const char *line, const char *header) {
    char request[512];
    gs_wire_open(wire, address);
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", line, header);
    gs_wire_send(wire, request);
}

static void wait_calls(const guarded *here, gs_method method, int num_calls) {
    gs_deadline deadline = gs_deadline_in_seconds(60);
    while (fake_num_calls(here->fake, method) < num_calls && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    assert_int_equal(fake_num_calls(here->fake, method), num_calls);
}

static void readers_have_one_timeline_made_at_a_time_and_tokens_as_many_as_there_are(void **state) {
    guarded *here = *state;
    const char *readers = fake_readonly_address(here->fake), *path = "/v1/jobs/j-1/timeline";
    char header[128], wait[512];
    gs_wire first, with_token;
    fake_answer(here->fake, GS_GET_JOB, GS_OK, "", "{\"id\":\"j-1\"}");
    fake_answer(here->fake, GS_GET_JOB_TIMELINE, GS_OK, "", "{\"end\":true,\"job\":\"j-1\",\"state\":\"queued\",\"ranks\":[]}");
    fake_hold(here->fake, GS_GET_JOB_TIMELINE, true);
    begin_read(&first, readers, path, "");
    wait_calls(here, GS_GET_JOB_TIMELINE, 1);
    gs_wire_response response = read_at(readers, path, NULL);
    assert_int_equal(response.status, 429);
    assert_non_null(strstr(response.body, "another timeline"));
    assert_true(gs_wire_header(&response, "Retry-After", wait));
    gs_wire_response_release(&response);
    snprintf(header, sizeof header, "Authorization: Bearer %s\r\n", here->secrets[1]);
    begin_read(&with_token, fake_address(here->fake), path, header);
    wait_calls(here, GS_GET_JOB_TIMELINE, 2);
    fake_hold(here->fake, GS_GET_JOB_TIMELINE, false);
    assert_true(gs_wire_wait(&first, "\"job\":\"j-1\""));
    assert_true(gs_wire_wait(&with_token, "\"job\":\"j-1\""));
    expect_at(readers, path, NULL, 200, "j-1", NULL);  // the turn was given back
    gs_wire_close(&first);
    gs_wire_close(&with_token);
}

static int count_answered(const char *address, const char *line, const char *secret, int most) {
    for (int i = 0; i < most; i++) {
        gs_wire_response response = read_at(address, line, secret);
        int status = response.status;
        gs_wire_response_release(&response);
        if (status == 429) return i;
        assert_int_equal(status, 200);
    }
    return most;
}

static void what_readers_ask_of_the_coordinator_has_a_rate(void **state) {
    guarded *here = *state;
    const char *readers = fake_readonly_address(here->fake);
    fake_answer(here->fake, GS_GET_JOB, GS_OK, "", "{\"id\":\"j-1\"}");
    fake_answer(here->fake, GS_GET_JOB_TIMELINE, GS_OK, "", "{\"end\":true,\"job\":\"j-1\",\"state\":\"queued\",\"ranks\":[]}");
    fake_answer(here->fake, GS_GET_METRICS, GS_OK, "", "{\"families\":[]}");
    int64_t begin_ns = gs_now_ns();
    int num_timelines = count_answered(readers, "/v1/jobs/j-1/timeline", NULL, 200);
    assert_in_range(num_timelines, 5, 6 + (int)gs_seconds_since(begin_ns));
    begin_ns = gs_now_ns();
    int num_scrapes = count_answered(readers, "/metrics", NULL, 2000);
    assert_in_range(num_scrapes, 20, 21 + (int)(5 * gs_seconds_since(begin_ns)));
    assert_int_equal(count_answered(fake_address(here->fake), "/v1/jobs/j-1/timeline", here->secrets[1], 20), 20);
    assert_int_equal(count_answered(fake_address(here->fake), "/metrics", here->secrets[0], 60), 60);
}

static void previews_are_among_what_a_token_may_so_often(void **state) {
    guarded *here = *state;
    gs_wire wire;
    char request[512];
    // Without a body, which is quicker to refuse: a machine that is busy would not come to the rate.
    snprintf(request, sizeof request, "POST /v1/plans/preview HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nAuthorization: Bearer %s\r\n\r\n", here->secrets[1]);
    gs_wire_open(&wire, fake_address(here->fake));
    for (int i = 0; i < 2000 && !strstr(gs_strbuf_text(&wire.received), "rate_limited"); i++) {
        gs_strbuf_clear(&wire.received);
        gs_wire_send(&wire, request);
        assert_true(gs_wire_wait(&wire, "}\n"));
    }
    assert_non_null(strstr(gs_strbuf_text(&wire.received), " 429 "));
    gs_wire_close(&wire);
}

static void open_stream(const guarded *here, gs_wire *wire, const char *path, const char *secret, const char *begin) {
    char request[512];
    gs_wire_open(wire, fake_address(here->fake));
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nAuthorization: Bearer %s\r\n\r\n", path, secret);
    gs_wire_send(wire, request);
    assert_true(gs_wire_wait(wire, begin));
}

static void a_stream_ends_with_its_token_and_others_go_on(void **state) {
    guarded *here = *state;
    gs_wire ended, other, logs;
    fake_answer(here->fake, GS_GET_JOB, GS_OK, "", "{\"id\":\"j-1\"}");
    fake_answer(here->fake, GS_READ_LOGS, GS_OK, "", "{\"records\":[{\"rank\":0,\"text\":\"hello\"}],\"cursor\":\"1\"}");
    fake_answer_then(here->fake, GS_READ_LOGS, "{\"records\":[],\"cursor\":\"1\"}");
    open_stream(here, &ended, "/v1/jobs/j-1/stream", here->secrets[1], "event: snapshot");
    open_stream(here, &other, "/v1/jobs/j-1/stream", here->secrets[2], "event: snapshot");
    open_stream(here, &logs, "/v1/jobs/j-1/logs?follow=true", here->secrets[1], "hello");
    end_token(here, 1);
    assert_true(gs_wire_wait(&ended, "event: end\ndata: {\"reason\":\"unauthenticated\"}"));
    assert_true(gs_wire_wait(&logs, "\r\n0\r\n\r\n"));
    fake_watch_item(here->fake, "{\"event\":\"event\",\"sequence\":11,\"data\":{\"reason\":\"Still\"}}");
    assert_true(gs_wire_wait(&other, "Still"));
    assert_null(strstr(gs_strbuf_text(&other.received), "unauthenticated"));
    gs_wire_close(&ended);
    gs_wire_close(&other);
    gs_wire_close(&logs);
}

static void say(gs_wire *wire, const char *secret, const char *address, const char *path) {
    char request[256];
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", path, address, secret);
    gs_wire_send(wire, request);
}

// Until it answers nothing comes to whoever asked, as to a stranger who reads nothing; and what he showed was read long ago.
static void who_waits_for_the_coordinator_keeps_his_place(void **state) {
    enum { PLACES = NUM_ROLES, MORE_THAN_A_MOMENT_MS = 400 };
    guarded *here = *state;
    char path[512];
    snprintf(path, sizeof path, "%s/tokens.json", here->dir);
    gs_rpc_context *context = NULL;
    gs_api *api = NULL;
    must(gs_rpc_context_create(&context));
    gs_api_options options = {.http_address = "127.0.0.1:0", .context = context, .rpc_endpoint = "tcp://127.0.0.1:1",  // where nobody is
                              .tokens_path = path, .require_token = true, .max_per_address = PLACES};
    must(gs_api_start(&api, &options));
    gs_wire known[PLACES], stranger;
    for (int i = 0; i < PLACES - 1; i++) {
        gs_wire_open(&known[i], gs_api_address(api));
        say(&known[i], here->secrets[i], gs_api_address(api), "/v1/whoami");
        assert_true(gs_wire_wait(&known[i], "\"role\""));
    }
    gs_wire_open(&known[PLACES - 1], gs_api_address(api));
    say(&known[PLACES - 1], here->secrets[PLACES - 1], gs_api_address(api), "/v1/jobs");
    gs_sleep_ns(MORE_THAN_A_MOMENT_MS * GS_NS_PER_MS);
    gs_wire_open(&stranger, gs_api_address(api));
    assert_true(gs_wire_wait_close(&stranger));
    assert_true(gs_wire_wait(&known[PLACES - 1], "coordinator_unavailable"));
    for (int i = 0; i < PLACES; i++) {
        gs_strbuf_clear(&known[i].received);
        say(&known[i], here->secrets[i], gs_api_address(api), "/v1/whoami");
        assert_true(gs_wire_wait(&known[i], "\"role\""));
        gs_wire_close(&known[i]);
    }
    gs_wire_close(&stranger);
    gs_api_stop(api);
    gs_rpc_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_operation_takes_whom_its_document_says, start, stop),
        cmocka_unit_test_setup_teardown(nobody_sends_a_body_before_he_is_known, start, stop),
        cmocka_unit_test_setup_teardown(two_tokens_are_none, start, stop),
        cmocka_unit_test_setup_teardown(tokens_elsewhere_than_in_the_header_count_for_nothing, start, stop),
        cmocka_unit_test_setup_teardown(a_token_is_shown_once_and_no_hash_ever, start, stop),
        cmocka_unit_test_setup_teardown(a_session_may_what_its_token_may_and_no_page_of_others_uses_it, start, stop),
        cmocka_unit_test_setup_teardown(a_session_ends_with_its_token_and_by_logging_out, start, stop),
        cmocka_unit_test_setup_teardown(the_streams_of_a_session_end_with_it_and_others_go_on, start, stop),
        cmocka_unit_test_setup_teardown(behind_a_proxy_a_cookie_is_for_encrypted_connections, start, stop),
        cmocka_unit_test_setup_teardown(sessions_are_among_a_tokens_changes, start, stop),
        cmocka_unit_test_setup_teardown(a_token_that_holds_all_places_shuts_no_administrator_out, start, stop),
        cmocka_unit_test_setup_teardown(what_is_wrong_inside_is_told_to_those_who_may_look, start, stop),
        cmocka_unit_test_setup_teardown(who_is_nobody_makes_the_coordinator_answer_five_times_a_second, start, stop),
        cmocka_unit_test_setup_teardown(readers_have_one_timeline_made_at_a_time_and_tokens_as_many_as_there_are, start, stop),
        cmocka_unit_test_setup_teardown(what_readers_ask_of_the_coordinator_has_a_rate, start, stop),
        cmocka_unit_test_setup_teardown(previews_are_among_what_a_token_may_so_often, start, stop),
        cmocka_unit_test_setup_teardown(what_is_no_session_is_none, start, stop),
        cmocka_unit_test_setup_teardown(a_stream_ends_with_its_token_and_others_go_on, start, stop),
        cmocka_unit_test_setup_teardown(who_waits_for_the_coordinator_keeps_his_place, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
