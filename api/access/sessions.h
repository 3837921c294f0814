// Sessions of browsers: a cookie that stands for a token, so that no page and no address has the token itself. Kept in memory
// alone, as hashes: a restart ends them all. Any thread.
//
// A session has no rights of its own: it names a token, and whether that counts, and what it may, is asked with every request. It
// ends 12 hours after it was last used, and after 7 days. A token has so many at most; a further one ends the one that was not used
// for longest. Where there is no room for anybody's, one of the token that has most ends.
#ifndef API_ACCESS_SESSIONS_H
#define API_ACCESS_SESSIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "api/access/secret.h"
#include "api/access/token_list.h"
#include "core/status.h"

enum { GS_SESSIONS_MOST = 1024, GS_SESSIONS_OF_TOKEN = 16, GS_SESSION_IDLE_SECONDS = 12 * 3600, GS_SESSION_SECONDS = 7 * 86400 };

// Of cookies. With the first a browser keeps a cookie to this very host and to encrypted connections.
#define GS_SESSION_COOKIE_TLS "__Host-gradsync"
#define GS_SESSION_COOKIE "gradsync"

typedef struct gs_sessions gs_sessions;

gs_sessions *gs_sessions_create(void);  // NULL: out of memory
void gs_sessions_destroy(gs_sessions *sessions);  // NULL is fine
// *secret is the cookie's value. now_ns: of gs_now_ns, here and below.
GS_NODISCARD gs_status gs_sessions_begin(gs_sessions *sessions, char secret[GS_SECRET_TEXT_BYTES], const char *token_id, int64_t now_ns);
// The token that `secret` stands for, and that it was used. False: there is no such session, or not any more.
// *number: of this session and no other of this process.
bool gs_sessions_find(gs_sessions *sessions, char token_id[GS_TOKEN_ID_BYTES], uint64_t *number, const char *secret, int64_t now_ns);
// Whether it goes on, without its being used by that.
bool gs_sessions_has(gs_sessions *sessions, uint64_t number, int64_t now_ns);
void gs_sessions_end(gs_sessions *sessions, const char *secret);

// The value of `name` in a Cookie header, into `secret`; "" when there is none, or there are two: nobody can say which of them a
// page of a neighbouring host has set.
void gs_session_of_cookies(char secret[GS_SECRET_TEXT_BYTES], const char *header, const char *name);

#endif
