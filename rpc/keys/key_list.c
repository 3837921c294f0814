#include "rpc/keys/key_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/keys/credential.h"

enum { VERSION = 1 };

static const char *const role_words[] = {"worker", "enrol", "metrics", "viewer", "operator", "admin", NULL};
static const gs_role roles[] = {GS_ROLE_AGENT, GS_ROLE_ENROL, GS_ROLE_METRICS, GS_ROLE_VIEWER, GS_ROLE_OPERATOR, GS_ROLE_ADMIN};
enum { NUM_ROLES = sizeof roles / sizeof *roles };

// As the file has it.
typedef struct stored_known_key {
    char id[GS_KEY_ID_BYTES], name[GS_KEY_NAME_BYTES], shown[GS_CURVE_KEY_TEXT_BYTES];
    int role;
    bool is_pool;
    int64_t created_ms, expires_ms, revoked_ms;
} stored_known_key;

typedef struct stored_list {
    int64_t version;
    stored_known_key keys[GS_KEYS_MOST];
    int num_keys;
    char digest[64];  // rpc/json/sealed_json.h looks at it
} stored_list;

static const gs_field key_fields[] = {
    {.name = "id", .type = GS_FIELD_STRING, .offset = offsetof(stored_known_key, id), .capacity = GS_KEY_ID_BYTES,
     .required = true, .pattern = "^k-[0-9a-f]{8}$", .help = "What it is called in logs."},
    {.name = "name", .type = GS_FIELD_STRING, .offset = offsetof(stored_known_key, name), .capacity = GS_KEY_NAME_BYTES,
     .default_value = "\"\"", .pattern = GS_KEY_NAME_PATTERN, .help = "Whose it is."},
    {.name = "role", .type = GS_FIELD_ENUM, .offset = offsetof(stored_known_key, role), .words = role_words,
     .required = true, .help = "What it may do."},
    {.name = "pool", .type = GS_FIELD_BOOL, .offset = offsetof(stored_known_key, is_pool), .default_value = "false",
     .help = "Workers whose names begin with this one and a hyphen share it."},
    {.name = "public", .type = GS_FIELD_STRING, .offset = offsetof(stored_known_key, shown),
     .capacity = GS_CURVE_KEY_TEXT_BYTES, .required = true, .pattern = "^[0-9a-f]{64}$", .help = "The key."},
    GS_CREDENTIAL_TIME(stored_known_key, created_ms, "made"),
    GS_CREDENTIAL_TIME(stored_known_key, expires_ms, "to expire"),
    GS_CREDENTIAL_TIME(stored_known_key, revoked_ms, "revoked"),
    {0}};

static const gs_field list_fields[] = {
    {.name = "version", .type = GS_FIELD_INT, .offset = offsetof(stored_list, version), .required = true,
     .has_range = true, .least = VERSION, .most = VERSION, .help = "Of the file."},
    {.name = "keys", .type = GS_FIELD_OBJECTS, .offset = offsetof(stored_list, keys), .capacity = GS_KEYS_MOST,
     .element_bytes = sizeof(stored_known_key), .count_offset = offsetof(stored_list, num_keys), .fields = key_fields,
     .help = "In the order in which they were made."},
    {.name = "digest", .type = GS_FIELD_STRING, .offset = offsetof(stored_list, digest), .capacity = 64,
     .default_value = "\"\"", .help = "Of the bytes before it."},
    {0}};

void gs_key_list_release(gs_key_list *list) {
    free(list->items);
    *list = (gs_key_list){0};
}

const char *gs_key_role_name(gs_role role) {
    for (int i = 0; i < NUM_ROLES; i++)
        if (roles[i] == role) return role_words[i];
    return NULL;
}

bool gs_key_role_from_name(gs_role *role, const char *name) {
    for (int i = 0; i < NUM_ROLES; i++)
        if (strcmp(role_words[i], name) == 0) {
            *role = roles[i];
            return true;
        }
    return false;
}

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// Ids and keys are unlike; with 20,000 of them, comparing each with each would take seconds.
static gs_status check_unlike(const stored_list *stored) {
    size_t count = (size_t)stored->num_keys * 2;
    const char **texts = malloc((count + 1) * sizeof *texts), *twice = NULL;
    if (!texts) return gs_error(GS_RESOURCE_EXHAUSTED, "keys: out of memory");
    for (int i = 0; i < stored->num_keys; i++) {
        texts[2 * i] = stored->keys[i].id;
        texts[2 * i + 1] = stored->keys[i].shown;
    }
    if (count) qsort(texts, count, sizeof *texts, compare_texts);
    for (size_t i = 1; i < count && !twice; i++)
        if (strcmp(texts[i - 1], texts[i]) == 0) twice = texts[i];
    gs_status status = twice ? gs_error(GS_INVALID_ARGUMENT, "keys: %s is there twice", twice) : gs_ok();
    free(texts);
    return status;
}

