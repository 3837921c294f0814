// What a peer of the control port has in a file: its own pair, its name, and the server's public key. The server's own file
// is of the same form.
#ifndef RPC_KEYS_KEY_FILE_H
#define RPC_KEYS_KEY_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "rpc/json/json.h"
#include "rpc/json/sealed_file.h"
#include "rpc/keys/curve_key.h"

#define GS_KEY_NAME_BYTES 64
#define GS_KEY_NAME_PATTERN "^[A-Za-z0-9][A-Za-z0-9._-]*$"

typedef struct gs_key_file {
    char name[GS_KEY_NAME_BYTES];
    bool is_pool;  // its workers are called NAME-…
    gs_curve_pair pair;
    gs_curve_key server;
} gs_key_file;

// INVALID_ARGUMENT names the member; one whose halves do not belong together is refused too.
GS_NODISCARD gs_status gs_key_file_decode(gs_key_file *key, const gs_json *file);
gs_json *gs_key_file_encode(const gs_key_file *key);
// *mark (may be NULL): of the file that was read. FAILED_PRECONDITION: others may read it, or its group may change it.
GS_NODISCARD gs_status gs_key_file_read(gs_key_file *key, gs_file_mark *mark, const char *path);
GS_NODISCARD gs_status gs_key_file_write(const gs_key_file *key, const char *path);  // 0600
GS_NODISCARD gs_status gs_key_file_print(char **text, const gs_key_file *key);  // what such a file holds; *text is the caller's
bool gs_key_name_is_sound(const char *name);
void gs_key_file_wipe(gs_key_file *key);

// A one-time token to enrol with, on one line: "gsk_", the server's public key and the token's secret.
#define GS_ENROL_TOKEN_BYTES 133
void gs_enrol_token_format(char text[GS_ENROL_TOKEN_BYTES], const gs_curve_key *server, const gs_curve_key *secret);
GS_NODISCARD gs_status gs_enrol_token_parse(gs_key_file *key, const char *text, size_t len);
// FAILED_PRECONDITION: as of a file of a key.
GS_NODISCARD gs_status gs_enrol_token_read(gs_key_file *key, const char *path);

#endif
