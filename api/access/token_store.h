// Who may use the API, kept in a file: asks for tokens, makes and revokes them. Any thread.
//
// Where nobody is asked (a loopback address, and no token was ever made) everybody may do everything. From the
// first token on everybody is asked, also when all have ended: a file that is there, not one that holds something,
// closes the door, so that no revocation can open it.
//
// A change is on the disk before it is answered. Another process may change the file: a thread of this store looks
// each second, so that requests never wait for a disk. A file that vanishes or cannot be read lets nobody in who
// was not let in before.
//
// While somebody is asked there is an administrator: where none counts at the start, or when the first token is
// made, one is written to `admin.token` beside the file, for the eyes of its owner alone.
#ifndef API_ACCESS_TOKEN_STORE_H
#define API_ACCESS_TOKEN_STORE_H

#include <stdbool.h>

#include "api/access/sessions.h"
#include "api/access/token_list.h"
#include "core/status.h"
#include "rpc/json/json.h"

typedef struct gs_token_store gs_token_store;

typedef struct gs_token_store_options {
    const char *path;  // of the file, in a directory that is there; NULL: tokens are ignored
    bool is_required;  // everybody is asked from the start on
    bool is_ignored;   // nobody ever is, and no token can be made
} gs_token_store_options;

// DATA_LOSS: the file is damaged. FAILED_PRECONDITION: others than this user and root may write it, or it is no regular file.
GS_NODISCARD gs_status gs_token_store_open(gs_token_store **out, const gs_token_store_options *options);
void gs_token_store_close(gs_token_store *store);  // NULL is fine
bool gs_token_store_asks(gs_token_store *store);
// The file is another one than what counts, and could not be read yet.
bool gs_token_store_is_behind(const gs_token_store *store);
const char *gs_token_store_admin_path(const gs_token_store *store);

// Who asks, as logs name him. Where nobody is asked: "", and the role of an administrator.
typedef struct gs_caller {
    char id[GS_TOKEN_ID_BYTES], name[GS_TOKEN_NAME_BYTES];
    gs_role role;
    int64_t expires_ms;
    bool is_session;  // he showed a cookie, which stands for his token
    uint64_t session;  // its number (sessions.h)
    bool is_exempt;  // came by a way on which nobody is asked, whatever tokens there are
} gs_caller;

// As others than this API are told who asked: "ci (t-1a2b3c4d)"; "" where nobody was asked.
#define GS_PRINCIPAL_BYTES 96
void gs_caller_format(char text[GS_PRINCIPAL_BYTES], const gs_caller *caller);

// header: of Authorization, NULL when there is none. UNAUTHENTICATED: who he is is not known, or known no longer.
// PERMISSION_DENIED: his role is too low. Both say what is missing, to whoever asks.
GS_NODISCARD gs_status gs_token_store_admit(gs_token_store *store, gs_caller *caller, const char *header, gs_role needed);

// The same of who shows something that stands for a token, a session's cookie; token_id "": it stands for none.
GS_NODISCARD gs_status gs_token_store_admit_session(gs_token_store *store, gs_caller *caller, const char *token_id, gs_role needed);
// Whether who was let in before would be now: his token counts still, and so does the session that he came by; or nobody is asked
// as before.
bool gs_token_store_admits_still(gs_token_store *store, gs_sessions *sessions, const gs_caller *caller);

// *secret is what its bearer shows, told this once. life_seconds 0: it does not expire. As gs_token_list_add;
// FAILED_PRECONDITION: tokens are ignored.
GS_NODISCARD gs_status gs_token_store_make(gs_token_store *store, gs_token *made, char secret[GS_SECRET_TEXT_BYTES],
                                           const char *name, gs_role role, double life_seconds);
GS_NODISCARD gs_status gs_token_store_revoke(gs_token_store *store, const char *which);
// {"items": […]}, oldest first.
gs_json *gs_token_store_view(gs_token_store *store);

#endif