static gs_status take_stored(gs_key_list *list, const stored_list *stored) {
    GS_TRY(check_unlike(stored));
    list->items = calloc((size_t)stored->num_keys + 1, sizeof *list->items);
    if (!list->items) return gs_error(GS_RESOURCE_EXHAUSTED, "keys: out of memory");
    for (int i = 0; i < stored->num_keys; i++) {
        const stored_known_key *from = &stored->keys[i];
        gs_known_key *key = &list->items[list->count++];
        *key = (gs_known_key){.role = roles[from->role], .is_pool = from->is_pool, .created_ms = from->created_ms,
                              .expires_ms = from->expires_ms, .revoked_ms = from->revoked_ms};
        memcpy(key->id, from->id, sizeof key->id);
        memcpy(key->name, from->name, sizeof key->name);
        if (!gs_curve_key_parse(&key->shown, from->shown) || (!key->name[0] && key->role != GS_ROLE_ENROL))
            return gs_error(GS_INVALID_ARGUMENT, "keys: %s has no key or no name", key->id);
    }
    return gs_ok();
}

gs_status gs_key_list_decode(gs_key_list *list, const gs_json *file) {
    stored_list *stored = calloc(1, sizeof *stored);
    if (!stored) return gs_error(GS_RESOURCE_EXHAUSTED, "keys: out of memory");
    gs_status status = gs_credential_file_decode(stored, list_fields, file);
    if (!status.code) status = take_stored(list, stored);
    free(stored);
    if (status.code) gs_key_list_release(list);
    return status;
}

gs_json *gs_key_list_encode(const gs_key_list *list) {
    stored_list *stored = calloc(1, sizeof *stored);
    if (!stored) return NULL;
    stored->version = VERSION;
    for (size_t i = 0; i < list->count && i < GS_KEYS_MOST; i++) {
        const gs_known_key *from = &list->items[i];
        stored_known_key *to = &stored->keys[stored->num_keys++];
        memcpy(to->id, from->id, sizeof to->id);
        memcpy(to->name, from->name, sizeof to->name);
        gs_curve_key_format(to->shown, &from->shown);
        while (roles[to->role] != from->role) to->role++;
        to->is_pool = from->is_pool;
        to->created_ms = from->created_ms;
        to->expires_ms = from->expires_ms;
        to->revoked_ms = from->revoked_ms;
    }
    gs_json *file = gs_credential_file_encode(stored, list_fields);
    free(stored);
    return file;
}

static gs_credential_times times_of(const gs_known_key *key) {
    return (gs_credential_times){key->created_ms, key->expires_ms, key->revoked_ms};
}

bool gs_known_key_counts(const gs_known_key *key, int64_t now_ms) {
    return gs_credential_counts(times_of(key), now_ms);
}

const gs_known_key *gs_key_list_find(const gs_key_list *list, const gs_curve_key *shown) {
    for (size_t i = 0; i < list->count; i++)
        if (gs_curve_key_equal(&list->items[i].shown, shown)) return &list->items[i];
    return NULL;
}

static gs_known_key *find_id(const gs_key_list *list, const char *id) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].id, id) == 0) return &list->items[i];
    return NULL;
}

const gs_known_key *gs_key_list_find_id(const gs_key_list *list, const char *id) { return find_id(list, id); }

// Of two that count: whether the holder of one could speak for the other, or people take one for the other.
static bool clash(const gs_known_key *a, const gs_known_key *b) {
    if (!a->name[0] || !b->name[0]) return false;
    bool same = strcmp(a->name, b->name) == 0;
    bool workers = a->role <= GS_ROLE_ENROL && b->role <= GS_ROLE_ENROL;
    if (same) return !(workers ? a->is_pool == b->is_pool : a->role == b->role);
    if (!workers) return false;
    return (a->is_pool && gs_key_name_covers(a->name, true, b->name)) || (b->is_pool && gs_key_name_covers(b->name, true, a->name));
}

static gs_credential_times times_at(const void *items, size_t index) {
    return times_of((const gs_known_key *)items + index);
}

// False: all that are there count.
static bool drop_earliest_ended(gs_key_list *list, int64_t now_ms) {
    size_t earliest = gs_credential_earliest_ended(list->count, times_at, list->items, now_ms);
    if (earliest == list->count) return false;
    list->count--;
    memmove(&list->items[earliest], &list->items[earliest + 1], (list->count - earliest) * sizeof *list->items);
    return true;
}

