// Who may use the API, as plain data: tokens with name, role and end, in the order in which they were made; and
// what of them a file holds. No clock, no file.
//
// A token that has ended stays in the list, so that whoever still shows it is told why it no longer counts, until
// its place is needed: then those go that ended first.
#ifndef API_ACCESS_TOKEN_LIST_H
#define API_ACCESS_TOKEN_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/access/secret.h"
#include "core/status.h"
#include "rpc/json/json.h"
#include "rpc/keys/credential.h"
#include "rpc/schema/role.h"

enum { GS_TOKENS_MOST = 1000, GS_TOKEN_NAME_BYTES = 64, GS_TOKEN_ID_BYTES = GS_CREDENTIAL_ID_BYTES };

// Of names: what a label, a log line and an address may hold as it stands.
#define GS_TOKEN_NAME_PATTERN "^[A-Za-z0-9][A-Za-z0-9._-]*$"

typedef struct gs_token {
    char id[GS_TOKEN_ID_BYTES];  // "t-" and 8 hexadecimal digits
    char name[GS_TOKEN_NAME_BYTES];
    gs_role role;  // METRICS, VIEWER, OPERATOR or ADMIN
    gs_secret_hash hash;
    int64_t created_ms, expires_ms, revoked_ms;  // 0: never
} gs_token;

typedef struct gs_token_list {  // {0} is empty
    gs_token *items;  // owned
    size_t count;
} gs_token_list;

void gs_token_list_release(gs_token_list *list);
// `list` is {0}. INVALID_ARGUMENT names the member.
GS_NODISCARD gs_status gs_token_list_decode(gs_token_list *list, const gs_json *file);
// NULL: out of memory.
gs_json *gs_token_list_encode(const gs_token_list *list);

bool gs_token_counts(const gs_token *token, int64_t now_ms);  // neither revoked nor expired
// All of them are looked at, found or not. NULL: nobody was given it.
const gs_token *gs_token_list_find(const gs_token_list *list, const gs_secret_hash *hash);
const gs_token *gs_token_list_find_id(const gs_token_list *list, const char *id);
bool gs_token_list_has_admin(const gs_token_list *list, int64_t now_ms);
// Copied; its id is drawn here. ALREADY_EXISTS: one that counts has the name. FAILED_PRECONDITION: too many count.
// INVALID_ARGUMENT: the name looks like an id.
GS_NODISCARD gs_status gs_token_list_add(gs_token_list *list, gs_token *token, int64_t now_ms);
// By id, or by the name of one that counts. Revoking twice is fine. NOT_FOUND.
GS_NODISCARD gs_status gs_token_list_revoke(gs_token_list *list, const char *which, int64_t now_ms);

// "viewer"; NULL for what no token has.
const char *gs_token_role_name(gs_role role);
// As people are shown it: no hash.
gs_json *gs_token_view(const gs_token *token, int64_t now_ms);

#endif
