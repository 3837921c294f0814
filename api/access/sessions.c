#include "api/access/sessions.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

typedef struct session {
    gs_secret_hash hash;
    char token_id[GS_TOKEN_ID_BYTES];
    uint64_t number;  // from 1 on
    int64_t begin_ns, used_ns;  // used_ns 0: this place is free
} session;

struct gs_sessions {
    pthread_mutex_t lock;
    uint64_t num_begun;
    session items[GS_SESSIONS_MOST];
};

gs_sessions *gs_sessions_create(void) {
    gs_sessions *sessions = calloc(1, sizeof *sessions);
    if (sessions) pthread_mutex_init(&sessions->lock, NULL);
    return sessions;
}

void gs_sessions_destroy(gs_sessions *sessions) {
    if (!sessions) return;
    pthread_mutex_destroy(&sessions->lock);
    free(sessions);
}

static bool is_over(const session *it, int64_t now_ns) {
    return !it->used_ns || now_ns - it->used_ns >= GS_SESSION_IDLE_SECONDS * GS_NS_PER_SEC ||
           now_ns - it->begin_ns >= GS_SESSION_SECONDS * GS_NS_PER_SEC;
}

static int count_of(const gs_sessions *sessions, const char *token_id) {
    int count = 0;
    for (const session *it = sessions->items; it < sessions->items + GS_SESSIONS_MOST; it++) count += strcmp(it->token_id, token_id) == 0;
    return count;
}

// Where all places are taken: of the tokens that have most, whose session was not used for longest. So who has few is not pushed
// out by who has many tokens, each with many.
static session *choose_victim(gs_sessions *sessions, const char *token_id) {
    session *victim = NULL;
    int most = 0;
    for (session *it = sessions->items; it < sessions->items + GS_SESSIONS_MOST; it++) {
        int count = count_of(sessions, it->token_id) + (strcmp(it->token_id, token_id) == 0);  // with the one that begins
        if (count < most || (count == most && victim && it->used_ns >= victim->used_ns)) continue;
        most = count;
        victim = it;
    }
    return victim;
}

// A free place; else, where the token has as many as it may, its own that was not used for longest; else that of who has most.
static session *choose_place(gs_sessions *sessions, const char *token_id, int64_t now_ns) {
    session *unused = NULL, *own = NULL;
    int num_own = 0;
    for (session *it = sessions->items; it < sessions->items + GS_SESSIONS_MOST; it++) {
        if (is_over(it, now_ns)) {
            unused = it;
            continue;
        }
        if (strcmp(it->token_id, token_id) != 0) continue;
        num_own++;
        if (!own || it->used_ns < own->used_ns) own = it;
    }
    if (num_own >= GS_SESSIONS_OF_TOKEN) return own;
    return unused ? unused : choose_victim(sessions, token_id);
}

gs_status gs_sessions_begin(gs_sessions *sessions, char secret[GS_SECRET_TEXT_BYTES], const char *token_id, int64_t now_ns) {
    session fresh = {.begin_ns = now_ns, .used_ns = now_ns};
    GS_TRY(gs_secret_draw(secret));
    if (!gs_secret_hash_of(&fresh.hash, secret, strlen(secret))) return gs_error(GS_INTERNAL, "session: no hash");
    snprintf(fresh.token_id, sizeof fresh.token_id, "%s", token_id);
    pthread_mutex_lock(&sessions->lock);
    fresh.number = ++sessions->num_begun;
    *choose_place(sessions, token_id, now_ns) = fresh;
    pthread_mutex_unlock(&sessions->lock);
    return gs_ok();
}

// Under the lock. All are looked at, found or not.
static session *find(gs_sessions *sessions, const char *secret) {
    gs_secret_hash hash;
    session *found = NULL;
    if (!gs_secret_hash_of(&hash, secret, strlen(secret))) return NULL;
    for (session *it = sessions->items; it < sessions->items + GS_SESSIONS_MOST; it++)
        if (it->used_ns && gs_secret_hash_equal(&it->hash, &hash)) found = it;
    return found;
}

bool gs_sessions_find(gs_sessions *sessions, char token_id[GS_TOKEN_ID_BYTES], uint64_t *number, const char *secret, int64_t now_ns) {
    *number = 0;
    pthread_mutex_lock(&sessions->lock);
    session *found = find(sessions, secret);
    bool is_there = found && !is_over(found, now_ns);
    if (is_there) {
        memcpy(token_id, found->token_id, GS_TOKEN_ID_BYTES);
        *number = found->number;
        found->used_ns = now_ns;
    }
    pthread_mutex_unlock(&sessions->lock);
    return is_there;
}

bool gs_sessions_has(gs_sessions *sessions, uint64_t number, int64_t now_ns) {
    bool is_there = false;
    pthread_mutex_lock(&sessions->lock);
    for (session *it = sessions->items; it < sessions->items + GS_SESSIONS_MOST; it++)
        if (it->number == number && !is_over(it, now_ns)) is_there = true;
    pthread_mutex_unlock(&sessions->lock);
    return is_there;
}

void gs_sessions_end(gs_sessions *sessions, const char *secret) {
    pthread_mutex_lock(&sessions->lock);
    session *found = find(sessions, secret);
    if (found) *found = (session){0};
    pthread_mutex_unlock(&sessions->lock);
}

void gs_session_of_cookies(char secret[GS_SECRET_TEXT_BYTES], const char *header, const char *name) {
    size_t name_len = strlen(name);
    int num_found = 0;
    secret[0] = '\0';
    for (const char *at = header; *at;) {
        at += strspn(at, "; \t");
        size_t len = strcspn(at, ";");
        if (len > name_len && strncmp(at, name, name_len) == 0 && at[name_len] == '=') {
            const char *value = at + name_len + 1;
            size_t value_len = len - name_len - 1;
            while (value_len > 0 && (value[value_len - 1] == ' ' || value[value_len - 1] == '\t')) value_len--;
            num_found++;
            if (value_len < GS_SECRET_TEXT_BYTES) snprintf(secret, GS_SECRET_TEXT_BYTES, "%.*s", (int)value_len, value);
        }
        at += len;
    }
    if (num_found != 1) secret[0] = '\0';
}
