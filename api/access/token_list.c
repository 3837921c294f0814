#include "api/access/token_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/keys/credential.h"

enum { VERSION = 1 };

static const char *const role_words[] = {"metrics", "viewer", "operator", "admin", NULL};
static const gs_role roles[] = {GS_ROLE_METRICS, GS_ROLE_VIEWER, GS_ROLE_OPERATOR, GS_ROLE_ADMIN};
enum { NUM_ROLES = sizeof roles / sizeof *roles };

// As the file has it.
typedef struct stored_token {
    char id[GS_TOKEN_ID_BYTES], name[GS_TOKEN_NAME_BYTES], hash[GS_SECRET_HASH_TEXT_BYTES];
    int role;
    int64_t created_ms, expires_ms, revoked_ms;
} stored_token;

typedef struct stored_list {
    int64_t version;
    stored_token tokens[GS_TOKENS_MOST];
    int num_tokens;
    char digest[64];  // rpc/json/sealed_json.h looks at it
} stored_list;

static const gs_field token_fields[] = {
    {.name = "id", .type = GS_FIELD_STRING, .offset = offsetof(stored_token, id), .capacity = GS_TOKEN_ID_BYTES,
     .required = true, .pattern = "^t-[0-9a-f]{8}$", .help = "What it is called in logs."},
    {.name = "name", .type = GS_FIELD_STRING, .offset = offsetof(stored_token, name), .capacity = GS_TOKEN_NAME_BYTES,
     .required = true, .pattern = GS_TOKEN_NAME_PATTERN, .help = "What people call it."},
    {.name = "role", .type = GS_FIELD_ENUM, .offset = offsetof(stored_token, role), .words = role_words,
     .required = true, .help = "What it may do."},
    {.name = "hash", .type = GS_FIELD_STRING, .offset = offsetof(stored_token, hash),
     .capacity = GS_SECRET_HASH_TEXT_BYTES, .required = true, .pattern = "^[0-9a-f]{64}$", .help = "SHA-256."},
    GS_CREDENTIAL_TIME(stored_token, created_ms, "made"),
    GS_CREDENTIAL_TIME(stored_token, expires_ms, "to expire"),
    GS_CREDENTIAL_TIME(stored_token, revoked_ms, "revoked"),
    {0}};

static const gs_field list_fields[] = {
    {.name = "version", .type = GS_FIELD_INT, .offset = offsetof(stored_list, version), .required = true,
     .has_range = true, .least = VERSION, .most = VERSION, .help = "Of the file."},
    {.name = "tokens", .type = GS_FIELD_OBJECTS, .offset = offsetof(stored_list, tokens), .capacity = GS_TOKENS_MOST,
     .element_bytes = sizeof(stored_token), .count_offset = offsetof(stored_list, num_tokens),
     .fields = token_fields, .help = "In the order in which they were made."},
    {.name = "digest", .type = GS_FIELD_STRING, .offset = offsetof(stored_list, digest), .capacity = 64,
     .default_value = "\"\"", .help = "Of the bytes before it."},
    {0}};

void gs_token_list_release(gs_token_list *list) {
    free(list->items);
    *list = (gs_token_list){0};
}

const char *gs_token_role_name(gs_role role) {
    for (int i = 0; i < NUM_ROLES; i++)
        if (roles[i] == role) return role_words[i];
    return NULL;
}

static gs_status check_unlike(const gs_token_list *list, const gs_token *token) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].id, token->id) == 0 || gs_secret_hash_equal(&list->items[i].hash, &token->hash))
            return gs_error(GS_INVALID_ARGUMENT, "tokens: %s is there twice", token->id);
    return gs_ok();
}

static gs_status take_stored(gs_token_list *list, const stored_list *stored) {
    list->items = calloc((size_t)stored->num_tokens + 1, sizeof *list->items);
    if (!list->items) return gs_error(GS_RESOURCE_EXHAUSTED, "tokens: out of memory");
    for (int i = 0; i < stored->num_tokens; i++) {
        const stored_token *from = &stored->tokens[i];
        gs_token token = {.role = roles[from->role], .created_ms = from->created_ms,
                          .expires_ms = from->expires_ms, .revoked_ms = from->revoked_ms};
        memcpy(token.id, from->id, sizeof token.id);
        memcpy(token.name, from->name, sizeof token.name);
        if (!gs_secret_hash_parse(&token.hash, from->hash))
            return gs_error(GS_INVALID_ARGUMENT, "tokens: the hash of %s is none", token.id);
        GS_TRY(check_unlike(list, &token));
        list->items[list->count++] = token;
    }
    return gs_ok();
}

