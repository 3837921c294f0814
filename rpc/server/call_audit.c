#include "rpc/server/call_audit.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "core/clock.h"
#include "rpc/keys/key_list.h"

enum { MOST_TEXT = 128 };

struct gs_audited_call {
    char target[MOST_TEXT], by[MOST_TEXT], from[64];
    int64_t begun_ns;
};

static bool is_audited(const gs_rpc_call_entry *call) {
    const gs_role role = gs_method_info_of(call->method)->role;
    return !call->peer.caller.is_local && (role >= GS_ROLE_OPERATOR || call->method == GS_ENROL);
}

void gs_call_audit_address(char text[64], int fd) {
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    char host[48], port[8];
    snprintf(text, 64, "%s", fd < 0 ? "inproc" : "?");
    if (fd < 0 || getpeername(fd, (struct sockaddr *)&address, &bytes) != 0) return;
    if (getnameinfo((struct sockaddr *)&address, bytes, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) return;
    snprintf(text, 64, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

static void write_line(gs_audit *audit, const gs_rpc_call_entry *call, const char *result, const char *made) {
    const gs_rpc_caller *caller = &call->peer.caller;
    const struct gs_audited_call *it = call->audited;
    const char *role = caller->is_known ? gs_key_role_name(caller->role) : NULL;
    char id[64];
    snprintf(id, sizeof id, "c-%" PRIu32 "-%" PRIu64, call->table->peers->coordinator_epoch, call->number);
    const gs_audit_line line = {.kind = result ? GS_AUDIT_ANSWERED : GS_AUDIT_ASKED, .request_id = id, .method = "CALL",
                                .route = gs_method_info_of(call->method)->name, .path = it->target, .token = caller->id,
                                .name = caller->name, .role = role ? role : "", .by = it->by, .from = it->from, .result = result,
                                .made = made, .seconds = gs_seconds_since(it->begun_ns)};
    gs_audit_post(audit, &line);
}

void gs_call_audit_begin(gs_audit *audit, gs_rpc_call_entry *call, const gs_json *request) {
    if (!audit || !is_audited(call)) return;
    const gs_rpc_connection *connection = call->connection ? call->connection : call->session->connection;
    struct gs_audited_call *it = calloc(1, sizeof *it);
    if (!it) return;
    it->begun_ns = gs_now_ns();
    // A job by its id or name; who enrols by the name that it wants.
    snprintf(it->target, sizeof it->target, "%s", gs_json_string_or(request, call->method == GS_ENROL ? "name" : "job", ""));
    if (gs_rpc_caller_speaks_for_others(&call->peer.caller)) snprintf(it->by, sizeof it->by, "%s", gs_json_string_or(request, "principal", ""));
    gs_call_audit_address(it->from, connection ? connection->route.fd : -1);
    call->audited = it;
    write_line(audit, call, NULL, NULL);
}

void gs_call_audit_end(gs_audit *audit, gs_rpc_call_entry *call, gs_code code, const gs_json *body) {
    if (!audit || !call->audited) return;
    bool makes = call->method == GS_CREATE_JOB || call->method == GS_ADOPT_JOB || call->method == GS_ENROL;
    write_line(audit, call, gs_code_name(code), makes && !code ? gs_json_string_or(body, "id", NULL) : NULL);
    free(call->audited);
    call->audited = NULL;
}