gs_status gs_key_list_add(gs_key_list *list, gs_known_key *key, int64_t now_ms) {
    if (gs_credential_looks_like_id(key->name, 'k'))
        return gs_error(GS_INVALID_ARGUMENT, "%s: a name that looks like an id would be taken for that key's", key->name);
    for (size_t i = 0; i < list->count; i++) {
        const gs_known_key *other = &list->items[i];
        if (gs_curve_key_equal(&other->shown, &key->shown))
            return gs_error(GS_ALREADY_EXISTS, "this key is known already: %s", other->id);
        if (gs_known_key_counts(other, now_ms) && clash(other, key))
            return gs_error(GS_ALREADY_EXISTS, "%s would be taken for %s, the %s%s %s", key->name, other->id,
                            other->is_pool ? "pool of " : "", gs_key_role_name(other->role), other->name);
    }
    if (list->count >= GS_KEYS_MOST && !drop_earliest_ended(list, now_ms))
        return gs_error(GS_FAILED_PRECONDITION, "there are %d keys that count, and no more are kept", GS_KEYS_MOST);
    gs_known_key *items = realloc(list->items, (list->count + 1) * sizeof *items);
    if (!items) return gs_error(GS_RESOURCE_EXHAUSTED, "keys: out of memory");
    list->items = items;
    do gs_credential_draw_id(key->id, 'k');
    while (gs_key_list_find_id(list, key->id));
    list->items[list->count++] = *key;
    return gs_ok();
}

gs_status gs_key_list_revoke(gs_key_list *list, const char *which, int64_t now_ms, int *count) {
    *count = 0;
    bool known = false;
    const gs_known_key *sole = gs_key_list_find_id(list, which);
    for (size_t i = 0; sole && i < list->count; i++) {
        const gs_known_key *key = &list->items[i];
        if (key != sole && strcmp(key->name, which) == 0 && gs_known_key_counts(key, now_ms))
            return gs_error(GS_ALREADY_EXISTS, "%s is the id of one key and the name of another, %s: say which by that id first", which,
                            key->id);
    }
    for (size_t i = 0; i < list->count; i++) {
        gs_known_key *key = &list->items[i];
        bool named = strcmp(key->name, which) == 0 && gs_known_key_counts(key, now_ms);
        if (key != sole && !named) continue;
        known = true;
        if (key->revoked_ms) continue;
        key->revoked_ms = now_ms;
        ++*count;
    }
    return known ? gs_ok() : gs_error(GS_NOT_FOUND, "no key that counts has this id or name");
}

static bool is_taken(const gs_key_list *list, const char *name, int64_t now_ms) {
    for (size_t i = 0; i < list->count; i++) {
        const gs_known_key *key = &list->items[i];
        if (key->role != GS_ROLE_ENROL && strcmp(key->name, name) == 0 && gs_known_key_counts(key, now_ms)) return true;
    }
    return false;
}

gs_status gs_key_list_enrol(gs_key_list *list, const char *token_id, const char *name, const gs_curve_key *shown,
                            int64_t now_ms, gs_known_key *made) {
    gs_known_key *token = find_id(list, token_id);
    if (token && token->role == GS_ROLE_AGENT && gs_known_key_counts(token, now_ms) && gs_curve_key_equal(&token->shown, shown)) {
        *made = *token;  // its answer was lost
        return gs_ok();
    }
    if (!token || token->role != GS_ROLE_ENROL || !gs_known_key_counts(token, now_ms))
        return gs_error(GS_PERMISSION_DENIED, "the token to enrol with has been used, has expired or was revoked");
    bool is_named = token->name[0];
    if (is_named && name[0] && strcmp(token->name, name) != 0 && !gs_key_name_covers(token->name, token->is_pool, name))
        return gs_error(GS_PERMISSION_DENIED, "this token is for the %s %s, not for %s", token->is_pool ? "pool" : "worker",
                        token->name, name);
    if (!is_named && !gs_key_name_is_sound(name)) return gs_error(GS_INVALID_ARGUMENT, "%.80s is no name of a worker", name);
    // Whom an administrator has named may get another key; who names himself takes nobody's place.
    if (!is_named && is_taken(list, name, now_ms))
        return gs_error(GS_ALREADY_EXISTS, "%s has a key already; a token for %s may give it another one", name, name);
    *made = (gs_known_key){.role = GS_ROLE_AGENT, .is_pool = token->is_pool, .shown = *shown, .created_ms = now_ms};
    snprintf(made->name, sizeof made->name, "%s", is_named ? token->name : name);
    token->revoked_ms = now_ms;
    return gs_key_list_add(list, made, now_ms);
}

gs_json *gs_known_key_view(const gs_known_key *key, int64_t now_ms) {
    gs_json *view = gs_json_new_object();
    char text[GS_CURVE_KEY_TEXT_BYTES];
    gs_curve_key_format(text, &key->shown);
    gs_json_set_string(view, "id", key->id);
    gs_json_set_string(view, "name", key->name);
    gs_json_set_string(view, "role", gs_key_role_name(key->role));
    gs_json_set_bool(view, "pool", key->is_pool);
    gs_json_set_string(view, "public", text);
    gs_credential_view(view, times_of(key), now_ms);
    return view;
}