gs_status gs_token_list_decode(gs_token_list *list, const gs_json *file) {
    stored_list *stored = calloc(1, sizeof *stored);
    if (!stored) return gs_error(GS_RESOURCE_EXHAUSTED, "tokens: out of memory");
    gs_status status = gs_credential_file_decode(stored, list_fields, file);
    if (!status.code) status = take_stored(list, stored);
    free(stored);
    if (status.code) gs_token_list_release(list);
    return status;
}

gs_json *gs_token_list_encode(const gs_token_list *list) {
    stored_list *stored = calloc(1, sizeof *stored);
    if (!stored) return NULL;
    stored->version = VERSION;
    for (size_t i = 0; i < list->count && i < GS_TOKENS_MOST; i++) {
        const gs_token *from = &list->items[i];
        stored_token *to = &stored->tokens[stored->num_tokens++];
        memcpy(to->id, from->id, sizeof to->id);
        memcpy(to->name, from->name, sizeof to->name);
        gs_secret_hash_format(to->hash, &from->hash);
        while (roles[to->role] != from->role) to->role++;
        to->created_ms = from->created_ms;
        to->expires_ms = from->expires_ms;
        to->revoked_ms = from->revoked_ms;
    }
    gs_json *file = gs_credential_file_encode(stored, list_fields);
    free(stored);
    return file;
}

static gs_credential_times times_of(const gs_token *token) {
    return (gs_credential_times){token->created_ms, token->expires_ms, token->revoked_ms};
}

bool gs_token_counts(const gs_token *token, int64_t now_ms) {
    return gs_credential_counts(times_of(token), now_ms);
}

const gs_token *gs_token_list_find(const gs_token_list *list, const gs_secret_hash *hash) {
    const gs_token *found = NULL;
    for (size_t i = 0; i < list->count; i++)
        if (gs_secret_hash_equal(&list->items[i].hash, hash)) found = &list->items[i];
    return found;
}

const gs_token *gs_token_list_find_id(const gs_token_list *list, const char *id) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].id, id) == 0) return &list->items[i];
    return NULL;
}

bool gs_token_list_has_admin(const gs_token_list *list, int64_t now_ms) {
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i].role == GS_ROLE_ADMIN && gs_token_counts(&list->items[i], now_ms)) return true;
    return false;
}

static gs_credential_times times_at(const void *items, size_t index) {
    return times_of((const gs_token *)items + index);
}

// False: all that are there count.
static bool drop_earliest_ended(gs_token_list *list, int64_t now_ms) {
    size_t earliest = gs_credential_earliest_ended(list->count, times_at, list->items, now_ms);
    if (earliest == list->count) return false;
    list->count--;
    memmove(&list->items[earliest], &list->items[earliest + 1], (list->count - earliest) * sizeof *list->items);
    return true;
}

gs_status gs_token_list_add(gs_token_list *list, gs_token *token, int64_t now_ms) {
    if (gs_credential_looks_like_id(token->name, 't'))
        return gs_error(GS_INVALID_ARGUMENT, "the name %s looks like an id, and would be taken for another token's", token->name);
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].name, token->name) == 0 && gs_token_counts(&list->items[i], now_ms))
            return gs_error(GS_ALREADY_EXISTS, "a token that counts has the name %s: %s", token->name, list->items[i].id);
    if (list->count >= GS_TOKENS_MOST && !drop_earliest_ended(list, now_ms))
        return gs_error(GS_FAILED_PRECONDITION, "there are %d tokens that count, and no more are kept", GS_TOKENS_MOST);
    gs_token *items = realloc(list->items, (list->count + 1) * sizeof *items);
    if (!items) return gs_error(GS_RESOURCE_EXHAUSTED, "tokens: out of memory");
    list->items = items;
    do gs_credential_draw_id(token->id, 't');
    while (gs_token_list_find_id(list, token->id));
    list->items[list->count++] = *token;
    return gs_ok();
}

static gs_token *find_named(const gs_token_list *list, const char *which, int64_t now_ms) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].id, which) == 0) return &list->items[i];
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].name, which) == 0 && gs_token_counts(&list->items[i], now_ms)) return &list->items[i];
    return NULL;
}

gs_status gs_token_list_revoke(gs_token_list *list, const char *which, int64_t now_ms) {
    gs_token *token = find_named(list, which, now_ms);
    if (!token) return gs_error(GS_NOT_FOUND, "no token that counts has this id or name");
    if (!token->revoked_ms) token->revoked_ms = now_ms;
    return gs_ok();
}

gs_json *gs_token_view(const gs_token *token, int64_t now_ms) {
    gs_json *view = gs_json_new_object();
    gs_json_set_string(view, "id", token->id);
    gs_json_set_string(view, "name", token->name);
    gs_json_set_string(view, "role", gs_token_role_name(token->role));
    gs_credential_view(view, times_of(token), now_ms);
    return view;
}
