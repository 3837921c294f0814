// Who may speak at the control port, as plain data: public keys with name, role and end, in the order in which they were
// made; and what of them a file holds. No clock, no file, no secrets.
//
// A key that has ended stays, so that whoever still shows it is told why, until its place is needed.
#ifndef RPC_KEYS_KEY_LIST_H
#define RPC_KEYS_KEY_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/json/json.h"
#include "rpc/keys/credential.h"
#include "rpc/keys/curve_key.h"
#include "rpc/keys/key_file.h"
#include "rpc/schema/role.h"

enum { GS_KEYS_MOST = 20000, GS_KEY_ID_BYTES = GS_CREDENTIAL_ID_BYTES };

typedef struct gs_known_key {
    char id[GS_KEY_ID_BYTES];  // "k-" and 8 hexadecimal digits
    char name[GS_KEY_NAME_BYTES];  // of a token to enrol with: who it is for; "": whoever says so
    gs_role role;  // AGENT (a worker and its trainers), ENROL, METRICS, VIEWER, OPERATOR or ADMIN
    bool is_pool;
    gs_curve_key shown;
    int64_t created_ms, expires_ms, revoked_ms;  // 0: never
} gs_known_key;

typedef struct gs_key_list {  // {0} is empty
    gs_known_key *items;  // owned
    size_t count;
} gs_key_list;

void gs_key_list_release(gs_key_list *list);
// `list` is {0}. INVALID_ARGUMENT names the member.
GS_NODISCARD gs_status gs_key_list_decode(gs_key_list *list, const gs_json *file);
gs_json *gs_key_list_encode(const gs_key_list *list);  // NULL: out of memory

const char *gs_key_role_name(gs_role role);  // "worker"; NULL: no key has it
GS_NODISCARD bool gs_key_role_from_name(gs_role *role, const char *name);
bool gs_known_key_counts(const gs_known_key *key, int64_t now_ms);

const gs_known_key *gs_key_list_find(const gs_key_list *list, const gs_curve_key *shown);
const gs_known_key *gs_key_list_find_id(const gs_key_list *list, const char *id);

// Copies `key` into the list and gives it its id. Two keys of one name and role count side by side while one takes the
// other's place. ALREADY_EXISTS: the name is that of a key of another role, or of one pool and one worker.
GS_NODISCARD gs_status gs_key_list_add(gs_key_list *list, gs_known_key *key, int64_t now_ms);
// By id, or all that count of a name; *count of them. NOT_FOUND: there is none. ALREADY_EXISTS: it is the id of one and the name of
// another that counts.
GS_NODISCARD gs_status gs_key_list_revoke(gs_key_list *list, const char *which, int64_t now_ms, int *count);
// A token becomes the key of the worker that shows it: it counts no longer. `name` is who it says it is, "": as the token has
// it. PERMISSION_DENIED: the token is for another one. ALREADY_EXISTS: a key that counts has the name already.
GS_NODISCARD gs_status gs_key_list_enrol(gs_key_list *list, const char *token_id, const char *name, const gs_curve_key *shown,
                                         int64_t now_ms, gs_known_key *made);
gs_json *gs_known_key_view(const gs_known_key *key, int64_t now_ms);

#endif
